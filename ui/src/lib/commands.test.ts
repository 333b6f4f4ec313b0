import { afterEach, describe, expect, it } from 'vitest';
import app from '../../../tests/ui/fixtures/fixture-app.json';
import { createWindow } from '../window';
import {
  commandOf,
  commandOfKey,
  commands,
  loadCommands,
  perform,
  performEscape,
  performMenuItem,
  possible,
  withKeys,
  type Command,
} from './commands';
import { SilentHost } from './host/testing';
import type { CompareRequest, ConversationEntry, GenerationEvent, StoredMessage } from './ipc/schema.gen';
import { fitting } from './match';
import { Answer } from './state/answer.svelte';
import { setLanguage } from './strings/index.svelte';

const entries = ['first', 'second', 'third'].map(
  (title, i) => ({ id: i + 1, title, pinned: false, created_ms: 0, updated_ms: 0 }) as unknown as ConversationEntry,
);

afterEach(() => setLanguage('en'));

class QuietHost extends SilentHost {
  calls: [string, Record<string, unknown>][] = [];
  messages: StoredMessage[] = [];

  override async invoke(command: string, args: Record<string, unknown>): Promise<unknown> {
    this.calls.push([command, args]);
    if (command === 'app_info') return app.info;
    if (command === 'library') return { models: app.models, folders: [], machine: { total: 16e9, usable: 11e9 } };
    if (command === 'list_conversations') return entries;
    if (command === 'open_conversation')
      return { entry: entries.find(({ id }) => id === args['id']), system: 'Old.', messages: this.messages, leaf: null };
    if (command === 'answer_events') return [];
    if (command === 'set_system_prompt') return args['id'] ?? 9;
    if (command === 'choose_save_place') return { token: 7, name: args['name'] };
    return null;
  }
}

async function make() {
  const host = new QuietHost();
  const state = createWindow(host);
  const done: string[] = [];
  state.screen.drawn({
    compose: () => done.push('compose'),
    search: () => done.push('search'),
    searchAll: () => done.push('search all'),
    rename: ({ id }) => done.push(`rename ${id}`),
    repository: () => done.push('repository'),
    copy: (text) => done.push(`copy ${text}`),
  });
  await state.models.start();
  await state.conversations.refresh();
  const command = (id: string): Command => {
    const found = commands(state).find((one) => one.id === id);
    if (!found) throw new Error(id);
    return found;
  };
  return { host, state, done, command };
}

describe('the table of commands', () => {
  it('names each command and shortcut once, and keeps each group together', async () => {
    const { state } = await make();
    const all = commands(state);
    const distinct = (values: readonly string[]) => expect([...new Set(values)]).toEqual(values);
    distinct(all.map(({ id }) => id));
    distinct(all.flatMap(({ keys }) => (keys ? [`${keys.shift ?? false}${keys.key}`] : [])));
    distinct(all.map(({ group }) => group).filter((group, i, groups) => group !== groups[i - 1]));
  });

  it('finds a command by its key, with Shift and capitals for letters only', async () => {
    const { state } = await make();
    const by = (key: string, shift = false) => commandOf(commands(state), { key, shift })?.id;
    expect(['n', 'f', 'k', ',', 'o', 'r', '=', '+', '-', '0', 'x'].map((key) => by(key))).toEqual([
      'new-conversation',
      'search',
      'palette',
      'settings',
      'open-model',
      'regenerate',
      'text-larger',
      'text-larger',
      'text-smaller',
      'text-default-size',
      undefined,
    ]);
    expect(['C', 'O', 'N', '+', 'F', 'G', '/'].map((key) => by(key, true))).toEqual([
      'copy-answer',
      'open-draft',
      undefined,
      'text-larger',
      'search-conversations',
      'find-previous',
      'shortcuts',
    ]);
    expect(['?', 'x'].map((key) => commandOfKey(commands(state), key)?.id)).toEqual(['shortcuts', undefined]);
    expect(by('c')).toBeUndefined();
  });

  it('lists every command with keys on the sheet of shortcuts, by group', async () => {
    const { state, command } = await make();
    const all = commands(state);
    const listed = withKeys(all);
    expect(listed.flatMap((group) => group.commands)).toEqual(all.filter(({ keys }) => keys));
    expect(listed.map(({ group }) => group)).toEqual(['conversation', 'answer', 'window', 'model']);
    perform(state, command('shortcuts'));
    expect(state.navigation.sheet).toBe('shortcuts');
    perform(state, command('shortcuts'));
    expect(state.navigation.sheet).toBeNull();
  });

  it('walks the matches of the find bar while the chat is on screen', async () => {
    const { state, command } = await make();
    expect(possible(command('find-next'))).toBe(false);
    state.find.show();
    state.find.search('sea');
    state.find.take([0, 0, 1], 0);
    perform(state, command('find-next'));
    expect(state.find.at).toBe(1);
    perform(state, command('find-previous'));
    perform(state, command('find-previous'));
    expect(state.find.at).toBe(2);
    state.navigation.goTo('lab');
    expect(possible(command('find-next'))).toBe(false);
  });

  it('follows the language of the window, and is also searched by the English words', async () => {
    const { state, command } = await make();
    const first = (typed: string) => fitting(typed, commands(state), (one) => one)[0]?.id;
    expect([command('copy-answer').title, command('appearance-dark').title]).toEqual(['Copy last answer', 'Appearance: Dark']);
    expect(['regenerate', 'nochmal', 'theme dark'].map(first)).toEqual(['regenerate', undefined, 'appearance-dark']);
    setLanguage('de');
    expect([command('copy-answer').title, command('appearance-dark').title]).toEqual([
      'Letzte Antwort kopieren',
      'Erscheinungsbild: Dunkel',
    ]);
    expect(['regenerate', 'nochmal', 'theme dunkel'].map(first)).toEqual(['regenerate', 'regenerate', 'appearance-dark']);
  });

  it('does not offer commands that are impossible now', async () => {
    const { state, command, done } = await make();
    for (const id of ['stop', 'regenerate', 'continue', 'copy-answer', 'export-json', 'method-lookahead']) {
      expect(possible(command(id)), id).toBe(false);
      perform(state, command(id));
    }
    expect(done).toEqual([]);
    for (const id of ['new-conversation', 'open-model', 'import', 'method-ngram']) expect(possible(command(id)), id).toBe(true);
  });

  it('continues answers of the loaded models only', async () => {
    const { host, state, command } = await make();
    const settings = { target: 'large', draft: null, method: 'plain' };
    const message = (id: number, role: string, server?: string) =>
      ({
        id,
        parent: id === 1 ? null : 1,
        role,
        content: 'Text',
        state: 'complete',
        settings: server ? { ...settings, server } : settings,
      }) as unknown as StoredMessage;
    const token = { id: 1, text: 'Text', origin: 'plain', p: 1, top: [], guesses: [], round: 0, position: 0 };
    const finished = { type: 'finished', stop: 'end_of_turn', tokens: [token], stats: { generated_tokens: 1 } };
    for (const [id, server] of [
      [1, undefined],
      [2, 'http://127.0.0.1:8080/v1'],
    ] as const) {
      host.messages = [message(1, 'user'), message(2, 'assistant', server)];
      await state.chat.open(id);
      state.conversation.turns[0]?.answer.apply([finished as unknown as GenerationEvent]);
      expect(possible(command('continue')), String(server)).toBe(server === undefined);
    }
  });

  it('leaves a hidden conversation alone, but stops work anywhere', async () => {
    const { state, command, done } = await make();
    const { comparison } = state;
    await state.chat.open(1);
    expect(possible(command('export-json'))).toBe(true);
    state.navigation.goTo('compare');
    for (const id of ['regenerate', 'continue', 'copy-answer', 'export-json', 'stop']) expect(possible(command(id)), id).toBe(false);
    void comparison.start({} as CompareRequest);
    state.navigation.goTo('chat');
    perform(state, command('stop'));
    expect([comparison.stopping, done]).toEqual([true, []]);
  });

  it('walks the conversations in the order of the list', async () => {
    const { state, command, host } = await make();
    expect(possible(command('previous-conversation'))).toBe(false);
    perform(state, command('next-conversation'));
    await expect.poll(() => state.conversation.id).toBe(1);
    perform(state, command('next-conversation'));
    await expect.poll(() => state.conversation.id).toBe(2);
    perform(state, command('export-markdown'));
    await expect
      .poll(() => host.calls.at(-1))
      .toEqual([
        'export_conversation',
        { id: 2, format: 'markdown', words: { untitled: 'New conversation', question: 'You', answer: 'Answer' }, token: 7 },
      ]);
    await expect.poll(() => state.notices.notice).toBe('Saved as “second.md”');
    perform(state, command('previous-conversation'));
    await expect.poll(() => state.conversation.id).toBe(1);
  });

  it('renames, pins, deletes and restores the open conversation', async () => {
    const { state, command, done, host } = await make();
    const now = (...ids: string[]) => ids.filter((id) => possible(command(id)));
    const all = ['rename', 'pin', 'unpin', 'delete', 'undo-delete'];
    expect(now(...all)).toEqual([]);
    await state.chat.open(2);
    expect(now(...all)).toEqual(['rename', 'pin', 'delete']);
    perform(state, command('rename'));
    expect(done).toEqual(['rename 2']);
    perform(state, command('pin'));
    await expect
      .poll(() => host.calls.find(([name]) => name === 'pin_conversation'))
      .toEqual(['pin_conversation', { id: 2, pinned: true }]);
    perform(state, command('delete'));
    await expect.poll(() => now('undo-delete')).toEqual(['undo-delete']);
    expect([state.conversation.id, now('rename', 'delete')]).toEqual([null, []]);
    perform(state, command('undo-delete'));
    await expect.poll(() => host.calls.some(([name, args]) => name === 'restore_conversation' && args['id'] === 2)).toBe(true);
    await expect.poll(() => state.conversation.id).toBe(2);
  });

  it('edits the last question, and walks its branches', async () => {
    const { state, command, host } = await make();
    const common = { created_ms: 0, state: 'complete' as const, settings: null };
    host.messages = [
      { ...common, id: 11, parent: null, role: 'user', content: 'Why?' },
      { ...common, id: 12, parent: 11, role: 'assistant', content: 'So.' },
      { ...common, id: 13, parent: 11, role: 'assistant', content: 'Because.' },
    ];
    await state.chat.open(1);
    await expect.poll(() => state.conversation.turns[0]?.answer.over).toBe(true);
    perform(state, command('edit-question'));
    expect(state.chat.toEdit).toBe(state.conversation.turns[0]?.key);
    expect(['previous-branch', 'next-branch'].map((id) => possible(command(id)))).toEqual([true, false]);
    perform(state, command('previous-branch'));
    await expect.poll(() => host.calls.at(-1)).toEqual(['answer_events', { message: 12 }]);
    expect(host.calls.some(([name, args]) => name === 'choose_branch' && args['leaf'] === 12)).toBe(true);
    expect(['previous-branch', 'next-branch'].map((id) => possible(command(id)))).toEqual([false, true]);
  });

  it('runs the items of the native menu, and closes sheets', async () => {
    const { state, done } = await make();
    performMenuItem(state, 'palette');
    expect(state.navigation.sheet).toBe('palette');
    performMenuItem(state, 'settings');
    expect(state.navigation.sheet).toBe('settings');
    performMenuItem(state, 'text-larger');
    expect([state.navigation.sheet, state.preferences.textSize]).toEqual(['settings', 18]);
    performMenuItem(state, 'new-conversation');
    expect([state.navigation.sheet, done]).toEqual([null, ['compose']]);
    performMenuItem(state, 'no-such-item');
  });

  it('keeps instructions and settings as a preset, and applies them', async () => {
    const { state, command, host } = await make();
    state.settings.temperature = 0.7;
    state.settings.method = 'ngram';
    void state.conversation.instruct('Be short.');
    state.presets.save('Short');
    state.settings.temperature = 0;
    state.settings.method = 'plain';
    void state.conversation.instruct('');
    perform(state, command('preset-Short'));
    expect([state.settings.temperature, state.settings.method, state.conversation.system]).toEqual([0.7, 'ngram', 'Be short.']);
    await Promise.resolve();
    // A new conversation gets them with its first question.
    expect(host.calls.filter(([name]) => name === 'set_system_prompt')).toEqual([]);
  });

  it('opens the parts of the library, loads any model by name, and unloads', async () => {
    const { state, command, done, host } = await make();
    perform(state, command('other-repository'));
    expect([state.navigation.place, state.navigation.libraryPart, done]).toEqual(['library', 'catalogue', ['repository']]);
    perform(state, command('find-model'));
    expect([state.navigation.libraryPart, done.at(-1)]).toEqual(['here', 'search']);
    expect(loadCommands(state).map(({ title }) => title)).toEqual(
      app.models.filter(({ problem }) => problem === null).map(({ title, quantisation }) => `Load ${title} ${quantisation}`),
    );
    expect(['unload-models', 'cancel-loading'].map((id) => possible(command(id)))).toEqual([true, false]);
    perform(state, command('unload-models'));
    await expect.poll(() => state.models.loaded).toBeNull();
    expect(host.calls.at(-1)?.[0]).toBe('unload_models');
    expect(possible(command('unload-models'))).toBe(false);
  });

  it('closes a card and a failure with Escape before it stops work', async () => {
    const { state, done } = await make();
    const { comparison, notices, tokens } = state;
    void comparison.start({} as CompareRequest);
    state.navigation.goTo('compare');
    const answer = new Answer();
    const token = { id: 1, text: 'Text', origin: 'plain', p: 1, top: [], guesses: [], round: 0, position: 0 };
    answer.apply([{ type: 'finished', stop: 'end_of_turn', tokens: [token], stats: {} } as unknown as GenerationEvent]);
    tokens.point(answer, 0, { left: 0, right: 0, top: 0, bottom: 0, edge: 0 });
    tokens.only = 'bonus';
    notices.reportFailure('The disk is full.');
    performEscape(state);
    expect([tokens.pointed, notices.failure, comparison.stopping, done]).toEqual([null, 'The disk is full.', false, ['compose']]);
    performEscape(state);
    expect([notices.failure, comparison.stopping, tokens.only]).toEqual([null, false, 'bonus']);
    // The bar is on another screen.
    state.find.show();
    performEscape(state);
    expect([comparison.stopping, tokens.only]).toEqual([true, 'bonus']);
    state.navigation.place = 'chat';
    performEscape(state);
    expect([state.find.shown, tokens.only]).toEqual([false, 'bonus']);
    performEscape(state);
    expect(tokens.only).toBeNull();
  });

  it('ignores a preset with an unavailable method, and keeps numbers in range', async () => {
    const { state } = await make();
    state.settings.method = 'ngram';
    const settings = { ...state.settings.chosen(), method: 'lookahead' as const, temperature: 99, maxDraft: 99 };
    state.presets.use({ name: 'x', system: '', settings });
    expect([state.settings.method, state.settings.temperature, state.settings.maxDraft]).toEqual(['ngram', 5, 15]);
  });
});
