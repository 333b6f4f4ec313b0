import { describe, expect, it } from 'vitest';
import app from '../../../../tests/ui/fixtures/fixture-app-default.json';
import { SilentHost } from '../host/testing';
import type { ErrorInfo, LoadedModels, LoadRequest, ModelEntry } from '../ipc/schema.gen';
import { LibraryState } from './library.svelte';
import { Preferences } from './preferences.svelte';
import { Settings } from './settings.svelte';
import { modelsOn } from './testing';

const listed = app.models as ModelEntry[];

/** An engine whose loading a test controls. */
class ModelHost extends SilentHost {
  loaded: LoadedModels | null = null;
  requests: LoadRequest[] = [];
  commands: string[] = [];
  refusal: ErrorInfo | null = null;
  /** Requests that are refused, if `refusal` is set. */
  refuse: (request: LoadRequest) => boolean = () => this.refusal !== null;
  /** Loading waits for it. */
  held: Promise<void> | null = null;
  /** Searching the folders waits for it. */
  scan: Promise<void> | null = null;
  kept: Record<string, unknown> = {};
  unfinishedLoad: LoadRequest | null = null;
  pick: string | null = null;
  dialogs = 0;
  listed: ModelEntry[] = listed;

  override async invoke(command: string, args: Record<string, unknown>): Promise<unknown> {
    if (command === 'app_info') return { ...app.info, loaded: this.loaded, unfinished_load: this.unfinishedLoad };
    if (command === 'library') await this.scan;
    if (command === 'library') return { models: this.listed, folders: [], machine: { total: 16e9, usable: 11e9 } };
    if (command === 'preferences') return this.kept;
    if (command === 'set_preference') this.kept[args['key'] as string] = args['value'];
    if (command === 'unload_models') this.loaded = null;
    this.commands.push(command);
    if (command === 'choose_file') {
      this.dialogs += 1;
      return this.pick;
    }
    if (command !== 'load_models') return null;
    const request = args['request'] as LoadRequest;
    this.requests.push(request);
    await this.held;
    if (this.refuse(request)) throw this.refusal;
    const entry = (path: string) => listed.find((model) => model.path === path) ?? { ...listed[0]!, path, name: path };
    this.loaded = {
      target: entry(request.target),
      draft: request.draft === null ? null : entry(request.draft),
      context: 8192,
      device: 'cpu',
      ...(request.head && { head: { name: 'eagle', path: request.head, kind: 'EAGLE-3' } }),
      methods: request.head
        ? ['plain', 'ngram-head', 'head', 'ngram']
        : request.draft === null
          ? ['plain', 'ngram']
          : ['plain', 'draft-model', 'ngram'],
    };
    return this.loaded;
  }
}

function make() {
  const host = new ModelHost();
  const settings = new Settings();
  return { host, settings, models: modelsOn(host, settings) };
}

describe('Models', () => {
  it('loads the default model when nothing is in memory', async () => {
    const { host, models, settings } = make();
    await models.start();
    expect(host.requests).toEqual([{ target: listed[0]?.path, draft: null, context: null }]);
    expect(models.loaded?.target.name).toBe(listed[0]?.name);
    expect(settings.method).toBe('ngram');
    expect(models.ready).toBe(true);
  });

  it('starts without a model when there is no default', async () => {
    const { host, models } = make();
    host.listed = listed.map((model) => ({ ...model, is_default: false }));
    await models.start();
    expect(host.requests).toEqual([]);
    expect(models.loaded).toBeNull();
    expect(models.error).toBeNull();
    expect(models.ready).toBe(true);
  });

  it('shows why loading failed and keeps the loaded models', async () => {
    const { host, models } = make();
    await models.start();
    host.refusal = { code: 'invalid_model_file', message: 'truncated' };
    host.pick = '/broken.gguf';
    await models.openTarget();
    expect(models.error?.code).toBe('invalid_model_file');
    expect(models.loaded?.target.name).toBe(listed[0]?.name);
    expect(models.loading).toBeNull();
  });

  it('loads a draft and chooses its method', async () => {
    const { host, models, settings } = make();
    await models.start();
    host.pick = listed[2]!.path;
    await models.openDraft();
    expect(host.requests.at(-1)).toEqual({ target: listed[0]?.path, draft: listed[2]?.path, context: null });
    expect(settings.method).toBe('draft-model');
    await models.useDraft(null, '');
    expect(models.loaded?.draft).toBeNull();
    expect(settings.method).toBe('ngram');
  });

  it('loads a head in place of a draft and chooses its method', async () => {
    const { host, models, settings } = make();
    await models.start();
    await models.useDraft(listed[2]!.path, '');
    await models.useHead('/heads/eagle', 'eagle');
    expect(host.requests.at(-1)).toEqual({ target: listed[0]?.path, draft: null, head: '/heads/eagle', context: null });
    expect([settings.method, models.loaded?.head?.name, models.loaded?.draft]).toEqual(['ngram-head', 'eagle', null]);
    // The user's own choice holds while the same head is loaded again.
    settings.method = 'head';
    await models.unload();
    await models.restore();
    expect([settings.method, host.requests.at(-1)?.head]).toEqual(['head', '/heads/eagle']);
    await models.useDraft(null, '');
    expect([models.loaded?.head, settings.method]).toEqual([undefined, 'ngram']);
  });

  it('loads nothing when the dialog is cancelled, and opens only one dialog', async () => {
    const { host, models } = make();
    await models.start();
    const before = host.requests.length;
    await Promise.all([models.openTarget(), models.openTarget()]);
    expect(host.dialogs).toBe(1);
    expect(host.requests).toHaveLength(before);
  });
});

/** Models with preferences and a library. */
async function inWindow(kept: Record<string, unknown> = {}, serverAnswers = false) {
  const host = new ModelHost();
  host.kept = kept;
  const [library, preferences, settings] = [new LibraryState(host), new Preferences(host), new Settings()];
  await preferences.load();
  const failures: string[] = [];
  const models = modelsOn(host, settings, {
    library,
    preferences,
    reportFailure: (text) => failures.push(text),
    needless: () => serverAnswers,
  });
  return { host, library, preferences, settings, models, failures };
}

const last = { target: listed[1]!.path, draft: listed[2]!.path, context: 4096 };

describe('the last models', () => {
  it('are not loaded by themselves if loading them crashed the last run', async () => {
    const { host, models } = await inWindow({ last_models: last });
    host.unfinishedLoad = last;
    await models.start();
    expect([host.requests, models.unloadReason, models.reloadable?.title, models.ready]).toEqual([[], 'crashed', listed[1]!.title, true]);
    // A question does not load them.
    await expect(models.restore()).rejects.toMatchObject({ code: 'no_model', message: expect.stringContaining(listed[1]!.title) });
    expect(host.requests).toEqual([]);
    await models.reload();
    expect([host.requests, models.unloadReason, models.loaded?.draft?.path]).toEqual([[last], null, last.draft]);
  });

  it('are not loaded by themselves after a crash, even if a server answers first', async () => {
    const { host, models } = await inWindow({ last_models: last }, true);
    host.unfinishedLoad = last;
    await models.start();
    expect([host.requests, models.unloadReason]).toEqual([[], 'crashed']);
    await expect(models.restore()).rejects.toMatchObject({ code: 'no_model' });
    expect(host.requests).toEqual([]);
  });

  it('are loaded if loading another model crashed the last run', async () => {
    const { host, models } = await inWindow({ last_models: last });
    host.unfinishedLoad = { target: listed[0]!.path, draft: null, context: null };
    await models.start();
    expect(host.requests).toEqual([last]);
  });

  it('are not replaced by the default if loading it crashed the last run', async () => {
    const { host, models } = await inWindow();
    host.unfinishedLoad = { target: listed[0]!.path, draft: null, context: null };
    await models.start();
    expect([host.requests, models.unloadReason, models.reloadable?.path]).toEqual([[], 'crashed', listed[0]!.path]);
  });

  it('are saved with a head, and loaded at the next start', async () => {
    const { host, models } = await inWindow();
    await models.start();
    await models.useHead('/heads/eagle', 'eagle');
    const next = await inWindow(host.kept);
    await next.models.start();
    expect(next.host.requests).toEqual([host.requests.at(-1)]);
    expect([next.models.loaded?.head?.path, next.settings.method]).toEqual(['/heads/eagle', 'ngram-head']);
  });

  it('are saved, and loaded at the next start with draft and context', async () => {
    const first = await inWindow();
    await first.models.start();
    await first.models.load(last, 'x');
    await expect.poll(() => first.host.kept).toMatchObject({ last_models: last, recent_models: [listed[1]!.path, listed[0]!.path] });
    expect(first.models.recent.map(({ path }) => path)).toEqual([listed[1]!.path, listed[0]!.path]);
    const { host, models, failures } = await inWindow(first.host.kept);
    await models.start();
    expect([host.requests, failures]).toEqual([[last], []]);
  });

  it('are replaced by the default with a notice when missing or failing', async () => {
    const goneDraft = { ...last, draft: '/gone.gguf' };
    const gone = await inWindow({ last_models: goneDraft });
    gone.host.refusal = { code: 'model_not_found', message: 'It is not there.' };
    gone.host.refuse = ({ draft }) => draft === goneDraft.draft;
    await gone.models.start();
    expect(gone.host.requests).toEqual([goneDraft, { target: listed[0]!.path, draft: null, context: null }]);
    expect(gone.host.kept['last_models']).toEqual(goneDraft);
    expect(gone.failures[0]).toBe(`${listed[1]!.title} or its draft was moved or deleted. ${listed[0]!.title} is loaded instead.`);
    const failing = await inWindow({ last_models: last });
    failing.host.refusal = { code: 'out_of_memory', message: 'Too little memory.' };
    failing.host.refuse = ({ target }) => target === last.target;
    await failing.models.start();
    expect(failing.models.loaded?.target.path).toBe(listed[0]!.path);
    expect([failing.models.error, failing.failures[0]]).toEqual([
      null,
      `${listed[1]!.title} could not be reloaded. Too little memory. ${listed[0]!.title} is loaded instead.`,
    ]);
    // A default is not remembered, but it is reloaded after it was unloaded.
    expect(failing.host.kept).toEqual({ last_models: last });
    failing.models.onUnloaded();
    expect(failing.models.reloadable?.path).toBe(listed[0]!.path);
  });

  it('are loaded from outside of the folders too, under the saved name', async () => {
    const outside = { target: '/elsewhere/blob', draft: null, context: null, name: 'A model', quantisation: 'Q4_K' };
    const { host, models, failures } = await inWindow({ last_models: outside });
    expect(models.reloadable).toEqual({ path: '/elsewhere/blob', title: 'A model', quantisation: 'Q4_K' });
    await models.start();
    expect([models.loaded?.target.path, failures]).toEqual(['/elsewhere/blob', []]);
    models.onUnloaded();
    host.loaded = null;
    expect(models.answerable).toBe(true);
    host.refusal = { code: 'model_not_found', message: 'It is not there.' };
    await expect(models.restore()).rejects.toEqual(host.refusal);
    expect([models.reloadable, models.answerable]).toEqual([null, false]);
  });

  it('are loaded before the folders have been searched', async () => {
    const { host, models } = await inWindow({ last_models: last });
    let found = () => {};
    host.scan = new Promise<void>((resolve) => (found = resolve));
    const starting = models.start();
    await expect.poll(() => models.loaded?.target.path).toBe(last.target);
    expect(models.ready).toBe(false);
    found();
    await starting;
    expect(models.ready).toBe(true);
  });

  it('may be a pair loaded to be measured', async () => {
    const { host, models } = await inWindow();
    await models.start();
    await host.invoke('load_models', { request: last });
    await models.adopt(last);
    expect([models.loaded?.draft?.path, host.kept['last_models']]).toEqual([
      last.draft,
      { ...last, name: listed[1]!.title, quantisation: listed[1]!.quantisation },
    ]);
  });

  it('are ignored if they cannot be parsed', async () => {
    const { models, failures } = await inWindow({ last_models: { target: 7 }, recent_models: [1, 'x'] });
    await models.start();
    expect([models.loaded?.target.path, failures]).toEqual([listed[0]!.path, []]);
  });
});

describe('loading', () => {
  it('shows progress, and can be cancelled without an error or the default', async () => {
    const { host, models } = await inWindow({ last_models: last });
    let go = () => {};
    host.held = new Promise<void>((resolve) => (go = resolve));
    host.refusal = { code: 'stopped', message: 'Called off.' };
    const starting = models.start();
    // Nothing is listed yet, and no title was saved.
    await expect.poll(() => models.loading).toBe(listed[1]!.name);
    models.onProgress({ name: 'x', done_bytes: 1, total_bytes: 2 });
    expect(models.progress?.done_bytes).toBe(1);
    await models.cancel();
    expect([models.cancelling, host.commands.includes('cancel_loading')]).toEqual([true, true]);
    models.onProgress({ name: 'x', done_bytes: 2, total_bytes: 2 });
    expect(host.commands.filter((command) => command === 'cancel_loading')).toHaveLength(2);
    go();
    await starting;
    expect([models.loading, models.cancelling, models.progress, models.error, models.loaded]).toEqual([null, false, null, null, null]);
    expect(host.requests).toHaveLength(1);
  });

  it('that failed for another reason is a failure, even if cancelled', async () => {
    const { host, models } = await inWindow();
    await models.start();
    let go = () => {};
    host.held = new Promise<void>((resolve) => (go = resolve));
    host.refusal = { code: 'out_of_memory', message: 'Too little memory.' };
    const loading = models.load(last, 'x');
    // The old ones were unloaded to make room.
    models.onUnloaded();
    expect(models.unloadReason).toBeNull();
    await models.cancel();
    go();
    expect([await loading, models.error]).toEqual(['failed', host.refusal]);
  });
});

describe('a chosen method', () => {
  /** Opens the window again with what it has stored. */
  async function again({ host, preferences, settings }: Awaited<ReturnType<typeof inWindow>>) {
    preferences.keepSettings(settings.kept() ?? {});
    await preferences.set('view', 'rich');
    const next = await inWindow(host.kept);
    await next.models.start();
    return next;
  }

  it('is used again at the next start, with the models it was chosen for and others that have it', async () => {
    const first = await inWindow({ last_models: last });
    await first.models.start();
    first.settings.method = 'ngram';
    const next = await again(first);
    expect([next.models.loaded?.draft?.path, next.settings.method]).toEqual([last.draft, 'ngram']);
    await next.models.loadTarget(listed[0]!);
    expect(next.settings.method).toBe('ngram');
  });

  it('gives way to the recommended one where it does not work, and returns where it does', async () => {
    const first = await inWindow({ last_models: last });
    await first.models.start();
    const headed = { target: last.target, draft: null, head: '/heads/eagle', context: null };
    await first.models.load(headed, '');
    expect(first.settings.method).toBe('ngram-head');
    first.settings.method = 'head';
    await first.models.loadTarget(listed[0]!);
    expect(first.settings.method).toBe('ngram');
    const { models, settings } = await again(first);
    expect(settings.method).toBe('ngram');
    await models.load(headed, '');
    expect(settings.method).toBe('head');
  });

  it('is forgotten when another draft is opened, also at the next start', async () => {
    const first = await inWindow();
    await first.models.start();
    first.settings.method = 'plain';
    await first.models.useDraft(listed[2]!.path, '');
    expect(first.settings.method).toBe('draft-model');
    expect((await again(first)).settings.method).toBe('draft-model');
  });

  it('holds for the last models if a server answered at the start', async () => {
    const first = await inWindow({ last_models: last });
    await first.models.start();
    first.settings.method = 'plain';
    const { host, models, settings } = await again(first);
    expect(settings.method).toBe('plain');
    const later = await inWindow(host.kept, true);
    await later.models.start();
    expect(later.models.loaded).toBeNull();
    await later.models.reload();
    expect([later.settings.method, models.loaded?.draft?.path]).toEqual(['plain', last.draft]);
  });

  it('is the recommended one for the first model, also if that is loaded after the start', async () => {
    const { host, models, settings } = make();
    host.listed = [];
    await models.start();
    expect(models.loaded).toBeNull();
    await models.loadTarget(listed[0]!);
    expect(settings.method).toBe('ngram');
  });
});

describe('an unloaded model', () => {
  it('is reloaded when needed, with its chosen method', async () => {
    const { host, models, settings } = await inWindow({ last_models: last });
    await models.start();
    settings.method = 'plain';
    models.onUnloaded();
    expect([models.loaded, models.unloadReason, models.reloadable?.path, models.answerable]).toEqual([null, 'idle', listed[1]!.path, true]);
    await models.restore();
    expect([host.requests.at(-1), settings.method, models.unloadReason]).toEqual([last, 'plain', null]);
    await models.unload();
    expect([models.loaded, models.unloadReason]).toEqual([null, 'asked']);
    models.onUnloaded();
    expect(models.unloadReason).toBe('asked');
  });

  it('reports why it is not reloaded', async () => {
    const { host, models } = await inWindow({ last_models: last });
    await models.start();
    await models.unload();
    host.refusal = { code: 'out_of_memory', message: 'Too little memory.' };
    await expect(models.restore()).rejects.toEqual(host.refusal);
    expect([models.error, models.answerable]).toEqual([null, true]);
    await models.reload();
    expect(models.error).toEqual(host.refusal);
    host.refusal = null;
    await models.reload();
    expect(models.loaded?.target.path).toBe(last.target);
  });
});
