// What the charts share: what is told of them in words, an axis as it is asked for, and the frame that a chart
// draws into.

import type { Scale } from './scale';

/** A chart in words. */
export interface Worded {
  title: string;
  /** What it shows, in a sentence or two, for who cannot see it. */
  description: string;
  /** The table behind it: the heads of its columns, and its rows as they are read. */
  columns: readonly string[];
  rows: readonly (readonly (string | number)[])[];
}

/** An axis. */
export interface Axis {
  domain: readonly [number, number];
  /** What it measures, with its unit; empty where what is drawn says so itself. */
  label: string;
  /** Writes a value beside the axis. */
  format?: (value: number) => string;
  /** Where lines and values stand; evenly, if none are named. */
  at?: readonly number[];
  /** Names in place of values: number i stands at i + 0.5, in the middle of its step. */
  categories?: readonly string[];
}

/** The room inside the axes: scales in pixels, from its upper left corner. */
export interface Frame {
  x: Scale;
  y: Scale;
  width: number;
  height: number;
}

/** Where an axis has a line and a value, for as much room as there is. */
export function marksOf(axis: Axis, scale: Scale, most: number): { at: number; text: string }[] {
  if (axis.categories) return axis.categories.map((text, i) => ({ at: i + 0.5, text }));
  const values = axis.at ?? scale.ticks(Math.max(2, most));
  return values.map((at) => ({ at, text: axis.format?.(at) ?? '' }));
}
