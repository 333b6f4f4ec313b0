import { describe, expect, it } from 'vitest';
import { settled, SilentHost } from '../host/testing';
import type { ConversationEntry, SearchHit } from '../ipc/schema.gen';
import { Conversations, fileName, grouped, pieces } from './conversations.svelte';

const at = (id: number, when: string, pinned = false): ConversationEntry => ({
  id,
  title: String(id),
  pinned,
  created_ms: 0,
  updated_ms: new Date(when).getTime(),
});

describe('the list', () => {
  it('is grouped by age, with pinned ones first', () => {
    const entries = [
      at(1, '2026-03-01T10:00', true),
      at(2, '2026-03-10T00:10'),
      at(3, '2026-03-09T23:50'),
      at(4, '2026-03-04T12:00'),
      at(5, '2026-01-01T12:00'),
    ];
    const groups = grouped(entries, new Date('2026-03-10T09:00'));
    expect(groups.map(({ name, entries }) => [name, entries.map(({ id }) => id)])).toEqual([
      ['Pinned', [1]],
      ['Today', [2]],
      ['Yesterday', [3]],
      ['Last seven days', [4]],
      ['Earlier', [5]],
    ]);
    expect(grouped([], new Date())).toEqual([]);
  });

  it('marks matches', () => {
    expect(pieces('Why is the \ue000sky\ue001 blue')).toEqual([
      { text: 'Why is the ', found: false },
      { text: 'sky', found: true },
      { text: ' blue', found: false },
    ]);
  });

  it('names files validly on any system', () => {
    expect(fileName('Why: is/the sky \u201cblue\u201d?', 'markdown')).toBe('Why is the sky blue.md');
    expect(fileName('???', 'json')).toBe('conversation.json');
  });
});

/** A host whose lists and searches are answered by the test. */
class WaitingHost extends SilentHost {
  pending: { command: string; query: unknown; resolve: (value: unknown) => void; reject: (error: unknown) => void }[] = [];

  override invoke(command: string, args: Record<string, unknown>): Promise<unknown> {
    if (command === 'delete_conversation') return Promise.resolve(null);
    return new Promise((resolve, reject) => this.pending.push({ command, query: args['query'], resolve, reject }));
  }

  /** Takes the oldest pending request of a command. */
  take(command: string) {
    const taken = this.pending.find((one) => one.command === command);
    if (!taken) throw new Error(command);
    this.pending = this.pending.filter((one) => one !== taken);
    return taken;
  }
}

const hit = (conversation: number): SearchHit => ({ conversation, message: null, title: '', excerpt: '' }) as unknown as SearchHit;

function make() {
  const host = new WaitingHost();
  return { host, conversations: new Conversations(host, () => {}) };
}

describe('a search', () => {
  it('reports that nothing was found only once it has ended', async () => {
    const { host, conversations } = make();
    const search = conversations.search('sky');
    expect([conversations.found, conversations.nothingFound]).toEqual([null, false]);
    host.take('search_conversations').resolve([]);
    await search;
    expect(conversations.nothingFound).toBe(true);
    void conversations.search('skyl');
    expect(conversations.nothingFound).toBe(false);
  });

  it('keeps earlier hits until it ends, and drops them if it fails', async () => {
    const { host, conversations } = make();
    const first = conversations.search('sky');
    host.take('search_conversations').resolve([hit(1)]);
    await first;
    const second = conversations.search('skyline');
    expect(conversations.found).toEqual({ query: 'sky', hits: [hit(1)] });
    host.take('search_conversations').reject({ code: 'store', message: 'The file is damaged.' });
    await second;
    expect([conversations.found, conversations.error?.code]).toEqual([null, 'store']);
  });

  it('drops a late answer to an earlier search, also a failure', async () => {
    const { host, conversations } = make();
    const first = conversations.search('s');
    const second = conversations.search('sk');
    const late = host.take('search_conversations');
    host.take('search_conversations').resolve([hit(2)]);
    await second;
    late.reject({ code: 'store', message: 'The file is damaged.' });
    await first;
    expect([conversations.found, conversations.error]).toEqual([{ query: 'sk', hits: [hit(2)] }, null]);
  });

  it('is repeated when the list has changed', async () => {
    const { host, conversations } = make();
    const search = conversations.search('sky');
    host.take('search_conversations').resolve([hit(1)]);
    await search;
    const removal = conversations.remove(at(1, '2026-03-01'));
    await settled();
    host.take('list_conversations').resolve([]);
    await removal;
    const again = host.take('search_conversations');
    expect(again.query).toBe('sky');
    again.resolve([]);
    await settled();
    expect(conversations.nothingFound).toBe(true);
    void conversations.search('');
    void conversations.refresh();
    await settled();
    host.take('list_conversations').resolve([]);
    await settled();
    expect(host.pending).toEqual([]);
  });
});

describe('a reload of the list', () => {
  it('that began before a deletion does not bring the deleted entry back', async () => {
    const { host, conversations } = make();
    const [kept, deleted] = [at(1, '2026-03-01'), at(2, '2026-03-01')];
    const refresh = conversations.refresh();
    await settled();
    const stale = host.take('list_conversations');
    const removal = conversations.remove(deleted);
    await settled();
    host.take('list_conversations').resolve([kept]);
    await removal;
    stale.resolve([kept, deleted]);
    await refresh;
    expect(conversations.entries).toEqual([kept]);
  });
});
