import { describe, expect, it } from 'vitest';
import app from '../../../../tests/ui/fixtures/fixture-app-default.json';
import { SilentHost } from '../host/testing';
import type { ErrorInfo, LoadedModels, LoadRequest, ModelEntry } from '../ipc/schema.gen';
import { Models } from './models.svelte';
import { Settings } from './settings.svelte';

const listed = app.models as ModelEntry[];

/** An engine whose loading a test answers for. */
class ModelHost extends SilentHost {
  loaded: LoadedModels | null = null;
  requests: LoadRequest[] = [];
  refusal: ErrorInfo | null = null;
  pick: string | null = null;
  dialogs = 0;
  listed: ModelEntry[] = listed;

  override async invoke(command: string, args: Record<string, unknown>): Promise<unknown> {
    if (command === 'app_info') return { ...app.info, loaded: this.loaded };
    if (command === 'list_models') return this.listed;
    const request = args['request'] as LoadRequest;
    this.requests.push(request);
    if (this.refusal) throw this.refusal;
    const entry = (path: string) => listed.find((model) => model.path === path) ?? { ...listed[0]!, path, name: path };
    this.loaded = {
      target: entry(request.target),
      draft: request.draft === null ? null : entry(request.draft),
      device: 'cpu',
      methods: request.draft === null ? ['plain', 'ngram'] : ['plain', 'draft-model', 'ngram'],
    };
    return this.loaded;
  }

  override async pickModelFile(): Promise<string | null> {
    this.dialogs += 1;
    return this.pick;
  }
}

function make() {
  const host = new ModelHost();
  const settings = new Settings();
  return { host, settings, models: new Models(host, settings) };
}

describe('Models', () => {
  it('loads the model Hunch starts with when nothing is in memory', async () => {
    const { host, models, settings } = make();
    await models.start();
    expect(host.requests).toEqual([{ target: listed[0]?.path, draft: null }]);
    expect(models.loaded?.target.name).toBe(listed[0]?.name);
    expect(settings.method).toBe('ngram');
    expect(models.ready).toBe(true);
  });

  it('starts without a model when there is none to start with', async () => {
    const { host, models } = make();
    host.listed = listed.map((model) => ({ ...model, is_default: false }));
    await models.start();
    expect(host.requests).toEqual([]);
    expect(models.loaded).toBeNull();
    expect(models.error).toBeNull();
    expect(models.ready).toBe(true);
  });

  it('shows why loading failed and keeps what is in memory', async () => {
    const { host, models } = make();
    await models.start();
    host.refusal = { code: 'invalid_model_file', message: 'truncated' };
    host.pick = '/broken.gguf';
    await models.openTarget();
    expect(models.error?.code).toBe('invalid_model_file');
    expect(models.loaded?.target.name).toBe(listed[0]?.name);
    expect(models.loading).toBeNull();
  });

  it('opens a draft beside the target and chooses its method', async () => {
    const { host, models, settings } = make();
    await models.start();
    host.pick = listed[2]!.path;
    await models.openDraft();
    expect(host.requests.at(-1)).toEqual({ target: listed[0]?.path, draft: listed[2]?.path });
    expect(settings.method).toBe('draft-model');
    await models.useDraft(null, '');
    expect(models.loaded?.draft).toBeNull();
    expect(settings.method).toBe('ngram');
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
