// Questions that wait until the answer of another conversation has ended, each with its conversation. No DOM.

import type { MessageDrafts } from './messageDrafts.svelte';
import type { Place, Thread, Turn } from './thread.svelte';

/** A queued question, as the window shows it. */
export interface Queued {
  readonly turn: Turn;
  /** Number of its conversation; null while it is new. */
  readonly conversation: number | null;
  /** `true` if its conversation is on screen. */
  readonly here: boolean;
}

/** A queued question, its conversation, and the place of its draft. */
interface Waiting {
  readonly thread: Thread;
  readonly turn: Turn;
  readonly place: Place;
}

/** The queue. A conversation has at most one question in it, which its thread shows. */
export class QuestionQueue {
  /** The queued questions, the next one first. */
  waiting = $state.raw<readonly Waiting[]>([]);

  readonly #messageDrafts: MessageDrafts;

  constructor(messageDrafts: MessageDrafts) {
    this.#messageDrafts = messageDrafts;
  }

  /** Adds the question of a conversation, at the end or as the next one. It is stored as a draft while it waits. */
  add(thread: Thread, turn: Turn, first: boolean): void {
    const { place } = thread;
    this.#messageDrafts.ask(place, turn);
    thread.queued = turn;
    thread.show();
    const added = { thread, turn, place };
    this.waiting = first ? [added, ...this.waiting] : [...this.waiting, added];
  }

  /** Removes a question and returns its conversation; undefined if it is not queued. */
  remove(turn: Turn): Thread | undefined {
    const found = this.waiting.find((waiting) => waiting.turn === turn);
    if (!found) return undefined;
    const { thread, place } = found;
    this.#messageDrafts.asked(place);
    this.waiting = this.waiting.filter((waiting) => waiting !== found);
    thread.queued = null;
    thread.show();
    return thread;
  }

  /** The conversation of a queued question. */
  threadOf(turn: Turn): Thread | undefined {
    return this.waiting.find((waiting) => waiting.turn === turn)?.thread;
  }
}
