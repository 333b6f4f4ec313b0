// A search of the hub by name, and the model card that is shown. No DOM.

import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { ErrorInfo, HubFormat, HubResult, HubSearch, HubSort } from '../ipc/schema.gen';
import { Latest } from '../latest';
import { MarkdownDocument } from '../text/markdown/document';
import type { MarkdownBlock } from '../text/markdown/nodes';

/** Place of a card: below a result, or below the files of a repository. */
type CardPlace = 'result' | 'repository';

/** A model card. */
export interface ShownCard {
  repository: string;
  place: CardPlace;
  /** Null while it is loading, or if it failed. Empty if there is none. */
  blocks: readonly MarkdownBlock[] | null;
  /** `true` if its end is missing. */
  cut: boolean;
  /** Why it cannot be shown. */
  error: ErrorInfo | null;
}

/** Results of a search, and the search that they belong to. */
interface FoundModels {
  search: HubSearch;
  results: readonly HubResult[];
  /** Cursor of the next page; null on the last one. */
  next: string | null;
}

interface Callbacks {
  /** The hub was asked, so a locked keychain may be open now. */
  asked: () => void;
}

/** A search of the hub. Answers to earlier searches are dropped. */
export class HubSearchState {
  /** The typed words. */
  query = $state('');
  sort = $state<HubSort>('downloads');
  format = $state<HubFormat>('gguf');
  /** The shown results; null before the first search. They stay while the next search is running. */
  found = $state.raw<FoundModels | null>(null);
  searching = $state(false);
  /** Why the last search, or its next page, failed. */
  error = $state.raw<ErrorInfo | null>(null);
  card = $state.raw<ShownCard | null>(null);

  readonly #host: Host;
  readonly #callbacks: Callbacks;
  readonly #searches = new Latest();
  readonly #cards = new Latest();

  constructor(host: Host, callbacks: Callbacks) {
    this.#host = host;
    this.#callbacks = callbacks;
  }

  /** Searches for the typed words. Does nothing without any. */
  async search(): Promise<void> {
    const query = this.query.trim();
    if (query === '') return;
    await this.#ask({ query, sort: this.sort, format: this.format }, []);
  }

  /** Loads the next page of the shown results. */
  async more(): Promise<void> {
    const found = this.found;
    if (!found || found.next === null || this.searching) return;
    await this.#ask({ ...found.search, cursor: found.next }, found.results);
  }

  /** Repeats the search that failed. */
  async retry(): Promise<void> {
    await (this.#failed ? this.#ask(this.#failed.search, this.#failed.before) : this.search());
  }

  /** Changes the order, and repeats the search. */
  order(sort: HubSort): void {
    this.sort = sort;
    this.#searchAgain();
  }

  /** Changes the format, and repeats the search. */
  inFormat(format: HubFormat): void {
    this.format = format;
    this.#searchAgain();
  }

  /** Shows the model card of a repository. */
  async showCard(repository: string, place: CardPlace): Promise<void> {
    const isLatest = this.#cards.start();
    const loading: ShownCard = { repository, place, blocks: null, cut: false, error: null };
    this.card = loading;
    try {
      const { text, cut } = await call(this.#host, 'hub_card', { repository });
      if (isLatest()) this.card = { ...loading, blocks: blocksOf(text), cut };
    } catch (thrown) {
      if (isLatest()) this.card = { ...loading, error: toErrorInfo(thrown) };
    } finally {
      this.#callbacks.asked();
    }
  }

  /** Closes the model card. */
  closeCard(): void {
    this.#cards.cancel();
    this.card = null;
  }

  /** Words of the last search. */
  #asked: string | null = null;
  #failed: { search: HubSearch; before: readonly HubResult[] } | null = null;

  #searchAgain(): void {
    // Return starts the first search, and one with new words.
    const query = this.#asked;
    if (query !== null) void this.#ask({ query, sort: this.sort, format: this.format }, []);
  }

  async #ask(search: HubSearch, before: readonly HubResult[]): Promise<void> {
    const isLatest = this.#searches.start();
    this.searching = true;
    this.error = null;
    this.#failed = null;
    this.#asked = search.query;
    try {
      const { results, next } = await call(this.#host, 'search_hub', { search });
      if (!isLatest()) return;
      if (before.length === 0 && this.card?.place === 'result') this.closeCard();
      const known = before.map(({ repository }) => repository);
      // A repository moves between pages when its count changes.
      this.found = { search, results: [...before, ...results.filter(({ repository }) => !known.includes(repository))], next };
    } catch (thrown) {
      if (!isLatest()) return;
      this.error = toErrorInfo(thrown);
      this.#failed = { search, before };
      if (before.length === 0) this.found = null;
    } finally {
      if (isLatest()) this.searching = false;
      this.#callbacks.asked();
    }
  }
}

/** Parses a card, as the markdown of answers. */
function blocksOf(text: string): readonly MarkdownBlock[] {
  const card = new MarkdownDocument();
  card.append(0, text);
  card.finish();
  return card.blocks;
}
