// Converts the parser's tree to ours: what is shown of each node, and which tokens wrote it. Nodes without a drawing
// show their source text; nothing is ever lost.

import type { List, Nodes, Parents, PhrasingContent, RootContent, Table, TableRow } from 'mdast';
import { plainAddress } from '../../links';
import { CodeLines, linesOf } from './code';
import { fenceStart } from './fence';
import type { MathNode } from './mathSyntax';
import type { BlockNode, CodeNode, Inline, ListItem, Piece, TableNode } from './nodes';
import type { PieceCutter } from './source';

type Node = Nodes | (MathNode & Pick<Nodes, 'position'>);

/** Below this depth, text is shown as source. */
const deepest = 28;

/** Address of a link as written; null if it cannot be opened. */
function safeHref(url: string): string | null {
  return plainAddress(url) === null ? null : url;
}

export class Converter {
  constructor(
    readonly cutter: PieceCutter,
    /** Offset of the parsed text in the whole. */
    readonly base: number,
    /** Code that ends before here is complete. */
    readonly complete: number,
  ) {}

  from(node: Node): number {
    return this.base + (node.position?.start.offset ?? 0);
  }

  to(node: Node): number {
    return this.base + (node.position?.end.offset ?? 0);
  }

  block(node: RootContent, depth = 0): BlockNode {
    const known = node as RootContent | MathNode;
    if (depth > deepest) return { kind: 'paragraph', children: this.#literal(node) };
    switch (known.type) {
      case 'paragraph':
        return { kind: 'paragraph', children: this.#inlines(known.children, depth) };
      case 'heading':
        return { kind: 'heading', depth: known.depth, children: this.#inlines(known.children, depth) };
      case 'blockquote':
        return { kind: 'quote', children: this.#blocks(known, depth) };
      case 'list':
        return this.list(known, 0, known.children.length, known.start ?? 1, false, depth);
      case 'code':
        return this.#code(node as Extract<RootContent, { type: 'code' }>);
      case 'table':
        return this.table(known, undefined, Infinity, depth);
      case 'thematicBreak':
        return { kind: 'rule' };
      case 'html':
        return { kind: 'html', pieces: this.cutter.value(known.value, this.from(node), this.to(node)) };
      case 'displayMath':
        return { kind: 'math', tex: texOf(known.value), ...this.cutter.mark(this.from(node), this.to(node)) };
      default:
        return { kind: 'paragraph', children: this.#literal(node) };
    }
  }

  /** Items of a list in a range. */
  list(list: List, first: number, last: number, start: number, continued: boolean, depth = 0): BlockNode {
    const items = list.children
      .slice(first, last)
      .map((item): ListItem => ({ checked: item.checked ?? null, children: this.#blocks(item, depth) }));
    return { kind: 'list', ordered: list.ordered ?? false, start, continued, items };
  }

  #blocks(parent: Parents, depth: number): BlockNode[] {
    return parent.children.map((child) => this.block(child as RootContent, depth + 1));
  }

  #literal(node: Node): Inline[] {
    return [{ kind: 'text', pieces: this.cutter.range(this.from(node), this.to(node)) }];
  }

  #inlines(nodes: readonly PhrasingContent[], depth: number): Inline[] {
    return nodes.flatMap((node) => this.#inline(node, depth + 1));
  }

  #inline(node: PhrasingContent, depth: number): Inline | Inline[] {
    const known = node as PhrasingContent | MathNode;
    const from = this.from(node);
    const to = this.to(node);
    if (depth > deepest) return this.#literal(node);
    switch (known.type) {
      case 'text':
        return { kind: 'text', pieces: this.cutter.value(known.value, from, to) };
      case 'emphasis':
      case 'strong':
      case 'delete':
        return { kind: known.type, children: this.#inlines(known.children, depth) };
      case 'inlineCode':
        return { kind: 'inlineCode', pieces: this.#inlineCode(known.value, from, to) };
      case 'link': {
        const children = this.#inlines(known.children, depth);
        const href = safeHref(known.url);
        return href === null ? children : { kind: 'link', href, children };
      }
      case 'image':
        return { kind: 'image', href: safeHref(known.url), pieces: this.#image(known.alt ?? '', known.url, from, to) };
      case 'inlineMath':
        return { kind: 'inlineMath', display: isDisplay(known.value), tex: texOf(known.value), ...this.cutter.mark(from, to) };
      case 'break':
        return { kind: 'break', pieces: this.#lineBreak(to) };
      case 'html':
        if (/^<br[ \t]*\/?>$/i.test(known.value)) return { kind: 'break', pieces: [] };
        return { kind: 'html', pieces: this.cutter.value(known.value, from, to) };
      default:
        return this.#literal(node);
    }
  }

  /** The line break of a hard break by two spaces or a backslash. */
  #lineBreak(to: number): Piece[] {
    const end = this.cutter.source.slice(to - 1, to) === '\n' ? to : to + 1;
    return this.cutter.source.slice(end - 1, end) === '\n' ? this.cutter.range(end - 1, end) : [];
  }

  #inlineCode(value: string, from: number, to: number): Piece[] {
    const marks = /^`*/.exec(this.cutter.source.slice(from, to))![0].length;
    return this.cutter.value(value, from + marks, to - marks, true);
  }

  #image(alt: string, url: string, from: number, to: number): Piece[] {
    if (alt !== '') return this.cutter.value(alt, from + 2, to);
    const address = this.cutter.source.slice(from, to).lastIndexOf('(');
    return this.cutter.value(url, from + Math.max(0, address), to);
  }

  /** Code inside other blocks, or indented. Top-level fences are handled elsewhere. */
  #code(node: Extract<RootContent, { type: 'code' }>): CodeNode {
    const to = this.to(node);
    let from = this.from(node);
    const written = this.cutter.source.slice(from, to);
    const lineEnd = written.indexOf('\n');
    if (fenceStart.test(written)) from = lineEnd < 0 ? to : from + lineEnd + 1;
    const lines = new CodeLines(node.lang ?? null);
    for (const line of linesOf(this.cutter.value(node.value, from, to))) lines.add(line);
    if (to < this.complete) lines.close();
    return lines.node();
  }

  /** Table rows that start before an offset, after those of earlier parts. */
  table(table: Table, earlier?: TableNode, before = Infinity, depth = 0): TableNode {
    const read = (row: TableRow) => row.children.map((cell) => this.#inlines(cell.children, depth));
    const [first, ...body] = table.children;
    const head = earlier?.head ?? (first ? read(first) : []);
    const align = earlier?.align ?? head.map((_, index) => table.align?.[index] ?? null);
    const rows = body.filter((row) => this.from(row) < before).map(read);
    return { kind: 'table', align, head, rows: [...(earlier?.rows ?? []), ...rows] };
  }
}

/** A formula without its delimiters. */
function texOf(value: string): string {
  const trimmed = value.trim();
  const width = trimmed.startsWith('$') && !trimmed.startsWith('$$') ? 1 : 2;
  return trimmed.slice(width, -width).trim();
}

function isDisplay(value: string): boolean {
  return value.startsWith('$$') || value.startsWith('\\[');
}
