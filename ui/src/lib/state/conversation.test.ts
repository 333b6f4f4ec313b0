import { describe, expect, it, vi } from 'vitest';
import { appInfo, SilentHost } from '../host/testing';
import type {
  Answering,
  AnswerRequest,
  Asking,
  Conversation,
  ErrorInfo,
  GenerationEvent,
  MessageState,
  StreamMessage,
  TokenEvent,
} from '../ipc/schema.gen';
import { ActiveConversation, type ConversationCallbacks } from './conversation.svelte';
import { Preferences } from './preferences.svelte';
import { Settings } from './settings.svelte';
import { saidIn } from './thread.svelte';
import { MessageDrafts } from './messageDrafts.svelte';

/** An engine whose responses a test controls. */
class HandHost extends SilentHost {
  calls: { command: string; args: Record<string, unknown> }[] = [];
  refusal: ErrorInfo | null = null;
  /** Holds the response to a question until it is called. */
  release: (() => void) | null = null;
  holdBack = false;
  #receive: (message: StreamMessage) => void = () => {};
  #generations = 0;

  /** Instructions that wait for the test's response. */
  instructions: { take: (id: number) => void; refuse: (error: ErrorInfo) => void }[] = [];
  holdInstructions = false;

  /** Prefix of a continued answer. */
  prefix: GenerationEvent[] = [];
  /** Conversations that can be opened, and the events of their answers. */
  kept: Record<number, Conversation> = {};
  events: Record<number, GenerationEvent[]> = {};
  /** Errors of reading answers. */
  unreadable: ErrorInfo | null = null;

  override async invoke(command: string, args: Record<string, unknown>): Promise<unknown> {
    this.calls.push({ command, args });
    if (command === 'open_conversation') return this.kept[args['id'] as number];
    if (command === 'answer_events') {
      if (this.unreadable) throw this.unreadable;
      return this.events[args['message'] as number] ?? [];
    }
    if (command === 'set_system_prompt') {
      if (this.holdInstructions) return new Promise((take, refuse) => this.instructions.push({ take, refuse }));
      return args['id'] ?? 7;
    }
    if (command !== 'answer') return null;
    if (this.refusal) throw this.refusal;
    if (this.holdBack) await new Promise<void>((resolve) => (this.release = resolve));
    const generation_id = ++this.#generations;
    const { asking } = args['request'] as AnswerRequest;
    // Questions are numbered 10, 20, ..., their answers 11, 21, ...
    const question = asking.kind === 'again' ? asking.question : asking.kind === 'continue' ? asking.answer - 1 : 10 * generation_id;
    const { conversation } = args['request'] as AnswerRequest;
    const answering: Answering = {
      conversation: conversation ?? 7,
      question,
      answer: 10 * generation_id + 1,
      generation_id,
      prefix: this.prefix,
    };
    return answering;
  }

  override openChannel<T>(receive: (message: T) => void): unknown {
    this.#receive = receive as (message: StreamMessage) => void;
    return 0;
  }

  say(seq: number, ...events: GenerationEvent[]): void {
    this.#receive({ generation_id: this.#generations, seq, events });
  }

  /** Questions in order. */
  get asked(): Asking[] {
    return this.named('answer').map((args) => (args['request'] as AnswerRequest).asking);
  }

  named(command: string): Record<string, unknown>[] {
    return this.calls.filter((call) => call.command === command).map((call) => call.args);
  }
}

const token = (text: string): TokenEvent => ({
  id: 1,
  text,
  origin: 'plain',
  p: 1,
  q: null,
  u: null,
  threshold: null,
  confidence: 1,
  entropy: 0,
  top: [],
  guesses: [],
  round: 0,
  position: 0,
});
const failed: GenerationEvent = { type: 'failed', error: { code: 'device', message: 'gone' } };
const round = (text: string): GenerationEvent => ({
  type: 'round',
  round: 0,
  drafted: 0,
  draft: [],
  tokens: [token(text)],
  rejected: [],
  timing: { propose_ms: 0, target_ms: 0, verify_ms: 0, other_ms: 0 },
  depth: null,
  figures: { generated_tokens: 1, rounds: 1, decode_tok_s: 1, acceptance_rate: 0, mean_acceptance_length: 1 },
});
const ended: GenerationEvent = {
  type: 'finished',
  stop: 'end_of_turn',
  tokens: [],
  stats: {
    prompt_tokens: 1,
    generated_tokens: 1,
    rounds: 1,
    drafted: 0,
    accepted: 0,
    resampled: 0,
    bonus: 0,
    plain: 1,
    acceptance_rate: 0,
    mean_acceptance_length: 1,
    target_passes: [[1, 1]],
    draft_passes: [],
    accepted_at_position: [],
    drafted_at_position: [],
    ttft_ms: 1,
    prefill_tok_s: 1,
    decode_tok_s: 1,
    wall_ms: 1,
    propose_ms: 0,
    target_ms: 1,
    verify_ms: 0,
    other_ms: 0,
    peak_memory_bytes: 0,
    device: 'cpu',
  },
};

/** A saved conversation of one question and answer: messages 31 and 32 in conversation 3. */
function keptConversation(id: number, content = 'A', state: MessageState = 'complete'): Conversation {
  const entry = { id, title: 't', pinned: false, created_ms: 0, updated_ms: 0 };
  const said = { created_ms: 0, settings: null };
  const question = { id: 10 * id + 1, parent: null, role: 'user' as const, content: 'a', state: 'complete' as const, ...said };
  const answer = { id: 10 * id + 2, parent: 10 * id + 1, role: 'assistant' as const, content, state, ...said };
  return { entry, system: '', leaf: null, messages: [question, answer] };
}

const settled = async () => {
  for (let turn = 0; turn < 30; turn += 1) await Promise.resolve();
};

function converse(waiting = false) {
  const host = new HandHost();
  const settings = new Settings();
  settings.adopt(appInfo);
  const frames: (() => void)[] = [];
  const later: (() => void)[] = [];
  const after = (_: number, then: () => void) => {
    later.push(then);
    return () => {};
  };
  const pace = { clock: { after }, nextFrame: (then: () => void) => void frames.push(then) };
  const changes: (number | null)[] = [];
  const elsewhere: string[] = [];
  /** Lets loading the models succeed or fail. */
  const models: { come: () => void; fail: (error: ErrorInfo) => void }[] = [];
  const callbacks: ConversationCallbacks = {
    changed: () => changes.push(conversation.writing),
    ready: () => (waiting ? new Promise((come, fail) => models.push({ come, fail })) : Promise.resolve()),
    refusedElsewhere: ({ message }) => elsewhere.push(message),
  };
  const preferences = new Preferences(host);
  const messageDrafts = new MessageDrafts(preferences, pace.clock);
  const conversation: ActiveConversation = new ActiveConversation(host, settings, pace, callbacks, messageDrafts);
  const frame = () => frames.splice(0).forEach((then) => then());
  const send = async (text: string) => {
    conversation.draft = text;
    await conversation.send();
  };
  return { host, conversation, frame, send, frames, later, changes, elsewhere, models, messageDrafts, preferences };
}

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
    const said = { created_ms: 0, settings: null };
    host.kept[3] = {
      entry,
      system: '',
      leaf: null,
      messages: [
        { id: 1, parent: null, role: 'user', content: 'a', state: 'complete', ...said },
        { id: 2, parent: 1, role: 'assistant', content: '', state: 'streaming', ...said },
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
    const said = { created_ms: 0, state: 'complete' as const, settings: null };
    host.kept[3] = {
      entry,
      system: 'Be kind.',
      leaf: null,
      messages: [
        { id: 1, parent: null, role: 'user', content: 'a', ...said },
        { id: 2, parent: 1, role: 'assistant', content: 'A', ...said },
        { id: 3, parent: 2, role: 'user', content: 'b', ...said },
        { id: 4, parent: 3, role: 'assistant', content: 'B', ...said },
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

describe('a refused question', () => {
  const busy: ErrorInfo = { code: 'busy', message: 'busy' };

  it('stays until repeated or dismissed, while a newer draft is in the composer', async () => {
    const { host, conversation, frame } = converse();
    const refusedAsk = async (text: string) => {
      host.refusal = busy;
      await conversation.ask(text);
      host.refusal = null;
    };
    conversation.draft = 'something else';
    await refusedAsk('lost');
    await refusedAsk('unwanted');
    await conversation.send();
    host.say(0, round('ONE'), ended);
    frame();
    const prompts = () => conversation.turns.map(({ prompt }) => prompt);
    expect(prompts()).toEqual(['lost', 'unwanted', 'something else']);
    // It is not part of the next request, and is still there when the reader returns.
    host.kept[7] = keptConversation(7);
    conversation.clear();
    expect(prompts()).toEqual([]);
    await conversation.open(7);
    expect(prompts()).toEqual(['lost', 'unwanted', 'a']);
    conversation.dismiss(conversation.turns[1]!);
    expect(prompts()).toEqual(['lost', 'a']);
    await conversation.retry(conversation.turns[0]!);
    expect(host.asked.at(-1)).toEqual({ kind: 'question', parent: 72, text: 'lost' });
    expect(prompts()).toEqual(['a', 'lost']);
  });

  it('disappears when sent from the composer, and stays when another text is sent', async () => {
    const { host, conversation, frame, send } = converse();
    const prompts = () => conversation.turns.map(({ prompt }) => prompt);
    host.refusal = busy;
    await send('long');
    await send('long');
    expect([prompts(), conversation.draft]).toEqual([['long'], 'long']);
    host.refusal = null;
    await send('short');
    expect(prompts()).toEqual(['long', 'short']);
    host.say(0, round('SHORT'), ended);
    frame();
    await send('long');
    expect([prompts(), host.asked.at(-1)]).toEqual([['short', 'long'], { kind: 'question', parent: 11, text: 'long' }]);
  });

  it('that was an edit keeps the edit open, and the old turn stays', async () => {
    const { host, conversation, frame, send } = converse();
    await send('one');
    host.say(0, round('ONE'), ended);
    frame();
    host.kept[7] = keptConversation(7);
    const turn = () => conversation.turns[0]!;
    conversation.setEdit(turn(), 'uno');
    host.refusal = busy;
    await conversation.edit(turn(), 'uno');
    expect([conversation.editOf(turn()), conversation.error, turn().answer.text, conversation.turns.length]).toEqual([
      'uno',
      busy,
      'ONE',
      1,
    ]);
    host.refusal = null;
    await conversation.edit(turn(), 'uno');
    expect([conversation.turns.map(({ prompt }) => prompt), host.asked.at(-1)]).toEqual([
      ['uno'],
      { kind: 'question', parent: null, text: 'uno' },
    ]);
    host.say(0, ended);
    frame();
    await conversation.choose(10);
    expect([turn().prompt, conversation.editOf(turn())]).toEqual(['one', null]);
  });

  it('that was an edit keeps the edit open even after the reader has left', async () => {
    const { host, conversation, models, elsewhere } = converse(true);
    host.kept = { 3: keptConversation(3), 4: keptConversation(4) };
    await conversation.open(3);
    void conversation.edit(conversation.turns[0]!, 'in other words');
    await conversation.open(4);
    models[0]?.fail(busy);
    await settled();
    expect([elsewhere, conversation.error]).toEqual([['busy'], null]);
    await conversation.open(3);
    expect(conversation.editOf(conversation.turns[0]!)).toBe('in other words');
  });

  it('follows the last answer, even behind an unanswered question', async () => {
    const { host, conversation } = converse();
    const kept = keptConversation(3);
    const alone = {
      id: 33,
      parent: 32,
      role: 'user' as const,
      content: 'unanswered',
      state: 'complete' as const,
      created_ms: 0,
      settings: null,
    };
    host.kept[3] = { ...kept, messages: [...kept.messages, alone] };
    await conversation.open(3);
    await conversation.ask('next');
    expect(host.asked).toEqual([{ kind: 'question', parent: 32, text: 'next' }]);
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
    expect(saidIn(turn())).toBe('As it was.');
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
  ] as const)('and never were stands as it is kept: %s', async (state, phase) => {
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
    return { ...made, answer, prompts: () => made.host.named('set_system_prompt') };
  };

  it('create one conversation, however often they are set before it has a number', async () => {
    const { conversation, answer, prompts } = held();
    void conversation.instruct('a');
    void conversation.instruct('b');
    await settled();
    expect([conversation.system, prompts()]).toEqual(['b', [{ id: null, system: 'a' }]]);
    await answer('take');
    await answer('take');
    expect([conversation.system, conversation.id, prompts()]).toEqual([
      'b',
      7,
      [
        { id: null, system: 'a' },
        { id: 7, system: 'b' },
      ],
    ]);
  });

  it('that are refused do not undo newer ones', async () => {
    const { conversation, answer } = held();
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
