import { describe, expect, it } from 'vitest';
import { models } from '../../../tests/ui/fixtures/library';
import type { SpeedRole } from './ipc/schema.gen';
import { speedWords } from './speed';

describe('the speed of a model', () => {
  const [model] = models;
  const words = (tokens_per_second: number | null, ran_as?: SpeedRole) =>
    speedWords({ ...model!, tokens_per_second, ...(ran_as ? { ran_as } : {}) });

  it('names the conditions of the run', () => {
    expect(words(null)).toBeNull();
    expect(words(31.4, { kind: 'target', method: 'plain' })).toBe('31.4 tok/s alone, measured here');
    expect(words(52, { kind: 'target', method: 'ngram' })).toMatch(/^52(\.0)? tok\/s with N-gram, measured here$/);
    expect(words(310, { kind: 'draft' })).toMatch(/^310(\.0)? tok\/s as a draft, measured here$/);
  });
});
