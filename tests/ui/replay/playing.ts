// Playing recorded events to a channel: each batch after the time it took, numbered as the engine numbers them,
// until one of them ends it or it is stopped. No page here.

/** Sets up something to happen after a time in milliseconds. */
export type Later = (milliseconds: number, then: () => void) => void;

/** How a recording is played. */
export interface Playback {
  /** 1 as recorded, 2 twice as fast, Infinity without waiting. */
  speed: number;
  /** Numbers of the batches that get lost on the way, from 0. */
  lost: ReadonlySet<number>;
  later: Later;
}

/** What is played, and to whom. */
export interface Score<E> {
  batches: readonly (readonly E[])[];
  /** Milliseconds that a batch took when it was recorded. */
  duration: (batch: readonly E[]) => number;
  /** An event as this run of it says it. */
  own?: (event: E) => E;
  /** Hears every batch, those that get lost on the way to `deliver` included. */
  keep?: (seq: number, events: E[]) => void;
  deliver: (seq: number, events: E[]) => void;
}

/** Recorded events being played. */
export class Playing<E extends { type: string }> {
  readonly #score: Score<E>;
  readonly #playback: Playback;
  readonly #said: E[] = [];
  #next = 0;
  #over = false;

  constructor(score: Score<E>, playback: Playback) {
    this.#score = score;
    this.#playback = playback;
  }

  /** Everything said so far, lost batches included. */
  get said(): E[] {
    return [...this.#said];
  }

  /** Says the next batch after its time. */
  start(): void {
    const batch = this.#score.batches[this.#next];
    if (!batch || this.#over) return;
    this.#playback.later(this.#score.duration(batch) / this.#playback.speed, () => {
      if (this.#over) return;
      this.#say(batch, this.#playback.lost.has(this.#next));
      this.#next += 1;
      this.start();
    });
  }

  /** Ends it with this event, which is never lost. */
  end(event: E, after = 0): void {
    if (this.#over) return;
    this.#over = true;
    this.#playback.later(after, () => this.#say([event], false));
  }

  #say(events: readonly E[], lost: boolean): void {
    const { own = (event: E) => event, keep, deliver } = this.#score;
    const said = events.map(own);
    const seq = this.#said.length;
    this.#said.push(...said);
    if (said.some(({ type }) => type === 'finished' || type === 'failed')) this.#over = true;
    keep?.(seq, said);
    if (!lost) deliver(seq, said);
  }
}
