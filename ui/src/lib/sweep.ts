// The best draft length of a comparison whose lanes differ in nothing else. All numbers are the report's. No DOM.

import { formatMean } from './format';
import type { ComparisonReport, LaneReport, MaxDraft, Method } from './ipc/schema.gen';
import { methodName } from './methods';
import { language } from './strings/index.svelte';

/** A comparison of draft lengths. */
export interface Sweep {
  method: Method;
  /** The fastest draft length. */
  best: LaneReport;
  /** Index of its lane. */
  lane: number;
  /** Others whose spreads overlap with that of the best; null if a lane has one sample and thus no spread. */
  close: readonly MaxDraft[] | null;
}

/** Fewest draft lengths of a sweep. */
const fewest = 3;

/** The sweep that a report is; null if its lanes have several methods, or too few draft lengths. */
export function sweepOf({ lanes }: Pick<ComparisonReport, 'lanes'>): Sweep | null {
  const drafting = lanes.filter(({ config }) => config.method !== 'plain');
  const [first] = drafting;
  if (!first || drafting.length < fewest || drafting.some(({ config }) => config.method !== first.config.method)) return null;
  const best = drafting.reduce((fastest, lane) => (lane.speedup > fastest.speedup ? lane : fastest));
  const spread = drafting.every(({ samples }) => samples > 1);
  const overlapping = drafting.filter((lane) => lane !== best && lane.speedup_high >= best.speedup_low);
  const close = spread ? overlapping.map(({ config }) => config.max_draft) : null;
  return { method: first.config.method, best, lane: lanes.indexOf(best), close };
}

/** A sweep in words: the best draft length, and how certain that is. */
export function sweepWords({ method, best, close }: Sweep): { head: string; note: string } {
  const words = language.strings.compare.sweep;
  const speedup = formatMean(best.speedup);
  const depth = String(best.config.max_draft);
  const head = best.speedup > 1 ? words.best(depth, methodName(method), speedup) : words.none(depth, methodName(method), speedup);
  if (close === null) return { head, note: words.single };
  return { head, note: close.length === 0 ? words.clear : words.close(close.map(String)) };
}
