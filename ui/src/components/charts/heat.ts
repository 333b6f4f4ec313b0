// Colour scale of a heat map: the colour and strength of a ratio. Twice as fast is as strong as half as fast, so the
// scale is logarithmic.

/** Returns the end of the scale: the logarithm of the most extreme ratio, clamped to log(1.25) and log(3). A smaller
 * end would exaggerate noise. A larger one would hide small differences. */
export function reachOf(ratios: readonly (readonly number[])[]): number {
  const [least, most] = [Math.log(1.25), Math.log(3)];
  return Math.min(most, Math.max(least, ...ratios.flat().map((ratio) => Math.abs(Math.log(ratio)))));
}

/** Colour of a ratio on a scale that ends at `reach`. */
export function heatOf(ratio: number, reach: number): string {
  const strength = Math.min(1, Math.abs(Math.log(ratio)) / reach);
  const side = ratio >= 1 ? '--heat-faster' : '--heat-slower';
  return `color-mix(in oklab, var(${side}) ${(100 * strength).toFixed(1)}%, var(--heat-middle))`;
}

/** Ratios at the ends of the scale. */
export const scaleEnds = (reach: number): [number, number] => [Math.exp(-reach), Math.exp(reach)];
