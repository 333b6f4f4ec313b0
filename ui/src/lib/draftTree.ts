// The draft of a round as a tree. Pure: events in, nodes out.

import type { DraftedEvent } from './ipc/schema.gen';

/** A drafted token and the tokens drafted after it. */
export interface DraftNode extends DraftedEvent {
  children: DraftNode[];
}

/** Roots of the draft, each with its descendants. */
export function draftTree(draft: readonly DraftedEvent[]): DraftNode[] {
  const nodes = draft.map((drafted): DraftNode => ({ ...drafted, children: [] }));
  const roots: DraftNode[] = [];
  for (const node of nodes) (node.parent === null ? roots : (nodes[node.parent]?.children ?? roots)).push(node);
  return roots;
}

/** Returns `true` if a token has siblings. A chain has none. */
export function branches(draft: readonly DraftedEvent[]): boolean {
  return draft.some(({ parent }, i) => parent !== (i === 0 ? null : i - 1));
}
