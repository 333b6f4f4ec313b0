// How tokens are marked besides their origin: by how likely the model found them, and by how open their
// place was. One table for each: classes with a border, a colour variable and an underline pattern. The
// legend, the tokens' style sheet and the tests read them.

import { originRules, origins, type AnswerOrigin } from './origin';

/** Every mode in the order it is offered. */
export const colourModes = ['origin', 'off', 'confidence', 'surprise', 'rounds'] as const;
/** What the colours of an answer say. */
export type ColourMode = (typeof colourModes)[number];

/** Classes of confidence: the target's own probability of the token that stands there. */
export type ConfidenceClass = 'sure' | 'likely' | 'unsure' | 'unlikely';
/** Classes of surprise: the entropy of the place, in bits. */
export type SurpriseClass = 'settled' | 'leaning' | 'open' | 'wide';
/** A class of any mode. */
export type MarkClass = AnswerOrigin | ConfidenceClass | SurpriseClass;

interface ClassStyle<K extends string> {
  key: K;
  /** The first value that belongs to it; the classes are in descending order of this. */
  from: number;
  /** How strongly it is coloured, in parts of the strongest. */
  strength: number;
  underline: 'none' | 'dotted' | 'dashed' | 'wavy';
}

/** What is unlikely stands out. */
export const confidenceClasses: readonly ClassStyle<ConfidenceClass>[] = [
  { key: 'sure', from: 0.9, strength: 0, underline: 'none' },
  { key: 'likely', from: 0.5, strength: 0.35, underline: 'dotted' },
  { key: 'unsure', from: 0.1, strength: 0.7, underline: 'dashed' },
  { key: 'unlikely', from: 0, strength: 1, underline: 'wavy' },
];

/** What is open stands out. */
export const surpriseClasses: readonly ClassStyle<SurpriseClass>[] = [
  { key: 'wide', from: 3, strength: 1, underline: 'wavy' },
  { key: 'open', from: 1.5, strength: 0.7, underline: 'dashed' },
  { key: 'leaning', from: 0.5, strength: 0.35, underline: 'dotted' },
  { key: 'settled', from: 0, strength: 0, underline: 'none' },
];

function classOf<K extends string>(classes: readonly ClassStyle<K>[], value: number): K {
  const found = classes.find(({ from }) => value >= from) ?? classes.at(-1);
  if (!found) throw new RangeError('a table of classes is never empty');
  return found.key;
}

/** Nats to bits. */
export const bits = (nats: number): number => nats / Math.LN2;

/** The class of a probability. */
export const confidenceOf = (confidence: number): ConfidenceClass => classOf(confidenceClasses, confidence);

/** The class of an entropy in nats. */
export const surpriseOf = (entropy: number): SurpriseClass => classOf(surpriseClasses, bits(entropy));

/** The classes of a mode, as the legend shows them; none where a mode has none. */
export function classesOf(mode: ColourMode): readonly MarkClass[] {
  if (mode === 'confidence') return confidenceClasses.map(({ key }) => key);
  if (mode === 'surprise') return surpriseClasses.map(({ key }) => key);
  return mode === 'origin' ? origins.map(({ origin }) => origin) : [];
}

/** Number of tokens of each class. */
export type MarkCounts = Record<MarkClass, number>;

/** No token of any class. */
export function noMarks(): MarkCounts {
  const keys = colourModes.flatMap((mode) => classesOf(mode));
  return Object.fromEntries(keys.map((key) => [key, 0])) as MarkCounts;
}

/** The CSS rules that follow from the tables: colours, underlines, and what the legend's filter dims. */
export function markRules(): string {
  const of = (mode: 'confidence' | 'surprise', classes: readonly ClassStyle<MarkClass>[]) =>
    classes.map(({ key, strength, underline }) => {
      const tokens = `[data-mode='${mode}'] .token[data-${mode}='${key}']`;
      const tint = `background-color:color-mix(in srgb, var(--${mode}) calc(var(--tint-strongest) * ${strength}), transparent);`;
      const mark = `--mark:var(--${mode});${tint}`;
      const line = underline === 'none' ? 'text-decoration-line:none;' : `text-decoration-line:underline;text-decoration-style:${underline};text-decoration-thickness:1px;`;
      const dimmed = `[data-mode='${mode}'][data-only='${key}'] .token:not([data-${mode}='${key}']){opacity:var(--dimmed);}`;
      return `${tokens}{${mark}${line}}${dimmed}`;
    });
  return [originRules(), ...of('confidence', confidenceClasses), ...of('surprise', surpriseClasses)].join('\n');
}
