import { describe, expect, it } from 'vitest';
import { optionText, withOption } from './methodOptions';

const limits = { context: 4096, draft: 15 };

describe('options of methods', () => {
  it.each([
    ['tree', ' 3 x2X1', { tree: '3x2x1' }],
    ['tree', '4', { tree: '4' }],
    ['tree', '3 x 2, 1 x 1', { tree: '3x2,1x1' }],
    ['exit_layer', '20', { exit_layer: 20 }],
    ['skipped_layers', '9, 3;9 11', { skipped_layers: [3, 9, 11] }],
    ['skipped_layers', '0', { skipped_layers: [0] }],
    ['draft_window', '4096', { draft_window: 4096 }],
    ['draft_window', '4,096', { draft_window: 4096 }],
  ] as const)('read %s from "%s"', (name, text, expected) => {
    const options = withOption({}, name, text, limits);
    expect(options).toEqual(expected);
    expect(withOption({}, name, optionText(options!, name), limits)).toEqual(expected);
  });

  it.each([
    ['tree', '3x0'],
    ['tree', '16'],
    ['tree', '3x0,0'],
    ['tree', '3x2,'],
    ['tree', '3,2'],
    ['tree', '2x1,1,1'],
    ['tree', 'x'],
    ['tree', 'wide'],
    ['exit_layer', '0'],
    ['exit_layer', '1.5'],
    ['exit_layer', '1e3'],
    ['skipped_layers', '1-3'],
    ['skipped_layers', '-1'],
    ['draft_window', '0'],
    ['draft_window', '4097'],
    ['draft_window', '5000000000'],
  ] as const)('refuse "%s" of "%s"', (name, text) => {
    expect(withOption({}, name, text, limits)).toBeNull();
  });

  it('have their default where the text is empty, and leave each other alone', () => {
    const options = { tree: '2x2', draft_window: 512 };
    expect(withOption(options, 'tree', ' ', limits)).toEqual({ draft_window: 512 });
    expect(withOption(options, 'tree', 'dynamic', limits)).toEqual({ draft_window: 512 });
    expect(withOption(options, 'exit_layer', '3', limits)).toEqual({ ...options, exit_layer: 3 });
    expect([optionText({}, 'tree'), optionText({}, 'skipped_layers')]).toEqual(['', '']);
  });
});
