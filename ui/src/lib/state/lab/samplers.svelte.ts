// The samplers of one target and one proposal, which a person moves: their quantities, and draws counted by sampler.
// The arithmetic is in `rejection.ts`. No DOM.

import { seeded, type Uniform } from '../../random';
import { drawWith, quantitiesOf, samplers, type Draw, type Proposal, type SamplerName } from '../../rejection';

/** Ranges of the sliders. No weight is 0, so the envelope is finite. */
export const heightRange = { min: 0, max: 1, step: 0.05 } as const;
export const weightRange = { min: 0.05, max: 1, step: 0.05 } as const;
export const slackRange = { min: 1, max: 3, step: 0.1 } as const;

/** Names of the tokens. */
export const tokenNames = ['a', 'b', 'c', 'd'] as const;
/** Draws per press of "run". */
export const drawsOf = 1000;
/** Most proposals that are shown as points. */
const mostPoints = 400;

/** Draws of one sampler. */
interface Tally {
  draws: number;
  /** Draws whose first proposal was accepted. */
  accepted: number;
  proposals: number;
  counts: readonly number[];
}

/** A proposal as a point under the envelope. */
export interface Point extends Proposal {
  /** Number of the point, from 0. */
  key: number;
}

const nothing: Tally = { draws: 0, accepted: 0, proposals: 0, counts: tokenNames.map(() => 0) };

/** The problem and its draws. */
export class Samplers {
  heights = $state.raw<readonly number[]>([0.9, 0.3, 0.6, 0.2]);
  weights = $state.raw<readonly number[]>([0.4, 0.8, 0.5, 0.3]);
  slack = $state<number>(slackRange.min);
  tallies = $state.raw<Record<SamplerName, Tally>>({ speculative: nothing, one_try: nothing, von_neumann: nothing });
  /** The latest proposals of von Neumann's method. */
  points = $state.raw<readonly Point[]>([]);
  /** The last single draw of von Neumann's method; null after many. */
  last = $state.raw<Draw | null>(null);
  quantities = $derived(quantitiesOf(this));

  #random: Uniform;
  #drawn = 0;

  constructor(random: Uniform = seeded(Math.floor(Math.random() * 2 ** 31))) {
    this.#random = random;
  }

  /** Moves one height of the target. Draws of the old one are dropped. */
  raise(token: number, height: number): void {
    this.heights = this.heights.map((old, i) => (i === token ? height : old));
    this.startOver();
  }

  /** Moves one weight of the proposal. */
  weigh(token: number, weight: number): void {
    this.weights = this.weights.map((old, i) => (i === token ? weight : old));
    this.startOver();
  }

  /** Moves the envelope. */
  loosen(slack: number): void {
    this.slack = slack;
    this.startOver();
  }

  startOver(): void {
    this.tallies = { speculative: nothing, one_try: nothing, von_neumann: nothing };
    [this.points, this.last, this.#drawn] = [[], null, 0];
  }

  /** Draws this many tokens with every sampler. */
  run(draws: number): void {
    const { quantities } = this;
    if (!quantities) return;
    const tallies = { ...this.tallies };
    const recent: Draw[] = [];
    for (const name of samplers) {
      const tally = { ...tallies[name], counts: [...tallies[name].counts] };
      for (let i = 0; i < draws; i++) {
        const drawn = drawWith(name, quantities, this.#random);
        tally.draws += 1;
        tally.accepted += drawn.proposals[0]?.accepted ? 1 : 0;
        tally.proposals += drawn.proposals.length;
        tally.counts[drawn.emitted]! += 1;
        if (name === 'von_neumann') recent.push(drawn);
      }
      tallies[name] = tally;
    }
    this.tallies = tallies;
    const proposals = recent.flatMap((drawn) => drawn.proposals).slice(-mostPoints);
    this.points = [...this.points, ...proposals.map((proposal) => ({ ...proposal, key: this.#drawn++ }))].slice(-mostPoints);
    this.last = draws === 1 ? (recent[0] ?? null) : null;
  }
}
