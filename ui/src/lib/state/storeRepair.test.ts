import { describe, expect, it } from 'vitest';
import app from '../../../../tests/ui/fixtures/fixture-app.json';
import { createWindow } from '../../window';
import type { ServerEntry, StoreProblem } from '../ipc/schema.gen';
import type { Preset } from './preferences.svelte';
import { entries, KeepingHost } from './testing';

const chosen = {
  method: 'ngram',
  maxDraft: 'auto' as const,
  temperature: 0.7,
  topK: 0,
  topP: 1,
  minP: 0,
  repeatPenalty: 1,
  maxTokens: 256,
  seed: null,
  rule: { name: 'lossless' as const },
  thinking: null,
};
const preset = (name: string, system = ''): Preset => ({ name, system, settings: chosen });
const server = (address: string): ServerEntry => ({ address, key: 'absent', takes_key: true });
const lastModels = { target: '/models/own.gguf', draft: null, context: null, name: 'Own', quantisation: 'Q4_K' };

/** Contents of a store next to conversations. */
interface Stored {
  preferences: Record<string, unknown>;
  servers: ServerEntry[];
  texts: string[];
}

/** A host whose file cannot be opened at first, or was damaged while it was open. Until a repair it uses `first`. */
class TroubledHost extends KeepingHost {
  first: Stored = { preferences: {}, servers: [], texts: [] };
  file: Stored = { preferences: {}, servers: [], texts: [] };
  repaired = false;
  /** `true` if preferences cannot be read. */
  unreadable = false;
  problem: StoreProblem = {
    error: { code: 'store', message: 'locked' },
    in_memory: true,
    accepted: true,
    replaceable: true,
    copies: [],
  };
  /** Conversations of the file. */
  listed = entries;

  get now(): Stored {
    return this.repaired ? this.file : this.first;
  }

  override async invoke(command: string, args: Record<string, unknown>): Promise<unknown> {
    const stored = this.now;
    switch (command) {
      case 'app_info':
        return { ...app.info, store_problem: this.repaired ? null : this.problem };
      case 'repair_store':
        this.calls.push([command, args]);
        this.repaired = (args['remedy'] as { type: string }).type !== 'stay_in_memory';
        // The engine brings what the file lacks, without unsent text.
        if (this.problem.in_memory) {
          const brought = Object.entries(this.first.preferences).filter(([key]) => key !== 'drafts' && key !== 'draft_files');
          this.file.preferences = { ...Object.fromEntries(brought), ...this.file.preferences };
        }
        return { ...app.info, store_problem: this.repaired ? null : this.problem };
      case 'preferences':
        if (this.unreadable) throw { code: 'store', message: 'locked' };
        return stored.preferences;
      case 'set_preference':
        stored.preferences = { ...stored.preferences, [args['key'] as string]: args['value'] };
        return null;
      case 'servers':
        return { servers: stored.servers, keychain: true };
      case 'add_server':
        stored.servers = [...stored.servers, server(args['address'] as string)];
        return stored.servers.at(-1);
      case 'chosen_texts':
        return stored.texts;
      case 'choose_texts':
        stored.texts = args['sources'] as string[];
        return null;
      case 'list_conversations':
        return this.repaired ? this.listed : this.problem.in_memory ? entries.slice(0, 1) : entries;
      default:
        return super.invoke(command, args);
    }
  }
}

async function make(change: Partial<Pick<TroubledHost, 'first' | 'file' | 'listed' | 'problem'>> = {}) {
  const host = Object.assign(new TroubledHost(), change);
  const window = createWindow(host);
  await window.preferences.load();
  await window.start();
  return { ...window, host, settled: () => new Promise((resolve) => setTimeout(resolve, 0)) };
}

const file = (preferences: Record<string, unknown>): Stored => ({ preferences, servers: [server('http://old/v1')], texts: ['/old.txt'] });

describe('preferences after a file that could not be opened was repaired', () => {
  const stored = () =>
    file({
      appearance: 'dark',
      keep_warm_minutes: 15,
      presets: [preset('Code'), preset('Short', 'Be short.')],
      recent_models: ['/models/own.gguf', '/models/other.gguf'],
      last_models: lastModels,
      settings: { temperature: 0.3, topK: 20 },
    });

  it('are those of the file', async () => {
    const { storeRepair, host, preferences, settings } = await make({ file: stored() });
    expect(preferences.presets).toEqual([]);
    await storeRepair.repair({ type: 'retry' });
    expect(preferences.presets.map(({ name }) => name)).toEqual(['Code', 'Short']);
    expect([preferences.appearance, preferences.lastModels?.target, preferences.recentModels.length]).toEqual([
      'dark',
      lastModels.target,
      2,
    ]);
    expect([settings.temperature, settings.topK]).toEqual([0.3, 20]);
    expect(host.file.preferences['presets']).toEqual([preset('Code'), preset('Short', 'Be short.')]);
  });

  it('keep what was chosen meanwhile, and lists are joined', async () => {
    const { storeRepair, host, preferences, settings, settled } = await make({ file: stored() });
    preferences.savePreset(preset('Haiku'));
    preferences.savePreset(preset('Short', 'Be shorter.'));
    void preferences.set('view', 'tokens');
    void preferences.set('recentModels', ['/models/new.gguf', '/models/own.gguf']);
    settings.topK = 40;
    preferences.keepSettings(settings.kept() ?? {});
    await storeRepair.repair({ type: 'retry' });
    await settled();
    const expected = [preset('Code'), preset('Short', 'Be shorter.'), preset('Haiku')];
    expect(preferences.presets).toEqual(expected);
    expect([settings.temperature, settings.topK]).toEqual([0.3, 40]);
    expect(host.file.preferences).toMatchObject({
      presets: expected,
      view: 'tokens',
      appearance: 'dark',
      recent_models: ['/models/new.gguf', '/models/own.gguf', '/models/other.gguf'],
      settings: { temperature: 0.3, topK: 40 },
    });
  });

  it('reach the engine where it applies them', async () => {
    const { storeRepair, host } = await make({ file: stored() });
    const set: unknown[] = [];
    const { invoke } = TroubledHost.prototype;
    host.invoke = (command, args) => {
      if (command === 'set_preference') set.push(args['key']);
      return invoke.call(host, command, args);
    };
    await storeRepair.repair({ type: 'retry' });
    expect(set).toEqual(['keep_warm_minutes']);
  });

  it('are not overwritten by a choice during the repair', async () => {
    const { storeRepair, host, preferences, settled } = await make({ file: stored() });
    const repairing = storeRepair.repair({ type: 'retry' });
    preferences.savePreset(preset('Haiku'));
    await repairing;
    await settled();
    expect(host.file.preferences['presets']).toEqual([preset('Code'), preset('Short', 'Be short.'), preset('Haiku')]);
  });

  it('are joined later if they cannot be read at once', async () => {
    const { chat, storeRepair, conversation, host, preferences } = await make({ file: stored() });
    await chat.open(1);
    host.unreadable = true;
    await storeRepair.repair({ type: 'retry' });
    expect([conversation.id, preferences.presets, preferences.problem?.message]).toEqual([null, [], 'locked']);
    preferences.savePreset(preset('Haiku'));
    host.unreadable = false;
    await preferences.set('view', 'tokens');
    expect(host.file.preferences['presets']).toEqual([preset('Code'), preset('Short', 'Be short.'), preset('Haiku')]);
    expect(preferences.problem).toBeNull();
  });

  it('stay as they are if nothing was opened', async () => {
    const { storeRepair, host, preferences, settled } = await make({ file: stored() });
    preferences.savePreset(preset('Haiku'));
    await storeRepair.repair({ type: 'stay_in_memory' });
    host.failing = ['repair_store'];
    const { invoke } = TroubledHost.prototype;
    host.invoke = async (command, args) => {
      if (command === 'repair_store') throw { code: 'store', message: 'locked' };
      return invoke.call(host, command, args);
    };
    await storeRepair.repair({ type: 'retry' });
    preferences.savePreset(preset('Later'));
    await settled();
    expect(preferences.presets.map(({ name }) => name)).toEqual(['Haiku', 'Later']);
    expect(host.first.preferences['presets']).toEqual([preset('Haiku'), preset('Later')]);
  });

  it('do not count a default model that was loaded meanwhile as the last one', async () => {
    const host = { file: stored() };
    const { storeRepair, preferences } = await make(host);
    expect(preferences.lastModels).toBeNull();
    await storeRepair.repair({ type: 'retry' });
    expect(preferences.lastModels).toEqual(lastModels);
  });
});

describe('a file that was damaged while it was open', () => {
  const damaged: StoreProblem = {
    error: { code: 'store', message: 'damaged' },
    in_memory: false,
    accepted: true,
    replaceable: true,
    copies: [],
  };

  it('leaves preferences, drafts and servers to the empty one', async () => {
    const first = file({ presets: [preset('Code')], appearance: 'dark', drafts: { new: 'unsent', c2: 'for the second' } });
    const { storeRepair, host, messageDrafts, preferences, settled } = await make({ first, problem: damaged, listed: [] });
    await storeRepair.repair({ type: 'start_empty' });
    messageDrafts.keep();
    await settled();
    expect(preferences.presets).toEqual([preset('Code')]);
    expect(messageDrafts.draftOf(null)).toBe('unsent\n\nfor the second');
    expect(host.file.preferences).toEqual({
      presets: [preset('Code')],
      appearance: 'dark',
      drafts: { new: 'unsent\n\nfor the second' },
    });
    expect(host.file.servers.map(({ address }) => address)).toEqual(['http://old/v1']);
  });

  it('leaves drafts to the conversations of a backup, and others to the new conversation', async () => {
    const first = file({ drafts: { new: 'unsent', c2: 'for the second', c9: 'for the ninth' } });
    const backup = file({ drafts: { new: 'before', c1: 'for the first', c2: 'earlier' } });
    const { storeRepair, messageDrafts } = await make({ first, file: backup, problem: damaged });
    messageDrafts.type(9, 'for the ninth');
    await storeRepair.repair({ type: 'restore', copy: 'backup.db' });
    expect([null, 1, 2, 9].map((place) => messageDrafts.draftOf(place))).toEqual([
      'unsent\n\nfor the ninth',
      'for the first',
      'for the second',
      '',
    ]);
  });
});

describe('drafts and lists after a file that could not be opened was repaired', () => {
  it('go to the new conversation, because conversations of the session have other numbers in the file', async () => {
    const { chat, storeRepair, conversation, messageDrafts, settled, host } = await make({
      file: file({ drafts: { new: 'before', c1: 'for the first of the file' } }),
    });
    await chat.open(1);
    conversation.draft = 'typed meanwhile';
    await storeRepair.repair({ type: 'retry' });
    messageDrafts.keep();
    await settled();
    expect([conversation.id, conversation.draft]).toEqual([null, 'before\n\ntyped meanwhile']);
    expect(messageDrafts.draftOf(1)).toBe('for the first of the file');
    expect(host.file.preferences['drafts']).toEqual({ new: 'before\n\ntyped meanwhile', c1: 'for the first of the file' });
  });

  it('go there too if the file has no drafts', async () => {
    const { chat, storeRepair, conversation, messageDrafts, settled, host } = await make({ file: file({}) });
    await chat.open(1);
    conversation.draft = 'typed meanwhile';
    messageDrafts.keep();
    await storeRepair.repair({ type: 'retry' });
    messageDrafts.keep();
    await settled();
    expect([messageDrafts.draftOf(null), messageDrafts.draftOf(1)]).toEqual(['typed meanwhile', '']);
    expect(host.file.preferences['drafts']).toEqual({ new: 'typed meanwhile' });
  });

  it('have the servers and texts of both', async () => {
    const { storeRepair, copiedTexts, host, servers } = await make({ file: file({}) });
    await servers.add('http://new/v1', null);
    host.first.texts = ['/new.txt'];
    await copiedTexts.ask();
    await storeRepair.repair({ type: 'retry' });
    expect(servers.list.map(({ address }) => address)).toEqual(['http://old/v1', 'http://new/v1']);
    expect(host.file.texts).toEqual(['/old.txt', '/new.txt']);
  });

  it('undo no deletion of the session', async () => {
    const { chat, storeRepair, conversations } = await make({ file: file({}) });
    await chat.delete(entries[0]!);
    await storeRepair.repair({ type: 'retry' });
    expect([conversations.deleted, conversations.announced]).toEqual([[], false]);
  });
});
