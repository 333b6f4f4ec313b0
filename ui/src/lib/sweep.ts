// A comparison whose lanes differ in the draft length only: its curve, and the best draft length. All numbers are the
// report's. No DOM.

import { formatMean } from './format';
import type { ComparisonReport, LaneConfig, LaneReport, MaxDraft, Method } from './ipc/schema.gen';
import { laneKey } from './lanes';
import { methodName } from './methods';
import { language } from './strings/index.svelte';

/** A lane of a sweep. */
export interface SweepLane {
  /** Index of the lane. */
  lane: number;
  report: LaneReport;
}

/** A comparison of draft lengths. */
export interface Sweep {
  method: Method;
  /** Lanes with a fixed draft length, shortest first. */
  fixed: readonly SweepLane[];
  /** The lane that chooses its draft length; null for none. */
  auto: SweepLane | null;
  /** The fastest draft length. */
  best: LaneReport;
  /** Index of its lane. */
  lane: number;
  /** Others whose spreads overlap with that of the best; null if a lane has one sample and thus no spread. */
  close: readonly MaxDraft[] | null;
}

/** Fewest draft lengths of a sweep. */
const fewest = 3;

const apartFromDepth = (config: LaneConfig): string => laneKey({ ...config, max_draft: 'auto' });

/** The sweep that a report is; null if its lanes differ in more than the draft length, or are too few. */
export function sweepOf({ lanes }: Pick<ComparisonReport, 'lanes'>): Sweep | null {
  const numbered = lanes.map((report, lane) => ({ lane, report }));
  const drafting = numbered.filter(({ report }) => report.config.method !== 'plain');
  const [first] = drafting;
  if (!first || drafting.length < fewest) return null;
  if (drafting.some(({ report }) => apartFromDepth(report.config) !== apartFromDepth(first.report.config))) return null;
  const best = drafting.reduce((fastest, lane) => (lane.report.speedup > fastest.report.speedup ? lane : fastest));
  const spread = drafting.every(({ report }) => report.samples > 1);
  const overlapping = drafting.filter((lane) => lane !== best && lane.report.speedup_high >= best.report.speedup_low);
  return {
    method: first.report.config.method,
    fixed: drafting.filter((lane) => depthOf(lane) !== null).sort((a, b) => (depthOf(a) ?? 0) - (depthOf(b) ?? 0)),
    auto: drafting.find((lane) => depthOf(lane) === null) ?? null,
    best: best.report,
    lane: best.lane,
    close: spread ? overlapping.map(({ report }) => report.config.max_draft) : null,
  };
}

/** Draft length of a lane; null if it chooses its own. */
export function depthOf({ report }: SweepLane): number | null {
  const depth = report.config.max_draft;
  return depth === 'auto' ? null : depth;
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
