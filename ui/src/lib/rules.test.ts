import { describe, expect, it } from 'vitest';
import { acceptanceRules, asRule, isLossy, ruleFigure } from './rules';
import { language } from './strings/index.svelte';

describe('acceptance rules', () => {
  it('begin with the lossless one, which needs no word, and the others have one', () => {
    expect(acceptanceRules.map(ruleFigure)).toEqual([
      null,
      'match rule',
      'coupled rule',
      'lossy: typical, ε 0.09, δ 0.30',
      'lossy: lenience 0.50',
    ]);
  });

  it('that change the text say so in name, meaning and figure', () => {
    for (const rule of acceptanceRules) {
      const { label, meaning } = language.strings.rules[rule.name];
      expect(/lossy/i.test(label), rule.name).toBe(isLossy(rule));
      expect(/changes the text/i.test(meaning), rule.name).toBe(isLossy(rule));
      expect(/^lossy/.test(ruleFigure(rule) ?? ''), rule.name).toBe(isLossy(rule));
    }
  });

  it('are understood when the engine would take them', () => {
    for (const rule of acceptanceRules) expect(asRule(JSON.parse(JSON.stringify(rule)))).toEqual(rule);
    expect(asRule({ name: 'lossy-lenience', lenience: 0.8, more: 1 })).toEqual({ name: 'lossy-lenience', lenience: 0.8 });
    for (const wrong of [undefined, null, 'match', {}, { name: 'naive' }, { name: 'lossy-lenience' }, { name: 'lossy-lenience', lenience: 0 }, { name: 'lossy-typical', epsilon: 0.1, delta: 2 }]) {
      expect(asRule(wrong), JSON.stringify(wrong)).toBeUndefined();
    }
  });
});
