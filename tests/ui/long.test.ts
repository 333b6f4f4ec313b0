// A long conversation: turns far from the reader are cheap, and are loaded when the reader gets there.

import type { Page } from 'playwright-core';
import { expect, it } from 'vitest';
import type { RecordedApp } from './replay/host';
import { longConversation } from './fixtures/long';
import recordedApp from './fixtures/fixture-app.json';
import { calls, useWindow } from './harness';

const hunch = useWindow();
const turns = 80;
const app = { ...recordedApp, conversations: [longConversation(turns, 100)] } as unknown as RecordedApp;

async function opened(reducedMotion = false): Promise<Page> {
  const page = await hunch.open({ app: 'long', apps: { long: app }, reducedMotion });
  await page.getByTestId('conversation-entry').getByRole('button').first().click();
  await page.locator('[data-testid=turn]:last-child [data-testid=stats]').waitFor();
  await quiet(page);
  return page;
}

/** Waits until no turn on screen lacks its tokens and nothing moves. */
async function quiet(page: Page): Promise<void> {
  await page.waitForFunction(() => {
    const { top, bottom } = document.querySelector('main')!.getBoundingClientRect();
    return [...document.querySelectorAll('[data-unread]')].every((turn) => {
      const box = turn.getBoundingClientRect();
      return box.bottom < top || box.top > bottom;
    });
  });
  let before = -1;
  await expect
    .poll(
      async () => {
        const now = await page.getByTestId('conversation').evaluate((main) => main.scrollHeight);
        const same = now === before;
        before = now;
        return same;
      },
      { interval: 150 },
    )
    .toBe(true);
}

const left = (page: Page) => page.getByTestId('conversation').evaluate((main) => main.scrollHeight - main.clientHeight - main.scrollTop);

it('opens at its end, with tokens near the reader and the text of all', async () => {
  const page = await opened();
  expect(await left(page)).toBeLessThanOrEqual(24);
  expect(await page.getByTestId('turn').count()).toBe(turns);
  const fetched = (await calls(page, 'answer_events')).length;
  expect(fetched).toBeLessThan(turns / 4);
  expect(await page.locator('[data-unread]').count()).toBe(turns - fetched);
  // Every answer can be found on the page.
  const text = (await page.getByTestId('conversation').textContent()) ?? '';
  for (const number of [1, 17, 42, turns]) expect(text).toContain(`Answer ${number}.`);
});

it.each([true, false])('scrolls to a search hit and marks it for a moment (reduced motion: %s)', async (reducedMotion) => {
  const page = await opened(reducedMotion);
  const find = async (typed: string) => {
    await page.getByTestId('search').fill(typed);
    await page.getByTestId('hit').filter({ hasText: typed }).first().click();
  };
  const found = page.locator('[data-testid=turn][data-found]');
  const room = () =>
    page.evaluate(() => {
      const main = document.querySelector('main')!.getBoundingClientRect();
      return [...document.querySelectorAll('[data-testid=turn]')].map((turn) => Math.round(turn.getBoundingClientRect().top - main.top));
    });
  await find('Question 17');
  await found.waitFor();
  expect(await found.getByTestId('question').textContent()).toBe('Question 17');
  await found.waitFor({ state: 'detached' });
  await quiet(page);
  // The answers around it have their tokens now, and it has not moved.
  expect(Math.abs((await room())[16]! - 16)).toBeLessThanOrEqual(2);
  // A hit on this branch does not change the branch.
  expect(await calls(page, 'choose_branch')).toEqual([]);
  await find('Answer 63.');
  await found.waitFor();
  expect(await found.getByTestId('question').textContent()).toBe('Question 63');
  expect(Math.abs((await room())[62]! - 16)).toBeLessThanOrEqual(2);
});

it('fetches the tokens of an answer once, when the reader gets there', async () => {
  const page = await opened();
  await page.getByTestId('conversation').evaluate((main) => (main.scrollTop = 0));
  await page.locator('[data-testid=turn]:first-child [data-testid=stats]').waitFor();
  await quiet(page);
  expect(await page.locator('[data-testid=turn]').first().getByTestId('token').count()).toBeGreaterThan(60);
  const fetched = (await calls(page, 'answer_events')).map((args) => args['message']);
  expect(new Set(fetched).size).toBe(fetched.length);
  expect(fetched.length).toBeLessThan(turns / 2);
  // Back at the end nothing is fetched again.
  await page.getByTestId('conversation').evaluate((main) => (main.scrollTop = main.scrollHeight));
  await quiet(page);
  const again = (await calls(page, 'answer_events')).map((args) => args['message']);
  expect(new Set(again).size).toBe(again.length);
});

it('keeps the reading position while answers above get their tokens', async () => {
  const page = await opened();
  await page.getByTestId('conversation').hover();
  // Jump to the middle, which was not laid out yet.
  await page.getByTestId('conversation').evaluate((main) => (main.scrollTop = main.scrollHeight / 2));
  const place = () =>
    page.evaluate(() => {
      const main = document.querySelector('main')!.getBoundingClientRect();
      const all = [...document.querySelectorAll('[data-testid=turn]')];
      const at = all.findIndex((turn) => turn.getBoundingClientRect().bottom > main.top);
      return { at, top: Math.round(all[at]!.getBoundingClientRect().top) };
    });
  await page.waitForFunction(() => document.querySelector('main')!.scrollTop > 0);
  await page.evaluate(() => new Promise(requestAnimationFrame));
  const before = await place();
  await quiet(page);
  const after = await place();
  expect(after.at).toBe(before.at);
  expect(Math.abs(after.top - before.top)).toBeLessThanOrEqual(2);
  // Small steps upwards move upwards.
  for (let step = 0; step < 12; step += 1) {
    const top = await page
      .locator('[data-testid=turn]')
      .nth(after.at)
      .evaluate((turn) => turn.getBoundingClientRect().top);
    await page.mouse.wheel(0, -120);
    await expect
      .poll(async () =>
        Math.round(
          (await page
            .locator('[data-testid=turn]')
            .nth(after.at)
            .evaluate((turn) => turn.getBoundingClientRect().top)) - top,
        ),
      )
      .toBeGreaterThanOrEqual(118);
  }
});

// The change reaches the resize observer before the event of the scroll, or after it.
it.each(['before', 'after'])('keeps the reading position while an answer above changes its height %s a scroll', async (order) => {
  const page = await opened();
  // Turns that come near get their tokens, and with them other heights.
  await page.getByTestId('conversation').evaluate((main) => (main.scrollTop -= 400));
  await quiet(page);
  const moved = await page.evaluate(async (order) => {
    const main = document.querySelector('main')!;
    const frame = () => new Promise(requestAnimationFrame);
    // Let pending scroll events arrive.
    await frame();
    await frame();
    const all = [...document.querySelectorAll<HTMLElement>('[data-testid=turn]')];
    const at = all.findIndex((turn) => turn.getBoundingClientRect().bottom > main.getBoundingClientRect().top);
    const top = () => all[at]!.getBoundingClientRect().top;
    if (order === 'after') await new Promise((resolve) => setTimeout(resolve));
    const before = top();
    all[at - 1]!.style.paddingTop = '40px';
    main.scrollTop -= 10;
    await frame();
    await frame();
    return Math.round(top() - before);
  }, order);
  expect(moved).toBe(10);
});
