// The position that the lab looks at: where it is, both distributions there, what the acceptance rules make of them,
// and the rounds drawn there. No DOM.

import type { Host } from '../../host';
import { call, toErrorInfo } from '../../ipc/rpc';
import type { ErrorInfo, LabPosition, LabRuleRow, LabSource, TokenEvent } from '../../ipc/schema.gen';
import { language } from '../../strings/index.svelte';
import type { Models } from '../models.svelte';
import type { Settings } from '../settings.svelte';
import type { AnsweredTurn } from '../thread.svelte';
import { pageFrame, type NextFrame } from '../frame';
import { Trials } from './trials.svelte';
import type { SpotKind } from '../../strings/keys';

/** Temperatures at which the rules are compared: 0 takes the likeliest, then closer where more happens. */
export const temperatures: readonly number[] = [
  ...[0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3],
  ...Array.from({ length: 17 }, (_, step) => (4 + step) / 10),
];

/** The answers of the open conversation. */
export interface Answers {
  readonly answered: readonly Pick<AnsweredTurn, 'answer' | 'answerId'>[];
}

/** The token whose place says most about an answer: the first that was resampled, or one in the middle. */
function tellingToken(tokens: readonly TokenEvent[]): number {
  const resampled = tokens.findIndex(({ origin }) => origin === 'resampled');
  return resampled >= 0 ? resampled : Math.floor(tokens.length / 2);
}

/** A position, from being asked for on. */
export class Spot {
  /** What kind of place is chosen. */
  kind = $state<SpotKind>('toy');
  /** A text that is typed, at the end of which to look. */
  text = $state('');
  /** The token that is chosen: its answer's message and its number. */
  chosen = $state.raw<{ message: number; token: number } | null>(null);
  /** Of both distributions. At 0 each is one token, so the lab begins with 1 where answers are drawn at 0. */
  temperature = $state(1);
  position = $state.raw<LabPosition | null>(null);
  rules = $state.raw<readonly LabRuleRow[]>([]);
  looking = $state(false);
  error = $state.raw<ErrorInfo | null>(null);
  readonly trials: Trials;

  readonly #host: Host;
  readonly #models: Models;
  readonly #settings: Settings;
  readonly #answers: Answers;
  /** The place that was asked for last. */
  #source: LabSource | null = null;
  /** Where to look instead when that is refused; what a person chose is not replaced. */
  #instead: readonly LabSource[] = [];
  /** The place that `rules` are of. */
  #ruled: LabSource | null = null;
  /** Whether something newer is wanted than what is being looked at. */
  #again = false;
  #begun = false;
  /** Whether the person has chosen a place. */
  #chose = false;
  /** The pair of models that the place was found for, as long as the person has chosen none; undefined before. */
  #openedWith: string | null | undefined;

  constructor(host: Host, models: Models, settings: Settings, answers: Answers, nextFrame: NextFrame = pageFrame) {
    this.#host = host;
    this.#models = models;
    this.#settings = settings;
    this.#answers = answers;
    this.trials = new Trials(host, nextFrame);
  }

  /** Whether there are two models whose distributions can be looked at. */
  get paired(): boolean {
    return this.#pair !== null;
  }

  /** Shows something when the lab is opened and the person has chosen nothing: what the models really say, where
   * there is a pair of them, or else the toy. Again with another pair. */
  async open(): Promise<void> {
    if (this.#chose || this.#openedWith === this.#pair) return;
    this.#begin();
    this.#openedWith = this.#pair;
    const [first, ...rest] = this.#openings();
    if (first) await this.#look(first, rest);
  }

  /** Chooses a kind of place, and looks where that says enough. */
  async choose(kind: SpotKind): Promise<void> {
    this.#chose = true;
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
    this.#chose = true;
    this.#begin();
    await this.#look({ kind: 'answer', message, token });
  }

  /** Looks at the end of the text that is typed. */
  async read(): Promise<void> {
    this.#chose = true;
    if (this.text === '') return;
    await this.#look({ kind: 'text', text: this.text });
  }

  /** Makes both distributions of the same place at another temperature. */
  async warm(temperature: number): Promise<void> {
    this.temperature = temperature;
    if (this.#source) await this.#look(this.#source, this.#instead);
  }

  #begin(): void {
    if (this.#begun) return;
    this.#begun = true;
    if (this.#settings.temperature > 0) this.temperature = this.#settings.temperature;
  }

  /** What the distributions are of; null without a pair of models. */
  get #pair(): string | null {
    const { loaded } = this.#models;
    return loaded?.draft ? `${loaded.target.path}\n${loaded.draft.path}` : null;
  }

  /** Where the lab may open, the best first. The engine refuses an answer that other models wrote. */
  #openings(): LabSource[] {
    const toy: LabSource = { kind: 'toy' };
    if (!this.paired) return [toy];
    const text: LabSource = { kind: 'text', text: language.strings.lab.spot.example };
    const turn = this.#answers.answered.findLast(({ answer }) => answer.tokens.length > 0);
    return turn ? [{ kind: 'answer', message: turn.answerId, token: tellingToken(turn.answer.tokens) }, text, toy] : [text, toy];
  }

  /** Looks at a place, or at others where it is refused. The engine looks at one at a time: while it does, only
   * the last one wanted is remembered. */
  async #look(source: LabSource, instead: readonly LabSource[] = []): Promise<void> {
    this.#point(source, instead);
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

  /** Has the place on screen be this one. */
  #point(source: LabSource, instead: readonly LabSource[]): void {
    this.#source = source;
    this.#instead = instead;
    this.kind = source.kind;
    if (source.kind === 'answer') this.chosen = { message: source.message, token: source.token };
    if (source.kind === 'text') this.text = source.text;
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
      this.#instead = [];
      this.#show(position);
      // The rules go over all temperatures: at the same place they stay as they were.
      if (this.#ruled !== source) this.rules = [];
      this.#ruled = source;
      const rules = await call(this.#host, 'lab_rules', { position: position.id, temperatures: [...temperatures] });
      if (wanted()) this.rules = rules;
    } catch (thrown) {
      if (!wanted()) return;
      const error = toErrorInfo(thrown);
      const [next, ...rest] = this.#instead;
      if (!next) {
        this.#show(null);
        this.error = error;
        return;
      }
      // Nothing is wrong with the place: it is tried again when the lab is opened again.
      if (error.code === 'busy') this.#openedWith = undefined;
      this.#point(next, rest);
      this.#again = true;
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
