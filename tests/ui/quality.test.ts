// Rules for every screen: contrast, long answers, reading while text arrives, reduced motion.

import { describe, expect, it } from 'vitest';
import { runLength } from '../../ui/src/lib/text/blocks';
import { faintText } from './contrast';
import type { RecordedApp } from './replay/host';
import { record, toLines } from './fixtures/build';
import recordedApp from './fixtures/fixture-app.json';
import { longConversation, longMarkdown } from './fixtures/long';
import { ask, ended, legend, loading, useWindow } from './harness';

const hunch = useWindow();

const words = 'the lamp turned and the sea came over the rail while she wrote the hour in the log and waited ';
const longText = Array.from({ length: 40 }, (_, index) => words.repeat(index % 3 === 0 ? 8 : 4).trim()).join('.\n\n');
const long = { long: toLines(record({ text: longText, method: 'draft-model', maxDraft: 4, seed: 2, perMessage: 8 })) };

const marked = { marked: toLines(record({ text: longMarkdown(3000), method: 'draft-model', maxDraft: 4, seed: 21, perMessage: 4 })) };
/** Elements that may change for one token of a formatted answer: the unfinished part is redrawn while it grows,
 * nothing else. */
const workBound = 16;

describe.each(['light', 'dark'] as const)('%s', (colours) => {
  it('has the contrast of WCAG AA in all text, over tints too', async () => {
    const answer = await hunch.answered({ colours, replay: 'fixture-story' });
    await answer.locator('[data-testid=token][data-origin=bonus]').first().hover();
    await answer.getByTestId('token-card').waitFor();
    expect(await faintText(answer)).toEqual([]);

    const error = await hunch.open({ colours, replay: 'fixture-refused' });
    await ask(error);
    await error.getByTestId('error').waitFor();
    expect(await faintText(error)).toEqual([]);

    const empty = await hunch.open({ colours, app: 'fixture-app-empty' });
    await empty.getByTestId('open-model').waitFor();
    expect(await faintText(empty)).toEqual([]);

    const menu = await hunch.open({ colours });
    await menu.getByTestId('target-menu').click();
    await menu.getByTestId('open-target').waitFor();
    expect(await faintText(menu)).toEqual([]);
  });

  it('draws visible underlines', async () => {
    const page = await hunch.answered({ colours, replay: 'fixture-story' });
    const ratios = await page.evaluate(() => {
      const context = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
      const light = (colour: string) => {
        if (!context) return 0;
        context.fillStyle = colour;
        context.fillRect(0, 0, 1, 1);
        const channels = [...context.getImageData(0, 0, 1, 1).data].slice(0, 3).map((channel) => channel / 255);
        return channels
          .map((channel) => (channel <= 0.04045 ? channel / 12.92 : ((channel + 0.055) / 1.055) ** 2.4))
          .reduce((sum, channel, index) => sum + channel * [0.2126, 0.7152, 0.0722][index]!, 0);
      };
      const back = light(getComputedStyle(document.body).backgroundColor);
      return ['accepted', 'resampled', 'bonus'].map((origin) => {
        const token = document.querySelector(`[data-testid=token][data-origin=${origin}]`);
        const front = token ? light(getComputedStyle(token).textDecorationColor) : back;
        return (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
      });
    });
    for (const ratio of ratios) expect(ratio).toBeGreaterThanOrEqual(3);
  });
});

describe('an answer of thousands of tokens', () => {
  it('draws each token once and leaves finished runs alone', async () => {
    const page = await hunch.open({ replay: 'long', recordings: long, speed: 60 });
    await page.evaluate(() => {
      const seen = { added: 0, removed: 0, changed: 0, flushes: 0 };
      const tokens = (nodes: NodeList) =>
        [...nodes].reduce((sum, node) => {
          if (!(node instanceof Element)) return sum;
          return sum + (node.matches('[data-token]') ? 1 : node.querySelectorAll('[data-token]').length);
        }, 0);
      new MutationObserver((records) => {
        // An element added with its children is one record. Added later, each child is one.
        const counted = new Set<Node>();
        for (const record of records) {
          if (record.type !== 'childList') {
            if ((record.target instanceof Element ? record.target : record.target.parentElement)?.closest('[data-run]')) seen.changed += 1;
            continue;
          }
          const fresh = [...record.addedNodes].filter((node) => ![...counted].some((other) => other.contains(node)));
          for (const node of fresh) counted.add(node);
          seen.added += tokens(fresh as unknown as NodeList);
          seen.removed += tokens(record.removedNodes);
        }
        seen.flushes += 1;
      }).observe(document.querySelector('main') as Element, {
        subtree: true,
        childList: true,
        characterData: true,
        attributes: true,
      });
      Object.assign(window, { seen });
    });
    await ask(page);
    await ended(page);
    const pieces = await page.locator('[data-token]').count();
    const seen = await page.evaluate(() => (window as unknown as { seen: Record<string, number> }).seen);
    expect((await legend(page)).total).toBeGreaterThan(4000);
    expect(seen['flushes']).toBeGreaterThan(20);
    expect(seen['added']).toBe(pieces);
    expect(seen['removed']).toBe(0);
    expect(seen['changed']).toBe(0);
  });

  it('keeps the page small: one span per piece, one wrapper per run', async () => {
    const page = await hunch.answered({ replay: 'long', recordings: long });
    const size = await page.getByTestId('answer').evaluate((answer) => ({
      elements: answer.querySelectorAll('*').length,
      pieces: answer.querySelectorAll('[data-token]').length,
      runs: answer.querySelectorAll('[data-run]').length,
      blocks: answer.querySelectorAll('.block').length,
      largest: Math.max(...[...answer.querySelectorAll('[data-run]')].map((run) => run.childElementCount)),
    }));
    expect(size.elements).toBe(size.pieces + size.runs + size.blocks);
    expect(size.runs).toBeLessThanOrEqual(Math.ceil(size.pieces / runLength) + size.blocks);
    expect(size.largest).toBeLessThanOrEqual(runLength);
  });

  it.each(['origin', 'rounds'])(
    'does no more for a token at the end of a long, marked-up answer than at its beginning, colours %s',
    async (colour_mode) => {
      const page = await hunch.open({ replay: 'marked', recordings: marked, speed: 12, preferences: { colour_mode } });
      await page.evaluate(() => {
        // For each frame: the number of tokens, and of elements added, removed or changed.
        const frames: { tokens: number; work: number }[] = [];
        const inside = (nodes: NodeList) =>
          [...nodes].reduce((sum, node) => sum + (node instanceof Element ? 1 + node.querySelectorAll('*').length : 1), 0);
        new MutationObserver((records) => {
          const answer = document.querySelector('[data-testid=answer]');
          const of = records.filter(({ target }) => answer?.contains(target));
          const work = of.reduce(
            (sum, record) => sum + (record.type === 'childList' ? inside(record.addedNodes) + inside(record.removedNodes) : 1),
            0,
          );
          frames.push({ tokens: answer?.querySelectorAll('[data-testid=token]').length ?? 0, work });
        }).observe(document.querySelector('main') as Element, { subtree: true, childList: true, characterData: true, attributes: true });
        Object.assign(window, { seenFrames: frames });
      });
      await ask(page);
      await ended(page);
      const frames = await page.evaluate(() => (window as unknown as { seenFrames: { tokens: number; work: number }[] }).seenFrames);
      const whole = frames.at(-1)?.tokens ?? 0;
      expect(whole).toBeGreaterThan(1500);
      /** Elements changed per token in a part of the answer. */
      const workPerToken = (from: number, to: number) => {
        const stretch = frames.filter(({ tokens }) => tokens > from * whole && tokens <= to * whole);
        return stretch.reduce((sum, { work }) => sum + work, 0) / ((to - from) * whole);
      };
      const [early, late] = [workPerToken(0.1, 0.4), workPerToken(0.7, 1)];
      expect(late, `early ${early.toFixed(1)}, late ${late.toFixed(1)}`).toBeLessThan(1.5 * early);
      expect(late).toBeLessThan(workBound);
    },
  );

  it('follows its end while the reader is there, and stays put otherwise', async () => {
    const page = await hunch.open({ replay: 'long', recordings: long, speed: 30 });
    await ask(page);
    const place = () =>
      page.getByTestId('conversation').evaluate((main) => ({
        top: main.scrollTop,
        left: main.scrollHeight - main.clientHeight - main.scrollTop,
        height: main.scrollHeight,
      }));
    const grows = async (from: number) =>
      page.waitForFunction((height) => (document.querySelector('main')?.scrollHeight ?? 0) > height + 100, from);
    await page.waitForFunction(() => (document.querySelector('main')?.scrollHeight ?? 0) > 1200);
    expect((await place()).left).toBeLessThanOrEqual(24);
    await page.getByTestId('conversation').hover();
    await page.mouse.wheel(0, -300);
    await page.getByTestId('to-end').waitFor();
    const left = await place();
    await grows(left.height);
    expect((await place()).top).toBe(left.top);
    await page.getByTestId('to-end').click();
    await page.getByTestId('to-end').waitFor({ state: 'detached' });
    await grows((await place()).height);
    expect((await place()).left).toBeLessThanOrEqual(24);
  });
});

describe('a conversation of 500 messages', () => {
  /** Answers drawn token by token, and elements on the page, once the near ones are loaded. */
  async function drawn(turns: number): Promise<{ answers: number; perUnread: number; laidOut: number }> {
    const app = { ...recordedApp, conversations: [longConversation(turns, 120, 'everything')] } as unknown as RecordedApp;
    const page = await hunch.open({ app: 'long', apps: { long: app } });
    await page.getByTestId('conversation-entry').getByRole('button').first().click();
    await page.locator('[data-testid=turn]:last-child [data-testid=stats]').waitFor();
    const count = () => page.getByTestId('legend').count();
    let before = -1;
    await expect
      .poll(
        async () => {
          const now = await count();
          const same = now === before;
          before = now;
          return same;
        },
        { interval: 400 },
      )
      .toBe(true);
    expect(await page.getByTestId('turn').count()).toBe(turns);
    return page.evaluate(() => {
      const unread = [...document.querySelectorAll('[data-unread]')];
      const main = document.querySelector('main')!.getBoundingClientRect();
      const seen = [...document.querySelectorAll('[data-testid=turn]')].filter((turn) => {
        const { top, bottom } = turn.getBoundingClientRect();
        return bottom > main.top && top < main.bottom;
      });
      return {
        answers: document.querySelectorAll('[data-testid=answer]').length,
        perUnread: Math.max(...unread.map((turn) => turn.querySelectorAll('*').length)),
        laidOut: seen.length,
      };
    });
  }

  it('draws tokens only near the reader, however long it is, and little of the rest', async () => {
    const [some, many] = [await drawn(60), await drawn(250)];
    expect(some.answers).toBeGreaterThanOrEqual(some.laidOut);
    expect(many.answers).toBe(some.answers);
    expect(many.answers).toBeLessThan(20);
    expect(many.perUnread).toBeLessThanOrEqual(4);
  });
});

describe('the window', () => {
  it('animates for at most 150 ms, and not at all with reduced motion', async () => {
    for (const reducedMotion of [false, true]) {
      const page = await hunch.open({ ...loading, reducedMotion });
      await page.getByTestId('loading').waitFor();
      const longest = await page.evaluate(() => {
        const seconds = (list: string) => Math.max(...list.split(',').map((time) => parseFloat(time)));
        return Math.max(...[...document.querySelectorAll('*')].map((element) => seconds(getComputedStyle(element).transitionDuration)));
      });
      expect(longest).toBeLessThanOrEqual(reducedMotion ? 0 : 0.15);
      const animation = await page.getByTestId('loading').evaluate((bar) => getComputedStyle(bar, '::after').animationName);
      expect(animation === 'none').toBe(reducedMotion);
    }
  });

  it('uses only its five font sizes', async () => {
    const page = await hunch.answered({ replay: 'fixture-answer' });
    await page.getByTestId('settings').click();
    const sizes = await page.evaluate(() => [
      ...new Set(
        [...document.querySelectorAll('body *')]
          .filter((element) => [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent?.trim()))
          .map((element) => getComputedStyle(element).fontSize),
      ),
    ]);
    for (const size of sizes) expect(['12px', '13px', '15px', '18px', '24px']).toContain(size);
  });

  it('allows selecting text only where it is read', async () => {
    const page = await hunch.answered({ replay: 'fixture-plain' });
    const selectable = (selector: string) =>
      page
        .locator(selector)
        .first()
        .evaluate((element) => getComputedStyle(element).userSelect);
    expect(await selectable('[data-testid=token]')).not.toBe('none');
    expect(await selectable('[data-testid=question]')).not.toBe('none');
    expect(await selectable('[data-testid=legend] .count')).toBe('none');
    expect(await selectable('header')).toBe('none');
  });

  it('announces to screen readers that an answer starts and how it ended, not its tokens', async () => {
    const page = await hunch.open({ speed: 4 });
    await ask(page);
    await page.getByTestId('token').first().waitFor();
    expect(await page.getByTestId('status').textContent()).toBe('Answering');
    expect(await page.getByTestId('status').getAttribute('aria-live')).toBe('polite');
    await page.keyboard.press('Escape');
    await ended(page);
    expect(await page.getByTestId('status').textContent()).toMatch(/^Finished\. \d+ tokens?, [\d.]+ tokens per pass\.$/);
  });

  it('can be dragged by its title bar, with room for the window buttons of a Mac', async () => {
    const page = await hunch.open({
      userAgent: 'Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.0 Safari/605.1.15',
    });
    expect(await page.locator('header[data-tauri-drag-region]').count()).toBe(1);
    expect(await page.locator('html').getAttribute('data-platform')).toBe('mac');
    expect(await page.getByTestId('new-conversation').getAttribute('title')).toContain('⌘N');
  });
});
