// The reader's place in a conversation: its end while that grows, or else a turn that keeps its place on screen.

import { StickyEnd } from '../../lib/state/sticky';

/** The place in a column of turns that scrolls. Elements are known once they are drawn. */
export class ReadingPlace {
  /** `true` while the end is followed. */
  following = $state(true);
  /** `true` if the end is more than half a screen below. */
  far = $state(false);

  readonly #sticky = new StickyEnd();
  readonly #scroller: () => HTMLElement;
  readonly #column: () => HTMLElement;
  /** The topmost turn on screen, and its distance from the top of the column, which only layout changes. */
  #topmost: { turn: Element; offset: number } | null = null;

  constructor(scroller: () => HTMLElement, column: () => HTMLElement) {
    this.#scroller = scroller;
    this.#column = column;
  }

  /** Keeps the place when sizes change. Returns the function that ends this. */
  watch(): () => void {
    const watcher = new ResizeObserver(() => {
      if (this.#sticky.following) this.#toEnd();
      else this.#keep();
      this.#measure();
    });
    watcher.observe(this.#column());
    watcher.observe(this.#scroller());
    return () => watcher.disconnect();
  }

  /** Called after any scroll. */
  scrolled(): void {
    // Turns may have changed since the last frame, which the resize observer reports only after this.
    if (!this.#sticky.following) this.#keep();
    this.#note();
    const { scrollTop, scrollHeight, clientHeight } = this.#scroller();
    this.#sticky.scrolled({ top: scrollTop, height: scrollHeight, viewport: clientHeight });
    this.following = this.#sticky.following;
    this.#measure();
  }

  /** Scrolls to the end, and follows it. */
  follow(): void {
    this.#sticky.follow();
    this.following = true;
    this.#toEnd();
  }

  /** Stops following the end. */
  leave(): void {
    this.#sticky.leave();
    this.following = false;
  }

  /** Scrolls by some pixels to a new place. */
  scrollBy(pixels: number): void {
    this.#scroller().scrollTop += pixels;
    this.#note();
  }

  #toEnd(): void {
    const scroller = this.#scroller();
    scroller.scrollTop = scroller.scrollHeight;
  }

  #measure(): void {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroller();
    this.far = scrollHeight - scrollTop - clientHeight > clientHeight / 2;
  }

  #offsetOf(turn: Element): number {
    return turn.getBoundingClientRect().top - this.#column().getBoundingClientRect().top;
  }

  #note(): void {
    const { top } = this.#scroller().getBoundingClientRect();
    const turn = [...this.#column().children].find((child) => child.getBoundingClientRect().bottom > top);
    this.#topmost = turn ? { turn, offset: this.#offsetOf(turn) } : null;
  }

  /** Keeps the reading position when turns above change their height. */
  #keep(): void {
    if (!this.#topmost?.turn.isConnected) return;
    const moved = this.#offsetOf(this.#topmost.turn) - this.#topmost.offset;
    if (Math.abs(moved) < 1) return;
    this.#topmost.offset += moved;
    this.#scroller().scrollTop += moved;
  }
}
