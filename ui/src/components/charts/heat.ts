// The scale of a heat map around a middle: how strongly a ratio is coloured, and to which side. As much faster
// is as strong as as much slower, so it goes by the logarithm.

/** The end of the scale: the furthest of the ratios from 1, either way; never so near that nothing stands out,
 * nor so far that what matters fades. */
export function reachOf(ratios: readonly (readonly number[])[]): number {
  const [least, most] = [Math.log(1.25), Math.log(3)];
  return Math.min(most, Math.max(least, ...ratios.flat().map((ratio) => Math.abs(Math.log(ratio)))));
}

/** The colour of a ratio on a scale that ends at `reach`. */
export function heatOf(ratio: number, reach: number): string {
  const strength = Math.min(1, Math.abs(Math.log(ratio)) / reach);
  const side = ratio >= 1 ? '--heat-faster' : '--heat-slower';
  return `color-mix(in oklab, var(${side}) ${(100 * strength).toFixed(1)}%, var(--heat-middle))`;
}

/** The ratios at the ends of the scale. */
export const scaleEnds = (reach: number): [number, number] => [Math.exp(-reach), Math.exp(reach)];
