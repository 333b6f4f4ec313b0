import { describe, expect, it } from 'vitest';
import { library as recorded, models } from '../../../../tests/ui/fixtures/library';
import type { Host } from '../host';
import { ReplayLibrary, type RecordedLibrary } from '../../../../tests/ui/replay/library';
import { settled } from '../host/testing';
import { dispatch } from '../ipc/commands';
import { CatalogueState, nameOf, nameOfFile } from './catalogue.svelte';
import { Downloads } from './downloads.svelte';
import { LibraryState } from './library.svelte';

function make(own: Partial<RecordedLibrary> = {}) {
  const engine = new ReplayLibrary(structuredClone({ ...recorded, ...own }), structuredClone(models), '/models');
  const held: (() => void)[] = [];
  let holding = false;
  let refused: string | null = null;
  const asked: string[] = [];
  const invoked: [string, Record<string, unknown>][] = [];
  const invoke = async (command: string, args: Record<string, unknown>) => {
    asked.push(command);
    invoked.push([command, args]);
    if (command === refused) throw { code: 'internal', message: 'Not now.' };
    if (command === 'hub_repository' && holding) await new Promise<void>((resolve) => held.push(resolve));
    return structuredClone(await dispatch(engine.handlers, command, args, () => {}));
  };
  const host = { invoke } as unknown as Host;
  const library = new LibraryState(host);
  const downloads: Downloads = new Downloads(
    host,
    { arrived: () => {}, begun: () => void catalogue.askHubAgain() },
    { after: () => () => {} },
  );
  const catalogue = new CatalogueState(host, library, downloads);
  void engine.handlers.watch_library({}, (event) => event.kind === 'download' && downloads.onEvent(event));
  return {
    engine,
    library,
    downloads,
    catalogue,
    asked,
    invoked,
    refuse: (command: string | null) => (refused = command),
    held,
    hold: () => (holding = true),
  };
}

describe('a typed repository', () => {
  it('is passed to the engine unchanged, which knows the hosts of the hub', async () => {
    const { catalogue, invoked } = make();
    for (const typed of [
      '  google/gemma-3-12b-gguf ',
      'https://huggingface.co/google/gemma-3-12b-gguf/tree/main',
      'https://elsewhere.example/google/gemma-3-12b-gguf',
    ]) {
      catalogue.typed = typed;
      await catalogue.look();
      expect(invoked.at(-1)).toEqual(['hub_repository', { repository: typed }]);
    }
    expect([catalogue.misread, catalogue.repository, catalogue.refusal]).toEqual([true, null, null]);
  });

  it('is not blamed if the hub’s own address is invalid', async () => {
    const { catalogue, refuse } = make();
    refuse('hub_state');
    await catalogue.openHub();
    refuse(null);
    catalogue.typed = 'what is this';
    await catalogue.look();
    expect([catalogue.misread, catalogue.refusal?.code]).toEqual([false, 'invalid_request']);
  });

  it('names folders after their repository', () => {
    const repository = 'mlx-community/Qwen3-4B-4bit';
    expect(nameOf({ repository, file: 'model-00001-of-00002.safetensors' })).toBe('Qwen3-4B-4bit');
    expect(nameOf({ repository: 'Qwen/Qwen3-8B-GGUF', file: 'Qwen3-8B-Q8_0.gguf' })).toBe('Qwen3-8B-Q8_0');
  });

  it('has files named like their models', () => {
    expect(['Qwen3-8B-Q4_K_M.gguf', 'F16/X-F16-00001-of-00002.gguf', 'a.GGUF'].map(nameOfFile)).toEqual(['Qwen3-8B-Q4_K_M', 'X-F16', 'a']);
  });
});

describe('the catalogue', () => {
  it('shows the class of this machine first, then smaller ones, and each draft with its targets', async () => {
    const { catalogue } = make();
    await catalogue.open();
    expect(catalogue.groups.map(({ memoryClass }) => memoryClass)).toEqual(['gb16', 'gb8', 'gb24_to36']);
    expect(catalogue.groups.flatMap(({ drafts }) => drafts)).toEqual([]);
  });

  it('suggests a first pair that suits this machine and downloads quickly', async () => {
    const starter = async (machine: 'gb8' | 'gb16' | 'gb48') => {
      const { catalogue } = make({ catalogue: { ...recorded.catalogue, machine } });
      await catalogue.open();
      return catalogue.starter?.target.id;
    };
    expect([await starter('gb8'), await starter('gb16'), await starter('gb48')]).toEqual([
      'qwen3-4b-q4_k_m',
      'qwen3-8b-q4_k_m',
      'qwen3-8b-q4_k_m',
    ]);
  });

  it('knows whether a model is on the hub, on its way, or here', async () => {
    const { catalogue, library, engine, downloads } = make();
    await Promise.all([catalogue.open(), library.ask()]);
    const model = catalogue.find('qwen3-4b-q4_k_m')!;
    expect(catalogue.whereabouts(model).kind).toBe('there');
    await catalogue.fetch([model]);
    expect(catalogue.whereabouts(model)).toMatchObject({ kind: 'coming', download: { total_bytes: 2_497_000_000 } });
    engine.move('d1', { phase: 'done' });
    await library.ask();
    expect(catalogue.whereabouts(model)).toMatchObject({ kind: 'here', path: '/models/Qwen3-4B-Q4_K_M.gguf' });
    await catalogue.fetch([model]);
    expect(downloads.all).toHaveLength(1);
  });

  it('shows the repository of the latest lookup', async () => {
    const { catalogue, held, hold } = make();
    catalogue.typed = 'no';
    await catalogue.look();
    expect([catalogue.misread, catalogue.looking]).toEqual([true, false]);
    catalogue.typed = 'nobody/asleep';
    await catalogue.look();
    expect([catalogue.misread, catalogue.refusal?.code]).toEqual([false, 'io']);
    hold();
    catalogue.typed = 'google/gemma-3-12b-gguf';
    const first = catalogue.look();
    catalogue.typed = 'openai/safetensors-only';
    const second = catalogue.look();
    held.reverse().forEach((go) => go());
    await Promise.all([first, second]);
    expect([catalogue.repository?.repository, catalogue.refusal, catalogue.looking]).toEqual(['openai/safetensors-only', null, false]);
  });

  it('loads without the keychain', async () => {
    const { catalogue, refuse } = make();
    refuse('hub_state');
    await Promise.all([catalogue.open(), catalogue.openHub()]);
    expect([catalogue.offered?.models.length, catalogue.error, catalogue.hub, catalogue.hubError?.code]).toEqual([
      recorded.catalogue.models.length,
      null,
      null,
      'internal',
    ]);
  });

  it('stops at the first failed download, and resumes halted ones', async () => {
    const { catalogue, downloads, engine, asked, refuse } = make();
    await catalogue.open();
    const pair = [catalogue.find('qwen3-4b-q4_k_m')!, catalogue.find('qwen3-0.6b-q8_0')!];
    refuse('start_download');
    await catalogue.fetch(pair);
    expect([asked.filter((command) => command === 'start_download').length, downloads.error?.code]).toEqual([1, 'internal']);
    refuse(null);
    await catalogue.fetch(pair);
    engine.move('d1', { phase: 'failed', error: { code: 'hub_unreachable', message: 'No network.' } });
    expect(catalogue.whereabouts(pair[0]!)).toMatchObject({ kind: 'halted', download: { error: { message: 'No network.' } } });
    await catalogue.fetch(pair);
    expect(catalogue.whereabouts(pair[0]!).kind).toBe('coming');
  });

  it('checks models of the catalogue against their checksum, and files of a repository against none', async () => {
    const { catalogue, invoked } = make({
      catalogue: { ...recorded.catalogue, models: recorded.catalogue.models.map((model) => ({ ...model, sha256: 'ab'.repeat(32) })) },
    });
    await catalogue.open();
    const model = catalogue.find('qwen3-4b-q4_k_m')!;
    await catalogue.fetch([model]);
    await catalogue.fetch([{ repository: 'a/b', file: 'c.gguf', size_bytes: 1 }]);
    const requests = invoked.filter(([command]) => command === 'start_download').map(([, args]) => args['request']);
    expect(requests).toEqual([
      { repository: model.repository, file: model.file, expected_sha256: 'ab'.repeat(32) },
      { repository: 'a/b', file: 'c.gguf' },
    ]);
  });

  it('offers a file of the same name in another repository without the checksum', async () => {
    const { catalogue, downloads, engine } = make({
      catalogue: { ...recorded.catalogue, models: recorded.catalogue.models.map((model) => ({ ...model, sha256: 'ab'.repeat(32) })) },
    });
    await catalogue.open();
    const { repository, file, sha256 } = catalogue.find('qwen3-4b-q4_k_m')!;
    await catalogue.fetch([{ repository, file, sha256 }]);
    engine.move('d1', { phase: 'failed', error: { code: 'catalogue_mismatch', message: 'Another file.' } });
    await catalogue.fetch([{ repository, file }]);
    expect(downloads.all).toMatchObject([{ id: 'd1', phase: 'running', request: { repository, file }, error: null }]);
    expect(downloads.all[0]?.request).not.toHaveProperty('expected_sha256');
    // And vice versa.
    engine.move('d1', { phase: 'paused' });
    await catalogue.fetch([{ repository, file, sha256 }]);
    expect(downloads.all).toMatchObject([{ id: 'd1', phase: 'running', request: { expected_sha256: sha256 } }]);
  });

  it('distinguishes models of the same name by size', async () => {
    const { catalogue, library } = make();
    await library.ask();
    const { name, size_bytes, path } = library.models.find(({ problem }) => problem === null)!;
    const file = { repository: 'a/b', file: `${name}.gguf` };
    expect(catalogue.whereabouts({ ...file, size_bytes })).toEqual({ kind: 'here', path });
    expect(catalogue.whereabouts({ ...file, size_bytes: null }).kind).toBe('here');
    expect(catalogue.whereabouts({ ...file, size_bytes: 2 * size_bytes }).kind).toBe('there');
  });

  it('reloads the state of a locked keychain when a download starts or resumes, and after a lookup', async () => {
    const keychainLocked = { ...recorded.hub, problems: [{ kind: 'keychain' as const, reason: 'locked' }] };
    const acts: ((made: ReturnType<typeof make>) => Promise<unknown>)[] = [
      ({ catalogue }) => catalogue.fetch([{ repository: 'a/b', file: 'c.gguf' }]),
      ({ downloads }) => downloads.resume('d1'),
      ({ catalogue }) => ((catalogue.typed = 'nobody/asleep'), catalogue.look()),
    ];
    for (const act of acts) {
      const made = make({ hub: keychainLocked });
      const { catalogue, engine, asked } = made;
      await catalogue.fetch([{ repository: 'a/b', file: 'd.gguf' }]);
      expect(asked).not.toContain('hub_state');
      await catalogue.openHub();
      catalogue.typed = 'what is this';
      await catalogue.look();
      await settled();
      expect([catalogue.hub?.problems.length, asked.filter((command) => command === 'hub_state').length]).toEqual([1, 1]);
      Object.assign(await engine.handlers.set_hub_token({ token: 'opened' }, () => {}), { problems: [] });
      await act(made);
      await settled();
      expect([catalogue.hub?.problems, catalogue.hub?.token]).toEqual([[], 'keychain']);
      await act(made);
      await settled();
      expect(asked.filter((command) => command === 'hub_state')).toHaveLength(2);
    }
  });

  it('saves and deletes a token without holding it', async () => {
    const { catalogue } = make();
    await catalogue.open();
    await catalogue.setToken('hf_secret');
    expect(catalogue.hub?.token).toBe('keychain');
    expect(JSON.stringify(catalogue.hub)).not.toContain('secret');
    await catalogue.setToken(null);
    expect(catalogue.hub?.token).toBe('absent');
  });
});
