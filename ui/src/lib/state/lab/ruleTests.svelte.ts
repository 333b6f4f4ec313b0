// Sampled rounds at a position by acceptance rule. Requested in chunks with a frame between, so that the chart fills
// visibly and a stop works at once. No DOM.

import type { Host } from '../../host';
import { call, toErrorInfo } from '../../ipc/rpc';
import type { AcceptanceRule, ErrorInfo, LabRounds } from '../../ipc/schema.gen';
import { Latest } from '../../latest';
import { acceptanceRules, lossless, type RuleName } from '../../rules';
import { pageFrame, type NextFrame } from '../frame';

/** Rounds under way. */
export interface Running {
  rules: readonly RuleName[];
  /** Rounds done, of all rules together. */
  done: number;
  total: number;
}

/** Rounds per press of "run". */
export const runOf = 1000;
/** Sizes of a check. */
export const checkSizes = [1000, 10_000, 100_000] as const;
/** Least number of frames of a check. */
const pictures = 20;
/** First and largest number of rounds per request. Over a whole vocabulary a round takes up to a millisecond. */
const firstChunk = 100;
const largestChunk = 1000;
/** Chunks grow while they take less than this. */
const shortChunkMs = 50;

/** Sampled rounds at a position, by rule. */
export class RuleTests {
  results = $state.raw<Partial<Record<RuleName, LabRounds>>>({});
  running = $state.raw<Running | null>(null);
  error = $state.raw<ErrorInfo | null>(null);

  readonly #host: Host;
  readonly #nextFrame: NextFrame;
  readonly #now: () => number;
  /** Runs of many rounds. Only the latest continues. */
  readonly #runs = new Latest();
  /** Starts from zero rounds. Answers to requests before the latest start are dropped. */
  readonly #resets = new Latest();
  /** The last request. Requests are sent one after another. */
  #last: Promise<unknown> = Promise.resolve();
  #position: number | null = null;

  constructor(host: Host, nextFrame: NextFrame = pageFrame, now: () => number = () => performance.now()) {
    this.#host = host;
    this.#nextFrame = nextFrame;
    this.#now = now;
  }

  /** Changes the position, without any rounds; null for none. */
  at(position: number | null): void {
    this.stop();
    this.#resets.cancel();
    this.#position = position;
    this.results = {};
    this.error = null;
  }

  /** Samples one round by rejection sampling. */
  async one(): Promise<void> {
    this.stop();
    await this.#ask(lossless, 1, false);
  }

  /** Samples many rounds by rejection sampling. */
  async run(): Promise<void> {
    await this.#many([lossless], runOf, firstChunk, false);
  }

  /** Resets rejection sampling and samples one round. */
  async startOver(): Promise<void> {
    this.stop();
    this.#resets.cancel();
    await this.#ask(lossless, 1, true);
  }

  /** Samples a number of rounds under every rule, from zero. */
  async check(rounds: number): Promise<void> {
    await this.#many(acceptanceRules, rounds, Math.min(largestChunk, rounds / pictures), true);
  }

  /** Stops requesting. */
  stop(): void {
    this.#runs.cancel();
    this.running = null;
  }

  /** Samples rounds under some rules, in chunks of at most `largest`. */
  async #many(rules: readonly AcceptanceRule[], rounds: number, largest: number, restart: boolean): Promise<void> {
    this.stop();
    if (restart) this.#resets.cancel();
    const wanted = this.#runs.start();
    const names = rules.map(({ name }) => name);
    const total = rounds * rules.length;
    this.running = { rules: names, done: 0, total };
    let chunk = Math.min(firstChunk, largest);
    for (let done = 0; done < rounds;) {
      const asked = Math.min(chunk, rounds - done);
      let slowest = 0;
      for (const rule of rules) {
        const from = this.#now();
        const went = await this.#ask(rule, asked, restart && done === 0, wanted);
        if (!wanted()) return;
        if (!went) return this.stop();
        slowest = Math.max(slowest, this.#now() - from);
        this.running = { rules: names, done: (this.running?.done ?? 0) + asked, total };
      }
      done += asked;
      if (slowest < shortChunkMs) chunk = Math.min(largest, 2 * chunk);
      await new Promise<void>((resolve) => this.#nextFrame(resolve));
      if (!wanted()) return;
    }
    this.running = null;
  }

  /** Requests rounds after the previous request, if they are still wanted. */
  #ask(rule: AcceptanceRule, rounds: number, restart: boolean, wanted: () => boolean = () => true): Promise<boolean> {
    const current = this.#resets.watch();
    const asked = this.#last.then(() => (current() && wanted() ? this.#request(rule, rounds, restart, current) : false));
    this.#last = asked;
    return asked;
  }

  /** Shows the response, also of stopped rounds, because the engine counts them. */
  async #request(rule: AcceptanceRule, rounds: number, restart: boolean, current: () => boolean): Promise<boolean> {
    const position = this.#position;
    if (position === null) return false;
    this.error = null;
    try {
      const result = await call(this.#host, 'lab_rounds', { request: { position, rule, rounds, restart } });
      if (!current()) return false;
      this.results = { ...this.results, [rule.name]: result };
      return true;
    } catch (thrown) {
      if (current()) this.error = toErrorInfo(thrown);
      return false;
    }
  }
}
