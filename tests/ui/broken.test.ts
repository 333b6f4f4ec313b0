// The screen that replaces a window that cannot be drawn: it reloads the window and shows the log.

import type { Page } from 'playwright-core';
import { describe, expect, it } from 'vitest';
import { calls, useWindow } from './harness';

const hunch = useWindow();

const kinds = async (page: Page) => (await calls(page, 'report_problem')).map(({ kind }) => kind);

describe('a window that cannot be drawn', () => {
  it('says what is safe, shows the log and reloads', async () => {
    const page = await hunch.open();
    await page.evaluate(() => {
      const own = Node.prototype.cloneNode;
      // Makes the next drawing fail, once.
      Node.prototype.cloneNode = () => {
        Node.prototype.cloneNode = own;
        throw new TypeError('odd');
      };
      window.hunchReplay?.menu('settings');
    });
    await page.getByTestId('broken-window').waitFor();
    expect(await page.getByTestId('broken-window').innerText()).toContain('Your conversations are safe');
    expect(await kinds(page)).toEqual(['drawing']);
    await page.getByTestId('show-log').click();
    expect(await calls(page, 'show_log')).toEqual([{}]);
    await page.getByTestId('reload').click();
    await page.getByTestId('prompt').waitFor();
    expect(await page.getByTestId('broken-window').count()).toBe(0);
  });

  it('leads to the log from the palette', async () => {
    const page = await hunch.open();
    await page.keyboard.press('Control+k');
    await page.keyboard.type('log');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => window.hunchReplay?.calls.some(({ command }) => command === 'show_log'));
  });
});
