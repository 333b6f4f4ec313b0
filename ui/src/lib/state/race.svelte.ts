// Replay of a comparison's last turn: all lanes on one clock, each at its own times. No DOM.

import type { LaneConfig, TimedEvent } from '../ipc/schema.gen';
import { Answer } from './answer.svelte';

/** Display of a lane, live or replayed. */
export interface LaneView {
  readonly config: LaneConfig;
  readonly answer: Answer;
  /** Milliseconds of its own time so far. */
  readonly at: number;
}

/** Speeds of a replay, relative to real time. */
export const raceSpeeds = [0.5, 1, 2] as const;
type RaceSpeed = (typeof raceSpeeds)[number];

/** A lane of a replay. */
class RacingLane implements LaneView {
  readonly config: LaneConfig;
  answer = $state.raw(new Answer());
  at = $state(0);
  readonly #events: readonly TimedEvent[];
  #next = 0;

  constructor(config: LaneConfig, events: readonly TimedEvent[]) {
    this.config = config;
    this.#events = events;
  }

  /** End of its last event, in milliseconds. */
  get end(): number {
    return this.#events.at(-1)?.at_ms ?? 0;
  }

  /** Shows its text at a time. */
  goTo(at: number): void {
    const before = this.#events[this.#next - 1];
    if (before && before.at_ms > at) {
      this.answer = new Answer();
      this.#next = 0;
    }
    const from = this.#next;
    while ((this.#events[this.#next]?.at_ms ?? Infinity) <= at) this.#next += 1;
    const events = this.#events.slice(from, this.#next);
    if (events.length > 0) this.answer.apply(events.map(({ event }) => event));
    this.at = Math.min(at, this.end);
  }
}

/** A replay. */
export class Race {
  readonly lanes: readonly RacingLane[];
  /** `false` if the recordings are of different turns, which cannot be raced. */
  readonly fair: boolean;
  /** End of the last lane, in milliseconds. */
  readonly length: number;
  /** The clock, in milliseconds. */
  at = $state(0);
  playing = $state(false);
  speed = $state<RaceSpeed>(1);

  /** Starts at the end, with the complete texts. */
  constructor(configs: readonly LaneConfig[], recordings: readonly (readonly TimedEvent[])[], fair = true) {
    this.fair = fair;
    this.lanes = configs.map((config, i) => new RacingLane(config, recordings[i] ?? []));
    this.length = Math.max(0, ...this.lanes.map((lane) => lane.end));
    this.seek(this.length);
  }

  /** Sets the clock. */
  seek(at: number): void {
    this.at = Math.min(this.length, Math.max(0, at));
    for (const lane of this.lanes) lane.goTo(this.at);
  }

  /** Plays; from the beginning if it is at its end. */
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

  /** Advances the clock by the viewer's elapsed milliseconds. */
  advance(milliseconds: number): void {
    if (!this.playing) return;
    this.seek(this.at + milliseconds * this.speed);
    if (this.at >= this.length) this.playing = false;
  }
}
