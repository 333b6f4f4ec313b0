// Find in the open conversation, and the sheet of shortcuts. Screenshots in tests/output/ui.

import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Page } from 'playwright-core';
import { describe, expect, it } from 'vitest';
import { record, toLines } from './fixtures/build';
import { ask, calls, ended, useWindow } from './harness';
import { violations } from './violations';

const hunch = useWindow();
const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });

const focused = (page: Page) => page.evaluate(() => document.activeElement?.getAttribute('data-testid'));
const count = async (page: Page) => (await page.getByTestId('find-count').innerText()).trim();
/** Texts of a highlight. */
const marked = (page: Page, name: string): Promise<string[]> =>
  page.evaluate((key) => [...(CSS.highlights.get(key) ?? [])].map((range) => (range as Range).toString()), name);
/** Index of the turn of the current match, and `true` if it is in view. */
const current = (page: Page) =>
  page.evaluate(() => {
    const [range] = [...(CSS.highlights.get('find-current') ?? [])] as Range[];
    const turn = range?.startContainer.parentElement?.closest('[data-testid=turn]');
    const box = range?.getBoundingClientRect();
    const view = document.querySelector('main')?.getBoundingClientRect();
    const inView = box !== undefined && view !== undefined && box.height > 0 && box.top >= view.top && box.bottom <= view.bottom;
    return { turn: [...document.querySelectorAll('[data-testid=turn]')].indexOf(turn as Element), inView };
  });

/** A conversation whose answers mention the lamp in bold and in code, over several screens. */
async function conversation(opening: Parameters<typeof hunch.open>[0] = {}): Promise<Page> {
  const filler = 'The sea came over the rail while she wrote the hour in the log and waited. '.repeat(30);
  const text = `<think>A lamp needs oil.</think>The **old** lamp turned.\n\n${filler}\n\n\`\`\`js\nconst lamp = 1;\n\`\`\``;
  const long = toLines(record({ text, method: 'draft-model', maxDraft: 4, seed: 2, perMessage: 8 }));
  const page = await hunch.open({ replay: 'long,long', recordings: { long }, ...opening });
  await ask(page, 'Describe a lamp.');
  await ended(page);
  await ask(page, 'And of the next lamp?');
  await page.getByTestId('stats').nth(1).waitFor();
  return page;
}

describe('find in the conversation', () => {
  it('marks matches of questions, answers and thoughts, and goes from one to the next', async () => {
    const page = await conversation();
    await page.keyboard.press('Control+f');
    await expect.poll(() => focused(page)).toBe('find');
    await page.keyboard.type('LAMP');
    await expect.poll(async () => (await marked(page, 'find')).length).toBe(8);
    expect(await marked(page, 'find-current')).toEqual(['lamp']);
    // The search begins where the reader is.
    await expect.poll(() => current(page)).toEqual({ turn: 1, inView: true });
    const at = Number((await count(page)).split(' ')[0]);
    expect(await count(page)).toBe(`${at} of 8`);
    await page.keyboard.press('Enter');
    await expect.poll(() => count(page)).toBe(`${(at % 8) + 1} of 8`);
    await page.keyboard.press('Shift+Enter');
    await page.keyboard.press('Shift+Enter');
    await expect.poll(() => count(page)).toBe(`${((at + 6) % 8) + 1} of 8`);
    await expect.poll(async () => (await current(page)).inView).toBe(true);
    // All matches can be reached, also the one in a folded thought.
    for (let i = 0; i < 8; i += 1) {
      await page.getByTestId('find-next').click();
      await expect.poll(async () => (await current(page)).inView).toBe(true);
    }
    expect(await page.getByTestId('thought').first().getAttribute('open')).toBe('');
    expect(await focused(page)).toBe('find-next');
  });

  it('finds text across tokens and formats, not across paragraphs', async () => {
    const page = await conversation();
    await page.keyboard.press('Control+f');
    const found = async (text: string) => {
      await page.getByTestId('find').fill(text);
      await expect.poll(async () => (await count(page)).replace(/^\d+ of /, '')).toMatch(/^(\d+|No results)$/);
      return count(page);
    };
    expect(await found('the old lamp turned')).toMatch(/ of 2$/);
    expect(await found('turned. The sea')).toBe('No results');
    expect(await marked(page, 'find')).toEqual([]);
    expect(await found('const lamp')).toMatch(/ of 2$/);
  });

  it('keeps up with an answer that is being written', async () => {
    const text = 'The lamp turned and turned over the sea. '.repeat(40);
    const long = toLines(record({ text, method: 'draft-model', maxDraft: 4, seed: 2, perMessage: 2 }));
    const page = await hunch.open({ replay: 'long', recordings: { long }, speed: 20 });
    await ask(page, 'Describe the sea.');
    await page.getByTestId('answer').getByText('lamp').first().waitFor();
    await page.keyboard.press('Control+f');
    await page.keyboard.type('lamp');
    await ended(page);
    await expect.poll(() => count(page)).toBe('1 of 40');
  });

  it('closes on Escape alone, and with the conversation', async () => {
    const page = await conversation({ speed: 'instant' });
    await page.keyboard.press('Control+f');
    await page.keyboard.type('lamp');
    await expect.poll(async () => (await marked(page, 'find')).length).toBe(8);
    await page.keyboard.press('Escape');
    await page.getByTestId('find-bar').waitFor({ state: 'detached' });
    expect(await marked(page, 'find')).toEqual([]);
    expect(await focused(page)).toBe('prompt');
    // The query is still there.
    await page.keyboard.press('Control+f');
    await expect.poll(() => page.getByTestId('find').inputValue()).toBe('lamp');
    await expect.poll(async () => (await marked(page, 'find')).length).toBe(8);
    await page.keyboard.press('Control+n');
    await page.getByTestId('find-bar').waitFor({ state: 'detached' });
    expect(await calls(page, 'stop_generation')).toEqual([]);
  });

  it('stays open while the conversation continues', async () => {
    const page = await conversation({ speed: 'instant' });
    await page.keyboard.press('Control+f');
    await page.keyboard.type('lamp');
    await ask(page, 'And of the last lamp?');
    await page.getByTestId('turn').nth(2).waitFor();
    // The question has a lamp too.
    await expect.poll(async () => (await marked(page, 'find')).length).toBeGreaterThan(8);
    expect(await page.getByTestId('find-bar').count()).toBe(1);
  });

  it('selects the match where text cannot be marked', async () => {
    const page = await hunch.open({ replay: 'fixture-story' });
    await page.addInitScript(() => void Reflect.deleteProperty(CSS, 'highlights'));
    await page.reload();
    await page.getByTestId('prompt').waitFor();
    await ask(page);
    await ended(page);
    await page.keyboard.press('Control+f');
    await page.keyboard.type('SHE');
    await expect.poll(() => count(page)).toMatch(/^1 of \d+$/);
    expect(await focused(page)).toBe('find');
    await page.keyboard.press('Enter');
    await expect.poll(() => page.evaluate(() => getSelection()?.toString().toLowerCase())).toBe('she');
    expect(await count(page)).toMatch(/^2 of/);
  });

  it('searches the conversations from the sidebar, and with Shift from anywhere', async () => {
    const page = await conversation();
    await page.keyboard.press('Control+Shift+f');
    await expect.poll(() => focused(page)).toBe('search');
    await page.keyboard.press('Control+f');
    await expect.poll(() => focused(page)).toBe('search');
    expect(await page.getByTestId('find-bar').count()).toBe(0);
    await page.getByTestId('prompt').focus();
    // The native menu has the same item.
    await page.evaluate(() => window.hunchReplay?.menu('search'));
    await expect.poll(() => focused(page)).toBe('find');
    await page.getByTestId('find').fill('lamp');
    await page.getByTestId('prompt').focus();
    await page.keyboard.press('Control+g');
    await expect.poll(async () => (await current(page)).inView).toBe(true);
  });

  it.each(['light', 'dark'] as const)('is readable in %s colours', async (colours) => {
    const page = await conversation({ colours, width: 1100, height: 760 });
    await page.keyboard.press('Control+f');
    await page.keyboard.type('the');
    await expect.poll(async () => (await marked(page, 'find')).length).toBeGreaterThan(100);
    await page.screenshot({ path: `${output}find-${colours}.png` });
    expect(await violations(page)).toEqual([]);
  });
});

describe('the sheet of shortcuts', () => {
  it('opens with a question mark outside fields, with Ctrl and slash, and from the palette', async () => {
    const page = await hunch.open();
    const sheet = page.getByTestId('shortcuts');
    await page.keyboard.type('?');
    expect(await page.getByTestId('prompt').inputValue()).toBe('?');
    expect(await sheet.count()).toBe(0);
    await page.getByTestId('new-conversation').focus();
    await page.keyboard.press('?');
    await sheet.waitFor();
    expect(await sheet.innerText()).toContain('Ctrl+Shift+F');
    await page.keyboard.press('Escape');
    await sheet.waitFor({ state: 'detached' });
    await page.keyboard.press('Control+/');
    await sheet.waitFor();
    await page.keyboard.press('Control+/');
    await sheet.waitFor({ state: 'detached' });
    await page.keyboard.press('Control+k');
    await page.keyboard.type('keyboard');
    await page.keyboard.press('Enter');
    await sheet.waitFor();
  });

  it.each(['light', 'dark'] as const)('is readable in %s colours', async (colours) => {
    const page = await hunch.open({ colours, width: 1100, height: 760, locale: colours === 'dark' ? 'de-DE' : 'en-US' });
    await page.keyboard.press('Control+/');
    await page.getByTestId('shortcuts').waitFor();
    await page.screenshot({ path: `${output}shortcuts-${colours}.png` });
    expect(await violations(page)).toEqual([]);
  });
});
