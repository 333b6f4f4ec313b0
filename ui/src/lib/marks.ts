// Marks of tokens by probability, by entropy, and by the outcome of their round's draft. One table each: classes with
// a lower bound, a colour variable and an underline pattern. The legend, the style sheet of tokens and the tests read
// them.

import type { RoundEvent } from './ipc/schema.gen';
import { originRules, origins } from './origin';
import { colourModes, type ColourMode, type ConfidenceClass, type MarkClass, type RoundClass, type EntropyClass } from './strings/keys';

interface ClassStyle<K extends string> {
  key: K;
  /** Smallest value of the class. Classes are in descending order of it. */
  from: number;
  /** Strength of the colour, from 0 to 1. */
  strength: number;
  underline: 'none' | 'dotted' | 'dashed' | 'wavy';
}

/** Unlikely tokens stand out. */
export const confidenceClasses: readonly ClassStyle<ConfidenceClass>[] = [
  { key: 'sure', from: 0.9, strength: 0, underline: 'none' },
  { key: 'likely', from: 0.5, strength: 0.35, underline: 'dotted' },
  { key: 'unsure', from: 0.1, strength: 0.7, underline: 'dashed' },
  { key: 'unlikely', from: 0, strength: 1, underline: 'wavy' },
];

/** Uncertain positions stand out. */
export const entropyClasses: readonly ClassStyle<EntropyClass>[] = [
  { key: 'wide', from: 3, strength: 1, underline: 'wavy' },
  { key: 'open', from: 1.5, strength: 0.7, underline: 'dashed' },
  { key: 'leaning', from: 0.5, strength: 0.35, underline: 'dotted' },
  { key: 'settled', from: 0, strength: 0, underline: 'none' },
];

/** Style of the bracket under the tokens of a round. */
interface RoundStyle {
  key: RoundClass;
  /** CSS variable of its colour. */
  colour: `--${string}`;
  line: 'solid' | 'dashed' | 'dotted' | 'double';
  /** Line width in pixels: a double line needs three. */
  width: 2 | 3;
}

/** From the most useful draft to none. Line styles distinguish them without colour. */
export const roundClasses: readonly RoundStyle[] = [
  { key: 'whole', colour: '--origin-accepted', line: 'double', width: 3 },
  { key: 'partly', colour: '--origin-resampled', line: 'solid', width: 2 },
  { key: 'none', colour: '--danger', line: 'dashed', width: 2 },
  { key: 'undrafted', colour: '--text-quiet', line: 'dotted', width: 2 },
];

/** Facts about a round that decide its class. */
type RoundOutcome = Pick<RoundEvent, 'drafted' | 'draft' | 'tokens' | 'rejected' | 'round'>;

/** The class of a round. */
export function roundClassOf({ drafted, draft, tokens, rejected, round }: RoundOutcome): RoundClass {
  if (drafted === 0) return 'undrafted';
  // Tokens may wait for a later event, so `drafted` is the best source. Older answers were saved without it.
  const accepted =
    draft.length > 0
      ? draft.filter(({ fate }) => fate === 'accepted').length
      : tokens.filter((token) => token.round === round && token.origin === 'accepted').length;
  if (accepted === 0) return 'none';
  // In a tree, rejected siblings do not count; a rejection at the end of the path does.
  return rejected.some(({ position }) => position === accepted) ? 'partly' : 'whole';
}

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
export const entropyClassOf = (entropy: number): EntropyClass => classOf(entropyClasses, bits(entropy));

/** Classes of a colour mode, in the order of the legend; empty for modes without classes. */
export function classesOf(mode: ColourMode): readonly MarkClass[] {
  if (mode === 'confidence') return confidenceClasses.map(({ key }) => key);
  if (mode === 'entropy') return entropyClasses.map(({ key }) => key);
  if (mode === 'rounds') return roundClasses.map(({ key }) => key);
  return mode === 'origin' ? origins.map(({ origin }) => origin) : [];
}

/** Number of tokens in each class. */
export type MarkCounts = Record<MarkClass, number>;

/** Counts of an empty answer. */
export function noMarks(): MarkCounts {
  const keys = colourModes.flatMap((mode) => classesOf(mode));
  return Object.fromEntries(keys.map((key) => [key, 0])) as MarkCounts;
}

/** CSS rules of the tables: colours, underlines, and the legend's filter. */
export function markRules(): string {
  const of = (mode: 'confidence' | 'entropy', classes: readonly ClassStyle<MarkClass>[]) =>
    classes.map(({ key, strength, underline }) => {
      const tokens = `[data-mode='${mode}'] .token[data-${mode}='${key}']`;
      const tint = `background-color:color-mix(in srgb, var(--${mode}) calc(var(--tint-strongest) * ${strength}), transparent);`;
      const mark = `--mark:var(--${mode});${tint}`;
      const line =
        underline === 'none'
          ? 'text-decoration-line:none;'
          : `text-decoration-line:underline;text-decoration-style:${underline};text-decoration-thickness:1px;`;
      const dimmed = `[data-mode='${mode}'][data-only='${key}'] .token:not([data-${mode}='${key}']){opacity:var(--dimmed);}`;
      return `${tokens}{${mark}${line}}${dimmed}`;
    });
  const rounds = roundClasses.map(({ key, colour, line, width }) => {
    const bracket = `[data-mode='rounds'] .token[data-kept='${key}']{--bracket:var(${colour});border-bottom-style:${line};border-bottom-width:${width}px;}`;
    return `${bracket}[data-mode='rounds'][data-only='${key}'] .token:not([data-kept='${key}']){opacity:var(--dimmed);}`;
  });
  return [originRules(), ...of('confidence', confidenceClasses), ...of('entropy', entropyClasses), ...rounds].join('\n');
}
