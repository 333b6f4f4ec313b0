// Loads the saved events of answers on screen: the last one at once, earlier ones when the reader is near. No DOM.

import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { Answer } from './answer.svelte';
import type { Pace } from './frame';
import type { Thread, Turn } from './thread.svelte';

/** Interval in milliseconds, and number of attempts without news, of polling an answer that another page started. */
const pollMs = 250;
const pollAttempts = 80;

/** Answers at the end of a branch that are fetched at once. Earlier ones are fetched when near. */
const fetchedAtOnce = 1;

/** The answers on screen. */
export interface Shown {
  /** The conversation on screen. */
  thread: () => Thread;
  /** Returns `true` if an answer is being written, so that its events come by themselves. */
  isWritten: (answer: Answer) => boolean;
}

/** Loads the answers of the conversation on screen. */
export class AnswerLoader {
  readonly #host: Host;
  readonly #pace: Pace;
  readonly #shown: Shown;
  /** Answers whose tokens are wanted, the most wanted last. */
  readonly #near = new Set<Answer>();
  #fetching = false;

  constructor(host: Host, pace: Pace, shown: Shown) {
    this.#host = host;
    this.#pace = pace;
    this.#shown = shown;
  }

  /** Forgets the near answers: another conversation is on screen. */
  leave(): void {
    this.#near.clear();
  }

  /** Reports whether a turn is near the screen. Its tokens are fetched then. */
  near(turn: Turn, isNear: boolean): void {
    this.#near.delete(turn.answer);
    if (!isNear) return;
    this.#near.add(turn.answer);
    if (!this.#fetching) void this.#fetchNear();
  }

  /** Fetches one answer per frame, the latest first, because the reader is there. */
  async #fetchNear(): Promise<void> {
    this.#fetching = true;
    for (let answer = [...this.#near].at(-1); answer; answer = [...this.#near].at(-1)) {
      this.#near.delete(answer);
      const turn = this.#shown.thread().turns.find((other) => other.answer === answer);
      if (!turn || !this.#missing(turn)) continue;
      await this.fetch(turn);
      await new Promise<void>((resolve) => this.#pace.nextFrame(resolve));
    }
    this.#fetching = false;
  }

  /** Fetches the last answers on screen if they are missing. */
  async fetchLast(): Promise<void> {
    const missing = this.#shown
      .thread()
      .turns.slice(-fetchedAtOnce)
      .filter((turn) => this.#missing(turn));
    await Promise.all(missing.map((turn) => this.fetch(turn)));
  }

  #missing({ answer, answerId }: Turn): boolean {
    return answerId !== null && answer.phase === 'waiting' && !this.#shown.isWritten(answer);
  }

  /** Fetches an answer on screen. */
  async fetch({ answer, answerId }: Turn): Promise<void> {
    const thread = this.#shown.thread();
    if (answerId === null) return;
    try {
      const events = await call(this.#host, 'answer_events', { message: answerId });
      if (answer.phase !== 'waiting') return;
      answer.apply(events);
      const state = thread.stateOf(answerId);
      if (state === 'streaming' && !answer.over) this.#poll(thread, answer, answerId, events.length, pollAttempts);
      // Imported from a file with text alone: the saved state counts.
      else if (events.length === 0 && (state === 'complete' || state === 'failed'))
        answer.end(state === 'complete' ? 'finished' : 'failed');
      else answer.interrupt();
    } catch (thrown) {
      answer.fail(toErrorInfo(thrown));
    }
  }

  /** Polls an answer that the engine writes and this page does not follow, as after a reload. */
  #poll(thread: Thread, answer: Answer, message: number, known: number, left: number): void {
    this.#pace.clock.after(pollMs, () => {
      if (this.#shown.thread() !== thread || !thread.isAnswer(answer, message)) return;
      call(this.#host, 'answer_events', { message }).then(
        (events) => {
          answer.apply(events.slice(known));
          if (answer.over) return;
          if (events.length > known) this.#poll(thread, answer, message, events.length, pollAttempts);
          else if (left > 0) this.#poll(thread, answer, message, known, left - 1);
          else answer.interrupt();
        },
        (thrown: unknown) => answer.fail(toErrorInfo(thrown)),
      );
    });
  }
}
