// Loading and unloading models on the replay host, and the menus of models.

import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { ask, calls, ended } from './harness';
import { app, idle, look, middle, requests, seven, small, tiny, useLibraryWindow } from './libraryPage';
import { violations } from './violations';

const { openWith, openLibrary } = useLibraryWindow();
const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });

describe('loading and letting go', () => {
  it('shows its progress, and can be cancelled: the models in memory stay', async () => {
    const page = await openLibrary({}, { load_ms: 8000, info: app.info });
    await look(page, seven.name);
    await page.getByTestId('load').click();
    await page.locator('[data-testid=loading][aria-valuenow]').waitFor();
    expect(await page.getByTestId('loading-bytes').innerText()).toMatch(/^1\.\d GB of 5\.2 GB$/);
    await page.screenshot({ path: `${output}library-loading.png` });
    expect(await violations(page)).toEqual([]);
    await page.getByTestId('cancel-loading').click();
    await idle(page);
    expect(await calls(page, 'cancel_loading')).toHaveLength(1);
    expect(await page.getByTestId('error').count()).toBe(0);
    expect(await page.getByTestId('target-menu').innerText()).toContain('1.5B');
  });

  it('starts with the last models, or says why not', async () => {
    const last = { target: seven.path, draft: small.path, context: 4096 };
    const page = await openWith({ preferences: { last_models: last } });
    await page.getByTestId('example').first().waitFor();
    expect(await requests(page)).toEqual([last]);
    expect(await page.getByTestId('target-menu').innerText()).toContain(seven.title);
    const failing = await openWith(
      { preferences: { last_models: last } },
      { load_errors: { [seven.path]: { code: 'out_of_memory', message: 'Memory ran out.' } } },
    );
    await failing.getByTestId('failure').waitFor();
    expect(await failing.getByTestId('failure').innerText()).toContain(`${tiny.title} is loaded instead`);
    const gone = await openWith({ preferences: { last_models: { ...last, draft: '/gone.gguf' } } });
    await gone.getByTestId('failure').waitFor();
    expect((await requests(gone)).map(({ target }) => target)).toEqual([seven.path, tiny.path]);
    expect(await gone.getByTestId('failure').innerText()).toContain('was moved or deleted');
  });

  it('takes a question meanwhile, and asks it once', async () => {
    const last = { target: seven.path, draft: null, context: 4096 };
    const page = await openWith({ preferences: { last_models: last } }, { load_ms: 1500 });
    await page.getByTestId('prompt').fill('What is left?');
    await page.keyboard.press('Enter');
    await page.getByText('Sent when the model is loaded').waitFor();
    expect(await calls(page, 'answer')).toEqual([]);
    await ended(page);
    expect(await calls(page, 'answer')).toHaveLength(1);
    expect(await page.getByTestId('prompt').inputValue()).toBe('');
  });

  it('keeps a question that is edited meanwhile, and asks another model if the load fails', async () => {
    const last = { target: seven.path, draft: null, context: 4096 };
    const page = await openWith({ preferences: { last_models: last } }, { load_ms: 1500 });
    await page.getByTestId('prompt').fill('What is');
    await page.keyboard.press('Enter');
    await page.getByText('Sent when the model is loaded').waitFor();
    await page.keyboard.type(' left?');
    await idle(page);
    expect(await calls(page, 'answer')).toEqual([]);
    expect(await page.getByTestId('prompt').inputValue()).toBe('What is left?');
    const failing = await openWith(
      { preferences: { last_models: last } },
      { load_ms: 1500, load_errors: { [seven.path]: { code: 'out_of_memory', message: 'Memory ran out.' } } },
    );
    await failing.getByTestId('prompt').fill('What is left?');
    await failing.keyboard.press('Enter');
    await ended(failing);
    expect(await failing.getByTestId('failure').innerText()).toContain(`${tiny.title} is loaded instead`);
    expect(await calls(failing, 'answer')).toHaveLength(1);
  });

  it('unloads after the keep-warm time, says so, and reloads when asked', async () => {
    const last = { target: middle.path, draft: small.path, context: null };
    const page = await openWith({ preferences: { last_models: last, keep_warm_minutes: 15 } });
    await page.getByTestId('example').first().waitFor();
    await page.evaluate(() => window.hunchReplay?.unload());
    await page.getByTestId('unloaded').waitFor();
    expect(await page.getByTestId('unloaded').innerText()).toContain('No questions for 15 minutes. It reloads when you ask.');
    expect(await page.getByTestId('target-menu').innerText()).toContain('1.5B');
    await ask(page);
    await ended(page);
    expect(await requests(page)).toEqual([last, last]);
    expect(await page.getByTestId('error').count()).toBe(0);
  });

  it('unloads from the menu of models, and keeps the target when the draft is changed', async () => {
    const page = await openWith({ preferences: { last_models: { target: middle.path, draft: null, context: 4096 } } });
    await page.getByTestId('example').first().waitFor();
    await page.getByTestId('draft-menu').click();
    await page.getByTestId('draft-list').getByRole('option', { name: /0\.5B/ }).click();
    await idle(page);
    expect((await requests(page)).at(-1)).toEqual({ target: middle.path, draft: small.path, context: 4096 });
    await page.getByTestId('target-menu').click();
    await page.getByTestId('unload').click();
    await page.getByTestId('unloaded').waitFor();
    expect(await calls(page, 'unload_models')).toHaveLength(1);
    // Comparing reloads it from there too.
    await page.keyboard.press('Control+2');
    await page.getByTestId('compare-wake').click();
    await page.getByTestId('compare-wake').waitFor({ state: 'detached' });
    expect((await requests(page)).at(-1)).toEqual({ target: middle.path, draft: small.path, context: 4096 });
  });

  it('unloaded, can still be asked again, and edited questions too', async () => {
    const last = { target: middle.path, draft: null, context: null };
    const page = await openWith({ preferences: { last_models: last } });
    await page.getByTestId('example').first().click();
    await ended(page);
    const rest = async () => {
      await page.evaluate(() => window.hunchReplay?.unload());
      await expect.poll(() => page.getByTestId('target-menu').innerText()).toContain('1.5B');
    };
    await rest();
    for (const control of ['edit', 'regenerate', 'continue']) expect(await page.getByTestId(control).isEnabled(), control).toBe(true);
    await page.getByTestId('regenerate').click();
    await page.getByTestId('answer-branches').waitFor();
    await ended(page);
    expect(await requests(page)).toEqual([last, last]);
    await rest();
    await page.getByTestId('edit').click();
    await page.getByTestId('edit-question').fill('in other words');
    await page.getByTestId('resend').click();
    await page.getByTestId('question-branches').waitFor();
    await ended(page);
    expect(await requests(page)).toEqual([last, last, last]);
    // Browsing the branches needs no model.
    await rest();
    await page.getByRole('button', { name: 'Previous question' }).click();
    await page.getByTestId('answer-branches').waitFor();
    expect(await requests(page)).toHaveLength(3);
  });

  /** Asks a question of an unloaded model that takes long to load. */
  const askWhileResting = async (question: string) => {
    const last = { target: middle.path, draft: null, context: null };
    const page = await openWith({ preferences: { last_models: last } }, { load_ms: 1500 });
    await page.getByTestId('example').first().waitFor();
    await page.evaluate(() => window.hunchReplay?.unload());
    await page.getByTestId('unloaded').waitFor();
    await ask(page, question);
    return page;
  };

  it('is no longer waited for when the answer is stopped by button', async () => {
    const page = await askWhileResting('What is left?');
    await page.getByTestId('stop').click();
    await idle(page);
    expect([await calls(page, 'cancel_loading'), await calls(page, 'answer')]).toEqual([[{}], []]);
    expect(await page.getByTestId('prompt').inputValue()).toBe('What is left?');
  });

  it('is cancelled by Escape while a question waits for it, which goes back to the composer', async () => {
    const page = await askWhileResting('What is left?');
    await page.locator('[data-testid=loading][aria-valuenow]').waitFor();
    await page.keyboard.press('Escape');
    await idle(page);
    expect(await calls(page, 'cancel_loading')).toHaveLength(1);
    expect(await calls(page, 'answer')).toEqual([]);
    expect(await page.getByTestId('error').innerText()).toContain('Loading was cancelled');
    expect(await page.getByTestId('prompt').inputValue()).toBe('What is left?');
  });

  it('has a setting for how long models stay', async () => {
    const page = await openWith();
    await page.keyboard.press('Control+,');
    await page.getByTestId('keep-warm-15').check();
    await page.screenshot({ path: `${output}library-settings.png` });
    expect(await calls(page, 'set_preference')).toContainEqual({ key: 'keep_warm_minutes', value: 15 });
  });
});

describe('the menus of models', () => {
  it('begin with recent ones, are searched, show the fit, and link to the library', async () => {
    const page = await openWith({
      preferences: { recent_models: [seven.path], last_models: { target: seven.path, draft: null, context: null } },
    });
    await page.getByTestId('example').first().waitFor();
    await page.getByTestId('target-menu').click();
    const list = page.getByTestId('target-list');
    await list.waitFor();
    expect(await list.getByRole('option').first().innerText()).toContain(seven.title);
    await list.locator('[data-fit=too_large]').waitFor();
    await page.keyboard.type('llama');
    await expect.poll(() => list.getByRole('option').first().innerText()).toContain('Llama 3.2');
    await page.keyboard.press('Enter');
    await idle(page);
    expect((await requests(page)).at(-1)?.target).toContain('llama-3.2');
    await page.getByTestId('target-menu').click();
    await page.getByTestId('open-library').click();
    await page.getByTestId('library').waitFor();
  });

  it('list suitable drafts first, and the others with the reason', async () => {
    const page = await openWith({ preferences: { last_models: { target: seven.path, draft: null, context: null } } });
    await page.getByTestId('example').first().waitFor();
    await page.getByTestId('draft-menu').click();
    const list = page.getByTestId('draft-list');
    await list.getByText('Compatible', { exact: true }).waitFor();
    await page.screenshot({ path: `${output}library-drafts.png` });
    expect(await violations(page)).toEqual([]);
    const options = await list.getByRole('option').allInnerTexts();
    expect(options[0]).toMatch(/0\.5B[\s\S]*× predicted/);
    expect(options.find((text) => text.includes(tiny.title))).toContain('Vocabularies differ at token 0');
    expect(await list.getByRole('option', { name: tiny.title }).getAttribute('aria-disabled')).toBe('true');
  });

  it('are reached from the palette: the parts of the library, and any model by name', async () => {
    const page = await openWith();
    await page.getByTestId('example').first().waitFor();
    await page.keyboard.press('Control+k');
    await page.keyboard.type('load coder 7b');
    await page.keyboard.press('Enter');
    await idle(page);
    expect((await requests(page)).at(-1)?.target).toBe(seven.path);
    await page.keyboard.press('Control+k');
    await page.keyboard.type('another repository');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => document.activeElement?.getAttribute('data-testid') === 'repository-field');
    await page.keyboard.press('Control+k');
    await page.keyboard.type('search models');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => document.activeElement?.getAttribute('data-testid') === 'library-search');
  });
});
