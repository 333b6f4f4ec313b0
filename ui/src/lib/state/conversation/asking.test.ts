import { describe, expect, it, vi } from 'vitest';
import type { AnswerRequest, ErrorInfo } from '../../ipc/schema.gen';
import { converse, ended, failed, keptConversation, round, settled } from './testing';
import { answerText } from '../thread.svelte';

describe('ActiveConversation', () => {
  it('asks each question after the previous answer, in one conversation', async () => {
    const { host, conversation, frame, send } = converse();
    await send('one');
    host.say(0, round('ONE'), ended);
    frame();
    await send('two');
    expect(host.asked).toEqual([
      { kind: 'question', parent: null, text: 'one' },
      { kind: 'question', parent: 11, text: 'two' },
    ]);
    expect(host.named('answer').map((args) => (args['request'] as AnswerRequest).conversation)).toEqual([null, 7]);
    expect(conversation.turns.map((turn) => [turn.question, turn.answerId])).toEqual([
      [10, 11],
      [20, 21],
    ]);
  });

  it('draws once per frame, however many messages came', async () => {
    const { host, conversation, frame, frames, send } = converse();
    await send('go');
    host.say(0, round('a'));
    host.say(1, round('b'));
    expect(conversation.turns[0]?.answer.text).toBe('');
    expect(frames).toHaveLength(1);
    frame();
    expect(conversation.turns[0]?.answer.text).toBe('ab');
  });

  it('requests a stop at once and only once', async () => {
    const { host, conversation, send } = converse();
    await send('go');
    conversation.stop();
    conversation.stop();
    expect(host.named('stop_generation')).toEqual([{ generationId: 1 }]);
    expect(conversation.stopping).toBe(true);
  });

  it('stops a generation that had no number yet', async () => {
    const { host, conversation } = converse();
    host.holdBack = true;
    conversation.draft = 'go';
    void conversation.send();
    await settled();
    conversation.stop();
    expect(host.named('stop_generation')).toEqual([]);
    host.release?.();
    await settled();
    expect(host.named('stop_generation')).toEqual([{ generationId: 1 }]);
  });

  it('ignores sending while an answer is written, and keeps the draft', async () => {
    const { host, conversation, send } = converse();
    await send('one');
    await send('two');
    expect(host.named('answer')).toHaveLength(1);
    expect(conversation.draft).toBe('two');
  });

  it('puts a refused question back, and leaves it out of the next request', async () => {
    const { host, conversation, send } = converse();
    host.refusal = { code: 'context_overflow', message: 'too long' };
    await send('long');
    expect(conversation.draft).toBe('long');
    expect(conversation.turns[0]?.answer.error?.code).toBe('context_overflow');
    expect(conversation.running).toBe(false);
    host.refusal = null;
    await send('short');
    expect(host.asked[1]).toEqual({ kind: 'question', parent: null, text: 'short' });
  });

  it('does not overwrite a newer draft', async () => {
    const { host, conversation, send } = converse();
    host.refusal = { code: 'busy', message: 'busy' };
    const sending = send('one');
    conversation.draft = 'something else';
    await sending;
    expect(conversation.draft).toBe('something else');
    expect(conversation.turns[0]?.prompt).toBe('one');
  });

  it('keeps a failed answer, and regenerates it on a branch', async () => {
    const { host, conversation, frame, send } = converse();
    await send('one');
    host.say(0, round('half'), failed);
    frame();
    const turn = conversation.turns[0]!;
    expect(turn.answer.text).toBe('half');
    expect(conversation.running).toBe(false);
    await conversation.regenerate(turn);
    expect(host.asked[1]).toEqual({ kind: 'again', question: 10 });
    expect(conversation.turns).toHaveLength(1);
    expect(conversation.turns[0]?.answers).toEqual({ ids: [11, 21], at: 1 });
  });

  it('edits a question on a new branch, and shows the old one when chosen', async () => {
    const { host, conversation, frame, send } = converse();
    await send('one');
    host.say(0, round('ONE'), ended);
    frame();
    await conversation.edit(conversation.turns[0]!, 'uno');
    expect(host.asked[1]).toEqual({ kind: 'question', parent: null, text: 'uno' });
    host.say(0, round('UNO'), ended);
    frame();
    expect(conversation.turns[0]?.questions).toEqual({ ids: [10, 20], at: 1 });
    await conversation.choose(10);
    expect(conversation.turns.map((turn) => [turn.prompt, turn.answer.text])).toEqual([['one', 'ONE']]);
    expect(host.named('choose_branch')).toEqual([{ leaf: 11 }]);
  });

  it('starts a continued answer with its prefix, also when events come first', async () => {
    const { host, conversation, frame, send } = converse();
    await send('one');
    host.say(0, round('ONE'), ended);
    frame();
    host.prefix = [round('ONE')];
    host.holdBack = true;
    void conversation.continueAnswer(conversation.turns[0]!);
    await settled();
    host.say(0, round(' AND'));
    frame();
    host.release?.();
    await settled();
    frame();
    expect(host.asked[1]).toEqual({ kind: 'continue', answer: 11, tokens: null, then: null });
    expect(conversation.turns[0]?.answer.text).toBe('ONE AND');
    expect(conversation.turns[0]?.answers).toEqual({ ids: [11, 21], at: 1 });
  });

  it('keeps the screen when an answer cannot be regenerated, and says why', async () => {
    const { host, conversation, frame, send } = converse();
    await send('one');
    host.say(0, round('ONE'), ended);
    frame();
    await send('two');
    host.say(0, round('TWO'), ended);
    frame();
    host.refusal = { code: 'busy', message: 'busy' };
    await conversation.regenerate(conversation.turns[0]!);
    expect(conversation.turns.map((turn) => turn.answer.text)).toEqual(['ONE', 'TWO']);
    expect([conversation.error?.code, conversation.running, conversation.draft]).toEqual(['busy', false, '']);
    host.refusal = null;
    await send('three');
    expect(host.asked.at(-1)).toEqual({ kind: 'question', parent: 21, text: 'three' });
    expect(conversation.error).toBeNull();
  });

  it('switches only once another conversation is loaded, and not after a question was asked', async () => {
    const { host, conversation, frame, send } = converse();
    await send('one');
    host.say(0, round('ONE'), ended);
    frame();
    const entry = { id: 3, title: 't', pinned: false, created_ms: 0, updated_ms: 0 };
    host.kept[3] = { entry, system: '', leaf: null, messages: [] };
    const opening = conversation.open(3);
    await Promise.all([opening, conversation.ask('two')]);
    expect(conversation.id).toBe(7);
    expect(conversation.turns.map((turn) => turn.prompt)).toEqual(['one', 'two']);
  });

  it('polls the rest of an answer that another page started', async () => {
    const { host, conversation, later } = converse();
    const entry = { id: 3, title: 't', pinned: false, created_ms: 0, updated_ms: 0 };
    const common = { created_ms: 0, settings: null };
    host.kept[3] = {
      entry,
      system: '',
      leaf: null,
      messages: [
        { id: 1, parent: null, role: 'user', content: 'a', state: 'complete', ...common },
        { id: 2, parent: 1, role: 'assistant', content: '', state: 'streaming', ...common },
      ],
    };
    host.events = { 2: [round('A')] };
    await conversation.open(3);
    expect(conversation.turns[0]?.answer.over).toBe(false);
    host.events = { 2: [round('A'), round('B'), ended] };
    later.splice(0).forEach((then) => then());
    await settled();
    expect([conversation.turns[0]?.answer.text, conversation.turns[0]?.answer.phase]).toEqual(['AB', 'finished']);
  });

  it('loads the answers of a saved conversation, and marks interrupted ones', async () => {
    const { host, conversation } = converse();
    const entry = { id: 3, title: 't', pinned: false, created_ms: 0, updated_ms: 0 };
    const common = { created_ms: 0, state: 'complete' as const, settings: null };
    host.kept[3] = {
      entry,
      system: 'Be kind.',
      leaf: null,
      messages: [
        { id: 1, parent: null, role: 'user', content: 'a', ...common },
        { id: 2, parent: 1, role: 'assistant', content: 'A', ...common },
        { id: 3, parent: 2, role: 'user', content: 'b', ...common },
        { id: 4, parent: 3, role: 'assistant', content: 'B', ...common },
      ],
    };
    host.events = { 2: [round('A'), ended], 4: [round('B')] };
    await conversation.open(3);
    // Until the reader is near, an earlier answer is plain text.
    expect(conversation.turns.map((turn) => [turn.stored, turn.answer.phase])).toEqual([
      ['A', 'waiting'],
      ['B', 'interrupted'],
    ]);
    conversation.near(conversation.turns[0]!, true);
    conversation.near(conversation.turns[0]!, true);
    await vi.waitFor(() => expect(conversation.turns[0]?.answer.over).toBe(true));
    expect(host.named('answer_events')).toEqual([{ message: 4 }, { message: 2 }]);
    expect(conversation.turns.map((turn) => [turn.prompt, turn.answer.text, turn.answer.phase])).toEqual([
      ['a', 'A', 'finished'],
      ['b', 'B', 'interrupted'],
    ]);
    expect([conversation.id, conversation.system, conversation.running]).toEqual([3, 'Be kind.', false]);
    expect(conversation.turns[0]?.answer.counts.plain).toBe(1);
  });

  it('keeps drafts by conversation', async () => {
    const { host, conversation, frame, send } = converse();
    await send('one');
    conversation.draft = 'half typed';
    host.say(0, round('ONE'), ended);
    frame();
    conversation.clear();
    expect([conversation.id, conversation.draft, conversation.turns]).toEqual([null, '', []]);
    conversation.draft = 'for later';
    host.kept[7] = keptConversation(7);
    await conversation.open(7);
    expect(conversation.draft).toBe('half typed');
    conversation.clear();
    expect(conversation.draft).toBe('for later');
  });
});

describe('an answer whose events cannot be read', () => {
  const unreadable: ErrorInfo = { code: 'store', message: 'a record cannot be read; the text of answers is there' };

  it('shows its saved text, and can be fetched again', async () => {
    const { host, conversation } = converse();
    host.kept[3] = keptConversation(3, '<think>hm</think>\n\nAs it was.');
    host.unreadable = unreadable;
    await conversation.open(3);
    const turn = () => conversation.turns[0]!;
    expect([turn().answer.error, turn().answer.blocks.length, turn().stored]).toEqual([unreadable, 0, '<think>hm</think>\n\nAs it was.']);
    expect(conversation.retryFetches(turn())).toBe(true);
    expect(answerText(turn())).toBe('As it was.');
    host.unreadable = null;
    host.events = { 32: [round('As it was.'), ended] };
    await conversation.retry(turn());
    expect([turn().answer.text, turn().answer.phase, host.asked]).toEqual(['As it was.', 'finished', []]);
    expect(conversation.retryFetches(turn())).toBe(false);
  });

  it.each([
    ['complete', 'finished'],
    ['failed', 'failed'],
    ['interrupted', 'interrupted'],
  ] as const)('shows its saved text where no events were saved: %s', async (state, phase) => {
    const { host, conversation } = converse();
    host.kept[3] = keptConversation(3, 'From a file.', state);
    await conversation.open(3);
    const [turn] = conversation.turns;
    expect([turn?.answer.phase, turn?.stored, turn?.answer.blocks.length, turn?.answer.stats]).toEqual([phase, 'From a file.', 0, null]);
  });
});

describe('instructions', () => {
  const busy: ErrorInfo = { code: 'busy', message: 'busy' };
  const held = () => {
    const made = converse();
    made.host.holdInstructions = true;
    /** Settles the current request. */
    const answer = async (by: 'take' | 'refuse') => {
      const instruction = made.host.instructions.shift();
      if (by === 'take') instruction?.take(7);
      else instruction?.refuse(busy);
      await settled();
    };
    return { ...made, answer };
  };

  it('of a new conversation wait for its first question, and create no conversation before', async () => {
    const { conversation, host, changes } = converse();
    await conversation.instruct('a');
    await conversation.instruct('b');
    expect([conversation.system, conversation.id, host.named('set_system_prompt'), changes]).toEqual(['b', null, [], []]);
    await conversation.ask('one');
    expect([conversation.system, conversation.id, host.named('set_system_prompt')]).toEqual(['b', 7, [{ id: null, system: 'b' }]]);
    expect(host.named('answer').map(({ request }) => (request as AnswerRequest).conversation)).toEqual([7]);
    // The next one has none.
    conversation.clear();
    expect(conversation.system).toBe('');
  });

  it('of a new conversation stay with it while others are shown, and when its question is refused', async () => {
    const { conversation, host } = converse();
    host.kept[3] = keptConversation(3);
    await conversation.instruct('a');
    await conversation.open(3);
    expect(conversation.system).toBe('');
    conversation.clear();
    expect(conversation.system).toBe('a');
    host.refusal = busy;
    await conversation.ask('one');
    expect([conversation.system, conversation.id, host.named('delete_conversation')]).toEqual(['a', null, [{ id: 7 }]]);
    host.refusal = null;
    await conversation.retry(conversation.turns[0]!);
    expect([conversation.system, conversation.id, host.asked.length]).toEqual(['a', 7, 2]);
  });

  it('of a new conversation are used for an edited question, and kept if that is refused', async () => {
    const { conversation, host } = converse();
    await conversation.instruct('a');
    host.refusal = busy;
    await conversation.ask('one');
    await conversation.edit(conversation.turns[0]!, 'uno');
    expect([conversation.system, conversation.place]).toEqual(['a', null]);
    host.refusal = null;
    await conversation.edit(conversation.turns[0]!, 'uno');
    expect([conversation.system, conversation.id, host.named('set_system_prompt').length]).toEqual(['a', 7, 3]);
  });

  it('of every new conversation can be changed for one', async () => {
    const { conversation, host, preferences } = converse();
    await preferences.set('defaultInstructions', 'Be kind.');
    expect(conversation.system).toBe('Be kind.');
    await conversation.instruct('');
    await conversation.ask('one');
    expect([conversation.system, host.named('set_system_prompt')]).toEqual(['', []]);
    conversation.stop();
    conversation.clear();
    expect([conversation.system, preferences.newInstructions]).toEqual(['Be kind.', null]);
  });

  it('that are refused do not undo newer ones', async () => {
    const { conversation, answer, host } = held();
    host.kept[7] = keptConversation(7);
    await conversation.open(7);
    void conversation.instruct('a');
    void conversation.instruct('b');
    await settled();
    await answer('refuse');
    expect([conversation.system, conversation.error]).toEqual(['b', busy]);
    await answer('take');
    expect(conversation.system).toBe('b');
    void conversation.instruct('c');
    void conversation.instruct('d');
    await settled();
    await answer('refuse');
    expect(conversation.system).toBe('d');
    await answer('refuse');
    expect(conversation.system).toBe('b');
  });

  it('that are set during the first question go to its conversation', async () => {
    const { host, conversation } = converse();
    host.holdBack = true;
    void conversation.ask('one');
    await settled();
    void conversation.instruct('a');
    await settled();
    expect(host.named('set_system_prompt')).toEqual([]);
    host.release?.();
    await settled();
    expect([host.named('set_system_prompt'), conversation.system]).toEqual([[{ id: 7, system: 'a' }], 'a']);
  });
});
