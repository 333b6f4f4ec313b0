// Distinguishes the answer to the latest request from late answers to earlier ones.

/** Requests of which only the latest counts. */
export class Latest {
  #count = 0;

  /** Starts a request, which makes earlier ones stale. Returns a check that it is still the latest. */
  start(): () => boolean {
    this.cancel();
    return this.watch();
  }

  /** Returns a check that nothing was started or cancelled since this call. */
  watch(): () => boolean {
    const count = this.#count;
    return () => count === this.#count;
  }

  /** Makes all requests so far stale. */
  cancel(): void {
    this.#count += 1;
  }
}
