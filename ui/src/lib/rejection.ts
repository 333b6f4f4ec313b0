// Three samplers of a target p by proposals from q: speculative sampling, one try of rejection sampling, and von
// Neumann's acceptance-rejection. Pure: weights and random numbers in, figures and draws out. No DOM.
//
// The target may be given by heights that do not sum to 1, as in acceptance-rejection: p = heights / Z.

import { draw, type Uniform } from './random';

/** The samplers. */
export const samplers = ['speculative', 'one_try', 'von_neumann'] as const;
export type SamplerName = (typeof samplers)[number];

/** Heights of the target, and weights of the proposal. Both have one element per token, none negative. */
interface Problem {
  heights: readonly number[];
  weights: readonly number[];
  /** Envelope, as a multiple of the lowest possible one. */
  slack: number;
}

/** Quantities of a problem. */
export interface Quantities {
  /** The target's distribution. */
  p: number[];
  /** The proposal's distribution. */
  q: number[];
  /** Z: the sum of the heights. */
  mass: number;
  /** M: no height is above M q. Infinite if q lacks a token of the target. */
  envelope: number;
}

/** One draw: the emitted token, and the proposals before it. */
export interface Draw {
  emitted: number;
  proposals: readonly Proposal[];
}

/** One proposal: a token, and a uniform number against a threshold. */
export interface Proposal {
  token: number;
  u: number;
  threshold: number;
  accepted: boolean;
}

const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);

/** Computes the quantities; null while a side has no weight at all. */
export function quantitiesOf({ heights, weights, slack }: Problem): Quantities | null {
  const [mass, total] = [sum(heights), sum(weights)];
  if (mass <= 0 || total <= 0) return null;
  const q = weights.map((weight) => weight / total);
  const ratios = heights.map((height, i) => (height > 0 ? height / (q[i] ?? 0) : 0));
  return { p: heights.map((height) => height / mass), q, mass, envelope: slack * Math.max(...ratios) };
}

/** Probability that the first proposal is accepted. */
export function acceptanceOf(name: SamplerName, { p, q, mass, envelope }: Quantities): number {
  // Leviathan et al., theorem 3.5; appendix A.2 for the others, whose test accepts a token of height h with h / (M q).
  return name === 'speculative' ? sum(p.map((value, i) => Math.min(value, q[i] ?? 0))) : mass / envelope;
}

/** Expected number of proposals of a draw: M / Z for von Neumann's method (a geometric distribution), else one. */
export function proposalsOf(name: SamplerName, { mass, envelope }: Quantities): number {
  return name === 'von_neumann' ? envelope / mass : 1;
}

/** The residual max(0, p - q), without its factor 1 / (1 - beta). */
export const residualOf = ({ p, q }: { p: readonly number[]; q: readonly number[] }): number[] =>
  p.map((value, i) => Math.max(0, value - (q[i] ?? 0)));

/** Most proposals of a draw, so that an envelope far above the target cannot hang the window. */
export const mostProposals = 10_000;

/** Draws one token of p. Von Neumann's method needs a finite envelope. */
export function drawWith(name: SamplerName, quantities: Quantities, random: Uniform): Draw {
  const { p, q, mass, envelope } = quantities;
  const propose = (): Proposal => {
    const token = draw(q, random);
    const ratio = (p[token] ?? 0) / (q[token] ?? 1);
    const threshold = Math.min(1, name === 'speculative' ? ratio : (ratio * mass) / envelope);
    const u = random();
    return { token, u, threshold, accepted: u < threshold };
  };
  const proposals: Proposal[] = [];
  do proposals.push(propose());
  while (name === 'von_neumann' && !proposals.at(-1)?.accepted && proposals.length < mostProposals);
  const last = proposals[proposals.length - 1]!;
  if (last.accepted) return { emitted: last.token, proposals };
  const rest = name === 'speculative' ? residualOf(quantities) : p;
  return { emitted: draw(sum(rest) > 0 ? rest : p, random), proposals };
}

/** Half the sum of |share - p|: the distance of the emitted tokens from p. */
export function variationOf(counts: readonly number[], p: readonly number[]): number {
  const total = Math.max(1, sum(counts));
  return sum(p.map((value, i) => Math.abs((counts[i] ?? 0) / total - value))) / 2;
}
