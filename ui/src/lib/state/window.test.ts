import { afterEach, describe, expect, it } from 'vitest';
import app from '../../../../tests/ui/fixtures/fixture-app.json';
import { SilentHost } from '../host/testing';
import type { CompareRequest, ConversationEntry, ErrorInfo, LibraryEvent, StoredMessage } from '../ipc/schema.gen';
import { de } from '../strings/de';
import { en } from '../strings/en';
import { setLanguage } from '../strings/index.svelte';
import { WindowState } from './window.svelte';

const entries: ConversationEntry[] = [1, 2, 3].map((id) => ({ id, title: `number ${id}`, pinned: false, created_ms: 0, updated_ms: 0 }));

/** A conversation with two answers, 11 and 12, to question 10. The reader is at the second. */
const messagesOf = (id: number): StoredMessage[] => {
  const at = { created_ms: 0, state: 'complete' as const, settings: null };
  return [
    { ...at, id: 10 * id, parent: null, role: 'user', content: 'asked' },
    { ...at, id: 10 * id + 1, parent: 10 * id, role: 'assistant', content: 'first' },
    { ...at, id: 10 * id + 2, parent: 10 * id, role: 'assistant', content: 'second' },
  ];
};

class KeepingHost extends SilentHost {
  calls: [string, Record<string, unknown>][] = [];
  /** Commands that fail. */
  failing: string[] = [];
  /** Error of a refused question. */
  refusal: Promise<ErrorInfo> | null = null;
  words: Readonly<Record<string, string>> = {};
  opened: string[] = [];
  info: unknown = app.info;
  /** Sends an event to the watcher of the library. */
  tell: (event: LibraryEvent) => void = () => {};
  #deleted = new Set<unknown>();

  override async invoke(command: string, args: Record<string, unknown>): Promise<unknown> {
    this.calls.push([command, args]);
    if (this.failing.includes(command)) throw { code: 'store', message: 'The disk is full.' };
    switch (command) {
      case 'app_info':
        return this.info;
      case 'library':
        return { models: app.models, folders: [], machine: { total: 16e9, usable: 11e9 } };
      case 'watch_library':
        return [];
      case 'list_conversations':
        return entries.filter(({ id }) => !this.#deleted.has(id));
      case 'open_conversation':
        return { entry: entries.find(({ id }) => id === args['id']), system: '', messages: messagesOf(args['id'] as number), leaf: null };
      case 'answer_events':
        return [];
      case 'delete_conversation':
        return this.#deleted.add(args['id']);
      case 'restore_conversation':
        return this.#deleted.delete(args['id']);
      case 'choose_file':
        return '/tmp/brought.json';
      case 'import_conversation':
        return 3;
      case 'answer':
        if (this.refusal) throw await this.refusal;
        return { conversation: 1, question: 13, answer: 14, generation_id: 5, prefix: [] };
      default:
        return null;
    }
  }

  override openChannel<T>(receive: (message: T) => void): unknown {
    this.tell = receive as (event: LibraryEvent) => void;
    return 0;
  }

  override labelMenu(words: Readonly<Record<string, string>>): void {
    this.words = words;
  }

  override async openLink(href: string): Promise<void> {
    this.opened.push(href);
  }

  named(command: string): Record<string, unknown>[] {
    return this.calls.filter(([name]) => name === command).map(([, args]) => args);
  }
}

afterEach(() => setLanguage('en'));

async function make() {
  const host = new KeepingHost();
  const state = new WindowState(host);
  await state.models.start();
  await state.conversations.refresh();
  const listed = () => state.conversations.entries.map(({ id }) => id);
  return { host, state, listed };
}

const entry = (id: number): ConversationEntry => entries[id - 1]!;

describe('a deletion', () => {
  it('is announced and can be undone, the last one first', async () => {
    const { state, listed } = await make();
    await state.deleteConversation(entry(1));
    await state.deleteConversation(entry(3));
    expect([listed(), state.conversations.deleted.map(({ id }) => id), state.conversations.announced]).toEqual([[2], [1, 3], true]);
    // Without the announcement, it can still be undone.
    state.conversations.announced = false;
    await state.undoDelete();
    expect([listed(), state.conversation.id]).toEqual([[2, 3], 3]);
    await state.undoDelete();
    expect([listed(), state.conversation.id, state.conversations.deleted]).toEqual([[1, 2, 3], 1, []]);
    await state.undoDelete();
    expect(state.conversation.id).toBe(1);
  });

  it('is not announced when it failed, and the screen stays', async () => {
    const { host, state, listed } = await make();
    await state.openConversation(1);
    host.failing = ['delete_conversation'];
    await state.deleteConversation(entry(1));
    expect([state.conversations.deleted, state.conversations.announced, state.conversations.error?.message]).toEqual([
      [],
      false,
      'The disk is full.',
    ]);
    expect([state.conversation.id, listed()]).toEqual([1, [1, 2, 3]]);
  });

  it('whose undo failed can be undone again', async () => {
    const { host, state, listed } = await make();
    await state.deleteConversation(entry(2));
    host.failing = ['restore_conversation'];
    await state.undoDelete();
    expect([listed(), state.conversations.deleted.map(({ id }) => id), state.conversations.error?.code]).toEqual([[1, 3], [2], 'store']);
    host.failing = [];
    await state.undoDelete();
    expect(listed()).toEqual([1, 2, 3]);
  });

  it('of the conversation being written stops its answer first', async () => {
    const { host, state } = await make();
    await state.conversation.ask('one');
    await state.openConversation(2);
    await state.deleteConversation(entry(1));
    const told = host.calls.map(([name]) => name).filter((name) => name === 'stop_generation' || name === 'delete_conversation');
    expect([told, state.conversation.id]).toEqual([['stop_generation', 'delete_conversation'], 2]);
    await state.deleteConversation(entry(3));
    expect(host.named('stop_generation')).toHaveLength(1);
  });
});

describe('a new conversation in the list', () => {
  it('does not take the reader away from an answer being written', async () => {
    const { host, state, listed } = await make();
    await state.deleteConversation(entry(2));
    await state.conversation.ask('one');
    await state.undoDelete();
    await state.importConversation();
    expect([state.conversation.id, state.conversation.writingHere, listed(), host.named('import_conversation')]).toEqual([
      1,
      true,
      [1, 2, 3],
      [{ path: '/tmp/brought.json' }],
    ]);
    // From another conversation it does, and the answer continues.
    await state.openConversation(2);
    await state.importConversation();
    expect([state.conversation.id, state.conversation.running]).toEqual([3, true]);
    expect(host.named('stop_generation')).toEqual([]);
  });
});

describe('a search hit', () => {
  it('is scrolled to, on another branch only if it is not on the current one', async () => {
    const { host, state } = await make();
    await state.openConversation(1, 12);
    expect([state.scrollTarget, host.named('choose_branch')]).toEqual([{ message: 12 }, []]);
    await state.openConversation(1, 10);
    expect([state.scrollTarget, host.named('choose_branch')]).toEqual([{ message: 10 }, []]);
    await state.openConversation(1, 11);
    expect([state.scrollTarget, host.named('choose_branch'), state.conversation.turns.map(({ answerId }) => answerId)]).toEqual([
      { message: 11 },
      [{ leaf: 11 }],
      [11],
    ]);
  });
});

describe('drafts', () => {
  it('of deleted conversations are deleted at the start, unless the list could not be read', async () => {
    const { host, state } = await make();
    await state.preferences.set('drafts', { c1: 'one', c9: 'gone' });
    host.failing = ['list_conversations'];
    await state.start();
    expect(state.messageDrafts.draftOf(9)).toBe('gone');
    host.failing = [];
    await state.start();
    expect([state.messageDrafts.draftOf(9), state.messageDrafts.draftOf(1)]).toEqual(['', 'one']);
    state.messageDrafts.keep();
    expect(state.preferences.drafts).toEqual({ c1: 'one' });
  });
});

describe('a hidden window', () => {
  it('pauses watching the folders of models', async () => {
    const { host, state } = await make();
    state.hide(true);
    state.hide(false);
    expect(host.named('set_window_hidden')).toEqual([{ hidden: true }, { hidden: false }]);
  });

  it('reports it again once there is a watch to pause', async () => {
    const host = new KeepingHost();
    const state = new WindowState(host);
    const started = state.start();
    state.hide(true);
    await started;
    const order = host.calls.map(([command]) => command).filter((command) => /watch|hidden/.test(command));
    expect(order).toEqual(['watch_library', 'set_window_hidden', 'set_window_hidden']);
  });
});

describe('a damaged file of conversations', () => {
  it('is shown once the engine reports it', async () => {
    const host = new KeepingHost();
    const state = new WindowState(host);
    await state.start();
    expect(state.models.info?.store_problem ?? null).toBeNull();
    const error = { code: 'store', message: 'The file is damaged.' } as const;
    host.info = { ...app.info, store_problem: { error, in_memory: false, accepted: true, replaceable: true, copies: [] } };
    host.tell({ kind: 'store_problem' });
    await expect.poll(() => state.models.info?.store_problem?.error).toEqual(error);
  });
});

describe('the self-test of the GPU', () => {
  it('is shown once it has ended', async () => {
    const host = new KeepingHost();
    host.info = { ...app.info, device: 'metal', gpu: { state: 'running' } };
    const state = new WindowState(host);
    await state.start();
    expect(state.models.info?.gpu).toEqual({ state: 'running' });
    const gpu = { state: 'done', problems: ['norm differs from the CPU'] } as const;
    host.info = { ...app.info, device: 'metal', gpu };
    host.tell({ kind: 'gpu_tested' });
    await expect.poll(() => state.models.info?.gpu).toEqual(gpu);
  });
});

describe('a link', () => {
  it('is shown and opened in its plain form', async () => {
    const { host, state } = await make();
    state.links.ask('https://\u0430pple.com');
    expect(state.links.address).toBe('https://xn--pple-43d.com/');
    await state.links.open();
    state.links.ask('mailto:a@example.org?attach=/etc/passwd');
    await state.links.open();
    expect(host.opened).toEqual(['https://xn--pple-43d.com/', 'mailto:a@example.org']);
    state.links.ask('file:///etc/passwd');
    expect(state.links.address).toBeNull();
  });
});

describe('running work', () => {
  it('is on screen only where it is visible: an answer in its conversation', async () => {
    const { state } = await make();
    expect(state.runningHere).toBe(false);
    await state.openConversation(1);
    await state.conversation.ask('one');
    expect([state.running, state.runningHere]).toEqual([true, true]);
    state.goTo('lab');
    expect(state.runningHere).toBe(false);
    await state.openConversation(2);
    expect([state.running, state.runningHere]).toEqual([true, false]);
    state.newConversation();
    expect(state.runningHere).toBe(false);
    state.showWriting();
    expect(state.runningHere).toBe(true);
  });

  it('is on screen only where it is visible: a comparison, and a measured pair', async () => {
    const { state } = await make();
    void state.comparison.start({} as CompareRequest);
    const seen = () => (['chat', 'compare', 'lab', 'library'] as const).filter((place) => (state.goTo(place), state.runningHere));
    expect(seen()).toEqual(['compare']);
    const pair = (await make()).state;
    const [target, draft] = pair.library.models;
    pair.pairing.show(target ?? null);
    void pair.pairing.measure({ name: draft?.name ?? '', path: draft?.path ?? '' });
    pair.goTo('library');
    expect([pair.comparison.running, pair.runningHere]).toEqual([true, true]);
    pair.showLibrary('catalogue');
    expect(pair.runningHere).toBe(false);
    pair.showLibrary();
    pair.pairing.show(draft ?? null);
    expect(pair.runningHere).toBe(false);
  });
});

describe('in German', () => {
  it('a question refused elsewhere is reported in German', async () => {
    const { host, state } = await make();
    setLanguage('de');
    let refuse: (error: ErrorInfo) => void = () => {};
    host.refusal = new Promise((resolve) => (refuse = resolve));
    await state.openConversation(1);
    const asking = state.conversation.ask('one');
    await state.openConversation(2);
    refuse({ code: 'busy', message: 'The engine is busy.', params: {} });
    await asking;
    expect(state.failure).toBe(
      `Deine vorige Frage wurde nicht beantwortet. ${de.errors.busy.body?.({})} ${de.errors.busy.advice} Ihr Text steht noch dort, wo du ihn geschrieben hast.`,
    );
  });

  it('the menu uses Mac labels only on a Mac', async () => {
    const { host, state } = await make();
    for (const platform of ['mac', 'other'] as const) {
      setLanguage('en');
      state.labelMenu(platform);
      expect(host.words).toEqual(en.menu);
    }
    setLanguage('de');
    state.labelMenu('mac');
    expect(host.words).toEqual(de.menu);
    state.labelMenu('other');
    expect(host.words).toEqual({ ...de.menu, 'menu-file': 'Datei', 'menu-view': 'Ansicht' });
  });
});
