// Moving a cursor over a chart with the keys: the arrows by one, Page Up and Page Down by more, Home and End
// to the ends.

/** How far a page is. */
const page = 5;

/** Where a key leads in a row of so many; null when the key is none of ours. */
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

/** A place in a grid: a column, and a row from the bottom. */
export interface Cell {
  column: number;
  row: number;
}

/** Where a key leads in a grid; null when the key is none of ours. */
export function across(key: string, at: Cell, columns: number, rows: number): Cell | null {
  const sideways = key === 'ArrowLeft' || key === 'ArrowRight' || key === 'Home' || key === 'End';
  const column = sideways ? along(key, at.column, columns) : at.column;
  const row = sideways ? at.row : along(key, at.row, rows);
  return column === null || row === null ? null : { column, row };
}

/** The number of the value nearest to another. */
export function nearest(values: readonly number[], to: number): number {
  let best = 0;
  for (const [i, value] of values.entries()) {
    if (Math.abs(value - to) < Math.abs((values[best] ?? Infinity) - to)) best = i;
  }
  return best;
}
