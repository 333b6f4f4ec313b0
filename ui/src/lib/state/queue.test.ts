import { describe, expect, it, vi } from 'vitest';
import { createWindow } from '../../window';
import type { AnswerRequest, ErrorInfo, GenerationEvent, StreamMessage } from '../ipc/schema.gen';
import { entries, KeepingHost } from './testing';

// The window draws events in frames, which Node does not have.
vi.stubGlobal('requestAnimationFrame', (then: () => void) => setTimeout(then, 0));
vi.stubGlobal('cancelAnimationFrame', clearTimeout);

const busy: ErrorInfo = { code: 'busy', message: 'Busy.' };
const failed: GenerationEvent = { type: 'failed', error: { code: 'device', message: 'Gone.' } };

/** A host whose answers end when a test says so. */
class QueueHost extends KeepingHost {
  #receive: ((message: StreamMessage) => void)[] = [];
  #generations = 0;
  refuses = false;

  override async invoke(command: string, args: Record<string, unknown>): Promise<unknown> {
    if (command !== 'answer') return super.invoke(command, args);
    this.calls.push([command, args]);
    if (this.refuses) throw busy;
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
  const { chat, messageDrafts } = createWindow(host);
  await chat.models.start();
  await chat.conversations.refresh();
  const { conversation } = chat;
  /** Ends the current answer and lets the next one begin. */
  const ended = async () => {
    host.end();
    await new Promise((resolve) => setTimeout(resolve, 40));
  };
  /** Opens a conversation and sends a question there. */
  const send = async (id: number, text: string) => {
    await chat.chat.open(id);
    conversation.draft = text;
    await conversation.send();
  };
  return { ...chat, host, ended, send, messageDrafts, prompts: () => conversation.queue.map(({ turn }) => turn.prompt) };
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
    await chat.open(3);
    host.refuses = true;
    await ended();
    expect([prompts(), conversation.running, messageDrafts.draftOf(2)]).toEqual([[], false, 'two']);
    await chat.open(2);
    expect(conversation.turns.at(-1)?.answer.error).toEqual(busy);
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
