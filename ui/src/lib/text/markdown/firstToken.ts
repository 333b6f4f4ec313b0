// The first visible token of an answer, which Tab reaches.

import type { MarkdownBlock } from './nodes';

/** Its index; -1 if none is visible. */
export function firstToken(blocks: readonly MarkdownBlock[]): number {
  for (const block of blocks) {
    const found = firstIn(block.node);
    if (found >= 0) return found;
  }
  return -1;
}

/** In every node, the order of keys is reading order. */
function firstIn(value: unknown): number {
  if (typeof value !== 'object' || value === null) return -1;
  if ('token' in value && 'first' in value) return value.first === true ? Number(value.token) : -1;
  for (const part of Object.values(value)) {
    const found = firstIn(part);
    if (found >= 0) return found;
  }
  return -1;
}
