// The position that the lab looks at: where it is, both laws there, what the acceptance rules make of them,
// and the rounds drawn there. No DOM.

import type { Host } from '../../host';
import { call, toErrorInfo } from '../../ipc/rpc';
import type { ErrorInfo, LabPosition, LabRuleRow, LabSource } from '../../ipc/schema.gen';
import type { Models } from '../models.svelte';
import type { Settings } from '../settings.svelte';
import { pageFrame, type NextFrame } from '../frame';
import { Trials } from './trials.svelte';

/** The kinds of place. */
export type SpotKind = LabSource['kind'];

/** Temperatures at which the rules are compared: 0 takes the likeliest, then closer where more happens. */
export const temperatures: readonly number[] = [
  ...[0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3],
  ...Array.from({ length: 17 }, (_, step) => (4 + step) / 10),
];

/** A position, from being asked for on. */
export class Spot {
  /** What kind of place is chosen. */
  kind = $state<SpotKind>('toy');
  /** A text that is typed, at the end of which to look. */
  text = $state('');
  /** The token that is chosen: its answer's message and its number. */
  chosen = $state.raw<{ message: number; token: number } | null>(null);
  /** Of both laws. At 0 each is one token, so the lab begins with 1 where answers are drawn at 0. */
  temperature = $state(1);
  position = $state.raw<LabPosition | null>(null);
  rules = $state.raw<readonly LabRuleRow[]>([]);
  looking = $state(false);
  error = $state.raw<ErrorInfo | null>(null);
  readonly trials: Trials;

  readonly #host: Host;
  readonly #models: Models;
  readonly #settings: Settings;
  /** The place that was asked for last. */
  #source: LabSource | null = null;
  /** The place that `rules` are of. */
  #ruled: LabSource | null = null;
  /** Whether something newer is wanted than what is being looked at. */
  #again = false;
  #begun = false;

  constructor(host: Host, models: Models, settings: Settings, nextFrame: NextFrame = pageFrame) {
    this.#host = host;
    this.#models = models;
    this.#settings = settings;
    this.trials = new Trials(host, nextFrame);
  }

  /** Whether there are two models whose laws can be looked at. */
  get paired(): boolean {
    return (this.#models.loaded?.draft ?? null) !== null;
  }

  /** Shows something when the lab is opened for the first time: the toy, which needs no model. */
  async open(): Promise<void> {
    if (this.#begun) return;
    this.#begin();
    await this.#look({ kind: 'toy' });
  }

  /** Chooses a kind of place, and looks where that says enough. */
  async choose(kind: SpotKind): Promise<void> {
    this.kind = kind;
    if (kind === 'toy') await this.#look({ kind });
    else if (kind === 'answer' && this.chosen) await this.lookAt(this.chosen.message, this.chosen.token);
    else if (kind === 'text' && this.text.trim() !== '') await this.read();
    else this.#drop();
  }

  /** Drops what other models made: all but the toy. */
  forget(): void {
    if (this.#source === null || this.#source.kind === 'toy') return;
    this.chosen = null;
    this.#drop();
  }

  /** Looks at the place of a token of an answer. */
  async lookAt(message: number, token: number): Promise<void> {
    this.#begin();
    this.kind = 'answer';
    this.chosen = { message, token };
    await this.#look({ kind: 'answer', message, token });
  }

  /** Looks at the end of the text that is typed. */
  async read(): Promise<void> {
    if (this.text === '') return;
    await this.#look({ kind: 'text', text: this.text });
  }

  /** Makes both laws of the same place at another temperature. */
  async warm(temperature: number): Promise<void> {
    this.temperature = temperature;
    if (this.#source) await this.#look(this.#source);
  }

  #begin(): void {
    if (this.#begun) return;
    this.#begun = true;
    if (this.#settings.temperature > 0) this.temperature = this.#settings.temperature;
  }

  /** Looks at a place. The engine looks at one at a time: while it does, only the last one wanted is remembered. */
  async #look(source: LabSource): Promise<void> {
    this.#source = source;
    this.error = null;
    this.#again = true;
    if (this.looking) return;
    this.looking = true;
    while (this.#again && this.#source) {
      this.#again = false;
      await this.#ask(this.#source);
    }
    this.looking = false;
  }

  async #ask(source: LabSource): Promise<void> {
    // Something newer may be wanted by then, or nothing at all.
    const wanted = (): boolean => !this.#again && this.#source === source;
    const sampling = this.#settings.request()?.sampling;
    if (!sampling) return;
    try {
      const request = { source, sampling: { ...sampling, temperature: this.temperature } };
      const position = await call(this.#host, 'lab_position', { request });
      if (!wanted()) return;
      this.#show(position);
      // The rules go over all temperatures: at the same place they stay as they were.
      if (this.#ruled !== source) this.rules = [];
      this.#ruled = source;
      const rules = await call(this.#host, 'lab_rules', { position: position.id, temperatures: [...temperatures] });
      if (wanted()) this.rules = rules;
    } catch (thrown) {
      if (!wanted()) return;
      this.#show(null);
      this.error = toErrorInfo(thrown);
    }
  }

  /** Looks at nothing; what is still being read is not shown. */
  #drop(): void {
    this.#source = null;
    this.#again = false;
    this.error = null;
    this.#show(null);
  }

  #show(position: LabPosition | null): void {
    this.position = position;
    this.trials.at(position?.id ?? null);
    if (position) return;
    this.rules = [];
    this.#ruled = null;
  }
}
