// Answers and questions of a conversation that the reader has left.

import { describe, expect, it } from 'vitest';
import type { ErrorInfo } from '../../ipc/schema.gen';
import { converse, ended, keptConversation, round, settled } from './testing';

describe('an answer whose conversation is left', () => {
  it('continues, and is up to date when the reader returns', async () => {
    const { host, conversation, frame, send } = converse();
    host.kept[3] = keptConversation(3);
    await send('one');
    host.say(0, round('a'));
    frame();
    const { answer, key } = conversation.turns[0]!;
    await conversation.open(3);
    expect([conversation.id, conversation.running, conversation.writingHere, conversation.writing]).toEqual([3, true, false, 7]);
    host.say(1, round('b'));
    frame();
    expect(answer.text).toBe('ab');
    await conversation.open(7);
    expect(conversation.turns.map((turn) => [turn.key, turn.answer, turn.answerId])).toEqual([[key, answer, 11]]);
    expect(conversation.writingHere).toBe(true);
    conversation.clear();
    host.say(2, ended);
    frame();
    expect([conversation.running, conversation.writing, answer.phase, conversation.turns]).toEqual([false, null, 'finished', []]);
    expect(host.named('stop_generation')).toEqual([]);
    expect(host.named('open_conversation')).toEqual([{ id: 3 }]);
  });

  it('queues a question, blocks other changes, and can be stopped from anywhere', async () => {
    const { host, conversation, send } = converse();
    host.kept[3] = keptConversation(3);
    await send('one');
    await conversation.open(3);
    await send('two');
    await conversation.regenerate(conversation.turns[0]!);
    await conversation.edit(conversation.turns[0]!, 'b');
    expect([host.asked.length, conversation.queue.map(({ turn }) => turn.prompt)]).toEqual([1, ['two']]);
    // Branches of another conversation can be browsed meanwhile.
    await conversation.choose(31);
    expect(host.named('choose_branch')).toEqual([{ leaf: 32 }]);
    conversation.stop();
    expect([host.named('stop_generation'), conversation.stopping]).toEqual([[{ generationId: 1 }], true]);
  });

  it('is listed once it has a number, even if the reader has left', async () => {
    const { host, conversation, changes } = converse();
    host.holdBack = true;
    void conversation.ask('one');
    await settled();
    conversation.clear();
    expect(changes).toEqual([]);
    host.release?.();
    await settled();
    expect([changes, conversation.id, conversation.turns, host.named('stop_generation')]).toEqual([[7], null, [], []]);
    conversation.showWriting();
    expect([conversation.id, conversation.turns.map(({ prompt }) => prompt)]).toEqual([7, ['one']]);
  });
});

describe('an answer that is not saved', () => {
  const full: ErrorInfo = { code: 'store', message: 'The disk is full.' };

  /** An answer of conversation 7 that the store refuses. The store has its question only. */
  async function notSaved() {
    const made = converse();
    const { host, frame, send } = made;
    host.kept = { 3: keptConversation(3), 7: keptConversation(7, '', 'streaming') };
    await send('one');
    host.say(0, round('ONE'), { type: 'not_kept', error: full });
    frame();
    const shown = () => made.conversation.turns.map(({ prompt, answer }) => [prompt, answer.text, answer.notKept]);
    return { ...made, shown, opened: () => host.named('open_conversation').map(({ id }) => id) };
  }

  it('is still there when the reader returns, until it is saved', async () => {
    const { conversation, frame, host, opened, shown } = await notSaved();
    host.say(2, ended);
    frame();
    await conversation.open(3);
    await conversation.open(7);
    expect([conversation.id, shown(), opened()]).toEqual([7, [['one', 'ONE', full]], [3]]);
    conversation.clear();
    host.say(3, { type: 'kept' });
    frame();
    await conversation.open(7);
    expect(opened()).toEqual([3, 7]);
  });

  it('is still there if it ended and was given up while the reader was elsewhere', async () => {
    const { conversation, frame, host, shown } = await notSaved();
    await conversation.open(3);
    host.say(2, ended);
    frame();
    host.say(3, { type: 'given_up', error: full });
    frame();
    await conversation.open(7);
    expect(shown()).toEqual([['one', 'ONE', full]]);
    expect(conversation.turns[0]?.answer.givenUp).toBe(true);
  });

  it('stays on screen when another file is used', async () => {
    const { conversation, frame, host, shown } = await notSaved();
    host.say(2, ended);
    frame();
    conversation.leaveStore(false);
    expect(shown()).toEqual([['one', 'ONE', full]]);
    // Its number may be another conversation's there.
    conversation.clear();
    await conversation.open(7);
    expect(shown()).toEqual([['a', '', null]]);
  });

  it('becomes text of a new conversation there, and is asked again without its numbers', async () => {
    const { conversation, frame, host } = await notSaved();
    host.say(2, ended);
    frame();
    conversation.leaveStore(true);
    const [turn] = conversation.turns;
    expect([conversation.id, turn?.question, turn?.answerId]).toEqual([null, null, null]);
    await conversation.regenerate(turn!);
    const request = { conversation: null, asking: { kind: 'question', parent: null, text: 'one' } };
    expect(host.named('answer').at(-1)?.['request']).toMatchObject(request);
    expect(conversation.turns.map(({ prompt }) => prompt)).toEqual(['one', 'one']);
  });
});

describe('a question that waits for its models', () => {
  it.each(['open', 'clear'] as const)(
    'is asked in the new conversation it was typed in, whatever the reader does meanwhile: %s',
    async (act) => {
      const { host, conversation, frame, models } = converse(true);
      host.kept[3] = keptConversation(3);
      conversation.draft = 'one';
      void conversation.send();
      if (act === 'open') await conversation.open(3);
      else conversation.clear();
      conversation.draft = 'typed meanwhile';
      models[0]?.come();
      await settled();
      expect(host.named('answer').map((args) => args['request'])).toMatchObject([
        { conversation: null, asking: { kind: 'question', parent: null, text: 'one' } },
      ]);
      expect([conversation.id, conversation.turns.length, conversation.writing]).toEqual(act === 'open' ? [3, 1, 7] : [null, 0, 7]);
      expect(conversation.draft).toBe('typed meanwhile');
      host.say(0, round('ONE'), ended);
      frame();
      expect(conversation.running).toBe(false);
    },
  );

  it('is asked in its own conversation, even if another one is open by then', async () => {
    const { host, conversation, models } = converse(true);
    host.kept = { 3: keptConversation(3), 4: keptConversation(4) };
    await conversation.open(3);
    void conversation.ask('more');
    await conversation.open(4);
    models[0]?.come();
    await settled();
    expect(host.named('answer').map((args) => args['request'])).toMatchObject([
      { conversation: 3, asking: { kind: 'question', parent: 32, text: 'more' } },
    ]);
    expect([conversation.id, conversation.turns.map(({ prompt }) => prompt)]).toEqual([4, ['a']]);
    await conversation.open(3);
    expect(conversation.turns.map(({ prompt, question }) => [prompt, question])).toEqual([
      ['a', 31],
      ['more', 10],
    ]);
  });

  it.each(['open', 'clear'] as const)('returns to its composer when loading fails, with a notice where the reader is: %s', async (act) => {
    const { host, conversation, models, elsewhere } = converse(true);
    host.kept = { 3: keptConversation(3), 4: keptConversation(4) };
    await conversation.open(3);
    void conversation.ask('more');
    if (act === 'open') await conversation.open(4);
    else conversation.clear();
    models[0]?.fail({ code: 'stopped', message: 'Called off.' });
    await settled();
    expect([elsewhere, conversation.running, conversation.draft, host.asked]).toEqual([['Called off.'], false, '', []]);
    await conversation.open(3);
    expect([conversation.draft, conversation.turns.map(({ prompt }) => prompt)]).toEqual(['more', ['a', 'more']]);
    expect(conversation.turns[1]?.answer.error?.code).toBe('stopped');
  });

  it('of a new conversation stays in the new one when loading fails', async () => {
    const { host, conversation, models, elsewhere } = converse(true);
    void conversation.ask('one');
    conversation.clear();
    conversation.draft = 'something else';
    models[0]?.fail({ code: 'stopped', message: 'Called off.' });
    await settled();
    expect([elsewhere, conversation.turns.map(({ prompt }) => prompt), conversation.draft]).toEqual([[], ['one'], 'something else']);
    // Once that has begun, the new conversation is another one. The question is dismissed with a notice.
    host.refusal = null;
    conversation.dismiss(conversation.turns[0]!);
    conversation.clear();
    expect(conversation.turns).toEqual([]);
  });
});
