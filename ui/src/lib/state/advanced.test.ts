import { afterEach, describe, expect, it } from 'vitest';
import app from '../../../../tests/ui/fixtures/fixture-app.json';
import { createWindow } from '../../window';
import { appInfo, sampling, SilentHost } from '../host/testing';
import type { LoadedModels, TextToken } from '../ipc/schema.gen';
import { setLanguage } from '../strings/index.svelte';
import { AdvancedSettings } from './advanced.svelte';
import { LogitBias } from './logitBias.svelte';
import { Settings } from './settings.svelte';
import { KeepingHost } from './testing';

/** A host whose models have one token per word, and numbers that depend on the model. */
class WordHost extends SilentHost {
  target: string | null = 'a';
  failing = false;
  asked: unknown[] = [];

  override async invoke(command: string, args: Record<string, unknown>): Promise<unknown> {
    if (command !== 'text_tokens') return null;
    this.asked.push(args['text']);
    if (this.failing) throw { code: 'no_model', message: 'No model is loaded.' };
    const words = (args['text'] as string).match(this.target === 'letters' ? /./g : / ?\S+/g) ?? [];
    const first = this.target === 'b' ? 500 : 100;
    return words.map((text): TextToken => ({ id: first + text.length, text }));
  }
}

function make() {
  const host = new WordHost();
  const bias = new LogitBias(host, () => host.target);
  const advanced = new AdvancedSettings(bias);
  const settings = new Settings(advanced);
  settings.adopt(appInfo);
  return { host, bias, advanced, settings };
}

afterEach(() => setLanguage('en'));

describe('advanced settings', () => {
  it('are part of a request', async () => {
    const { advanced, bias, settings } = make();
    advanced.presencePenalty = 0.5;
    advanced.frequencyPenalty = -0.25;
    advanced.addStop('\nUser:');
    await bias.add(' the');
    bias.change(0, 2.5);
    const { sampling: sent, stop } = settings.request()!;
    expect([sent.presence_penalty, sent.frequency_penalty, sent.logit_bias, stop]).toEqual([0.5, -0.25, { 104: 2.5 }, ['\nUser:']]);
  });

  it('count as changed until they are reset', async () => {
    const { advanced, bias, settings } = make();
    expect(advanced.changed).toBe(0);
    advanced.presencePenalty = 1;
    advanced.addStop('x');
    await bias.add('the');
    expect(advanced.changed).toBe(3);
    advanced.reset();
    expect(advanced.changed).toBe(0);
    expect(settings.request()).toMatchObject({ stop: [], sampling: { presence_penalty: 0, frequency_penalty: 0, logit_bias: {} } });
  });

  it('start with the defaults of the engine', () => {
    const { advanced, settings } = make();
    settings.adopt({ ...appInfo, default_sampling: { ...sampling, presence_penalty: 0.1 } });
    expect([advanced.presencePenalty, advanced.changed]).toEqual([0.1, 0]);
    advanced.presencePenalty = 0;
    expect(advanced.changed).toBe(1);
    advanced.reset();
    expect(advanced.presencePenalty).toBe(0.1);
  });

  it('are neither saved in a preset nor changed by one', () => {
    const { advanced, settings } = make();
    advanced.addStop('x');
    const preset = settings.chosen();
    expect(Object.keys(preset)).not.toContain('stop');
    advanced.presencePenalty = 1;
    settings.choose(preset, null);
    expect([advanced.stop, advanced.presencePenalty]).toEqual([['x'], 1]);
  });

  it('are kept when the window closes, with the sampling, and find their tokens again', async () => {
    const before = make();
    expect(before.settings.kept()).toEqual({});
    before.settings.temperature = 0.3;
    before.settings.maxTokens = 2048;
    before.settings.method = 'ngram';
    before.advanced.addStop('x');
    await before.bias.add(' the');
    before.bias.change(0, 2.5);
    const kept = before.settings.kept()!;
    expect(kept).toEqual({ method: 'ngram', temperature: 0.3, maxTokens: 2048, stop: ['x'], biases: [{ text: ' the', bias: 2.5 }] });
    const { settings, bias, host } = make();
    host.target = 'b';
    settings.restore(kept);
    expect(settings.kept()).toEqual(kept);
    expect(bias.byToken).toEqual({});
    await bias.prepare();
    expect(settings.request()).toMatchObject({
      method: 'plain',
      max_tokens: 2048,
      stop: ['x'],
      sampling: { temperature: 0.3, logit_bias: { 504: 2.5 } },
    });
  });

  it('keep options as far as they fit other models', () => {
    const { advanced } = make();
    const load = (path: string, context: number) =>
      advanced.fit({ ...app.info.loaded, target: { ...app.models[0]!, path }, context } as LoadedModels);
    const options = { tree: '3x2', exit_layer: 20, skipped_layers: [9], draft_window: 512 };
    advanced.options = options;
    load('/a.gguf', 2048);
    load('/a.gguf', 512);
    expect(advanced.options).toEqual(options);
    load('/a.gguf', 511);
    expect(advanced.options).toEqual({ tree: '3x2', exit_layer: 20, skipped_layers: [9] });
    load('/b.gguf', 2048);
    expect(advanced.options).toEqual({ tree: '3x2' });
  });

  it('ignore empty stop strings and duplicates', () => {
    const { advanced } = make();
    for (const text of ['a', '', 'a', ' a']) advanced.addStop(text);
    expect(advanced.stop).toEqual(['a', ' a']);
    advanced.removeStop(0);
    expect(advanced.stop).toEqual([' a']);
  });
});

describe('a bias', () => {
  it('is refused for a text that is not one token, with its tokens', async () => {
    const { bias } = make();
    expect(await bias.add('hello big world')).toBe(false);
    expect(bias.problem).toBe('“hello·big·world” is 3 tokens: “hello”, “·big”, “·world”. Enter one of them.');
    expect(await bias.add('a b c d e f')).toBe(false);
    expect(bias.problem).toContain('“·e”, “…”');
    setLanguage('de');
    await bias.add('a b');
    expect(bias.problem).toBe('„a·b“ besteht aus 2 Tokens: „a“, „·b“. Gib eines davon ein.');
    expect([await bias.add('a'), bias.problem, bias.entries.length]).toEqual([true, null, 1]);
  });

  it('is refused for a token that has one', async () => {
    const { bias } = make();
    await bias.add('the');
    expect(await bias.add('The')).toBe(false);
    expect([bias.problem, bias.entries.length]).toEqual(['“The” is already in the list', 1]);
  });

  it('is refused with the error of the engine', async () => {
    const { bias, host } = make();
    host.failing = true;
    expect([await bias.add('the'), bias.problem]).toEqual([false, 'An answer needs a model. Open a model first.']);
  });

  it('belongs to the token of the loaded model', async () => {
    const { bias, host } = make();
    await bias.add('the');
    bias.change(0, 7);
    expect(bias.byToken).toEqual({ 103: 7 });
    host.asked = [];
    await bias.prepare();
    expect(host.asked).toEqual([]);
    host.target = 'b';
    await bias.prepare();
    expect([bias.byToken, host.asked]).toEqual([{ 503: 7 }, ['the']]);
  });

  it('refuses an answer where the text is several tokens, and works again with the former model', async () => {
    const { bias, host } = make();
    await bias.add('the');
    host.target = 'letters';
    await expect(bias.prepare()).rejects.toMatchObject({ code: 'invalid_request', params: { text: expect.stringContaining('3 tokens') } });
    expect(bias.byToken).toEqual({});
    host.target = 'a';
    await bias.prepare();
    expect(bias.byToken).toEqual({ 103: -5 });
  });

  it('is removed', async () => {
    const { bias } = make();
    await bias.add('one');
    await bias.add('three');
    bias.remove(0);
    expect(bias.entries.map(({ text }) => text)).toEqual(['three']);
  });
});

describe('an answer', () => {
  it('is asked for with the tokens of the model that is reloaded for it', async () => {
    const host = new (class extends KeepingHost {
      tokens = 12;

      override async invoke(command: string, args: Record<string, unknown>): Promise<unknown> {
        if (command === 'text_tokens') return [{ id: this.tokens, text: args['text'] }];
        if (command === 'load_models') {
          this.tokens = 34;
          const loaded: LoadedModels = { ...app.info.loaded, target: { ...app.models[0]!, path: '/other.gguf' } } as LoadedModels;
          return loaded;
        }
        return super.invoke(command, args);
      }
    })();
    const { advanced, conversation, models } = createWindow(host);
    await models.start();
    await advanced.bias.add('the');
    expect(advanced.bias.byToken).toEqual({ 12: -5 });
    await models.unload();
    await conversation.ask('one');
    expect(host.named('answer')).toMatchObject([{ request: { settings: { sampling: { logit_bias: { 34: -5 } } } } }]);
  });
});
