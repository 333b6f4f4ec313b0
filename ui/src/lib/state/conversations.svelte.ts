// The list of conversations: what is there, what is searched for, what was deleted a moment ago. No DOM.

import type { Host } from '../host';
import { call } from '../ipc/rpc';
import type { ConversationEntry, ErrorInfo, ExportFormat, SearchHit } from '../ipc/schema.gen';
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

/** The conversations of this machine. */
export class Conversations extends KeptList<ConversationEntry> {
  /** What is searched for. */
  query = $state('');
  hits = $state.raw<readonly SearchHit[]>([]);
  /** What was deleted last and can be put back. */
  deleted = $state.raw<ConversationEntry | null>(null);

  #asked = 0;

  constructor(host: Host) {
    super(host, () => call(host, 'list_conversations', {}));
  }

  /** Searches for what is typed; an answer that comes after a later one is not shown. */
  async search(query: string): Promise<void> {
    this.query = query;
    const asked = ++this.#asked;
    if (query.trim() === '') {
      this.hits = [];
      return;
    }
    await this.attempt(async () => {
      const hits = await call(this.host, 'search_conversations', { query });
      if (asked === this.#asked) this.hits = hits;
    });
  }

  async rename(id: number, title: string): Promise<void> {
    await this.change(() => call(this.host, 'rename_conversation', { id, title }));
  }

  async pin(id: number, pinned: boolean): Promise<void> {
    await this.change(() => call(this.host, 'pin_conversation', { id, pinned }));
  }

  async remove(entry: ConversationEntry): Promise<void> {
    await this.change(() => call(this.host, 'delete_conversation', { id: entry.id }));
    this.deleted = entry;
  }

  /** Puts back what was deleted last. Gives its number, if there was any. */
  async undo(): Promise<number | null> {
    const entry = this.deleted;
    if (!entry) return null;
    this.deleted = null;
    await this.change(() => call(this.host, 'restore_conversation', { id: entry.id }));
    return entry.id;
  }

  /** Writes a conversation to a file that the person chooses. */
  async save(entry: ConversationEntry, format: ExportFormat): Promise<void> {
    await this.write(fileName(entry.title, format), (path) => call(this.host, 'export_conversation', { id: entry.id, format, path }));
  }

  /** Adds a conversation from a file that the person chooses. Gives its number, if one was added. */
  async bring(): Promise<number | null> {
    let added: number | null = null;
    await this.change(async () => {
      const path = await this.host.pickConversationFile(language.strings.dialogs.importConversation);
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
