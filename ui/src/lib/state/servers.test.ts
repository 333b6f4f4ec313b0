import { describe, expect, it } from 'vitest';
import { SilentHost } from '../host/testing';
import type { ErrorInfo, ModelEntry, ServerEntry } from '../ipc/schema.gen';
import { Answerer } from './answerer.svelte';
import type { Models } from './models.svelte';
import { Preferences } from './preferences.svelte';
import { Servers, shortAddress } from './servers.svelte';

const address = 'http://127.0.0.1:8080/v1';
const choice = { address, model: 'first' };

/** A host with a list of servers. */
class ServerHost extends SilentHost {
  list: ServerEntry[] = [];
  refusal: ErrorInfo | null = null;
  /** Asking a server waits for it. */
  held: Promise<void> | null = null;
  asked = 0;
  kept: Record<string, unknown> = {};

  override async invoke(command: string, args: Record<string, unknown>): Promise<unknown> {
    if (command === 'preferences') return this.kept;
    if (command === 'set_preference') this.kept[args['key'] as string] = args['value'];
    if (command === 'servers') return { servers: this.list, keychain: false };
    if (command === 'remove_server') this.list = [];
    if (command !== 'add_server' && command !== 'check_server') return null;
    if (command === 'check_server') this.asked += 1;
    await this.held;
    if (this.refusal) throw this.refusal;
    if (command === 'check_server') return { ms: 3, models: [{ id: 'first', kind: 'vllm', context: null }] };
    const added: ServerEntry = { address, key: args['key'] === null ? 'absent' : 'memory', takes_key: true };
    this.list = [added];
    return added;
  }
}

function make(host = new ServerHost()) {
  const preferences = new Preferences(host);
  return { host, preferences, servers: new Servers(host, preferences) };
}

describe('Servers', () => {
  it('are asked for their models once added', async () => {
    const { servers } = make();
    expect(await servers.add('127.0.0.1:8080', 'sk-secret')).toBe(true);
    await expect.poll(() => servers.stateOf(address)?.kind).toBe('reachable');
    expect([servers.list[0]?.key, servers.keychain, servers.modelsOf(address).map(({ id }) => id)]).toEqual(['memory', false, ['first']]);
  });

  it('report a refusal without changing the list', async () => {
    const { host, servers } = make();
    host.refusal = { code: 'invalid_request', message: 'No.' };
    expect(await servers.add('ftp://host', null)).toBe(false);
    expect([servers.error?.message, servers.list, servers.adding]).toEqual(['No.', [], false]);
  });

  it('are asked once at a time, and keep the reason of a failure', async () => {
    const { host, servers } = make();
    let go = () => {};
    host.held = new Promise<void>((resolve) => (go = resolve));
    host.refusal = { code: 'server', message: 'no connection' };
    const first = servers.check(address);
    const second = servers.check(address);
    go();
    await Promise.all([first, second]);
    const state = servers.stateOf(address);
    expect([host.asked, state?.kind === 'failed' && state.error.message]).toEqual([1, 'no connection']);
  });

  it('keep their models while they are asked again, and when that fails', async () => {
    const { host, servers } = make();
    await servers.check(address);
    let go = () => {};
    host.held = new Promise<void>((resolve) => (go = resolve));
    host.refusal = { code: 'server', message: 'no connection' };
    const again = servers.check(address);
    expect([servers.stateOf(address)?.kind, servers.modelsOf(address).length]).toEqual(['asking', 1]);
    go();
    await again;
    expect([servers.stateOf(address)?.kind, servers.modelsOf(address).length]).toEqual(['failed', 1]);
    await servers.remove(address);
    expect([servers.stateOf(address), servers.modelsOf(address)]).toEqual([null, []]);
  });

  it('are asked outside of the Servers page only if chosen, and once', async () => {
    const { host, servers } = make();
    await servers.load();
    servers.learn();
    expect(host.asked).toBe(0);
    servers.choose(choice);
    servers.learn();
    await expect.poll(() => servers.stateOf(address)?.kind).toBe('reachable');
    servers.learn();
    expect(host.asked).toBe(1);
  });

  it('give way to the loaded models when the chosen one is removed', async () => {
    const { host, servers } = make();
    await servers.add(address, null);
    servers.choose(choice);
    await expect.poll(() => host.kept['server']).toEqual(choice);
    expect(make(host).servers.chosen).toBeNull();
    await servers.remove(address);
    expect([servers.chosen, servers.list]).toEqual([null, []]);
  });

  it('have the chosen model before they were asked', async () => {
    const { host, preferences, servers } = make();
    host.kept = { server: choice };
    await preferences.load();
    expect([servers.modelsOf(address), servers.modelsOf('http://other/v1')]).toEqual([[{ id: 'first' }], []]);
    host.kept = { server: { address: 7 } };
    const broken = make(host);
    await broken.preferences.load();
    expect(broken.servers.chosen).toBeNull();
  });

  it('are named without what is usual', () => {
    expect([shortAddress(address), shortAddress('https://host/api/v1')]).toEqual(['127.0.0.1:8080', 'https://host/api']);
  });
});

describe('Answerer', () => {
  function answererOf(models: Partial<Models>, chosen: typeof choice | null) {
    const calls: string[] = [];
    const on = {
      answerable: false,
      loading: null,
      loaded: null,
      ready: false,
      restore: async () => void calls.push('restore'),
      loadTarget: async (target: ModelEntry) => {
        calls.push(`load ${target.path}`);
        if (target.path !== '/broken.gguf') on.loaded = { target, draft: null } as Models['loaded'];
      },
      ...models,
    } as Models;
    const servers = { chosen, choose: (to: typeof choice | null) => void calls.push(`choose ${JSON.stringify(to)}`) };
    return { calls, answerer: new Answerer({ models: on, servers, prepare: async () => void calls.push('prepare') }) };
  }

  const model = { path: '/a.gguf', name: 'a' } as ModelEntry;
  const loaded = { target: model, draft: null } as Models['loaded'];

  it('is the server, which needs no models', async () => {
    const { answerer, calls } = answererOf({}, choice);
    await answerer.prepare();
    expect([answerer.answerable, answerer.comingUp, calls]).toEqual([true, false, []]);
    expect([answerer.by, answerer.writer]).toEqual([
      { kind: 'server', ...choice },
      { target: 'first', draft: null, server: address },
    ]);
  });

  it('is the loaded models without a server', async () => {
    const { answerer, calls } = answererOf({ loaded, answerable: true }, null);
    await answerer.prepare();
    expect(calls).toEqual(['restore', 'prepare']);
    expect([answerer.by, answerer.writer, answerer.comingUp]).toEqual([undefined, { target: 'a', draft: null }, false]);
    expect(answererOf({}, null).answerer.comingUp).toBe(true);
  });

  it('does not load a model again that is in memory', async () => {
    const { answerer, calls } = answererOf({ loaded }, choice);
    await answerer.useLoaded(model);
    await answerer.useLoaded({ ...model, path: '/b.gguf' });
    await answerer.useLoaded({ ...model, path: '/broken.gguf' });
    expect(calls).toEqual(['choose null', 'load /b.gguf', 'choose null', 'load /broken.gguf']);
  });
});
