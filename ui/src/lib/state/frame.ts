// Gathers what comes between two frames and hands it over once. No DOM but the page's own frames.

/** Runs `then` once, at the next good moment to draw. */
export type NextFrame = (then: () => void) => void;

/** The page's frames; a hidden page draws none, so a timer stands in. */
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

/** Items gathered until the next frame. */
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

  /** Hands over at once what was gathered. */
  flush(): void {
    const items = this.#items;
    this.#items = [];
    if (items.length > 0) this.#flush(items);
  }
}
