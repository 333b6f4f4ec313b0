// A conversation: its messages as a tree, the shown branch as turns, and refused questions. Makes no requests. No
// DOM.

import type { AnswerSettings, Asking, Attachment, Conversation, ErrorInfo, MessageState, StoredMessage } from '../ipc/schema.gen';
import { Latest } from '../latest';
import { withoutThought } from '../text/thinking';
import { Answer } from './answer.svelte';
import { newestBelow, pathTo, siblingsOf, type Siblings } from './branches';

/** A conversation, as a place of unsent text: its number, its name while it is new, null before it is asked. */
export type Place = number | string | null;

/** A question: its text and its files. */
export interface Question {
  readonly prompt: string;
  readonly attachments: readonly Attachment[];
}

/** A question and its answer. */
export interface Turn extends Question {
  /** Stable while the turn is on screen. */
  readonly key: string;
  readonly answer: Answer;
  /** Saved text of the answer, shown until its tokens are loaded; null for none. */
  readonly stored: string | null;
  /** Saved settings of the answer; null if not saved. */
  readonly settings: AnswerSettings | null;
  /** Their messages; null until the engine has numbered them. */
  readonly question: number | null;
  readonly answerId: number | null;
  /** Siblings of the question and of the answer. */
  readonly questions: Siblings | null;
  readonly answers: Siblings | null;
  /** `true` if it was removed from the queue and had no room in the composer. */
  readonly removed?: boolean;
}

/** A turn whose answer is saved. */
export type AnsweredTurn = Turn & { readonly answerId: number };

/** A refused question. It stays until it is repeated, sent again with the same text, or dismissed. */
export interface Refused {
  readonly turn: Turn;
  /** The answer before it; null at the start. */
  readonly after: number | null;
}

/** Returns `true` if a server wrote the answer, which cannot continue it. */
export const isByServer = ({ answer, settings }: Turn): boolean => answer.server !== null || settings?.server !== undefined;

/** Text of an answer without its thought. The saved text, if its tokens are not loaded. */
export const answerText = ({ answer, stored }: Turn): string =>
  answer.tokens.length > 0 ? answer.answerText : withoutThought(stored ?? '');

/** Creates a turn without numbers. */
export const newTurn = (key: string, { prompt, attachments }: Question, answer: Answer): Turn => ({
  key,
  prompt,
  attachments,
  answer,
  stored: null,
  settings: null,
  question: null,
  answerId: null,
  questions: null,
  answers: null,
});

/** A conversation. */
export class Thread {
  /** Its number; null while it is new. */
  id = $state<number | null>(null);
  /** Its name in place of a number, once it was asked; null if it has none. */
  name = $state<string | null>(null);
  /** Instructions of the conversation, once it was asked. */
  system = $state('');
  /** The shown branch, and the question being asked. */
  turns = $state.raw<readonly Turn[]>([]);
  /** Error of the last action, where no answer shows it. */
  error = $state.raw<ErrorInfo | null>(null);
  /** Refused questions. */
  refused: readonly Refused[];
  /** The question that waits until another conversation's answer has ended; null for none. */
  queued: Turn | null = null;
  /** The instructions stored by the engine. */
  instructed = '';
  /** Changes of the instructions. */
  readonly instructions = new Latest();

  #lastRequest: Promise<unknown> = Promise.resolve();
  /** Turns of another store, without numbers. They come before the others. */
  #detached: readonly Turn[] = [];
  #messages: readonly StoredMessage[] = [];
  #leaf: number | null = null;
  // Looked up, never drawn from.
  // eslint-disable-next-line svelte/prefer-svelte-reactivity
  readonly #answers = new Map<number, Answer>();
  /** Keys of turns that were on screen before they had numbers, by answer. */
  // eslint-disable-next-line svelte/prefer-svelte-reactivity
  readonly #keys = new Map<number, string>();

  constructor(refused: readonly Refused[] = []) {
    this.refused = refused;
    this.show();
  }

  /** Creates the thread of a saved conversation. */
  static of({ entry, system, messages, leaf }: Conversation, refused: readonly Refused[]): Thread {
    const thread = new Thread(refused);
    thread.id = entry.id;
    thread.system = system;
    thread.instructed = system;
    thread.#messages = messages;
    thread.#leaf = leaf ?? messages.at(-1)?.id ?? null;
    thread.show();
    return thread;
  }

  /** Runs requests that change this conversation one after another: the first gives it its number, without which
   * the next would create another conversation. */
  inOrder<T>(request: () => Promise<T>): Promise<T> {
    const sent = this.#lastRequest.then(request);
    this.#lastRequest = sent.catch(() => {});
    return sent;
  }

  /** The place of its unsent text. */
  get place(): Place {
    return this.id ?? this.name;
  }

  /** The answer before the next question; null at the start. */
  get end(): number | null {
    return lastAnswer(this.turns);
  }

  /** `true` if an answer of any branch is not saved. */
  get unsaved(): boolean {
    const answers = [...this.#detached.map(({ answer }) => answer), ...this.#answers.values()];
    return answers.some(({ notKept }) => notKept !== null);
  }

  /** Returns `true` if a message belongs to this conversation. */
  has(message: number): boolean {
    return this.#find(message) !== undefined;
  }

  /** Returns `true` if a message is on the shown branch. */
  shows(message: number): boolean {
    return this.turns.some(({ question, answerId }) => question === message || answerId === message);
  }

  /** Stored state of a message; null if it is not stored. */
  stateOf(message: number): MessageState | null {
    return this.#find(message)?.state ?? null;
  }

  /** Returns `true` if an answer belongs to a message. */
  isAnswer(answer: Answer, message: number): boolean {
    return this.#answers.get(message) === answer;
  }

  /** Shows the branch of a message. Returns its newest end. */
  choose(message: number): number {
    const leaf = newestBelow(this.#messages, message);
    this.#leaf = leaf;
    this.show();
    return leaf;
  }

  /** Adds a question and its started answer. `key` is that of the turn on screen. */
  add(asking: Asking, begun: { question: number; answer: number }, by: { key: string; answer: Answer; settings: AnswerSettings }): void {
    const messages = [...this.#messages];
    const created_ms = Date.now();
    if (asking.kind === 'question')
      messages.push({
        id: begun.question,
        parent: asking.parent,
        role: 'user',
        content: asking.text,
        ...(asking.attachments && { attachments: asking.attachments }),
        created_ms,
        state: 'complete',
        settings: null,
      });
    messages.push({
      id: begun.answer,
      parent: begun.question,
      role: 'assistant',
      content: '',
      created_ms,
      state: 'streaming',
      settings: by.settings,
    });
    this.#messages = messages;
    this.#leaf = begun.answer;
    this.#answers.set(begun.answer, by.answer);
    this.#keys.set(begun.answer, by.key);
    this.show();
  }

  /** Keeps the shown turns as text of a new conversation, because another store is in use. There, their numbers may be
   * those of other messages. */
  detach(): void {
    const shown = this.turns.filter(({ question }) => question !== null);
    const detached = shown.map((turn) => ({ ...turn, question: null, answerId: null, questions: null, answers: null }));
    this.#detached = [...this.#detached, ...detached];
    this.#messages = [];
    this.#leaf = null;
    this.#answers.clear();
    this.#keys.clear();
    this.id = null;
    this.name = null;
    this.show();
  }

  /** Discards the loaded answer, so that it can be fetched again. Returns its new turn. */
  forget(message: number): Turn | undefined {
    this.#answers.delete(message);
    this.show();
    return this.turns.find(({ answerId }) => answerId === message);
  }

  /** Builds the shown branch from the tree. Questions without a number are left out. */
  show(): void {
    const path = pathTo(this.#messages, this.#leaf);
    const refusedAfter = (answer: number | null) => this.refused.filter(({ after }) => after === answer).map(({ turn }) => turn);
    const turns: Turn[] = [...this.#detached, ...refusedAfter(null)];
    for (const [at, question] of path.entries()) {
      if (question.role !== 'user') continue;
      const answer = path[at + 1];
      turns.push({
        key: answer ? (this.#keys.get(answer.id) ?? `m${answer.id}`) : `q${question.id}`,
        prompt: question.content,
        attachments: question.attachments ?? [],
        answer: answer ? this.#answerOf(answer.id) : unanswered(),
        stored: answer?.content || null,
        settings: answer?.settings ?? null,
        question: question.id,
        answerId: answer?.id ?? null,
        questions: siblingsOf(this.#messages, question),
        answers: answer ? siblingsOf(this.#messages, answer) : null,
      });
      if (answer) turns.push(...refusedAfter(answer.id));
    }
    if (this.queued) turns.push(this.queued);
    this.turns = turns;
  }

  #answerOf(message: number): Answer {
    const known = this.#answers.get(message) ?? new Answer();
    this.#answers.set(message, known);
    return known;
  }

  #find(message: number): StoredMessage | undefined {
    return this.#messages.find(({ id }) => id === message);
  }
}

/** The last answer of these turns. */
export const lastAnswer = (turns: readonly Turn[]): number | null => turns.findLast(({ answerId }) => answerId !== null)?.answerId ?? null;

/** The answer of a stored question without one. */
function unanswered(): Answer {
  const answer = new Answer();
  answer.interrupt();
  return answer;
}
