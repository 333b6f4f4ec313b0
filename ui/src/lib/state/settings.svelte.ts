// Settings of the next answer: method, depth, sampling. Ranges come from the engine. No DOM.

import type {
  AcceptanceRule,
  AnswerSettings,
  AppInfo,
  LoadedModels,
  MaxDraft,
  Method,
  OfferedMethod,
  RecommendedSampling,
  SamplingParams,
  Thinking,
} from '../ipc/schema.gen';
import { lossless } from '../rules';
import { language } from '../strings/index.svelte';
import type { AdvancedSettings, KeptAdvanced } from './advanced.svelte';

/** Allowed values of a number, both ends included. */
export interface Range {
  min: number;
  max: number;
}

/** Largest integer that is exact in JSON. */
const largestWhole = Number.MAX_SAFE_INTEGER;

/** Ranges until the engine has reported its own. */
const startingRanges: Record<string, Range> = {
  max_draft: { min: 1, max: 15 },
  max_tokens: { min: 1, max: largestWhole },
  temperature: { min: 0, max: largestWhole },
  seed: { min: 0, max: largestWhole },
  presence_penalty: { min: -2, max: 2 },
  frequency_penalty: { min: -2, max: 2 },
  logit_bias: { min: -100, max: 100 },
  stop_strings: { min: 0, max: 16 },
  attached_files: { min: 0, max: 16 },
};

/** Settings chosen by the user. */
export interface Chosen {
  readonly method: Method;
  readonly maxDraft: MaxDraft;
  readonly temperature: number;
  readonly topK: number;
  readonly topP: number;
  readonly minP: number;
  readonly repeatPenalty: number;
  readonly maxTokens: number;
  readonly seed: number | null;
  /** The acceptance rule. */
  readonly rule: AcceptanceRule;
  /** Reasoning before the answer; null to leave it to the model. */
  readonly thinking: Thinking | null;
}

/** Settings that stay when the window closes. Reasoning stays with the conversations. */
export interface KeptSettings extends Omit<Chosen, 'method' | 'thinking'>, KeptAdvanced {
  /** Null for the recommended method. */
  readonly method: Method | null;
}

/** Settings that a model can recommend, and their names in the API. */
const recommendable = [
  ['temperature', 'temperature'],
  ['topK', 'top_k'],
  ['topP', 'top_p'],
  ['minP', 'min_p'],
  ['repeatPenalty', 'repeat_penalty'],
] as const satisfies readonly (readonly [keyof Chosen, keyof RecommendedSampling])[];

/** Defaults that are not the engine's. Models that reason need thousands of tokens before they answer. */
const ownDefaults = { method: null, maxDraft: 'auto', maxTokens: 4096, rule: lossless, stop: [], biases: [] } as const;

/** The settings of a conversation. */
export class Settings {
  maxDraft = $state<MaxDraft>(ownDefaults.maxDraft);
  maxTokens = $state<number>(ownDefaults.maxTokens);
  temperature = $state(0);
  topK = $state(0);
  topP = $state(1);
  minP = $state(0);
  repeatPenalty = $state(1);
  /** Null for a new one per answer. */
  seed = $state<number | null>(null);
  rule = $state.raw<AcceptanceRule>(ownDefaults.rule);
  /** Reasoning before the answer; null to leave it to the model. */
  thinking = $state<Thinking | null>(null);
  /** Further settings; null where there are none. */
  readonly advanced: AdvancedSettings | null;

  #method = $state<Method>('plain');
  /** The method that the user chose, which the loaded models may lack; null for the recommended one. */
  #chosenMethod = $state<Method | null>(null);
  #sampling = $state.raw<SamplingParams | null>(null);
  /** The settings as they are without any choice. */
  #defaults: KeptSettings | null = null;
  #ranges = $state.raw<Record<string, Range>>(startingRanges);

  constructor(advanced: AdvancedSettings | null = null) {
    this.advanced = advanced;
  }

  /** The method. Setting it is the user's choice. */
  get method(): Method {
    return this.#method;
  }

  set method(method: Method) {
    this.#method = method;
    this.#chosenMethod = method;
  }

  /** Applies the engine's defaults and ranges. */
  adopt(info: AppInfo): void {
    const ranges = info.ranges.map(({ name, min, max }) => [name, { min, max: Math.min(max, largestWhole) }] as const);
    this.#ranges = { ...startingRanges, ...Object.fromEntries(ranges) };
    this.#sampling = info.default_sampling;
    this.temperature = info.default_sampling.temperature;
    this.topK = info.default_sampling.top_k;
    this.topP = info.default_sampling.top_p;
    this.minP = info.default_sampling.min_p;
    this.repeatPenalty = info.default_sampling.repeat_penalty;
    this.seed = info.default_sampling.seed;
    this.advanced?.adopt(info.default_sampling);
    if (this.maxDraft !== 'auto') this.maxDraft = this.clamp('max_draft', this.maxDraft);
    this.maxTokens = this.clamp('max_tokens', this.maxTokens);
    this.#defaults = { ...this.#all(), ...ownDefaults, maxTokens: this.clamp('max_tokens', ownDefaults.maxTokens) };
  }

  /** The settings that differ from their defaults; null until the engine has reported those. */
  kept(): Partial<KeptSettings> | null {
    const defaults = this.#sampling && this.#defaults;
    if (!defaults) return null;
    const all = Object.entries(this.#all());
    return Object.fromEntries(
      all.filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(defaults[name as keyof KeptSettings])),
    );
  }

  /** Applies settings from before the window was closed, within the current ranges. The method is used once models that
   * have it are loaded. */
  restore({ method, ...kept }: Partial<KeptSettings>): void {
    if (method !== undefined) this.#chosenMethod = method;
    this.choose({ ...this.chosen(), ...kept }, null);
    this.advanced?.restore(kept, (name, value) => this.clamp(name, value), this.range('stop_strings').max);
  }

  #all(): KeptSettings {
    const { maxDraft, temperature, topK, topP, minP, repeatPenalty, maxTokens, seed, rule } = this;
    const advanced = this.advanced?.kept() ?? { presencePenalty: 0, frequencyPenalty: 0, stop: [], biases: [] };
    return { method: this.#chosenMethod, maxDraft, temperature, topK, topP, minP, repeatPenalty, maxTokens, seed, rule, ...advanced };
  }

  /** Adapts to other models: uses the method that the user chose, if it works with them, else the recommended one. */
  fit(loaded: LoadedModels): void {
    const chosen = this.#chosenMethod;
    // The engine lists plain first, then the most recommended methods.
    const best = loaded.methods.find((method) => method !== 'plain') ?? 'plain';
    this.#method = chosen !== null && isUsable(chosen, loaded) ? chosen : best;
    this.advanced?.fit(loaded);
  }

  /** Forgets the method that the user chose, so that the recommended one is used. */
  forgetMethod(): void {
    this.#chosenMethod = null;
  }

  /** The current choices. */
  chosen(): Chosen {
    const { method, maxDraft, temperature, topK, topP, minP, repeatPenalty, maxTokens, seed, rule, thinking } = this;
    return { method, maxDraft, temperature, topK, topP, minP, repeatPenalty, maxTokens, seed, rule, thinking };
  }

  /** Applies saved choices within the current ranges. An unavailable method is ignored. */
  choose(chosen: Chosen, loaded: LoadedModels | null): void {
    if (isUsable(chosen.method, loaded)) this.method = chosen.method;
    this.maxDraft = chosen.maxDraft === 'auto' ? 'auto' : this.clamp('max_draft', chosen.maxDraft);
    this.temperature = this.clamp('temperature', chosen.temperature);
    this.topK = this.clamp('top_k', chosen.topK);
    this.topP = this.clamp('top_p', chosen.topP);
    this.minP = this.clamp('min_p', chosen.minP);
    this.repeatPenalty = this.clamp('repeat_penalty', chosen.repeatPenalty);
    this.maxTokens = this.clamp('max_tokens', chosen.maxTokens);
    this.seed = chosen.seed === null ? null : this.clamp('seed', chosen.seed);
    this.rule = chosen.rule;
    this.thinking = chosen.thinking;
  }

  /** Applies the sampling that a model recommends, within the current ranges. Other settings stay. */
  recommend(sampling: RecommendedSampling): void {
    for (const [field, name] of recommendable) {
      const value = sampling[name];
      if (value !== null) this[field] = this.clamp(name, value);
    }
  }

  /** Returns `true` if the settings are as a model recommends. */
  follows(sampling: RecommendedSampling): boolean {
    return recommendable.every(([field, name]) => {
      const value = sampling[name];
      return value === null || this[field] === this.clamp(name, value);
    });
  }

  /** Range of a setting, by its field name. */
  range(name: string): Range {
    return this.#ranges[name] ?? { min: 0, max: largestWhole };
  }

  /** The allowed value nearest to `value`. */
  clamp(name: string, value: number): number {
    const { min, max } = this.range(name);
    return Math.min(max, Math.max(min, value));
  }

  /** The settings of a request; null until the engine has reported its defaults. */
  request(): Omit<AnswerSettings, 'target' | 'draft'> | null {
    if (!this.#sampling) return null;
    const request = {
      method: this.method,
      max_draft: this.maxDraft,
      max_tokens: this.maxTokens,
      sampling: {
        ...this.#sampling,
        temperature: this.temperature,
        top_k: this.topK,
        top_p: this.topP,
        min_p: this.minP,
        repeat_penalty: this.repeatPenalty,
        seed: this.seed,
      },
      rule: this.rule,
      stop: [],
      ...(this.thinking && { thinking: this.thinking }),
    };
    return this.advanced?.applyTo(request) ?? request;
  }
}

/** Returns `true` if the loaded models support a method. */
export function isUsable(method: Method, loaded: LoadedModels | null): boolean {
  return loaded?.methods.includes(method) ?? false;
}

/** Why a method is unavailable; null if it is available. */
export function whyNot({ name, needs_draft, needs_texts }: OfferedMethod, loaded: LoadedModels | null): string | null {
  const { methodSelect, openModelFirst } = language.strings;
  if (!loaded) return openModelFirst;
  if (isUsable(name, loaded)) return null;
  if (needs_draft) return loaded.draft ? methodSelect.draftDoesNotFit : methodSelect.openDraftFirst;
  if (needs_texts && !loaded.texts) return methodSelect.chooseTextsFirst;
  return methodSelect.notAvailable;
}
