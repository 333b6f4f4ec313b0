import { describe, expect, it } from 'vitest';
import { en } from '../strings/en';
import { shownFor } from './notices.svelte';

describe('a notice', () => {
  it('stays as long as its text takes to read', () => {
    expect(shownFor(en.notices.copied, false)).toBe(1500);
    const long = en.updates.notice('0.2.0');
    expect(shownFor(long, false)).toBeGreaterThan(3000);
    expect(shownFor(long, true)).toBe(8000);
    expect(shownFor(long.repeat(4), true)).toBe(4 * shownFor(long, false));
  });
});
