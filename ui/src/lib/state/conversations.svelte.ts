// The list of conversations, the search, and deletions. No DOM.

import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { ConversationEntry, ErrorInfo, ExportFormat, ExportWords, SearchHit } from '../ipc/schema.gen';
import { Latest } from '../latest';
import { language } from '../strings/index.svelte';
import { fileStem, KeptList } from './keptList.svelte';

/** Conversations of one period, or the pinned ones. */
interface ConversationGroup {
  name: string;
  entries: readonly ConversationEntry[];
}

/** The result of importing files. */
interface ImportedFiles {
  /** Number of the last conversation that was added; null for none. */
  readonly added: number | null;
  /** Files that are no exported conversations. */
  readonly others: readonly string[];
}

/** A part of an excerpt, and whether it matches the search. */
interface ExcerptPart {
  text: string;
  found: boolean;
}

const day = 24 * 60 * 60 * 1000;

/** Name of a conversation: its title, or a default one. */
export const titleOf = ({ title }: { title: string }): string => title || language.strings.sidebar.untitled;

/** Entries by last change, pinned ones first. Empty groups are left out. */
export function grouped(entries: readonly ConversationEntry[], now: Date): ConversationGroup[] {
  // A moment, not state.
  // eslint-disable-next-line svelte/prefer-svelte-reactivity
  const today = new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime();
  const names = language.strings.sidebar.groups;
  const ages: [string, (entry: ConversationEntry) => boolean][] = [
    [names.pinned, (entry) => entry.pinned],
    [names.today, (entry) => entry.updated_ms >= today],
    [names.yesterday, (entry) => entry.updated_ms >= today - day],
    [names.lastSevenDays, (entry) => entry.updated_ms >= today - 7 * day],
    [names.earlier, () => true],
  ];
  const groups = ages.map(([name]) => ({ name, entries: [] as ConversationEntry[] }));
  for (const entry of entries) groups[ages.findIndex(([, fits]) => fits(entry))]?.entries.push(entry);
  return groups.filter((group) => group.entries.length > 0);
}

/** Splits an excerpt along the engine's marks around matches. */
export function pieces(excerpt: string): ExcerptPart[] {
  return excerpt
    .split(/(\ue000[^\ue001]*\ue001)/)
    .filter((text) => text !== '')
    .map((text) => ({ text: text.replace(/[\ue000\ue001]/g, ''), found: text.startsWith('\ue000') }));
}

/** A file name that is valid on any system. */
export function fileName(title: string, format: ExportFormat): string {
  return `${fileStem(title) || language.strings.dialogs.conversationFile}.${format === 'json' ? 'json' : 'md'}`;
}

/** Headings of an exported conversation. */
function exportWords(): ExportWords {
  const { export: words, sidebar } = language.strings;
  return { untitled: sidebar.untitled, question: words.question, answer: words.answer };
}

/** The conversations of this machine. */
export class Conversations extends KeptList<ConversationEntry> {
  /** The search text. */
  query = $state('');
  /** The last finished search: its text and what it found. Null while there is none. */
  found = $state.raw<{ readonly query: string; readonly hits: readonly SearchHit[] } | null>(null);
  /** Deletions since the start, the latest last. They can be undone. */
  deleted = $state.raw<readonly ConversationEntry[]>([]);
  /** `true` if the last deletion is announced with an undo button. */
  announced = $state(false);

  readonly #searches = new Latest();

  constructor(host: Host, notify: (text: string) => void) {
    super(host, () => call(host, 'list_conversations', {}), notify);
  }

  /** `true` if the search found nothing. Unknown while one is running. */
  get nothingFound(): boolean {
    return this.found?.query === this.query && this.found.hits.length === 0;
  }

  /** Searches conversations. Earlier hits stay until it ends. A late answer to an earlier search is dropped. */
  async search(query: string): Promise<void> {
    this.query = query;
    const isLatest = this.#searches.start();
    if (query.trim() === '') {
      this.found = null;
      return;
    }
    await this.attempt(async () => {
      try {
        const hits = await call(this.host, 'search_conversations', { query });
        if (isLatest()) this.found = { query, hits };
      } catch (thrown) {
        if (!isLatest()) return;
        this.found = null;
        throw thrown;
      }
    });
  }

  /** Searches again, since a hit may be gone and another may match. */
  protected override listed(): void {
    if (this.query.trim() !== '') void this.search(this.query);
  }

  async rename(id: number, title: string): Promise<void> {
    await this.change(() => call(this.host, 'rename_conversation', { id, title }));
  }

  async pin(id: number, pinned: boolean): Promise<void> {
    await this.change(() => call(this.host, 'pin_conversation', { id, pinned }));
  }

  /** Deletes a conversation, which can be undone. Returns whether it succeeded. */
  async remove(entry: ConversationEntry): Promise<boolean> {
    const done = await this.change(() => call(this.host, 'delete_conversation', { id: entry.id }));
    if (!done) return false;
    this.deleted = [...this.deleted, entry];
    this.announced = true;
    return true;
  }

  /** Undoes the last deletion. Returns the number of the restored conversation; null if there was none or it failed. */
  async undo(): Promise<number | null> {
    const entry = this.deleted.at(-1);
    if (!entry) return null;
    // Synchronous, so that the next undo is about the one before.
    this.deleted = this.deleted.slice(0, -1);
    this.announced &&= this.deleted.length > 0;
    if (await this.change(() => call(this.host, 'restore_conversation', { id: entry.id }))) return entry.id;
    this.deleted = [...this.deleted, entry];
    return null;
  }

  /** Forgets the deletions since the start, which another store does not know. */
  forgetDeleted(): void {
    this.deleted = [];
    this.announced = false;
  }

  /** Saves a conversation to a file chosen by the user. */
  async save(entry: ConversationEntry, format: ExportFormat): Promise<void> {
    await this.write(format, fileName(entry.title, format), (token) =>
      call(this.host, 'export_conversation', { id: entry.id, format, words: exportWords(), token }),
    );
  }

  /** Saves the text of an answer, maybe its only copy, to a file chosen by the user. */
  async saveAnswer(title: string, text: string): Promise<void> {
    await this.write('markdown', fileName(title, 'markdown'), (token) => call(this.host, 'save_answer', { text, token }));
  }

  /** Imports a conversation from a file chosen by the user. Returns its number, if one was added. */
  async importChosen(): Promise<number | null> {
    let added: number | null = null;
    await this.change(async () => {
      const { importConversation, conversationFiles } = language.strings.dialogs;
      const path = await call(this.host, 'choose_file', { kind: 'conversation', title: importConversation, filter: conversationFiles });
      if (path !== null) added = await call(this.host, 'import_conversation', { path });
    });
    return added;
  }

  /** Imports conversations from files as far as possible. The first error stays. Files that are no exported
   * conversations are no errors. */
  async importFiles(paths: readonly string[]): Promise<ImportedFiles> {
    let added: number | null = null;
    let failed: ErrorInfo | null = null;
    const others: string[] = [];
    for (const path of paths) {
      await this.change(async () => {
        const id = await this.#importFile(path);
        if (id === null) others.push(path);
        else added = id;
      });
      failed ??= this.error;
    }
    this.error = failed ?? this.error;
    return { added, others };
  }

  /** Imports a file. Returns the number of the conversation; null if the file is none. */
  async #importFile(path: string): Promise<number | null> {
    try {
      return await call(this.host, 'import_conversation', { path });
    } catch (thrown) {
      if (toErrorInfo(thrown).code === 'invalid_request') return null;
      throw thrown;
    }
  }
}
