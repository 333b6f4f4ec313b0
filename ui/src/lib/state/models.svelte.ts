// The models on this machine and the ones in memory. No DOM.

import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { AppInfo, ErrorInfo, LoadedModels, LoadRequest, ModelEntry } from '../ipc/schema.gen';
import { language } from '../strings/index.svelte';
import type { Settings } from './settings.svelte';

/** Target and draft, and how they come into memory. */
export class Models {
  info = $state.raw<AppInfo | null>(null);
  loaded = $state.raw<LoadedModels | null>(null);
  listed = $state.raw<readonly ModelEntry[]>([]);
  /** What is being loaded, in words; null when nothing is. */
  loading = $state<string | null>(null);
  error = $state.raw<ErrorInfo | null>(null);
  /** Whether the start is over and the window knows what there is. */
  ready = $state(false);

  readonly #host: Host;
  readonly #settings: Settings;
  #picking = false;

  constructor(host: Host, settings: Settings) {
    this.#host = host;
    this.#settings = settings;
  }

  /** Asks what there is; when nothing is in memory, loads the model Hunch starts with. */
  async start(): Promise<void> {
    try {
      const info = await call(this.#host, 'app_info', {});
      this.info = info;
      this.#settings.adopt(info);
      if (info.loaded) this.#take(info.loaded);
      await this.refresh();
      const first = this.listed.find((model) => model.is_default && model.problem === null);
      if (!this.loaded && first) await this.load({ target: first.path, draft: null }, first.name);
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    } finally {
      this.ready = true;
    }
  }

  /** Lists the models again. */
  async refresh(): Promise<void> {
    this.listed = await call(this.#host, 'list_models', {});
  }

  /** Loads models; on failure what was in memory is asked for again and the error is shown. */
  async load(request: LoadRequest, name: string): Promise<void> {
    if (this.loading !== null) return;
    this.loading = name;
    this.error = null;
    try {
      this.#take(await call(this.#host, 'load_models', { request }));
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
      await this.#recover();
    } finally {
      this.loading = null;
    }
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
    else await this.load({ target: path, draft: null }, fileName(path));
  }

  /** Loads a draft beside the loaded target; null goes without. */
  async useDraft(path: string | null, name: string): Promise<void> {
    if (!this.loaded) return;
    await this.load({ target: this.loaded.target.path, draft: path }, name);
  }

  async #pick(title: string): Promise<string | null> {
    if (this.#picking || this.loading !== null) return null;
    this.#picking = true;
    try {
      return await this.#host.pickModelFile(title);
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
      return null;
    } finally {
      this.#picking = false;
    }
  }

  #take(loaded: LoadedModels): void {
    const draftIsNew = loaded.draft !== null && loaded.draft.path !== this.loaded?.draft?.path;
    this.loaded = loaded;
    this.#settings.fit(loaded, draftIsNew || !this.ready);
  }

  async #recover(): Promise<void> {
    try {
      const info = await call(this.#host, 'app_info', {});
      this.info = info;
      this.loaded = info.loaded;
      if (info.loaded) this.#settings.fit(info.loaded, false);
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    }
  }
}

function fileName(path: string): string {
  return path.split(/[\\/]/).at(-1)?.replace(/\.gguf$/i, '') ?? path;
}
