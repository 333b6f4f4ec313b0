// Whether a scrolled view follows its end: only while the reader is there. Numbers in, no DOM.

/** Where a scrolled element stands, in pixels. */
export interface ScrollPlace {
  top: number;
  height: number;
  viewport: number;
}

/** Distance from the end within which the reader counts as being there, in pixels. */
export const nearEnd = 24;

/** Follows the end until the reader scrolls away, and again once they come back. */
export class StickyEnd {
  #following = true;
  #lastTop = 0;

  /** Whether the view should stay at its end. */
  get following(): boolean {
    return this.#following;
  }

  /** The view has scrolled, by the reader or by us. */
  scrolled(place: ScrollPlace): void {
    const distance = place.height - place.viewport - place.top;
    const upwards = place.top < this.#lastTop - 0.5;
    this.#lastTop = place.top;
    if (distance <= 1) this.#following = true;
    else if (upwards) this.#following = false;
    else if (distance <= nearEnd) this.#following = true;
  }

  /** The reader was taken elsewhere. */
  leave(): void {
    this.#following = false;
  }

  /** The reader asked for the end. */
  follow(): void {
    this.#following = true;
  }
}
