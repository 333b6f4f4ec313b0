// The last turn of a comparison once more: every lane at its own times, all on one clock. No DOM.

import type { MethodConfig, TimedEvent } from '../ipc/schema.gen';
import { Answer } from './answer.svelte';

/** What the screen shows of a lane, live and in a race. */
export interface LaneView {
  readonly contender: MethodConfig;
  readonly answer: Answer;
  /** Milliseconds of its own time so far. */
  readonly at: number;
}

/** How fast a race goes, in times its own speed. */
export const raceSpeeds = [0.5, 1, 2] as const;
export type RaceSpeed = (typeof raceSpeeds)[number];

/** A lane of a race. */
class RacingLane implements LaneView {
  readonly contender: MethodConfig;
  answer = $state.raw(new Answer());
  at = $state(0);
  readonly #events: readonly TimedEvent[];
  #next = 0;

  constructor(contender: MethodConfig, events: readonly TimedEvent[]) {
    this.contender = contender;
    this.#events = events;
  }

  /** When it has said everything. */
  get end(): number {
    return this.#events.at(-1)?.at_ms ?? 0;
  }

  /** Shows what it had said by then. */
  goTo(at: number): void {
    const before = this.#events[this.#next - 1];
    if (before && before.at_ms > at) {
      this.answer = new Answer();
      this.#next = 0;
    }
    const from = this.#next;
    while ((this.#events[this.#next]?.at_ms ?? Infinity) <= at) this.#next += 1;
    const said = this.#events.slice(from, this.#next);
    if (said.length > 0) this.answer.apply(said.map(({ event }) => event));
    this.at = Math.min(at, this.end);
  }
}

/** A race. */
export class Race {
  readonly lanes: readonly RacingLane[];
  /** When the last lane is through, in milliseconds. */
  readonly length: number;
  /** What the clock shows, in milliseconds. */
  at = $state(0);
  playing = $state(false);
  speed = $state<RaceSpeed>(1);

  /** Begins at the end, with all that was said. */
  constructor(contenders: readonly MethodConfig[], recordings: readonly (readonly TimedEvent[])[]) {
    this.lanes = contenders.map((contender, i) => new RacingLane(contender, recordings[i] ?? []));
    this.length = Math.max(0, ...this.lanes.map((lane) => lane.end));
    this.seek(this.length);
  }

  /** Sets the clock. */
  seek(at: number): void {
    this.at = Math.min(this.length, Math.max(0, at));
    for (const lane of this.lanes) lane.goTo(this.at);
  }

  /** Goes on; from the beginning once it was over. */
  play(): void {
    if (this.at >= this.length) this.seek(0);
    this.playing = true;
  }

  pause(): void {
    this.playing = false;
  }

  restart(): void {
    this.seek(0);
  }

  /** So many milliseconds have passed for the one who watches. */
  advance(milliseconds: number): void {
    if (!this.playing) return;
    this.seek(this.at + milliseconds * this.speed);
    if (this.at >= this.length) this.playing = false;
  }
}
