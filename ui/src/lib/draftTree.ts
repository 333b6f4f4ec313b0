// What was drafted in a round, as the tree it is. Pure: events in, nodes out.

import type { DraftedEvent } from './ipc/schema.gen';

/** A drafted token and what was drafted behind it. */
export interface DraftNode extends DraftedEvent {
  children: DraftNode[];
}

/** The drafted tokens that follow the last token before the round, each with what follows it. */
export function draftTree(draft: readonly DraftedEvent[]): DraftNode[] {
  const nodes = draft.map((drafted): DraftNode => ({ ...drafted, children: [] }));
  const roots: DraftNode[] = [];
  for (const node of nodes) (node.parent === null ? roots : (nodes[node.parent]?.children ?? roots)).push(node);
  return roots;
}

/** Whether some token has siblings; a chain has none. */
export function branches(draft: readonly DraftedEvent[]): boolean {
  return draft.some(({ parent }, i) => parent !== (i === 0 ? null : i - 1));
}
