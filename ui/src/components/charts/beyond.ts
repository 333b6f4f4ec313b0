// Extrapolated parts of the landscape. No DOM.

import type { Landscape } from '../../lib/ipc/schema.gen';

/** Returns `true` if the target pass of a round of `depth` tokens is wider than the measured ones. Made-up costs are
 * known at any width. */
export const isBeyond = ({ measured_rows, batch }: Pick<Landscape, 'measured_rows' | 'batch'>, depth: number): boolean =>
  measured_rows !== null && batch * (depth + 1) > measured_rows;
