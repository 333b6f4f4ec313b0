// Events of the engine outside of answers: each one goes to the state that it changes. No DOM.

import type { Host } from '../host';
import { call, toErrorInfo, watchLibrary } from '../ipc/rpc';
import type { LibraryEvent } from '../ipc/schema.gen';
import type { Comparison } from './comparison.svelte';
import type { Downloads } from './downloads.svelte';
import type { LibraryState } from './library.svelte';
import type { Models } from './models.svelte';
import type { Navigation } from './navigation.svelte';
import type { Pairing } from './pairing.svelte';

/** State that events change. */
interface LibraryEventTargets {
  library: LibraryState;
  downloads: Downloads;
  models: Models;
  comparison: Comparison;
  navigation: Navigation;
  /** The selected model and its drafts. */
  pairing: Pairing;
  /** The loaded target and its drafts. */
  drafting: Pairing;
}

/** The subscription to events. */
export class LibraryEvents {
  readonly #host: Host;
  readonly #to: LibraryEventTargets;
  /** `true` if the window is hidden. */
  #hidden = false;

  constructor(host: Host, targets: LibraryEventTargets) {
    this.#host = host;
    this.#to = targets;
  }

  /** Subscribes. Never rejects. */
  async watch(): Promise<void> {
    const { downloads, library } = this.#to;
    try {
      downloads.take(await watchLibrary(this.#host, (event) => this.#onEvent(event)));
      // It may have been hidden before the watch started.
      if (this.#hidden) this.hide(true);
    } catch (thrown) {
      library.error = toErrorInfo(thrown);
    }
  }

  /** Reports whether the window is visible. Folders of models are not watched while it is hidden. */
  hide(hidden: boolean): void {
    this.#hidden = hidden;
    // On failure they are watched as before.
    void call(this.#host, 'set_window_hidden', { hidden }).catch(() => {});
  }

  /** Reloads the models of this machine and what depends on them. */
  async libraryChanged(): Promise<void> {
    await this.#to.library.refresh();
    this.pairsChanged();
  }

  /** Reloads visible pairs now, others when shown. */
  pairsChanged(): void {
    const { navigation, pairing, drafting } = this.#to;
    if (navigation.place === 'library') pairing.refresh();
    else pairing.outdate();
    drafting.outdate();
  }

  #onEvent(event: LibraryEvent): void {
    const { comparison, downloads, drafting, models, pairing } = this.#to;
    switch (event.kind) {
      case 'changed':
        return void this.libraryChanged();
      case 'download':
      case 'download_gone':
        return downloads.onEvent(event);
      case 'loading':
        comparison.onLoading();
        // Once loaded, a copy that was written is offered as such.
        if (event.progress.writes_copy) for (const pairs of [pairing, drafting]) pairs.outdate();
        return models.onProgress(event.progress);
      case 'gpu_tested':
      case 'store_problem':
        return void models.refreshInfo();
      case 'unloaded':
        return models.onUnloaded(models.loading !== null || comparison.running);
    }
  }
}
