// Moves the cursor of a chart by keys: arrows by one, Page Up and Page Down by more, Home and End to the ends.

/** Steps of a page key. */
const page = 5;

/** New index after a key in a row of `count`; null for other keys. */
export function along(key: string, at: number, count: number): number | null {
  const to = destinations[key]?.(at, count);
  return to === undefined ? null : Math.max(0, Math.min(count - 1, to));
}

const destinations: Record<string, (at: number, count: number) => number> = {
  ArrowRight: (at) => at + 1,
  ArrowLeft: (at) => at - 1,
  ArrowUp: (at) => at + 1,
  ArrowDown: (at) => at - 1,
  PageUp: (at) => at + page,
  PageDown: (at) => at - page,
  Home: () => 0,
  End: (_, count) => count - 1,
};

/** A cell of a grid: its column, and its row from the bottom. */
export interface Cell {
  column: number;
  row: number;
}

/** New cell after a key in a grid; null for other keys. */
export function across(key: string, at: Cell, columns: number, rows: number): Cell | null {
  const sideways = key === 'ArrowLeft' || key === 'ArrowRight' || key === 'Home' || key === 'End';
  const column = sideways ? along(key, at.column, columns) : at.column;
  const row = sideways ? at.row : along(key, at.row, rows);
  return column === null || row === null ? null : { column, row };
}

/** Index of the nearest value. */
export function nearest(values: readonly number[], to: number): number {
  let best = 0;
  for (const [i, value] of values.entries()) {
    if (Math.abs(value - to) < Math.abs((values[best] ?? Infinity) - to)) best = i;
  }
  return best;
}
