// The cost curve of this machine: the last one, and measuring it with progress. No DOM.

import type { Host } from '../../host';
import { call, measureCosts, toErrorInfo } from '../../ipc/rpc';
import type { CostCurve, CostEvent, ErrorInfo } from '../../ipc/schema.gen';
import { pageClock, type Clock } from '../../ipc/stream';
import type { Progress } from '../answer.svelte';
import { Measurement } from '../measurement.svelte';

/** The shown costs. */
export class Costs {
  /** The last curve; null for none. */
  curve = $state.raw<CostCurve | null>(null);
  /** Progress of measuring; null when idle. */
  progress = $state.raw<Progress | null>(null);
  /** `true` if the last measurement was stopped. */
  stopped = $state(false);
  error = $state.raw<ErrorInfo | null>(null);

  readonly #host: Host;
  readonly #clock: Clock;
  #measurement = $state.raw<Measurement<CostEvent> | null>(null);

  constructor(host: Host, clock: Clock = pageClock) {
    this.#host = host;
    this.#clock = clock;
  }

  /** Loads the last curve. */
  async open(): Promise<void> {
    if (this.progress) return;
    try {
      this.curve = await call(this.#host, 'cost_curve', {});
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    }
  }

  /** Starts measuring. Does nothing while it runs. */
  async measure(): Promise<void> {
    if (this.progress) return;
    this.error = null;
    this.stopped = false;
    this.progress = { done: 0, total: 0 };
    this.#measurement = new Measurement<CostEvent>(this.#host, {
      begin: (receive) => measureCosts(this.#host, receive),
      snapshot: (id, from) => call(this.#host, 'costs_snapshot', { id, from }),
      deliver: (events) => this.#apply(events),
      lost: (error) => this.#end(error),
      clock: this.#clock,
    });
    await this.#measurement.begin();
  }

  /** `true` if a stop was requested and the engine is still in a pass. */
  get stopping(): boolean {
    return this.#measurement?.stopping ?? false;
  }

  /** Requests a stop. The measurement is discarded. */
  stop(): void {
    this.#measurement?.stop();
  }

  #apply(events: readonly CostEvent[]): void {
    for (const event of events) {
      if (event.type === 'progress') this.progress = { done: event.done, total: event.total };
      else if (event.type === 'failed') this.#end(event.error);
      else {
        this.#end(null);
        if (event.curve) this.curve = event.curve;
        else this.stopped = true;
      }
    }
  }

  #end(error: ErrorInfo | null): void {
    this.#measurement = null;
    this.progress = null;
    this.error = error;
  }
}
