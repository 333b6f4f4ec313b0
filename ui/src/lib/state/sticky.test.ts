import { describe, expect, it } from 'vitest';
import { StickyEnd } from './sticky';

const at = (top: number, height = 1000) => ({ top, height, viewport: 400 });

describe('StickyEnd', () => {
  it('follows from the start, and while the text grows', () => {
    const sticky = new StickyEnd();
    sticky.scrolled(at(600));
    sticky.scrolled(at(600, 1400));
    expect(sticky.following).toBe(true);
  });

  it('stops following at the slightest scroll up', () => {
    const sticky = new StickyEnd();
    sticky.scrolled(at(600));
    sticky.scrolled(at(595));
    expect(sticky.following).toBe(false);
  });

  it('does not follow while the reader scrolls down only part of the way', () => {
    const sticky = new StickyEnd();
    sticky.scrolled(at(600));
    sticky.scrolled(at(300));
    sticky.scrolled(at(320, 1400));
    expect(sticky.following).toBe(false);
  });

  it('follows again near the end, and on request', () => {
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

  it('stops when the view jumps elsewhere, even downwards, and follows again at the end', () => {
    const sticky = new StickyEnd();
    sticky.leave();
    sticky.scrolled(at(300));
    expect(sticky.following).toBe(false);
    sticky.scrolled(at(600));
    expect(sticky.following).toBe(true);
  });

  it('keeps following when the page gets shorter', () => {
    const sticky = new StickyEnd();
    sticky.scrolled(at(600));
    sticky.scrolled(at(100, 500));
    expect(sticky.following).toBe(true);
  });
});
