import { describe, expect, it } from 'vitest';
import { StickyEnd } from './sticky';

const at = (top: number, height = 1000) => ({ top, height, viewport: 400 });

describe('StickyEnd', () => {
  it('follows from the start, and while the text grows under it', () => {
    const sticky = new StickyEnd();
    sticky.scrolled(at(600));
    sticky.scrolled(at(600, 1400));
    expect(sticky.following).toBe(true);
  });

  it('lets go when the reader scrolls up, however little', () => {
    const sticky = new StickyEnd();
    sticky.scrolled(at(600));
    sticky.scrolled(at(595));
    expect(sticky.following).toBe(false);
  });

  it('stays let go while the text grows and the reader scrolls down part of the way', () => {
    const sticky = new StickyEnd();
    sticky.scrolled(at(600));
    sticky.scrolled(at(300));
    sticky.scrolled(at(320, 1400));
    expect(sticky.following).toBe(false);
  });

  it('follows again near the end, and when asked to', () => {
    const sticky = new StickyEnd();
    sticky.scrolled(at(600));
    sticky.scrolled(at(300));
    sticky.scrolled(at(580));
    expect(sticky.following).toBe(true);
    sticky.scrolled(at(100));
    expect(sticky.following).toBe(false);
    sticky.follow();
    expect(sticky.following).toBe(true);
  });

  it('lets go when the reader is taken elsewhere, even downwards, and follows again at the end', () => {
    const sticky = new StickyEnd();
    sticky.leave();
    sticky.scrolled(at(300));
    expect(sticky.following).toBe(false);
    sticky.scrolled(at(600));
    expect(sticky.following).toBe(true);
  });

  it('does not take a page that got shorter for the reader leaving', () => {
    const sticky = new StickyEnd();
    sticky.scrolled(at(600));
    sticky.scrolled(at(100, 500));
    expect(sticky.following).toBe(true);
  });
});
