// Linear scales of charts, and their domains.

/** A linear map from values to pixels. */
export interface Scale {
  (value: number): number;
  /** The value at a place in pixels. */
  invert: (pixels: number) => number;
  /** Round values in the domain, about `count` of them. */
  ticks: (count: number) => number[];
  readonly range: readonly [number, number];
}

/** Domain of an axis of ratios: all values and 1, with at least half a step of room, at multiples of 1 / `steps`. */
export function domainAroundOne(values: readonly number[], steps: number): [number, number] {
  return [Math.floor(Math.min(1, ...values) * steps - 0.5) / steps, Math.ceil(Math.max(1, ...values) * steps + 0.5) / steps];
}

/** Maps `domain`, which ascends, onto `range` in pixels. Everything in an empty domain is in the middle. */
export function linear(domain: readonly [number, number], range: readonly [number, number]): Scale {
  const [from, to] = domain;
  const [start, end] = range;
  const map = (value: number) => start + (to === from ? 0.5 : (value - from) / (to - from)) * (end - start);
  const invert = (pixels: number) => from + (end === start ? 0.5 : (pixels - start) / (end - start)) * (to - from);
  return Object.assign(map, { invert, range, ticks: (count: number) => ticks(from, to, count) });
}

function ticks(from: number, to: number, count: number): number[] {
  if (to === from) return [from];
  const step = roundStep((to - from) / count);
  const first = Math.ceil(from / step);
  const last = Math.floor(to / step);
  // Multiples of 0.1 and the like carry rounding errors in their last digits.
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** The step nearest in ratio that is 1, 2 or 5 times a power of ten. */
function roundStep(step: number): number {
  const power = 10 ** Math.floor(Math.log10(step));
  const ratio = step / power;
  if (ratio >= Math.sqrt(5 * 10)) return 10 * power;
  if (ratio >= Math.sqrt(2 * 5)) return 5 * power;
  return ratio >= Math.sqrt(2) ? 2 * power : power;
}
