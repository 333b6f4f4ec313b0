// A host whose responses a test controls, and an open conversation on it.

import { appInfo, SilentHost } from '../../host/testing';
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
} from '../../ipc/schema.gen';
import { ActiveConversation, type ConversationCallbacks } from '../conversation.svelte';
import { Preferences } from '../preferences.svelte';
import { Settings } from '../settings.svelte';
import { MessageDrafts } from '../messageDrafts.svelte';

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
export const failed: GenerationEvent = { type: 'failed', error: { code: 'device', message: 'gone' } };
export const round = (text: string): GenerationEvent => ({
  type: 'round',
  round: 0,
  drafted: 0,
  draft: [],
  tokens: [token(text)],
  rejected: [],
  timing: { propose_ms: 0, target_ms: 0, verify_ms: 0, other_ms: 0 },
  depth: null,
  drafted_by: null,
  figures: { generated_tokens: 1, rounds: 1, decode_tok_s: 1, acceptance_rate: 0, mean_acceptance_length: 1 },
});
export const ended: GenerationEvent = {
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
export function keptConversation(id: number, content = 'A', state: MessageState = 'complete'): Conversation {
  const entry = { id, title: 't', pinned: false, created_ms: 0, updated_ms: 0 };
  const common = { created_ms: 0, settings: null };
  const question = { id: 10 * id + 1, parent: null, role: 'user' as const, content: 'a', state: 'complete' as const, ...common };
  const answer = { id: 10 * id + 2, parent: 10 * id + 1, role: 'assistant' as const, content, state, ...common };
  return { entry, system: '', leaf: null, messages: [question, answer] };
}

export const settled = async () => {
  for (let turn = 0; turn < 30; turn += 1) await Promise.resolve();
};

export function converse(waiting = false) {
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
    by: () => undefined,
    writer: () => null,
    queueStopped: () => {},
    refusedElsewhere: ({ message }) => elsewhere.push(message),
  };
  const preferences = new Preferences(host);
  const messageDrafts = new MessageDrafts(preferences, () => {}, pace.clock);
  const conversation: ActiveConversation = new ActiveConversation(host, settings, messageDrafts, callbacks, pace);
  const frame = () => frames.splice(0).forEach((then) => then());
  const send = async (text: string) => {
    conversation.draft = text;
    await conversation.send();
  };
  return { host, conversation, frame, send, frames, later, changes, elsewhere, models, messageDrafts, preferences };
}
