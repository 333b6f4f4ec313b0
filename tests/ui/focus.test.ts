// Keyboard focus and reading position in the built window, after an action that removes or redraws its own control.

import type { Page } from 'playwright-core';
import { describe, expect, it } from 'vitest';
import { ask, ended, useWindow } from './harness';

const hunch = useWindow();

/** Test id or label of the focused element. */
const focused = (page: Page) =>
  page.evaluate(() => document.activeElement?.getAttribute('data-testid') ?? document.activeElement?.getAttribute('aria-label'));

/** Distance of the first turn from the top of the window, in pixels. */
const topOf = (page: Page) =>
  page
    .getByTestId('turn')
    .first()
    .evaluate((turn) => Math.round(turn.getBoundingClientRect().top));

describe('a branch', () => {
  it('shows up at the same place, and its button keeps the focus', async () => {
    const page = await hunch.open({ replay: 'fixture-story,fixture-story,fixture-story', height: 500 });
    for (const question of ['one', 'two']) {
      await ask(page, question);
      await ended(page);
    }
    await page.getByTestId('edit').first().click();
    await page.getByTestId('edit-question').fill('uno');
    await page.keyboard.press('Enter');
    await page.getByTestId('question-branches').waitFor();
    await ended(page);
    await page.getByRole('button', { name: 'Previous question' }).focus();
    const before = await topOf(page);
    await page.keyboard.press('Enter');
    await page.getByTestId('turn').nth(1).waitFor();
    await expect.poll(() => focused(page)).toBe('Next question');
    await page.waitForTimeout(200);
    expect(Math.abs((await topOf(page)) - before)).toBeLessThanOrEqual(2);
    await page.keyboard.press('Enter');
    await expect.poll(() => focused(page)).toBe('Previous question');
    expect(await page.getByTestId('question').allInnerTexts()).toEqual(['uno']);
  });

  it('takes its focus when it is loaded', async () => {
    const page = await hunch.open({ replay: 'fixture-plain,fixture-plain' });
    await ask(page, 'one');
    await ended(page);
    await page.getByTestId('regenerate').click();
    await page.getByTestId('answer-branches').waitFor();
    await ended(page);
    // A reopened conversation has loaded the answer of one branch.
    await page.keyboard.press('Control+n');
    await page.getByTestId('empty').waitFor();
    await page.getByTestId('conversation-entry').getByRole('button').first().click();
    await page.getByRole('button', { name: 'Previous answer' }).press('Enter');
    await page.getByText('1 / 2').waitFor();
    await expect.poll(() => focused(page)).toBe('Next answer');
  });
});

describe('the focus', () => {
  it('returns to the question after an edit is cancelled, and goes to the composer after it is sent', async () => {
    const page = await hunch.answered({ replay: 'fixture-plain,fixture-plain' });
    await page.getByTestId('edit').press('Enter');
    await page.keyboard.press('Escape');
    await expect.poll(() => focused(page)).toBe('edit');
    await page.keyboard.press('Enter');
    await page.getByTestId('edit-question').fill('uno');
    await page.keyboard.press('Enter');
    await page.getByTestId('question-branches').waitFor();
    expect(await focused(page)).toBe('prompt');
  });

  it('goes to the composer after a refused question is dismissed', async () => {
    const page = await hunch.open({ replay: 'fixture-refused', preferences: { drafts: { new: 'half typed' } } });
    await page.getByTestId('example').first().click();
    await page.getByTestId('dismiss').press('Enter');
    await page.getByTestId('error').waitFor({ state: 'detached' });
    expect(await focused(page)).toBe('prompt');
  });

  it('stays in the list of conversations after a rename and a deletion', async () => {
    const page = await hunch.open({ replay: 'fixture-plain' });
    for (const title of ['first', 'second']) {
      await page.keyboard.press('Control+n');
      await ask(page, title);
      await ended(page);
    }
    const rows = page.getByTestId('conversation-entry');
    const focusedRow = () =>
      rows.evaluateAll((all) => all.findIndex((row) => row.querySelector('[data-testid=entry-menu]') === document.activeElement));
    const choose = async (row: number, item: string) => {
      await rows.nth(row).getByTestId('entry-menu').press('Enter');
      await page.getByTestId(item).press('Enter');
    };
    await rows.nth(1).waitFor();
    for (const [key, title] of [
      ['Enter', 'Renamed'],
      ['Escape', 'Forgotten'],
    ] as const) {
      await choose(1, 'menu-rename');
      await page.getByTestId('rename').fill(title);
      await page.keyboard.press(key);
      await expect.poll(focusedRow).toBe(1);
    }
    expect(await rows.nth(1).innerText()).toContain('Renamed');
    await choose(1, 'menu-delete');
    await rows.nth(1).waitFor({ state: 'detached' });
    await expect.poll(focusedRow).toBe(0);
    await choose(0, 'menu-delete');
    await rows.waitFor({ state: 'detached' });
    await expect.poll(() => focused(page)).toBe('new-conversation');
  });

  it('stays among the lanes when one is removed', async () => {
    const page = await hunch.open();
    await page.keyboard.press('Control+2');
    const remove = page.getByTestId('remove-lane');
    while ((await remove.count()) < 3) await page.getByTestId('add-lane').click();
    await remove.nth(2).press('Enter');
    expect(await remove.nth(1).evaluate((button) => button === document.activeElement)).toBe(true);
    await page.keyboard.press('Enter');
    await remove.waitFor({ state: 'detached' });
    expect(await focused(page)).toBe('add-lane');
  });
});
