// Messages as a tree by parent: the branch that is read, and the branches beside it. Pure.

import type { StoredMessage } from '../ipc/schema.gen';

/** The messages that follow the same one, and which of them is shown. */
export interface Siblings {
  ids: readonly number[];
  at: number;
}

/** The messages from the first one to `leaf`, oldest first. */
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

/** The newest message below this one, or itself: what is shown when its branch is chosen. */
export function newestBelow(messages: readonly StoredMessage[], id: number): number {
  let at = id;
  for (;;) {
    const child = messages.filter((message) => message.parent === at).at(-1);
    if (!child) return at;
    at = child.id;
  }
}

/** A message among those that follow the same one and are of the same speaker. */
export function siblingsOf(messages: readonly StoredMessage[], message: StoredMessage): Siblings {
  const ids = messages
    .filter((other) => other.parent === message.parent && other.role === message.role)
    .map((other) => other.id);
  return { ids, at: ids.indexOf(message.id) };
}
