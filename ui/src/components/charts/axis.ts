// Types shared by the charts: the description in words, an axis, and the frame to draw into.

import type { Scale } from './scale';

/** Description of a chart in words. */
export interface Worded {
  title: string;
  /** The content in a sentence or two, for screen readers. */
  description: string;
  /** The data as a table: column headers, and rows as displayed. */
  columns: readonly string[];
  rows: readonly (readonly (string | number)[])[];
}

/** An axis. */
export interface Axis {
  domain: readonly [number, number];
  /** Quantity and unit; empty where the drawing says so itself. */
  label: string;
  /** Formats a value at the axis. */
  format?: (value: number) => string;
  /** Values with a grid line; evenly spaced by default. */
  at?: readonly number[];
  /** Names instead of values: name i is at i + 0.5, the centre of its step. */
  categories?: readonly string[];
}

/** The area inside the axes: scales in pixels, from the upper left corner. */
export interface Frame {
  x: Scale;
  y: Scale;
  width: number;
  height: number;
}

/** Grid lines of an axis and their labels, for the available room. */
export function marksOf(axis: Axis, scale: Scale, most: number): { at: number; text: string }[] {
  if (axis.categories) return axis.categories.map((text, i) => ({ at: i + 0.5, text }));
  const values = axis.at ?? scale.ticks(Math.max(2, most));
  return values.map((at) => ({ at, text: axis.format?.(at) ?? '' }));
}
