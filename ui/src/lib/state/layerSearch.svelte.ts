// The search for the layers that the target skips in the method layer-skip: its progress and its result. No DOM.

import type { Host } from '../host';
import { call, searchSkippedLayers } from '../ipc/rpc';
import type { ErrorInfo, SkipSearch, SkipSearchEvent } from '../ipc/schema.gen';
import { pageClock, type Clock } from '../ipc/stream';
import { Measurement } from './measurement.svelte';
import type { Models } from './models.svelte';

/** A step of the search: answers to prompts first, then one more skipped layer at a time. */
type SkipSearchStep = Extract<SkipSearchEvent, { type: 'answering' | 'trying' }>;

/** One search at a time, over the loaded target. */
export class LayerSearch {
  /** `true` from the request to the end. */
  running = $state(false);
  /** The last step; null before the first. */
  step = $state.raw<SkipSearchStep | null>(null);
  /** End of the last search: the path of its target, and its result, a failure, or neither after a stop. */
  #end = $state.raw<{ target: string; found: SkipSearch | null; error: ErrorInfo | null } | null>(null);

  readonly #host: Host;
  readonly #models: Pick<Models, 'loaded' | 'refresh'>;
  readonly #clock: Clock;
  #measurement = $state.raw<Measurement<SkipSearchEvent> | null>(null);

  constructor(host: Host, models: Pick<Models, 'loaded' | 'refresh'>, clock: Clock = pageClock) {
    this.#host = host;
    this.#models = models;
    this.#clock = clock;
  }

  /** End of the last search for the loaded target; null for none. */
  #here = $derived.by(() => (this.#end?.target === this.#models.loaded?.target.path ? this.#end : null));
  /** Result of the last search; null for none. */
  found = $derived<SkipSearch | null>(this.#here?.found ?? null);
  /** Why the last search failed; null if it did not. */
  error = $derived<ErrorInfo | null>(this.#here?.error ?? null);
  /** `true` if the last search was stopped. */
  stopped = $derived(this.#here !== null && this.found === null && this.error === null);

  /** `true` if a stop was requested and the engine is still in a pass. */
  get stopping(): boolean {
    return this.#measurement?.stopping ?? false;
  }

  /** Starts a search. Does nothing while one runs, and without a model. */
  async start(): Promise<void> {
    const target = this.#models.loaded?.target.path;
    if (this.running || target === undefined) return;
    this.running = true;
    this.step = null;
    this.#end = null;
    this.#measurement = new Measurement<SkipSearchEvent>(this.#host, {
      begin: (receive) => searchSkippedLayers(this.#host, receive),
      snapshot: (id, from) => call(this.#host, 'skip_search_snapshot', { id, from }),
      deliver: (events) => this.#apply(events, target),
      lost: (error) => this.#finish({ target, found: null, error }),
      clock: this.#clock,
    });
    await this.#measurement.begin();
  }

  /** Requests a stop. Nothing is saved. */
  stop(): void {
    this.#measurement?.stop();
  }

  #apply(events: readonly SkipSearchEvent[], target: string): void {
    for (const event of events) {
      if (event.type === 'failed') this.#finish({ target, found: null, error: event.error });
      else if (event.type !== 'finished') this.step = event;
      else {
        this.#finish({ target, found: event.found, error: null });
        // The layers are now those of the loaded models.
        if (event.found) void this.#models.refresh();
      }
    }
  }

  #finish(end: { target: string; found: SkipSearch | null; error: ErrorInfo | null }): void {
    this.#measurement = null;
    this.running = false;
    this.#end = end;
  }
}
