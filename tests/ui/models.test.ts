// Models, methods and settings in the built window.

import { mkdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { ask, calls, ended, useWindow } from './harness';

const hunch = useWindow();
const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });
const recordedApp = (name: string) => JSON.parse(readFileSync(new URL(`./fixtures/${name}.json`, import.meta.url), 'utf8'));

describe('models', () => {
  it('without one, says what to do, and opens one', async () => {
    const page = await hunch.open({ app: 'fixture-app-empty' });
    await page.getByTestId('open-model').waitFor();
    await page.getByTestId('prompt').fill('kept');
    await page.getByTestId('prompt').press('Enter');
    expect(await page.getByTestId('send').isDisabled()).toBe(true);
    expect(await page.getByTestId('prompt').inputValue()).toBe('kept');
    expect(await calls(page, 'answer')).toEqual([]);
    await page.getByTestId('open-model').click();
    await page.getByTestId('example').first().waitFor();
    expect(await page.getByTestId('target-menu').innerText()).toContain('Qwen2.5 Coder 1.5B');
    expect(await page.getByTestId('prompt').inputValue()).toBe('kept');
  });

  it('shows a bar while one is loaded, and begins with the default one', async () => {
    const page = await hunch.open({ app: 'fixture-app-default' });
    await page.getByTestId('loading').waitFor();
    expect(await page.getByTestId('loading').getAttribute('role')).toBe('progressbar');
    expect(await page.getByTestId('send').isDisabled()).toBe(true);
    await page.getByTestId('example').first().waitFor();
    expect(await page.getByTestId('loading').count()).toBe(0);
    expect(await page.getByTestId('target-menu').innerText()).toContain('SmolLM2 135M');
  });

  it.each(['light', 'dark'] as const)('that crashed the last run is not loaded by itself (%s)', async (colours) => {
    const app = recordedApp('fixture-app-default');
    app.info.unfinished_load = { target: app.models[0].path, draft: null, context: null };
    const page = await hunch.open({ app: 'crashed', apps: { crashed: app }, colours });
    await page.getByTestId('load-again').waitFor();
    expect(await page.getByTestId('unloaded').innerText()).toContain(`Hunch quit unexpectedly while loading ${app.models[0].title}`);
    expect(await calls(page, 'load_models')).toEqual([]);
    await page.screenshot({ path: `${output}crashed-${colours}.png` });
    await page.getByTestId('load-again').click();
    await page.getByTestId('load-again').waitFor({ state: 'detached' });
    expect(await page.getByTestId('target-menu').innerText()).toContain(app.models[0].title);
  });

  it('that cannot be used gives the reason, and the loaded one stays', async () => {
    const app = recordedApp('fixture-app');
    app.picks = Object.keys(app.load_errors);
    const page = await hunch.open({ app: 'broken-pick', apps: { 'broken-pick': app } });
    await page.getByTestId('example').first().waitFor();
    await page.keyboard.press('Control+o');
    await page.getByTestId('error').waitFor();
    expect(await page.getByTestId('error').getAttribute('data-code')).toBe('invalid_model_file');
    expect(await page.getByTestId('target-menu').innerText()).toContain('Qwen2.5 Coder 1.5B');
    await ask(page);
    await ended(page);
    await page.getByTestId('dismiss').click();
    expect(await page.getByTestId('error').count()).toBe(0);
  });

  it('can be chosen from the list, and a draft with it', async () => {
    const page = await hunch.open({ app: 'fixture-app-plain' });
    await page.getByTestId('target-menu').click();
    await page.getByRole('option', { name: /half-a-download/ }).waitFor();
    expect(await page.getByRole('option', { name: /half-a-download/ }).getAttribute('data-disabled')).not.toBeNull();
    await page.getByRole('option', { name: /1\.5B/ }).click();
    await page.getByTestId('draft-menu').click();
    await page.getByRole('option', { name: /0\.5B/ }).click();
    await expect.poll(async () => (await calls(page, 'load_models')).length).toBe(2);
    const requests = (await calls(page, 'load_models')).map((args) => args['request'] as { target: string; draft: string | null });
    expect(requests.map(({ draft }) => draft !== null)).toEqual([false, true]);
    expect(requests[1]?.target).toContain('1.5b');
  });
});

describe('method and settings', () => {
  it('offers only methods that work, and gives the reason for the others', async () => {
    const page = await hunch.open({ app: 'fixture-app-plain' });
    await page.getByTestId('method').click();
    const draft = page.getByTestId('method-draft-model');
    await draft.waitFor();
    expect(await draft.getAttribute('aria-disabled')).toBe('true');
    expect(await draft.innerText()).toContain('Open a draft first');
    await page.getByTestId('method-ngram').click();
    await ask(page);
    await ended(page);
    expect((await calls(page, 'answer'))[0]?.['request']).toMatchObject({ settings: { method: 'ngram', max_draft: 'auto' } });
  });

  it('sends the chosen values, and keeps every number in its range', async () => {
    const page = await hunch.open();
    const depth = page.getByTestId('max-draft');
    expect(await depth.inputValue()).toBe('auto');
    await depth.press('ArrowUp');
    expect(await depth.inputValue()).toBe('1');
    await depth.fill('Auto');
    await depth.press('Tab');
    expect(await depth.getAttribute('aria-valuetext')).toBe('auto');
    await depth.fill('99');
    await depth.press('Tab');
    expect(await depth.inputValue()).toBe('15');
    await depth.press('ArrowDown');
    await page.getByTestId('settings').click();
    await page.getByTestId('temperature').fill('0,8');
    await page.getByTestId('temperature').press('Tab');
    await page.getByTestId('max-tokens').fill('none');
    await page.getByTestId('max-tokens').press('Tab');
    await page.getByTestId('seed').fill('42');
    await page.getByTestId('seed').press('Tab');
    expect(await page.getByTestId('max-tokens').inputValue()).toBe('4096');
    await page.keyboard.press('Escape');
    await ask(page);
    await ended(page);
    expect((await calls(page, 'answer'))[0]?.['request']).toMatchObject({
      settings: { max_draft: 14, max_tokens: 4096, sampling: { temperature: 0.8, seed: 42 } },
    });
  });

  it('has no depth for plain decoding', async () => {
    const page = await hunch.open();
    await page.getByTestId('method').click();
    await page.getByTestId('method-plain').click();
    expect(await page.getByTestId('max-draft').isDisabled()).toBe(true);
  });
});
