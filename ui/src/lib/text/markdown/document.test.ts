import { describe, expect, it } from 'vitest';
import { longestListPart } from './cuts';
import { longestTail, MarkdownDocument } from './document';
import type { CodeNode, MarkdownBlock } from './nodes';
import { cutAtRandom, documentOf, fenceMarks, piecesOf, randomNumbers, sample, shape, shapeOf } from './testing';

const plain = (blocks: readonly MarkdownBlock[]) => JSON.parse(JSON.stringify(blocks)) as unknown;

/** Returns `true` if a text results from another by leaving out characters. */
function isWithin(part: string, whole: string): boolean {
  let at = 0;
  for (const character of part) {
    at = whole.indexOf(character, at) + 1;
    if (at === 0) return false;
  }
  return true;
}

/** Timeout of tests with many random answers, on a busy machine. */
const slowTimeoutMs = 30_000;

const fragments = [
  'word ',
  'word',
  '\n',
  '\n\n',
  '\n\n',
  '*',
  '**',
  '_',
  '`',
  '```\n',
  '~~~ py\n',
  '    ',
  '  ',
  '- ',
  '1. ',
  '2) ',
  '> ',
  '# ',
  '---',
  '===\n',
  '|',
  ' | ',
  '\n|--|--|\n',
  '[',
  '](https://a.b)',
  '](javascript:x)',
  '![',
  '<b>',
  '<div>',
  '<!--',
  '-->',
  '$',
  '$$',
  '\\(',
  '\\)',
  '\\[',
  '\\]',
  '\\',
  '&amp;',
  '~~',
  'https://x.yz',
  '[ ] ',
  '[x] ',
  '\t',
  '🌊',
  '\r\n',
  'def f():\n',
  '"""',
  '<script>',
  '</script>',
  '[a]: b',
  '=',
  '+ ',
];

describe('the tree', () => {
  it('has a node for everything', () => {
    expect(shapeOf(sample)).toMatchInlineSnapshot(`
      [
        [
          "h1",
          "Title with ",
          [
            "inlineCode",
            "code",
          ],
        ],
        [
          "paragraph",
          "A paragraph with ",
          [
            "emphasis",
            "emphasis",
          ],
          ", ",
          [
            "strong",
            "strong ",
            [
              "emphasis",
              "both",
            ],
          ],
          ", ",
          [
            "delete",
            "gone",
          ],
          ", a ",
          [
            "link",
            "https://example.org",
            "link",
          ],
          " and © *stars*.
      Second line",
          [
            "break",
            "
      ",
          ],
          "after a break",
          [
            "break",
            "",
          ],
          "and ",
          [
            "html",
            "<b>",
          ],
          "html",
          [
            "html",
            "</b>",
          ],
          ".",
        ],
        [
          "ul",
          [
            "li",
            [
              "paragraph",
              "one",
            ],
          ],
          [
            "li",
            [
              "paragraph",
              "two ",
              [
                "strong",
                "bold",
              ],
            ],
            [
              "ol1",
              [
                "li",
                [
                  "paragraph",
                  "nested",
                ],
              ],
              [
                "li",
                [
                  "paragraph",
                  "more",
                ],
                [
                  "paragraph",
                  "paragraph inside",
                ],
              ],
            ],
          ],
          [
            "done",
            [
              "paragraph",
              "done",
            ],
          ],
          [
            "open",
            [
              "paragraph",
              "open",
            ],
          ],
        ],
        [
          "code",
          "python",
          "@cache
      def f(x: int) -> str:
          """Doc
          string."""
          return f"{x}"  # comment

      print(f(1))
      ",
        ],
        [
          "quote",
          [
            "paragraph",
            "quoted ",
            [
              "emphasis",
              "text",
            ],
          ],
          [
            "ul",
            [
              "li",
              [
                "paragraph",
                "item",
              ],
            ],
          ],
          [
            "paragraph",
            "more",
          ],
        ],
        [
          "table",
          [
            "left",
            "right",
          ],
          [
            [
              "a",
            ],
            [
              "b | c",
            ],
          ],
          [
            [
              [
                "inlineCode",
                "x",
              ],
            ],
            [
              [
                "strong",
                "y",
              ],
            ],
          ],
          [
            [
              "1",
            ],
            [
              "2",
            ],
          ],
        ],
        [
          "paragraph",
          "Costs $5 and $10, but ",
          [
            "inlineMath",
            "x^2",
          ],
          " and ",
          [
            "inlineMath",
            "a_b",
          ],
          " are formulas, ",
          [
            "display",
            "y",
          ],
          " too.",
        ],
        [
          "math",
          "\\frac{1}{2}
      + 3
      = x",
        ],
        [
          "math",
          "E = mc^2",
        ],
        [
          "ol1",
          [
            "li",
            [
              "paragraph",
              "First:",
            ],
            [
              "code",
              "js",
              "const a = 1;",
            ],
          ],
          [
            "li",
            [
              "paragraph",
              "Second",
            ],
          ],
        ],
        "rule",
        [
          "paragraph",
          [
            "image",
            "https://example.org/x.png",
            "alt text",
          ],
          " and ",
          "bad",
          " ",
          [
            "link",
            "https://auto.link/x",
            "https://auto.link/x",
          ],
          ".",
        ],
        [
          "html",
          "<div>
      raw
      </div>",
        ],
        [
          "h1",
          "Heading",
        ],
        [
          "code",
          null,
          "indented code

      more",
        ],
        [
          "paragraph",
          "The end: 🌊 é.",
        ],
      ]
    `);
  });

  it('distinguishes formulas from prices', () => {
    expect(shapeOf('`$HOME`, $PATH, $5-$10, $5 and 6$, $ x $, US$3')).toEqual([
      ['paragraph', ['inlineCode', '$HOME'], ', $PATH, $5-$10, $5 and 6$, $ x $, US$3'],
    ]);
    expect(shapeOf('a\n$$\nx\n- b\n$$\nc')).toEqual([
      ['paragraph', 'a'],
      ['math', 'x\n- b'],
      ['paragraph', 'c'],
    ]);
    expect(shapeOf('> \\[\n> x\n> \\]')).toEqual([['quote', ['math', 'x']]]);
    expect(shapeOf('\\\\(x\\\\)')).toEqual([['paragraph', '\\(x\\)']]);
  });

  it('leaves definitions and footnotes as written', () => {
    expect(shapeOf('[a]: https://b.c\n[^1] [a]')).toEqual([['paragraph', '[a]: ', ['link', 'https://b.c', 'https://b.c'], '\n[^1] [a]']]);
  });

  it('makes links of three protocols only', () => {
    const links = ['https://a.b', 'http://a.b', 'mailto:a@b.c', 'javascript:alert(1)', 'data:text/html,x', 'file:///x', 'x.md', '//a.b'];
    expect(links.map((url) => shapeOf(`[x](${url})`)[0])).toEqual([
      ...links.slice(0, 3).map((url) => ['paragraph', ['link', url, 'x']]),
      ...links.slice(3).map(() => ['paragraph', 'x']),
    ]);
  });
});

describe('pieces', () => {
  it('name the token of each character and mark its first visible piece', () => {
    const [block] = documentOf(['**bo', 'ld** t', 'ext &am', 'p; `a', 'b`', '**', '\\*']).blocks;
    expect(piecesOf(block).map(({ token, text, first }) => [token, text, first])).toEqual([
      [0, 'bo', true],
      [1, 'ld', true],
      [1, ' t', false],
      [2, 'ext &', true],
      [3, ' ', true],
      [3, 'a', false],
      [4, 'b', true],
      [5, '**', true],
      [6, '*', true],
    ]);
  });

  it('follow code through indentation and containers', () => {
    const [block] = documentOf(['1. x\n', '   ```js\n', '   a\n', '     b', '\n   ', '```']).blocks;
    const code = piecesOf(block).filter((piece) => piece.token >= 2);
    expect(code.map(({ token, text }) => [token, text])).toEqual([
      [2, 'a\n'],
      [3, '  b'],
    ]);
  });

  it('are the text in order, whatever the answer and the token borders', { timeout: slowTimeoutMs }, () => {
    const random = randomNumbers(7);
    for (let round = 0; round < 200; round += 1) {
      const text = Array.from({ length: 40 }, () => fragments[Math.floor(random() * fragments.length)]).join('');
      const { blocks } = documentOf(cutAtRandom(text, random, 5), 3);
      const pieces = piecesOf(blocks);
      const shown = pieces.map((piece) => piece.text).join('');
      expect(isWithin(shown.replace(/[ &]/g, ''), text), JSON.stringify(text)).toBe(true);
      const order = pieces.map((piece) => piece.token);
      expect(order).toEqual([...order].sort((a, b) => a - b));
      const firsts = pieces.filter((piece) => piece.first).map((piece) => piece.token);
      expect(firsts).toEqual([...new Set(order)]);
    }
  });
});

describe('text in parts', () => {
  it('gives the tree of the whole text', { timeout: slowTimeoutMs }, () => {
    const random = randomNumbers(1);
    for (let round = 0; round < 12; round += 1) {
      const tokens = cutAtRandom(sample, random, 2 + 2 * round);
      const whole = plain(documentOf(tokens).blocks);
      expect(plain(documentOf(tokens, 1).blocks)).toEqual(whole);
      expect(plain(documentOf(tokens, 5).blocks)).toEqual(whole);
    }
  });

  it('gives the tree of the whole text for nonsense too', { timeout: slowTimeoutMs }, () => {
    const random = randomNumbers(3);
    for (let round = 0; round < 150; round += 1) {
      const text = Array.from({ length: 50 }, () => fragments[Math.floor(random() * fragments.length)]).join('');
      const tokens = cutAtRandom(text, random, 4);
      expect(plain(documentOf(tokens, 1).blocks), JSON.stringify(text)).toEqual(plain(documentOf(tokens).blocks));
    }
  });

  it('gives the tree of the whole text when blocks are too long', { timeout: slowTimeoutMs }, () => {
    const random = randomNumbers(5);
    const long = (part: string, times = 1200) => Array.from({ length: times }, (_, index) => part.replace('#', String(index))).join('');
    for (const text of [
      long('word# '),
      long('word#\n'),
      long('- item #\n'),
      long('1. item # with some words that follow it\n', 700),
      long('> quoted #\n'),
      long('nospace'),
      `| a | b |\n|--|--|\n${long('| x | **#** |\n')}`,
      `| a | b |\n|--|--|\n${long('| x | `#` |\n', 200)}- after\n\nend`,
      `Text\n${fenceMarks}js\n${long('const a# = 1;\n')}${fenceMarks}\nend`,
    ]) {
      const tokens = cutAtRandom(text, random, 900);
      expect(plain(documentOf(tokens, 1).blocks)).toEqual(plain(documentOf(tokens).blocks));
    }
  });

  it('continues the numbers of a long list', () => {
    const { blocks } = documentOf([Array.from({ length: 300 }, () => '1. an item of a long list\n').join('')], 1);
    const lists = blocks.map(({ node }) => node).filter((node) => node.kind === 'list');
    expect(lists.length).toBeGreaterThan((300 * 26) / (longestListPart + 26) - 2);
    let next = 1;
    for (const list of lists) {
      expect([list.start, list.continued]).toEqual([next, next > 1]);
      next += list.items.length;
    }
    expect(next).toBe(301);
  });
});

describe('settled parts', () => {
  it('stay the same objects, and so do equal unsettled parts', () => {
    const document = new MarkdownDocument();
    let before: readonly MarkdownBlock[] = [];
    const seen = new Map<number, MarkdownBlock>();
    [...sample].forEach((character, index) => {
      document.append(index, character);
      const { blocks } = document;
      for (const block of blocks.slice(0, -3)) {
        expect(seen.get(block.id) ?? block).toBe(block);
        seen.set(block.id, block);
      }
      expect(new Set(blocks.map((block) => block.id)).size).toBe(blocks.length);
      before = blocks;
    });
    expect(document.blocks).toBe(before);
    const list = new MarkdownDocument();
    list.append(0, '- one\n- two\n');
    const first = list.blocks[0]?.node;
    list.append(1, '- three');
    const second = list.blocks[0]?.node;
    if (first?.kind !== 'list' || second?.kind !== 'list') throw new Error('both are lists');
    expect(second.items[1]).toBe(first.items[1]);
  });

  it('grow code only in its last run, with colours for complete lines', () => {
    const document = new MarkdownDocument();
    const code = () => document.blocks[0]?.node as CodeNode;
    document.append(0, `${fenceMarks}js\n`);
    expect(code()).toEqual({ kind: 'code', lang: 'js', runs: [], closed: false });
    for (let line = 1; line < 100; line += 1) {
      const before = code().runs;
      document.append(line, `const a${line} = ${line};\n`);
      expect(code().runs.slice(0, before.length - 1)).toEqual(before.slice(0, -1));
      before.slice(0, -1).forEach((run, index) => expect(code().runs[index]).toBe(run));
    }
    expect(code().runs[0]?.pieces[0]?.parts).toContainEqual({ text: 'const', scope: 'keyword' });
    document.append(100, '``');
    expect(shape(document.blocks[0]!)).toEqual(['code', 'js', expect.stringMatching(/a99 = 99;\n$/)]);
    document.append(101, '`\n');
    expect(code().closed).toBe(true);
  });

  it('hide a line that may still change its meaning', () => {
    const document = new MarkdownDocument();
    document.append(0, 'Points:\n');
    for (const [index, beginning] of ['-', '=', '1', '**', '#', '> -'].entries()) {
      document.append(2 * index + 1, beginning);
      expect(document.blocks.map(shape), beginning).toEqual([['paragraph', expect.stringContaining('Points')]]);
      document.append(2 * index + 2, 'x\n');
    }
  });

  it('never lag behind the end by more than a bounded length', () => {
    const document = new MarkdownDocument();
    document.append(0, 'x'.repeat(5 * longestTail));
    expect(document.blocks.length).toBeGreaterThanOrEqual(5);
  });
});
