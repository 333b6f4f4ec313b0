// Decides whether a scrolling view follows its end: only while the reader is there. Numbers only, no DOM.

/** Scroll position of an element, in pixels. */
interface ScrollPlace {
  top: number;
  height: number;
  viewport: number;
}

/** Distance from the end that counts as being there, in pixels. */
const nearEnd = 24;

/** Follows the end until the reader scrolls away, and again when they return. */
export class StickyEnd {
  #following = true;
  #lastTop = 0;

  /** `true` if the view follows its end. */
  get following(): boolean {
    return this.#following;
  }

  /** Called after any scroll. */
  scrolled(place: ScrollPlace): void {
    const distance = place.height - place.viewport - place.top;
    const upwards = place.top < this.#lastTop - 0.5;
    this.#lastTop = place.top;
    if (distance <= 1) this.#following = true;
    else if (upwards) this.#following = false;
    else if (distance <= nearEnd) this.#following = true;
  }

  /** Called when the view jumps elsewhere. */
  leave(): void {
    this.#following = false;
  }

  /** Called when the reader asks for the end. */
  follow(): void {
    this.#following = true;
  }
}
