// One model as a target, and what goes with it: memory with a draft and a context, the drafts that suit, measuring
// a pair. Everything predicted or measured is the engine's. No DOM.

import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { DraftOffer, DraftOffers, ErrorInfo, Fit, LoadedModels, LoadRequest, ModelEntry } from '../ipc/schema.gen';
import { pageClock, type Clock } from '../ipc/stream';
import { Latest } from '../latest';
import type { Comparison } from './comparison.svelte';
import type { Models } from './models.svelte';

/** What pairing has to do with. */
export interface PairingSurroundings {
  models: Models;
  comparison: Comparison;
  clock?: Clock;
}

/** Quiet after which a context that is being moved is asked about, in milliseconds. */
const settleMs = 120;
const leastContext = 512;

export const suits = ({ verdict }: DraftOffer): boolean => verdict.kind === 'suits' || verdict.kind === 'expected';

/** The target that is looked at, and its drafts. */
export class Pairing {
  target = $state.raw<ModelEntry | null>(null);
  /** Path of the draft that is chosen; null goes without. */
  draft = $state<string | null>(null);
  /** Tokens of both caches; null: the target's usual context. */
  context = $state<number | null>(null);
  fit = $state.raw<Fit | null>(null);
  offers = $state.raw<DraftOffers | null>(null);
  fitError = $state.raw<ErrorInfo | null>(null);
  offersError = $state.raw<ErrorInfo | null>(null);
  /** The pair that is being measured, or was last: the names of both, and where the target lies. */
  measured = $state.raw<{ target: string; draft: string; path: string } | null>(null);

  /** Offers that can draft for it, best first. */
  suited = $derived(this.offers?.offers.filter(suits) ?? []);
  /** Offers that cannot, each with why. */
  unsuited = $derived(this.offers?.offers.filter((offer) => !suits(offer)) ?? []);

  /** Contexts to choose from: doubled from the least, and the usual and the most of the target. */
  contexts = $derived.by((): readonly number[] => {
    const most = this.target?.context_length ?? 0;
    const doubled = Array.from({ length: 16 }, (_, i) => leastContext * 2 ** i).filter((tokens) => tokens < most);
    const all = [...doubled, most, ...(this.#usual === null ? [] : [this.#usual])];
    return all.filter((tokens, i) => tokens > 0 && all.indexOf(tokens) === i).sort((a, b) => a - b);
  });

  /** Whether both are in memory just so. */
  inMemory = $derived.by((): boolean => {
    const loaded = this.#models.loaded;
    if (!loaded || loaded.target.path !== this.target?.path || (loaded.draft?.path ?? null) !== this.draft) return false;
    return this.context === null || this.context === loaded.context;
  });

  /** Whether the comparison that runs, or ran last, measured this target: one of Compare's own says nothing about a
   * pair. */
  measures = $derived.by((): boolean => this.#comparison.ofPair && this.measured !== null && this.measured.path === this.target?.path);

  readonly #host: Host;
  readonly #models: Models;
  readonly #comparison: Comparison;
  readonly #clock: Clock;
  #usual = $state<number | null>(null);
  /** Whether the person has chosen a draft, or that there is none. */
  #draftChosen = false;
  /** The context it is in memory with, until it is known whether that is the usual one; null afterwards. */
  #inherited: number | null = null;
  /** What was in memory when the fit was asked for. */
  #seen: LoadedModels | null = null;
  /** Whether what was asked may hold no longer. */
  #stale = false;
  readonly #fits = new Latest();
  readonly #lists = new Latest();
  #listing: Promise<void> = Promise.resolve();
  #cancelTimer: () => void = () => {};

  constructor(host: Host, { models, comparison, clock = pageClock }: PairingSurroundings) {
    this.#host = host;
    this.#models = models;
    this.#comparison = comparison;
    this.#clock = clock;
  }

  /** Looks at a target; at none, or one that cannot be used, nothing is asked. The same one stays as it is. */
  show(target: ModelEntry | null): void {
    const usable = target?.problem === null ? target : null;
    const same = usable !== null && usable.path === this.target?.path;
    this.target = usable;
    if (same && this.#stale) this.refresh();
    if (same) return;
    const loaded = this.#models.loaded?.target.path === usable?.path ? this.#models.loaded : null;
    this.draft = loaded?.draft?.path ?? null;
    this.context = null;
    this.#inherited = loaded?.context ?? null;
    this.fit = null;
    this.offers = null;
    this.fitError = null;
    this.offersError = null;
    this.#usual = null;
    this.#draftChosen = loaded !== null;
    this.refresh();
  }

  /** Asks again: models came or went, or something was measured. */
  refresh(): void {
    this.#stale = false;
    if (!this.target) return;
    void this.#askFit();
    this.#listing = this.#askOffers();
  }

  /** Other programs, or what is in memory, may leave more or less room than before. */
  remeasure(): void {
    if (this.target) void this.#askFit();
  }

  /** The same, where something else is in memory than when it was asked. */
  followMemory(): void {
    if (this.#seen !== this.#models.loaded) this.remeasure();
  }

  /** Asks again, but not before it is looked at. */
  outdate(): void {
    this.#stale = true;
  }

  /** Chooses a draft of this machine; null goes without. */
  chooseDraft(path: string | null): void {
    this.draft = path;
    this.#draftChosen = true;
    void this.#askFit();
  }

  /** Chooses the tokens of both caches; null takes the target's usual context. */
  chooseContext(tokens: number | null): void {
    this.#setContext(tokens, () => this.refresh());
  }

  /** The same while they are still being chosen: only what it takes follows at once, not which drafts go with it. */
  moveContext(tokens: number | null): void {
    this.#setContext(tokens, () => void this.#askFit());
  }

  #setContext(tokens: number | null, then: () => void): void {
    this.context = tokens;
    this.#inherited = null;
    this.#cancelTimer();
    this.#cancelTimer = this.#clock.after(settleMs, then);
  }

  /** What would be loaded now; null without a target. */
  request(draft: string | null = this.draft): LoadRequest | null {
    return this.target ? { target: this.target.path, draft, context: this.context ?? this.#inherited } : null;
  }

  /** Loads the target with what is chosen, once it is known what goes with it. Does nothing where it cannot fit. */
  async load(): Promise<void> {
    const wanted = this.target;
    await this.#listing;
    const request = this.request();
    if (!request || this.target?.path !== wanted?.path || this.fit?.verdict === 'too_large') return;
    await this.#models.load(request, this.target?.name ?? '');
  }

  /** Loads the target with a draft. */
  async loadWith(path: string | null): Promise<void> {
    this.chooseDraft(path);
    const request = this.request();
    if (request) await this.#models.load(request, this.target?.name ?? '');
  }

  /** Measures the target with a draft against the target alone. */
  async measure(draft: { name: string; path: string }): Promise<void> {
    const request = this.request(draft.path);
    if (!request || !this.target || this.#comparison.running || this.#models.loading !== null) return;
    this.chooseDraft(draft.path);
    this.measured = { target: this.target.name, draft: draft.name, path: this.target.path };
    this.#models.progress = null;
    await this.#comparison.measurePair(request);
    // It has a number once both are in memory.
    await this.#models.adopt(request);
  }

  async #askFit(): Promise<void> {
    if (!this.target) return;
    // Without a context it is said which is the usual one.
    const request: LoadRequest = { target: this.target.path, draft: this.draft, context: this.context };
    const isLatest = this.#fits.start();
    this.#seen = this.#models.loaded;
    try {
      const fit = await call(this.#host, 'fit', { request });
      if (!isLatest()) return;
      this.fit = fit;
      this.fitError = null;
      if (request.context === null) this.#usual = fit.context;
      const inherited = this.#inherited;
      this.#inherited = null;
      if (inherited === null || inherited === fit.context) return;
      this.context = inherited;
      this.refresh();
    } catch (thrown) {
      if (!isLatest()) return;
      this.fit = null;
      this.fitError = toErrorInfo(thrown);
    }
  }

  async #askOffers(): Promise<void> {
    const request = this.request();
    if (!request) return;
    const isLatest = this.#lists.start();
    try {
      const offers = await call(this.#host, 'draft_offers', { target: request.target, context: request.context });
      if (!isLatest()) return;
      this.offers = offers;
      this.offersError = null;
      // What is in memory may lie outside of the folders; anything else that is not offered has gone.
      const loaded = this.#models.loaded?.draft?.path ?? null;
      if (this.draft !== null && this.draft !== loaded && !offers.offers.some(({ path }) => path === this.draft)) {
        this.draft = null;
        this.#draftChosen = false;
        void this.#askFit();
      }
      if (!this.#draftChosen) this.#chooseBest();
    } catch (thrown) {
      if (isLatest()) this.offersError = toErrorInfo(thrown);
    }
  }

  /** Until the person chooses: the first draft that is here, fits, and promises something. */
  #chooseBest(): void {
    const gain = ({ measured, predicted }: DraftOffer) => measured?.speedup ?? predicted?.speedup ?? 0;
    const best = this.suited.find((offer) => offer.path !== null && offer.fit !== 'too_large' && gain(offer) > 1);
    const path = best?.path ?? null;
    if (path === this.draft) return;
    this.draft = path;
    void this.#askFit();
  }
}
