import { describe, expect, it } from 'vitest';
import { SilentHost } from '../host/testing';
import { Preferences, type Preset } from './preferences.svelte';

/** A host that stores preferences, or refuses to. */
class KeepingHost extends SilentHost {
  kept: Record<string, unknown> = {};
  written: [string, unknown][] = [];
  refuses = false;

  override async invoke(command: string, args: Record<string, unknown>): Promise<unknown> {
    if (this.refuses) throw { code: 'store', message: 'The disk is full.' };
    if (command === 'preferences') return this.kept;
    if (command !== 'set_preference') throw new Error(command);
    this.written.push([args['key'] as string, args['value']]);
    return null;
  }
}

const preset = (name: string): Preset => ({
  name,
  system: 'Be short.',
  settings: {
    method: 'ngram',
    maxDraft: 'auto',
    temperature: 0.7,
    topK: 40,
    topP: 0.9,
    minP: 0,
    repeatPenalty: 1,
    maxTokens: 256,
    seed: null,
    rule: { name: 'lossless' },
    thinking: null,
  },
});

async function make(kept: Record<string, unknown> = {}) {
  const host = new KeepingHost();
  host.kept = kept;
  const preferences = new Preferences(host);
  await preferences.load();
  return { host, preferences };
}

const values = ({ appearance, textSize, language, colourMode, view, presets }: Preferences) => ({
  appearance,
  textSize,
  language,
  colourMode,
  view,
  presets,
});

const defaults = { appearance: 'system', textSize: 15, language: null, colourMode: 'origin', view: 'rich', presets: [] };

describe('Preferences', () => {
  it('has defaults, and reads stored values', async () => {
    expect(values((await make()).preferences)).toEqual(defaults);
    const kept = { appearance: 'dark', text_size: 18, language: 'de', colour_mode: 'entropy', view: 'tokens', presets: [preset('a')] };
    expect(values((await make(kept)).preferences)).toEqual({
      appearance: 'dark',
      textSize: 18,
      language: 'de',
      colourMode: 'entropy',
      view: 'tokens',
      presets: [preset('a')],
    });
  });

  it('uses the default for each invalid value, and keeps the others', async () => {
    const kept = { appearance: 'pink', text_size: '15', language: 5, colour_mode: null, view: 'tokens', presets: {}, other: 1 };
    expect(values((await make(kept)).preferences)).toEqual({ ...defaults, view: 'tokens' });
  });

  it('reads the old name of the entropy mode', async () => {
    const { preferences } = await make({ colour_mode: 'surprise' });
    expect(preferences.colourMode).toBe('entropy');
  });

  it('drops invalid presets one by one', async () => {
    const wrong = [
      null,
      'x',
      {},
      { ...preset('no settings'), settings: null },
      { ...preset('no method'), settings: { ...preset('').settings, method: null } },
      { ...preset('no number'), settings: { ...preset('').settings, topK: 'many' } },
      { ...preset('no depth'), settings: { ...preset('').settings, maxDraft: 'deep' } },
      preset(' '),
    ];
    const { preferences } = await make({ presets: [...wrong, preset('good'), { ...preset('good'), system: 'twice' }] });
    expect(preferences.presets).toEqual([preset('good')]);
  });

  it('stores a choice, which is not overwritten by a late read', async () => {
    const host = new KeepingHost();
    host.kept = { appearance: 'light', view: 'tokens' };
    const preferences = new Preferences(host);
    const loading = preferences.load();
    const keeping = preferences.set('appearance', 'dark');
    await Promise.all([loading, keeping]);
    expect(preferences.appearance).toBe('dark');
    expect(preferences.view).toBe('tokens');
    expect(host.written).toEqual([['appearance', 'dark']]);
  });

  it('works with a host that stores nothing', async () => {
    const host = new KeepingHost();
    host.refuses = true;
    const preferences = new Preferences(host);
    await preferences.load();
    expect(values(preferences)).toEqual(defaults);
    await preferences.set('colourMode', 'off');
    expect(preferences.colourMode).toBe('off');
    expect(preferences.problem?.message).toBe('The disk is full.');
    host.refuses = false;
    await preferences.set('colourMode', 'rounds');
    expect(preferences.problem).toBeNull();
  });

  it('joins the lists of a store that could not be read at first with its own', async () => {
    const host = new KeepingHost();
    host.kept = { presets: [preset('stored')], view: 'tokens' };
    host.refuses = true;
    const preferences = new Preferences(host);
    await preferences.load();
    preferences.savePreset(preset('lost'));
    host.refuses = false;
    await preferences.set('appearance', 'dark');
    expect([preferences.presets.map(({ name }) => name), preferences.view]).toEqual([['stored', 'lost'], 'tokens']);
    expect(new Map(host.written as [string, unknown][])).toEqual(
      new Map<string, unknown>([
        ['appearance', 'dark'],
        ['presets', [preset('stored'), preset('lost')]],
      ]),
    );
  });

  it('changes the text size by steps, up to the ends', async () => {
    const { host, preferences } = await make();
    preferences.resize(1);
    preferences.resize(1);
    expect(preferences.textSize).toBe(18);
    preferences.resize(-1);
    preferences.resize(-1);
    preferences.resize(-1);
    expect(preferences.textSize).toBe(13);
    preferences.resetSize();
    await preferences.set('view', 'rich');
    expect(host.written.map(([, value]) => value)).toEqual([18, 15, 13, 15, 'rich']);
  });

  it('reads presets without a rule as lossless, and drops those with an unknown rule', async () => {
    const { rule, ...before } = preset('old').settings;
    const match = { ...preset('match'), settings: { ...before, rule: { name: 'match' } } };
    const naive = { ...preset('naive'), settings: { ...before, rule: { name: 'naive' } } };
    const { preferences } = await make({ presets: [{ ...preset('old'), settings: before }, match, naive] });
    expect(preferences.presets.map(({ name, settings }) => [name, settings.rule])).toEqual([
      ['old', rule],
      ['match', { name: 'match' }],
    ]);
  });

  it('reads the settings of answers, and ignores each that is broken', async () => {
    const good = {
      method: 'ngram',
      maxDraft: 4,
      temperature: 0.3,
      seed: null,
      stop: ['x'],
      biases: [{ text: 'a', bias: -5 }],
      rule: { name: 'match' },
    };
    expect((await make({ settings: good })).preferences.settings).toEqual(good);
    const broken = {
      topK: 'many',
      topP: NaN,
      maxTokens: 1.5,
      seed: '7',
      maxDraft: 'deep',
      rule: { name: 'naive' },
      biases: 3,
      method: 3,
    };
    const parts = { stop: ['x', 5], biases: [{ text: 'a' }, { text: '', bias: 1 }, { text: 'b', bias: 1 }] };
    expect((await make({ settings: { ...broken, minP: 0.1, ...parts } })).preferences.settings).toEqual({
      minP: 0.1,
      stop: ['x'],
      biases: [{ text: 'b', bias: 1 }],
    });
    for (const wrong of [null, 'x', []]) expect((await make({ settings: wrong })).preferences.settings).toEqual({});
  });

  it('stores the settings of answers only when they change', async () => {
    const { host, preferences } = await make({ settings: { temperature: 0.3 } });
    preferences.keepSettings({ temperature: 0.3 });
    preferences.keepSettings({});
    await preferences.set('view', 'rich');
    expect(host.written).toEqual([
      ['settings', {}],
      ['view', 'rich'],
    ]);
  });

  it('saves, replaces, renames and deletes presets', async () => {
    const { preferences } = await make();
    preferences.savePreset(preset(' short '));
    preferences.savePreset(preset('long'));
    preferences.savePreset(preset(''));
    preferences.savePreset({ ...preset('short'), system: 'Be shorter.' });
    expect(preferences.presets.map(({ name, system }) => [name, system])).toEqual([
      ['short', 'Be shorter.'],
      ['long', 'Be short.'],
    ]);
    expect(preferences.renamePreset('short', 'long')).toBe(false);
    expect(preferences.renamePreset('short', ' ')).toBe(false);
    expect(preferences.renamePreset('none', 'x')).toBe(false);
    expect(preferences.renamePreset('short', 'Haiku ')).toBe(true);
    preferences.deletePreset('long');
    expect(preferences.presets.map(({ name }) => name)).toEqual(['Haiku']);
  });
});
