// Plays recorded events to a channel: each batch after its recorded time, numbered as the engine numbers events,
// until the last one or a stop. No DOM.

/** Schedules a callback after a time in milliseconds. */
export type Later = (milliseconds: number, then: () => void) => void;

/** Speed and losses of a playback. */
export interface Playback {
  /** 1 as recorded, 2 twice as fast, Infinity without waiting. */
  speed: number;
  /** Indices of batches that are not delivered, from 0. */
  lost: ReadonlySet<number>;
  later: Later;
}

/** Batches to play, and their receiver. */
export interface Track<E> {
  batches: readonly (readonly E[])[];
  /** Milliseconds that a batch took when it was recorded. */
  duration: (batch: readonly E[]) => number;
  /** Adapts an event to this run. */
  own?: (event: E) => E;
  /** Receives every batch, undelivered ones included. */
  keep?: (seq: number, events: E[]) => void;
  deliver: (seq: number, events: E[]) => void;
}

/** A playback of recorded events. */
export class Playing<E extends { type: string }> {
  readonly #track: Track<E>;
  readonly #playback: Playback;
  readonly #played: E[] = [];
  #next = 0;
  #over = false;

  constructor(track: Track<E>, playback: Playback) {
    this.#track = track;
    this.#playback = playback;
  }

  /** All events so far, lost batches included. */
  get played(): E[] {
    return [...this.#played];
  }

  /** Schedules the next batch. */
  start(): void {
    const batch = this.#track.batches[this.#next];
    if (!batch || this.#over) return;
    this.#playback.later(this.#track.duration(batch) / this.#playback.speed, () => {
      if (this.#over) return;
      this.#send(batch, this.#playback.lost.has(this.#next));
      this.#next += 1;
      this.start();
    });
  }

  /** Ends with this event, which is never lost. */
  end(event: E, after = 0): void {
    if (this.#over) return;
    this.#over = true;
    this.#playback.later(after, () => this.#send([event], false));
  }

  #send(events: readonly E[], lost: boolean): void {
    const { own = (event: E) => event, keep, deliver } = this.#track;
    const batch = events.map(own);
    const seq = this.#played.length;
    this.#played.push(...batch);
    if (batch.some(({ type }) => type === 'finished' || type === 'failed')) this.#over = true;
    keep?.(seq, batch);
    if (!lost) deliver(seq, batch);
  }
}
