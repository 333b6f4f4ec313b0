// The choice of reasoning before an answer.

import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Page } from 'playwright-core';
import { describe, expect, it } from 'vitest';
import app from './fixtures/fixture-app.json';
import { ask, calls, ended, useWindow, type Opening } from './harness';
import { violations } from './violations';

const hunch = useWindow();
const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });

/** The recorded application, with a target whose chat template has these choices. */
function withChoices(thinking: string[]): unknown {
  return {
    ...app,
    info: { ...app.info, loaded: { ...app.info.loaded, thinking } },
  };
}

async function open(thinking: string[], opening: Opening = {}): Promise<Page> {
  const page = await hunch.open({
    height: 900,
    app: 'thinking',
    apps: { thinking: withChoices(thinking) },
    ...opening,
  });
  await page.getByTestId('example').first().waitFor();
  return page;
}

/** The choice that the last answer was asked with. */
async function sent(page: Page): Promise<unknown> {
  const request = (await calls(page, 'answer')).at(-1)?.['request'] as {
    settings: { thinking?: string };
  };
  return request.settings.thinking;
}

describe('thinking', () => {
  it('is not offered by a model without a switch', async () => {
    const page = await hunch.open();
    await page.getByTestId('settings').click();
    await page.getByTestId('seed').waitFor();
    expect(await page.getByTestId('thinking').count()).toBe(0);
  });

  it('is left to the model, until it is chosen', async () => {
    const page = await open(['off', 'on']);
    await page.getByTestId('settings').click();
    expect(await page.getByTestId('thinking').textContent()).toContain('Automatic');
    await page.getByTestId('thinking').click();
    expect(await page.getByRole('option').allTextContents()).toHaveLength(3);
    await page.getByTestId('thinking-off').click();
    expect(await page.getByTestId('thinking').textContent()).toContain('Off');
    await page.keyboard.press('Escape');
    await ask(page);
    await ended(page);
    expect(await sent(page)).toBe('off');
  });

  it('is part of a comparison, which begins with the choice of the chat', async () => {
    const page = await open(['off', 'on']);
    await page.getByTestId('settings').click();
    await page.getByTestId('thinking').click();
    await page.getByTestId('thinking-off').click();
    await page.keyboard.press('Escape');
    await page.keyboard.press('Control+2');
    expect(await page.getByTestId('compare-thinking').textContent()).toContain('Off');
    await page.getByTestId('compare-prompt').fill('Merge two lists.');
    await page.screenshot({ path: `${output}thinking-compare.png` });
    await page.getByTestId('compare-start').click();
    await expect
      .poll(async () => ((await calls(page, 'compare'))[0]?.['request'] as { thinking?: string } | undefined)?.thinking)
      .toBe('off');
  });

  for (const colours of ['light', 'dark'] as const) {
    it(`is readable in ${colours} colours`, async () => {
      const page = await open(['off', 'low', 'medium', 'high'], { colours });
      await page.getByTestId('settings').click();
      await page.getByTestId('thinking').click();
      await page.getByTestId('thinking-high').waitFor();
      await page.screenshot({ path: `${output}thinking-${colours}.png` });
      await page.keyboard.press('Escape');
      expect(await violations(page)).toEqual([]);
    });
  }
});
