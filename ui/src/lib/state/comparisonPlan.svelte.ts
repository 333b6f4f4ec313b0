// The form of a comparison: prompts, methods, runs and sampling. No DOM.

import type { CompareRequest, MaxDraft, Method, MethodConfig } from '../ipc/schema.gen';
import { mostLanes } from '../lanes';
import { offeredMethods } from '../methods';
import type { Models } from './models.svelte';
import type { ServerChoice } from './preferences.svelte';
import { isUsable, Settings } from './settings.svelte';
import type { Missing, PromptKind } from '../strings/keys';

/** State of the chat that the form depends on. */
export interface ChatSide {
  /** Settings of the chat, used until they are changed here. */
  settings: Settings;
  /** `true` if an answer keeps the engine busy. */
  busy: () => boolean;
  /** `true` if the server is in the list. */
  hasServer?: (address: string) => boolean;
}

/** Depths for repeated lanes of a method, in order. */
const repeatDepths = [4, 8, 2, 12, 6, 1] as const;

/** Draft lengths of a sweep. */
const sweepDepths: readonly MaxDraft[] = [1, 2, 3, 5, 7, 'auto'];

/** Returns `true` if two lanes are identical, which the engine refuses. */
const same = (one: MethodConfig, other: MethodConfig): boolean => one.method === other.method && one.max_draft === other.max_draft;

/** The form of a comparison. */
export class ComparisonPlan {
  kind = $state<PromptKind>('text');
  text = $state('');
  /** Number of prompts of a suite; null for all. */
  prompts = $state<number | null>(4);
  /** Runs of every prompt in every lane. */
  runs = $state(3);
  lanes = $state.raw<readonly MethodConfig[]>([]);
  #server = $state.raw<ServerChoice | null>(null);
  /** Sampling settings and token limit. */
  readonly settings = new Settings();

  readonly #models: Models;
  readonly #chat: ChatSide;
  /** The settings as copied from the chat. */
  #taken: string | null = null;

  /** Why it cannot start now; null if it can. */
  missing = $derived.by((): Missing | null => {
    if (this.#models.loading !== null) return 'loading';
    if (!this.#models.loaded) return 'model';
    if (this.#chat.busy()) return 'chat';
    if (this.lanes.length === 0) return 'method';
    if (this.lanes.some((lane, i) => this.lanes.findIndex((other) => same(other, lane)) < i)) return 'same';
    return this.kind === 'text' && this.text.trim() === '' ? 'text' : null;
  });

  /** Model of a server that answers next to the lanes; null for none, and once the server was removed. */
  get server(): ServerChoice | null {
    const chosen = this.#server;
    return chosen && (this.#chat.hasServer?.(chosen.address) ?? true) ? chosen : null;
  }

  set server(choice: ServerChoice | null) {
    this.#server = choice;
  }

  constructor(models: Models, chat: ChatSide) {
    this.#models = models;
    this.#chat = chat;
  }

  /** Copies the chat's settings, unless they were changed here. Called when the form is shown or the models change. */
  arrive(): void {
    const { info, loaded } = this.#models;
    if (!info) return;
    const chosen = () => JSON.stringify(this.settings.chosen());
    if (this.#taken === null || this.#taken === chosen()) {
      this.settings.adopt(info);
      this.settings.choose(this.#chat.settings.chosen(), loaded);
      this.#taken = chosen();
    }
    const usable = this.lanes.filter(({ method }) => isUsable(method, loaded));
    if (usable.length > 0) this.lanes = usable;
    else this.#begin();
  }

  /** Adds the next unused method, or the last one with another depth. */
  add(): void {
    if (this.lanes.length >= mostLanes) return;
    const method = this.#usable().find((other) => this.lanes.every((lane) => lane.method !== other)) ?? this.lanes.at(-1)?.method;
    if (!method) return;
    const { max } = this.settings.range('max_draft');
    const depths = [this.settings.maxDraft, ...repeatDepths.filter((depth) => depth <= max)];
    const added = depths.map((max_draft) => ({ method, max_draft })).find((lane) => !this.lanes.some((other) => same(other, lane)));
    if (added) this.lanes = [...this.lanes, added];
  }

  /** Method whose draft lengths a sweep compares: that of the first lane; null for none. */
  get sweeps(): Method | null {
    return this.lanes[0]?.method ?? null;
  }

  /** `true` if the lanes are those of a sweep. */
  get swept(): boolean {
    const lanes = this.sweepLanes;
    return lanes.length === this.lanes.length && lanes.every((lane) => this.lanes.some((other) => same(lane, other)));
  }

  /** Replaces the lanes by one for each draft length of the first lane's method. */
  sweep(): void {
    const lanes = this.sweepLanes;
    if (lanes.length > 0) this.lanes = lanes;
  }

  /** The lanes of a sweep. */
  get sweepLanes(): MethodConfig[] {
    const method = this.sweeps;
    const { max } = this.settings.range('max_draft');
    const depths = sweepDepths.filter((depth) => depth === 'auto' || depth <= max);
    return method === null ? [] : depths.map((max_draft) => ({ method, max_draft }));
  }

  change(at: number, lane: MethodConfig): void {
    this.lanes = this.lanes.with(at, lane);
  }

  remove(at: number): void {
    this.lanes = this.lanes.filter((_, i) => i !== at);
  }

  /** The request; null if something is missing. */
  request(): CompareRequest | null {
    const settings = this.settings.request();
    if (this.missing !== null || !settings) return null;
    const { sampling, rule, max_tokens } = settings;
    return {
      prompts:
        this.kind === 'text'
          ? { kind: 'text', system: '', text: this.text.trim() }
          : { kind: 'suite', name: this.kind, prompts: this.prompts },
      lanes: [...this.lanes],
      sampling,
      rule,
      max_tokens,
      runs: this.runs,
      ...(this.server && { server: this.server }),
    };
  }

  #begin(): void {
    const [method] = this.#usable();
    this.lanes = method ? [{ method, max_draft: this.settings.maxDraft }] : [];
  }

  /** Methods that the loaded models can compare with plain decoding. The most recommended is first. Then those that
   * need a draft model alternate with the others, so that the first lanes differ in kind. */
  #usable(): Method[] {
    const { info, loaded } = this.#models;
    const usable = offeredMethods(info).filter(({ name }) => name !== 'plain' && isUsable(name, loaded));
    const [first, ...others] = usable;
    if (!first) return [];
    const unlike = others.filter(({ needs_draft }) => needs_draft !== first.needs_draft);
    const like = others.filter(({ needs_draft }) => needs_draft === first.needs_draft);
    const inTurn = others.flatMap((_, i) => [...unlike.slice(i, i + 1), ...like.slice(i, i + 1)]);
    return [first, ...inTurn].map(({ name }) => name);
  }
}
