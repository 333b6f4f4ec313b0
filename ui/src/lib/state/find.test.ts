import { describe, expect, it } from 'vitest';
import { Find } from './find.svelte';

/** A search whose matches are in these turns. */
function make(turns: readonly number[], from = 0): Find {
  const find = new Find();
  find.show();
  find.search('sea');
  find.take(turns, from);
  return find;
}

describe('find in a conversation', () => {
  it('begins at the turn that is read, or else at the top', () => {
    expect(make([0, 0, 2, 4], 2).at).toBe(2);
    expect(make([0, 0, 2, 4], 3).at).toBe(3);
    expect(make([0, 0, 2], 3).at).toBe(0);
    expect(make([], 3).at).toBe(-1);
  });

  it('stays at its turn while the query is typed, whatever is scrolled to', () => {
    const find = make([0, 1, 2], 1);
    find.search('sea ');
    find.take([0, 1], 0);
    expect(find.at).toBe(1);
    find.search('sea x');
    find.take([], 0);
    find.search('sea ');
    find.take([0, 1], 0);
    expect(find.at).toBe(1);
  });

  it('steps forwards and backwards, and around', () => {
    const find = make([0, 1, 1]);
    const { moves } = find;
    const visited = ([1, 1, 1, -1, -1] as const).map((by) => (find.step(by), find.at));
    expect(visited).toEqual([1, 2, 0, 2, 1]);
    expect(find.moves).toBe(moves + 5);
    const none = make([]);
    none.step(1);
    expect(none.at).toBe(-1);
  });

  it('keeps the current match when the text is drawn again', () => {
    const find = make([0, 2, 2, 2, 5], 2);
    find.step(1);
    expect(find.at).toBe(2);
    find.take([0, 0, 0, 2, 2, 2, 5], 0);
    expect(find.at).toBe(4);
    find.take([2, 5], 0);
    expect(find.at).toBe(0);
    find.take([0, 5], 0);
    expect(find.at).toBe(1);
    find.take([0], 0);
    expect(find.at).toBe(0);
    find.take([], 0);
    expect([find.at, find.count]).toEqual([-1, 0]);
  });

  it('keeps its query when it is closed', () => {
    const find = make([0, 1]);
    find.close();
    expect([find.shown, find.count, find.at, find.query]).toEqual([false, 0, -1, 'sea']);
  });
});
