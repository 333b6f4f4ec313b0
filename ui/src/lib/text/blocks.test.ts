import { describe, expect, it } from 'vitest';
import { Layout, runLength } from './blocks';

function laidOut(tokens: string[]): Layout {
  const layout = new Layout();
  tokens.forEach((text, index) => layout.append(index, text));
  return layout;
}

const shape = (layout: Layout) =>
  layout.blocks.map((block) => [block.kind, block.runs.flatMap((run) => run.pieces.map((piece) => piece.text)).join('')]);

describe('Layout', () => {
  it('keeps all text in order, whatever the token borders', () => {
    const text = 'One.\n\nTwo `x`.\n```python\ndef f():\n    pass\n```\nThree.\n\n\nFour 🌊';
    for (let size = 1; size < 9; size += 1) {
      const tokens = text.match(new RegExp(`[\\s\\S]{1,${size}}`, 'g')) ?? [];
      const layout = laidOut(tokens);
      expect(
        shape(layout)
          .map(([, joined]) => joined)
          .join(''),
      ).toBe(text);
      expect(shape(layout).map(([kind]) => kind)).toEqual(['text', 'text', 'code', 'text', 'text', 'text']);
    }
  });

  it('starts a block after a blank line', () => {
    expect(shape(laidOut(['a', '\n\n', 'b']))).toEqual([
      ['text', 'a\n\n'],
      ['text', 'b'],
    ]);
  });

  it('moves a fence in several pieces into the code block', () => {
    expect(shape(laidOut(['Look:\n', '`', '``', 'sh\n', 'ls\n', '```', '\n', 'done']))).toEqual([
      ['text', 'Look:\n'],
      ['code', '```sh\nls\n```\n'],
      ['text', 'done'],
    ]);
  });

  it('does not take inline code for a fence', () => {
    expect(shape(laidOut(['use ', '```', 'x', '```', ' here']))).toEqual([['text', 'use ```x``` here']]);
  });

  it('keeps an unclosed code block open, blank lines and all', () => {
    expect(shape(laidOut(['```\n', 'a\n', '\n', 'b']))).toEqual([['code', '```\na\n\nb']]);
  });

  it('splits a token across a border and marks its first piece', () => {
    const pieces = laidOut(['a', '\n\nb']).blocks.flatMap((block) => block.runs.flatMap((run) => run.pieces));
    expect(pieces.filter((piece) => piece.token === 1).map((piece) => [piece.text, piece.first])).toEqual([
      ['\n', true],
      ['\n', false],
      ['b', false],
    ]);
  });

  it('ignores empty tokens', () => {
    expect(laidOut(['', '']).blocks).toEqual([]);
  });

  it('replaces only the last run when a token is added', () => {
    const layout = laidOut(Array.from({ length: runLength * 3 }, () => 'x '));
    const before = layout.blocks[0]!.runs;
    layout.append(runLength * 3, 'y');
    const after = layout.blocks[0]!.runs;
    expect(after.length).toBe(4);
    before.forEach((run, index) => expect(after[index]).toBe(run));
    layout.append(runLength * 3 + 1, 'z');
    expect(layout.blocks[0]!.runs[2]).toBe(before[2]);
    expect(layout.blocks[0]!.runs[3]).not.toBe(after[3]);
  });
});
