// Frames of the page, and buffers that are flushed once per frame. No DOM but these frames.

import { pageClock, type Clock } from '../ipc/stream';

/** Schedules a callback for the next frame. */
export type NextFrame = (then: () => void) => void;

/** The page's frames. A hidden page has none, so a timer replaces them. */
export const pageFrame: NextFrame = (then) => {
  let done = false;
  const once = () => {
    if (done) return;
    done = true;
    cancelAnimationFrame(frame);
    clearTimeout(timer);
    then();
  };
  const frame = requestAnimationFrame(once);
  const timer = setTimeout(once, 200);
};

/** A buffer that is flushed once per frame. */
export class FrameBuffer<T> {
  readonly #nextFrame: NextFrame;
  readonly #flush: (items: T[]) => void;
  #items: T[] = [];

  constructor(nextFrame: NextFrame, flush: (items: T[]) => void) {
    this.#nextFrame = nextFrame;
    this.#flush = flush;
  }

  /** Adds items to the next flush. */
  add(items: readonly T[]): void {
    if (this.#items.length === 0 && items.length > 0) this.#nextFrame(() => this.flush());
    this.#items.push(...items);
  }

  /** Flushes at once. */
  flush(): void {
    const items = this.#items;
    this.#items = [];
    if (items.length > 0) this.#flush(items);
  }
}

/** The clock and frames; tests use their own. */
export interface Pace {
  clock: Clock;
  nextFrame: NextFrame;
}

/** The clock and frames of the page. */
export const pagePace: Pace = { clock: pageClock, nextFrame: pageFrame };
