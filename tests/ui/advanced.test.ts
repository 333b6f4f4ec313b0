// Advanced settings of answers: penalties, stop strings, biases of tokens.

import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Page } from 'playwright-core';
import { describe, expect, it } from 'vitest';
import { ask, calls, ended, useWindow, type Opening } from './harness';
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

/** Settings of the last answer. */
async function sent(page: Page): Promise<{ stop: string[]; sampling: Record<string, unknown> }> {
  const request = (await calls(page, 'answer')).at(-1)?.['request'] as { settings: { stop: string[]; sampling: Record<string, unknown> } };
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
