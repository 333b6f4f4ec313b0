import { describe, expect, it, vi } from 'vitest';
import { createWindow } from '../../window';
import type { AnswerRequest, ErrorInfo, GenerationEvent, StreamMessage } from '../ipc/schema.gen';
import { entries, KeepingHost } from './testing';

// The window draws events in frames, which Node does not have.
vi.stubGlobal('requestAnimationFrame', (then: () => void) => setTimeout(then, 0));
vi.stubGlobal('cancelAnimationFrame', clearTimeout);

const busy: ErrorInfo = { code: 'busy', message: 'Busy.' };
const unusable: ErrorInfo = { code: 'invalid_request', message: 'Unusable.' };
const failed: GenerationEvent = { type: 'failed', error: { code: 'device', message: 'Gone.' } };

/** A host whose answers end when a test says so. */
class QueueHost extends KeepingHost {
  #receive: ((message: StreamMessage) => void)[] = [];
  #generations = 0;
  /** Errors of the next questions. */
  refusals: ErrorInfo[] = [];

  override async invoke(command: string, args: Record<string, unknown>): Promise<unknown> {
    if (command !== 'answer') return super.invoke(command, args);
    this.calls.push([command, args]);
    const refusal = this.refusals.shift();
    if (refusal) throw refusal;
    const { conversation } = args['request'] as AnswerRequest;
    const id = 1000 + 10 * ++this.#generations;
    return { conversation: conversation ?? 7, question: id, answer: id + 1, generation_id: this.#generations, prefix: [] };
  }

  override openChannel<T>(receive: (message: T) => void): unknown {
    this.#receive.push(receive as (message: StreamMessage) => void);
    return this.#receive.length - 1;
  }

  /** Ends the current answer. */
  end(): void {
    this.#receive.at(-1)?.({ generation_id: this.#generations, seq: 0, events: [failed] });
  }

  get asked(): [number | null, string][] {
    return this.named('answer').map(({ request }) => {
      const { conversation, asking } = request as AnswerRequest;
      return [conversation, asking.kind === 'question' ? asking.text : asking.kind];
    });
  }
}

async function make() {
  const host = new QueueHost();
  const window = createWindow(host);
  const { chat, conversation } = window;
  await window.models.start();
  await window.conversations.refresh();
  /** Ends the current answer and lets the next one begin. */
  const ended = async () => {
    host.end();
    await new Promise((resolve) => setTimeout(resolve, 40));
  };
  /** Opens a conversation and sends a question there. */
  const send = async (id: number, text: string) => {
    await chat.open(id);
    conversation.draft = text;
    await conversation.send();
  };
  return { ...window, host, ended, send, prompts: () => conversation.queue.map(({ turn }) => turn.prompt) };
}

describe('a question while another conversation is answered', () => {
  it('waits for its turn, in order, and is asked in its own conversation', async () => {
    const { conversation, ended, host, prompts, send } = await make();
    await send(1, 'one');
    await send(2, 'two');
    await send(3, 'three');
    expect([host.asked, prompts()]).toEqual([[[1, 'one']], ['two', 'three']]);
    expect([conversation.queuedHere, conversation.takes, conversation.draft]).toEqual([true, false, '']);
    const turn = conversation.turns.at(-1)!;
    expect([turn.prompt, conversation.placeOf(turn)]).toEqual(['three', 2]);
    await ended();
    expect([host.asked.at(-1), prompts(), conversation.writing]).toEqual([[2, 'two'], ['three'], 2]);
    expect(conversation.placeOf(conversation.turns.at(-1)!)).toBe(1);
    await ended();
    expect([host.asked.at(-1), prompts(), conversation.writingHere]).toEqual([[3, 'three'], [], true]);
    // It follows the answer on screen.
    expect(host.named('answer').at(-1)).toMatchObject({ request: { asking: { parent: 32 } } });
    await ended();
    expect([host.asked.length, conversation.running]).toEqual([3, false]);
  });

  it('can be cancelled, and returns to its composer', async () => {
    const { conversation, ended, host, prompts, send } = await make();
    await send(1, 'one');
    await send(2, 'two');
    conversation.cancelQueued(conversation.turns.at(-1)!);
    expect([prompts(), conversation.draft, conversation.turns.map(({ prompt }) => prompt)]).toEqual([[], 'two', ['asked']]);
    await ended();
    expect(host.asked).toEqual([[1, 'one']]);
  });

  it('is one for each conversation, and none where an answer is written', async () => {
    const { chat, conversation, host, prompts, send } = await make();
    await send(1, 'one');
    conversation.draft = 'more';
    await conversation.send();
    await send(2, 'two');
    conversation.draft = 'and';
    await conversation.send();
    expect([host.asked.length, prompts(), conversation.draft]).toEqual([1, ['two'], 'and']);
    await chat.open(1);
    expect(conversation.draft).toBe('more');
  });

  it('is still there when its conversation is opened again, also a new one', async () => {
    const { chat, conversation, prompts, send } = await make();
    await send(1, 'one');
    chat.create();
    conversation.draft = 'new';
    await conversation.send();
    await send(2, 'two');
    await chat.open(3);
    await chat.open(2);
    expect(conversation.turns.at(-1)?.prompt).toBe('two');
    const [first] = conversation.queue;
    expect([prompts(), first?.conversation]).toEqual([['new', 'two'], null]);
    if (first) chat.showQueued(first.turn);
    expect([conversation.id, conversation.turns.map(({ prompt }) => prompt)]).toEqual([null, ['new']]);
  });

  it('that is refused returns to its conversation, and the next one is asked', async () => {
    const { chat, conversation, ended, host, messageDrafts, prompts, send } = await make();
    await send(1, 'one');
    await send(2, 'two');
    await send(3, 'three');
    host.refusals = [unusable];
    await ended();
    expect([prompts(), messageDrafts.draftOf(2), conversation.writing]).toEqual([[], 'two', 3]);
    expect(host.asked.map(([, text]) => text)).toEqual(['one', 'two', 'three']);
    await chat.open(2);
    expect(conversation.turns.at(-1)?.answer.error).toEqual(unusable);
  });

  it('stays in the queue while the engine is busy, as do those behind it', async () => {
    const { chat, conversation, ended, host, messageDrafts, notices, prompts, send } = await make();
    await send(1, 'one');
    await send(2, 'two');
    await send(3, 'three');
    host.refusals = [busy, busy];
    await ended();
    const kept = [['two', 'three'], false, ''];
    expect([prompts(), conversation.running, messageDrafts.draftOf(2)]).toEqual(kept);
    expect(notices.failure).toBe('The queue stopped at the question in “number 2”. Busy. Its questions are kept.');
    await conversation.askQueued();
    expect([prompts(), conversation.running, messageDrafts.draftOf(2)]).toEqual(kept);
    await chat.open(2);
    expect([conversation.turns.at(-1)?.prompt, conversation.placeOf(conversation.turns.at(-1)!)]).toEqual(['two', 1]);
    await conversation.askQueued();
    expect([prompts(), conversation.writing]).toEqual([['three'], 2]);
    await ended();
    expect([prompts(), conversation.writing, host.asked.at(-1)]).toEqual([[], 3, [3, 'three']]);
  });

  it('stays in the queue if the models cannot be loaded', async () => {
    const { conversation, ended, host, models, prompts, send } = await make();
    await send(1, 'one');
    await send(2, 'two');
    await send(3, 'three');
    models.onUnloaded(false);
    host.failing = ['load_models'];
    await ended();
    expect([prompts(), conversation.running, host.asked.length]).toEqual([['two', 'three'], false, 1]);
    host.failing = [];
    await conversation.askQueued();
    expect([prompts(), conversation.writing]).toEqual([['three'], 2]);
  });

  it('stays with its conversation when cancelled, if the composer has other text', async () => {
    const { chat, conversation, host, prompts, send } = await make();
    await send(1, 'one');
    await send(2, 'two');
    conversation.draft = 'newer';
    await chat.open(3);
    const [queued] = conversation.queue;
    if (queued) conversation.cancelQueued(queued.turn);
    await chat.open(2);
    const turn = conversation.turns.at(-1)!;
    expect([prompts(), conversation.draft, turn.prompt, turn.removed]).toEqual([[], 'newer', 'two', true]);
    // It can be asked from there.
    await chat.open(1);
    host.end();
    await chat.open(2);
    await new Promise((resolve) => setTimeout(resolve, 40));
    await conversation.regenerate(turn);
    expect(host.asked.at(-1)).toEqual([2, 'two']);
  });

  it('keeps a refused one of its conversation where it is, until it has been asked', async () => {
    const { chat, conversation, ended, host, prompts, send } = await make();
    await send(1, 'one');
    await send(2, 'refused');
    conversation.draft = 'newer';
    await chat.open(3);
    const [queued] = conversation.queue;
    if (queued) conversation.cancelQueued(queued.turn);
    await send(2, 'two');
    // The queue stops there.
    host.refusals = [busy];
    await ended();
    await chat.open(2);
    const shown = () => conversation.turns.map(({ prompt }) => prompt);
    const before = shown();
    const refused = conversation.turns.find(({ prompt }) => prompt === 'refused')!;
    await conversation.retry(refused);
    expect([shown(), prompts(), host.asked.length]).toEqual([before, ['two'], 2]);
    await conversation.askQueued();
    await ended();
    await conversation.retry(refused);
    expect(host.asked.at(-1)).toEqual([2, 'refused']);
  });

  it('of one new conversation is kept apart from those of others', async () => {
    const { chat, conversation, ended, host, messageDrafts, preferences, prompts, send } = await make();
    await send(1, 'one');
    for (const text of ['first', 'second']) {
      chat.create();
      conversation.draft = text;
      await conversation.send();
    }
    messageDrafts.keep();
    expect(preferences.drafts).toEqual({ new1: 'first', new2: 'second' });
    conversation.draft = 'behind the second';
    host.refusals = [unusable];
    await ended();
    // The first is refused. The second is being asked, on screen.
    expect([prompts(), conversation.writingHere, conversation.draft]).toEqual([[], true, 'behind the second']);
    expect(conversation.turns.map(({ prompt }) => prompt)).toEqual(['second']);
    chat.create();
    expect([conversation.turns.map(({ prompt }) => prompt), conversation.draft]).toEqual([['first'], 'first']);
    messageDrafts.keep();
    expect(preferences.drafts).toEqual({ new: 'first', c7: 'behind the second' });
  });

  it('stays when its conversation could not be deleted', async () => {
    const { chat, host, prompts, send } = await make();
    await send(1, 'one');
    await send(2, 'two');
    host.failing = ['delete_conversation'];
    await chat.delete(entries[1]!);
    expect(prompts()).toEqual(['two']);
  });

  it('is cancelled when its conversation is deleted', async () => {
    const { chat, ended, host, prompts, send } = await make();
    await send(1, 'one');
    await send(2, 'two');
    await chat.delete(entries[1]!);
    expect(prompts()).toEqual([]);
    await ended();
    expect(host.asked).toEqual([[1, 'one']]);
  });
});
