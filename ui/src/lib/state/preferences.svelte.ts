// Preferences for all conversations: appearance, language, sampling, presets. The host stores them. Invalid stored
// values count as missing. No DOM.

import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { ErrorInfo, Thinking } from '../ipc/schema.gen';
import { languages, type LanguageCode } from '../strings/index.svelte';
import { asRule, lossless } from '../rules';
import type { KeptFile } from './attachedFile';
import type { Chosen, KeptSettings } from './settings.svelte';
import { appearances, colourModes, textSizes, views, type Appearance, type ColourMode, type TextSize, type View } from '../strings/keys';

/** Named instructions and settings. */
export interface Preset {
  readonly name: string;
  readonly system: string;
  readonly settings: Chosen;
}

/** Last models, by path. */
export interface LastModels {
  readonly target: string;
  readonly draft: string | null;
  /** Path of the chosen head; absent for none. */
  readonly head?: string;
  /** Null for the target's default. */
  readonly context: number | null;
  /** Name of the target, for showing it before the folders are searched, or if it is in none; null if not saved. */
  readonly name: string | null;
  readonly quantisation: string | null;
}

/** A model of a server. */
export interface ServerChoice {
  readonly address: string;
  readonly model: string;
}

/** All choices of reasoning before an answer. */
const thinkingChoices: readonly Thinking[] = ['off', 'on', 'low', 'medium', 'high'];

/** Minutes until unused models are unloaded. */
export const keepWarmChoices = [0, 5, 15, 60] as const;

/** Number of remembered targets. */
export const recentAtMost = 5;

/** All stored preferences. */
export interface Values {
  appearance: Appearance;
  textSize: TextSize;
  /** Null for the system's. */
  language: LanguageCode | null;
  colourMode: ColourMode;
  view: View;
  presets: readonly Preset[];
  /** Settings of answers that differ from the engine's defaults. */
  settings: Partial<KeptSettings>;
  /** The last models; null for none. */
  lastModels: LastModels | null;
  /** Model of a server that answers; null for the loaded models. */
  server: ServerChoice | null;
  /** Paths of recently loaded targets, latest first. */
  recentModels: readonly string[];
  /** Minutes until unused models are unloaded; 0 for never. The engine reads it too. */
  keepWarmMinutes: number;
  /** Drafts by conversation key. */
  drafts: Readonly<Record<string, string>>;
  /** Files of drafts, by conversation key. */
  draftFiles: Readonly<Record<string, readonly KeptFile[]>>;
  /** Instructions of the next new conversation; null for the default ones. */
  newInstructions: string | null;
  /** Instructions of every new conversation. */
  defaultInstructions: string;
  /** `true` once the reader has closed the explanation of the colours. */
  coloursKnown: boolean;
  /** `true` if answers show all figures, not only one line. */
  allFigures: boolean;
  /** `true` if the app may look for updates by itself. */
  automaticUpdates: boolean;
}

type Key = keyof Values;

const defaults: Values = {
  appearance: 'system',
  textSize: 15,
  language: null,
  colourMode: 'origin',
  view: 'rich',
  presets: [],
  settings: {},
  lastModels: null,
  server: null,
  recentModels: [],
  keepWarmMinutes: 0,
  drafts: {},
  draftFiles: {},
  newInstructions: null,
  defaultInstructions: '',
  coloursKnown: false,
  allFigures: false,
  automaticUpdates: false,
};

/** Keys in the host's store. */
const kept: Record<Key, string> = {
  appearance: 'appearance',
  textSize: 'text_size',
  language: 'language',
  colourMode: 'colour_mode',
  view: 'view',
  presets: 'presets',
  settings: 'settings',
  lastModels: 'last_models',
  server: 'server',
  recentModels: 'recent_models',
  keepWarmMinutes: 'keep_warm_minutes',
  drafts: 'drafts',
  draftFiles: 'draft_files',
  newInstructions: 'new_instructions',
  defaultInstructions: 'default_instructions',
  coloursKnown: 'colours_known',
  allFigures: 'all_figures',
  automaticUpdates: 'automatic_updates',
};

/** Parses a stored value; undefined if invalid. */
const understand: { [K in Key]: (value: unknown) => Values[K] | undefined } = {
  appearance: (value) => oneOf(appearances, value),
  textSize: (value) => oneOf(textSizes, value),
  language: (value) =>
    value === null
      ? null
      : oneOf(
          languages.map(({ code }) => code),
          value,
        ),
  // Earlier versions stored the entropy mode as "surprise".
  colourMode: (value) => oneOf(colourModes, value === 'surprise' ? 'entropy' : value),
  view: (value) => oneOf(views, value),
  presets: (value) => (Array.isArray(value) ? distinct(value.flatMap((one) => asPreset(one) ?? [])) : undefined),
  settings: asKeptSettings,
  lastModels: (value) => (value === null ? null : asLastModels(value)),
  server: (value) => (value === null ? null : asServerChoice(value)),
  recentModels: (value) => (Array.isArray(value) ? value.filter((path) => typeof path === 'string') : undefined),
  keepWarmMinutes: (value) => (isNumber(value) && value >= 0 ? value : undefined),
  newInstructions: (value) => (value === null ? null : asText(value)),
  defaultInstructions: asText,
  coloursKnown: asBoolean,
  allFigures: asBoolean,
  automaticUpdates: asBoolean,
  drafts: (value) =>
    Object.fromEntries(Object.entries(fields(value)).filter((entry): entry is [string, string] => typeof entry[1] === 'string')),
  draftFiles: (value) =>
    Object.fromEntries(
      Object.entries(fields(value)).map(([name, files]) => [
        name,
        Array.isArray(files) ? files.flatMap((file) => asKeptFile(file) ?? []) : [],
      ]),
    ),
};

/** Joins a value of this session and that of another store. Without an entry, one of them is used. */
const join: { [K in Key]?: (own: Values[K], stored: Values[K]) => Values[K] } = {
  presets: (own, stored) => {
    const known = stored.map((preset) => own.find(({ name }) => name === preset.name) ?? preset);
    return distinct([...known, ...own]);
  },
  settings: (own, stored) => ({ ...stored, ...own }),
  recentModels: (own, stored) => [...own, ...stored.filter((path) => !own.includes(path))].slice(0, recentAtMost),
};

const keys = Object.keys(defaults) as Key[];
/** Keys that the engine applies when they are set. */
const ofEngine: readonly Key[] = ['keepWarmMinutes'];
/** Keys whose values another part of the window brings into another store. */
const broughtElsewhere: readonly Key[] = ['drafts', 'draftFiles'];

/** Preferences of the user. A choice applies at once, whether it could be stored or not. */
export class Preferences {
  #values = $state.raw<Values>(defaults);
  /** Why preferences could not be read or stored; null if they could. */
  problem = $state.raw<ErrorInfo | null>(null);

  readonly #host: Host;
  /** Keys set since the start, which reading does not overwrite. */
  // Looked up, never drawn from.
  // eslint-disable-next-line svelte/prefer-svelte-reactivity
  readonly #chosen = new Set<Key>();
  #writing: Promise<void> = Promise.resolve();
  /** `true` if the store has values that were not read. Its lists must not be replaced by those of this session. */
  #unread = false;
  /** Number of times that values of another store were joined. */
  #joined = 0;

  constructor(host: Host) {
    this.#host = host;
  }

  get appearance(): Appearance {
    return this.#values.appearance;
  }

  get textSize(): TextSize {
    return this.#values.textSize;
  }

  get language(): LanguageCode | null {
    return this.#values.language;
  }

  get colourMode(): ColourMode {
    return this.#values.colourMode;
  }

  get view(): View {
    return this.#values.view;
  }

  get presets(): readonly Preset[] {
    return this.#values.presets;
  }

  get settings(): Partial<KeptSettings> {
    return this.#values.settings;
  }

  get lastModels(): LastModels | null {
    return this.#values.lastModels;
  }

  get server(): ServerChoice | null {
    return this.#values.server;
  }

  get recentModels(): readonly string[] {
    return this.#values.recentModels;
  }

  get keepWarmMinutes(): number {
    return this.#values.keepWarmMinutes;
  }

  get drafts(): Readonly<Record<string, string>> {
    return this.#values.drafts;
  }

  get draftFiles(): Readonly<Record<string, readonly KeptFile[]>> {
    return this.#values.draftFiles;
  }

  get newInstructions(): string | null {
    return this.#values.newInstructions;
  }

  get defaultInstructions(): string {
    return this.#values.defaultInstructions;
  }

  get coloursKnown(): boolean {
    return this.#values.coloursKnown;
  }

  get allFigures(): boolean {
    return this.#values.allFigures;
  }

  get automaticUpdates(): boolean {
    return this.#values.automaticUpdates;
  }

  /** Reads the stored preferences. Never rejects: the defaults apply on failure. */
  async load(): Promise<void> {
    try {
      const found = await call(this.#host, 'preferences', {});
      for (const key of keys) if (!this.#chosen.has(key)) this.#take(key, understood(found, key));
    } catch (thrown) {
      this.#unread = true;
      this.problem = toErrorInfo(thrown);
    }
  }

  /** Sets and stores a value. Resolves when stored or failed. Never rejects. */
  set<K extends Key>(key: K, value: Values[K]): Promise<void> {
    this.#chosen.add(key);
    this.#take(key, value);
    const joined = this.#joined;
    const store = () => this.#store(key, joined === this.#joined ? value : this.#values[key]);
    return this.#inOrder(() => (this.#unread ? this.#join().then(store) : store()));
  }

  /** Runs an action that may put another store in place of the current one, and joins their values. Values chosen in
   * this session win, and lists have the entries of both. `joined` gets the values from before, as soon as the new ones
   * apply. Resolves when they are stored. Never rejects. */
  replaceStore(replace: () => Promise<boolean>, joined: (before: Values) => void): Promise<void> {
    return this.#inOrder(async () => {
      if (!(await replace())) return false;
      this.#unread = true;
      return this.#join(joined);
    });
  }

  /** Runs requests one after the other, so that the last choice is the stored one. False for one that stored nothing.
   * Never rejects. */
  #inOrder(request: () => Promise<unknown>): Promise<void> {
    this.#writing = this.#writing.then(async () => {
      try {
        if ((await request()) !== false) this.problem = null;
      } catch (thrown) {
        this.problem = toErrorInfo(thrown);
      }
    });
    return this.#writing;
  }

  #store<K extends Key>(key: K, value: Values[K]): Promise<unknown> {
    return call(this.#host, 'set_preference', { key: kept[key], value });
  }

  /** Reads a store with values of its own, and stores those of this session that it lacks. */
  async #join(done: (before: Values) => void = () => {}): Promise<void> {
    const found = await call(this.#host, 'preferences', {}).catch((thrown: unknown) => {
      done(this.#values);
      throw thrown;
    });
    const before = this.#values;
    this.#unread = false;
    this.#joined += 1;
    const lacking: Key[] = [];
    for (const key of keys) {
      const own = this.#values[key];
      const stored = understood(found, key);
      this.#take(key, broughtElsewhere.includes(key) ? (stored ?? defaults[key]) : this.#joinedValue(key, own, stored));
      const joined = JSON.stringify(this.#values[key]);
      const isUnapplied = ofEngine.includes(key) && joined !== JSON.stringify(own);
      if (isUnapplied || joined !== JSON.stringify(stored ?? defaults[key])) lacking.push(key);
    }
    done(before);
    for (const key of lacking) await this.#store(key, this.#values[key]);
  }

  #joinedValue<K extends Key>(key: K, own: Values[K], stored: Values[K] | undefined): Values[K] {
    if (stored === undefined) return own;
    return join[key]?.(own, stored) ?? (this.#chosen.has(key) ? own : stored);
  }

  /** Changes the text size by steps, within its range. */
  resize(steps: number): void {
    const size = textSizes[textSizes.indexOf(this.textSize) + steps];
    if (size !== undefined) void this.set('textSize', size);
  }

  /** Resets the text size. */
  resetSize(): void {
    void this.set('textSize', defaults.textSize);
  }

  /** Stores the settings of answers, if they have changed. */
  keepSettings(kept: Partial<KeptSettings>): void {
    if (JSON.stringify(kept) !== JSON.stringify(this.settings)) void this.set('settings', kept);
  }

  /** Saves a preset, replacing one of the same name. Unnamed presets are not saved. */
  savePreset(preset: Preset): void {
    const name = preset.name.trim();
    if (name === '') return;
    const saved = { ...preset, name };
    const at = this.presets.findIndex((other) => other.name === name);
    void this.set('presets', at < 0 ? [...this.presets, saved] : this.presets.with(at, saved));
  }

  /** Renames a preset. Returns false if it is missing, or the new name is empty or taken. */
  renamePreset(from: string, to: string): boolean {
    const name = to.trim();
    const at = this.presets.findIndex((preset) => preset.name === from);
    const preset = this.presets[at];
    if (!preset || name === '' || this.presets.some((other, i) => i !== at && other.name === name)) return false;
    if (name !== from) void this.set('presets', this.presets.with(at, { ...preset, name }));
    return true;
  }

  /** Deletes a preset. */
  deletePreset(name: string): void {
    void this.set(
      'presets',
      this.presets.filter((preset) => preset.name !== name),
    );
  }

  #take<K extends Key>(key: K, value: Values[K] | undefined): void {
    if (value !== undefined) this.#values = { ...this.#values, [key]: value };
  }
}

/** A stored value; undefined if it is missing or invalid. */
function understood<K extends Key>(found: Readonly<Record<string, unknown>>, key: K): Values[K] | undefined {
  return Object.hasOwn(found, kept[key]) ? understand[key](found[kept[key]]) : undefined;
}

function oneOf<T>(allowed: readonly T[], value: unknown): T | undefined {
  return allowed.find((one) => one === value);
}

/** Drops presets with a duplicate name. */
function distinct(presets: Preset[]): Preset[] {
  return presets.filter((preset, i) => presets.findIndex((other) => other.name === preset.name) === i);
}

function asPreset(value: unknown): Preset | undefined {
  const { name, system, settings } = fields(value);
  const { method, maxDraft, temperature, topK, topP, minP, repeatPenalty, maxTokens, seed, rule, thinking } = fields(settings);
  if (typeof name !== 'string' || name.trim() === '' || typeof system !== 'string') return undefined;
  // The engine knows the methods. One that it lacks is ignored where the preset is used.
  if (typeof method !== 'string') return undefined;
  if (!(maxDraft === 'auto' || isNumber(maxDraft)) || !(seed === null || isNumber(seed))) return undefined;
  if (![temperature, topK, topP, minP, repeatPenalty, maxTokens].every(isNumber)) return undefined;
  // Older presets have no rule.
  const acceptance = rule === undefined ? lossless : asRule(rule);
  if (acceptance === undefined) return undefined;
  const numbers = { temperature, topK, topP, minP, repeatPenalty, maxTokens } as Omit<
    Chosen,
    'method' | 'maxDraft' | 'seed' | 'rule' | 'thinking'
  >;
  return {
    name: name.trim(),
    system,
    settings: { method, maxDraft, ...numbers, seed, rule: acceptance, thinking: oneOf(thinkingChoices, thinking) ?? null },
  };
}

/** Settings of answers without those that are broken. */
function asKeptSettings(value: unknown): Partial<KeptSettings> {
  const { method, maxDraft, seed, rule, stop, biases, ...numbers } = fields(value);
  const whole = (one: unknown): one is number => Number.isSafeInteger(one);
  const bias = (one: unknown) => {
    const { text, bias } = fields(one);
    return typeof text === 'string' && text !== '' && isNumber(bias) ? [{ text, bias }] : [];
  };
  const read: { [Name in keyof KeptSettings]: KeptSettings[Name] | undefined } = {
    // The engine knows the methods. One that it lacks is never used.
    method: asText(method),
    maxDraft: maxDraft === 'auto' || whole(maxDraft) ? maxDraft : undefined,
    temperature: asNumber(numbers['temperature']),
    topK: whole(numbers['topK']) ? numbers['topK'] : undefined,
    topP: asNumber(numbers['topP']),
    minP: asNumber(numbers['minP']),
    repeatPenalty: asNumber(numbers['repeatPenalty']),
    maxTokens: whole(numbers['maxTokens']) ? numbers['maxTokens'] : undefined,
    seed: seed === null || whole(seed) ? seed : undefined,
    rule: asRule(rule),
    presencePenalty: asNumber(numbers['presencePenalty']),
    frequencyPenalty: asNumber(numbers['frequencyPenalty']),
    stop: Array.isArray(stop) ? stop.filter((text) => typeof text === 'string') : undefined,
    biases: Array.isArray(biases) ? biases.flatMap(bias) : undefined,
  };
  return Object.fromEntries(Object.entries(read).filter(([, one]) => one !== undefined));
}

function asLastModels(value: unknown): LastModels | undefined {
  const { target, draft, head, context, name, quantisation } = fields(value);
  if (typeof target !== 'string' || !(draft === null || typeof draft === 'string')) return undefined;
  const textOrNull = (value: unknown) => (typeof value === 'string' ? value : null);
  return {
    target,
    draft,
    ...(typeof head === 'string' && { head }),
    context: isNumber(context) ? context : null,
    name: textOrNull(name),
    quantisation: textOrNull(quantisation),
  };
}

function asKeptFile(value: unknown): KeptFile | undefined {
  const { name, text, path } = fields(value);
  if (typeof name !== 'string' || typeof text !== 'string') return undefined;
  return { name, text, path: typeof path === 'string' ? path : null };
}

function asServerChoice(value: unknown): ServerChoice | undefined {
  const { address, model } = fields(value);
  return typeof address === 'string' && typeof model === 'string' ? { address, model } : undefined;
}

function fields(value: unknown): Record<string, unknown> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
}

function asText(value: unknown): string | undefined {
  return typeof value === 'string' ? value : undefined;
}

function asBoolean(value: unknown): boolean | undefined {
  return typeof value === 'boolean' ? value : undefined;
}

function asNumber(value: unknown): number | undefined {
  return isNumber(value) ? value : undefined;
}

function isNumber(value: unknown): value is number {
  return typeof value === 'number' && Number.isFinite(value);
}
