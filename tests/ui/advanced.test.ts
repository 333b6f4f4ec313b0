// Advanced settings of answers: penalties, stop strings, biases of tokens.

import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Page } from 'playwright-core';
import { describe, expect, it } from 'vitest';
import recordedApp from './fixtures/fixture-app.json';
import { ask, calls, ended, useWindow, type Opening } from './harness';
import type { RecordedApp } from './replay/host';
import { violations } from './violations';

const hunch = useWindow();
const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });

async function openAdvanced(opening: Opening = {}): Promise<Page> {
  const page = await hunch.open({ height: 900, ...opening });
  await page.getByTestId('example').first().waitFor();
  await page.getByTestId('settings').click();
  await page.getByTestId('advanced').locator('summary').click();
  await page.getByTestId('stop').waitFor();
  return page;
}

async function add(page: Page, field: 'stop' | 'bias-text', text: string): Promise<void> {
  await page.getByTestId(field).fill(text);
  await page.getByTestId(field).press('Enter');
}

interface Sent {
  stop: string[];
  sampling: Record<string, unknown>;
  options: Record<string, unknown>;
}

/** Settings of the last answer. */
async function sent(page: Page): Promise<Sent> {
  const request = (await calls(page, 'answer')).at(-1)?.['request'] as { settings: Sent };
  return request.settings;
}

describe('advanced settings', () => {
  it('are folded, and change no answer until they are set', async () => {
    const page = await hunch.open();
    await page.getByTestId('settings').click();
    expect(await page.getByTestId('advanced').getAttribute('open')).toBeNull();
    expect(await page.getByTestId('stop').isVisible()).toBe(false);
    await page.keyboard.press('Escape');
    await ask(page);
    await ended(page);
    const { stop, sampling } = await sent(page);
    expect([stop, sampling['presence_penalty'], sampling['frequency_penalty'], sampling['logit_bias']]).toEqual([[], 0, 0, {}]);
  });

  it('have the numbers of a lossy rule, which go into the next answer', async () => {
    const page = await hunch.open({ height: 900 });
    await page.getByTestId('example').first().waitFor();
    await page.getByTestId('settings').click();
    await page.getByTestId('temperature').fill('0.7');
    await page.getByTestId('temperature').press('Enter');
    expect(await page.getByTestId('acceptance-lenience').count()).toBe(0);
    await page.getByTestId('acceptance').click();
    await page.getByTestId('rule-lossy-lenience').click();
    expect(await page.getByTestId('acceptance-lossy').textContent()).toContain('does not follow the target’s distribution');
    await page.getByTestId('acceptance-lenience').fill('0.25');
    await page.getByTestId('acceptance-lenience').press('Enter');
    // Numbers out of range become the nearest allowed one.
    await page.getByTestId('acceptance').click();
    await page.getByTestId('rule-lossy-typical').click();
    await page.getByTestId('acceptance-delta').fill('7');
    await page.getByTestId('acceptance-delta').press('Enter');
    expect(await violations(page)).toEqual([]);
    await page.screenshot({ path: `${output}rule-numbers.png` });
    await page.keyboard.press('Escape');
    await ask(page);
    await ended(page);
    expect((await sent(page)) as unknown).toMatchObject({ rule: { name: 'lossy-typical', epsilon: 0.09, delta: 1 } });
  });

  it('go into the next answer, show that they are set, and can be reset', async () => {
    const page = await openAdvanced();
    await page.getByTestId('presence-penalty').fill('9');
    await page.getByTestId('presence-penalty').press('Enter');
    await page.getByTestId('frequency-penalty').fill('-0.5');
    await add(page, 'stop', '\\nUser:');
    await add(page, 'bias-text', ' the');
    await page.getByTestId('bias').waitFor();
    await page.getByTestId('bias-value').fill('-20');
    await page.keyboard.press('Escape');
    await page.getByLabel('Settings, 4 advanced changed').waitFor();
    await ask(page);
    await ended(page);
    const { stop, sampling } = await sent(page);
    expect([stop, sampling['presence_penalty'], sampling['frequency_penalty']]).toEqual([['\nUser:'], 2, -0.5]);
    expect(Object.values(sampling['logit_bias'] as object)).toEqual([-20]);

    await page.getByTestId('settings').click();
    await page.getByTestId('advanced').locator('summary').click();
    expect(await page.getByTestId('advanced-mark').textContent()).toBe('4 changed');
    await page.getByTestId('advanced-reset').click();
    expect(await page.getByTestId('stop-string').count()).toBe(0);
    expect(await page.getByTestId('advanced-reset').isDisabled()).toBe(true);
    await page.keyboard.press('Escape');
    expect(await page.getByTestId('settings').getAttribute('aria-label')).toBe('Settings');
  });

  it('keep a text that is left in its field, and take back entries one by one', async () => {
    const page = await openAdvanced();
    await page.getByTestId('stop').fill('one');
    await page.getByTestId('stop-add').click();
    await page.getByTestId('stop').fill('two');
    await page.getByTestId('bias-text').focus();
    await expect.poll(() => page.getByTestId('stop-string').allInnerTexts()).toEqual(['one', 'two']);
    await page.getByLabel('Remove one').click();
    await page.getByTestId('stop').fill('three');
    await page.keyboard.press('Escape');
    await ask(page);
    await ended(page);
    expect((await sent(page)).stop).toEqual(['two', 'three']);
  });

  it('hold the options of the chosen method, and refuse what is malformed', async () => {
    const loaded = { ...recordedApp.info.loaded!, methods: ['plain', 'draft-model', 'draft-tree'] };
    const app = { ...recordedApp, info: { ...recordedApp.info, loaded } } as unknown as RecordedApp;
    const page = await openAdvanced({ app: 'trees', apps: { trees: app } });
    const shown = () => page.locator('[data-testid^="option-"]').evaluateAll((all) => all.map((field) => field.id));
    const type = async (option: string, text: string) => {
      await page.getByTestId(option).fill(text);
      await page.getByTestId(option).press('Tab');
    };
    await page.keyboard.press('Escape');
    await page.getByTestId('method').click();
    await page.getByTestId('method-draft-tree').click();
    await page.getByTestId('settings').click();
    await page.getByTestId('advanced').locator('summary').click();
    expect(await shown()).toEqual(['option-tree', 'option-draft-window']);
    await type('option-tree', '3X2');
    expect(await page.getByTestId('option-tree').inputValue()).toBe('3x2');
    await type('option-tree', 'wide');
    expect(await page.getByTestId('option-tree').inputValue()).toBe('3x2');
    expect(await page.getByTestId('option-tree-problem').innerText()).toBe(
      '“wide” is not used. Enter children by level such as 3x2x1 or 3x2,1x1, each at most 15.',
    );
    await type('option-draft-window', '512');
    expect(await page.getByTestId('advanced-mark').textContent()).toBe('2 changed');
    await page.screenshot({ path: `${output}advanced-options.png` });
    await page.keyboard.press('Escape');
    await ask(page);
    await ended(page);
    expect((await sent(page)).options).toEqual({ tree: '3x2', draft_window: 512 });

    await page.getByTestId('settings').click();
    await page.getByTestId('advanced').locator('summary').click();
    await type('option-tree', '');
    await type('option-draft-window', '0');
    expect(await page.getByTestId('option-draft-window').inputValue()).toBe('512');
    await page.getByTestId('advanced-reset').click();
    await page.keyboard.press('Escape');
    await ask(page);
    await ended(page);
    expect((await sent(page)).options).toEqual({});
  });

  it('search for the layers that a model skips, with progress, a stop and a result', async () => {
    const loaded = { ...recordedApp.info.loaded!, methods: ['plain', 'layer-skip'] };
    const app = { ...recordedApp, info: { ...recordedApp.info, loaded } } as unknown as RecordedApp;
    const page = await openAdvanced({ app: 'layers', apps: { layers: app } });
    await page.keyboard.press('Escape');
    await page.getByTestId('method').click();
    await page.getByTestId('method-layer-skip').click();
    await page.getByTestId('settings').click();
    await page.getByTestId('advanced').locator('summary').click();
    await page.getByTestId('layer-search-start').click();
    await page.getByTestId('layer-search-progress').waitFor();
    await page.getByTestId('layer-search-stop').click();
    await expect.poll(() => page.getByTestId('layer-search-outcome').innerText()).toBe('Stopped. Nothing was saved.');
    await page.getByTestId('layer-search-start').click();
    await page.getByText('Layers skipped: 2, answer').waitFor();
    await page.screenshot({ path: `${output}layer-search.png` });
    await expect
      .poll(() => page.getByTestId('layer-search-outcome').innerText())
      .toBe(
        'Best: 4 of 28 layers skipped, 71% of drafted tokens right. 0.88× predicted, so plain decoding is faster. Layer skip now leaves these layers out.',
      );
    await expect.poll(() => page.getByTestId('option-skipped-layers').getAttribute('placeholder')).toBe('9, 11, 14, 17');
    await page.screenshot({ path: `${output}layer-search-found.png` });
  });

  it('refuse a bias for more than one token, and say what the tokens are', async () => {
    const page = await openAdvanced();
    await page.getByTestId('bias-text').fill('hello world');
    await page.getByTestId('bias-text-add').click();
    await expect
      .poll(() => page.getByTestId('bias-problem').textContent())
      .toBe('“hello·world” is 2 tokens: “hello”, “·world”. Enter one of them.');
    expect(await page.getByTestId('bias-text').inputValue()).toBe('hello world');
    expect(await page.getByTestId('bias').count()).toBe(0);
    await add(page, 'bias-text', 'hello');
    await page.getByTestId('bias').waitFor();
    expect(await page.getByTestId('bias-problem').count()).toBe(0);
  });

  it('need a model for a bias', async () => {
    const page = await hunch.open({ app: 'fixture-app-empty' });
    await page.getByTestId('settings').click();
    await page.getByTestId('advanced').locator('summary').click();
    expect(await page.getByTestId('bias-text').isDisabled()).toBe(true);
    expect(await page.getByTestId('stop').isEnabled()).toBe(true);
  });

  it.each([
    ['light', 'en-US'],
    ['dark', 'de-DE'],
  ] as const)('can be read and used by anyone, %s, %s', async (colours, locale) => {
    const page = await openAdvanced({ colours, locale });
    expect(await violations(page)).toEqual([]);
    await page.screenshot({ path: `${output}advanced-empty-${colours}.png` });
    await add(page, 'stop', '\\nUser:');
    await add(page, 'stop', '###');
    await add(page, 'bias-text', ' the');
    await page.getByTestId('bias').waitFor();
    await add(page, 'bias-text', 'hello world');
    await page.getByTestId('bias-problem').waitFor();
    expect(await violations(page)).toEqual([]);
    await page.screenshot({ path: `${output}advanced-${colours}.png` });
    await page.setViewportSize({ width: 900, height: 600 });
    await page.getByTestId('advanced-reset').scrollIntoViewIfNeeded();
    await page.screenshot({ path: `${output}advanced-low-${colours}.png` });
  });
});
