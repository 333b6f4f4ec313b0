// Words on pairs of models.

import { afterEach, describe, expect, it } from 'vitest';
import { predictionWords, verdictWords } from './pairVerdict';
import { setLanguage } from './strings/index.svelte';

afterEach(() => setLanguage('en'));

describe('the words on a predicted speedup', () => {
  it('say where its pass costs come from', () => {
    const words = (costs: 'measured' | 'gpu' | 'sizes') => predictionWords({ speedup: 1.4, acceptance: 0.7, depth: 3, costs });
    expect(words('gpu')).toBe(
      'Assumes 70% acceptance and 3 draft tokens per round. Pass costs are predicted for this GPU. Measure the pair for real ones.',
    );
    expect(words('sizes')).toContain('estimated from file sizes');
    expect(words('measured')).toContain('measured here');
    setLanguage('de');
    expect(words('gpu')).toContain('für diese GPU vorhergesagt');
    expect(words('sizes')).toContain('aus den Dateigrößen geschätzt');
  });
});

describe('the words on a draft with another tokeniser', () => {
  it('say how many tokens it can draft', () => {
    const verdict = { kind: 'translated', shared: 31_204, of: 49_152 } as const;
    expect(verdictWords(verdict)).toBe('Another tokeniser: 31,204 of its 49,152 tokens are shared');
    setLanguage('de');
    expect(verdictWords(verdict)).toBe('Anderer Tokenizer: 31.204 von 49.152 Tokens gemeinsam');
  });
});
