// The window in the user's language: texts, numbers, and text for screen readers.

import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Page } from 'playwright-core';
import { describe, expect, it } from 'vitest';
import type { ErrorInfo } from '../../ui/src/lib/ipc/schema.gen';
import { de } from '../../ui/src/lib/strings/de';
import { en } from '../../ui/src/lib/strings/en';
import recordedApp from './fixtures/fixture-app.json';
import { library } from './fixtures/library';
import { ask, calls, ended, useWindow } from './harness';

const hunch = useWindow();
const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });

/** An app whose only conversation has no title. */
function untitled(system: string) {
  const entry = { id: 1, title: '', pinned: false, created_ms: 0, updated_ms: 0 };
  const conversation = { entry, system, leaf: null, messages: [] };
  return { app: 'untitled', apps: { untitled: { ...recordedApp, conversations: [{ conversation, events: {} }] } } };
}

describe('the language', () => {
  it('is German for a German locale: texts, button names and numbers', async () => {
    const page = await hunch.open({
      replay: 'fixture-story',
      locale: 'de-AT',
      preferences: { all_figures: true },
    });
    expect(await page.evaluate(() => document.documentElement.lang)).toBe('de');
    await page.getByText(de.empty.heading).waitFor();
    expect(await page.getByTestId('prompt').getAttribute('placeholder')).toBe(de.composer.placeholder);
    await page.getByTestId('settings').click();
    expect(await page.getByRole('spinbutton', { name: de.settings.topP }).inputValue()).toMatch(/^\d,\d\d$/);
    await page.keyboard.press('Escape');
    await ask(page);
    await ended(page);
    expect(await page.getByTestId('figures').textContent()).toMatch(/\d,\d\d Tokens pro Durchlauf/);
    expect(await page.getByTestId('stats').textContent()).toContain(de.figures.measured);
    await page.getByRole('button', { name: de.turn.of.answer.copy }).waitFor();
  });

  it('changes all texts at once, including those for screen readers', async () => {
    const page = await hunch.open();
    const spoken = () => page.evaluate(() => document.documentElement.lang);
    const prompt = page.getByTestId('prompt');
    const settings = page.getByTestId('settings-dialog');
    await page.getByRole('button', { name: 'Model: ' }).waitFor();
    expect([await spoken(), await prompt.getAttribute('placeholder')]).toEqual(['en', 'Ask something']);
    await page.keyboard.press('Control+,');
    await settings.getByRole('heading', { name: 'Settings', exact: true }).waitFor();
    await page.getByTestId('language-de').check();
    await settings.getByRole('heading', { name: de.settingsDialog.title, exact: true }).waitFor();
    expect(await spoken()).toBe('de');
    expect((await calls(page, 'set_preference')).at(-1)).toEqual({
      key: 'language',
      value: 'de',
    });
    // No row is wider than the dialog.
    expect(await settings.locator('.body').evaluate((body) => body.scrollWidth - body.clientWidth)).toBe(0);
    await page.screenshot({ path: `${output}preferences-german.png` });
    await page.keyboard.press('Escape');
    await page.getByRole('button', { name: 'Modell: ' }).waitFor();
    expect(await prompt.getAttribute('placeholder')).toBe(de.composer.placeholder);
    await page.keyboard.press('Control+k');
    expect(await page.getByTestId('palette-input').getAttribute('placeholder')).toBe(de.palette.placeholder);
    await page.keyboard.type('erscheinung dunkel');
    await expect.poll(() => page.getByTestId('palette').getByRole('option').allInnerTexts()).toEqual(['Erscheinungsbild: Dunkel']);
    await page.getByTestId('palette-input').fill('');
    await page.screenshot({ path: `${output}palette-german.png` });
    await page.keyboard.press('Escape');
    // The system's language again.
    await page.keyboard.press('Control+,');
    await page.getByTestId('language-null').check();
    await settings.getByRole('heading', { name: 'Settings', exact: true }).waitFor();
    expect(await spoken()).toBe('en');
    expect((await calls(page, 'set_preference')).at(-1)).toEqual({
      key: 'language',
      value: null,
    });
  });

  it('shows errors in German, with the numbers of the engine and its own text as a detail', async () => {
    const refuse = (error: ErrorInfo) => ({
      recordings: { refused: `${JSON.stringify({ reject: error })}\n` },
      replay: 'refused',
      locale: 'de-AT',
    });
    const message = 'The prompt has 9120 tokens.';
    const long = await hunch.open(
      refuse({
        code: 'context_overflow',
        message,
        params: { prompt: '9120', context: '8192' },
      }),
    );
    await ask(long);
    const card = long.getByTestId('error');
    await card.getByRole('heading', { name: de.errors.context_overflow.title }).waitFor();
    expect(await long.getByTestId('error-message').innerText()).toContain('9.120 Tokens');
    expect(await card.innerText()).not.toContain(message);
    const device = await hunch.open(
      refuse({
        code: 'device',
        message: 'The metal device failed.',
        params: { device: 'metal', detail: 'out of buffers' },
      }),
    );
    await ask(device);
    expect(await device.getByTestId('error-detail').innerText()).toBe(`${de.errorCard.details} out of buffers`);
    expect(await device.getByTestId('error-detail').locator('[lang=en]').innerText()).toBe('out of buffers');
    const other = 'This answer is by qwen3-8b.';
    const params = {
      reason: 'other_writer',
      writer: 'qwen3-8b',
      loaded: 'qwen3-4b',
    };
    const refused = await hunch.open(refuse({ code: 'invalid_request', message: other, params }));
    await ask(refused);
    const refusal = refused.getByTestId('error');
    await refusal.getByRole('heading', { name: de.refusals.other_writer.title }).waitFor();
    expect(await refused.getByTestId('error-message').innerText()).toMatch(/qwen3-8b geschrieben, geladen ist qwen3-4b/);
    expect(await refused.getByTestId('error-detail').count()).toBe(0);
    expect(await refusal.innerText()).not.toContain(other);
    await refused.screenshot({ path: `${output}refusal-german.png` });
    // An error without details is still shown.
    const old = await hunch.open(refuse({ code: 'context_overflow', message }));
    await ask(old);
    expect(await old.getByTestId('error-detail').innerText()).toBe(`${de.errorCard.details} ${message}`);
  });

  it('sets the texts of the native menu, at the start and after a change', async () => {
    const page = await hunch.open({
      userAgent: 'Mozilla/5.0 (X11; Linux x86_64)',
    });
    const sentMenu = async (page: Page) => (await calls(page, 'label_menu')).at(-1);
    await expect.poll(() => sentMenu(page)).toEqual(en.menu);
    await page.keyboard.press('Control+,');
    await page.getByTestId('language-de').check();
    await expect.poll(() => sentMenu(page)).toEqual({ ...de.menu, ...de.menuElsewhere });
    const mac = await hunch.open({
      userAgent: 'Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7)',
      locale: 'de-AT',
    });
    await expect.poll(() => sentMenu(mac)).toEqual(de.menu);
  });

  it('names a conversation that has no title, and what is saved of it', async () => {
    const page = await hunch.open({ locale: 'de-AT', ...untitled('Sei knapp.') });
    const row = page.getByTestId('conversation-entry').first();
    expect(await row.innerText()).toBe(de.sidebar.untitled);
    await row.getByRole('button').first().click();
    await page.keyboard.press('Control+k');
    await page.keyboard.type('markdown speichern');
    await page.keyboard.press('Enter');
    await expect
      .poll(async () => (await calls(page, 'export_conversation'))[0])
      .toMatchObject({
        words: {
          untitled: de.sidebar.untitled,
          question: de.export.question,
          answer: de.export.answer,
        },
      });
  });

  it('names an untitled conversation that is being written', async () => {
    const page = await hunch.open({ locale: 'de-AT', replay: 'fixture-story', speed: 1, ...untitled('') });
    await page.getByTestId('conversation-entry').first().getByRole('button').first().click();
    await ask(page);
    await page.getByTestId('token').nth(3).waitFor();
    await page.keyboard.press('Control+n');
    expect(await page.getByTestId('elsewhere').innerText()).toContain(de.composer.elsewhere(de.sidebar.untitled));
    await page.screenshot({ path: `${output}elsewhere-german.png` });
  });

  it('translates the notes of the catalogue, and shows a newer English one as it is', async () => {
    const [[english, german] = ['', '']] = Object.entries(de.library.catalogue.notes);
    const notes: Record<string, string> = {
      'qwen3-8b-q4_k_m': english,
      'qwen3-4b-q4_k_m': 'Said in other words.',
    };
    const catalogue = {
      ...library.catalogue,
      models: library.catalogue.models.map((model) => ({
        ...model,
        note: notes[model.id] ?? '',
      })),
    };
    const page = await hunch.open({
      locale: 'de-AT',
      app: 'noted',
      apps: { noted: { ...recordedApp, library: { ...library, catalogue } } },
    });
    await page.getByTestId('place-library').click();
    await page.getByTestId('library-catalogue').click();
    const note = (id: string) => page.locator(`[data-id="${id}"]`).getByTestId('catalogue-note');
    expect([await note('qwen3-8b-q4_k_m').innerText(), await note('qwen3-8b-q4_k_m').getAttribute('lang')]).toEqual([german, null]);
    expect([await note('qwen3-4b-q4_k_m').innerText(), await note('qwen3-4b-q4_k_m').getAttribute('lang')]).toEqual([
      'Said in other words.',
      'en',
    ]);
  });

  it('shows the card of a token in German', async () => {
    const page = await hunch.answered({
      replay: 'fixture-story',
      locale: 'de-AT',
    });
    await page.getByTestId('answer').locator('.token').nth(3).click();
    const card = page.getByTestId('token-card');
    await card.getByText(de.tokenCard.entropy).waitFor();
    await page.screenshot({ path: `${output}token-german.png` });
  });

  it('is English for a locale without a translation', async () => {
    const page = await hunch.open({ locale: 'fr-FR' });
    expect(await page.evaluate(() => document.documentElement.lang)).toBe('en');
    await page.getByText('What do you want to ask?').waitFor();
  });
});
