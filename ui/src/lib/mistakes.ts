// Two popular mistakes about rounds, next to the truth. One counts or draws the bonus token twice. The other takes the
// first drafted token as always accepted. Pure: numbers in, numbers out. No DOM.

import { draw, type Uniform } from './random';
import { residualOf } from './rejection';

/** Expected tokens of a round by three formulas. */
export interface TokenFormulas {
  /** (1 - a^(K+1)) / (1 - a) (Leviathan et al., equation 1). */
  truth: number;
  /** Adds the bonus token once more: truth + a^K. */
  bonusTwice: number;
  /** (1 - a^K) / (1 - a) + 1: the first drafted token counts as accepted. */
  firstFree: number;
}

/** 1 + a + ... + a^last. The sum instead of the fraction, which is 0 / 0 at a = 1. */
function powers(alpha: number, last: number): number {
  let [total, power] = [0, 1];
  for (let i = 0; i <= last; i++) {
    total += power;
    power *= alpha;
  }
  return total;
}

/** Expected tokens of a round that drafts `depth` tokens, each accepted with probability alpha. */
export function tokenFormulas(alpha: number, depth: number): TokenFormulas {
  const truth = powers(alpha, depth);
  return { truth, bonusTwice: truth + alpha ** depth, firstFree: powers(alpha, depth - 1) + 1 };
}

/** Tokens of one round, by chance: the accepted ones, and one of the target. */
export function tokensOfRound(alpha: number, depth: number, random: Uniform): number {
  let accepted = 0;
  while (accepted < depth && random() < alpha) accepted += 1;
  return accepted + 1;
}

/** Distributions of two tokens in a row over two words. Each row of `next` follows that word. */
interface TwoTokens {
  p: readonly number[];
  q: readonly number[];
  next: readonly (readonly number[])[];
}

/** Example in which the second word depends on the first. */
export const exampleTokens: TwoTokens = {
  p: [0.3, 0.7],
  q: [0.8, 0.2],
  next: [
    [0.9, 0.1],
    [0.2, 0.8],
  ],
};

/** Pairs of tokens: 0 0, 0 1, 1 0, 1 1. */
const pairOf = (first: number, second: number): number => 2 * first + second;

/** The target's distribution of two tokens. */
export const truePairs = ({ p, next }: TwoTokens): number[] => p.flatMap((first, i) => (next[i] ?? []).map((second) => first * second));

/**
 * Distribution of two tokens if a round of K = 1 adds a bonus token after a rejection too.
 *
 * The replacement completes the list to K tokens, so code that tests `accepted.length === K` takes the draft for
 * accepted. The bonus token then comes from the row after the rejected draft, not after its replacement.
 */
export function mistakenPairs({ p, q, next }: TwoTokens): number[] {
  const pairs = [0, 0, 0, 0];
  const residual = residualOf({ p, q });
  const rejected = residual.reduce((sum, value) => sum + value, 0);
  for (const [drafted, weight] of q.entries()) {
    const kept = Math.min(p[drafted] ?? 0, weight);
    for (const [second, chance] of (next[drafted] ?? []).entries()) {
      pairs[pairOf(drafted, second)]! += kept * chance;
      for (const [first, part] of residual.entries()) {
        if (rejected > 0) pairs[pairOf(first, second)]! += (weight - kept) * (part / rejected) * chance;
      }
    }
  }
  return pairs;
}

/** Draws a pair as the mistaken code does, or correctly. */
export function drawPair({ p, q, next }: TwoTokens, mistaken: boolean, random: Uniform): number {
  const drafted = draw(q, random);
  const accepted = random() * (q[drafted] ?? 1) < (p[drafted] ?? 0);
  const residual = residualOf({ p, q });
  const first = accepted ? drafted : draw(residual, random);
  return pairOf(first, draw(next[mistaken ? drafted : first] ?? [1], random));
}
