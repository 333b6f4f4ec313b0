// Models that single lanes of a comparison can use: other targets, and the drafts and heads that suit each. No DOM.

import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { DraftOffers, ErrorInfo, LaneConfig, LaneModels, LoadedModels, ModelEntry, OfferedMethod } from '../ipc/schema.gen';
import { nameOf } from '../paths';
import { suits } from './pairing.svelte';
import type { Models } from './models.svelte';

/** A model to choose, by its path. */
export interface ModelChoice {
  path: string;
  title: string;
}

/** Models for the lanes of a comparison. */
export class LaneModelChoices {
  /** Drafts and heads for each target, by its path. Missing until they are known. */
  #offers = $state.raw<Readonly<Record<string, DraftOffers>>>({});
  error = $state.raw<ErrorInfo | null>(null);

  readonly #host: Host;
  readonly #models: Models;

  constructor(host: Host, models: Models) {
    this.#host = host;
    this.#models = models;
  }

  /** Path of a lane's target; null without a model. */
  targetOf({ models }: LaneConfig): string | null {
    return models?.target ?? this.#models.loaded?.target.path ?? null;
  }

  /** Loads the drafts and heads for a lane's target. Never rejects. */
  async loadOffers(lane: LaneConfig): Promise<void> {
    const target = this.targetOf(lane);
    if (target === null) return;
    try {
      const offers = await call(this.#host, 'draft_offers', { target, context: this.#context(target) });
      this.#offers = { ...this.#offers, [target]: offers };
      this.error = null;
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    }
  }

  /** Targets to choose from, the loaded one first. */
  targets = $derived.by((): ModelChoice[] => {
    const { loaded, others } = this.#models;
    return loaded ? [loaded.target, ...others].map((model) => this.#choice(model)) : [];
  });

  /** Drafts for a lane's target, with the one it has. */
  drafts(lane: LaneConfig): ModelChoice[] {
    const offers = this.#offersOf(lane)?.offers.filter((offer) => suits(offer) && offer.path !== null) ?? [];
    const found = offers.map(({ path, name }) => this.#choice({ path: path ?? '', name }));
    const own = lane.models ? lane.models.draft : this.#models.loaded?.draft?.path;
    return own === undefined || found.some(({ path }) => path === own) ? found : [this.#choice({ path: own, name: nameOf(own) }), ...found];
  }

  /** Heads for a lane's target, with the one it has. */
  heads(lane: LaneConfig): ModelChoice[] {
    const offers = this.#offersOf(lane)?.heads.filter(({ problem }) => problem === null) ?? [];
    const found = offers.map(({ path, name }) => ({ path, title: name }));
    const own = this.modelsOf(lane)?.head;
    if (own === undefined || found.some(({ path }) => path === own)) return found;
    const { head } = this.#models.loaded ?? {};
    return [{ path: own, title: own === head?.path ? head.name : nameOf(own) }, ...found];
  }

  /** Titles in place of the paths of a lane. */
  titled(lane: LaneConfig): LaneConfig {
    if (!lane.models) return lane;
    const { target, draft, head } = lane.models;
    const titleIn = (all: readonly ModelChoice[], wanted: string) => all.find(({ path }) => path === wanted)?.title ?? nameOf(wanted);
    return {
      ...lane,
      models: {
        target: titleIn(this.targets, target),
        ...(draft !== undefined && { draft: titleIn(this.drafts(lane), draft) }),
        ...(head !== undefined && { head: titleIn(this.heads(lane), head) }),
      },
    };
  }

  /** Title of the comparison's target; empty without a model. */
  get targetTitle(): string {
    const { loaded } = this.#models;
    return loaded ? this.#choice(loaded.target).title : '';
  }

  /** The loaded models as a lane uses them: with its draft, and the methods that its models support. */
  loadedFor(lane: LaneConfig): LoadedModels | null {
    const { info, loaded } = this.#models;
    const own = lane.models;
    if (!loaded || !own) return loaded;
    const shared = own.target === loaded.target.path;
    const canRun = ({ name, needs_draft, needs_head, needs_texts }: OfferedMethod): boolean => {
      if (needs_draft) return own.draft !== undefined;
      const loadedCan = shared && loaded.methods.includes(name);
      // Only the loaded models have the user's texts.
      if (needs_texts) return loadedCan;
      return !needs_head || own.head !== undefined || loadedCan;
    };
    return { ...loaded, draft: null, methods: info?.methods.filter(canRun).map(({ name }) => name) ?? [] };
  }

  /** A lane without settings that do not apply to its method, or that are the comparison's. */
  normalised(lane: LaneConfig): LaneConfig {
    const { loaded, info } = this.#models;
    if (!lane.models || !loaded) return lane;
    const method = info?.methods.find(({ name }) => name === lane.method);
    const { models, ...rest } = lane;
    const shared = models.target === loaded.target.path;
    const head = method?.uses_head && !(shared && models.head === loaded.head?.path) ? models.head : undefined;
    const own: LaneModels = {
      target: models.target,
      ...(method?.uses_draft && models.draft !== undefined && { draft: models.draft }),
      ...(head !== undefined && { head }),
    };
    const usualDraft = method?.uses_draft ? loaded.draft?.path : undefined;
    const usual = shared && own.draft === usualDraft && head === undefined;
    return usual ? rest : { ...rest, models: own };
  }

  /** The models of a lane, written out. A lane of the loaded target has its head unless it names another. */
  modelsOf(lane: LaneConfig): LaneModels | null {
    const { loaded } = this.#models;
    if (!loaded) return lane.models ?? null;
    const { target, draft, head } = lane.models ?? { target: loaded.target.path, draft: loaded.draft?.path };
    const used = head ?? (target === loaded.target.path ? loaded.head?.path : undefined);
    return { target, ...(draft !== undefined && { draft }), ...(used !== undefined && { head: used }) };
  }

  #offersOf(lane: LaneConfig): DraftOffers | undefined {
    return this.#offers[this.targetOf(lane) ?? ''];
  }

  /** A model with the title under which the library lists it. */
  #choice({ path, name }: Pick<ModelEntry, 'path' | 'name'>): ModelChoice {
    const { listed, loaded } = this.#models;
    const known = [...listed, ...(loaded ? [loaded.target] : []), ...(loaded?.draft ? [loaded.draft] : [])];
    const model = known.find((one) => one.path === path);
    return { path, title: model ? this.#models.fullTitleOf(model) : name };
  }

  /** The loaded context, as far as the target has it. */
  #context(target: string): number | null {
    const { listed, loaded } = this.#models;
    if (!loaded) return null;
    const most = listed.find(({ path }) => path === target)?.context_length ?? loaded.context;
    return Math.min(loaded.context, most);
  }
}
