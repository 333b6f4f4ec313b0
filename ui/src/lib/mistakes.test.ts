import { describe, expect, it } from 'vitest';
import { drawPair, exampleTokens, mistakenPairs, tokenFormulas, tokensOfRound, truePairs } from './mistakes';
import { seeded } from './random';

/** Expected tokens by enumerating which of the drafted tokens would be accepted. */
function enumeratedTokens(alpha: number, depth: number): number {
  let expected = 0;
  for (let mask = 0; mask < 2 ** depth; mask++) {
    let [chance, prefix, broken] = [1, 0, false];
    for (let i = 0; i < depth; i++) {
      const accepted = (mask >> i) & 1;
      chance *= accepted ? alpha : 1 - alpha;
      broken ||= !accepted;
      prefix += broken ? 0 : 1;
    }
    expected += chance * (prefix + 1);
  }
  return expected;
}

describe('the expected tokens of a round', () => {
  it('match the enumeration of all outcomes, and the others do not', () => {
    for (const [alpha, depth] of [
      [0.7, 5],
      [0.3, 1],
      [0, 4],
      [1, 6],
    ] as const) {
      const { truth, bonusTwice, firstFree } = tokenFormulas(alpha, depth);
      expect(truth).toBeCloseTo(enumeratedTokens(alpha, depth), 12);
      expect(bonusTwice - truth).toBeCloseTo(alpha ** depth, 12);
      expect(firstFree - truth).toBeCloseTo(1 - alpha ** depth, 12);
    }
  });

  it('are 2.94 where the popular formula says 3.77', () => {
    const { truth, firstFree } = tokenFormulas(0.7, 5);
    expect([truth.toFixed(2), firstFree.toFixed(2)]).toEqual(['2.94', '3.77']);
  });

  it('match the mean of simulated rounds', () => {
    const random = seeded(2);
    let tokens = 0;
    for (let i = 0; i < 50_000; i++) tokens += tokensOfRound(0.7, 5, random);
    expect(tokens / 50_000).toBeCloseTo(tokenFormulas(0.7, 5).truth, 1.3);
  });
});

describe('a bonus token after a rejection', () => {
  it('changes the distribution of two tokens, which sums to one all the same', () => {
    const [right, wrong] = [truePairs(exampleTokens), mistakenPairs(exampleTokens)];
    expect(right.reduce((a, b) => a + b)).toBeCloseTo(1, 12);
    expect(wrong.reduce((a, b) => a + b)).toBeCloseTo(1, 12);
    // The first token is right, the second is not.
    expect(wrong[0]! + wrong[1]!).toBeCloseTo(right[0]! + right[1]!, 12);
    // Rejected with 0.5, always the first word, and replaced by the second: its next word comes from the wrong row.
    expect(wrong[2]).toBeCloseTo(0.2 * 0.2 + 0.5 * 0.9, 12);
    expect(right[2]).toBeCloseTo(0.7 * 0.2, 12);
  });

  it.each([true, false])('is drawn as predicted (mistaken: %s)', (mistaken) => {
    const random = seeded(4);
    const counts = [0, 0, 0, 0];
    for (let i = 0; i < 40_000; i++) counts[drawPair(exampleTokens, mistaken, random)]! += 1;
    const expected = mistaken ? mistakenPairs(exampleTokens) : truePairs(exampleTokens);
    for (const [i, count] of counts.entries()) expect(Math.abs(count / 40_000 - expected[i]!)).toBeLessThan(0.01);
  });

  it('changes nothing where draft and target agree', () => {
    const same = { ...exampleTokens, q: exampleTokens.p };
    expect(mistakenPairs(same)).toEqual(truePairs(same).map((value) => expect.closeTo(value, 12)));
  });
});
