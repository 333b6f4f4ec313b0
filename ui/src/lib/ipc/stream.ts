// Delivers the events of a generation or measurement, each once and in order, over an unreliable channel. Events are
// numbered. A message may come twice, late, or never: duplicates are ignored, and after a gap or silence the missing
// events are requested. No DOM, no state of the window.

import type { ErrorInfo } from './schema.gen';
import { toErrorInfo } from './rpc';

/** A clock. Tests use their own. */
export interface Clock {
  /** Runs `then` after a time in milliseconds, unless the returned function is called first. */
  after(milliseconds: number, then: () => void): () => void;
}

/** The page's clock. */
export const pageClock: Clock = {
  after(milliseconds, then) {
    const timer = setTimeout(then, milliseconds);
    return () => clearTimeout(timer);
  },
};

/** Types of the last event: finished or failed. */
export interface StreamedEvent {
  type: string;
}

/** Events in order, and the index of the first one. */
export interface Numbered<E> {
  seq: number;
  events: readonly E[];
}

/** Functions that a stream needs. */
export interface StreamPort<E extends StreamedEvent> {
  /** Fetches the events numbered `from` and later. */
  snapshot(id: number, from: number): Promise<Numbered<E>>;
  /** Receives the next events. */
  deliver(events: E[]): void;
  /** Called when the stream can no longer be followed. Nothing comes after this. */
  lost(error: ErrorInfo): void;
  clock: Clock;
}

/** Silence before a snapshot is requested, in milliseconds. */
export const silenceMs = 2000;
/** Interval of snapshots once the channel has lost a message, in milliseconds. */
export const lossySilenceMs = 250;

/** Follows one generation or measurement until it has finished or failed. Later events, such as that an answer is saved
 * at last, are delivered too, but silence no longer causes a snapshot request. */
export class EventStream<E extends StreamedEvent> {
  readonly #port: StreamPort<E>;
  #id: number | null = null;
  #next = 0;
  #early = new Map<number, Numbered<E>>();
  #asking = false;
  #channelLoses = false;
  #over = false;
  #closed = false;
  #cancelTimer: () => void = () => {};

  constructor(port: StreamPort<E>) {
    this.#port = port;
  }

  /** Number of the next event. */
  get next(): number {
    return this.#next;
  }

  /** `true` if the last event has been delivered. */
  get over(): boolean {
    return this.#over;
  }

  /** Sets the number of what is followed. From now on silence is noticed. */
  begin(id: number): void {
    this.#id ??= id;
    this.#listen();
  }

  /** Receives a message of the channel for the generation or measurement `id`. */
  receive(id: number, message: Numbered<E>): void {
    if (this.#closed || (this.#id !== null && id !== this.#id)) return;
    this.#id = id;
    if (message.seq > this.#next) {
      this.#early.set(message.seq, message);
      void this.#ask();
    } else if (this.#take(message.seq, message.events)) {
      this.#channelLoses = false;
      this.#takeEarly();
    }
    this.#listen();
  }

  /** Stops following. */
  close(): void {
    this.#closed = true;
    this.#over = true;
    this.#early.clear();
    this.#cancelTimer();
  }

  /** Delivers the new events of a message that starts at `seq`, which must not be past the next event. */
  #take(seq: number, events: readonly E[]): boolean {
    const fresh = events.slice(this.#next - seq);
    if (fresh.length === 0) return false;
    this.#next += fresh.length;
    if (fresh.some(({ type }) => type === 'finished' || type === 'server_finished' || type === 'failed')) {
      this.#over = true;
      this.#cancelTimer();
    }
    this.#port.deliver(fresh);
    return true;
  }

  #takeEarly(): void {
    const waiting = [...this.#early.values()].sort((a, b) => a.seq - b.seq);
    for (const message of waiting) {
      if (this.#closed || message.seq > this.#next) break;
      this.#early.delete(message.seq);
      this.#take(message.seq, message.events);
    }
  }

  #listen(): void {
    this.#cancelTimer();
    if (this.#over) return;
    const wait = this.#channelLoses ? lossySilenceMs : silenceMs;
    this.#cancelTimer = this.#port.clock.after(wait, () => void this.#ask());
  }

  async #ask(): Promise<void> {
    if (this.#asking || this.#closed || this.#id === null) return;
    this.#asking = true;
    try {
      const { seq, events } = await this.#port.snapshot(this.#id, this.#next);
      if (this.#closed) return;
      if (this.#take(seq, events)) this.#channelLoses = true;
      this.#takeEarly();
    } catch (thrown) {
      if (this.#closed) return;
      // Nothing of the answer is missing once it is over.
      const over = this.#over;
      this.close();
      if (over) return;
      this.#port.lost(toErrorInfo(thrown));
    } finally {
      this.#asking = false;
    }
    if (this.#early.size > 0) this.#channelLoses = true;
    this.#listen();
  }
}
