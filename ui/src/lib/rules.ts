// The acceptance rules that the window offers, and how an answer names the one it was made with. No DOM.

import { formatMean } from './format';
import type { AcceptanceRule } from './ipc/schema.gen';
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
