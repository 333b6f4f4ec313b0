// Settings that few answers need: penalties, options of methods, stop strings, biases of tokens. Presets leave
// them alone, comparisons use them. No DOM.

import type { AnswerSettings, LoadedModels, MethodOptions, SamplingParams } from '../ipc/schema.gen';
import type { KeptBias, LogitBias } from './logitBias.svelte';

/** Settings of a request, without the models. */
type Requested = Omit<AnswerSettings, 'target' | 'draft'>;

/** Advanced settings that stay when the window closes. Options of methods belong to the loaded models. */
export interface KeptAdvanced {
  readonly presencePenalty: number;
  readonly frequencyPenalty: number;
  readonly stop: readonly string[];
  readonly biases: readonly KeptBias[];
}

/** The advanced settings of the next answer. */
export class AdvancedSettings {
  presencePenalty = $state(0);
  frequencyPenalty = $state(0);
  /** Options of single methods, without those that have their default. */
  options = $state.raw<MethodOptions>({});
  /** Strings that end an answer. */
  stop = $state.raw<readonly string[]>([]);
  readonly bias: LogitBias;

  /** Path of the target that the options were chosen for; null before one is loaded. */
  #target: string | null = null;
  #defaults = $state.raw({ presence: 0, frequency: 0 });

  /** Number of settings that differ from their defaults. */
  changed = $derived.by((): number => {
    const { presence, frequency } = this.#defaults;
    const differ = [
      this.presencePenalty !== presence,
      this.frequencyPenalty !== frequency,
      this.stop.length > 0,
      this.bias.entries.length > 0,
    ];
    return differ.filter(Boolean).length + Object.keys(this.options).length;
  });

  constructor(bias: LogitBias) {
    this.bias = bias;
  }

  /** Applies the engine's defaults. */
  adopt({ presence_penalty, frequency_penalty }: SamplingParams): void {
    this.#defaults = { presence: presence_penalty, frequency: frequency_penalty };
    this.presencePenalty = presence_penalty;
    this.frequencyPenalty = frequency_penalty;
  }

  /** The settings that stay when the window closes. */
  kept(): KeptAdvanced {
    const { presencePenalty, frequencyPenalty, stop, bias } = this;
    return { presencePenalty, frequencyPenalty, stop, biases: bias.kept() };
  }

  /** Applies kept settings. `clamp` returns the nearest allowed value, `stops` is the most stop strings allowed. */
  restore(kept: Partial<KeptAdvanced>, clamp: (name: string, value: number) => number, stops: number): void {
    this.presencePenalty = clamp('presence_penalty', kept.presencePenalty ?? this.presencePenalty);
    this.frequencyPenalty = clamp('frequency_penalty', kept.frequencyPenalty ?? this.frequencyPenalty);
    for (const text of kept.stop?.slice(0, stops) ?? []) this.addStop(text);
    this.bias.restore(kept.biases?.map(({ text, bias }) => ({ text, bias: clamp('logit_bias', bias) })) ?? []);
  }

  /** Adapts to other models: layers belong to one target, and a window fits the context. */
  fit({ target, context }: LoadedModels): void {
    const { exit_layer, skipped_layers, draft_window, ...others } = this.options;
    const isOther = this.#target !== null && this.#target !== target.path;
    this.#target = target.path;
    this.options = {
      ...others,
      ...(exit_layer !== undefined && !isOther && { exit_layer }),
      ...(skipped_layers !== undefined && !isOther && { skipped_layers }),
      ...(draft_window !== undefined && draft_window <= context && { draft_window }),
    };
  }

  /** Restores all defaults. */
  reset(): void {
    this.presencePenalty = this.#defaults.presence;
    this.frequencyPenalty = this.#defaults.frequency;
    this.options = {};
    this.stop = [];
    this.bias.clear();
  }

  /** Adds a stop string. An empty one or a duplicate is ignored. */
  addStop(text: string): void {
    if (text !== '' && !this.stop.includes(text)) this.stop = [...this.stop, text];
  }

  removeStop(at: number): void {
    this.stop = this.stop.filter((_, i) => i !== at);
  }

  /** Adds these settings to a request. Biases are those of the loaded model. */
  applyTo(request: Requested): Requested {
    const { presencePenalty: presence_penalty, frequencyPenalty: frequency_penalty } = this;
    const sampling = { ...request.sampling, presence_penalty, frequency_penalty, logit_bias: this.bias.byToken };
    return { ...request, sampling, stop: [...this.stop], options: this.options };
  }
}
