import { describe, expect, it } from 'vitest';
import { branches, draftTree } from './draftTree';
import type { DraftedEvent } from './ipc/schema.gen';

const node = (text: string, parent: number | null): DraftedEvent => ({ id: 1, text, parent, fate: 'untested' });
const shape = (nodes: ReturnType<typeof draftTree>): unknown[] => nodes.map(({ text, children }) => [text, ...shape(children)]);

describe('drafted tokens', () => {
  it('are nested by their parents', () => {
    const drafted = [node('a', null), node('b', null), node('c', 0), node('d', 1), node('e', 0)];
    expect(shape(draftTree(drafted))).toEqual([
      ['a', ['c'], ['e']],
      ['b', ['d']],
    ]);
    expect(branches(drafted)).toBe(true);
  });

  it('are a chain if each follows the one before', () => {
    const drafted = [node('a', null), node('b', 0), node('c', 1)];
    expect(shape(draftTree(drafted))).toEqual([['a', ['b', ['c']]]]);
    expect(branches(drafted)).toBe(false);
    expect(branches([])).toBe(false);
    expect(draftTree([])).toEqual([]);
  });
});
