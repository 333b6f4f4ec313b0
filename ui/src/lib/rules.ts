// The acceptance rules that the window offers, how an answer names the one it was made with, and how a token's card
// says what the rule decided. No DOM.

import { formatMean, formatProbability } from './format';
import type { AcceptanceRule, RejectedEvent, TokenEvent } from './ipc/schema.gen';
import { language } from './strings/index.svelte';

/** The name of a rule. */
export type RuleName = AcceptanceRule['name'];

/** The rule that holds until another is chosen. */
export const lossless: AcceptanceRule = { name: 'lossless' };

/** Every rule, with the numbers that the engine takes where none are named. */
export const acceptanceRules: readonly AcceptanceRule[] = [
  lossless,
  { name: 'match' },
  { name: 'coupled' },
  { name: 'lossy-typical', epsilon: 0.09, delta: 0.3 },
  { name: 'lossy-lenience', lenience: 0.5 },
];

/** Whether answers may differ from what the target would write alone. */
export const isLossy = (rule: AcceptanceRule): boolean => rule.name === 'lossy-typical' || rule.name === 'lossy-lenience';

/** Whether each test of the rule draws a number of its own. */
export const drawsNumber = ({ name }: AcceptanceRule): boolean => name === 'lossless' || name === 'lossy-lenience';

/** What stands among the figures of an answer; null for the usual rule, which needs no word. */
export function ruleFigure(rule: AcceptanceRule): string | null {
  const { made } = language.strings.rules;
  switch (rule.name) {
    case 'lossless':
      return null;
    case 'lossy-typical':
      return made[rule.name](formatMean(rule.epsilon), formatMean(rule.delta));
    case 'lossy-lenience':
      return made[rule.name](formatMean(rule.lenience));
    default:
      return made[rule.name];
  }
}

/** What a rule decided by, as far as it is told. */
interface Tested {
  accepted: boolean;
  p: number;
  q: number | null;
  u: number | null;
  /** What u had to be below; null where it is not told. */
  threshold: number | null;
}

/** Why a drafted token was accepted; null for tokens that were not drafted, and where what decided is not kept. */
export function acceptedBecause(rule: AcceptanceRule, { origin, p, q, u, threshold }: TokenEvent): string | null {
  return origin === 'accepted' ? because(rule, { accepted: true, p, q, u, threshold }) : null;
}

/** Why a drafted token was rejected. What u was held against follows from p and q, which are told as they stood. */
export function rejectedBecause(rule: AcceptanceRule, { p, q, u }: RejectedEvent): string | null {
  const lenience = rule.name === 'lossy-lenience' ? rule.lenience : 1;
  return because(rule, { accepted: false, p, q, u, threshold: Math.min(1, p / ((q ?? 1) * lenience)) });
}

function because(rule: AcceptanceRule, { accepted, p, q, u, threshold }: Tested): string | null {
  const card = language.strings.tokenCard;
  const { because: words } = language.strings.rules;
  const outcome = accepted ? words.accepted : words.rejected;
  switch (rule.name) {
    case 'match':
      return `${accepted ? words.matched : words.unmatched}: ${outcome}`;
    case 'coupled':
      return `${accepted ? words.coupled : words.uncoupled}: ${outcome}`;
    case 'lossy-typical': {
      const bound = words.typical(formatMean(rule.epsilon), formatMean(rule.delta));
      return `${card.p} ${formatProbability(p)} ${accepted ? '>' : '≤'} ${bound}: ${outcome}`;
    }
    default: {
      if (u === null || threshold === null) return null;
      const bound = rule.name === 'lossy-lenience' ? words.lenient(formatMean(rule.lenience), q === null) : words.ratio(q === null);
      return `${card.u} ${formatProbability(u)} ${accepted ? '<' : '≥'} ${bound} = ${formatProbability(threshold)}: ${outcome}`;
    }
  }
}

/** Understands a rule that was kept; undefined when the engine would refuse it. */
export function asRule(value: unknown): AcceptanceRule | undefined {
  const told = typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
  const known = acceptanceRules.find(({ name }) => name === told['name']);
  if (!known) return undefined;
  const numbers = Object.keys(known).filter((key) => key !== 'name');
  const inside = (number: unknown) => typeof number === 'number' && number > 0 && number <= 1;
  if (!numbers.every((key) => inside(told[key]))) return undefined;
  return { ...known, ...Object.fromEntries(numbers.map((key) => [key, told[key]])) };
}
