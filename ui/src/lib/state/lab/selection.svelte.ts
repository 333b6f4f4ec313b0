// The position shown in the lab: its source, both distributions, the acceptance rules, and sampled rounds. No DOM.

import type { Host } from '../../host';
import { call, toErrorInfo } from '../../ipc/rpc';
import type { ErrorInfo, LabPosition, LabRuleRow, LabSource, SamplingParams, TokenEvent } from '../../ipc/schema.gen';
import { language } from '../../strings/index.svelte';
import type { Models } from '../models.svelte';
import { isUsable, type Settings } from '../settings.svelte';
import type { AnsweredTurn } from '../thread.svelte';
import { pageFrame, type NextFrame } from '../frame';
import { RuleTests } from './ruleTests.svelte';
import type { LabSourceKind } from '../../strings/keys';

/** Temperatures of the rules: 0 is greedy, then denser where more changes. */
export const temperatures: readonly number[] = [
  ...[0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3],
  ...Array.from({ length: 17 }, (_, step) => (4 + step) / 10),
];

/** Answers of the open conversation. */
export interface Answers {
  readonly answered: readonly Pick<AnsweredTurn, 'answer' | 'answerId' | 'settings'>[];
}

/** The most interesting token of an answer: the first resampled one, or one in the middle. */
function interestingToken(tokens: readonly TokenEvent[]): number {
  const resampled = tokens.findIndex(({ origin }) => origin === 'resampled');
  return resampled >= 0 ? resampled : Math.floor(tokens.length / 2);
}

/** A position and its requests. */
export class Selection {
  /** Kind of the chosen source. */
  kind = $state<LabSourceKind>('toy');
  /** A typed text, whose end is the position. */
  text = $state('');
  /** The chosen token: its answer's message and its index. */
  chosen = $state.raw<{ message: number; token: number } | null>(null);
  /** Temperature of both distributions. At 0 each has one token, so the lab starts with 1 if the chat uses 0. */
  temperature = $state(1);
  position = $state.raw<LabPosition | null>(null);
  rules = $state.raw<readonly LabRuleRow[]>([]);
  looking = $state(false);
  error = $state.raw<ErrorInfo | null>(null);
  readonly ruleTests: RuleTests;

  readonly #host: Host;
  readonly #models: Models;
  readonly #settings: Settings;
  readonly #answers: Answers;
  /** The requested source. */
  #source: LabSource | null = null;
  /** Fallbacks if it is refused. A chosen source has none. */
  #instead: readonly LabSource[] = [];
  /** Source of `rules`. */
  #ruled: LabSource | null = null;
  /** `true` if a newer request waits. */
  #again = false;
  /** `true` if the user has chosen a source. */
  #chose = false;
  /** `true` if the user has chosen a temperature. */
  #warmed = false;
  /** Pair of models that the first position was found for, while the user has chosen none; undefined before. */
  #openedWith: string | null | undefined;

  constructor(host: Host, models: Models, settings: Settings, answers: Answers, nextFrame: NextFrame = pageFrame) {
    this.#host = host;
    this.#models = models;
    this.#settings = settings;
    this.#answers = answers;
    this.ruleTests = new RuleTests(host, nextFrame);
  }

  /** `true` if a target is loaded with a draft model or a head. */
  get paired(): boolean {
    return this.#pair !== null;
  }

  /** Shows a first position when the lab is opened, unless the user has chosen one: of the loaded pair, or the toy.
   * Again for another pair. */
  async open(): Promise<void> {
    if (this.#chose || this.#openedWith === this.#pair) return;
    this.#openedWith = this.#pair;
    const [first, ...rest] = this.#openings();
    if (first) await this.#look(first, rest);
  }

  /** Chooses a kind of source, and requests it if it is complete. */
  async choose(kind: LabSourceKind): Promise<void> {
    this.#chose = true;
    this.kind = kind;
    if (kind === 'toy') await this.#look({ kind });
    else if (kind === 'answer' && this.chosen) await this.lookAt(this.chosen.message, this.chosen.token);
    else if (kind === 'text' && this.text.trim() !== '') await this.read();
    else {
      this.#drop();
      this.#adoptTemperature(null);
    }
  }

  /** Drops results of other models, all but the toy. */
  forget(): void {
    if (this.#source === null || this.#source.kind === 'toy') return;
    this.chosen = null;
    this.#drop();
  }

  /** Shows the position of a token of an answer. */
  async lookAt(message: number, token: number): Promise<void> {
    this.#chose = true;
    await this.#look({ kind: 'answer', message, token });
  }

  /** Shows the end of the typed text. */
  async read(): Promise<void> {
    this.#chose = true;
    if (this.text === '') return;
    await this.#look({ kind: 'text', text: this.text });
  }

  /** Requests the same position at another temperature. */
  async warm(temperature: number): Promise<void> {
    this.#warmed = true;
    this.temperature = temperature;
    if (this.#source) await this.#look(this.#source, this.#instead);
  }

  /** The saved sampling of the shown answer, by which its drafts were drawn; null for other positions. */
  get own(): SamplingParams | null {
    return this.chosen && this.kind === 'answer' ? this.#saved(this.chosen.message) : null;
  }

  #saved(message: number): SamplingParams | null {
    return this.#answers.answered.find(({ answerId }) => answerId === message)?.settings?.sampling ?? null;
  }

  /** Sampling of both distributions but for the temperature: the answer's own filters and penalties, or the chat's. */
  #samplingOf(source: LabSource | null): SamplingParams | null {
    const own = source?.kind === 'answer' ? this.#saved(source.message) : null;
    return own ?? this.#settings.request()?.sampling ?? null;
  }

  /** Takes the temperature of an answer, or the chat's for other sources, unless the user has chosen one. */
  #adoptTemperature(source: LabSource | null): void {
    if (this.#warmed) return;
    const own = this.#samplingOf(source)?.temperature ?? 0;
    this.temperature = own > 0 ? own : 1;
  }

  /** Identifies the loaded pair; null for none. */
  get #pair(): string | null {
    const { loaded } = this.#models;
    if (!loaded) return null;
    const drafter = loaded.draft?.path ?? (isUsable('head', loaded) ? (loaded.head?.path ?? '') : null);
    return drafter === null ? null : `${loaded.target.path}\n${drafter}`;
  }

  /** First positions, best first. The engine refuses answers of other models. */
  #openings(): LabSource[] {
    const toy: LabSource = { kind: 'toy' };
    if (!this.paired) return [toy];
    const text: LabSource = { kind: 'text', text: language.strings.lab.selection.example };
    const turn = this.#answers.answered.findLast(({ answer }) => answer.tokens.length > 0);
    return turn ? [{ kind: 'answer', message: turn.answerId, token: interestingToken(turn.answer.tokens) }, text, toy] : [text, toy];
  }

  /** Requests a source, with fallbacks. The engine handles one at a time; meanwhile only the latest request waits. */
  async #look(source: LabSource, instead: readonly LabSource[] = []): Promise<void> {
    this.#point(source, instead);
    this.#adoptTemperature(source);
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

  /** Makes a source the current one. */
  #point(source: LabSource, instead: readonly LabSource[]): void {
    this.#source = source;
    this.#instead = instead;
    this.kind = source.kind;
    if (source.kind === 'answer') this.chosen = { message: source.message, token: source.token };
    if (source.kind === 'text') this.text = source.text;
  }

  async #ask(source: LabSource): Promise<void> {
    // Something newer may be wanted by then, or nothing.
    const wanted = (): boolean => !this.#again && this.#source === source;
    const sampling = this.#samplingOf(source);
    if (!sampling) return;
    try {
      const request = { source, sampling: { ...sampling, temperature: this.temperature } };
      const position = await call(this.#host, 'lab_position', { request });
      if (!wanted()) return;
      this.#instead = [];
      this.#show(position);
      // The rules cover all temperatures, so they stay for the same source.
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
      // The source is fine, so it is tried again when the lab is reopened.
      if (error.code === 'busy') this.#openedWith = undefined;
      this.#point(next, rest);
      this.#again = true;
    }
  }

  /** Shows nothing. A late response is dropped. */
  #drop(): void {
    this.#source = null;
    this.#again = false;
    this.error = null;
    this.#show(null);
  }

  #show(position: LabPosition | null): void {
    this.position = position;
    this.ruleTests.at(position?.id ?? null);
    if (position) return;
    this.rules = [];
    this.#ruled = null;
  }
}
