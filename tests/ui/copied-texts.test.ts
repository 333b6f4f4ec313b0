// Texts of the user that drafts are copied from: chosen and removed in the settings.

import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Page } from 'playwright-core';
import { describe, expect, it } from 'vitest';
import recordedApp from './fixtures/fixture-app.json';
import { calls, useWindow, type Opening } from './harness';
import { violations } from './violations';

const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });

const hunch = useWindow();
const app = {
  ...recordedApp,
  picks: ['/home/me/notes', '/home/me/gone'],
  texts: { '/home/me/notes': 'sorted lists', '/home/me/merge.rs': 'fn merge' },
};
const opening = { app: 'texts', apps: { texts: app }, height: 900 };

async function openTexts(more: Opening = {}): Promise<Page> {
  const page = await hunch.open({ ...opening, ...more });
  await page.getByTestId('settings').click();
  await page.getByTestId('copied-texts').locator('summary').click();
  await page.getByTestId('copy-folder').waitFor();
  return page;
}

const sources = (page: Page) => page.getByTestId('copied-source').allInnerTexts();

describe('texts to copy drafts from', () => {
  it('are folders, files and conversations, and can be removed', async () => {
    const page = await openTexts();
    expect(await page.getByTestId('copied-texts-mark').count()).toBe(0);
    await page.getByTestId('copy-folder').click();
    await expect.poll(() => page.getByTestId('copied-status').innerText()).toBe('1 text with 2 tokens');
    await page.getByTestId('copy-conversations').check();
    await page.getByTestId('copy-files').click();
    await expect.poll(() => sources(page)).toEqual(['notes', 'merge.rs']);
    expect(await page.getByTestId('copied-texts-mark').innerText()).toBe('3 sources');
    expect(await violations(page)).toEqual([]);
    await page.screenshot({ path: `${output}copied-texts.png` });

    await page.getByLabel('Remove notes').click();
    await expect.poll(() => sources(page)).toEqual(['merge.rs']);
    await page.getByTestId('copy-conversations').uncheck();
    const chosen = (await calls(page, 'choose_texts')).map((call) => call['sources']);
    expect(chosen.at(-1)).toEqual(['/home/me/merge.rs']);
  });

  it('say which methods copy from them, if the chosen one does not', async () => {
    const page = await openTexts({ preferences: {} });
    await page.keyboard.press('Escape');
    await page.getByTestId('method').click();
    await page.getByTestId('method-draft-model').click();
    await page.getByTestId('settings').click();
    await page.getByTestId('copied-texts').locator('summary').click();
    const unused = page.getByTestId('copied-unused');
    expect(await unused.innerText()).toBe('');
    await page.getByTestId('copy-folder').click();
    const note = 'The method Draft model copies nothing from your texts. Choose Automatic or Retrieval.';
    await expect.poll(() => unused.innerText()).toBe(note);
    expect(await violations(page)).toEqual([]);
    await page.keyboard.press('Escape');
    await page.getByTestId('method').click();
    await page.getByTestId('method-retrieval').click();
    await page.getByTestId('settings').click();
    await page.getByTestId('copied-texts').locator('summary').click();
    await expect.poll(() => page.getByTestId('copied-source').count()).toBe(1);
    expect(await unused.innerText()).toBe('');
  });

  it('have to be chosen before the method that only copies from them', async () => {
    const page = await hunch.open(opening);
    await page.getByTestId('method').click();
    const retrieval = page.getByTestId('method-retrieval');
    expect(await retrieval.innerText()).toContain('Choose texts first');
    expect(await retrieval.getAttribute('aria-disabled')).toBe('true');
  });

  it('stay as they were if a choice fails, and say why', async () => {
    const page = await openTexts();
    await page.getByTestId('copy-folder').click();
    await expect.poll(() => sources(page)).toEqual(['notes']);
    await page.getByTestId('copy-folder').click();
    await expect.poll(() => page.getByTestId('copied-problem').innerText()).toContain('No such file');
    expect(await sources(page)).toEqual(['notes']);
    await page.getByLabel('Remove notes').click();
    await expect.poll(() => page.getByTestId('copied-problem').count()).toBe(0);
    expect(await page.getByTestId('copied-status').innerText()).toBe('');
  });

  it('can be chosen before a model is open', async () => {
    const page = await openTexts({ apps: { texts: { ...app, info: { ...app.info, loaded: null }, models: [] } } });
    await page.getByTestId('copy-files').click();
    await expect.poll(() => page.getByTestId('copied-status').innerText()).toContain('model');
    expect(await sources(page)).toEqual(['notes', 'merge.rs']);
  });
});
