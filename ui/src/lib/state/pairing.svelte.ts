// A model as a target: fit with a draft and a context, suitable drafts, measuring a pair. All predictions and
// measurements are the engine's. No DOM.

import { errorLine } from '../errors';
import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { DraftOffer, DraftOffers, ErrorInfo, Fit, HeadOffer, LoadedModels, LoadRequest, ModelEntry } from '../ipc/schema.gen';
import { pageClock, type Clock } from '../ipc/stream';
import { Latest } from '../latest';
import type { Comparison } from './comparison.svelte';
import type { Models } from './models.svelte';

/** Other state that pairing needs. */
interface PairingDependencies {
  models: Models;
  comparison: Comparison;
  /** Reports a failure in a sentence. */
  reportFailure?: (text: string) => void;
  /** Called when a low-bit copy was deleted. */
  copyRemoved?: () => void;
  clock?: Clock;
}

/** Delay before a moved context is requested, in milliseconds. */
const settleMs = 120;
const leastContext = 512;

/** `true` if a draft can be used, with the same vocabulary or translated. */
export const suits = ({ verdict }: DraftOffer): boolean => ['suits', 'expected', 'translated'].includes(verdict.kind);

/** The selected target and its drafts. */
export class Pairing {
  target = $state.raw<ModelEntry | null>(null);
  /** Path of the chosen draft; null for none. */
  draft = $state<string | null>(null);
  /** Path of the chosen head, which takes the place of a draft; null for none. */
  head = $state<string | null>(null);
  /** Tokens of both caches; null for the target's default context. */
  context = $state<number | null>(null);
  fit = $state.raw<Fit | null>(null);
  offers = $state.raw<DraftOffers | null>(null);
  fitError = $state.raw<ErrorInfo | null>(null);
  offersError = $state.raw<ErrorInfo | null>(null);
  /** The pair measured now or last: both titles, and the path of the target. */
  measured = $state.raw<{ target: string; draft: string; path: string } | null>(null);

  /** Drafts that suit it, best first. */
  suited = $derived(this.offers?.offers.filter(suits) ?? []);
  /** Drafts that do not, with the reason. */
  unsuited = $derived(this.offers?.offers.filter((offer) => !suits(offer)) ?? []);

  /** Heads whose sizes match, best first. */
  suitedHeads = $derived<readonly HeadOffer[]>(this.offers?.heads.filter(({ problem }) => problem === null) ?? []);
  /** Heads that do not fit the target, with the reason. */
  unsuitedHeads = $derived<readonly HeadOffer[]>(this.offers?.heads.filter(({ problem }) => problem !== null) ?? []);

  /** Contexts to choose from: doubled from the smallest, with the default and the largest of the target. */
  contexts = $derived.by((): readonly number[] => {
    const most = this.target?.context_length ?? 0;
    const doubled = Array.from({ length: 16 }, (_, i) => leastContext * 2 ** i).filter((tokens) => tokens < most);
    const all = [...doubled, most, ...(this.#usual === null ? [] : [this.#usual])];
    return all.filter((tokens, i) => tokens > 0 && all.indexOf(tokens) === i).sort((a, b) => a - b);
  });

  /** `true` if exactly these models are in memory. */
  inMemory = $derived.by((): boolean => {
    const loaded = this.#models.loaded;
    if (!loaded || loaded.target.path !== this.target?.path) return false;
    if ((loaded.draft?.path ?? null) !== this.draft || (loaded.head?.path ?? null) !== this.head) return false;
    return this.context === null || this.context === loaded.context;
  });

  /** `true` if the last comparison measured this target as part of a pair. */
  measures = $derived.by((): boolean => this.#comparison.ofPair && this.measured !== null && this.measured.path === this.target?.path);

  readonly #host: Host;
  readonly #models: Models;
  readonly #comparison: Comparison;
  readonly #clock: Clock;
  readonly #reportFailure: (text: string) => void;
  readonly #copyRemoved: () => void;
  #usual = $state<number | null>(null);
  /** `true` if the user has chosen a draft, or none. */
  #draftChosen = false;
  /** Context of the loaded models, until it is known whether it is the default; null afterwards. */
  #inherited: number | null = null;
  /** Models in memory when the fit was requested. */
  #seen: LoadedModels | null = null;
  /** `true` if the results may be outdated. */
  #stale = false;
  readonly #fits = new Latest();
  readonly #lists = new Latest();
  #listing: Promise<void> = Promise.resolve();
  #cancelTimer: () => void = () => {};

  constructor(
    host: Host,
    { models, comparison, reportFailure = () => {}, copyRemoved = () => {}, clock = pageClock }: PairingDependencies,
  ) {
    this.#host = host;
    this.#models = models;
    this.#comparison = comparison;
    this.#clock = clock;
    this.#reportFailure = reportFailure;
    this.#copyRemoved = copyRemoved;
  }

  /** Selects a target. An unusable one or null requests nothing. The same one keeps its state. */
  show(target: ModelEntry | null): void {
    const usable = target?.problem === null ? target : null;
    const same = usable !== null && usable.path === this.target?.path;
    this.target = usable;
    if (same && this.#stale) this.refresh();
    if (same) return;
    const loaded = this.#models.loaded?.target.path === usable?.path ? this.#models.loaded : null;
    this.draft = loaded?.draft?.path ?? null;
    this.head = loaded?.head?.path ?? null;
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

  /** Reloads everything after a change of models or measurements. */
  refresh(): void {
    this.#stale = false;
    if (!this.target) return;
    void this.#askFit();
    this.#listing = this.#askOffers();
  }

  /** Reloads the fit, because other programs may have changed the free memory. */
  remeasure(): void {
    if (this.target) void this.#askFit();
  }

  /** Reloads the fit if other models are in memory than at the last request, and everything that may be outdated. */
  followMemory(): void {
    if (this.#stale) this.refresh();
    else if (this.#seen !== this.#models.loaded) this.remeasure();
  }

  /** Marks the results as outdated. They are reloaded when shown. */
  outdate(): void {
    this.#stale = true;
  }

  /** Chooses a draft; null for none. */
  chooseDraft(path: string | null): void {
    this.#choose(path, null);
  }

  /** Chooses a head, which takes the place of a draft. */
  chooseHead(path: string): void {
    this.#choose(null, path);
  }

  #choose(draft: string | null, head: string | null): void {
    this.draft = draft;
    this.head = head;
    this.#draftChosen = true;
    void this.#askFit();
  }

  /** Chooses the context in tokens; null for the target's default. */
  chooseContext(tokens: number | null): void {
    this.#setContext(tokens, () => this.refresh());
  }

  /** Moves the context while it is being chosen: reloads the fit, but not the drafts. */
  moveContext(tokens: number | null): void {
    this.#setContext(tokens, () => void this.#askFit());
  }

  #setContext(tokens: number | null, then: () => void): void {
    this.context = tokens;
    this.#inherited = null;
    this.#cancelTimer();
    this.#cancelTimer = this.#clock.after(settleMs, then);
  }

  /** The request to load; null without a target. */
  request(draft: string | null = this.draft): LoadRequest | null {
    return this.target && this.#request(this.target, draft, this.context ?? this.#inherited);
  }

  #request({ path }: ModelEntry, draft: string | null, context: number | null): LoadRequest {
    return { target: path, draft, ...(this.head !== null && draft === null && { head: this.head }), context };
  }

  /** Loads the target with the current choices, once its drafts are known. Does nothing if it cannot fit. */
  async load(): Promise<void> {
    const wanted = this.target;
    await this.#listing;
    const request = this.request();
    if (!request || this.target?.path !== wanted?.path || this.fit?.verdict === 'too_large') return;
    await this.#models.load(request, this.#title);
  }

  /** Loads the target with a draft. */
  async loadWith(path: string | null): Promise<void> {
    this.chooseDraft(path);
    const request = this.request();
    if (request) await this.#models.load(request, this.#title);
  }

  /** Loads the target with a head. */
  async loadWithHead(path: string): Promise<void> {
    this.chooseHead(path);
    const request = this.request();
    if (request) await this.#models.load(request, this.#title);
  }

  /** Deletes the low-bit copy of the target. */
  async removeLowBitCopy(): Promise<void> {
    const copy = this.offers?.low_bit;
    if (!this.target || !copy) return;
    try {
      await call(this.#host, 'remove_low_bit_copy', { target: this.target.path });
      this.#models.forgetDraft(copy.path);
    } catch (thrown) {
      this.#reportFailure(errorLine(toErrorInfo(thrown)));
    }
    this.#copyRemoved();
  }

  /** Compares the target with a draft against the target alone. */
  async measure(draft: { title: string; path: string }): Promise<void> {
    const request = this.request(draft.path);
    if (!request || !this.target || this.#comparison.running || this.#models.loading !== null) return;
    this.chooseDraft(draft.path);
    this.measured = { target: this.#title, draft: draft.title, path: this.target.path };
    this.#models.progress = null;
    await this.#comparison.measurePair(request);
    // The measurement has a number once both are loaded.
    await this.#models.adopt(request);
  }

  get #title(): string {
    return this.target ? this.#models.titleOf(this.target) : '';
  }

  async #askFit(): Promise<void> {
    if (!this.target) return;
    // Without a context the response names the default.
    const request = this.#request(this.target, this.draft, this.context);
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
      // A loaded draft may be outside of the folders. Any other unlisted one is gone.
      const loaded = this.#models.loaded?.draft?.path ?? null;
      const listed = [...offers.offers, ...(offers.low_bit ? [offers.low_bit] : [])];
      if (this.draft !== null && this.draft !== loaded && !listed.some(({ path }) => path === this.draft)) {
        this.draft = null;
        this.#draftChosen = false;
        void this.#askFit();
      }
      const loadedHead = this.#models.loaded?.head?.path;
      if (this.head !== null && this.head !== loadedHead && !offers.heads.some(({ path }) => path === this.head)) {
        this.head = null;
        this.#draftChosen = false;
        void this.#askFit();
      }
      if (!this.#draftChosen) this.#chooseBest();
    } catch (thrown) {
      if (isLatest()) this.offersError = toErrorInfo(thrown);
    }
  }

  /** Chooses the best draft until the user does: the first available one that fits and promises a speedup. */
  #chooseBest(): void {
    const gain = ({ measured, predicted }: DraftOffer) => measured?.speedup ?? predicted?.speedup ?? 0;
    const best = this.suited.find((offer) => offer.path !== null && offer.fit !== 'too_large' && gain(offer) > 1);
    const path = best?.path ?? null;
    if (path === this.draft) return;
    this.draft = path;
    void this.#askFit();
  }
}
