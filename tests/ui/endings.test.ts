// Endings: answers at the maximum length or without drafts, the end of a conversation, Escape, and failures that
// stay. Work for a changed selection. Screenshots in tests/output/ui.

import { mkdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Page } from 'playwright-core';
import { describe, expect, it } from 'vitest';
import { record, toLines, type Plan } from './fixtures/build';
import { ask, calls, ended, useWindow } from './harness';
import { violations } from './violations';

const hunch = useWindow();
const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });
const app = JSON.parse(readFileSync(new URL('./fixtures/fixture-app.json', import.meta.url), 'utf8')) as Record<string, unknown>;

const recording = (plan: Partial<Plan>) =>
  toLines(record({ text: 'The lamp turned over the sea.', method: 'draft-model', maxDraft: 4, seed: 2, ...plan }));
const longText = Array.from({ length: 30 }, () => 'The lamp turned over the sea while she wrote the hour in the log.').join('\n\n');

describe('an answer that ended at the maximum length', () => {
  it('says so and is continued by a button', async () => {
    const recordings = { cut: recording({ stop: 'max_tokens' }), rest: recording({}) };
    const page = await hunch.answered({ replay: 'cut,rest', recordings });
    expect((await calls(page, 'answer'))[0]?.['request']).toMatchObject({ settings: { max_tokens: 4096 } });
    const notice = page.getByTestId('length-end');
    expect(await notice.innerText()).toContain('The answer reached its maximum length.');
    expect(await page.getByTestId('copy-answer').isEnabled()).toBe(true);
    await page.getByTestId('continue-length').click();
    await expect.poll(async () => (await calls(page, 'answer')).length).toBe(2);
    expect((await calls(page, 'answer'))[1]?.['request']).toMatchObject({ asking: { kind: 'continue' } });
    await notice.waitFor({ state: 'detached' });
  });

  it('during its thought names that, and has nothing to copy', async () => {
    const recordings = { cut: recording({ text: '<think>A lamp needs oil, and oil', stop: 'max_tokens' }) };
    const page = await hunch.answered({ replay: 'cut', recordings });
    expect(await page.getByTestId('length-end').innerText()).toContain('The maximum length was reached before the answer began.');
    expect(await page.getByTestId('copy-answer').isDisabled()).toBe(true);
    expect(await page.getByTestId('copy-question').isEnabled()).toBe(true);
  });

  it.each([
    ['light', 'en-US'],
    ['dark', 'de-DE'],
  ] as const)('is readable in %s colours', async (colours, locale) => {
    const recordings = { cut: recording({ text: '<think>A lamp needs oil, and oil', stop: 'max_tokens' }) };
    const page = await hunch.answered({ replay: 'cut', recordings, colours, locale });
    await page.screenshot({ path: `${output}length-end-${colours}.png` });
    expect(await violations(page)).toEqual([]);
  });
});

describe('an answer whose method drafted nothing', () => {
  it('shows no share of accepted tokens', async () => {
    const recordings = { undrafted: recording({ maxDraft: 0 }), drafted: recording({}) };
    const page = await hunch.open({ replay: 'undrafted,drafted', recordings });
    await ask(page);
    await ended(page);
    expect(await page.getByTestId('figures').innerText()).not.toContain('accepted');
    await ask(page);
    await page.getByTestId('stats').nth(1).waitFor();
    expect(await page.getByTestId('figures').last().innerText()).toContain('accepted');
  });
});

describe('a finished conversation', () => {
  it('leads back to its end from far above, not from near', async () => {
    const page = await hunch.answered({ replay: 'long', recordings: { long: recording({ text: longText }) } });
    const button = page.getByTestId('to-end');
    await page.getByTestId('conversation').hover();
    await page.mouse.wheel(0, -100);
    await page.waitForTimeout(200);
    expect(await button.count()).toBe(0);
    await page.mouse.wheel(0, -900);
    await button.waitFor();
    expect(await button.innerText()).toBe('To the end');
    await page.screenshot({ path: `${output}to-end.png` });
    await button.click();
    await button.waitFor({ state: 'detached' });
    const left = await page.getByTestId('conversation').evaluate((main) => main.scrollHeight - main.clientHeight - main.scrollTop);
    expect(left).toBeLessThanOrEqual(1);
  });
});

describe('Escape', () => {
  it('closes the card of a token before it stops the answer, also below a resting pointer', async () => {
    const page = await hunch.open({
      replay: 'long',
      recordings: { long: recording({ text: longText.repeat(3), perMessage: 1 }) },
      speed: 1,
    });
    await ask(page);
    await page.getByTestId('token').nth(6).waitFor();
    await page.getByTestId('token').nth(3).hover();
    const card = page.getByTestId('token-card');
    await card.waitFor();
    await page.keyboard.press('Escape');
    await card.waitFor({ state: 'detached' });
    expect(await calls(page, 'stop_generation')).toEqual([]);
    await page.keyboard.press('Escape');
    await expect.poll(async () => (await calls(page, 'stop_generation')).length).toBe(1);
  });
});

describe('a failure', () => {
  it('stays until it is dismissed, by its button or by Escape', async () => {
    const page = await hunch.open();
    await page.clock.install();
    const drop = (path: string) =>
      page.evaluate((name) => window.hunchReplay?.files({ kind: 'dropped', paths: [name], across: 0.2 }), path);
    const failures = page.getByTestId('failure');
    await drop('/tmp/notes.txt');
    await failures.waitFor();
    await page.clock.fastForward(60_000);
    await drop('/tmp/others.txt');
    await expect.poll(() => failures.count()).toBe(2);
    await page.getByTestId('dismiss-failure').first().press('Enter');
    await expect.poll(() => failures.count()).toBe(1);
    expect(await failures.innerText()).toContain('others.txt');
    expect(await page.evaluate(() => document.activeElement?.getAttribute('data-testid'))).toBe('dismiss-failure');
    await page.keyboard.press('Escape');
    await expect.poll(() => failures.count()).toBe(0);
  });

  it.each(['light', 'dark'] as const)('is readable in %s colours', async (colours) => {
    const page = await hunch.open({ colours });
    for (const path of ['/tmp/notes.txt', '/tmp/others.txt'])
      await page.evaluate((name) => window.hunchReplay?.files({ kind: 'dropped', paths: [name], across: 0.2 }), path);
    await expect.poll(() => page.getByTestId('failure').count()).toBe(2);
    // In the middle of the screen, not over the sidebar.
    const [card, place] = [await page.getByTestId('failure').first().boundingBox(), await page.locator('header').last().boundingBox()];
    expect(card!.x).toBeGreaterThan(place!.x + 16);
    expect(card!.x + card!.width / 2).toBeCloseTo(place!.x + place!.width / 2, 0);
    await page.screenshot({ path: `${output}failures-${colours}.png` });
    expect(await violations(page)).toEqual([]);
  });
});

/** Counts calls of a function of the page while it acts. */
async function callsDuring(page: Page, name: 'Map.get' | 'Math.max', act: () => Promise<unknown>): Promise<number> {
  await page.evaluate((watched) => {
    const [owner, method] = watched === 'Map.get' ? [Map.prototype, 'get'] : [Math, 'max'];
    const original = Reflect.get(owner, method) as (...args: unknown[]) => unknown;
    const counter = { count: 0, undo: () => Reflect.set(owner, method, original) };
    Object.assign(window, { counter });
    Reflect.set(owner, method, function (this: unknown, ...args: unknown[]) {
      counter.count += 1;
      return original.apply(this, args);
    });
  }, name);
  await act();
  await page.waitForTimeout(100);
  return page.evaluate(() => {
    const { counter } = window as unknown as { counter: { count: number; undo: () => void } };
    counter.undo();
    return counter.count;
  });
}

describe('a long answer', () => {
  const recordings = { long: recording({ text: longText.repeat(2) }) };

  it('evaluates none of its tokens again for the legend or another colour mode', async () => {
    const page = await hunch.answered({ replay: 'long', recordings });
    const tokens = await page.getByTestId('token').count();
    expect(tokens).toBeGreaterThan(800);
    // Each token looks its round up twice.
    const legend = await callsDuring(page, 'Map.get', () => page.locator('[data-legend=accepted]').click());
    expect(await page.getByTestId('answer').getAttribute('data-only')).toBe('accepted');
    expect(legend).toBeLessThan(tokens / 2);
    const mode = await callsDuring(page, 'Map.get', () => page.evaluate(() => window.hunchReplay?.menu('colours-entropy')));
    expect(await page.getByTestId('answer').getAttribute('data-mode')).toBe('entropy');
    expect(mode).toBeLessThan(tokens / 2);
  });

  it('evaluates two of its tokens again when another one is picked in the lab', async () => {
    const page = await hunch.answered({ replay: 'long', recordings, app: 'app', apps: { app } });
    await page.keyboard.press('Control+3');
    const options = page.getByTestId('token-picker').getByRole('option');
    await options.first().waitFor();
    const count = await options.count();
    expect(count).toBeGreaterThan(800);
    await options.nth(400).click();
    await expect.poll(() => options.nth(400).getAttribute('aria-selected')).toBe('true');
    // An option that is evaluated asks for the index that Tab reaches.
    const evaluated = await callsDuring(page, 'Math.max', async () => {
      await page.keyboard.press('ArrowRight');
      await expect.poll(() => options.nth(401).getAttribute('aria-selected')).toBe('true');
    });
    expect(evaluated).toBeLessThan(count / 2);
    expect(await options.nth(401).getAttribute('tabindex')).toBe('0');
    expect(await options.nth(400).getAttribute('tabindex')).toBe('-1');
    expect(await page.getByTestId('token-picker').locator('[aria-selected=true]').count()).toBe(1);
  });
});
