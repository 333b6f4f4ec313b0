// A clock for tests of streams.

import type { Clock } from './stream';

/** A clock that a test advances. */
export class HandClock implements Clock {
  #now = 0;
  #waiting: { at: number; then: () => void }[] = [];

  after(milliseconds: number, then: () => void): () => void {
    const entry = { at: this.#now + milliseconds, then };
    this.#waiting.push(entry);
    return () => void (this.#waiting = this.#waiting.filter((other) => other !== entry));
  }

  /** Advances the clock by a time in milliseconds, and lets pending promises settle. */
  async advance(milliseconds: number): Promise<void> {
    this.#now += milliseconds;
    const due = this.#waiting.filter((entry) => entry.at <= this.#now);
    this.#waiting = this.#waiting.filter((entry) => entry.at > this.#now);
    for (const entry of due) entry.then();
    for (let turn = 0; turn < 10; turn += 1) await Promise.resolve();
  }

  /** Number of waiting callbacks. */
  get waiting(): number {
    return this.#waiting.length;
  }
}
