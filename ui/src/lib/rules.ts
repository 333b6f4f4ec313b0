// Acceptance rules: their parameters, their label at an answer, and the explanation of a token's test. No DOM.

import { formatMean, formatProbability } from './format';
import type { AcceptanceRule, RejectedEvent, TokenEvent } from './ipc/schema.gen';
import { language } from './strings/index.svelte';

/** The name of a rule. */
export type RuleName = AcceptanceRule['name'];

/** The default rule. */
export const lossless: AcceptanceRule = { name: 'lossless' };

/** All rules, with the engine's default parameters. */
export const acceptanceRules: readonly AcceptanceRule[] = [
  lossless,
  { name: 'match' },
  { name: 'coupled' },
  { name: 'lossy-typical', epsilon: 0.09, delta: 0.3 },
  { name: 'lossy-lenience', lenience: 0.5 },
];

/** Numbers of the lossy rules. */
type RuleNumber = 'epsilon' | 'delta' | 'lenience';

/** Range of the numbers of the lossy rules. The engine takes any number above 0, up to 1. */
export const ruleNumberRange = { min: 0.01, max: 1, step: 0.01, digits: 2 } as const;

/** The numbers of a rule, in the order of the formula. */
export function ruleNumbers(rule: AcceptanceRule): { name: RuleNumber; value: number }[] {
  switch (rule.name) {
    case 'lossy-typical':
      return [
        { name: 'epsilon', value: rule.epsilon },
        { name: 'delta', value: rule.delta },
      ];
    case 'lossy-lenience':
      return [{ name: 'lenience', value: rule.lenience }];
    default:
      return [];
  }
}

/** Returns the rule with another number; the same rule if it has no such number. */
export const withRuleNumber = (rule: AcceptanceRule, name: RuleNumber, value: number): AcceptanceRule =>
  asRule({ ...rule, [name]: value }) ?? rule;

/** Returns `true` if the output distribution may differ from the target's. */
export const isLossy = (rule: AcceptanceRule): boolean => rule.name === 'lossy-typical' || rule.name === 'lossy-lenience';

/** Returns `true` if the rule can change the text at a temperature. At 0 typical acceptance takes the likeliest token
 * alone, and lenience takes others that are nearly as likely. */
export const changesText = (rule: AcceptanceRule, temperature: number): boolean =>
  rule.name === 'lossy-lenience' || (rule.name === 'lossy-typical' && temperature !== 0);

/** The effect of a rule at a temperature, in one line. */
export function ruleMeaning(rule: AcceptanceRule, temperature: number): string {
  const { rules } = language.strings;
  return isLossy(rule) && !changesText(rule, temperature) ? rules.noEffect : rules[rule.name].meaning;
}

/** Label among the figures of an answer; null for the usual rule, which needs none. */
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

/** Numbers that decided a test, as far as they are known. */
interface Tested {
  accepted: boolean;
  p: number;
  q: number | null;
  u: number | null;
  /** Threshold for u; null if unknown. */
  threshold: number | null;
}

/** Explains why a drafted token was accepted; null for undrafted tokens and unknown numbers. */
export function acceptedBecause(rule: AcceptanceRule, { origin, p, q, u, threshold }: TokenEvent): string | null {
  return origin === 'accepted' ? because(rule, { accepted: true, p, q, u, threshold }) : null;
}

/** Explains why a drafted token was rejected. The threshold follows from the p and q of that test. */
export function rejectedBecause(rule: AcceptanceRule, { p, q, u }: RejectedEvent): string | null {
  const lenience = rule.name === 'lossy-lenience' ? rule.lenience : 1;
  return because(rule, { accepted: false, p, q, u, threshold: u === null ? null : Math.min(1, p / ((q ?? 1) * lenience)) });
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
      if (u === null || threshold === null) {
        if (rule.name !== 'lossy-lenience') return null;
        return `${(accepted ? words.near : words.far)(formatMean(rule.lenience))}: ${outcome}`;
      }
      const bound = rule.name === 'lossy-lenience' ? words.lenient(formatMean(rule.lenience), q === null) : words.ratio(q === null);
      return `${card.u} ${formatProbability(u)} ${accepted ? '<' : '≥'} ${bound} = ${formatProbability(threshold)}: ${outcome}`;
    }
  }
}

/** Parses a saved rule; undefined if the engine would refuse it. */
export function asRule(value: unknown): AcceptanceRule | undefined {
  const fields = typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
  const known = acceptanceRules.find(({ name }) => name === fields['name']);
  if (!known) return undefined;
  const numbers = Object.keys(known).filter((key) => key !== 'name');
  const inside = (number: unknown) => typeof number === 'number' && number > 0 && number <= 1;
  if (!numbers.every((key) => inside(fields[key]))) return undefined;
  return { ...known, ...Object.fromEntries(numbers.map((key) => [key, fields[key]])) };
}
