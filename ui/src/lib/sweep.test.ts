import { afterEach, describe, expect, it } from 'vitest';
import type { LaneReport, MaxDraft, Method } from './ipc/schema.gen';
import { setLanguage } from './strings/index.svelte';
import { depthOf, sweepOf, sweepWords } from './sweep';

afterEach(() => setLanguage('en'));

const lane = (method: Method, max_draft: MaxDraft, speedup: number, spread = 0.02, samples = 6) =>
  ({ config: { method, max_draft }, samples, speedup, speedup_low: speedup - spread, speedup_high: speedup + spread }) as LaneReport;

const plain = lane('plain', 1, 1, 0);

describe('a sweep', () => {
  it('has the fastest draft length, and those whose spreads overlap', () => {
    const lanes = [plain, lane('ngram', 1, 1.1), lane('ngram', 3, 1.42), lane('ngram', 5, 1.39), lane('ngram', 'auto', 1.3)];
    const sweep = sweepOf({ lanes });
    expect([sweep?.method, sweep?.best.config.max_draft, sweep?.lane, sweep?.close]).toEqual(['ngram', 3, 2, [5]]);
    expect(sweep?.fixed.map(depthOf)).toEqual([1, 3, 5]);
    expect(sweep?.auto?.lane).toBe(4);
    expect(sweep && sweepWords(sweep)).toEqual({
      head: 'Best K for N-gram: 3, 1.42× plain',
      note: 'Measured. Its spread overlaps with that of K 5.',
    });
  });

  it('says so if no draft length is faster than plain, in either language', () => {
    const sweep = sweepOf({ lanes: [plain, lane('ngram', 1, 0.97), lane('ngram', 2, 0.9), lane('ngram', 3, 0.8)] });
    if (!sweep) throw new Error('no sweep');
    expect(sweepWords(sweep).head).toBe('No K makes N-gram faster here. The best is 1, 0.97× plain');
    expect(sweepWords(sweep).note).toBe('Measured. Its spread overlaps with that of no other K.');
    setLanguage('de');
    expect(sweepWords(sweep).head).toContain('Kein K macht');
    expect(sweepWords(sweep).head).toContain('0,97×');
  });

  it('claims no certainty from one sample, which has no spread', () => {
    const once = (depth: MaxDraft, speedup: number) => lane('ngram', depth, speedup, 0, 1);
    const sweep = sweepOf({ lanes: [plain, once(1, 1.1), once(2, 1.4), once(3, 1.2)] });
    expect(sweep?.close).toBeNull();
    expect(sweep && sweepWords(sweep)).toEqual({
      head: 'Best K for N-gram: 2, 1.40× plain',
      note: 'Measured once, so there is no spread. More runs or prompts show how certain this is.',
    });
  });

  it('needs one method and three draft lengths', () => {
    expect(sweepOf({ lanes: [plain, lane('ngram', 1, 1), lane('ngram', 2, 1)] })).toBeNull();
    expect(sweepOf({ lanes: [plain, lane('ngram', 1, 1), lane('suffix', 2, 1), lane('ngram', 3, 1)] })).toBeNull();
    expect(sweepOf({ lanes: [plain] })).toBeNull();
    const warm = lane('ngram', 4, 1);
    warm.config.temperature = 0.8;
    expect(sweepOf({ lanes: [plain, lane('ngram', 1, 1), lane('ngram', 2, 1), warm] })).toBeNull();
  });
});
