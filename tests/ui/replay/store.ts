// The conversations of the replay host: an in-memory store that behaves like the engine's. Starts with the
// conversations of a recorded application.

import type {
  Asking,
  AnswerRequest,
  AnswerSettings,
  Conversation,
  ConversationEntry,
  ErrorInfo,
  GenerationEvent,
  SearchHit,
  StoredMessage,
  TokenEvent,
} from '../../../ui/src/lib/ipc/schema.gen';
import { refusal } from './refusal';

/** A conversation of a recorded application. */
export interface RecordedConversation {
  conversation: Conversation;
  /** Events of its answers by message, or the error of reading them. */
  events: Record<number, GenerationEvent[] | ErrorInfo>;
}

/** Response to the start of an answer. */
interface BegunAnswer {
  conversation: number;
  question: number;
  answer: number;
  prefix: GenerationEvent[];
}

interface Kept {
  conversation: Conversation;
  deleted: boolean;
  named: boolean;
}

/** Conversations in memory. */
export class ReplayStore {
  readonly #kept = new Map<number, Kept>();
  readonly #events = new Map<number, GenerationEvent[]>();
  readonly #unreadable = new Map<number, ErrorInfo>();
  #next = 1;
  #now: () => number;

  constructor(recorded: readonly RecordedConversation[], now: () => number = Date.now) {
    this.#now = now;
    for (const each of recorded) this.add(each);
  }

  /** Adds a conversation with its own numbers. */
  add({ conversation, events }: RecordedConversation): number {
    this.#kept.set(conversation.entry.id, { conversation, deleted: false, named: true });
    const ids = [conversation.entry.id, ...conversation.messages.map((message) => message.id)];
    this.#next = Math.max(this.#next, ...ids.map((id) => id + 1));
    for (const [id, recorded] of Object.entries(events)) {
      if (Array.isArray(recorded)) this.#events.set(Number(id), recorded);
      else this.#unreadable.set(Number(id), recorded);
    }
    return conversation.entry.id;
  }

  list(): ConversationEntry[] {
    return [...this.#kept.values()]
      .filter((kept) => !kept.deleted)
      .map((kept) => kept.conversation.entry)
      .sort((a, b) => Number(b.pinned) - Number(a.pinned) || b.updated_ms - a.updated_ms || b.id - a.id);
  }

  open(id: number): Conversation {
    return this.#find(id).conversation;
  }

  events(message: number): GenerationEvent[] {
    const why = this.#unreadable.get(message);
    if (why) throw why;
    return this.#events.get(message) ?? [];
  }

  rename(id: number, title: string): void {
    const kept = this.#find(id);
    if (title.trim() === '') return;
    kept.conversation.entry.title = title.trim();
    kept.named = true;
  }

  pin(id: number, pinned: boolean): void {
    this.#find(id).conversation.entry.pinned = pinned;
  }

  setDeleted(id: number, deleted: boolean): void {
    this.#find(id).deleted = deleted;
  }

  setSystem(id: number | null, system: string): number {
    const conversation = id === null ? this.#create() : this.#find(id).conversation;
    conversation.system = system;
    return conversation.entry.id;
  }

  setLeaf(leaf: number): void {
    this.#ofMessage(leaf).leaf = leaf;
  }

  search(query: string): SearchHit[] {
    const words = query
      .toLowerCase()
      .split(/[^\p{L}\p{N}]+/u)
      .filter(Boolean);
    const hits: SearchHit[] = [];
    if (words.length === 0) return hits;
    const mark = (text: string) =>
      text.replace(new RegExp(words.map((word) => word.replace(/[^\p{L}\p{N}]/gu, '')).join('|'), 'giu'), '\ue000$&\ue001');
    const found = (text: string) => words.every((word) => text.toLowerCase().includes(word));
    for (const { conversation, deleted } of this.#kept.values()) {
      if (deleted) continue;
      const { id, title } = conversation.entry;
      if (found(title)) hits.push({ conversation: id, title, message: null, excerpt: mark(title) });
      for (const message of conversation.messages)
        if (found(message.content))
          hits.push({ conversation: id, title, message: message.id, excerpt: mark(message.content.slice(0, 120)) });
    }
    return hits;
  }

  /** Stores the question and starts the answer. Returns it with a function that undoes both if it never starts. */
  begin(request: AnswerRequest, writer: Pick<AnswerSettings, 'target' | 'draft' | 'server'>): { begun: BegunAnswer; undo: () => void } {
    const before = [...this.#kept].map(([id, kept]) => [id, { ...kept, conversation: structuredClone(kept.conversation) }] as const);
    const undo = () => {
      this.#kept.clear();
      for (const [id, kept] of before) this.#kept.set(id, kept);
    };
    const { conversation, question, prefix } = this.#ground(request.conversation, request.asking);
    const answer = this.#add(conversation, {
      parent: question,
      role: 'assistant',
      content: '',
      state: 'streaming',
      settings: { ...request.settings, ...writer },
    });
    this.#events.set(answer, [...prefix]);
    return { begun: { conversation: conversation.entry.id, question, answer, prefix }, undo };
  }

  /** Stores events of an answer. */
  keep(answer: number, events: readonly GenerationEvent[]): void {
    const message = this.#message(answer);
    this.#events.get(answer)?.push(...events);
    for (const event of events) {
      if (event.type === 'round' || event.type === 'finished') message.content += event.tokens.map((token) => token.text).join('');
      if (event.type === 'finished' || event.type === 'server_finished') message.state = 'complete';
      if (event.type === 'failed') message.state = 'failed';
    }
  }

  #ground(id: number | null, asking: Asking): { conversation: Conversation; question: number; prefix: GenerationEvent[] } {
    if (asking.kind === 'question') {
      const conversation = id === null ? this.#create() : this.#find(id).conversation;
      const { parent, text, attachments } = asking;
      const files = attachments && { attachments };
      const question = this.#add(conversation, { parent, role: 'user', content: text, ...files, state: 'complete', settings: null });
      const kept = this.#find(conversation.entry.id);
      if (parent === null && !kept.named) conversation.entry.title = text.split('\n')[0]?.slice(0, 60) ?? '';
      return { conversation, question, prefix: [] };
    }
    if (asking.kind === 'again') {
      return { conversation: this.#ofMessage(asking.question), question: asking.question, prefix: [] };
    }
    const conversation = this.#ofMessage(asking.answer);
    const question = this.#message(asking.answer).parent;
    if (question === null) throw refusal('invalid_request', 'Only an answer can be continued.');
    let left = asking.tokens ?? Infinity;
    const prefix: GenerationEvent[] = [];
    for (const event of this.events(asking.answer)) {
      if (event.type === 'started') prefix.push(event);
      if (event.type !== 'round' || left <= 0) continue;
      const tokens = event.tokens.slice(0, left);
      left -= tokens.length;
      prefix.push({ ...event, tokens });
    }
    const chosen = asking.then === null ? null : this.#chosen(asking.answer, asking.tokens ?? 0, asking.then);
    if (chosen) prefix.push(chosen);
    return { conversation, question, prefix };
  }

  /** The round of the token chosen in place of token `at` of an answer. */
  #chosen(answer: number, at: number, id: number): GenerationEvent | null {
    const rounds = this.events(answer).filter((event) => event.type === 'round');
    const place = rounds.flatMap((event) => event.tokens)[at];
    const other = [...(place?.top ?? []), ...(place?.guesses ?? [])].find(([token]) => token === id);
    const before = rounds[0];
    if (!place || !other || !before) return null;
    const round = rounds.filter((event) => event.round < place.round).length + 1;
    const token: TokenEvent = {
      ...place,
      id,
      text: other[1],
      origin: 'chosen',
      p: 1,
      q: null,
      u: null,
      threshold: null,
      confidence: other[2],
      round,
      position: 0,
    };
    return { ...before, round, drafted: 0, draft: [], tokens: [token], rejected: [] };
  }

  #create(): Conversation {
    const id = this.#next++;
    const now = this.#now();
    const entry = { id, title: '', pinned: false, created_ms: now, updated_ms: now };
    const conversation: Conversation = { entry, system: '', leaf: null, messages: [] };
    this.#kept.set(id, { conversation, deleted: false, named: false });
    return conversation;
  }

  #add(conversation: Conversation, message: Omit<StoredMessage, 'id' | 'created_ms'>): number {
    const id = this.#next++;
    const now = this.#now();
    conversation.messages = [...conversation.messages, { ...message, id, created_ms: now }];
    conversation.leaf = id;
    conversation.entry.updated_ms = now;
    return id;
  }

  #find(id: number): Kept {
    const kept = this.#kept.get(id);
    if (!kept) throw refusal('invalid_request', `There is no conversation ${id} any more. Open another conversation.`);
    return kept;
  }

  #ofMessage(id: number): Conversation {
    for (const { conversation } of this.#kept.values()) if (conversation.messages.some((message) => message.id === id)) return conversation;
    throw refusal('invalid_request', `There is no message ${id} any more. Open another conversation.`);
  }

  #message(id: number): StoredMessage {
    const message = this.#ofMessage(id).messages.find((other) => other.id === id);
    if (!message) throw refusal('invalid_request', `There is no message ${id} any more. Open another conversation.`);
    return message;
  }
}
