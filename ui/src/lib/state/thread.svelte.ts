// One conversation as the window has it: its messages as a tree, the branch that is shown as turns, and what was
// asked in it in vain. It asks the engine for nothing. No DOM.

import type { AnswerSettings, Asking, Conversation as Kept, ErrorInfo, MessageState, StoredMessage } from '../ipc/schema.gen';
import { Latest } from '../latest';
import { saidOf } from '../text/thinking';
import { Answer } from './answer.svelte';
import { newestBelow, pathTo, siblingsOf, type Siblings } from './branches';

/** A question and its answer. */
export interface Turn {
  /** Stays the same while the turn is on screen. */
  readonly key: string;
  readonly prompt: string;
  readonly answer: Answer;
  /** What is kept of the answer's text, to be read where its tokens are not here; null when nothing is. */
  readonly stored: string | null;
  /** What the answer was asked with, as it is kept; null when it is not. */
  readonly settings: AnswerSettings | null;
  /** Their messages; null until the engine has numbered them. */
  readonly question: number | null;
  readonly answerId: number | null;
  /** What else was asked and answered in the same place. */
  readonly questions: Siblings | null;
  readonly answers: Siblings | null;
}

/** A turn whose answer the engine keeps. */
export type AnsweredTurn = Turn & { readonly answerId: number };

/** A question that the engine would not take: it stays where it was asked until it is asked again, there or by sending
 * the same text, or dismissed. */
export interface Refused {
  readonly turn: Turn;
  /** The answer it was asked after; null at the beginning. */
  readonly after: number | null;
}

/** What an answer says, without what it thought; of one whose tokens are not here, what is kept of its text. */
export const saidIn = ({ answer, stored }: Turn): string => (answer.tokens.length > 0 ? answer.saidText : saidOf(stored ?? ''));

/** A turn that the engine has not numbered yet. */
export const newTurn = (key: string, prompt: string, answer: Answer): Turn => ({
  key,
  prompt,
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
  /** Its number; null until something was said. */
  id = $state<number | null>(null);
  /** Instructions for all of it. */
  system = $state('');
  /** The branch that is shown, and what is being asked. */
  turns = $state.raw<readonly Turn[]>([]);
  /** Why the last thing that was asked for could not be done, where no answer can say it. */
  error = $state.raw<ErrorInfo | null>(null);
  /** What was asked in vain. */
  refused: readonly Refused[];
  /** The instructions as the engine has them. */
  instructed = '';
  /** Changes of the instructions. */
  readonly instructions = new Latest();

  #told: Promise<unknown> = Promise.resolve();
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

  /** A conversation that was kept. */
  static of({ entry, system, messages, leaf }: Kept, refused: readonly Refused[]): Thread {
    const thread = new Thread(refused);
    thread.id = entry.id;
    thread.system = system;
    thread.instructed = system;
    thread.#messages = messages;
    thread.#leaf = leaf ?? messages.at(-1)?.id ?? null;
    thread.show();
    return thread;
  }

  /** Does what tells the engine something of this conversation, once what was begun before is over: the first gives it
   * its number, and what does not know that would begin another one. */
  inOrder<T>(tell: () => Promise<T>): Promise<T> {
    const told = this.#told.then(tell);
    this.#told = told.catch(() => {});
    return told;
  }

  /** The answer that the next question follows; null at the beginning. */
  get end(): number | null {
    return lastAnswer(this.turns);
  }

  /** Whether a message is of this conversation. */
  has(message: number): boolean {
    return this.#find(message) !== undefined;
  }

  /** Whether a message is on the branch that is shown. */
  shows(message: number): boolean {
    return this.turns.some(({ question, answerId }) => question === message || answerId === message);
  }

  /** Where a message stands; null when it is not kept. */
  stateOf(message: number): MessageState | null {
    return this.#find(message)?.state ?? null;
  }

  /** Whether an answer is the one of this message. */
  isAnswer(answer: Answer, message: number): boolean {
    return this.#answers.get(message) === answer;
  }

  /** Shows the branch of a message, at its newest end. Gives that end. */
  choose(message: number): number {
    const leaf = newestBelow(this.#messages, message);
    this.#leaf = leaf;
    this.show();
    return leaf;
  }

  /** Adds what was asked and the answer that has begun. `key` is of the turn that is shown for them already. */
  add(asking: Asking, begun: { question: number; answer: number }, by: { key: string; answer: Answer; settings: AnswerSettings }): void {
    const messages = [...this.#messages];
    const created_ms = Date.now();
    if (asking.kind === 'question')
      messages.push({ id: begun.question, parent: asking.parent, role: 'user', content: asking.text, created_ms, state: 'complete', settings: null });
    messages.push({ id: begun.answer, parent: begun.question, role: 'assistant', content: '', created_ms, state: 'streaming', settings: by.settings });
    this.#messages = messages;
    this.#leaf = begun.answer;
    this.#answers.set(begun.answer, by.answer);
    this.#keys.set(begun.answer, by.key);
    this.show();
  }

  /** Forgets what has come of an answer, so that it can be fetched once more. Gives its turn as it is now. */
  forget(message: number): Turn | undefined {
    this.#answers.delete(message);
    this.show();
    return this.turns.find(({ answerId }) => answerId === message);
  }

  /** Makes the branch that is shown out of the tree. What is being asked and has no number yet is left out. */
  show(): void {
    const path = pathTo(this.#messages, this.#leaf);
    const refusedAfter = (answer: number | null) => this.refused.filter(({ after }) => after === answer).map(({ turn }) => turn);
    const turns: Turn[] = refusedAfter(null);
    for (const [at, question] of path.entries()) {
      if (question.role !== 'user') continue;
      const answer = path[at + 1];
      turns.push({
        key: answer ? (this.#keys.get(answer.id) ?? `m${answer.id}`) : `q${question.id}`,
        prompt: question.content,
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

/** The answer of the last of these turns that has one. */
export const lastAnswer = (turns: readonly Turn[]): number | null => turns.findLast(({ answerId }) => answerId !== null)?.answerId ?? null;

/** The answer to a question that was kept without one. */
function unanswered(): Answer {
  const answer = new Answer();
  answer.interrupt();
  return answer;
}
