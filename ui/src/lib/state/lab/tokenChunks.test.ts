import { describe, expect, it } from 'vitest';
import type { TokenEvent } from '../../ipc/schema.gen';
import { runLength } from '../../text/blocks';
import { TokenChunks } from './tokenChunks';

const token = (id: number) => ({ id }) as unknown as TokenEvent;

describe('chunks of tokens', () => {
  it('keep every full chunk while the answer grows', () => {
    const tokens = Array.from({ length: 2 * runLength + 3 }, (_, id) => token(id));
    const chunks = new TokenChunks();
    const before = chunks.of(tokens);
    expect(before.map(({ start, tokens: own }) => [start, own.length])).toEqual([
      [0, runLength],
      [runLength, runLength],
      [2 * runLength, 3],
    ]);
    expect(chunks.of(tokens)).toBe(before);
    tokens.push(token(-1));
    const after = chunks.of(tokens);
    expect(after.map((chunk, i) => chunk === before[i])).toEqual([true, true, false]);
    expect(after.flatMap((chunk) => chunk.tokens)).toEqual(tokens);
    expect(chunks.of(tokens)).toBe(after);
  });

  it('fill several chunks in one step', () => {
    const tokens = [token(0)];
    const chunks = new TokenChunks();
    chunks.of(tokens);
    tokens.push(...Array.from({ length: 3 * runLength }, (_, id) => token(id + 1)));
    expect(chunks.of(tokens).flatMap((chunk) => chunk.tokens)).toEqual(tokens);
  });

  it('begin again for another answer', () => {
    const chunks = new TokenChunks();
    const first = chunks.of([token(1)]);
    const second = chunks.of([token(2)]);
    expect([first[0]?.tokens[0]?.id, second[0]?.tokens[0]?.id, second.length]).toEqual([1, 2, 1]);
  });
});
