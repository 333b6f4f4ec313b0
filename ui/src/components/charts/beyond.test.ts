import { expect, it } from 'vitest';
import { isBeyond } from './beyond';

it('a round is extrapolated if its target pass has more rows than were measured', () => {
  expect([2, 3, 4].map((depth) => isBeyond({ measured_rows: 16, batch: 4 }, depth))).toEqual([false, false, true]);
  expect(isBeyond({ measured_rows: null, batch: 32 }, 15)).toBe(false);
});
