import { describe, expect, it } from 'vitest';
import { across, along, nearest } from './cursor';
import { heatOf, reachOf, scaleEnds } from './heat';
import { linear } from './scale';
import { ending, shortened } from './shortened';
import { besideEnds, spread } from './spread';

describe('labels', () => {
  it('keep their place when there is room', () => {
    expect(spread([10, 80, 40], 16, 0, 100)).toEqual([10, 80, 40]);
  });

  it('stay apart, in order, and inside', () => {
    expect(spread([50, 50, 50], 16, 0, 100)).toEqual([50, 66, 82]);
    expect(spread([98, 99], 16, 0, 100)).toEqual([84, 100]);
    expect(spread([-5, 2], 16, 0, 100)).toEqual([0, 16]);
  });

  it('at the ends of lines stay inside the frame', () => {
    const labels = ['one', 'another'].map((text) => ({ x: 195, y: 105, text }));
    const placed = besideEnds([...labels, { x: 20, y: -3, text: 'top' }], { width: 200, height: 100 });
    expect(placed.map(({ text, y }) => [text, y])).toEqual([
      ['top', 10],
      ['one', 96],
      ['another', 82],
    ]);
    for (const { x, text } of placed) expect(x + text.length * 6).toBeLessThan(200);
    expect(placed[0]?.x).toBe(20);
  });

  it('find a place whatever the rounding of their positions', () => {
    // (y + 14) - y is less than 14 for many of these.
    for (let i = 0; i < 500; i += 1) {
      const y = 12 + i * 0.137;
      const placed = besideEnds(
        [1, 2, 3].map((n) => ({ x: 0, y, text: `label ${n}` })),
        { width: 400, height: 300 },
      );
      expect(new Set(placed.map((label) => label.y)).size).toBe(3);
    }
  });

  it('are cut with an ellipsis', () => {
    expect(shortened('element', 5)).toBe('elem…');
    expect(shortened('item', 5)).toBe('item');
    expect(ending('element', 5)).toBe('…ment');
  });
});

describe('the cursor', () => {
  it('moves along a row and stays in it', () => {
    expect([along('ArrowRight', 3, 5), along('ArrowRight', 4, 5), along('ArrowLeft', 0, 5), along('End', 1, 5), along('a', 1, 5)]).toEqual([
      4,
      4,
      0,
      4,
      null,
    ]);
  });

  it('moves across a grid', () => {
    const at = { column: 1, row: 1 };
    expect(across('ArrowUp', at, 4, 3)).toEqual({ column: 1, row: 2 });
    expect(across('ArrowRight', at, 4, 3)).toEqual({ column: 2, row: 1 });
    expect(across('Tab', at, 4, 3)).toBeNull();
  });

  it('finds the nearest value', () => {
    expect(nearest([1, 2, 4, 8], 5.5)).toBe(2);
  });
});

describe('heat', () => {
  it('is as strong for twice as fast as for half as fast', () => {
    const reach = reachOf([[0.5, 2]]);
    expect(heatOf(2, reach)).toContain('--heat-faster) 100.0%');
    expect(heatOf(0.5, reach)).toContain('--heat-slower) 100.0%');
    expect(heatOf(1, reach)).toContain(' 0.0%');
  });

  it('keeps the end of its scale in bounds', () => {
    expect(scaleEnds(reachOf([[1.01]]))[1]).toBeCloseTo(1.25);
    expect(scaleEnds(reachOf([[0.01]]))[0]).toBeCloseTo(1 / 3);
  });
});

describe('a linear scale', () => {
  it('maps values to pixels and back', () => {
    const scale = linear([0, 50], [100, 0]);
    expect([0, 20, 50].map(scale)).toEqual([100, 60, 0]);
    expect([100, 60, 0].map(scale.invert)).toEqual([0, 20, 50]);
  });

  it('puts everything of an empty domain in the middle', () => {
    const scale = linear([3, 3], [0, 100]);
    expect(scale(3)).toBe(50);
    expect(scale.ticks(5)).toEqual([3]);
  });

  it('has ticks at multiples of 1, 2 or 5 times a power of ten', () => {
    expect(linear([0, 1], [0, 1]).ticks(10)).toEqual([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1]);
    expect(linear([0.3, 2.2], [0, 1]).ticks(4)).toEqual([0.5, 1, 1.5, 2]);
    expect(linear([-30, 130], [0, 1]).ticks(4)).toEqual([0, 50, 100]);
    expect(linear([0, 9], [0, 1]).ticks(5)).toEqual([0, 2, 4, 6, 8]);
  });
});
