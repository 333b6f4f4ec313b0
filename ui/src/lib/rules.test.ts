import { describe, expect, it } from 'vitest';
import type { RejectedEvent, TokenEvent } from './ipc/schema.gen';
import {
  acceptanceRules,
  acceptedBecause,
  asRule,
  changesText,
  isLossy,
  lossless,
  rejectedBecause,
  ruleFigure,
  ruleMeaning,
  ruleNumbers,
  withRuleNumber,
} from './rules';
import { language, setLanguage } from './strings/index.svelte';

const drafted = { origin: 'accepted', p: 0.21, q: 0.5, u: 0.3, threshold: 0.42 } as TokenEvent;
const fallen = { p: 0.21, q: 0.5, u: 0.81 } as RejectedEvent;
const named = (name: string) => acceptanceRules.find((rule) => rule.name === name) ?? lossless;

describe('acceptance rules', () => {
  it('start with the lossless one, which needs no label, and label the others', () => {
    expect(acceptanceRules.map(ruleFigure)).toEqual([
      null,
      'match rule',
      'coupled rule',
      'lossy: typical, ε 0.09, δ 0.30',
      'lossy: lenience 0.50',
    ]);
  });

  it('that change the output say so in name, meaning and figure', () => {
    for (const rule of acceptanceRules) {
      const { label, meaning } = language.strings.rules[rule.name];
      expect(/lossy/i.test(label), rule.name).toBe(isLossy(rule));
      expect(/changes the text/i.test(meaning), rule.name).toBe(isLossy(rule));
      expect(/^lossy/.test(ruleFigure(rule) ?? ''), rule.name).toBe(isLossy(rule));
    }
  });

  it('that are lossy say whether they change anything at temperature 0', () => {
    for (const rule of acceptanceRules) {
      expect(changesText(rule, 0), rule.name).toBe(rule.name === 'lossy-lenience');
      expect(changesText(rule, 0.1), rule.name).toBe(isLossy(rule));
      expect(ruleMeaning(rule, 0) === 'No effect at temperature 0', rule.name).toBe(rule.name === 'lossy-typical');
      expect(ruleMeaning(rule, 0.1)).toBe(language.strings.rules[rule.name].meaning);
    }
  });

  it('have numbers that can be changed within the range of the engine', () => {
    expect(acceptanceRules.map((rule) => ruleNumbers(rule).map(({ name }) => name))).toEqual([
      [],
      [],
      [],
      ['epsilon', 'delta'],
      ['lenience'],
    ]);
    const typical = withRuleNumber(named('lossy-typical'), 'delta', 0.5);
    expect(typical).toEqual({ name: 'lossy-typical', epsilon: 0.09, delta: 0.5 });
    expect(ruleNumbers(typical)).toEqual([
      { name: 'epsilon', value: 0.09 },
      { name: 'delta', value: 0.5 },
    ]);
    expect(withRuleNumber(typical, 'epsilon', 0)).toBe(typical);
    expect(withRuleNumber(typical, 'lenience', 0.5)).toEqual(typical);
    expect(withRuleNumber(lossless, 'lenience', 0.5)).toEqual(lossless);
  });

  it('are parsed if the engine would accept them', () => {
    for (const rule of acceptanceRules) expect(asRule(JSON.parse(JSON.stringify(rule)))).toEqual(rule);
    expect(asRule({ name: 'lossy-lenience', lenience: 0.8, more: 1 })).toEqual({ name: 'lossy-lenience', lenience: 0.8 });
    for (const wrong of [
      undefined,
      null,
      'match',
      {},
      { name: 'naive' },
      { name: 'lossy-lenience' },
      { name: 'lossy-lenience', lenience: 0 },
      { name: 'lossy-typical', epsilon: 0.1, delta: 2 },
    ]) {
      expect(asRule(wrong), JSON.stringify(wrong)).toBeUndefined();
    }
  });
});

describe('the test of a drafted token', () => {
  it('compares a number with min(1, p/q) by the usual rule', () => {
    expect(acceptedBecause(lossless, drafted)).toBe('u 0.300 < min(1, p/q) = 0.420: accepted');
    expect(rejectedBecause(lossless, fallen)).toBe('u 0.810 ≥ min(1, p/q) = 0.420: rejected');
    // A certain draft is compared with p alone.
    expect(rejectedBecause(lossless, { ...fallen, q: null })).toBe('u 0.810 ≥ p = 0.210: rejected');
    expect(rejectedBecause(lossless, { ...fallen, p: 0.9, u: 0.9999 })).toBe('u 1 ≥ min(1, p/q) = 1: rejected');
    setLanguage('de');
    expect(rejectedBecause(lossless, fallen)).toBe('u 0,810 ≥ min(1; p/q) = 0,420: verworfen');
    setLanguage('en');
  });

  it('shows the criterion of each other rule, with its numbers', () => {
    const both = (name: string) => [
      acceptedBecause(named(name), drafted),
      rejectedBecause(named(name), name === 'lossy-lenience' ? { ...fallen, u: 0.91 } : fallen),
    ];
    expect(both('match')).toEqual(['The target sampled it too: accepted', 'The target sampled another token: rejected']);
    expect(both('coupled')).toEqual([
      'The target drew it too, with the same noise: accepted',
      'The target drew another token, with the same noise: rejected',
    ]);
    expect(both('lossy-typical')).toEqual(['p 0.210 > min(0.09, 0.30 · e^−H): accepted', 'p 0.210 ≤ min(0.09, 0.30 · e^−H): rejected']);
    expect(both('lossy-lenience')).toEqual([
      'u 0.300 < min(1, p/(0.50 q)) = 0.420: accepted',
      'u 0.910 ≥ min(1, p/(0.50 q)) = 0.840: rejected',
    ]);
  });

  it('compares likelihoods where greedy lenience draws no number', () => {
    const rule = named('lossy-lenience');
    expect(acceptedBecause(rule, { ...drafted, p: 0, u: null, threshold: null })).toBe(
      'At least 0.50 times as likely as the likeliest token: accepted',
    );
    expect(rejectedBecause(rule, { ...fallen, p: 0, q: null, u: null })).toBe(
      'Less than 0.50 times as likely as the likeliest token: rejected',
    );
  });

  it('is not shown for undrafted tokens or without the decisive numbers', () => {
    expect(acceptedBecause(lossless, { ...drafted, origin: 'bonus' })).toBeNull();
    expect(acceptedBecause(lossless, { ...drafted, u: null })).toBeNull();
    expect(acceptedBecause(lossless, { ...drafted, threshold: null })).toBeNull();
  });
});
