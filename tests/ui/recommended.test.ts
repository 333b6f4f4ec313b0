// Sampling that the loaded model recommends.

import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import app from './fixtures/fixture-app.json';
import { ask, calls, ended, useWindow } from './harness';
import { violations } from './violations';

const hunch = useWindow();
const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });

const sampling = { temperature: 0.6, top_k: 20, top_p: 0.95, min_p: null, repeat_penalty: null };
const recommending = { ...app, info: { ...app.info, loaded: { ...app.info.loaded, sampling } } };

describe('recommended sampling', () => {
  it('is not offered by a model that recommends none', async () => {
    const page = await hunch.open();
    await page.getByTestId('settings').click();
    await page.getByTestId('seed').waitFor();
    expect(await page.getByTestId('recommended').count()).toBe(0);
  });

  it('leaves the settings alone that were kept from the last time', async () => {
    const preferences = { settings: { temperature: 0.3, maxTokens: 2048, stop: ['###'] } };
    const page = await hunch.open({ app: 'recommending', apps: { recommending }, preferences });
    await page.getByTestId('example').first().waitFor();
    await page.getByLabel('Settings, 1 advanced changed').click();
    expect(await page.getByTestId('temperature').inputValue()).toBe('0.30');
    expect(await page.getByTestId('max-tokens').inputValue()).toBe('2048');
    const kept = async () => (await calls(page, 'set_preference')).filter(({ key }) => key === 'settings').map(({ value }) => value);
    expect(await kept()).toEqual([]);
    await page.getByTestId('recommended-apply').click();
    const rest = { maxTokens: 2048, stop: ['###'] };
    await expect.poll(kept).toEqual([{ temperature: 0.6, topK: 20, topP: 0.95, ...rest }]);
  });

  it.each(['light', 'dark'] as const)('applies only when it is chosen, in %s colours', async (colours) => {
    const page = await hunch.open({ colours, height: 900, app: 'recommending', apps: { recommending } });
    await page.getByTestId('example').first().waitFor();
    await page.getByTestId('settings').click();
    expect(await page.getByTestId('recommended').innerText()).toMatch(/Temperature 0\.6, Top K 20, Top P 0\.95/);
    const before = app.info.default_sampling.temperature;
    expect(Number(await page.getByTestId('temperature').inputValue())).toBe(before);
    await page.getByTestId('recommended-apply').click();
    await page.getByTestId('recommended-applied').waitFor();
    expect(await violations(page)).toEqual([]);
    await page.screenshot({ path: `${output}recommended-${colours}.png` });
    await page.keyboard.press('Escape');
    await ask(page);
    await ended(page);
    const request = (await calls(page, 'answer')).at(-1)?.['request'] as { settings: { sampling: object } };
    expect(request.settings.sampling).toMatchObject({ temperature: 0.6, top_k: 20, top_p: 0.95 });
  });
});
