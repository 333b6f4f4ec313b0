// The form of a comparison: prompts, methods, runs and sampling. No DOM.

import type { AcceptanceRule, ComparedPrompts, CompareRequest, LaneConfig, MaxDraft, Method } from '../ipc/schema.gen';
import { addedLanes, laneKey, mostLanes, ownLabels } from '../lanes';
import { offeredMethods } from '../methods';
import type { LaneModelChoices } from './laneModels.svelte';
import type { Models } from './models.svelte';
import type { ServerChoice } from './preferences.svelte';
import { isUsable, Settings } from './settings.svelte';
import type { OwnSuite } from './suiteFile.svelte';
import { language } from '../strings/index.svelte';
import type { Missing, PromptKind } from '../strings/keys';

/** State of the chat that the form depends on. */
interface ChatSide {
  /** Settings of the chat, used until they are changed here. */
  settings: Settings;
  /** `true` if an answer keeps the engine busy. */
  busy: () => boolean;
  /** `true` if the server is in the list. */
  hasServer: (address: string) => boolean;
}

/** Other state that the form uses. */
interface PlanParts {
  models: Models;
  choices: LaneModelChoices;
  suite: OwnSuite;
  chat: ChatSide;
}

/** Depths for repeated lanes of a method, in order. */
const repeatDepths = [4, 8, 2, 12, 6, 1, 3] as const;

/** Most prompts of a built-in suite to choose by number. Suites have 15 or 16. */
const builtInPrompts = 15;

/** Samples from which on a verdict is certain. */
const certainSamples = 6;

/** Runs of every prompt, if there are several. The samples are the prompts then. */
const runsOfSuites = 2;

/** Maximum length of an answer, if the chat's is its default. Comparing speeds needs no long answers. */
const comparedTokens = 512;

/** Draft lengths of a sweep. */
const sweepDepths: readonly MaxDraft[] = [1, 2, 3, 4, 6, 8, 'auto'];

/** Returns `true` if two lanes are identical, which the engine refuses. */
const same = (one: LaneConfig, other: LaneConfig): boolean => laneKey(one) === laneKey(other);

/** Returns `true` if two rules are identical. */
const sameRule = (one: AcceptanceRule, other: AcceptanceRule): boolean => JSON.stringify(one) === JSON.stringify(other);

/** The form of a comparison. */
export class ComparisonPlan {
  kind = $state<PromptKind>('text');
  text = $state('');
  /** Number of prompts of a suite; null for all. */
  prompts = $state<number | null>(certainSamples);
  /** Runs that the user chose; null for none. */
  #ownRuns = $state<number | null>(null);
  #chosen = $state.raw<readonly LaneConfig[]>([]);
  /** The lanes that the form began with. */
  #first: readonly LaneConfig[] = [];
  #server = $state.raw<ServerChoice | null>(null);
  /** Sampling settings and token limit. */
  readonly settings = new Settings();

  /** Models to choose from for single lanes. */
  readonly choices: LaneModelChoices;
  /** The user's file of prompts. */
  readonly suite: OwnSuite;
  readonly #models: Models;
  readonly #chat: ChatSide;
  /** The settings as copied from the chat. */
  #taken: string | null = null;

  /** The lanes next to plain decoding, with the settings that differ from the comparison's. */
  lanes = $derived.by((): readonly LaneConfig[] => this.#chosen.map((lane) => this.#withoutUsual(lane)));

  /** Why no models can be compared now; null if they can. */
  #missingModels = $derived.by((): Missing | null => {
    if (this.#models.loading !== null) return 'loading';
    if (!this.#models.loaded) return 'model';
    return this.#chat.busy() ? 'chat' : null;
  });

  /** Which prompts are missing; null for none. */
  #missingPrompts = $derived.by((): Missing | null => {
    if (this.kind === 'file') return this.suite.file === null ? 'file' : null;
    return this.kind === 'text' && this.text.trim() === '' ? 'text' : null;
  });

  /** Why the comparison of the lanes cannot start now; null if it can. */
  missing = $derived.by((): Missing | null => {
    if (this.#missingModels !== null) return this.#missingModels;
    if (this.lanes.length === 0) return 'method';
    if (this.lanes.some((lane) => this.lacks(lane))) return 'needs';
    if (this.lanes.some((lane, i) => this.lanes.findIndex((other) => same(other, lane)) < i)) return 'same';
    if (this.lanes.length + this.#added(this.lanes) > mostLanes) return 'lanes';
    return this.#missingPrompts;
  });

  /** Plain lanes that the engine adds for lanes. */
  #added(lanes: readonly LaneConfig[]): number {
    return addedLanes(lanes, { target: this.#models.loaded?.target.path ?? null, temperature: this.settings.temperature });
  }

  /** `true` if there is room for another lane. */
  get hasRoom(): boolean {
    return this.lanes.length > 0 && this.lanes.length + this.#added(this.lanes) < mostLanes;
  }

  /** `true` if the models cannot run a lane's method. */
  lacks(lane: LaneConfig): boolean {
    return !isUsable(lane.method, this.choices.loadedFor(lane));
  }

  /** Most prompts of the chosen suite to choose by number. */
  get mostPrompts(): number {
    return this.kind === 'file' ? (this.suite.file?.prompts ?? 1) : builtInPrompts;
  }

  /** Number of prompts of the chosen suite; null for all. */
  get suitePrompts(): number | null {
    return this.prompts === null ? null : Math.min(this.prompts, this.mostPrompts);
  }

  /** Runs of every prompt in every lane: by default enough for a certain verdict. */
  get runs(): number {
    const single = this.kind === 'text' || (this.suitePrompts ?? this.mostPrompts) === 1;
    return this.#ownRuns ?? (single ? certainSamples : runsOfSuites);
  }

  set runs(runs: number) {
    this.#ownRuns = runs;
  }

  /** Model of a server that answers next to the lanes; null for none, and once the server was removed. */
  get server(): ServerChoice | null {
    const chosen = this.#server;
    return chosen && this.#chat.hasServer(chosen.address) ? chosen : null;
  }

  set server(choice: ServerChoice | null) {
    this.#server = choice;
  }

  constructor({ models, choices, suite, chat }: PlanParts) {
    this.#models = models;
    this.choices = choices;
    this.suite = suite;
    this.#chat = chat;
  }

  /** Copies the chat's settings, unless they were changed here. Called when the form is shown or the models change.
   * Lanes that were changed here stay, also if the models cannot run them. */
  arrive(): void {
    const { info, loaded } = this.#models;
    if (!info) return;
    // Biases of unknown tokens are left out.
    this.#chat.settings.advanced?.bias.check().catch(() => {});
    const chosen = () => JSON.stringify(this.settings.chosen());
    if (this.#taken === null || this.#taken === chosen()) {
      this.settings.adopt(info);
      const maxTokens = this.#chat.settings.kept()?.maxTokens ?? comparedTokens;
      this.settings.choose({ ...this.#chat.settings.chosen(), maxTokens }, loaded);
      this.#taken = chosen();
    }
    const untouched = this.#chosen === this.#first;
    if (this.lanes.length === 0 || (untouched && this.lanes.some((lane) => this.lacks(lane)))) this.#begin();
  }

  /** Adds the next unused method, or the last one with another depth. */
  add(): void {
    if (!this.hasRoom) return;
    const method = this.#usable().find((other) => this.lanes.every((lane) => lane.method !== other)) ?? this.lanes.at(-1)?.method;
    if (!method) return;
    const { max } = this.settings.range('max_draft');
    const depths = [this.settings.maxDraft, ...repeatDepths.filter((depth) => depth <= max)];
    const added = depths.map((max_draft) => ({ method, max_draft })).find((lane) => !this.lanes.some((other) => same(other, lane)));
    if (added) this.#chosen = [...this.#chosen, added];
  }

  /** Method whose draft lengths a sweep compares: that of the first lane, or of a draft model in place of `auto`, which
   * chooses among methods. Null for none. */
  sweeps = $derived.by((): Method | null => {
    const [first] = this.lanes;
    if (!first) return null;
    if (first.method !== 'auto') return first.method;
    const usable = this.choices.loadedFor(first)?.methods ?? [];
    return usable.includes('draft-model') ? 'draft-model' : (usable.find((name) => name !== 'plain' && name !== 'auto') ?? null);
  });

  /** Lanes of a sweep: the first one with every draft length. */
  sweepLanes = $derived.by((): LaneConfig[] => {
    const [first] = this.lanes;
    const method = this.sweeps;
    const { max } = this.settings.range('max_draft');
    if (!first || method === null) return [];
    const depths = sweepDepths.filter((depth) => depth === 'auto' || depth <= max);
    const lanes = depths.map((max_draft) => this.choices.normalised({ ...first, method, max_draft }));
    // A plain lane that is added takes the place of the longest draft.
    return lanes.length + this.#added(lanes.map((lane) => this.#withoutUsual(lane))) > mostLanes ? lanes.toSpliced(-2, 1) : lanes;
  });

  /** Returns `true` if the lanes of a sweep can be compared now. */
  get canSweep(): boolean {
    const [first] = this.sweepLanes;
    return (
      this.#missingModels === null &&
      this.#missingPrompts === null &&
      first !== undefined &&
      isUsable(first.method, this.choices.loadedFor(first))
    );
  }

  change(at: number, lane: LaneConfig): void {
    this.#chosen = this.#chosen.with(at, this.choices.normalised(lane));
  }

  remove(at: number): void {
    this.#chosen = this.#chosen.filter((_, i) => i !== at);
  }

  /** `true` if the chat has advanced settings, which lanes share. */
  get sharesAdvanced(): boolean {
    return (this.#chat.settings.advanced?.changed ?? 0) > 0;
  }

  /** `true` if biases of the chat are left out. Either a lane has another target than the loaded one, or a text is
   * several tokens of the loaded one. */
  get leavesBiasesOut(): boolean {
    const bias = this.#chat.settings.advanced?.bias;
    const { entries = [], byToken = {} } = bias ?? {};
    return entries.length > (this.#hasOtherTarget(this.lanes) ? 0 : Object.keys(byToken).length);
  }

  #hasOtherTarget(lanes: readonly LaneConfig[]): boolean {
    const loaded = this.#models.loaded?.target.path;
    return lanes.some(({ models }) => models !== undefined && models.target !== loaded);
  }

  /** Labels of what a lane does not share with the settings of the comparison. */
  labels(lane: LaneConfig): string[] {
    const depth = lane.max_draft === 'auto' ? [] : [language.strings.compare.lanes.depth(String(lane.max_draft))];
    return [...depth, ...ownLabels(this.choices.titled(lane), this.choices.targetTitle)];
  }

  /** The request; null if something is missing. */
  request(): CompareRequest | null {
    return this.missing === null ? this.#request(this.lanes) : null;
  }

  /** The request of a sweep; null if something is missing. */
  sweepRequest(): CompareRequest | null {
    return this.canSweep ? this.#request(this.sweepLanes) : null;
  }

  #request(lanes: readonly LaneConfig[]): CompareRequest | null {
    const settings = this.settings.request();
    const prompts = this.#prompts();
    if (!settings || !prompts) return null;
    const { rule, max_tokens, stop, options, thinking, ...applied } = this.#chat.settings.advanced?.applyTo(settings) ?? settings;
    const sampling = this.#hasOtherTarget(lanes) ? { ...applied.sampling, logit_bias: {} } : applied.sampling;
    return {
      prompts,
      lanes: [...lanes],
      sampling,
      rule,
      max_tokens,
      runs: this.runs,
      ...(stop.length > 0 && { stop }),
      ...(options && Object.keys(options).length > 0 && { options }),
      // A choice for another model that this one lacks changes nothing.
      ...(thinking && this.#models.loaded?.thinking?.includes(thinking) && { thinking }),
      ...(this.server && { server: this.server }),
    };
  }

  #prompts(): ComparedPrompts | null {
    if (this.kind === 'text') return { kind: 'text', system: '', text: this.text.trim() };
    if (this.kind !== 'file') return { kind: 'suite', name: this.kind, prompts: this.suitePrompts };
    const { file } = this.suite;
    return file && { kind: 'file', path: file.path, prompts: this.suitePrompts };
  }

  /** A lane without settings that are the comparison's. */
  #withoutUsual({ rule, temperature, ...lane }: LaneConfig): LaneConfig {
    return {
      ...lane,
      ...(rule !== undefined && !sameRule(rule, this.settings.rule) && { rule }),
      ...(temperature !== undefined && temperature !== this.settings.temperature && { temperature }),
    };
  }

  #begin(): void {
    const [method] = this.#usable();
    this.#first = method ? [{ method, max_draft: this.settings.maxDraft }] : [];
    this.#chosen = this.#first;
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
