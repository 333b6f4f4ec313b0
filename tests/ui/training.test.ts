// Training a drafter in the library, on the replay host.

import { mkdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Page } from 'playwright-core';
import { describe, expect, it } from 'vitest';
import type { RecordedApp } from './replay/host';
import type { RecordedTraining } from './replay/training';
import { libraryApp, models } from './fixtures/library';
import { calls, useWindow, type Opening } from './harness';
import { violations } from './violations';

const hunch = useWindow();
const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });
const base = JSON.parse(readFileSync(new URL('./fixtures/fixture-app.json', import.meta.url), 'utf8')) as RecordedApp;
const tiny = models.find(({ name }) => name.includes('smollm2'))!;
const seven = models.find(({ name }) => name.includes('7b'))!;
const half = {
  kind: 'eagle' as const,
  tokens: 200_000,
  collected: 200_000,
  step: 400,
  total: 800,
  curve: [],
  finished: false,
  fit_seconds: 900,
};

const row = (page: Page, name: string) => page.locator(`[data-testid=model-row][data-name="${name}"]`);
const panel = (page: Page) => page.getByTestId('training');

/** Opens the library at a model. */
async function look(training?: RecordedTraining, opening: Opening = {}): Promise<Page> {
  const app = libraryApp(base, training ? { training } : {}, {});
  const page = await hunch.open({ app: 'library', apps: { library: app }, ...opening });
  await page.keyboard.press('Control+4');
  await row(page, tiny.name).click();
  await panel(page).waitFor();
  return page;
}

const requests = async (page: Page) => (await calls(page, 'train_drafter')).map((args) => args['request']);

describe('training a drafter', () => {
  it('says what it takes before it starts, for each amount of text', async () => {
    const page = await look();
    await expect
      .poll(() => page.getByTestId('training-outlook').innerText())
      .toMatch(/^About 1 h 7 min and 920 MB on disk, predicted, not measured yet/);
    await page.getByTestId('training-tokens').getByText('1,000,000').click();
    await expect.poll(() => page.getByTestId('training-outlook').innerText()).toContain('4.6 GB on disk');
    expect(await page.getByTestId('training-start').isEnabled()).toBe(true);
  });

  it('runs to its end, with acceptance on a chart, and uses the drafter', async () => {
    const page = await look();
    await page.getByTestId('training-start').click();
    await page.getByTestId('training-chart').waitFor();
    await page.getByTestId('training-outcome').waitFor();
    expect(await page.getByTestId('training-outcome').innerText()).toBe(
      'Done. The new drafter is in use: 63% accepted at temperature 0, 59% with sampling.',
    );
    expect(await page.getByTestId('training-point').innerText()).toBe(
      'Step 800: 63% accepted at temperature 0, 59% with sampling, measured on held-out text',
    );
    expect(await requests(page)).toEqual([{ target: tiny.path, tokens: 200_000, kind: 'mlp' }]);
    // The models of before are loaded again, and use it.
    await expect.poll(async () => (await calls(page, 'load_models')).length).toBeGreaterThan(0);
  });

  it('trains other architectures, which take longer', async () => {
    const page = await look({ event_ms: 5 });
    await page.getByTestId('training-kind').getByText('EAGLE-3').click();
    expect(await page.getByTestId('training-kind-note').innerText()).toBe(
      'Drafts several tokens, each from the one before. Trains slowest.',
    );
    await expect.poll(() => page.getByTestId('training-outlook').innerText()).toMatch(/^About 5 h 33 min/);
    await page.getByTestId('training-start').click();
    await page.getByTestId('training-chart').waitFor();
    await page.getByTestId('training-outcome').waitFor();
    expect(await requests(page)).toEqual([{ target: tiny.path, tokens: 200_000, kind: 'eagle' }]);
    // Curve and result belong to their architecture.
    await page.getByTestId('training-kind').getByText('Medusa').click();
    await page.getByTestId('training-chart').waitFor({ state: 'detached' });
    expect(await page.getByTestId('training-outcome').count()).toBe(0);
    await page.getByTestId('training-kind').getByText('EAGLE-3').click();
    await page.getByTestId('training-chart').waitFor();
  });

  it('keeps a better drafter that is in use', async () => {
    const page = await look({ event_ms: 5, in_use_is_better: true });
    await page.getByTestId('training-start').click();
    await page.getByTestId('training-outcome').waitFor();
    expect(await page.getByTestId('training-outcome').innerText()).toContain('The drafter in use accepts as much, so it stays.');
  });

  it('is paused and continued', async () => {
    const page = await look({ event_ms: 150 });
    await page.getByTestId('training-start').click();
    await expect.poll(() => page.getByTestId('training-progress').innerText()).toMatch(/^Step 1 of 2: [1-9]/);
    await page.getByTestId('training-pause').click();
    await page.getByTestId('training-resume').waitFor();
    expect(await page.getByTestId('training-progress').innerText()).toMatch(/^Paused, Step 1 of 2: .* of 200,000 tokens written$/);
    await page.getByTestId('training-resume').click();
    await page.getByTestId('training-finish').waitFor();
    await page.getByTestId('training-finish').click();
    await page.getByTestId('training-outcome').waitFor();
  });

  it('is paused by Escape while it is on screen', async () => {
    const page = await look({ event_ms: 150 });
    await page.getByTestId('training-start').click();
    await expect.poll(() => page.getByTestId('training-progress').innerText()).toMatch(/^Step 1 of 2: [1-9]/);
    await page.keyboard.press('Control+1');
    await page.keyboard.press('Escape');
    expect(await calls(page, 'stop_measurement')).toEqual([]);
    await page.keyboard.press('Control+4');
    await page.getByTestId('training-pause').waitFor();
    await page.keyboard.press('Escape');
    await page.getByTestId('training-resume').waitFor();
    expect(await calls(page, 'stop_measurement')).toHaveLength(1);
  });

  it('keeps questions waiting, and is shown and paused from the chat', async () => {
    const page = await look({ event_ms: 60_000 });
    await page.getByTestId('training-start').click();
    await page.getByTestId('training-pause').waitFor();
    await row(page, seven.name).click();
    await page.keyboard.press('Control+1');
    expect(await page.getByTestId('elsewhere').innerText()).toMatch(
      /^A drafter for SmolLM2 .* is being trained. Answers wait until you pause it.\nShow\nPause$/,
    );
    await page.getByTestId('prompt').fill('Why is the sky blue?');
    await page.getByTestId('prompt').press('Enter');
    expect([await page.getByTestId('send').isDisabled(), await calls(page, 'answer')]).toEqual([true, []]);
    expect(await violations(page)).toEqual([]);
    await page.getByTestId('show-elsewhere').click();
    await page.getByTestId('training-pause').waitFor();
    await page.keyboard.press('Control+1');
    await page.getByTestId('stop-elsewhere').click();
    await page.getByTestId('elsewhere').waitFor({ state: 'detached' });
    await expect.poll(() => page.getByTestId('send').isEnabled()).toBe(true);
  });

  it('continues after a restart, or deletes its data after a question', async () => {
    const page = await look({ event_ms: 40, runs: { [tiny.path]: half } });
    expect(await page.getByTestId('training-progress').innerText()).toBe('Paused, Step 2 of 2, EAGLE-3: 400 of 800 training steps');
    // Another architecture can be trained on the same text meanwhile.
    await page.getByTestId('training-kind').getByText('MLP').click();
    await page.getByTestId('training-start').waitFor();
    await page.getByTestId('training-kind').getByText('EAGLE-3').click();
    await page.getByTestId('training-discard').click();
    await page.getByTestId('training-discard-question').waitFor();
    expect(await calls(page, 'discard_training')).toEqual([]);
    await page.getByTestId('training-discard-question').getByRole('button', { name: 'Delete training data' }).click();
    await page.getByTestId('training-start').waitFor();
    expect(await calls(page, 'discard_training')).toEqual([{ target: tiny.path }]);
  });

  it('says in the details of another model which one is trained, and blocks a second run', async () => {
    const page = await look({ event_ms: 60_000 });
    await page.getByTestId('training-start').click();
    await page.getByTestId('training-pause').waitFor();
    await row(page, seven.name).click();
    await page.getByTestId('training-elsewhere').waitFor();
    expect(await page.getByTestId('training-elsewhere').innerText()).toMatch(
      /^A drafter for SmolLM2 .* is being trained. One runs at a time.$/,
    );
    expect(await page.getByTestId('training-start').count()).toBe(0);
  });

  it('shows a result under its own model, also if another one is selected when it comes', async () => {
    const page = await look({ event_ms: 60 });
    await page.getByTestId('training-start').click();
    await page.getByTestId('training-pause').waitFor();
    await row(page, seven.name).click();
    await page.getByTestId('training-start').waitFor();
    expect(await page.getByTestId('training-outcome').count()).toBe(0);
    await row(page, tiny.name).click();
    expect(await page.getByTestId('training-outcome').innerText()).toContain('The new drafter is in use');
  });

  it('shows a failure under its own model', async () => {
    const failure = { code: 'io', message: 'The disk is full. Collected text is kept.' } as const;
    const page = await look({ event_ms: 300, failure });
    await page.getByTestId('training-start').click();
    await row(page, seven.name).click();
    await page.getByTestId('training-elsewhere').waitFor();
    await page.getByTestId('training-start').waitFor();
    expect(await page.getByTestId('training-error').count()).toBe(0);
    await row(page, tiny.name).click();
    await page.getByTestId('training-error').waitFor();
  });

  it('says what went wrong, and keeps the run', async () => {
    const failure = { code: 'io', message: 'The disk is full. Collected text is kept.' } as const;
    const page = await look({ event_ms: 5, failure });
    await page.getByTestId('training-start').click();
    await page.getByTestId('training-error').waitFor();
    expect(await page.getByTestId('training-error').innerText()).toContain('The disk is full.');
    await page.getByTestId('training-resume').waitFor();
  });

  it('does not start where the disk is too small', async () => {
    const page = await look({ event_ms: 5, disk_free: 100e6 });
    await page.getByTestId('training-disk').waitFor();
    expect(await page.getByTestId('training-start').isEnabled()).toBe(false);
  });

  it.each([
    ['light', 'en-US'],
    ['dark', 'de-DE'],
  ] as const)('can be read by anyone, %s, %s', async (colours, locale) => {
    const page = await look({ event_ms: 5 }, { colours, locale, height: 1000 });
    await page.getByTestId('training-start').click();
    await page.getByTestId('training-outcome').waitFor();
    await panel(page).scrollIntoViewIfNeeded();
    expect(await violations(page)).toEqual([]);
    await page.screenshot({ path: `${output}training-${colours}.png` });
  });
});
