import { describe, expect, it } from 'vitest';
import app from '../../../../tests/ui/fixtures/fixture-app.json';
import type { Host } from '../host';
import type { AppInfo, DraftOffers, LoadedModels, ModelEntry, SuiteFile } from '../ipc/schema.gen';
import { AdvancedSettings } from './advanced.svelte';
import { ComparisonPlan } from './comparisonPlan.svelte';
import { LaneModelChoices } from './laneModels.svelte';
import { LibraryState } from './library.svelte';
import { LogitBias } from './logitBias.svelte';
import { Settings } from './settings.svelte';
import { OwnSuite } from './suiteFile.svelte';
import { modelsOn } from './testing';

function make(methods: LoadedModels['methods'] = ['plain', 'draft-model', 'ngram', 'suffix'], advanced: AdvancedSettings | null = null) {
  const settings = new Settings(advanced);
  const answers: Record<string, unknown> = {};
  const host = { invoke: (command: string) => Promise.resolve(answers[command] ?? null) } as unknown as Host;
  const library = new LibraryState(host);
  const models = modelsOn(host, settings, { library });
  models.info = app.info as unknown as AppInfo;
  models.loaded = { ...(app.info.loaded as unknown as LoadedModels), methods };
  settings.adopt(models.info);
  let busy = false;
  const listed: string[] = [];
  const choices = new LaneModelChoices(host, models);
  const suite = new OwnSuite(host);
  const chat = { settings, busy: () => busy, hasServer: (address: string) => listed.includes(address) };
  const plan = new ComparisonPlan({ models, choices, suite, chat });
  return { answers, choices, library, listed, settings, models, plan, suite, work: () => (busy = true) };
}

/** Another target of the library. */
const further = {
  name: 'further-q4',
  title: 'Further 7B',
  quantisation: 'Q4_K_M',
  path: '/models/further.gguf',
  problem: null,
  context_length: 4096,
};
const furtherModel = further as unknown as ModelEntry;
const path = app.info.loaded.target.path;
const draftPath = app.info.loaded.draft.path;

describe('the plan of a comparison', () => {
  it('starts with the best available method', () => {
    const { plan } = make();
    plan.arrive();
    expect(plan.lanes).toEqual([{ method: 'draft-model', max_draft: 'auto' }]);
    const without = make(['plain', 'ngram', 'suffix']);
    without.plan.arrive();
    expect(without.plan.lanes).toEqual([{ method: 'ngram', max_draft: 'auto' }]);
  });

  it('shares the advanced settings of the chat, and leaves biases out next to another target', async () => {
    const tokens: Host = { invoke: () => Promise.resolve([{ id: 7, text: ' end' }]) } as unknown as Host;
    const advanced = new AdvancedSettings(new LogitBias(tokens, () => path));
    const { plan, settings } = make(undefined, advanced);
    plan.arrive();
    plan.text = 'Merge two lists.';
    expect(plan.sharesAdvanced).toBe(false);
    expect(plan.request()).not.toHaveProperty('stop');
    expect(plan.request()).not.toHaveProperty('options');
    advanced.presencePenalty = 0.5;
    advanced.addStop('END');
    advanced.options = { exit_layer: 2 };
    await advanced.bias.add(' end');
    expect(plan.sharesAdvanced).toBe(true);
    const sampling = { ...settings.request()?.sampling, temperature: plan.settings.temperature, seed: plan.settings.seed };
    expect(sampling.logit_bias).toEqual({ 7: -5 });
    expect(plan.request()).toMatchObject({ sampling, stop: ['END'], options: { exit_layer: 2 } });
    plan.change(0, { method: 'ngram', max_draft: 4, models: { target: further.path } });
    expect(plan.leavesBiasesOut).toBe(true);
    expect(plan.request()).toMatchObject({ sampling: { ...sampling, logit_bias: {} }, stop: ['END'] });
  });

  it('asks its server only while it is in the list', () => {
    const { listed, plan } = make();
    plan.arrive();
    plan.text = 'Merge two lists.';
    const server = { address: 'http://127.0.0.1:8080/v1', model: 'first' };
    plan.server = server;
    expect([plan.server, plan.request()?.server]).toEqual([null, undefined]);
    listed.push(server.address);
    expect([plan.server, plan.request()?.server]).toEqual([server, server]);
  });

  it('follows the settings of the chat until changed here', () => {
    const { plan, settings } = make();
    plan.arrive();
    settings.temperature = 0.6;
    plan.arrive();
    expect(plan.settings.temperature).toBe(0.6);
    plan.settings.maxTokens = 64;
    settings.temperature = 0.9;
    plan.arrive();
    expect([plan.settings.temperature, plan.settings.maxTokens, settings.maxTokens]).toEqual([0.6, 64, 4096]);
  });

  it('compares short answers unless the chat has a maximum length of its own', () => {
    const { plan, settings } = make();
    plan.arrive();
    expect([settings.maxTokens, plan.settings.maxTokens]).toEqual([4096, 512]);
    settings.maxTokens = 2048;
    plan.arrive();
    expect(plan.settings.maxTokens).toBe(2048);
  });

  it('has six samples by default, as many as a certain verdict needs', () => {
    const { plan } = make();
    plan.arrive();
    plan.text = 'Merge two lists.';
    expect(plan.request()).toMatchObject({ prompts: { kind: 'text' }, runs: 6 });
    plan.kind = 'code';
    expect(plan.request()).toMatchObject({ prompts: { kind: 'suite', name: 'code', prompts: 6 }, runs: 2 });
    plan.prompts = 1;
    expect(plan.runs).toBe(6);
    plan.runs = 4;
    plan.prompts = null;
    expect([plan.runs, plan.request()?.runs]).toEqual([4, 4]);
  });

  it('has the reasoning of the chat, if the loaded model offers it', () => {
    const { plan, models, settings } = make();
    models.loaded = { ...models.loaded!, thinking: ['off', 'on'] };
    settings.thinking = 'off';
    plan.arrive();
    plan.text = 'Merge two lists.';
    expect(plan.request()?.thinking).toBe('off');
    plan.settings.thinking = null;
    expect(plan.request()).not.toHaveProperty('thinking');
    plan.settings.thinking = 'high';
    expect(plan.request()).not.toHaveProperty('thinking');
  });

  it('sweeps the draft lengths of the first method, and leaves the lanes as they are', () => {
    const { plan } = make();
    plan.arrive();
    plan.add();
    plan.change(0, { method: 'suffix', max_draft: 4, temperature: 0.7 });
    expect([plan.sweeps, plan.canSweep, plan.sweepRequest()]).toEqual(['suffix', false, null]);
    plan.kind = 'code';
    const lanes = plan.sweepRequest()?.lanes;
    // Plain decoding at that temperature takes the place of the longest draft.
    expect(lanes?.map(({ max_draft }) => max_draft)).toEqual([1, 2, 3, 4, 6, 'auto']);
    expect(lanes?.every(({ method, temperature }) => method === 'suffix' && temperature === 0.7)).toBe(true);
    plan.settings.temperature = 0.7;
    expect(plan.sweepRequest()?.lanes.map(({ max_draft }) => max_draft)).toEqual([1, 2, 3, 4, 6, 8, 'auto']);
    expect(plan.lanes).toHaveLength(2);
  });

  it('sweeps a draft model in place of the method that chooses among methods', () => {
    const { plan } = make(['plain', 'auto', 'draft-model', 'ngram']);
    plan.arrive();
    expect([plan.lanes[0]?.method, plan.sweeps]).toEqual(['auto', 'draft-model']);
    const without = make(['plain', 'auto', 'ngram']);
    without.plan.arrive();
    expect(without.plan.sweeps).toBe('ngram');
  });

  it('adds unused methods, up to seven lanes', () => {
    const { plan } = make();
    plan.arrive();
    for (let i = 0; i < 8; i += 1) plan.add();
    expect(plan.lanes.map(({ method }) => method)).toEqual(['draft-model', 'ngram', 'suffix', 'suffix', 'suffix', 'suffix', 'suffix']);
    expect(plan.lanes.slice(2).map(({ max_draft }) => max_draft)).toEqual(['auto', 4, 8, 2, 12]);
    expect(plan.hasRoom).toBe(false);
    plan.remove(0);
    plan.change(0, { method: 'suffix', max_draft: 6 });
    expect(plan.lanes[0]).toEqual({ method: 'suffix', max_draft: 6 });
  });

  it('keeps of a lane what differs from the comparison, and shows it as labels', () => {
    const { plan } = make();
    plan.arrive();
    const [lane] = plan.lanes;
    if (!lane) throw new Error('a lane');
    expect(plan.labels(lane)).toEqual([]);
    plan.change(0, { ...lane, max_draft: 4, temperature: 0.8, rule: { name: 'coupled' } });
    expect(plan.labels(plan.lanes[0] ?? lane)).toEqual(['K 4', 'temperature 0.8', 'coupled rule']);
    plan.settings.temperature = 0.8;
    plan.settings.rule = { name: 'coupled' };
    expect(plan.lanes).toEqual([{ method: 'draft-model', max_draft: 4 }]);
  });

  it('gives a lane its own models, and drops those that its method does not use', async () => {
    const { answers, choices, library, plan } = make();
    library.models = [furtherModel];
    plan.arrive();
    const offer = { name: 'small', path: '/models/small.gguf', verdict: { kind: 'suits' } };
    answers['draft_offers'] = { offers: [offer], heads: [], heads_to_fetch: [] } as unknown as DraftOffers;
    const [lane] = plan.lanes;
    if (!lane) throw new Error('a lane');
    expect(choices.targets.map(({ title }) => title)).toEqual([
      app.info.loaded.target.title + ' ' + app.info.loaded.target.quantisation,
      'Further 7B Q4_K_M',
    ]);
    // The loaded models need not be named.
    plan.change(0, { ...lane, models: { target: path, draft: draftPath } });
    expect(plan.lanes[0]).toEqual(lane);
    const own = { ...lane, models: { target: further.path, draft: '/models/small.gguf' } };
    await choices.loadOffers(own);
    expect(choices.drafts(own).map((one) => one.path)).toEqual(['/models/small.gguf']);
    plan.change(0, own);
    expect(plan.labels(own)).toEqual(['target Further 7B Q4_K_M', 'draft small']);
    expect(choices.loadedFor(own)?.methods).toContain('draft-model');
    plan.change(0, { ...own, method: 'ngram' });
    expect(plan.lanes[0]?.models).toEqual({ target: further.path });
    expect(choices.loadedFor(plan.lanes[0] ?? lane)?.methods).not.toContain('draft-model');
  });

  it('counts plain decoding of a further target as a lane', () => {
    const { library, plan } = make();
    library.models = [furtherModel];
    plan.arrive();
    plan.kind = 'code';
    for (let i = 0; i < 6; i += 1) plan.add();
    expect([plan.lanes.length, plan.missing]).toEqual([7, null]);
    plan.change(6, { method: 'suffix', max_draft: 2, models: { target: further.path } });
    expect([plan.missing, plan.request()]).toEqual(['lanes', null]);
    plan.remove(1);
    expect([plan.missing, plan.hasRoom]).toEqual([null, false]);
    plan.change(0, { method: 'suffix', max_draft: 2, models: { target: further.path } });
    expect(plan.sweepLanes.map(({ max_draft }) => max_draft)).toEqual([1, 2, 3, 4, 6, 'auto']);
  });

  it('counts plain decoding of a further temperature as a lane, once for each target', () => {
    const { library, plan } = make();
    library.models = [furtherModel];
    plan.arrive();
    plan.kind = 'code';
    for (let i = 0; i < 5; i += 1) plan.add();
    plan.change(0, { method: 'suffix', max_draft: 3, temperature: 0.8 });
    plan.change(1, { method: 'suffix', max_draft: 1, temperature: 0.8 });
    expect([plan.lanes.length, plan.missing, plan.hasRoom]).toEqual([6, null, false]);
    plan.change(2, { method: 'suffix', max_draft: 5, temperature: 0.8, models: { target: further.path } });
    expect(plan.missing).toBe('lanes');
  });

  it('names the head of the loaded target, and that of another target only if it was chosen', () => {
    const { choices, library, models, plan } = make();
    library.models = [furtherModel];
    plan.arrive();
    const head = { name: 'eagle', path: '/heads/eagle', kind: 'EAGLE-3' };
    if (models.loaded) models.loaded = { ...models.loaded, head };
    const lane = { method: 'auto', max_draft: 'auto' } as const;
    expect(choices.modelsOf(lane)).toEqual({ target: path, draft: draftPath, head: head.path });
    expect(choices.heads(lane)).toEqual([{ path: head.path, title: 'eagle' }]);
    expect(choices.normalised({ ...lane, models: { target: path, draft: draftPath, head: head.path } })).toEqual(lane);
    expect(choices.modelsOf({ ...lane, models: { target: further.path } })).toEqual({ target: further.path });
  });

  it('asks with a file of prompts once one was read', async () => {
    const { answers, plan, suite } = make();
    plan.arrive();
    plan.kind = 'file';
    expect([plan.missing, plan.request(), plan.canSweep]).toEqual(['file', null, false]);
    await suite.choose();
    expect(suite.file).toBeNull();
    answers['choose_file'] = '/prompts/mine.txt';
    const file: SuiteFile = { path: '/prompts/mine.txt', name: 'mine', prompts: 12 };
    answers['read_suite'] = file;
    await suite.choose();
    expect(plan.request()?.prompts).toEqual({ kind: 'file', path: '/prompts/mine.txt', prompts: 6 });
    // No more prompts than the suite has.
    plan.prompts = 40;
    expect(plan.request()?.prompts).toEqual({ kind: 'file', path: '/prompts/mine.txt', prompts: 12 });
    plan.kind = 'code';
    expect(plan.request()?.prompts).toEqual({ kind: 'suite', name: 'code', prompts: 15 });
    plan.kind = 'file';
    answers['read_suite'] = Promise.reject(new Error('no suite'));
    await suite.choose();
    expect([suite.file, suite.error?.code]).toEqual([file, 'internal']);
  });

  it('begins with the recommended method, and alternates methods with and without a draft model', () => {
    const recommended = make(['plain', 'auto', 'draft-model', 'cascade', 'ngram']);
    recommended.plan.arrive();
    for (let i = 0; i < 3; i += 1) recommended.plan.add();
    expect(recommended.plan.lanes.map(({ method }) => method)).toEqual(['auto', 'draft-model', 'ngram', 'cascade']);
    const { plan } = make(['plain', 'draft-model', 'draft-tree', 'cascade', 'ngram', 'suffix']);
    plan.arrive();
    for (let i = 0; i < 4; i += 1) plan.add();
    expect(plan.lanes.map(({ method }) => method)).toEqual(['draft-model', 'ngram', 'draft-tree', 'suffix', 'cascade']);
  });

  it('keeps lanes that were made here when another model cannot run them, and says so', () => {
    const { plan, models } = make();
    plan.arrive();
    plan.kind = 'code';
    plan.add();
    if (models.loaded) models.loaded = { ...models.loaded, methods: ['plain', 'suffix'] };
    plan.arrive();
    expect(plan.lanes.map(({ method }) => method)).toEqual(['draft-model', 'ngram']);
    expect([plan.missing, plan.lanes.every((lane) => plan.lacks(lane))]).toEqual(['needs', true]);
  });

  it('begins again with another model if nothing was changed here', () => {
    const { plan, models } = make();
    plan.arrive();
    if (models.loaded) models.loaded = { ...models.loaded, methods: ['plain', 'suffix'] };
    plan.arrive();
    expect(plan.lanes.map(({ method }) => method)).toEqual(['suffix']);
  });

  it('says what is missing, and has no request until then', () => {
    const { plan, models } = make();
    plan.arrive();
    expect([plan.missing, plan.request()]).toEqual(['text', null]);
    plan.kind = 'code';
    expect(plan.request()?.prompts).toEqual({ kind: 'suite', name: 'code', prompts: 6 });
    plan.add();
    plan.change(1, { method: 'draft-model', max_draft: 'auto' });
    expect([plan.missing, plan.request()]).toEqual(['same', null]);
    models.loaded = null;
    expect(plan.missing).toBe('model');
    const busy = make();
    busy.plan.arrive();
    busy.work();
    expect(busy.plan.missing).toBe('chat');
  });
});
