// Finds places to cut parsed text so that nothing before the cut changes later. Cuts are at a block after a blank
// line, an item of a long list, or a row of a long table. They do not depend on how text arrived. No state here.

import type { List, RootContent, Table } from 'mdast';
import type { Converter } from './convert';
import { fenceStart } from './fence';
import type { MarkdownBlock, TableNode } from './nodes';

/** Length after which a list is continued in a new block at the next item. */
export const longestListPart = 600;

/** Length of the parts in which table rows are settled. */
const longestTablePart = 600;

/** Longest head of a table that is parsed again with each part. */
const longestHead = 1000;

/** Context of the text after a cut inside a block. */
export interface Continuation {
  /** Number of the next list item. */
  list?: number;
  /** Rows of a table so far, and its first two lines as written. */
  table?: { id: number; head: string; node: TableNode };
}

/** An offset before which everything is settled. */
interface Cut {
  at: number;
  inside: RootContent | null;
}

interface Part {
  first: number;
  start: number;
  continued: boolean;
}

/** First item of each part of a list, its number, and whether another part precedes. */
function partsOf(list: List, next: number | undefined): Part[] {
  const start = next ?? list.start ?? 1;
  const parts: Part[] = [{ first: 0, start, continued: next !== undefined }];
  let from = list.position!.start.offset!;
  for (const [index, item] of list.children.entries()) {
    const at = item.position!.start.offset!;
    if (at - from < longestListPart) continue;
    from = at;
    parts.push({ first: index, start: start + index, continued: true });
  }
  return parts;
}

/** Top-level blocks that start before an offset. A long list becomes several. */
export function blocksOf(
  children: readonly RootContent[],
  converter: Converter,
  continuation: Continuation,
  before = Infinity,
): MarkdownBlock[] {
  const blocks: MarkdownBlock[] = [];
  for (const [index, child] of children.entries()) {
    if (converter.from(child) >= before) break;
    if (child.type === 'table') {
      const table = index === 0 ? continuation.table : undefined;
      blocks.push({ id: table?.id ?? converter.from(child), node: converter.table(child, table?.node, before) });
    } else if (child.type === 'list') {
      const parts = partsOf(child, index === 0 ? continuation.list : undefined);
      for (const [part, { first, start, continued }] of parts.entries()) {
        const id = converter.from(child.children[first] ?? child);
        if (id >= before) break;
        const last = parts[part + 1]?.first ?? child.children.length;
        blocks.push({ id, node: converter.list(child, first, last, start, continued) });
      }
    } else {
      blocks.push({ id: converter.from(child), node: converter.block(child) });
    }
  }
  return blocks;
}

/** Context after a cut, given the blocks before it. */
export function continuationAfter(
  cut: Cut,
  children: readonly RootContent[],
  text: string,
  continuation: Continuation,
  last: MarkdownBlock | undefined,
): Continuation {
  const { inside } = cut;
  const before = children[0] === inside ? continuation : {};
  if (inside?.type === 'list') {
    const item = inside.children.findIndex((each) => lineStart(text, each) >= cut.at);
    return { list: (before.list ?? inside.start ?? 1) + item };
  }
  if (inside?.type === 'table' && last?.node.kind === 'table') {
    return { table: { id: last.id, head: before.table?.head ?? headOf(inside, text), node: last.node } };
  }
  return {};
}

/** The first two lines of a table. */
function headOf(table: Table, text: string): string {
  const from = lineStart(text, table);
  return text.slice(from, text.indexOf('\n', text.indexOf('\n', from) + 1) + 1);
}

const blankLineBefore = /(?:^|\n)[ \t\r]*\n$/;

/** The last offset before which nothing can change. `ended`: no text follows. */
export function lastCut(children: readonly RootContent[], text: string, ended: boolean, continuation: Continuation): Cut | null {
  const complete = (at: number) => ended || text.indexOf('\n', at) >= 0;
  for (let index = children.length - 1; index >= 0; index -= 1) {
    const child = children[index]!;
    const inside = placesInside(child, text, index === 0 ? continuation : {})
      .filter(complete)
      .at(-1);
    if (inside !== undefined) return { at: inside, inside: child };
    const previous = children[index - 1];
    // After indented code the parser reads some starts of lists differently than at the start.
    if (!previous || (previous.type === 'code' && !fenceStart.test(text.slice(previous.position!.start.offset!)))) continue;
    const at = lineStart(text, child);
    if (!blankLineBefore.test(text.slice(Math.max(0, at - 200), at))) continue;
    // A line at the margin without a marker cannot continue a block from before the blank line.
    if (complete(at) || /^[^\s\-+*\d]/.test(text.slice(at, at + 1))) return { at, inside: null };
  }
  return null;
}

/** Offsets inside a long block where it may be cut, in order. */
function placesInside(child: RootContent, text: string, continuation: Continuation): number[] {
  if (child.type === 'list') {
    return partsOf(child, continuation.list)
      .slice(1)
      .map(({ first }) => lineStart(text, child.children[first]!));
  }
  if (child.type !== 'table' || (continuation.table?.head ?? headOf(child, text)).length > longestHead) return [];
  const places: number[] = [];
  let from = child.children[1]?.position?.start.offset ?? 0;
  for (const row of child.children.slice(2)) {
    const at = row.position!.start.offset!;
    if (at - from < longestTablePart) continue;
    from = at;
    places.push(lineStart(text, row));
  }
  return places;
}

/** Start of a node's line. */
export function lineStart(text: string, node: Pick<RootContent, 'position'>): number {
  const at = node.position!.start.offset!;
  return at === 0 ? 0 : text.lastIndexOf('\n', at - 1) + 1;
}

/** Returns the position to cut a block that is too long: after a line, a word, or anywhere, in this order. */
export function forcedCut(text: string): number {
  for (const border of ['\n', ' ']) {
    const at = text.lastIndexOf(border);
    if (at > text.length / 2) return at + 1;
  }
  return /[\uD800-\uDBFF]$/.test(text) ? text.length - 1 : text.length;
}
