import { describe, expect, it } from 'vitest';
import app from '../../../../tests/ui/fixtures/fixture-app.json';
import { createWindow } from '../../window';
import { SilentHost, settled } from '../host/testing';
import type { LoadRequest } from '../ipc/schema.gen';
import { planOf } from './drop.svelte';

/** A host that accepts everything. Loading can be held. */
class AgreeingHost extends SilentHost {
  calls: [string, unknown][] = [];
  /** `true` if no model can be loaded. */
  refuses = false;
  /** Paths that cannot be read. */
  broken: string[] = [];
  /** Model folders. */
  folders: string[] = [];
  /** Other JSON. */
  json: string[] = [];

  override async invoke(command: string, args: Record<string, unknown>): Promise<unknown> {
    this.calls.push([command, args['request'] ?? args['path'] ?? args['id']]);
    if (command === 'app_info') return app.info;
    if (command === 'library') return { models: app.models, folders: [], machine: { total: 16e9, usable: 11e9 } };
    if (command === 'list_conversations') return [];
    if (command === 'load_models' && this.refuses) throw { code: 'out_of_memory', message: 'No room.' };
    if (command === 'load_models') {
      const { target, draft } = args['request'] as LoadRequest;
      const entry = (path: string) => ({ ...app.models[0], path, name: path });
      return { ...app.info.loaded, target: entry(target), draft: draft === null ? null : entry(draft) };
    }
    if (command === 'open_conversation') {
      const entry = { id: args['id'] as number, title: '', pinned: false, created_ms: 0, updated_ms: 0 };
      return { entry, system: '', leaf: null, messages: [] };
    }
    if (command === 'read_attachment') {
      const name = (args['path'] as string).replace('/a/', '');
      return { attachment: { name, text: 'text' }, tokens: 1 };
    }
    if (command === 'import_conversation' && this.json.includes(args['path'] as string))
      throw { code: 'invalid_request', message: 'No conversation.' };
    if (command === 'import_conversation' && this.broken.includes(args['path'] as string)) throw { code: 'io', message: 'Broken.' };
    if (command === 'dropped_models') return (args['paths'] as string[]).filter((path) => this.folders.includes(path));
    return this.calls.length;
  }

  of(command: string): unknown[] {
    return this.calls.filter(([name]) => name === command).map(([, what]) => what);
  }
}

async function make() {
  const host = new AgreeingHost();
  const window = createWindow(host);
  await window.models.start();
  return { ...window, host };
}

describe('a plan', () => {
  it('loads the first model, imports conversations, attaches other files, and ignores further models', () => {
    expect(planOf([])).toBeNull();
    expect(planOf(['/a/x.GGUF', 'C:\\b\\y.gguf', '/a/1.json', '/a/2.JSON', '/a/notes.txt', '/a/gguf'])).toEqual({
      model: '/a/x.GGUF',
      conversations: ['/a/1.json', '/a/2.JSON'],
      attachments: ['/a/notes.txt', '/a/gguf'],
      rest: ['C:\\b\\y.gguf'],
    });
  });
});

describe('a drop', () => {
  it('of a model lets it answer in place of a server once it is loaded', async () => {
    const { drop, host, servers } = await make();
    const server = { address: 'http://127.0.0.1:8080/v1', model: 'large' };
    servers.choose(server);
    host.refuses = true;
    drop.onEvent({ kind: 'dropped', paths: ['/a/x.gguf'], across: 0.2 });
    await settled();
    expect([host.of('load_models').length, servers.chosen]).toEqual([1, server]);
    host.refuses = false;
    drop.onEvent({ kind: 'dropped', paths: ['/a/x.gguf'], across: 0.2 });
    await settled();
    expect(servers.chosen).toBeNull();
  });

  it('is announced while files are over the window, and for nothing else', async () => {
    const { drop, notices } = await make();
    drop.onEvent({ kind: 'over', paths: ['/a/x.gguf'], across: 0.2 });
    expect([drop.plan?.model, drop.role]).toEqual(['/a/x.gguf', 'target']);
    drop.onEvent({ kind: 'over', paths: ['/a/x.gguf'], across: 0.7 });
    expect(drop.role).toBe('draft');
    drop.onEvent({ kind: 'left' });
    expect(drop.plan).toBeNull();
    drop.onEvent({ kind: 'over', paths: [], across: 0.2 });
    expect(drop.plan).toBeNull();
    drop.onEvent({ kind: 'dropped', paths: [], across: 0.2 });
    await settled();
    expect(notices.failure).toBeNull();
  });

  it('of a model folder loads it, and is announced as one once the engine has looked', async () => {
    const { drop, host } = await make();
    host.folders = ['/a/Qwen3-4B-4bit'];
    const over = { kind: 'over', paths: ['/a/Qwen3-4B-4bit', '/a/notes'], across: 0.2 } as const;
    drop.onEvent(over);
    expect(drop.plan).toMatchObject({ model: null, attachments: ['/a/Qwen3-4B-4bit', '/a/notes'] });
    await settled();
    expect(drop.plan).toMatchObject({ model: '/a/Qwen3-4B-4bit', attachments: ['/a/notes'] });
    drop.onEvent(over);
    await settled();
    expect([drop.plan?.model, host.of('dropped_models')]).toEqual(['/a/Qwen3-4B-4bit', [undefined]]);
    drop.onEvent({ kind: 'dropped', paths: ['/a/Qwen3-4B-4bit'], across: 0.2 });
    await settled();
    expect(host.of('load_models')).toEqual([{ target: '/a/Qwen3-4B-4bit', draft: null, context: null }]);
    expect(host.of('read_attachment')).toEqual([]);
  });

  it('drops what was found about an earlier drag', async () => {
    const { drop, host } = await make();
    host.folders = ['/a/folder'];
    drop.onEvent({ kind: 'over', paths: ['/a/folder'], across: 0.2 });
    drop.onEvent({ kind: 'left' });
    await settled();
    expect(drop.plan).toBeNull();
  });

  it('of a model loads it, on the right half as a draft', async () => {
    const { drop, host } = await make();
    drop.onEvent({ kind: 'dropped', paths: ['/a/x.gguf'], across: 0.2 });
    await settled();
    drop.onEvent({ kind: 'dropped', paths: ['/a/d.gguf'], across: 0.9 });
    await settled();
    expect(host.of('load_models')).toEqual([
      { target: '/a/x.gguf', draft: null, context: null },
      { target: '/a/x.gguf', draft: '/a/d.gguf', context: null },
    ]);
    expect(drop.plan).toBeNull();
  });

  it('of a model does nothing while another loads, and says so', async () => {
    const { drop, host, models, notices } = await make();
    models.loading = 'big';
    drop.onEvent({ kind: 'dropped', paths: ['/a/x.gguf'], across: 0.2 });
    await settled();
    expect(host.of('load_models')).toEqual([]);
    expect(notices.failure).toContain('big is still loading');
  });

  it('without a loaded model has no place for a draft', async () => {
    const { drop } = createWindow(new AgreeingHost());
    drop.onEvent({ kind: 'over', paths: ['/a/x.gguf'], across: 0.9 });
    expect(drop.role).toBe('target');
  });

  it('of conversations imports them all, opens the last, and keeps the first error', async () => {
    const { conversation, conversations, drop, host } = await make();
    host.broken = ['/a/2.json'];
    drop.onEvent({ kind: 'dropped', paths: ['/a/1.json', '/a/2.json', '/a/3.json'], across: 0.2 });
    await settled();
    expect(host.of('import_conversation')).toEqual(['/a/1.json', '/a/2.json', '/a/3.json']);
    expect(host.of('open_conversation')).toEqual([conversation.id]);
    expect(conversations.error?.message).toBe('Broken.');
  });

  it('of other JSON attaches it', async () => {
    const { attachments, conversations, drop, host, notices } = await make();
    host.json = ['/a/package.json'];
    drop.onEvent({ kind: 'dropped', paths: ['/a/package.json', '/a/1.json', '/a/notes.txt'], across: 0.2 });
    await settled();
    expect(host.of('import_conversation')).toEqual(['/a/package.json', '/a/1.json']);
    expect(attachments.files.map(({ attachment }) => attachment.name)).toEqual(['notes.txt', 'package.json']);
    expect([conversations.error, notices.failure]).toEqual([null, null]);
  });

  it('of a second model says that only one can be dropped', async () => {
    const { drop, host, notices } = await make();
    drop.onEvent({ kind: 'dropped', paths: ['/a/x.gguf', '/a/y.gguf'], across: 0.2 });
    await settled();
    expect(host.of('load_models')).toHaveLength(1);
    expect(notices.failure).toBe('Couldn’t open y.gguf. Drop one model at a time.');
  });

  it('of other files attaches them to the next question, on the chat screen', async () => {
    const { attachments, drop, navigation } = await make();
    navigation.goTo('lab');
    drop.onEvent({ kind: 'dropped', paths: ['/a/notes.txt', '/a/main.rs'], across: 0.2 });
    await settled();
    expect(attachments.files.map(({ attachment }) => attachment.name)).toEqual(['notes.txt', 'main.rs']);
    expect(navigation.place).toBe('chat');
  });
});
