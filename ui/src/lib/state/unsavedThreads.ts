// Conversations that were left with answers that are not saved. The page has the only copy of those. No DOM.

import type { Thread } from './thread.svelte';

/** Left conversations, by number, until their answers are saved. */
export class UnsavedThreads {
  readonly #threads = new Map<number, Thread>();

  /** Keeps a conversation if an answer of it is not saved. */
  keep(thread: Thread): void {
    if (thread.id !== null && thread.unsaved) this.#threads.set(thread.id, thread);
  }

  /** The conversation with a number; undefined if all its answers are saved. */
  at(id: number): Thread | undefined {
    const thread = this.#threads.get(id);
    if (thread?.unsaved) return thread;
    this.#threads.delete(id);
    return undefined;
  }

  /** Forgets all conversations. */
  clear(): void {
    this.#threads.clear();
  }
}
