import { describe, expect, it } from 'vitest';
import { seeded } from '../../random';
import { acceptanceOf, proposalsOf, samplers, variationOf } from '../../rejection';
import { Samplers } from './samplers.svelte';

describe('the samplers', () => {
  it('draw as often as asked, as theory predicts', () => {
    const shown = new Samplers(seeded(5));
    for (let i = 0; i < 20; i++) shown.run(1000);
    const quantities = shown.quantities!;
    for (const name of samplers) {
      const { draws, accepted, proposals, counts } = shown.tallies[name];
      expect(draws).toBe(20_000);
      expect(counts.reduce((a, b) => a + b)).toBe(20_000);
      expect(Math.abs(accepted / draws - acceptanceOf(name, quantities))).toBeLessThan(0.02);
      expect(Math.abs(proposals / draws / proposalsOf(name, quantities) - 1)).toBeLessThan(0.03);
      expect(variationOf(counts, quantities.p)).toBeLessThan(0.02);
    }
    expect(shown.points).toHaveLength(400);
    expect(shown.last).toBeNull();
  });

  it('show the proposals of a single draw', () => {
    const shown = new Samplers(seeded(6));
    shown.run(1);
    expect(shown.last!.proposals.map(({ accepted }) => accepted).indexOf(true)).toBe(shown.last!.proposals.length - 1);
    expect(shown.points.map(({ token }) => token)).toEqual(shown.last!.proposals.map(({ token }) => token));
  });

  it('drop the draws of another problem', () => {
    const shown = new Samplers(seeded(7));
    const envelope = shown.quantities!.envelope;
    for (const change of [() => shown.raise(1, 0.8), () => shown.weigh(0, 0.6), () => shown.loosen(2)]) {
      shown.run(10);
      change();
      expect([shown.tallies.speculative.draws, shown.points, shown.last]).toEqual([0, [], null]);
    }
    expect(shown.quantities!.envelope).not.toBe(envelope);
  });

  it('draw nothing from a target without weight', () => {
    const shown = new Samplers(seeded(8));
    [0, 1, 2, 3].forEach((token) => shown.raise(token, 0));
    shown.run(5);
    expect([shown.quantities, shown.tallies.von_neumann.draws]).toEqual([null, 0]);
  });
});
