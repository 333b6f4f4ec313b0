// Helpers of the tests in this folder: a sample answer, random tokens, a compact tree.

import { MarkdownDocument } from './document';
import type { BlockNode, Inline, MarkdownBlock, Piece } from './nodes';

export const fenceMarks = '```';

/** One of every construct. */
export const sample = [
  '# Title with `code`',
  'A paragraph with *emphasis*, **strong _both_**, ~~gone~~, a [link](https://example.org "t") and &copy; \\*stars\\*.\nSecond line  \nafter a break<br>and <b>html</b>.',
  '- one\n- two **bold**\n  1. nested\n  2. more\n\n     paragraph inside\n- [x] done\n- [ ] open',
  `${fenceMarks}python\n@cache\ndef f(x: int) -> str:\n    """Doc\n    string."""\n    return f"{x}"  # comment\n\nprint(f(1))\n${fenceMarks}`,
  '> quoted *text*\n> - item\n>\n> more',
  '| a | b \\| c |\n|:--|--:|\n| `x` | **y** |\n| 1 | 2 |',
  'Costs $5 and $10, but $x^2$ and \\(a_b\\) are formulas, $$y$$ too.',
  '\\[\n\\frac{1}{2}\n+ 3\n= x\n\\]',
  '$$\nE = mc^2\n$$',
  '1. First:\n   ```js\n   const a = 1;\n   ```\n2. Second',
  '---',
  '![alt text](https://example.org/x.png) and [bad](javascript:alert(1)) https://auto.link/x.',
  '<div>\nraw\n</div>',
  'Heading\n=======',
  '    indented code\n\n    more',
  'The end: 🌊 \u00e9.',
].join('\n\n');

/** A seeded generator of uniform numbers in [0, 1). */
export function randomNumbers(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

/** Splits a text at random. */
export function cutAtRandom(text: string, random: () => number, longest: number): string[] {
  const tokens: string[] = [];
  const characters = [...text];
  for (let at = 0; at < characters.length;) {
    const length = 1 + Math.floor(random() * longest);
    tokens.push(characters.slice(at, at + length).join(''));
    at += length;
  }
  return tokens;
}

/** A complete document of tokens, read after every `every` tokens; 0 for at the end only. */
export function documentOf(tokens: readonly string[], every = 0): MarkdownDocument {
  const document = new MarkdownDocument();
  tokens.forEach((text, index) => {
    document.append(index, text);
    if (every > 0 && index % every === 0) void document.blocks;
  });
  document.finish();
  return document;
}

/** All pieces of a tree in display order. Formulas are tokens without text. */
export function piecesOf(value: unknown): Piece[] {
  if (Array.isArray(value)) return value.flatMap(piecesOf);
  if (typeof value !== 'object' || value === null) return [];
  if ('token' in value) return [{ token: value.token, text: 'text' in value ? value.text : '', first: (value as Piece).first } as Piece];
  return Object.values(value).flatMap(piecesOf);
}

const joined = (pieces: readonly Piece[]) => pieces.map((piece) => piece.text).join('');

/** A compact form of a tree. */
export function shape(value: MarkdownBlock | BlockNode | Inline): unknown {
  if ('node' in value) return shape(value.node);
  switch (value.kind) {
    case 'text':
      return joined(value.pieces);
    case 'inlineCode':
    case 'html':
    case 'break':
      return [value.kind, joined(value.pieces)];
    case 'image':
      return ['image', value.href, joined(value.pieces)];
    case 'link':
      return ['link', value.href, ...value.children.map(shape)];
    case 'inlineMath':
      return [value.display ? 'display' : 'inlineMath', value.tex];
    case 'math':
      return ['math', value.tex];
    case 'heading':
      return [`h${value.depth}`, ...value.children.map(shape)];
    case 'list':
      return [
        value.ordered ? `ol${value.start}` : 'ul',
        ...value.items.map((item) => [item.checked === null ? 'li' : item.checked ? 'done' : 'open', ...item.children.map(shape)]),
      ];
    case 'code':
      return ['code', value.lang, value.runs.map((run) => joined(run.pieces)).join('')];
    case 'table':
      return ['table', value.align, ...[value.head, ...value.rows].map((row) => row.map((cell) => cell.map(shape)))];
    case 'rule':
      return 'rule';
    default:
      return [value.kind, ...value.children.map(shape)];
  }
}

/** The compact tree of a text. */
export function shapeOf(text: string): unknown[] {
  return documentOf([text]).blocks.map(shape);
}
