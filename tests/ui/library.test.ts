// The library on the replay host: models on this machine, whether they fit, and looks in both languages.

import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Page } from 'playwright-core';
import { describe, expect, it } from 'vitest';
import { de } from '../../ui/src/lib/strings/de';
import { eagle, library as recorded, models } from './fixtures/library';
import { calls } from './harness';
import { download, huge, idle, look, middle, requests, row, rows, selected, seven, small, tiny, useLibraryWindow } from './libraryPage';
import { violations } from './violations';

const { openWith, openLibrary } = useLibraryWindow();
const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });

describe('what is here', () => {
  it('is searched as one types, and explains an empty result', async () => {
    const page = await openLibrary();
    expect(await rows(page)).toHaveLength(models.length);
    await page.keyboard.press('Control+f');
    await page.keyboard.type('coder 5B');
    expect(await rows(page)).toEqual([small.name, middle.name]);
    expect(await page.getByTestId('model-count').innerText()).toBe('2 of 9 models');
    await page.keyboard.type(' nothing');
    await page.getByTestId('nothing-found').waitFor();
    expect(await page.getByTestId('nothing-found').innerText()).toContain('match none of 9 models');
    await page.getByTestId('clear-filters').click();
    expect(await rows(page)).toHaveLength(models.length);
  });

  it('is filtered by source, family, quantisation and fit, and sorted', async () => {
    const page = await openLibrary();
    await page.getByTestId('filter-source-lm_studio').click();
    expect(await rows(page)).toEqual(['mistral-7b-v0.1-q4_0', seven.name, huge.name]);
    await page.locator('[data-fit=too_large]').first().waitFor();
    await page.getByTestId('filter-fits').check();
    expect(await rows(page)).not.toContain(huge.name);
    await page.getByTestId('filter-architecture-qwen2').click();
    expect(await rows(page)).toEqual([seven.name]);
    expect(await page.getByTestId('filter-architecture-qwen2').getAttribute('aria-pressed')).toBe('true');
    await page.getByTestId('show-all').click();
    await page.getByTestId('sort').selectOption('size');
    expect((await rows(page))[0]).toBe(huge.name);
    await page.getByTestId('sort').selectOption('speed');
    expect((await rows(page))[0]).toBe(small.name);
  });

  it('is browsed by keyboard alone: slash, arrows, Return, Delete', async () => {
    const page = await openLibrary();
    await idle(page);
    // The loaded target is shown first. Nothing in the library has the focus yet.
    expect(await selected(page)).toBe(tiny.name);
    await page.keyboard.press('ArrowUp');
    expect(await selected(page)).toBe(huge.name);
    const begun = (await requests(page)).length;
    await page.keyboard.press('Enter');
    expect(await requests(page)).toHaveLength(begun);
    await page.keyboard.press('/');
    await page.keyboard.type('coder');
    await page.keyboard.press('ArrowDown');
    expect(await selected(page)).toBe(middle.name);
    await page.keyboard.press('ArrowUp');
    expect(await selected(page)).toBe(small.name);
    await page.keyboard.press('ArrowDown');
    await page.getByTestId('offer').first().waitFor();
    // Return in the field moves to the list. There it loads.
    const before = (await requests(page)).length;
    await page.keyboard.press('Enter');
    expect(await page.getByTestId('models').evaluate((list) => list === document.activeElement)).toBe(true);
    expect(await requests(page)).toHaveLength(before);
    await page.keyboard.press('Enter');
    await idle(page);
    expect((await requests(page)).at(-1)).toEqual({ target: middle.path, draft: small.path, context: null });
    await page.getByTestId('models').focus();
    await page.keyboard.press('End');
    expect(await selected(page)).toBe(seven.name);
    await page.keyboard.press('Delete');
    expect(await page.getByTestId('remove-question').count()).toBe(0);
    await page.keyboard.press('Home');
    await page.keyboard.press('Delete');
    await page.getByTestId('remove-question').waitFor();
    expect(await page.getByTestId('remove-no').evaluate((button) => button === document.activeElement)).toBe(true);
    await page.keyboard.press('Escape');
    expect(await page.getByTestId('remove-question').count()).toBe(0);
    await page.keyboard.press('Delete');
    await page.getByTestId('remove-yes').click();
    await row(page, small.name).waitFor({ state: 'detached' });
    expect(await calls(page, 'remove_model')).toEqual([{ path: small.path }]);
  });

  it('has rows of one height, with the speed next to the facts, and names no source that is the usual one', async () => {
    const page = await openLibrary({ width: 1000 });
    const heights = await page.getByTestId('model-row').evaluateAll((all) => all.map((one) => one.clientHeight));
    expect(new Set(heights).size).toBe(1);
    expect(await row(page, middle.name).innerText()).not.toContain('Hunch');
    const tops = await row(page, middle.name)
      .locator('.facts, .rate')
      .evaluateAll((all) => all.map((one) => one.getBoundingClientRect().top));
    expect(tops).toEqual([tops[0], tops[0]]);
  });

  it('shows the facts of a model, why one cannot be used, and its source', async () => {
    const page = await openLibrary();
    await look(page, middle.name);
    expect(await page.getByTestId('model-details').getByRole('heading', { level: 1 }).innerText()).toBe(middle.title);
    expect(await page.getByTestId('model-name').innerText()).toBe(middle.name);
    expect(await row(page, middle.name).locator('.name').getAttribute('title')).toBe(middle.name);
    const facts = await page.getByTestId('facts').innerText();
    for (const fact of [
      'qwen2',
      '1.5B',
      'Q4_K_M',
      '1.1 GB',
      '32,768 tokens',
      '31.4 tok/s alone, measured here',
      'gpt2 (qwen2)',
      'apache-2.0',
    ])
      expect(facts).toContain(fact);
    await page.getByTestId('reveal').click();
    expect(await calls(page, 'reveal_model')).toEqual([{ path: middle.path }]);
    // An unreadable file has no other name.
    await look(page, 'half-a-download');
    expect(await page.getByTestId('model-name').count()).toBe(0);
    await look(page, 'phi-4-mini-q4_k_m');
    expect(await page.getByTestId('model-problem').innerText()).toContain('“phi3” is not supported');
    expect(await page.getByTestId('load').count()).toBe(0);
    expect(await page.getByTestId('remove-model').count()).toBe(0);
    expect(await page.getByTestId('facts').innerText()).toContain('Hunch only reads it');
    await look(page, 'mistral-7b-v0.1-q4_0');
    expect(await page.getByTestId('facts').innerText()).toContain('questions are sent as plain text');
  });

  it('has data that Hunch made for models, which can be deleted', async () => {
    const stored = [
      { id: 'low-bit/qwen-0123.gguf', kind: 'low_bit_copy', model: 'qwen', bytes: 620e6 },
      { id: 'drafters/gone-4567-seed-1', kind: 'training_data', model: null, bytes: 6.7e9 },
    ] as const;
    const page = await openLibrary({}, {}, { stored: [...stored] });
    await page.getByTestId('library-folders').click();
    const entries = page.getByTestId('stored-entry');
    await entries.nth(1).waitFor();
    expect(await entries.allInnerTexts()).toEqual([
      expect.stringMatching(/Low-bit copy\s+qwen\s+620 MB/),
      expect.stringMatching(/Training data\s+gone-4567-seed-1, of no model here\s+6\.7 GB/),
    ]);
    expect(await page.getByTestId('stored').textContent()).toContain('7.3 GB that Hunch made');
    expect(await violations(page)).toEqual([]);
    await entries.nth(1).getByTestId('remove-stored').click();
    expect(await page.getByTestId('stored-remove-question').textContent()).toContain('cannot be continued');
    await page.getByTestId('stored-remove-no').click();
    expect(await entries.count()).toBe(2);
    await entries.nth(1).getByTestId('remove-stored').click();
    await page.getByTestId('stored-remove-yes').click();
    await entries.nth(1).waitFor({ state: 'detached' });
    expect(await calls(page, 'remove_stored_data')).toEqual([{ id: stored[1].id }]);
    expect(await entries.count()).toBe(1);
  });

  it('comes from folders: one can be added and removed, and each shows its problem', async () => {
    const folders = recorded.folders.map((folder) =>
      folder.source === 'lm_studio'
        ? { ...folder, problem: 'It may not be read. Allow Hunch to read it in the system’s settings.' }
        : folder,
    );
    const page = await openLibrary({}, { picks: ['/home/person/models'] }, { folders });
    await page.getByTestId('library-folders').click();
    expect(await page.getByTestId('folder').count()).toBe(4);
    expect(await page.getByTestId('folder-problem').innerText()).toContain('may not be read');
    expect(await page.getByTestId('remove-folder').count()).toBe(0);
    await page.getByTestId('add-folder').click();
    await page.getByTestId('folder').nth(4).waitFor();
    expect(await page.getByTestId('folder').nth(4).innerText()).toContain('/home/person/models');
    await page.getByTestId('remove-folder').click();
    await page.getByTestId('folder').nth(4).waitFor({ state: 'detached' });
    expect(await calls(page, 'remove_model_folder')).toEqual([{ path: '/home/person/models' }]);
  });

  it('is empty at first: then the ways to get a model are shown', async () => {
    const page = await openLibrary({}, { models: [] });
    await page.getByTestId('no-models').waitFor();
    await page.getByTestId('to-catalogue').click();
    await page.getByTestId('catalogue').waitFor();
  });
});

describe('whether it fits', () => {
  it('is drawn and described for model, draft and context, as the engine predicts', async () => {
    const page = await openLibrary();
    await look(page, seven.name);
    await page.getByTestId('fit-draft_weights').waitFor();
    expect(await page.getByTestId('fit-target_weights').innerText()).toBe('4.4 GB');
    expect(await page.getByTestId('fit-draft_weights').innerText()).toBe('468 MB');
    expect(await page.getByTestId('fit-bar').getByRole('img').getAttribute('aria-label')).toMatch(
      /^Predicted memory: Model weights 4\.4 GB, .*usable 10\.7 GB, Total memory 16 GB\.$/,
    );
    const parts = await page
      .locator('[data-testid=fit-bar] rect')
      .evaluateAll((all) => all.map((rect) => rect.getBoundingClientRect().width));
    const bar = await page.locator('[data-testid=fit-bar] svg').evaluate((svg) => svg.getBoundingClientRect().width);
    const total = 4_683_000_000 + 491_000_000 + 340_000_000;
    // Caches come on top.
    expect(parts.reduce((sum, width) => sum + width, 0) / bar).toBeGreaterThan(total / recorded.machine.total);
    await page.getByTestId('without-draft').check();
    await page.getByTestId('fit-draft_weights').waitFor({ state: 'detached' });
    const cache = await page.getByTestId('fit-target_cache').innerText();
    await page.getByTestId('context').focus();
    await page.keyboard.press('ArrowRight');
    expect(await page.getByTestId('context-value').innerText()).toBe('16,384 tokens');
    await expect.poll(() => page.getByTestId('fit-target_cache').innerText()).not.toBe(cache);
    await page.getByTestId('load').click();
    await idle(page);
    expect((await requests(page)).at(-1)).toEqual({ target: seven.path, draft: null, context: 16_384 });
  });

  it('loads a head, shows it in the title bar, and keeps it after a restart', async () => {
    const heads = { [seven.name]: [eagle] };
    const page = await openLibrary({}, {}, { heads });
    await look(page, seven.name);
    const headRow = page.getByTestId('head-row');
    expect(await headRow.innerText()).toMatch(/EAGLE-3, trained for Qwen[^]*1\.31× predicted|1\.31× predicted[^]*EAGLE-3/);
    await headRow.getByTestId('load-head').click();
    await idle(page);
    expect((await requests(page)).at(-1)).toEqual({ target: seven.path, draft: null, head: eagle.path, context: null });
    expect(await page.getByTestId('draft-menu').innerText()).toMatch(/head\s*eagle3\s*EAGLE-3/);
    const saved = (await calls(page, 'set_preference')).filter(({ key }) => key === 'last_models').at(-1);
    expect(saved?.['value']).toMatchObject({ target: seven.path, draft: null, head: eagle.path });
    // The picker shows it as chosen, and why it does not fit another model.
    await page.getByTestId('draft-menu').click();
    await page.getByTestId('head-offer').waitFor();
    expect(await page.getByTestId('draft-list').innerText()).toContain('Heads for this model');
    await page.getByTestId('without-draft-model').click();
    await idle(page);
    expect((await requests(page)).at(-1)).toEqual({ target: seven.path, draft: null, context: null });
    await look(page, small.name);
    expect(await page.getByTestId('unsuited-head').first().textContent()).toContain('made for another target');
  });

  it('refuses a combination that cannot fit, and offers one that does', async () => {
    const page = await openLibrary();
    await look(page, huge.name);
    await page.getByTestId('smaller').waitFor();
    expect(await page.getByTestId('fit-verdict').innerText()).toBe('Too large: needs 20.6 GB, only 10.7 GB usable. It will not load.');
    expect(await page.getByTestId('load').isDisabled()).toBe(true);
    await page.getByTestId('models').focus();
    await page.keyboard.press('Enter');
    expect((await requests(page)).map(({ target }) => target)).not.toContain(huge.path);
    await page.getByTestId('smaller-model').click();
    expect(await selected(page)).toBe(seven.name);
  });

  it('offers a smaller context where that is enough', async () => {
    const page = await openLibrary({}, {}, { machine: { total: 8_000_000_000, usable: 5_800_000_000 } });
    await look(page, seven.name);
    await page.getByTestId('smaller-without_draft').or(page.getByTestId('smaller-context')).first().waitFor();
    await page.getByTestId('smaller-context').click();
    await page.locator('[data-testid=fit-verdict]:not([data-fit=too_large])').waitFor();
    expect(await page.getByTestId('load').isDisabled()).toBe(false);
  });
});

/** A library with something in every state. */
async function lively(page: Page): Promise<void> {
  await page.getByTestId('library-catalogue').click();
  await page.locator('[data-id=qwen3-8b-q4_k_m]').getByTestId('get-pair').click();
  await page.getByTestId('download').nth(1).waitFor();
  await download(page, 'd1', { done_bytes: 2_140_000_000, bytes_per_second: 38_200_000, seconds_left: 75 });
  await download(page, 'd2', {
    phase: 'failed',
    done_bytes: 210_000_000,
    error: { code: 'io', message: 'The disk is full. The bytes received so far are kept. Free some space and try again.' },
  });
}

describe.each([900, 1400])('at %i px', (width) => {
  it.each(['light', 'dark'] as const)('%s: looks, axe, and nothing wider than the window', async (colours) => {
    const page = await openLibrary({ width, height: width === 900 ? 600 : 900, colours });
    const take = async (name: string) => {
      await page.screenshot({ path: `${output}library-${name}-${width}-${colours}.png` });
      const spill = await page.evaluate(() =>
        [...document.querySelectorAll('html, main, main *')]
          .filter(
            (one) =>
              one.scrollWidth > one.clientWidth + 1 &&
              /auto|scroll/.test(getComputedStyle(one).overflowX) &&
              getComputedStyle(one).overflowX !== 'hidden',
          )
          .map((one) => one.className),
      );
      expect(spill, `${name} scrolls sideways`).toEqual([]);
      expect(await violations(page), name).toEqual([]);
    };
    await idle(page);
    await look(page, seven.name);
    await page.getByTestId('offer').first().waitFor();
    await expect.poll(() => page.getByTestId('models').locator('.badge[data-fit]').count()).toBe(9);
    await take('here');
    await page.getByTestId('unsuited').scrollIntoViewIfNeeded();
    await page.getByTestId('unsuited').locator('summary').click();
    await page.getByTestId('unsuited-offer').last().scrollIntoViewIfNeeded();
    await take('unsuited');
    await look(page, huge.name);
    await page.getByTestId('smaller').waitFor();
    await take('too-large');
    await row(page, 'half-a-download').click();
    await page.getByTestId('remove-model').click();
    await take('problem');
    await lively(page);
    await take('catalogue');
    await page.getByTestId('repository-field').fill('google/gemma-3-12b-gguf');
    await page.getByTestId('repository-look').click();
    await page.getByTestId('gated').waitFor();
    await page.getByTestId('hub').scrollIntoViewIfNeeded();
    await take('hub');
    await page.getByTestId('gated').scrollIntoViewIfNeeded();
    await take('gated');
    await page.getByTestId('library-folders').click();
    await take('folders');
    await page.getByTestId('target-menu').click();
    await page.getByTestId('target-list').waitFor();
    await take('picker');
  });
});

describe('in German', () => {
  it.each(['light', 'dark'] as const)('shows a failed download in German (%s)', async (colours) => {
    const page = await openWith({ locale: 'de-AT', colours }, { models: [] });
    await page.getByTestId('starter-get').click();
    await page.getByTestId('starter').getByTestId('fetching').nth(1).waitFor();
    const params = { folder: '/Users/ada/Models', missing: '12000001', reserved: '639446688' };
    await download(page, 'd1', { phase: 'failed', error: { code: 'disk_full', message: 'The disk has too little room.', params } });
    const why = await page.getByTestId('starter-why').innerText();
    expect(why).toContain('fehlen 12,1 MB (andere Downloads brauchen 639 MB).');
    expect(await page.getByTestId('fetching').first().getAttribute('title')).toBe(why);
    const [card, again] = [await page.getByTestId('starter').boundingBox(), await page.getByTestId('fetch-again').first().boundingBox()];
    expect(again!.x + again!.width).toBeLessThanOrEqual(card!.x + card!.width - 16);
    await page.screenshot({ path: `${output}library-german-full-${colours}.png` });
  });

  it('is all in German', async () => {
    const page = await openLibrary({ locale: 'de-AT' });
    await idle(page);
    await look(page, seven.name);
    await page.getByText(de.library.fit.title, { exact: true }).waitFor();
    await page.getByText(de.library.offers.title).waitFor();
    await page.screenshot({ path: `${output}library-german.png` });
    await page.getByTestId('library-catalogue').click();
    await page.getByText(de.library.repository.title).waitFor();
    await page.screenshot({ path: `${output}library-german-catalogue.png` });
  });
});
