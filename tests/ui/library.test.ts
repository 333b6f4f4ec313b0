// The library on the replay host: models, fit, pairs, downloads, loading and unloading.

import { mkdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Page } from 'playwright-core';
import { describe, expect, it } from 'vitest';
import type { RecordedApp } from './replay/host';
import type { RecordedLibrary } from './replay/library';
import type { Download, LoadRequest } from '../../ui/src/lib/ipc/schema.gen';
import { de } from '../../ui/src/lib/strings/de';
import { eagle, library as recorded, libraryApp, models } from './fixtures/library';
import { ask, calls, ended, useWindow, type Opening } from './harness';
import { violations } from './violations';

const hunch = useWindow();
const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });
const base = JSON.parse(readFileSync(new URL('./fixtures/fixture-app.json', import.meta.url), 'utf8')) as RecordedApp;

const named = (part: string) => models.find(({ name }) => name.includes(part))!;
const [seven, small, middle, huge, tiny] = ['7b', '0.5b', '1.5b', '30b', 'smollm2'].map(named) as [
  (typeof models)[0],
  (typeof models)[0],
  (typeof models)[0],
  (typeof models)[0],
  (typeof models)[0],
];

async function openWith(opening: Opening = {}, own: Partial<RecordedApp> = {}, extra: Partial<RecordedLibrary> = {}): Promise<Page> {
  return hunch.open({ app: 'library', apps: { library: libraryApp(base, own, extra) }, ...opening });
}

async function openLibrary(opening: Opening = {}, own: Partial<RecordedApp> = {}, extra: Partial<RecordedLibrary> = {}): Promise<Page> {
  const page = await openWith(opening, own, extra);
  await page.keyboard.press('Control+4');
  await page.getByTestId('library').waitFor();
  return page;
}

const row = (page: Page, name: string) => page.locator(`[data-testid=model-row][data-name="${name}"]`);
const rows = (page: Page) => page.getByTestId('model-row').evaluateAll((all) => all.map((one) => one.getAttribute('data-name')));
const selected = (page: Page) => page.locator('[data-testid=model-row][aria-selected=true]').getAttribute('data-name');
const offer = (page: Page, name: string) => page.locator(`[data-testid=offer][data-name="${name}"]`);
const download = (page: Page, id: string, change: Partial<Download>) =>
  page.evaluate(([id, change]) => window.hunchReplay?.download(id, change), [id, change] as const);
const requests = async (page: Page) => (await calls(page, 'load_models')).map((args) => args['request'] as LoadRequest);
const idle = (page: Page) => page.getByTestId('loading').waitFor({ state: 'detached' });

async function look(page: Page, name: string): Promise<void> {
  await row(page, name).click();
  const title = models.find((model) => model.name === name)?.title ?? name;
  await page.getByTestId('model-details').getByRole('heading', { name: title, level: 1 }).waitFor();
}

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
    // Nothing in the library has the focus yet.
    await page.keyboard.press('ArrowDown');
    expect(await selected(page)).toBe('mistral-7b-v0.1-q4_0');
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
      'Q4_K',
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
    expect(await page.getByTestId('fit-target_weights').innerText()).toBe('4.7 GB');
    expect(await page.getByTestId('fit-draft_weights').innerText()).toBe('491.0 MB');
    expect(await page.getByTestId('fit-bar').getByRole('img').getAttribute('aria-label')).toMatch(
      /^Predicted memory: Model weights 4\.7 GB, .*usable 11\.5 GB, Total memory 17\.2 GB\.$/,
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
    expect(await page.getByTestId('fit-verdict').innerText()).toBe('Too large: needs 22.1 GB, only 11.5 GB usable. It will not load.');
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

describe('which draft goes with it', () => {
  it('lists suitable drafts with their speedup, and each other one with the reason', async () => {
    const page = await openLibrary();
    await look(page, seven.name);
    await page.getByTestId('offer').first().waitFor();
    expect(await page.getByTestId('offer').evaluateAll((all) => all.map((one) => one.getAttribute('data-name')))).toEqual([
      small.name,
      'Qwen3 0.6B',
      middle.name,
      'Qwen3 4B',
    ]);
    expect(await offer(page, small.name).innerText()).toMatch(/except 128 unused tokens/);
    expect(await offer(page, small.name).getByTestId('gain').innerText()).toMatch(/^1\.\d\d× predicted\s+at \d\d% acceptance, assumed$/);
    expect(await page.getByTestId('without-methods').innerText()).toContain('N-gram, Suffix, Lookahead, Layer skip');
    await page.getByTestId('unsuited').locator('summary').click();
    const unsuited = (await page.getByTestId('unsuited-offer').allInnerTexts()).join('\n');
    expect(unsuited).toContain('Vocabularies differ at token 100: model “Ġt”, draft “·the”');
    expect(unsuited).toContain('Not smaller than the model');
    expect(unsuited).toContain('The file ends before its tensors do');
  });

  it('is never an empty list without a reason', async () => {
    const page = await openLibrary();
    await look(page, tiny.name);
    await page.getByTestId('no-suited').waitFor();
    expect(await page.getByTestId('no-suited').innerText()).toContain('The reasons are listed below');
    expect(await page.getByTestId('unsuited').getAttribute('open')).not.toBeNull();
    expect(await page.getByTestId('without-draft').isChecked()).toBe(true);
    const alone = await openLibrary({}, { models: [tiny] });
    await alone.getByTestId('no-suited').waitFor();
    expect(await alone.getByTestId('no-suited').innerText()).toContain('No compatible draft, neither here nor in the catalogue');
    expect(await alone.getByTestId('unsuited-offer').count()).toBeGreaterThan(0);
    // It has no partner here, but one in the catalogue.
    const known = await openLibrary({}, { models: [seven] });
    await known.getByTestId('only-catalogue').waitFor();
    expect(await known.getByTestId('no-suited').count()).toBe(0);
    expect(await offer(known, 'Qwen3 0.6B').innerText()).toContain('compared token by token after download');
  });

  it('loads a pair, and downloads a draft that is not here', async () => {
    const page = await openLibrary();
    await idle(page);
    await look(page, seven.name);
    await offer(page, middle.name).getByTestId('load-pair').click();
    await idle(page);
    expect((await requests(page)).at(-1)).toEqual({ target: seven.path, draft: middle.path, context: null });
    await expect.poll(() => page.getByTestId('draft-menu').innerText()).toContain('1.5B');
    await offer(page, 'Qwen3 0.6B').getByTestId('download-draft').click();
    await page.getByTestId('offer-coming').waitFor();
    await download(page, 'd1', { phase: 'done' });
    await offer(page, 'Qwen3-0.6B-Q8_0').getByTestId('load-pair').waitFor();
  });

  it('is measured: progress, a result, and the updated list with a link to the comparison', async () => {
    const page = await openLibrary({ speed: 10 });
    await idle(page);
    await look(page, seven.name);
    await offer(page, small.name).getByTestId('measure-pair').click();
    await page.getByTestId('measuring-progress').waitFor();
    // The pair is in memory now.
    await expect.poll(() => page.getByTestId('target-menu').innerText()).toContain(seven.title);
    expect(await page.getByTestId('target-menu').isDisabled()).toBe(false);
    await page.getByTestId('target-menu').click();
    expect(await page.getByTestId('target-list').getByRole('option', { name: middle.title }).getAttribute('aria-disabled')).toBe('true');
    await page.keyboard.press('Escape');
    await page.getByTestId('measuring-progress').scrollIntoViewIfNeeded();
    await page.screenshot({ path: `${output}library-measuring.png` });
    expect(await violations(page)).toEqual([]);
    expect(await offer(page, middle.name).getByTestId('measure-pair').isDisabled()).toBe(true);
    expect(await calls(page, 'measure_pair')).toMatchObject([{ request: { target: seven.path, draft: small.path, context: null } }]);
    await offer(page, small.name).getByTestId('measured').waitFor();
    expect(await offer(page, small.name).getByTestId('gain').innerText()).toMatch(/^\d\.\d\d× measured\s+Draft model, Nov 2\d, 2026$/);
    // The names in the report may differ from the file names.
    expect(await page.getByTestId('measuring-done').innerText()).toMatch(/^\d\.\d\d× measured with /);
    await offer(page, small.name).getByTestId('measured').click();
    await page.getByTestId('result').waitFor();
  });

  it('can be stopped while measuring', async () => {
    const page = await openLibrary({ speed: 1 });
    await idle(page);
    await look(page, seven.name);
    await offer(page, small.name).getByTestId('measure-pair').click();
    await page
      .getByTestId('measuring-progress')
      .filter({ hasNotText: /Loading|Starting/ })
      .waitFor();
    await page.getByTestId('measuring-stop').click();
    await page.getByText('Stopped. Nothing was saved.').waitFor();
    expect(await calls(page, 'stop_measurement')).toHaveLength(1);
  });

  it('can be stopped while the pair loads', async () => {
    const page = await openLibrary({ speed: 1 }, { load_ms: 4000, info: base.info });
    await look(page, seven.name);
    await offer(page, small.name).getByTestId('measure-pair').click();
    await page.getByTestId('measuring-stop').click();
    await page.getByText('Stopped. Nothing was saved.').waitFor();
    expect((await calls(page, 'cancel_loading')).length).toBeGreaterThan(0);
    expect(await calls(page, 'stop_measurement')).toEqual([]);
  });
});

describe('the catalogue', () => {
  it('shows the class of this machine first and published sizes, and downloads a pair', async () => {
    const page = await openLibrary();
    await page.getByTestId('library-catalogue').click();
    expect(await page.getByTestId('catalogue-class').evaluateAll((all) => all.map((one) => one.getAttribute('data-class')))).toEqual([
      'gb16',
      'gb8',
      'gb24_to36',
    ]);
    expect(await page.getByTestId('catalogue-class').first().innerText()).toContain('this machine');
    const llama = page.locator('[data-id="llama-3.1-8b-q4_k_m"]');
    expect(await llama.innerText()).toContain('size not published');
    await page.locator('[data-id=qwen3-8b-q4_k_m]').getByTestId('get-pair').click();
    await page.getByTestId('download').nth(1).waitFor();
    expect((await calls(page, 'start_download')).map((args) => (args['request'] as Download['request']).file)).toEqual([
      'Qwen3-8B-Q4_K_M.gguf',
      'Qwen3-0.6B-Q8_0.gguf',
    ]);
    await download(page, 'd1', { phase: 'done' });
    await download(page, 'd2', { phase: 'done' });
    await page.locator('[data-id=qwen3-8b-q4_k_m]').getByTestId('catalogue-load').click();
    await idle(page);
    expect((await requests(page)).at(-1)).toMatchObject({
      target: expect.stringContaining('Qwen3-8B'),
      draft: expect.stringContaining('Qwen3-0.6B'),
    });
  });

  it('opens any other repository, typed or pasted, and says why it cannot', async () => {
    const page = await openLibrary();
    await page.getByTestId('library-catalogue').click();
    const field = page.getByTestId('repository-field');
    await field.fill('what is this');
    await field.press('Enter');
    await page.getByTestId('repository-misread').waitFor();
    await field.fill('https://huggingface.co/bartowski/Qwen2.5-Coder-14B-GGUF/tree/main');
    await field.press('Enter');
    await page.getByTestId('repository-found').waitFor();
    expect(await page.getByTestId('repository-misread').count()).toBe(0);
    expect(await calls(page, 'hub_repository')).toEqual([
      { repository: 'what is this' },
      { repository: 'https://huggingface.co/bartowski/Qwen2.5-Coder-14B-GGUF/tree/main' },
    ]);
    const files = await page.getByTestId('repository-file').allInnerTexts();
    expect(files).toHaveLength(3);
    expect(files[2]).toMatch(/F16\s+29\.5 GB\s+2 files/);
    await page.getByTestId('get-file').nth(1).click();
    await page.getByTestId('repository-file').nth(1).getByTestId('fetching').waitFor();
    await field.fill('nobody/asleep');
    await field.press('Enter');
    await page.getByTestId('repository-refused').waitFor();
    expect(await page.getByTestId('repository-refused').innerText()).toContain('did not answer');
    await field.fill('openai/safetensors-only');
    await field.press('Enter');
    await page.getByTestId('repository-empty').waitFor();
  });

  it('explains a gated repository, links to its page, and stores a token in the keychain', async () => {
    const page = await openLibrary();
    await page.getByTestId('library-catalogue').click();
    await page.getByTestId('repository-field').fill('google/gemma-3-12b-gguf');
    await page.getByTestId('repository-look').click();
    await page.getByTestId('gated').waitFor();
    await page.getByTestId('gated-page').click();
    await page.getByTestId('link-question').waitFor();
    expect(await page.getByTestId('link-question').innerText()).toContain('https://huggingface.co/google/gemma-3-12b-gguf');
    await page.keyboard.press('Escape');
    expect(await page.getByTestId('hub-endpoint').innerText()).toBe('https://huggingface.co');
    expect(await page.getByTestId('hub').getAttribute('data-token')).toBe('absent');
    await page.getByTestId('token-field').fill('hf_abc');
    await page.getByTestId('set-token').click();
    await page.locator('[data-testid=hub][data-token=keychain]').waitFor();
    expect(await page.getByTestId('token-field').inputValue()).toBe('');
    expect(await page.content()).not.toContain('hf_abc');
    await page.getByTestId('forget-token').click();
    await page.locator('[data-testid=hub][data-token=absent]').waitFor();
    expect(await calls(page, 'set_hub_token')).toEqual([{ token: 'hf_abc' }, { token: null }]);
  });

  it('says where to set a token when there is no keychain', async () => {
    const page = await openLibrary(
      {},
      {},
      { hub: { endpoint: 'https://mirror.example', token: 'environment', can_keep_token: false, problems: [] } },
    );
    await page.getByTestId('library-catalogue').click();
    expect(await page.getByTestId('hub').innerText()).toContain('Set HF_TOKEN');
    expect(await page.getByTestId('hub-token').innerText()).toContain('HF_TOKEN');
    expect(await page.getByTestId('token-field').count()).toBe(0);
    expect(await page.getByTestId('token-problem').count()).toBe(0);
  });

  it('says why a token that was set is not used', async () => {
    const problems = [{ kind: 'environment' }, { kind: 'keychain', reason: 'user cancelled' }] as const;
    const page = await openLibrary(
      {},
      {},
      { hub: { endpoint: 'https://huggingface.co', token: 'absent', can_keep_token: true, problems: [...problems] } },
    );
    await page.getByTestId('library-catalogue').click();
    await page.getByTestId('token-problem').first().waitFor();
    const [variable, keychain] = await page.getByTestId('token-problem').allInnerTexts();
    expect(variable).toContain('HF_TOKEN is ignored');
    expect(keychain).toContain('user cancelled');
    expect(await page.getByTestId('token-field').count()).toBe(1);
  });
});

describe('downloads', () => {
  it('continue, pause, fail, retry, are deleted, and end in a model that can be loaded', async () => {
    const page = await openLibrary();
    await idle(page);
    await page.getByTestId('library-catalogue').click();
    await page.locator('[data-id=qwen3-4b-q4_k_m]').getByTestId('get-pair').click();
    await page.locator('[data-id=qwen3-8b-q4_k_m]').getByTestId('get').click();
    const one = page.locator('[data-testid=download][data-id=d1]');
    await page.getByTestId('download').nth(2).waitFor();
    expect(await page.locator('[data-testid=download][data-id=d3]').getAttribute('data-phase')).toBe('waiting');
    await download(page, 'd1', { done_bytes: 1_000_000_000, bytes_per_second: 41_300_000, seconds_left: 36 });
    expect(await one.innerText()).toMatch(/36\.0 s left\s*41\.3 MB\/s\s*1\.0 GB of 2\.5 GB/);
    expect(await page.getByTestId('tab-downloads').getAttribute('aria-label')).toMatch(/^3 downloads, \d+%$/);
    await one.getByTestId('download-pause').click();
    await one.getByTestId('download-resume').waitFor();
    // Another one may run meanwhile.
    await page.locator('[data-id=d3][data-phase=running]').waitFor();
    await one.getByTestId('download-resume').click();
    await download(page, 'd1', { phase: 'retrying', error: { code: 'io', message: 'The connection was lost.' } });
    expect(await one.getByTestId('download-phase').innerText()).toBe('Connection lost, retrying: The connection was lost.');
    await download(page, 'd1', { phase: 'failed', error: { code: 'io', message: 'The disk is full. Make room and try again.' } });
    expect(await one.getByTestId('download-phase').innerText()).toContain('Make room and try again');
    await one.getByTestId('download-retry').click();
    await page.locator('[data-id=d1][data-phase=running]').waitFor();
    await download(page, 'd2', { done_bytes: 5_000_000 });
    await page.locator('[data-id=d2]').getByTestId('download-remove').click();
    expect(await page.getByTestId('download-remove-question').innerText()).toContain('Discard 5.0 MB?');
    await page.getByTestId('download-remove-yes').click();
    await page.locator('[data-testid=download][data-id=d2]').waitFor({ state: 'detached' });
    await download(page, 'd1', { phase: 'checking' });
    expect(await one.getByTestId('download-phase').innerText()).toBe('Verifying checksum');
    await download(page, 'd1', { phase: 'done' });
    expect(await page.getByTestId('downloads-status').textContent()).toBe('Qwen3-4B-Q4_K_M is downloaded.');
    await one.getByTestId('download-load').click();
    await idle(page);
    expect((await requests(page)).at(-1)?.target).toContain('Qwen3-4B-Q4_K_M.gguf');
    expect(await selected(page)).toBe('Qwen3-4B-Q4_K_M');
    for (const [command, count] of [
      ['pause_download', 1],
      ['resume_download', 2],
      ['remove_download', 1],
    ] as const)
      expect(await calls(page, command)).toHaveLength(count);
  });

  it('whose record is lost can only be deleted', async () => {
    const page = await openLibrary();
    await page.getByTestId('library-catalogue').click();
    await page.locator('[data-id=qwen3-8b-q4_k_m]').getByTestId('get').click();
    const lost = page.locator('[data-testid=download][data-id=d1]');
    await lost.waitFor();
    const error = { code: 'io', message: 'The record of an unfinished download cannot be read.' } as const;
    await download(page, 'd1', {
      name: '0123456789abcdef',
      request: { repository: '', file: '' },
      phase: 'failed',
      done_bytes: 1_000_000_000,
      total_bytes: null,
      error,
    });
    await page.locator('[data-testid=download][data-id=d1][data-phase=failed]').waitFor();
    expect(await lost.innerText()).toContain('0123456789abcdef');
    expect(await lost.getByTestId('download-phase').innerText()).toContain('cannot be read');
    expect(await lost.getByTestId('download-retry').count()).toBe(0);
    await lost.getByTestId('download-remove').click();
    expect(await page.getByTestId('download-remove-question').innerText()).toContain('Discard 1.0 GB?');
    await page.getByTestId('download-remove-yes').click();
    await lost.waitFor({ state: 'detached' });
    expect(await calls(page, 'remove_download')).toEqual([{ id: 'd1' }]);
  });

  it('move nothing while figures change', async () => {
    const page = await openLibrary();
    await page.getByTestId('library-catalogue').click();
    await page.locator('[data-id=qwen3-8b-q4_k_m]').getByTestId('get').click();
    await page.getByTestId('download').waitFor();
    const boxes = async () =>
      page.evaluate(() =>
        [...document.querySelectorAll('[data-testid=download] *, [data-testid=catalogue-model] button, nav button')]
          .filter((one) => !one.matches('.left, .rate, .bytes, progress *'))
          .map((one) => one.getBoundingClientRect())
          .map(({ x, y, width, height }) => [x, y, width, height].map(Math.round).join())
          .join(' '),
      );
    await download(page, 'd1', { done_bytes: 1, bytes_per_second: 900_000, seconds_left: 5000 });
    const before = await boxes();
    await download(page, 'd1', { done_bytes: 4_900_000_000, bytes_per_second: 112_000_000, seconds_left: 1 });
    expect(await boxes()).toBe(before);
  });
});

describe('loading and letting go', () => {
  it('shows its progress, and can be cancelled: the models in memory stay', async () => {
    const page = await openLibrary({}, { load_ms: 8000, info: base.info });
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

describe('without any model', () => {
  it('says why the download failed, and retries', async () => {
    const page = await openWith({}, { models: [] });
    await page.getByTestId('starter-get').click();
    await page.getByTestId('starter').getByTestId('fetching').nth(1).waitFor();
    await download(page, 'd1', {
      phase: 'failed',
      error: { code: 'hub_unreachable', message: 'The hub cannot be reached. Check the connection and try again.' },
    });
    expect(await page.getByTestId('starter-why').innerText()).toContain('cannot be reached');
    expect(await violations(page)).toEqual([]);
    await page.getByTestId('fetch-again').click();
    await page.getByTestId('starter-why').waitFor({ state: 'detached' });
    const fetched = (await calls(page, 'start_download')).map((args) => (args['request'] as Download['request']).file);
    expect(fetched).toEqual(['Qwen3-8B-Q4_K_M.gguf', 'Qwen3-0.6B-Q8_0.gguf', 'Qwen3-8B-Q4_K_M.gguf']);
    // Nothing was needed from the keychain.
    expect(await calls(page, 'hub_state')).toEqual([]);
  });

  it('offers a first pair, downloads it, and loads it', async () => {
    const page = await openWith({}, { models: [] });
    await page.getByTestId('starter').waitFor();
    expect(await page.getByTestId('starter').innerText()).toMatch(/Qwen3 8B[\s\S]*Qwen3 0\.6B/);
    await page.screenshot({ path: `${output}library-starter.png` });
    expect(await violations(page)).toEqual([]);
    await page.getByTestId('starter-get').click();
    await page.getByTestId('starter').getByTestId('fetching').nth(1).waitFor();
    await download(page, 'd1', { phase: 'done' });
    await download(page, 'd2', { phase: 'done' });
    await page.getByTestId('starter-load').click();
    await page.getByTestId('example').first().waitFor();
    expect((await requests(page))[0]).toMatchObject({
      target: expect.stringContaining('Qwen3-8B'),
      draft: expect.stringContaining('Qwen3-0.6B'),
    });
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
    expect(why).toContain('fehlen 12,1 MB (andere Downloads brauchen 639,4 MB).');
    expect(await page.getByTestId('fetching').first().getAttribute('title')).toBe(why);
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
