import { describe, expect, it } from 'vitest';
import type { StoredMessage } from '../ipc/schema.gen';
import { newestBelow, pathTo, siblingsOf } from './branches';

const message = (id: number, parent: number | null): StoredMessage => ({
  id,
  parent,
  role: id % 2 === 1 ? 'user' : 'assistant',
  content: String(id),
  created_ms: id,
  state: 'complete',
  settings: null,
});

// 1 - 2 - 3 - 4, with an answer 6 as sibling of 2, and a question 5 with answer 8 as sibling of 1.
const tree = [message(1, null), message(2, 1), message(3, 2), message(4, 3), message(5, null), message(6, 1), message(8, 5)];

describe('the tree of messages', () => {
  it('gives the path from the first message to a leaf', () => {
    expect(pathTo(tree, 4).map(({ id }) => id)).toEqual([1, 2, 3, 4]);
    expect(pathTo(tree, 6).map(({ id }) => id)).toEqual([1, 6]);
    expect(pathTo(tree, null)).toEqual([]);
    expect(pathTo(tree, 99)).toEqual([]);
  });

  it('shows the newest end of a chosen branch', () => {
    expect(newestBelow(tree, 2)).toBe(4);
    expect(newestBelow(tree, 1)).toBe(6);
    expect(newestBelow(tree, 8)).toBe(8);
  });

  it('finds the siblings of a message', () => {
    const of = (id: number) => siblingsOf(tree, tree.find((other) => other.id === id) ?? message(0, null));
    expect(of(6)).toEqual({ ids: [2, 6], at: 1 });
    expect(of(5)).toEqual({ ids: [1, 5], at: 1 });
    expect(of(4)).toEqual({ ids: [4], at: 0 });
  });

  it('terminates on a cyclic tree', () => {
    const circle = [message(1, 2), message(2, 1)];
    expect(pathTo(circle, 1).length).toBeLessThan(5);
  });
});
