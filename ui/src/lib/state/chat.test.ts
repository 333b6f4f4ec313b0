import { afterEach, describe, expect, it } from 'vitest';
import { createWindow } from '../../window';
import type { AnswerRequest, ConversationEntry, ErrorInfo } from '../ipc/schema.gen';
import { de } from '../strings/de';
import { setLanguage } from '../strings/index.svelte';
import { entries, KeepingHost } from './testing';

afterEach(() => setLanguage('en'));

async function make() {
  const host = new KeepingHost();
  const window = createWindow(host);
  await window.models.start();
  await window.conversations.refresh();
  const listed = () => window.conversations.entries.map(({ id }) => id);
  return { ...window, host, listed };
}

const entry = (id: number): ConversationEntry => entries[id - 1]!;

describe('another model', () => {
  it('answers a question again, on a branch that names it', async () => {
    const { chat, conversation, host, models } = await make();
    await chat.open(1);
    const [turn] = conversation.turns;
    const other = models.others.find(({ name }) => name.startsWith('smollm2'));
    expect(models.others.map(({ path }) => path)).not.toContain(models.loaded?.target.path);
    if (turn && other) await chat.answerWith(other, turn);
    expect(host.named('load_models').map(({ request }) => request)).toEqual([{ target: other?.path, draft: null, context: null }]);
    expect(host.named('answer').map(({ request }) => (request as AnswerRequest).asking)).toEqual([{ kind: 'again', question: 10 }]);
    expect(models.writerTitle(conversation.turns[0]?.settings ?? null)).toBe('SmolLM2 135M Instruct Q4_1');
    expect(conversation.turns[0]?.answers?.ids).toEqual([11, 12, 14]);
  });

  it('that fails to load leaves the answer alone', async () => {
    const { chat, conversation, host, models } = await make();
    await chat.open(1);
    host.failing = ['load_models'];
    const [turn] = conversation.turns;
    const [other] = models.others;
    if (turn && other) await chat.answerWith(other, turn);
    expect([host.named('load_models').length, host.named('answer').length, models.error?.code]).toEqual([1, 0, 'store']);
  });

  it('is loaded for a question that is no longer on screen, without an answer', async () => {
    const { chat, conversation, host, models } = await make();
    await chat.open(1);
    const [turn] = conversation.turns;
    const [other] = models.others;
    const answering = turn && other ? chat.answerWith(other, turn) : undefined;
    conversation.clear();
    await answering;
    expect([host.named('load_models').length, host.named('answer').length]).toEqual([1, 0]);
  });
});

describe('the choice of reasoning', () => {
  it('belongs to the conversation: the last answer has it, or the reader has changed it', async () => {
    const { chat, host, settings } = await make();
    const request = settings.request();
    if (!request) throw new Error('settings');
    host.settings = { 1: { ...request, thinking: 'off', target: '', draft: null }, 2: { ...request, target: '', draft: null } };
    await chat.open(1);
    expect(settings.thinking).toBe('off');
    await chat.open(2);
    expect(settings.thinking).toBeNull();
    settings.thinking = 'high';
    // A conversation without known settings, and a new one, keep the choice.
    await chat.open(3);
    expect(settings.thinking).toBe('high');
    await chat.open(1);
    expect(settings.thinking).toBe('off');
    chat.create();
    expect(settings.thinking).toBe('off');
    await chat.open(2);
    expect(settings.thinking).toBe('high');
  });
});

describe('a deletion', () => {
  it('is announced and can be undone, the last one first', async () => {
    const { chat, conversation, conversations, listed } = await make();
    await chat.delete(entry(1));
    await chat.delete(entry(3));
    expect([listed(), conversations.deleted.map(({ id }) => id), conversations.announced]).toEqual([[2], [1, 3], true]);
    // Without the announcement, it can still be undone.
    conversations.announced = false;
    await chat.undoDelete();
    expect([listed(), conversation.id]).toEqual([[2, 3], 3]);
    await chat.undoDelete();
    expect([listed(), conversation.id, conversations.deleted]).toEqual([[1, 2, 3], 1, []]);
    await chat.undoDelete();
    expect(conversation.id).toBe(1);
  });

  it('is not announced when it failed, and the screen stays', async () => {
    const { chat, conversation, conversations, host, listed } = await make();
    await chat.open(1);
    host.failing = ['delete_conversation'];
    await chat.delete(entry(1));
    expect([conversations.deleted, conversations.announced, conversations.error?.message]).toEqual([[], false, 'The disk is full.']);
    expect([conversation.id, listed()]).toEqual([1, [1, 2, 3]]);
  });

  it('whose undo failed can be undone again', async () => {
    const { chat, conversations, host, listed } = await make();
    await chat.delete(entry(2));
    host.failing = ['restore_conversation'];
    await chat.undoDelete();
    expect([listed(), conversations.deleted.map(({ id }) => id), conversations.error?.code]).toEqual([[1, 3], [2], 'store']);
    host.failing = [];
    await chat.undoDelete();
    expect(listed()).toEqual([1, 2, 3]);
  });

  it('of the conversation being written stops its answer first', async () => {
    const { chat, conversation, host } = await make();
    await conversation.ask('one');
    await chat.open(2);
    await chat.delete(entry(1));
    const calls = host.calls.map(([name]) => name).filter((name) => name === 'stop_generation' || name === 'delete_conversation');
    expect([calls, conversation.id]).toEqual([['stop_generation', 'delete_conversation'], 2]);
    await chat.delete(entry(3));
    expect(host.named('stop_generation')).toHaveLength(1);
  });
});

describe('a new conversation in the list', () => {
  it('does not take the reader away from an answer being written', async () => {
    const { chat, conversation, host, listed } = await make();
    await chat.delete(entry(2));
    await conversation.ask('one');
    await chat.undoDelete();
    await chat.import();
    expect([conversation.id, conversation.writingHere, listed(), host.named('import_conversation')]).toEqual([
      1,
      true,
      [1, 2, 3],
      [{ path: '/tmp/brought.json' }],
    ]);
    // From another conversation it does, and the answer continues.
    await chat.open(2);
    await chat.import();
    expect([conversation.id, conversation.running]).toEqual([3, true]);
    expect(host.named('stop_generation')).toEqual([]);
  });
});

describe('a search hit', () => {
  it('is scrolled to, on another branch only if it is not on the current one', async () => {
    const { chat, conversation, host } = await make();
    await chat.open(1, 12);
    expect([chat.scrollTarget, host.named('choose_branch')]).toEqual([{ message: 12 }, []]);
    await chat.open(1, 10);
    expect([chat.scrollTarget, host.named('choose_branch')]).toEqual([{ message: 10 }, []]);
    await chat.open(1, 11);
    expect([chat.scrollTarget, host.named('choose_branch'), conversation.turns.map(({ answerId }) => answerId)]).toEqual([
      { message: 11 },
      [{ leaf: 11 }],
      [11],
    ]);
  });
});

describe('drafts', () => {
  it('of deleted conversations are deleted at the start, unless the list could not be read', async () => {
    const { host, messageDrafts, preferences, start } = await make();
    await preferences.set('drafts', { c1: 'one', c9: 'gone' });
    host.failing = ['list_conversations'];
    await start();
    expect(messageDrafts.draftOf(9)).toBe('gone');
    host.failing = [];
    await start();
    expect([messageDrafts.draftOf(9), messageDrafts.draftOf(1)]).toEqual(['', 'one']);
    messageDrafts.keep();
    expect(preferences.drafts).toEqual({ c1: 'one' });
  });
});

describe('a question refused in another conversation', () => {
  it('is reported in the language of the window', async () => {
    const { chat, conversation, host, notices } = await make();
    setLanguage('de');
    let refuse: (error: ErrorInfo) => void = () => {};
    host.refusal = new Promise((resolve) => (refuse = resolve));
    await chat.open(1);
    const asking = conversation.ask('one');
    await chat.open(2);
    refuse({ code: 'busy', message: 'An answer is being written.', params: { work: 'answer' } });
    await asking;
    expect(notices.failure).toBe(
      `Eine Frage wurde nicht beantwortet. ${de.errors.busy.body?.({ work: 'answer' })} Der Text bleibt erhalten.`,
    );
  });
});
