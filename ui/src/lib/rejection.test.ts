import { describe, expect, it } from 'vitest';
import { draw, seeded } from './random';
import { acceptanceOf, drawWith, mostProposals, proposalsOf, quantitiesOf, samplers, variationOf, type Quantities } from './rejection';

const problem = { heights: [0.9, 0.3, 0.6, 0], weights: [1, 2, 3, 4], slack: 1 };
const of = (change: Partial<typeof problem> = {}): Quantities => quantitiesOf({ ...problem, ...change })!;

/** The output distribution and the accepted share of one proposal, by enumeration over a fine grid of u. */
function enumerated(name: 'speculative' | 'one_try', { p, q, mass, envelope }: Quantities) {
  const steps = 20_000;
  const output = p.map(() => 0);
  let rejected = 0;
  for (const [token, weight] of q.entries()) {
    for (let step = 0; step < steps; step++) {
      const u = (step + 0.5) / steps;
      const accepted = name === 'speculative' ? u * weight < p[token]! : u * envelope * weight < mass * p[token]!;
      if (accepted) output[token]! += weight / steps;
      else rejected += weight / steps;
    }
  }
  const rest = name === 'speculative' ? p.map((value, i) => Math.max(0, value - q[i]!)) : p;
  const total = rest.reduce((a, b) => a + b, 0);
  return { output: output.map((value, i) => value + (rejected * rest[i]!) / total), accepted: 1 - rejected };
}

describe('the quantities', () => {
  it('match a hand-computed example', () => {
    const { p, q, mass, envelope } = of();
    expect(mass).toBeCloseTo(1.8);
    expect(p).toEqual([0.5, 0.3 / 1.8, 0.6 / 1.8, 0].map((value) => expect.closeTo(value)));
    expect(q).toEqual([0.1, 0.2, 0.3, 0.4]);
    expect(envelope).toBeCloseTo(9);
    expect(acceptanceOf('speculative', of())).toBeCloseTo(0.1 + 0.3 / 1.8 + 0.3);
    expect(acceptanceOf('von_neumann', of())).toBeCloseTo(0.2);
    expect(proposalsOf('von_neumann', of({ slack: 2 }))).toBeCloseTo(10);
  });

  it('do not depend on the scale of the heights, but for M and Z', () => {
    const scaled = of({ heights: problem.heights.map((height) => 7 * height) });
    expect(scaled.envelope / scaled.mass).toBeCloseTo(of().envelope / of().mass);
    expect(scaled.p).toEqual(of().p.map((value) => expect.closeTo(value)));
  });

  it('are none without weights, and infinite where q lacks a token', () => {
    expect(quantitiesOf({ ...problem, heights: [0, 0, 0, 0] })).toBeNull();
    expect(quantitiesOf({ ...problem, weights: [0, 0, 0, 0] })).toBeNull();
    expect(of({ weights: [0, 2, 3, 4] }).envelope).toBe(Infinity);
    expect(acceptanceOf('one_try', of({ weights: [0, 2, 3, 4] }))).toBe(0);
  });

  it('accept most in speculative sampling', () => {
    const random = seeded(3);
    for (let i = 0; i < 200; i++) {
      const any = () => Array.from({ length: 4 }, () => random() + 0.01);
      const quantities = of({ heights: any(), weights: any() });
      expect(acceptanceOf('one_try', quantities)).toBeLessThanOrEqual(acceptanceOf('speculative', quantities) + 1e-12);
    }
  });
});

describe('the samplers', () => {
  it.each(['speculative', 'one_try'] as const)('%s emits p and accepts as predicted, by enumeration', (name) => {
    for (const quantities of [of(), of({ slack: 1.7 }), of({ heights: [1, 1, 1, 1] })]) {
      const { output, accepted } = enumerated(name, quantities);
      for (const [i, value] of output.entries()) expect(value).toBeCloseTo(quantities.p[i]!, 3);
      expect(accepted).toBeCloseTo(acceptanceOf(name, quantities), 3);
    }
  });

  it.each(samplers)('%s draws p, with the predicted acceptance and number of proposals', (name) => {
    const quantities = of({ slack: 1.5 });
    const random = seeded(11);
    const rounds = 40_000;
    const counts = quantities.p.map(() => 0);
    let [first, proposals] = [0, 0];
    for (let i = 0; i < rounds; i++) {
      const drawn = drawWith(name, quantities, random);
      counts[drawn.emitted]! += 1;
      proposals += drawn.proposals.length;
      first += drawn.proposals[0]!.accepted ? 1 : 0;
    }
    expect(variationOf(counts, quantities.p)).toBeLessThan(0.012);
    expect(first / rounds).toBeCloseTo(acceptanceOf(name, quantities), 1.9);
    expect(proposals / rounds / proposalsOf(name, quantities)).toBeCloseTo(1, 1.5);
  });

  it('would be caught if the envelope were below the target', () => {
    const quantities = { ...of(), envelope: of().envelope / 2 };
    const random = seeded(12);
    const counts = quantities.p.map(() => 0);
    for (let i = 0; i < 40_000; i++) counts[drawWith('von_neumann', quantities, random).emitted]! += 1;
    expect(variationOf(counts, quantities.p)).toBeGreaterThan(0.05);
  });

  it('end after the most proposals', () => {
    const never = { ...of(), envelope: Infinity };
    expect(drawWith('von_neumann', never, seeded(1)).proposals).toHaveLength(mostProposals);
  });
});

describe('a draw by weight', () => {
  it('never takes a token without weight', () => {
    expect(draw([0, 2, 0], () => 0.999_999_999)).toBe(1);
    expect(draw([0, 2, 0], () => 0)).toBe(1);
    expect(draw([1, 1, 0], () => 0.5)).toBe(1);
  });
});
