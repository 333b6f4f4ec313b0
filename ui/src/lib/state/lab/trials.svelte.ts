// Rounds at one position, by acceptance rule: one, some more, or as many as a check asks for. They are asked
// for in chunks with a frame between, so that the law fills up before the eyes and a stop works at once. No DOM.

import type { Host } from '../../host';
import { call, toErrorInfo } from '../../ipc/rpc';
import type { AcceptanceRule, ErrorInfo, LabRounds } from '../../ipc/schema.gen';
import { acceptanceRules, lossless, type RuleName } from '../../rules';
import { pageFrame, type NextFrame } from '../frame';

/** Rounds under way. */
export interface Running {
  rules: readonly RuleName[];
  /** Rounds asked for and answered, of all rules together. */
  done: number;
  total: number;
}

/** Rounds of one press of "run". */
export const runOf = 1000;
const chunkOf = 100;
/** Numbers of rounds that a check can have. */
export const checkSizes = [1000, 10_000, 100_000] as const;
/** So many pictures of a check that is under way, at least. */
const pictures = 20;
const largestChunk = 2000;

/** What came out at a position so far, under each rule. */
export class Trials {
  results = $state.raw<Partial<Record<RuleName, LabRounds>>>({});
  running = $state.raw<Running | null>(null);
  error = $state.raw<ErrorInfo | null>(null);

  readonly #host: Host;
  readonly #nextFrame: NextFrame;
  /** Counts what was begun; what is not the last any more goes on no longer. */
  #begun = 0;
  #position: number | null = null;

  constructor(host: Host, nextFrame: NextFrame = pageFrame) {
    this.#host = host;
    this.#nextFrame = nextFrame;
  }

  /** Looks at another position, where nothing was drawn yet; null at none. */
  at(position: number | null): void {
    this.stop();
    this.#position = position;
    this.results = {};
    this.error = null;
  }

  /** One round by rejection sampling, to be looked at. */
  async one(): Promise<void> {
    this.stop();
    await this.#ask(lossless, 1, false);
  }

  /** Many rounds by rejection sampling. */
  async run(): Promise<void> {
    await this.#many([lossless], runOf, chunkOf, false);
  }

  /** Forgets the rounds by rejection sampling and begins with one. */
  async startOver(): Promise<void> {
    this.stop();
    await this.#ask(lossless, 1, true);
  }

  /** So many rounds under every rule, from the beginning. */
  async check(rounds: number): Promise<void> {
    await this.#many(acceptanceRules, rounds, Math.min(largestChunk, rounds / pictures), true);
  }

  /** Asks for no more. */
  stop(): void {
    this.#begun += 1;
    this.running = null;
  }

  async #many(rules: readonly AcceptanceRule[], rounds: number, chunk: number, afresh: boolean): Promise<void> {
    this.stop();
    const run = this.#begun;
    const names = rules.map(({ name }) => name);
    const total = rounds * rules.length;
    this.running = { rules: names, done: 0, total };
    for (let done = 0; done < rounds; done += chunk) {
      for (const rule of rules) {
        const went = await this.#ask(rule, Math.min(chunk, rounds - done), afresh && done === 0);
        if (this.#begun !== run) return;
        if (!went) return this.stop();
        this.running = { rules: names, done: (this.running?.done ?? 0) + Math.min(chunk, rounds - done), total };
      }
      await new Promise<void>((resolve) => this.#nextFrame(resolve));
      if (this.#begun !== run) return;
    }
    this.running = null;
  }

  /** Asks for more rounds, and shows what came out, also of rounds that were stopped meanwhile. */
  async #ask(rule: AcceptanceRule, rounds: number, afresh: boolean): Promise<boolean> {
    const position = this.#position;
    if (position === null) return false;
    this.error = null;
    try {
      const result = await call(this.#host, 'lab_rounds', { request: { position, rule, rounds, afresh } });
      if (this.#position !== position) return false;
      this.results = { ...this.results, [rule.name]: result };
      return true;
    } catch (thrown) {
      if (this.#position === position) this.error = toErrorInfo(thrown);
      return false;
    }
  }
}
