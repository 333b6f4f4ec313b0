import { describe, expect, it } from 'vitest';
import app from '../../../../tests/ui/fixtures/fixture-app.json';
import type { Host } from '../host';
import type { AppInfo, LoadedModels } from '../ipc/schema.gen';
import { ComparisonPlan } from './comparisonPlan.svelte';
import { Models } from './models.svelte';
import { Settings } from './settings.svelte';

function make(methods: LoadedModels['methods'] = ['plain', 'draft-model', 'ngram', 'suffix']) {
  const settings = new Settings();
  const models = new Models({} as Host, settings);
  models.info = app.info as unknown as AppInfo;
  models.loaded = { ...(app.info.loaded as unknown as LoadedModels), methods };
  settings.adopt(models.info);
  let busy = false;
  const listed: string[] = [];
  const plan = new ComparisonPlan(models, { settings, busy: () => busy, hasServer: (address) => listed.includes(address) });
  return { listed, settings, models, plan, work: () => (busy = true) };
}

describe('the plan of a comparison', () => {
  it('starts with the best available method', () => {
    const { plan } = make();
    plan.arrive();
    expect(plan.lanes).toEqual([{ method: 'draft-model', max_draft: 'auto' }]);
    const without = make(['plain', 'ngram', 'suffix']);
    without.plan.arrive();
    expect(without.plan.lanes).toEqual([{ method: 'ngram', max_draft: 'auto' }]);
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
    expect([plan.settings.temperature, plan.settings.maxTokens, settings.maxTokens]).toEqual([0.6, 64, 512]);
  });

  it('sweeps the draft lengths of the first method', () => {
    const { plan } = make();
    plan.arrive();
    plan.add();
    plan.change(0, { method: 'suffix', max_draft: 4 });
    expect([plan.sweeps, plan.swept]).toEqual(['suffix', false]);
    expect(plan.sweepLanes.map(({ max_draft }) => max_draft)).toEqual([1, 2, 3, 5, 7, 'auto']);
    plan.sweep();
    expect(plan.lanes.map(({ max_draft }) => max_draft)).toEqual([1, 2, 3, 5, 7, 'auto']);
    expect(plan.lanes.every(({ method }) => method === 'suffix')).toBe(true);
    plan.kind = 'code';
    expect([plan.swept, plan.missing, plan.request()?.lanes.length]).toEqual([true, null, 6]);
    plan.remove(0);
    expect(plan.swept).toBe(false);
  });

  it('adds unused methods, up to six lanes', () => {
    const { plan } = make();
    plan.arrive();
    for (let i = 0; i < 7; i += 1) plan.add();
    expect(plan.lanes.map(({ method }) => method)).toEqual(['draft-model', 'ngram', 'suffix', 'suffix', 'suffix', 'suffix']);
    expect(plan.lanes.slice(2).map(({ max_draft }) => max_draft)).toEqual(['auto', 4, 8, 2]);
    plan.remove(0);
    plan.change(0, { method: 'suffix', max_draft: 6 });
    expect(plan.lanes[0]).toEqual({ method: 'suffix', max_draft: 6 });
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

  it('removes lanes that another model cannot run', () => {
    const { plan, models } = make();
    plan.arrive();
    plan.add();
    if (models.loaded) models.loaded = { ...models.loaded, methods: ['plain', 'suffix'] };
    plan.arrive();
    expect(plan.lanes.map(({ method }) => method)).toEqual(['suffix']);
  });

  it('says what is missing, and has no request until then', () => {
    const { plan, models } = make();
    plan.arrive();
    expect([plan.missing, plan.request()]).toEqual(['text', null]);
    plan.kind = 'code';
    expect(plan.request()?.prompts).toEqual({ kind: 'suite', name: 'code', prompts: 4 });
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
