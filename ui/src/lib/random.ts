// Seeded random numbers for simulations on screen. No DOM.

/** A source of uniform numbers in [0, 1). */
export type Uniform = () => number;

/** A generator with a seed: the same seed gives the same numbers (xorshift with 128 bits of state, Marsaglia 2003). */
export function seeded(seed: number): Uniform {
  let [x, y, z, w] = [seed ^ 0x075bcd15, 0x159a55e5, 0x1f123bb5, 0x05491333];
  const step = (): number => {
    const mixed = x ^ (x << 11);
    [x, y, z] = [y, z, w];
    w = w ^ (w >>> 19) ^ mixed ^ (mixed >>> 8);
    return (w >>> 0) / 2 ** 32;
  };
  // The first numbers of similar seeds are similar.
  for (let i = 0; i < 20; i++) step();
  return step;
}

/** Draws an index by weight. The weights need not sum to 1. */
export function draw(weights: readonly number[], random: Uniform): number {
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  let left = random() * total;
  for (const [i, weight] of weights.entries()) {
    left -= weight;
    if (left < 0) return i;
  }
  // Rounding can leave a remainder; a token without weight is never drawn.
  return weights.findLastIndex((weight) => weight > 0);
}
