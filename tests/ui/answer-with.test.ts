// Answering a question again with another model: the menu, the branch, and the name of its model.

import { describe, expect, it } from 'vitest';
import { calls, ended, useWindow } from './harness';
import { violations } from './violations';

const hunch = useWindow();

describe('answering again with another model', () => {
  it('loads the model, adds a branch, and names the model of each branch', async () => {
    const page = await hunch.answered({ replay: 'fixture-plain,fixture-story' });
    // One answer needs no name.
    expect(await page.getByTestId('writer').count()).toBe(0);
    await page.getByTestId('answer-with').click();
    const models = page.getByTestId('answer-with-model');
    expect((await models.locator('.name').allInnerTexts()).sort()).toEqual(['Qwen2.5 Coder 0.5B Instruct', 'SmolLM2 135M Instruct']);
    expect(await violations(page)).toEqual([]);
    await models.filter({ hasText: 'SmolLM2' }).click();
    await page.getByTestId('answer-branches').waitFor();
    await ended(page);
    expect(await page.getByTestId('answer-branches').innerText()).toContain('2 / 2');
    expect(await page.getByTestId('writer').innerText()).toBe('SmolLM2 135M Instruct Q4_1');
    expect(await page.getByTestId('target-menu').innerText()).toContain('SmolLM2');
    expect((await calls(page, 'answer')).map(({ request }) => (request as { asking: { kind: string } }).asking.kind)).toEqual([
      'question',
      'again',
    ]);
    await page.getByRole('button', { name: 'Previous answer' }).click();
    await expect.poll(() => page.getByTestId('writer').innerText()).toBe('Qwen2.5 Coder 1.5B Instruct Q4_K_M');
    expect(await violations(page)).toEqual([]);
  });

  it('is reached with the keyboard', async () => {
    const page = await hunch.answered({ replay: 'fixture-plain,fixture-story' });
    await page.getByTestId('answer-with').press('Enter');
    await page.getByTestId('answer-with-model').first().waitFor();
    await page.keyboard.press('Escape');
    await page.getByTestId('answer-with-model').first().waitFor({ state: 'detached' });
    await expect.poll(() => page.getByTestId('answer-with').evaluate((element) => element === document.activeElement)).toBe(true);
    expect(await calls(page, 'load_models')).toEqual([]);
  });
});
