import { describe, expect, it } from 'vitest';
import { MarkdownDocument } from './document';
import { documentOf, piecesOf, shapeOf } from './testing';

const shown = (text: string) =>
  piecesOf(documentOf([text]).blocks)
    .map((piece) => piece.text)
    .join('');

describe('markup in an answer', () => {
  it.each(['<script>alert(1)</script>', '<img src=x onerror=alert(1)>', '<style>*{}</style>', '<!-- x -->', '<iframe src="https://a.b">'])(
    'is text: %s',
    (markup) => {
      expect(shown(markup)).toBe(markup);
      expect(shown(`a ${markup} b`)).toBe(`a ${markup} b`);
    },
  );

  it('loads nothing', () => {
    expect(shapeOf('![x](data:image/png;base64,AAAA) ![](https://a.b/c.png)')).toEqual([
      ['paragraph', ['image', null, 'x'], ' ', ['image', 'https://a.b/c.png', 'https://a.b/c.png']],
    ]);
  });

  it.each(['javascript:alert(1)', 'JaVaScRiPt:alert(1)', '&#106;avascript:alert(1)', 'vbscript:x', 'data:text/html,x', 'java\\script:x'])(
    'is no link: %s',
    (url) => {
      expect(JSON.stringify(shapeOf(`[x](${url}) <${url}>`))).not.toContain('"link"');
    },
  );
});

describe('a hostile answer', () => {
  const deep = 10_000;
  const inputs: Record<string, string> = {
    quotes: '>'.repeat(deep),
    'spaced quotes': '> '.repeat(deep) + 'x',
    lists: '- '.repeat(deep) + 'x',
    'numbered lists': '1. '.repeat(deep) + 'x',
    brackets: '['.repeat(deep),
    images: '![a'.repeat(deep),
    links: '[a]('.repeat(deep),
    stars: '*'.repeat(deep),
    'stars and words': '*a '.repeat(deep),
    'stars that close': 'a* '.repeat(deep),
    'mixed emphasis': '*a_b'.repeat(deep),
    backticks: Array.from({ length: 150 }, (_, index) => '`'.repeat(index + 1)).join(' '),
    dollars: '$a'.repeat(deep),
    formulas: '\\('.repeat(deep),
    tildes: '~~a '.repeat(deep),
    tags: '<a '.repeat(deep),
    entities: '&amp'.repeat(deep),
    staircase: Array.from({ length: 300 }, (_, index) => `${'  '.repeat(index)}- x`).join('\n'),
    'quoted staircase': Array.from({ length: 300 }, (_, index) => `${'>'.repeat(index)} x`).join('\n'),
    'many lines of stars': '*a\n'.repeat(deep),
    'one long line': 'word '.repeat(20_000),
    'one long word': 'x'.repeat(100_000),
    'one long line of code': `\`\`\`js\n${'f(1);'.repeat(20_000)}`,
    'a wide table': `${'|a'.repeat(2000)}\n${'|-'.repeat(2000)}\n${'|b\n'.repeat(1000)}`,
    'columns of nothing': ' '.repeat(100_000) + 'x',
  };

  it.each(Object.entries(inputs))('terminates, and loses nothing but markup: %s', { timeout: 30_000 }, (_, text) => {
    const document = new MarkdownDocument();
    for (let at = 0; at < text.length; at += 4096) {
      document.append(at, text.slice(at, at + 4096));
      void document.blocks;
    }
    document.finish();
    const letters = (of: string) => of.replace(/[^a-z;]/g, '').length;
    const seen = piecesOf(document.blocks)
      .map((piece) => piece.text)
      .join('');
    expect(letters(seen)).toBeGreaterThanOrEqual(Math.min(1, letters(text)));
    expect(depthOf(document.blocks)).toBeLessThan(200);
  });

  it('is shown as written beyond the limits', () => {
    expect(shown('*a '.repeat(deep)).replace(/\s/g, '')).toBe('*a'.repeat(deep));
    expect(shown('['.repeat(deep))).toBe('['.repeat(deep));
  });
});

function depthOf(value: unknown): number {
  if (typeof value !== 'object' || value === null) return 0;
  return 1 + Math.max(0, ...Object.values(value).map(depthOf));
}
