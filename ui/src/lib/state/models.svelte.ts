// The models in memory: loading and unloading. No DOM.

import { errorLine, ownError } from '../errors';
import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type {
  AnswerSettings,
  AppInfo,
  ErrorInfo,
  LoadedModels,
  LoadProgress,
  LoadRequest,
  ModelEntry,
  StoreRemedy,
} from '../ipc/schema.gen';
import { nameOf } from '../paths';
import { language } from '../strings/index.svelte';
import type { LibraryState } from './library.svelte';
import { recentAtMost, type LastModels, type Preferences } from './preferences.svelte';
import type { Settings } from './settings.svelte';

/** Other state that the models need. */
export interface ModelsDependencies {
  library: LibraryState;
  preferences: Preferences;
  /** Reports a failure in a sentence. */
  reportFailure: (text: string) => void;
  /** Returns `true` if a server answers, which needs no models. */
  needless: () => boolean;
  /** Called when the user has loaded models. They answer then. */
  chosen: () => void;
}

/** An unloaded target, reloaded when needed. */
interface ReloadableModel {
  path: string;
  /** Its name as shown. */
  title: string;
  /** Null if unknown. */
  quantisation: string | null;
}

/** Result of loading. */
type Outcome = 'loaded' | 'failed' | 'cancelled' | 'busy';

/** The loaded target and draft. */
export class Models {
  info = $state.raw<AppInfo | null>(null);
  loaded = $state.raw<LoadedModels | null>(null);
  /** Title of what is being loaded; null when idle. */
  loading = $state<string | null>(null);
  /** Progress of reading files, for any requester; null when unknown. */
  progress = $state.raw<LoadProgress | null>(null);
  /** `true` if loading was cancelled and has not ended yet. */
  cancelling = $state(false);
  /** Why nothing is loaded: unloaded by the user, unused for long, or loading it crashed the last run. */
  unloadReason = $state<'asked' | 'idle' | 'crashed' | null>(null);
  error = $state.raw<ErrorInfo | null>(null);
  /** `true` if the start is over and the models are known. */
  ready = $state(false);

  readonly #host: Host;
  readonly #settings: Settings;
  readonly #library: LibraryState;
  readonly #preferences: Preferences;
  readonly #reportFailure: (text: string) => void;
  readonly #needless: () => boolean;
  readonly #chosen: () => void;
  #picking = false;
  #unloading = false;
  /** Last models in memory since the start, loaded by this window or another caller. */
  #lastLoaded = $state.raw<LastModels | null>(null);
  /** A target that the engine could not find, which is not reloaded. */
  #gone = $state.raw<LastModels | null>(null);

  /** Models of this machine. */
  listed = $derived.by((): readonly ModelEntry[] => this.#library.models);

  /** Target that the next question reloads; null for none. */
  reloadable = $derived.by((): ReloadableModel | null => {
    const last = this.loaded ? null : this.#restorable();
    const listed = this.#library.at(last?.target);
    return last && { path: last.target, title: this.#titleOf(last), quantisation: listed?.quantisation ?? last.quantisation };
  });

  /** `true` if a question can be answered, with the loaded models or with reloaded ones. */
  answerable = $derived(this.loaded !== null || this.reloadable !== null);

  /** `true` if a remedy for the file of conversations is running. */
  repairing = $state(false);
  /** Why the remedy failed. */
  repairFailed = $state.raw<ErrorInfo | null>(null);
  /** Recently loaded targets that still exist, latest first. */
  recent = $derived.by(() => this.#preferences.recentModels.flatMap((path) => this.#library.at(path) ?? []));

  constructor(host: Host, settings: Settings, { library, preferences, reportFailure, needless, chosen }: ModelsDependencies) {
    this.#host = host;
    this.#settings = settings;
    this.#library = library;
    this.#preferences = preferences;
    this.#reportFailure = reportFailure;
    this.#needless = needless;
    this.#chosen = chosen;
  }

  /** The name of a model to show next to its quantisation, as in the library. */
  titleOf(model: ModelEntry): string {
    return this.#library.titleOf(model);
  }

  /** The name of a model to show alone, as in the library. */
  fullTitleOf(model: ModelEntry): string {
    return this.#library.fullTitleOf(model);
  }

  /** Other models than the loaded one that can be loaded, recent ones first. */
  others = $derived.by((): readonly ModelEntry[] => {
    const rest = this.listed.filter((model) => !this.recent.includes(model)).toSorted((a, b) => a.title.localeCompare(b.title));
    return [...this.recent, ...rest].filter(({ path, problem }) => problem === null && path !== this.loaded?.target.path);
  });

  /** The name of the target of an answer with its quantisation; as saved, if it is not listed; null if unknown. */
  writerTitle(settings: Pick<AnswerSettings, 'target'> | null): string | null {
    const listed = this.listed.find(({ name }) => name === settings?.target);
    return listed ? this.#library.fullTitleOf(listed) : settings?.target || null;
  }

  /** Saved settings of an answer with titles for the names of listed models. */
  titled<Writer extends Pick<AnswerSettings, 'target' | 'draft'>>(settings: Writer): Writer {
    const named = (name: string) => this.listed.find((model) => model.name === name);
    const title = (name: string) => named(name)?.title ?? name;
    return { ...settings, target: title(settings.target), draft: settings.draft === null ? null : title(settings.draft) };
  }

  /** Loads the state of the engine. If nothing is in memory, loads the last models, else Hunch's default model. */
  async start(): Promise<void> {
    try {
      const info = await call(this.#host, 'app_info', {});
      this.info = info;
      this.#settings.adopt(info);
      this.#settings.restore(this.#preferences.settings);
      if (info.loaded) this.#take(info.loaded);
      // Searching all folders may take long, and the last models need not wait.
      const listing = this.#library.ask();
      listing.catch(() => {});
      if (!this.loaded && !this.#needless()) await this.#begin(listing);
      // The next question after the server's must not load what crashed, either.
      else if (!this.loaded) this.#crashedWith(this.#preferences.lastModels?.target ?? info.unfinished_load?.target);
      await listing;
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    } finally {
      this.ready = true;
    }
  }

  /** Loads models. On failure shows the error and what is still in memory. Only models the user `asked` for are
   * remembered. */
  async load(request: LoadRequest, title: string, asked = true): Promise<Outcome> {
    if (this.loading !== null) return 'busy';
    this.loading = title;
    this.error = null;
    this.progress = null;
    try {
      this.#take(await call(this.#host, 'load_models', { request }), request.context);
      if (asked) this.#remember();
      // A server may have been chosen while the last models were loaded at the start.
      if (asked && this.ready) this.#chosen();
      return 'loaded';
    } catch (thrown) {
      const error = toErrorInfo(thrown);
      const outcome = error.code === 'stopped' ? 'cancelled' : 'failed';
      if (outcome === 'failed') this.error = error;
      await this.refresh();
      return outcome;
    } finally {
      this.loading = null;
      this.progress = null;
      this.cancelling = false;
    }
  }

  /** Shows models that the engine has changed without loading. */
  showChanged(loaded: LoadedModels): void {
    this.#take(loaded, this.#lastLoaded?.context, false);
  }

  /** Cancels loading. The models in memory stay. */
  async cancel(): Promise<void> {
    if (this.loading === null || this.cancelling) return;
    this.cancelling = true;
    try {
      await call(this.#host, 'cancel_loading', {});
    } catch (thrown) {
      this.cancelling = false;
      this.error = toErrorInfo(thrown);
    }
  }

  /** Unloads the models. The next question reloads them. */
  async unload(): Promise<void> {
    if (!this.loaded || this.loading !== null || this.#unloading) return;
    this.#unloading = true;
    try {
      await call(this.#host, 'unload_models', {});
      this.#lose('asked');
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    } finally {
      this.#unloading = false;
    }
  }

  /** The engine has unloaded the models, maybe to make room for others that then failed to load. */
  onUnloaded(makingRoom = this.loading !== null): void {
    if (this.loaded) this.#lose(this.#unloading ? 'asked' : makingRoom ? null : 'idle');
  }

  /** The engine reads files. */
  onProgress(progress: LoadProgress): void {
    this.progress = progress;
    // The cancellation may have come too early.
    if (this.cancelling) void call(this.#host, 'cancel_loading', {}).catch(() => {});
  }

  /** Takes over a requested pair that a measurement has loaded. Never rejects. */
  async adopt({ target, draft, head, context }: LoadRequest): Promise<void> {
    this.progress = null;
    await this.refresh();
    if (this.loaded?.target.path !== target || (this.loaded.draft?.path ?? null) !== draft || this.loaded.head?.path !== head) return;
    this.#lastLoaded = lastOf(this.loaded, context);
    this.#remember();
  }

  /** Reloads the models for a question. Rejects if that is impossible, or if loading them crashed the last run: only
   * the user may try that again. */
  async restore(): Promise<void> {
    if (this.unloadReason === 'crashed' && this.reloadable)
      throw ownError('no_model', language.strings.library.loading.crashed(this.reloadable.title));
    await this.#reload();
  }

  async #reload(): Promise<void> {
    const last = this.#restorable();
    if (this.loaded || this.loading !== null || !last) return;
    const outcome = await this.#again(last, false);
    if (outcome === 'loaded') return;
    const error = this.error ?? ownError('no_model', language.strings.library.loading.cancelled);
    this.error = null;
    throw error;
  }

  /** Reloads the models at the user's request. Failures are shown. */
  async reload(): Promise<void> {
    try {
      await this.#reload();
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    }
  }

  /** Loads a model without a draft. */
  async loadTarget(model: ModelEntry): Promise<void> {
    await this.load(alone(model.path), this.titleOf(model));
  }

  /** Loads a target chosen in the file dialog. Returns its path; null if none was chosen. */
  async openTarget(): Promise<string | null> {
    const path = await this.#pick(language.strings.dialogs.openModel);
    if (path !== null) await this.openFile(path, 'target');
    return path;
  }

  /** Loads a draft for the loaded target, chosen in the file dialog. */
  async openDraft(): Promise<void> {
    if (!this.loaded) return void (await this.openTarget());
    const path = await this.#pick(language.strings.dialogs.openDraft);
    if (path !== null) await this.openFile(path, 'draft');
  }

  /** Loads a file as the target, or as a draft for the loaded one. */
  async openFile(path: string, as: 'target' | 'draft'): Promise<void> {
    const listed = this.#library.at(path);
    const title = listed ? this.titleOf(listed) : fileName(path);
    if (as === 'draft' && this.loaded) await this.useDraft(path, title);
    else await this.load(alone(path), title);
  }

  /** Loads a draft for the loaded target, which keeps its context; null unloads the draft. */
  async useDraft(path: string | null, title: string): Promise<void> {
    if (!this.loaded) return;
    const { target } = this.loaded;
    const last = this.#lastLoaded;
    await this.load({ target: target.path, draft: path, context: last?.target === target.path ? last.context : null }, title);
  }

  /** Loads a head for the loaded target, which keeps its context. It takes the place of a draft. */
  async useHead(path: string, title: string): Promise<void> {
    if (!this.loaded) return;
    const { target } = this.loaded;
    const last = this.#lastLoaded;
    await this.load({ target: target.path, draft: null, head: path, context: last?.target === target.path ? last.context : null }, title);
  }

  /** Reloads what is in memory, which something else may have changed. Never rejects. */
  async refresh(): Promise<void> {
    try {
      const info = await call(this.#host, 'app_info', {});
      this.info = info;
      if (info.loaded) this.#take(info.loaded, info.loaded.context, false);
      else this.loaded = null;
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    }
  }

  /** Reloads the engine's info, which changes while it runs. A failure changes nothing. */
  async refreshInfo(): Promise<void> {
    try {
      this.info = await call(this.#host, 'app_info', {});
    } catch {
      // The known state stays on screen.
    }
  }

  /** Applies a remedy to the file of conversations. Returns whether it was applied. */
  async repairStore(remedy: StoreRemedy): Promise<boolean> {
    this.repairing = true;
    try {
      this.info = await call(this.#host, 'repair_store', { remedy });
      this.repairFailed = null;
      return true;
    } catch (thrown) {
      this.repairFailed = toErrorInfo(thrown);
      return false;
    } finally {
      this.repairing = false;
    }
  }

  /** Loads the first models: the last ones, or on failure the default with a notice. */
  async #begin(listing: Promise<void>): Promise<void> {
    const last = this.#preferences.lastModels;
    const words = language.strings.library.loading;
    let word: string | null = null;
    if (this.#crashedWith(last?.target)) return;
    if (last) {
      const outcome = await this.#again(last, true);
      if (outcome !== 'failed') return;
      word = this.#gone
        ? words.modelMissing(this.#titleOf(last))
        : words.reloadFailed(this.#titleOf(last), this.error ? errorLine(this.error) : '');
    }
    await listing;
    const first = this.listed.find(
      (model) => model.is_default && model.problem === null && (model.path !== last?.target || last.draft !== null),
    );
    if (this.#crashedWith(first?.path)) return;
    // The last models are unknown while their store cannot be opened.
    const isFirst = last === null && !this.info?.store_problem?.in_memory;
    // Without a default the error says enough.
    if (first) await this.load(alone(first.path), this.titleOf(first), isFirst);
    if (word !== null && this.loaded) this.#reportFailure(words.loadedInstead(word, this.titleOf(this.loaded.target)));
  }

  /** Returns `true` if the last run crashed while loading this target. It then waits for the user. */
  #crashedWith(target: string | undefined): boolean {
    const crashed = this.info?.unfinished_load;
    if (!crashed || crashed.target !== target) return false;
    const { draft, head, context } = crashed;
    this.#lastLoaded = { target, draft, ...(head && { head }), context, name: null, quantisation: null };
    this.unloadReason = 'crashed';
    return true;
  }

  /** Loads the last models again. */
  async #again(last: LastModels, asked: boolean): Promise<Outcome> {
    const { target, draft, head, context } = last;
    const outcome = await this.load({ target, draft, ...(head && { head }), context }, this.#titleOf(last), asked);
    if (outcome === 'failed' && this.error?.code === 'model_not_found') this.#gone = last;
    return outcome;
  }

  /** The last models. A file outside of the folders is not listed: only the engine knows whether it exists. */
  #restorable(): LastModels | null {
    const last = this.#lastLoaded ?? this.#preferences.lastModels;
    if (!last || (last.target === this.#gone?.target && last.draft === this.#gone.draft && last.head === this.#gone.head)) return null;
    const broken = (path: string | null) => typeof this.#library.at(path)?.problem === 'string';
    return broken(last.target) || broken(last.draft) ? null : last;
  }

  /** Forgets a draft that was deleted, so that it is not loaded again with its target. */
  forgetDraft(path: string): void {
    const without = (last: LastModels | null) => (last?.draft === path ? { ...last, draft: null } : last);
    this.#lastLoaded = without(this.#lastLoaded);
    const last = this.#preferences.lastModels;
    if (last?.draft === path) void this.#preferences.set('lastModels', { ...last, draft: null });
  }

  #remember(): void {
    const last = this.#lastLoaded;
    if (!last) return;
    void this.#preferences.set('lastModels', last);
    const recent = [last.target, ...this.#preferences.recentModels.filter((path) => path !== last.target)];
    void this.#preferences.set('recentModels', recent.slice(0, recentAtMost));
  }

  #titleOf({ target, name }: LastModels): string {
    const listed = this.#library.at(target);
    return listed ? this.titleOf(listed) : (name ?? fileName(target));
  }

  async #pick(title: string): Promise<string | null> {
    if (this.#picking || this.loading !== null) return null;
    this.#picking = true;
    try {
      return await call(this.#host, 'choose_file', { kind: 'model', title, filter: language.strings.dialogs.modelFiles });
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
      return null;
    } finally {
      this.#picking = false;
    }
  }

  /** `context` is the requested one, if any. Models in memory keep their requested one. */
  #take(loaded: LoadedModels, context: number | null = loaded.context, isNew = true): void {
    const last = this.#lastLoaded;
    const same = last?.target === loaded.target.path && last.draft === (loaded.draft?.path ?? null) && last.head === loaded.head?.path;
    const drafterIsNew = this.#bringsDrafter(loaded);
    if (isNew || !same) this.#lastLoaded = lastOf(loaded, context);
    this.#gone = null;
    this.loaded = loaded;
    this.unloadReason = null;
    if (drafterIsNew) this.#settings.forgetMethod();
    this.#settings.fit(loaded);
  }

  /** Returns `true` if models have a draft that those before had not, or another head for their target. It was opened to
   * be used. At the start it is that of the last session. */
  #bringsDrafter({ target, draft, head }: LoadedModels): boolean {
    const last = this.#lastLoaded ?? this.#preferences.lastModels;
    if (!this.ready) return false;
    if (draft && draft.path !== last?.draft) return true;
    return head !== undefined && target.path === last?.target && head.path !== last.head;
  }

  #lose(why: 'asked' | 'idle' | null): void {
    this.loaded = null;
    this.unloadReason = why;
  }
}

const alone = (target: string): LoadRequest => ({ target, draft: null, context: null });

/** The saved form of the loaded models. */
function lastOf({ target, draft, head }: LoadedModels, context: number | null): LastModels {
  const drafter = { draft: draft?.path ?? null, ...(head && { head: head.path }) };
  return { target: target.path, ...drafter, context, name: target.title, quantisation: target.quantisation };
}

const fileName = (path: string): string => nameOf(path).replace(/\.gguf$/i, '');
