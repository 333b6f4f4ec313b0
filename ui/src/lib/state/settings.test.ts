import { describe, expect, it } from 'vitest';
import { appInfo, offered, sampling } from '../host/testing';
import type { AppInfo, LoadedModels, Method, ModelEntry } from '../ipc/schema.gen';
import { Settings, whyNot } from './settings.svelte';

const model = (name: string): ModelEntry => ({
  name,
  title: name,
  path: name,
  source: 'hunch',
  parts: 1,
  size_bytes: 1,
  architecture: 'llama',
  parameters: 1,
  quantisation: 'Q4_K',
  context_length: 1,
  tokenizer: 'gpt2',
  has_template: true,
  licence: null,
  tokens_per_second: null,
  is_default: false,
  problem: null,
});
const loaded = (methods: Method[], draft: ModelEntry | null = null): LoadedModels => ({
  target: model('t'),
  draft,
  context: 1,
  device: 'cpu',
  methods,
});
const method = (name: Method, needs_draft = false) => offered(name, '', { needs_draft, uses_draft: needs_draft });
const info = (ranges: AppInfo['ranges']): AppInfo => ({
  ...appInfo,
  default_sampling: { ...sampling, temperature: 0.7, top_k: 40, top_p: 0.9 },
  ranges,
});

describe('Settings', () => {
  it('has no request before the engine has reported its defaults, and uses them after', () => {
    const settings = new Settings();
    expect(settings.request()).toBeNull();
    settings.adopt(info([]));
    settings.seed = 5;
    expect(settings.request()?.sampling).toMatchObject({ temperature: 0.7, top_k: 40, seed: 5 });
  });

  it('keeps values within the engine’s ranges', () => {
    const settings = new Settings();
    settings.adopt(info([{ name: 'max_draft', min: 1, max: 8 }]));
    expect(settings.maxDraft).toBe('auto');
    settings.maxDraft = 12;
    settings.adopt(info([{ name: 'max_draft', min: 1, max: 8 }]));
    expect(settings.maxDraft).toBe(8);
    expect(settings.clamp('max_draft', 0)).toBe(1);
    expect(settings.range('max_tokens').min).toBe(1);
  });

  it('leave room for reasoning by default, within the engine’s range', () => {
    const settings = new Settings();
    settings.adopt(info([]));
    expect(settings.request()?.max_tokens).toBe(4096);
    expect(settings.kept()).toEqual({});
    const short = new Settings();
    short.adopt(info([{ name: 'max_tokens', min: 1, max: 1000 }]));
    expect([short.maxTokens, short.kept()]).toEqual([1000, {}]);
  });

  it('are restored within the engine’s ranges', () => {
    const settings = new Settings();
    expect(settings.kept()).toBeNull();
    settings.adopt(info([{ name: 'max_tokens', min: 1, max: 8000 }]));
    settings.restore({ maxTokens: 9000, seed: 7, rule: { name: 'match' } });
    expect(settings.kept()).toEqual({ maxTokens: 8000, seed: 7, rule: { name: 'match' } });
    settings.seed = null;
    expect(settings.kept()).not.toHaveProperty('seed');
  });

  it('starts with the recommended method, and keeps a choice for models that have it', () => {
    const settings = new Settings();
    settings.fit(loaded(['plain', 'ngram']));
    expect(settings.method).toBe('ngram');
    settings.fit(loaded(['plain', 'draft-model', 'ngram'], model('d')));
    expect(settings.method).toBe('draft-model');
    settings.method = 'plain';
    settings.fit(loaded(['plain', 'ngram']));
    expect(settings.method).toBe('plain');
    settings.method = 'draft-model';
    settings.fit(loaded(['plain', 'ngram']));
    expect(settings.method).toBe('ngram');
    settings.fit(loaded(['plain', 'ngram', 'draft-model'], model('d')));
    expect(settings.method).toBe('draft-model');
    settings.forgetMethod();
    settings.fit(loaded(['plain', 'ngram', 'draft-model'], model('d')));
    expect(settings.method).toBe('ngram');
  });

  it('keep a method only if it was chosen', () => {
    const settings = new Settings();
    settings.adopt(info([]));
    settings.fit(loaded(['plain', 'ngram', 'lookahead']));
    expect(settings.kept()).toEqual({});
    settings.method = 'lookahead';
    const next = new Settings();
    next.adopt(info([]));
    next.restore(settings.kept()!);
    next.fit(loaded(['plain', 'ngram']));
    expect([next.method, next.kept()]).toEqual(['ngram', { method: 'lookahead' }]);
    next.fit(loaded(['plain', 'ngram', 'lookahead']));
    expect(next.method).toBe('lookahead');
  });

  it('applies what a model recommends, within the ranges, and leaves the rest', () => {
    const settings = new Settings();
    settings.adopt(info([{ name: 'temperature', min: 0, max: 5 }]));
    const recommended = { temperature: 0.6, top_k: 20, top_p: null, min_p: 0, repeat_penalty: null };
    expect(settings.follows(recommended)).toBe(false);
    settings.recommend(recommended);
    expect(settings.request()?.sampling).toMatchObject({ temperature: 0.6, top_k: 20, top_p: 0.9, min_p: 0 });
    expect(settings.follows(recommended)).toBe(true);
    settings.topK = 21;
    expect(settings.follows(recommended)).toBe(false);
    settings.recommend({ ...recommended, temperature: 99 });
    expect(settings.temperature).toBe(5);
  });

  it('sends the rule, and presets keep it', () => {
    const settings = new Settings();
    settings.adopt(info([]));
    expect(settings.request()?.rule).toEqual({ name: 'lossless' });
    settings.rule = { name: 'lossy-lenience', lenience: 0.5 };
    const chosen = settings.chosen();
    settings.rule = { name: 'match' };
    expect(settings.request()?.rule).toEqual({ name: 'match' });
    settings.choose(chosen, null);
    expect(settings.request()?.rule).toEqual({ name: 'lossy-lenience', lenience: 0.5 });
  });

  it('drafts with any method of the engine, and decodes plainly without one', () => {
    const settings = new Settings();
    settings.fit(loaded(['plain', 'bigram']));
    expect(settings.method).toBe('bigram');
    settings.fit(loaded(['plain']));
    expect(settings.method).toBe('plain');
  });
});

describe('whyNot', () => {
  it('gives a reason for every unavailable method only', () => {
    expect(whyNot(method('plain'), null)).toBe('Open a model first');
    expect(whyNot(method('plain'), loaded(['plain']))).toBeNull();
    expect(whyNot(method('draft-model', true), loaded(['plain']))).toBe('Open a draft first');
    expect(whyNot(method('draft-model', true), loaded(['plain'], model('d')))).toBe('This draft does not fit the model');
    expect(whyNot(method('ngram'), loaded(['plain']))).toBe('Not available with this model');
  });
});
