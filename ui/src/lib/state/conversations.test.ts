import { describe, expect, it } from 'vitest';
import type { ConversationEntry } from '../ipc/schema.gen';
import { fileName, grouped, pieces } from './conversations.svelte';

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
