// The list of conversations: what is there, what is searched for, what was deleted a moment ago. No DOM.

import type { Host } from '../host';
import { call } from '../ipc/rpc';
import type { ConversationEntry, ErrorInfo, ExportFormat, ExportWords, SearchHit } from '../ipc/schema.gen';
import { Latest } from '../latest';
import { language } from '../strings/index.svelte';
import { fileStem, KeptList } from './keptList.svelte';

/** Conversations of one stretch of time, or the pinned ones. */
export interface Group {
  name: string;
  entries: readonly ConversationEntry[];
}

/** A part of an excerpt, and whether it is what was searched for. */
export interface Piece {
  text: string;
  found: boolean;
}

const day = 24 * 60 * 60 * 1000;

/** What a conversation is called: by its title, or by the window's words for one that has none. */
export const titleOf = ({ title }: { title: string }): string => title || language.strings.sidebar.untitled;

/** The entries by when something was said in them last, pinned ones first; groups without any are left out. */
export function grouped(entries: readonly ConversationEntry[], now: Date): Group[] {
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

/** An excerpt in pieces, along the marks the engine has put around what it found. */
export function pieces(excerpt: string): Piece[] {
  return excerpt
    .split(/(\ue000[^\ue001]*\ue001)/)
    .filter((text) => text !== '')
    .map((text) => ({ text: text.replace(/[\ue000\ue001]/g, ''), found: text.startsWith('\ue000') }));
}

/** A name for a file that any system takes. */
export function fileName(title: string, format: ExportFormat): string {
  return `${fileStem(title) || language.strings.dialogs.conversationFile}.${format === 'json' ? 'json' : 'md'}`;
}

/** What stands over the parts of a conversation in a file for people. */
function exportWords(): ExportWords {
  const { export: words, sidebar } = language.strings;
  return { untitled: sidebar.untitled, question: words.question, answer: words.answer };
}

/** The conversations of this machine. */
export class Conversations extends KeptList<ConversationEntry> {
  /** What is searched for. */
  query = $state('');
  hits = $state.raw<readonly SearchHit[]>([]);
  /** What was deleted since the start and can be put back, the last one last. */
  deleted = $state.raw<readonly ConversationEntry[]>([]);
  /** Whether the last deletion is told, with a way to take it back. */
  announced = $state(false);

  readonly #searches = new Latest();

  constructor(host: Host, notify?: (text: string) => void) {
    super(host, () => call(host, 'list_conversations', {}), notify);
  }

  /** Searches for what is typed; an answer that comes after a later one is not shown. */
  async search(query: string): Promise<void> {
    this.query = query;
    const isLatest = this.#searches.start();
    if (query.trim() === '') {
      this.hits = [];
      return;
    }
    await this.attempt(async () => {
      const hits = await call(this.host, 'search_conversations', { query });
      if (isLatest()) this.hits = hits;
    });
  }

  async rename(id: number, title: string): Promise<void> {
    await this.change(() => call(this.host, 'rename_conversation', { id, title }));
  }

  async pin(id: number, pinned: boolean): Promise<void> {
    await this.change(() => call(this.host, 'pin_conversation', { id, pinned }));
  }

  /** Deletes a conversation, until that is taken back. Says whether it could be. */
  async remove(entry: ConversationEntry): Promise<boolean> {
    const done = await this.change(() => call(this.host, 'delete_conversation', { id: entry.id }));
    if (!done) return false;
    this.deleted = [...this.deleted, entry];
    this.announced = true;
    return true;
  }

  /** Puts back what was deleted last; before it, what was deleted before it is next. Gives its number, if there was any
   * and it could be put back. */
  async undo(): Promise<number | null> {
    const entry = this.deleted.at(-1);
    if (!entry) return null;
    // At once, so that the next undo is about the one before.
    this.deleted = this.deleted.slice(0, -1);
    this.announced &&= this.deleted.length > 0;
    if (await this.change(() => call(this.host, 'restore_conversation', { id: entry.id }))) return entry.id;
    this.deleted = [...this.deleted, entry];
    return null;
  }

  /** Writes a conversation to a file that the person chooses. */
  async save(entry: ConversationEntry, format: ExportFormat): Promise<void> {
    await this.write(format, fileName(entry.title, format), (token) =>
      call(this.host, 'export_conversation', { id: entry.id, format, words: exportWords(), token }),
    );
  }

  /** Writes the text of an answer, which may not be kept anywhere else, to a file that the person chooses. */
  async saveAnswer(title: string, text: string): Promise<void> {
    await this.write('markdown', fileName(title, 'markdown'), (token) => call(this.host, 'save_answer', { text, token }));
  }

  /** Adds a conversation from a file that the person chooses. Gives its number, if one was added. */
  async bring(): Promise<number | null> {
    let added: number | null = null;
    await this.change(async () => {
      const { importConversation, conversationFiles } = language.strings.dialogs;
      const path = await call(this.host, 'choose_file', { kind: 'conversation', title: importConversation, filter: conversationFiles });
      if (path !== null) added = await call(this.host, 'import_conversation', { path });
    });
    return added;
  }

  /** Adds conversations from files, those that can be. Gives the number of the last one; the first error stays. */
  async bringFiles(paths: readonly string[]): Promise<number | null> {
    let added: number | null = null;
    let failed: ErrorInfo | null = null;
    for (const path of paths) {
      await this.change(async () => {
        added = await call(this.host, 'import_conversation', { path });
      });
      failed ??= this.error;
    }
    this.error = failed ?? this.error;
    return added;
  }
}
