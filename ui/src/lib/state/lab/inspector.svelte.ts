// An answer by rounds, from its saved events, and what-if results from the engine. No DOM.

import type { Host } from '../../host';
import { call, toErrorInfo } from '../../ipc/rpc';
import type { ErrorInfo, GenerationEvent, RoundEvent, WhatIf } from '../../ipc/schema.gen';
import { Latest } from '../../latest';

/** The inspected answer. */
export class Inspector {
  /** Its message; null for none. */
  message = $state<number | null>(null);
  rounds = $state.raw<readonly RoundEvent[]>([]);
  /** Index of the shown round. */
  at = $state(0);
  /** Longest draft of the what-if. */
  maxDraft = $state(6);
  /** Temperature of the what-if; null for the actual one. */
  temperature = $state<number | null>(null);
  whatIf = $state.raw<WhatIf | null>(null);
  error = $state.raw<ErrorInfo | null>(null);
  loading = $state(false);
  round = $derived(this.rounds[this.at] ?? null);

  readonly #host: Host;
  readonly #openings = new Latest();
  readonly #questions = new Latest();

  constructor(host: Host) {
    this.#host = host;
  }

  /** Loads an answer. The same one keeps its round and shows new ones. */
  async open(message: number | null): Promise<void> {
    const isLatest = this.#openings.start();
    const same = message === this.message;
    this.message = message;
    this.error = null;
    if (!same) {
      this.rounds = [];
      this.at = 0;
      this.whatIf = null;
    }
    if (message === null) return;
    this.loading = true;
    try {
      const events = await call(this.#host, 'answer_events', { message });
      if (!isLatest()) return;
      this.rounds = events.filter(isRound);
      this.go(this.at);
      await this.#ask();
    } catch (thrown) {
      if (isLatest()) this.error = toErrorInfo(thrown);
    } finally {
      if (isLatest()) this.loading = false;
    }
  }

  /** Goes to the nearest existing round. */
  go(round: number): void {
    this.at = Math.max(0, Math.min(this.rounds.length - 1, round));
  }

  /** Requests the what-if with changed settings. */
  async suppose(change: { maxDraft?: number; temperature?: number | null }): Promise<void> {
    this.maxDraft = change.maxDraft ?? this.maxDraft;
    if (change.temperature !== undefined) this.temperature = change.temperature;
    await this.#ask();
  }

  async #ask(): Promise<void> {
    const { message, maxDraft, temperature } = this;
    if (message === null) return;
    const isLatest = this.#questions.start();
    this.error = null;
    try {
      const request = { message, max_draft: maxDraft, temperature };
      const whatIf = await call(this.#host, 'what_if', { request });
      if (isLatest() && this.message === message) this.whatIf = whatIf;
    } catch (thrown) {
      if (!isLatest()) return;
      this.whatIf = null;
      this.error = toErrorInfo(thrown);
    }
  }
}

const isRound = (event: GenerationEvent): event is Extract<GenerationEvent, { type: 'round' }> => event.type === 'round';
