// Messages as a tree: the path to a leaf, and its branches. Pure.

import type { StoredMessage } from '../ipc/schema.gen';

/** Messages with the same parent, and the shown one. */
export interface Siblings {
  ids: readonly number[];
  at: number;
}

/** Messages from the first one to `leaf`, oldest first. */
export function pathTo(messages: readonly StoredMessage[], leaf: number | null): StoredMessage[] {
  const byId = new Map(messages.map((message) => [message.id, message]));
  const path: StoredMessage[] = [];
  let at = leaf === null ? undefined : byId.get(leaf);
  // A parent is older than its child, so this ends.
  while (at && path.length <= messages.length) {
    path.push(at);
    at = at.parent === null ? undefined : byId.get(at.parent);
  }
  return path.reverse();
}

/** The newest message below this one, or itself. Shown when its branch is chosen. */
export function newestBelow(messages: readonly StoredMessage[], id: number): number {
  let at = id;
  for (;;) {
    const child = messages.filter((message) => message.parent === at).at(-1);
    if (!child) return at;
    at = child.id;
  }
}

/** Siblings of a message with the same role. */
export function siblingsOf(messages: readonly StoredMessage[], message: StoredMessage): Siblings {
  const ids = messages.filter((other) => other.parent === message.parent && other.role === message.role).map((other) => other.id);
  return { ids, at: ids.indexOf(message.id) };
}
