// Texts of the user that drafts are copied from: choosing and removing them. No DOM.

import { errorLine } from '../errors';
import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { LoadedTexts } from '../ipc/schema.gen';
import { language } from '../strings/index.svelte';
import type { Models } from './models.svelte';

/** The source of all conversations. Other sources are paths. */
const conversations = 'my-conversations';

/** The texts that drafts are copied from. */
export class CopiedTexts {
  /** Sources of the texts. */
  sources = $state.raw<readonly string[]>([]);
  /** `true` once the sources are known, and can be changed. */
  known = $state(false);
  /** `true` while texts are read. */
  reading = $state(false);
  /** Why the last choice failed; null if it did not. */
  #failure = $state<string | null>(null);

  readonly #host: Host;
  readonly #models: Models;

  /** Chosen files and folders. */
  paths = $derived(this.sources.filter((source) => source !== conversations));
  /** `true` if all conversations are a source. */
  fromConversations = $derived(this.sources.includes(conversations));
  /** Texts that the loaded models copy from; null for none. */
  used = $derived.by((): LoadedTexts | null => this.#models.loaded?.texts ?? null);
  /** Why the choice failed, or its texts are not used; null if they are. */
  problem = $derived.by(() => {
    const unused = this.#models.loaded?.texts_problem;
    return this.#failure ?? (unused ? errorLine(unused) : null);
  });

  constructor(host: Host, models: Models) {
    this.#host = host;
    this.#models = models;
  }

  /** Asks for the chosen sources. Never rejects. */
  async ask(): Promise<void> {
    await this.#try(async () => {
      this.sources = await call(this.#host, 'chosen_texts', {});
      this.known = true;
    });
  }

  /** Asks another store for its sources, and adds those of this session that it lacks. Never rejects. */
  async bringTo(): Promise<void> {
    const before = this.sources;
    if (!this.known) return;
    await this.ask();
    const lacking = before.filter((source) => !this.sources.includes(source));
    if (lacking.length > 0) await this.#try(() => this.#choose([...this.sources, ...lacking]));
  }

  /** Adds a folder that the user chooses. Never rejects. */
  async addFolder(): Promise<void> {
    await this.#try(async () => {
      const path = await call(this.#host, 'choose_folder', { title: language.strings.copiedTexts.chooseFolder });
      if (path !== null) await this.#choose([...this.sources, path]);
    });
  }

  /** Adds text files that the user chooses. Never rejects. */
  async addFiles(): Promise<void> {
    await this.#try(async () => {
      const paths = await call(this.#host, 'choose_attachments', { title: language.strings.copiedTexts.chooseFiles });
      if (paths.length > 0) await this.#choose([...this.sources, ...paths]);
    });
  }

  /** Adds or removes all conversations. Never rejects. */
  async copyConversations(wanted: boolean): Promise<void> {
    await this.#try(() => this.#choose(wanted ? [...this.sources, conversations] : this.#without(conversations)));
  }

  /** Removes a source. Never rejects. */
  async remove(source: string): Promise<void> {
    await this.#try(() => this.#choose(this.#without(source)));
  }

  #without(source: string): string[] {
    return this.sources.filter((other) => other !== source);
  }

  async #choose(sources: readonly string[]): Promise<void> {
    const distinct = sources.filter((source, i) => sources.indexOf(source) === i);
    this.reading = true;
    try {
      const loaded = await call(this.#host, 'choose_texts', { sources: distinct });
      this.sources = distinct;
      if (loaded) this.#models.showChanged(loaded);
    } finally {
      this.reading = false;
    }
  }

  async #try(act: () => Promise<void>): Promise<void> {
    if (this.reading) return;
    try {
      await act();
      this.#failure = null;
    } catch (thrown) {
      this.#failure = errorLine(toErrorInfo(thrown));
    }
  }
}
