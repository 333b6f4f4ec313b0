import { describe, expect, it } from 'vitest';
import { en } from '../strings/en';
import { Notices, shownFor } from './notices.svelte';

describe('a notice', () => {
  it('stays as long as its text takes to read', () => {
    expect(shownFor(en.notices.copied)).toBe(1500);
    const long = en.updates.notice('0.2.0');
    expect(shownFor(long)).toBeGreaterThan(3000);
    expect(shownFor(long.repeat(4))).toBe(4 * shownFor(long));
  });
});

describe('a failure', () => {
  it('stays until it is dismissed, also when another one follows', () => {
    const notices = new Notices();
    expect(notices.failure).toBeNull();
    notices.reportFailure('The disk is full.');
    notices.reportFailure('The file is gone.');
    expect([notices.failures, notices.failure]).toEqual([['The disk is full.', 'The file is gone.'], 'The file is gone.']);
    notices.dismiss('The file is gone.');
    expect(notices.failures).toEqual(['The disk is full.']);
    notices.dismiss('The disk is full.');
    expect(notices.failure).toBeNull();
  });

  it('is listed once, and the oldest one makes room', () => {
    const notices = new Notices();
    for (const text of ['first', 'second', 'first', 'third', 'fourth']) notices.reportFailure(text);
    expect(notices.failures).toEqual(['first', 'third', 'fourth']);
  });
});
