// The models in memory: how they come there and how they go. No DOM.

import { errorLine, ownError } from '../errors';
import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { AppInfo, ErrorInfo, LoadedModels, LoadProgress, LoadRequest, ModelEntry, StoreRemedy } from '../ipc/schema.gen';
import { language } from '../strings/index.svelte';
import { Library } from './library.svelte';
import { Preferences, type LastModels } from './preferences.svelte';
import type { Settings } from './settings.svelte';

/** What models have to do with. */
export interface Surroundings {
  library: Library;
  preferences: Preferences;
  /** Says in a sentence what could not be done. */
  complain: (text: string) => void;
}

/** How many targets are remembered. */
const recentAtMost = 5;

/** A target that is not in memory and comes back when it is needed. */
export interface Resting {
  path: string;
  name: string;
  /** Null where it is not known. */
  quantisation: string | null;
}

/** What came of loading. */
type Outcome = 'loaded' | 'failed' | 'cancelled' | 'busy';

/** Target and draft, and how they come into memory. */
export class Models {
  info = $state.raw<AppInfo | null>(null);
  loaded = $state.raw<LoadedModels | null>(null);
  /** What is being loaded, in words; null when nothing is. */
  loading = $state<string | null>(null);
  /** How far reading the files is, whoever asked for it; null when nothing is told. */
  progress = $state.raw<LoadProgress | null>(null);
  /** Whether loading was called off and has not ended yet. */
  cancelling = $state(false);
  /** Why nothing is in memory: the person asked for it, nobody used it, or loading it ended the last run. */
  letGo = $state<'asked' | 'idle' | 'crashed' | null>(null);
  error = $state.raw<ErrorInfo | null>(null);
  /** Whether the start is over and the window knows what there is. */
  ready = $state(false);

  readonly #host: Host;
  readonly #settings: Settings;
  readonly #library: Library;
  readonly #preferences: Preferences;
  readonly #complain: (text: string) => void;
  #picking = false;
  #unloading = false;
  /** What was in memory last since the start, whoever wanted it there. */
  #brought = $state.raw<LastModels | null>(null);
  /** What the engine could not find: it does not come back. */
  #gone = $state.raw<LastModels | null>(null);

  /** The models on this machine. */
  listed = $derived.by((): readonly ModelEntry[] => this.#library.models);

  /** The target that comes back into memory when a question is asked; null when none is known. */
  resting = $derived.by((): Resting | null => {
    const last = this.loaded ? null : this.#restorable();
    const listed = this.#library.at(last?.target);
    return last && { path: last.target, name: this.#nameOf(last), quantisation: listed?.quantisation ?? last.quantisation };
  });

  /** Whether a question can be answered: with what is in memory, or with what comes back. */
  answerable = $derived(this.loaded !== null || this.resting !== null);

  /** Whether something is being done about the file of conversations. */
  mending = $state(false);
  /** Why that did not help. */
  mendingFailed = $state.raw<ErrorInfo | null>(null);
  /** Targets that were loaded lately and are still here, the last one first. */
  recent = $derived.by(() => this.#preferences.recentModels.flatMap((path) => this.#library.at(path) ?? []));

  constructor(host: Host, settings: Settings, surroundings: Partial<Surroundings> = {}) {
    this.#host = host;
    this.#settings = settings;
    this.#library = surroundings.library ?? new Library(host);
    this.#preferences = surroundings.preferences ?? new Preferences(host);
    this.#complain = surroundings.complain ?? (() => {});
  }

  /** Asks what there is; when nothing is in memory, loads what was loaded last, or else the model Hunch starts with. */
  async start(): Promise<void> {
    try {
      const info = await call(this.#host, 'app_info', {});
      this.info = info;
      this.#settings.adopt(info);
      if (info.loaded) this.#take(info.loaded);
      // Looking through all folders may take long, and what was loaded last need not wait for it.
      const listing = this.#library.ask();
      listing.catch(() => {});
      if (!this.loaded) await this.#begin(listing);
      await listing;
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    } finally {
      this.ready = true;
    }
  }

  /** Loads models; on failure what was in memory is asked for again and the error is shown. What nobody `asked` for is
   * not remembered. */
  async load(request: LoadRequest, name: string, asked = true): Promise<Outcome> {
    if (this.loading !== null) return 'busy';
    this.loading = name;
    this.error = null;
    this.progress = null;
    try {
      this.#take(await call(this.#host, 'load_models', { request }), request.context);
      if (asked) this.#remember();
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

  /** Calls off what is being loaded. What was in memory stays. */
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

  /** Lets go what is in memory. It comes back when a question is asked. */
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

  /** The engine has let go what was in memory. It may have made room for what it then could not load. */
  hearUnloaded(makingRoom = this.loading !== null): void {
    if (this.loaded) this.#lose(this.#unloading ? 'asked' : makingRoom ? null : 'idle');
  }

  /** The engine reads files. */
  hearProgress(progress: LoadProgress): void {
    this.progress = progress;
    // Calling it off may have come before there was anything to call off.
    if (this.cancelling) void call(this.#host, 'cancel_loading', {}).catch(() => {});
  }

  /** A pair that was asked for was loaded otherwise, to be measured. Never rejects. */
  async adopt({ target, draft, context }: LoadRequest): Promise<void> {
    this.progress = null;
    await this.refresh();
    if (this.loaded?.target.path !== target || (this.loaded.draft?.path ?? null) !== draft) return;
    this.#brought = lastOf(this.loaded, context);
    this.#remember();
  }

  /** Brings back what was let go, so that a question can be answered. Rejects where that cannot be. */
  async restore(): Promise<void> {
    const last = this.#restorable();
    if (this.loaded || this.loading !== null || !last) return;
    const outcome = await this.#again(last, false);
    if (outcome === 'loaded') return;
    const error = this.error ?? ownError('no_model', language.strings.library.loading.cancelled);
    this.error = null;
    throw error;
  }

  /** Brings back what was let go, because the person asks for it. What is in the way is shown. */
  async wake(): Promise<void> {
    try {
      await this.restore();
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    }
  }

  /** Loads a model alone. */
  async loadTarget({ path, name }: ModelEntry): Promise<void> {
    await this.load(alone(path), name);
  }

  /** Lets the person choose a target in the native dialog, and loads it. */
  async openTarget(): Promise<void> {
    const path = await this.#pick(language.strings.dialogs.openModel);
    if (path !== null) await this.openFile(path, 'target');
  }

  /** Lets the person choose a draft for the loaded target, and loads it. */
  async openDraft(): Promise<void> {
    if (!this.loaded) return this.openTarget();
    const path = await this.#pick(language.strings.dialogs.openDraft);
    if (path !== null) await this.openFile(path, 'draft');
  }

  /** Loads a file as the target, or as a draft for the one that is loaded. */
  async openFile(path: string, as: 'target' | 'draft'): Promise<void> {
    if (as === 'draft' && this.loaded) await this.useDraft(path, fileName(path));
    else await this.load(alone(path), fileName(path));
  }

  /** Loads a draft beside the loaded target, which keeps its context; null goes without. */
  async useDraft(path: string | null, name: string): Promise<void> {
    if (!this.loaded) return;
    const { target } = this.loaded;
    const last = this.#brought;
    await this.load({ target: target.path, draft: path, context: last?.target === target.path ? last.context : null }, name);
  }

  /** Asks what is in memory: something else may have loaded it. Never rejects. */
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

  /** Asks what the engine says of itself, for what changes while it runs. A failure changes nothing. */
  async refreshInfo(): Promise<void> {
    try {
      this.info = await call(this.#host, 'app_info', {});
    } catch {
      // What was known stays on screen.
    }
  }

  /** Does what the person chose about the file of conversations. Says whether it was done. */
  async mendStore(remedy: StoreRemedy): Promise<boolean> {
    this.mending = true;
    try {
      this.info = await call(this.#host, 'mend_store', { remedy });
      this.mendingFailed = null;
      return true;
    } catch (thrown) {
      this.mendingFailed = toErrorInfo(thrown);
      return false;
    } finally {
      this.mending = false;
    }
  }

  /** What to begin with. What was loaded last is tried once; where that fails, a word says so. */
  async #begin(listing: Promise<void>): Promise<void> {
    const last = this.#preferences.lastModels;
    const words = language.strings.library.loading;
    let word: string | null = null;
    if (this.#crashedWith(last?.target)) return;
    if (last) {
      const outcome = await this.#again(last, true);
      if (outcome !== 'failed') return;
      word = this.#gone ? words.modelMissing(this.#nameOf(last)) : words.reloadFailed(this.#nameOf(last), this.error ? errorLine(this.error) : '');
    }
    await listing;
    const first = this.listed.find((model) => model.is_default && model.problem === null && (model.path !== last?.target || last.draft !== null));
    if (this.#crashedWith(first?.path)) return;
    // Without another one the error itself says enough.
    if (first) await this.load(alone(first.path), first.name, last === null);
    if (word !== null && this.loaded) this.#complain(words.loadedInstead(word, this.loaded.target.name));
  }

  /** Whether the last run ended while it loaded this target. It then waits for the person to ask for it. */
  #crashedWith(target: string | undefined): boolean {
    const crashed = this.info?.unfinished_load;
    if (!crashed || crashed.target !== target) return false;
    const { draft, context } = crashed;
    this.#brought = { target, draft, context, name: null, quantisation: null };
    this.letGo = 'crashed';
    return true;
  }

  /** Loads once more what was in memory. */
  async #again(last: LastModels, asked: boolean): Promise<Outcome> {
    const { target, draft, context } = last;
    const outcome = await this.load({ target, draft, context }, this.#nameOf(last), asked);
    if (outcome === 'failed' && this.error?.code === 'model_not_found') this.#gone = last;
    return outcome;
  }

  /** What was in memory last. A file that lies outside of the folders is in no list: only the engine can say that it is
   * gone. */
  #restorable(): LastModels | null {
    const last = this.#brought ?? this.#preferences.lastModels;
    if (!last || (last.target === this.#gone?.target && last.draft === this.#gone.draft)) return null;
    const broken = (path: string | null) => typeof this.#library.at(path)?.problem === 'string';
    return broken(last.target) || broken(last.draft) ? null : last;
  }

  #remember(): void {
    const last = this.#brought;
    if (!last) return;
    void this.#preferences.set('lastModels', last);
    const recent = [last.target, ...this.#preferences.recentModels.filter((path) => path !== last.target)];
    void this.#preferences.set('recentModels', recent.slice(0, recentAtMost));
  }

  #nameOf({ target, name }: LastModels): string {
    return this.#library.at(target)?.name ?? name ?? fileName(target);
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

  /** `context` is what was asked for, if it was; what is in memory already keeps what was asked for it. */
  #take(loaded: LoadedModels, context: number | null = loaded.context, isNew = true): void {
    // What comes back is not new: the method that was chosen for it stays.
    const draftIsNew = loaded.draft !== null && loaded.draft.path !== this.#brought?.draft;
    const last = this.#brought;
    const same = last?.target === loaded.target.path && last.draft === (loaded.draft?.path ?? null);
    if (isNew || !same) this.#brought = lastOf(loaded, context);
    this.#gone = null;
    this.loaded = loaded;
    this.letGo = null;
    this.#settings.fit(loaded, draftIsNew || !this.ready);
  }

  #lose(why: 'asked' | 'idle' | null): void {
    this.loaded = null;
    this.letGo = why;
  }
}

const alone = (target: string): LoadRequest => ({ target, draft: null, context: null });

/** What is kept of what is in memory. */
function lastOf({ target, draft }: LoadedModels, context: number | null): LastModels {
  return { target: target.path, draft: draft?.path ?? null, context, name: target.name, quantisation: target.quantisation };
}

function fileName(path: string): string {
  return path.split(/[\\/]/).at(-1)?.replace(/\.gguf$/i, '') ?? path;
}
