// Drafts for the selected model of the library, on the replay host: reasons, loading and measuring a pair.

import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import type { CatalogueHead, HeadOffer, LowBitOffer } from '../../ui/src/lib/ipc/schema.gen';
import { models } from './fixtures/library';
import { calls } from './harness';
import { app, download, idle, look, middle, offer, requests, seven, small, tiny, useLibraryWindow } from './libraryPage';
import { violations } from './violations';

const { openLibrary } = useLibraryWindow();
const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });

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

  it('shows the drafter that a model brings along, in both languages, or why it is not used', async () => {
    const reason = 'The MTP layer in this model’s file does not draft: a tensor is missing. The model runs without it.';
    const drafters = {
      [seven.name]: { state: 'usable', size_bytes: 412e6 },
      [small.name]: { state: 'unusable', reason },
    } as const;
    const own = { models: models.map((model) => ({ ...model, own_drafter: drafters[model.name] })) };
    const layer: HeadOffer = {
      name: seven.name,
      path: seven.path,
      kind: 'MTP layer',
      trained_for: seven.title,
      problem: null,
      size_bytes: 412e6,
      memory: 9e9,
      fit: 'fits',
      predicted: { speedup: 1.42, acceptance: 0.47, depth: 2, costs: 'sizes' },
    };
    const page = await openLibrary({}, own, { own_heads: { [seven.name]: layer } });
    await look(page, seven.name);
    expect(await page.getByTestId('facts').innerText()).toMatch(/Own drafter\s+MTP layer, 412 MB/);
    expect(await page.getByTestId('own-drafter').innerText()).toMatch(/brings its own drafter, an MTP layer\. 1\.42× predicted/);
    expect(await page.getByTestId('without-methods').innerText()).toContain('Head, N-gram');
    await page.getByTestId('load').click();
    await idle(page);
    await page.getByTestId('draft-menu').click();
    expect(await page.getByTestId('own-head-offer').innerText()).toMatch(/Own drafter of this model[^]*MTP layer, 1\.42× predicted/);
    await page.keyboard.press('Escape');
    await look(page, small.name);
    expect(await page.getByTestId('drafter-note').innerText()).toContain(reason);
    expect(await page.getByTestId('own-drafter').count()).toBe(0);
    const german = await openLibrary({ locale: 'de-AT' }, own, { own_heads: { [seven.name]: layer } });
    await look(german, seven.name);
    expect(await german.getByTestId('facts').innerText()).toMatch(/Eigener Drafter\s+MTP-Schicht, 412 MB/);
    expect(await german.getByTestId('own-drafter').innerText()).toContain('bringt einen eigenen Drafter mit');
  });

  it('offers the low-bit copy of the model, which is written, loaded and deleted, in both languages', async () => {
    const copy: LowBitOffer = {
      path: '/data/low-bit/qwen-7b.gguf',
      written: false,
      size_bytes: 3.1e9,
      memory: 9.4e9,
      fit: 'fits',
      predicted: { speedup: 1.18, acceptance: 0.77, depth: 2, costs: 'sizes' },
      measured: null,
    };
    const page = await openLibrary({}, {}, { low_bit: { [seven.name]: { ...copy } } });
    await idle(page);
    await look(page, seven.name);
    const row = page.getByTestId('low-bit');
    expect(await row.innerText()).toMatch(
      /Low-bit copy of this model[^]*1\.18× predicted[^]*about 3\.1 GB, estimated[^]*written when you first load it/,
    );
    expect(await row.getByTestId('remove-low-bit').count()).toBe(0);
    await row.scrollIntoViewIfNeeded();
    await page.screenshot({ path: `${output}low-bit.png` });
    await row.getByTestId('load-low-bit').click();
    await idle(page);
    expect((await requests(page)).at(-1)).toEqual({ target: seven.path, draft: copy.path, context: null });
    // Next to the target's name, only what differs is shown.
    await expect.poll(() => page.getByTestId('draft-menu').innerText()).toMatch(/^draft\s+low-bit\s+Q2_K$/);
    await page.getByTestId('draft-menu').click();
    expect(await page.getByTestId('low-bit-offer').innerText()).toContain('1.18× predicted');
    await page.keyboard.press('Escape');
    // It is in memory.
    await expect.poll(() => page.getByTestId('remove-low-bit').isDisabled()).toBe(true);
    await page.getByTestId('unload').click();
    await page.getByTestId('remove-low-bit').click();
    expect(await page.getByTestId('remove-low-bit-question').innerText()).toContain('free 3.1 GB');
    await page.screenshot({ path: `${output}low-bit-removing.png` });
    await page.getByTestId('remove-low-bit-yes').click();
    await row.getByText('written when you first load it').waitFor();
    expect(await page.getByTestId('load').innerText()).toBe('Load with its low-bit copy');
    expect(await calls(page, 'remove_low_bit_copy')).toEqual([{ target: seven.path }]);
    const german = await openLibrary({ locale: 'de-AT' }, {}, { low_bit: { [seven.name]: { ...copy } } });
    await look(german, seven.name);
    expect(await german.getByTestId('low-bit').innerText()).toMatch(/Low-Bit-Kopie dieses Modells[^]*wird beim ersten Laden geschrieben/);
  });

  it('downloads a head that was published for the model, in both languages', async () => {
    const head: CatalogueHead = {
      kind: 'EAGLE-3',
      target: 'Qwen2.5 7B',
      repository: 'somebody/Qwen2.5-7B_eagle3',
      file: 'model.safetensors',
      size_bytes: 512e6,
      licence: 'apache-2.0',
      checked: { month: '2026-11', source: 'public_sources' },
    };
    const recorded = { heads_to_fetch: { [seven.name]: [head] } };
    const page = await openLibrary({}, {}, recorded);
    await look(page, seven.name);
    const row = page.getByTestId('catalogue-head');
    expect(await row.innerText()).toMatch(/somebody\/Qwen2\.5-7B_eagle3[^]*EAGLE-3, trained for Qwen2\.5 7B · 512 MB · apache-2\.0/);
    expect(await row.getByRole('radio').isDisabled()).toBe(true);
    await row.scrollIntoViewIfNeeded();
    await page.screenshot({ path: `${output}catalogue-head.png` });
    await row.getByTestId('download-head').click();
    await row.getByTestId('fetching').waitFor();
    expect((await calls(page, 'start_download')).at(-1)).toEqual({ request: { repository: head.repository, file: head.file } });
    await download(page, 'd1', { phase: 'done', path: '/models/Qwen2.5-7B_eagle3/model.safetensors', head: 'EAGLE-3' });
    await row.getByText('on disk').waitFor();
    await page.getByTestId('library-catalogue').click();
    await page.locator('[data-testid=download][data-phase=done]').waitFor();
    expect(await page.getByTestId('download-load').count()).toBe(0);
    const german = await openLibrary({ locale: 'de-AT' }, {}, recorded);
    await look(german, seven.name);
    expect(await german.getByTestId('catalogue-head').innerText()).toContain('trainiert für Qwen2.5 7B');
    // No head is offered for another model.
    await look(german, small.name);
    expect(await german.getByTestId('catalogue-head').count()).toBe(0);
  });

  it('is never an empty list without a reason', async () => {
    const page = await openLibrary();
    await look(page, tiny.name);
    await page.getByTestId('no-suited').waitFor();
    expect(await page.getByTestId('no-suited').innerText()).toContain('The reasons are listed below');
    expect(await page.getByTestId('unsuited').getAttribute('open')).toBeNull();
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
    const page = await openLibrary({ speed: 1 }, { load_ms: 4000, info: app.info });
    await look(page, seven.name);
    await offer(page, small.name).getByTestId('measure-pair').click();
    await page.getByTestId('measuring-stop').click();
    await page.getByText('Stopped. Nothing was saved.').waitFor();
    expect((await calls(page, 'cancel_loading')).length).toBeGreaterThan(0);
    expect(await calls(page, 'stop_measurement')).toEqual([]);
  });
});
