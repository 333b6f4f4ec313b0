// One conversation: its messages as a tree, the branch on screen as turns, the answer being written,
// asking and stopping. The engine keeps it; here is what the window shows of it. No DOM.

import type { Host } from '../host';
import { answer as begin, call, toErrorInfo } from '../ipc/rpc';
import type {
  AnswerSettings,
  Asking,
  Conversation as Kept,
  ErrorInfo,
  GenerationEvent,
  MessageState,
  StoredMessage,
} from '../ipc/schema.gen';
import { EventStream, pageClock, type Clock } from '../ipc/stream';
import { language } from '../strings/index.svelte';
import { Answer } from './answer.svelte';
import { newestBelow, pathTo, siblingsOf, type Siblings } from './branches';
import { FrameBuffer, pageFrame, type NextFrame } from './frame';
import type { Settings } from './settings.svelte';

/** A question and its answer. */
export interface Turn {
  /** Stays the same while the turn is on screen. */
  readonly key: string;
  readonly prompt: string;
  readonly answer: Answer;
  /** What is kept of the answer's text, to be read until its tokens are here; null when nothing is. */
  readonly stored: string | null;
  /** Their messages; null until the engine has numbered them. */
  readonly question: number | null;
  readonly answerId: number | null;
  /** What else was asked and answered in the same place. */
  readonly questions: Siblings | null;
  readonly answers: Siblings | null;
}

/** A turn whose answer the engine keeps. */
export type AnsweredTurn = Turn & { readonly answerId: number };

/** Time as the conversation sees it; tests bring their own. */
export interface Pace {
  clock: Clock;
  nextFrame: NextFrame;
}

/** A generation under way. */
interface Running {
  turn: Turn;
  answer: Answer;
  stream: EventStream<GenerationEvent>;
  buffer: FrameBuffer<GenerationEvent>;
  /** Events that came before it was known what the answer begins with. */
  early: GenerationEvent[] | null;
  id: number | null;
}

/** How often, and how many times, an answer that was left is asked for its end. */
const hearingMs = 250;
const hearings = 80;

/** How many answers at the end of a branch are fetched with it. Those before them are when they are near. */
const fetchedAtOnce = 1;

/** What a conversation tells the window. */
export interface Told {
  /** It was begun, or something was said in it. */
  changed: () => void;
  /** Has the models in memory that are to answer; rejects where that cannot be. */
  ready?: () => Promise<void>;
}

/** The conversation on screen. */
export class Conversation {
  /** Its number; null until something was said. */
  id = $state<number | null>(null);
  /** Instructions for the whole conversation. */
  system = $state('');
  turns = $state.raw<readonly Turn[]>([]);
  /** What is typed and not sent. */
  draft = $state('');
  /** Why the last thing that was asked for could not be done, where no answer can say it. */
  error = $state.raw<ErrorInfo | null>(null);
  /** Whether a stop was asked for and the engine has not ended the answer yet. */
  stopping = $state(false);
  running = $derived.by(() => {
    const last = this.turns.at(-1);
    return last !== undefined && !last.answer.over;
  });

  /** The turns that can be asked about by their answers' numbers. */
  answered = $derived(this.turns.filter((turn): turn is AnsweredTurn => turn.answerId !== null));

  readonly #host: Host;
  readonly #settings: Settings;
  readonly #pace: Pace;
  readonly #told: Told;
  #messages: readonly StoredMessage[] = [];
  #leaf: number | null = null;
  // Looked up, never drawn from.
  // eslint-disable-next-line svelte/prefer-svelte-reactivity
  readonly #answers = new Map<number, Answer>();
  #current: Running | null = null;
  /** Counts what was opened, so that what was asked for earlier and comes late is not shown. */
  #opening = 0;
  /** Counts what was asked to be opened; a question that is asked meanwhile calls it off. */
  #wanted = 0;
  /** Instructions on their way to the engine. */
  #instructing: Promise<void> = Promise.resolve();
  #unnumbered = 0;
  /** Keys of turns that were on screen before they had numbers, by answer. */
  // eslint-disable-next-line svelte/prefer-svelte-reactivity
  readonly #keys = new Map<number, string>();
  /** Answers whose tokens are wanted, the most wanted last. */
  // eslint-disable-next-line svelte/prefer-svelte-reactivity
  readonly #near = new Set<Answer>();
  #fetching = false;

  constructor(
    host: Host,
    settings: Settings,
    pace: Pace = { clock: pageClock, nextFrame: pageFrame },
    told: Told = { changed: () => {} },
  ) {
    this.#host = host;
    this.#settings = settings;
    this.#pace = pace;
    this.#told = told;
  }

  /** Sends what is typed. Does nothing while an answer is being written or nothing is typed. */
  async send(): Promise<void> {
    const prompt = this.draft.trim();
    if (prompt === '' || this.running) return;
    this.draft = '';
    await this.ask(prompt);
  }

  /** Asks this and leaves what is typed alone. Does nothing while an answer is being written. */
  async ask(prompt: string): Promise<void> {
    if (this.running) return;
    this.#dropUnnumbered();
    await this.#begin({ kind: 'question', parent: this.turns.at(-1)?.answerId ?? null, text: prompt }, this.turns, prompt);
  }

  /** Asks a question differently; what followed it stays, on a branch of its own. */
  async edit(turn: Turn, prompt: string): Promise<void> {
    const at = this.turns.indexOf(turn);
    const before = this.turns.slice(0, Math.max(0, at));
    await this.#begin({ kind: 'question', parent: before.at(-1)?.answerId ?? null, text: prompt }, before, prompt);
  }

  /** Has a question answered anew; the answer that is there stays, on a branch of its own. */
  async again(turn: Turn): Promise<void> {
    if (turn.question === null) {
      // It never reached the engine.
      if (this.draft.trim() === turn.prompt) this.draft = '';
      return this.ask(turn.prompt);
    }
    const before = this.turns.slice(0, this.turns.indexOf(turn));
    await this.#begin({ kind: 'again', question: turn.question }, before, turn.prompt);
  }

  /** Has an answer go on where it ended. */
  async goOn(turn: Turn): Promise<void> {
    await this.#continue(turn, null, null);
  }

  /** Has an answer go on with another token in place of number `index`; the answer that is there stays, on
   * a branch of its own. Does nothing while an answer is being written. */
  async branch(answer: Answer, index: number, token: number): Promise<void> {
    const turn = this.turns.find((other) => other.answer === answer);
    if (turn && !this.running) await this.#continue(turn, index, token);
  }

  async #continue(turn: Turn, tokens: number | null, then: number | null): Promise<void> {
    if (turn.answerId === null) return;
    const before = this.turns.slice(0, this.turns.indexOf(turn));
    await this.#begin({ kind: 'continue', answer: turn.answerId, tokens, then }, before, turn.prompt);
  }

  /** Shows another branch: the newest end of this message's. Does nothing while an answer is being written. */
  async choose(message: number): Promise<void> {
    if (this.running || !this.#messages.some((other) => other.id === message)) return;
    this.#leaf = newestBelow(this.#messages, message);
    this.#show();
    try {
      await Promise.all([call(this.#host, 'choose_branch', { leaf: this.#leaf }), this.#fetch()]);
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    }
  }

  /** Asks the engine to stop, before anything else happens. */
  stop(): void {
    const running = this.#current;
    if (!running || this.stopping) return;
    this.stopping = true;
    if (running.id !== null) this.#stopGeneration(running.id);
  }

  /** Begins a new conversation. What is typed stays; an answer being written is stopped. */
  clear(): void {
    this.#leave();
    this.id = null;
    this.system = '';
    this.#messages = [];
    this.#leaf = null;
    this.#answers.clear();
    this.#keys.clear();
    this.error = null;
    this.turns = [];
  }

  /** Opens a conversation that was kept. An answer being written in another one is stopped. */
  async open(id: number): Promise<void> {
    const wanted = ++this.#wanted;
    if (id === this.id) return;
    const kept = await call(this.#host, 'open_conversation', { id });
    if (this.#wanted !== wanted) return;
    this.#leave();
    this.#answers.clear();
    this.#keys.clear();
    this.#take(kept);
    await this.#fetch();
  }

  /** Sets the instructions for the whole conversation, and begins it if nothing was said yet. */
  async instruct(system: string): Promise<void> {
    const before = this.system;
    this.system = system;
    const opening = this.#opening;
    const told = call(this.#host, 'set_system_prompt', { id: this.id, system }).then(
      (id) => {
        if (this.#opening !== opening || this.id !== null) return;
        this.id = id;
        this.#told.changed();
      },
      (thrown: unknown) => {
        if (this.#opening !== opening) return;
        this.system = before;
        this.error = toErrorInfo(thrown);
      },
    );
    this.#instructing = told;
    await told;
  }

  #take(kept: Kept): void {
    this.id = kept.entry.id;
    this.system = kept.system;
    this.#messages = kept.messages;
    this.#leaf = kept.leaf ?? kept.messages.at(-1)?.id ?? null;
    this.#show();
  }

  /** Makes the branch on screen out of the tree. */
  #show(): void {
    const path = pathTo(this.#messages, this.#leaf);
    const turns: Turn[] = [];
    for (const [at, question] of path.entries()) {
      if (question.role !== 'user') continue;
      const answer = path[at + 1];
      turns.push({
        key: answer ? (this.#keys.get(answer.id) ?? `m${answer.id}`) : `q${question.id}`,
        prompt: question.content,
        answer: answer ? this.#answerOf(answer.id) : unanswered(),
        stored: answer?.content || null,
        question: question.id,
        answerId: answer?.id ?? null,
        questions: siblingsOf(this.#messages, question),
        answers: answer ? siblingsOf(this.#messages, answer) : null,
      });
    }
    this.turns = turns;
  }

  #answerOf(message: number): Answer {
    const known = this.#answers.get(message) ?? new Answer();
    this.#answers.set(message, known);
    return known;
  }

  /** Says whether a turn is near what is on screen: then its answer's tokens are fetched. */
  near(turn: Turn, isNear: boolean): void {
    this.#near.delete(turn.answer);
    if (!isNear) return;
    this.#near.add(turn.answer);
    if (!this.#fetching) void this.#fetchNear();
  }

  /** Fetches one answer a frame, those that came near last first: the reader is there. */
  async #fetchNear(): Promise<void> {
    this.#fetching = true;
    for (let answer = [...this.#near].at(-1); answer; answer = [...this.#near].at(-1)) {
      this.#near.delete(answer);
      const turn = this.turns.find((other) => other.answer === answer);
      if (!turn || !this.#missing(turn)) continue;
      await this.#fetchOne(turn);
      await new Promise<void>((resolve) => this.#pace.nextFrame(resolve));
    }
    this.#fetching = false;
  }

  /** Fetches what the last answers on screen said, where that is not known yet. */
  async #fetch(): Promise<void> {
    const missing = this.turns.slice(-fetchedAtOnce).filter((turn) => this.#missing(turn));
    await Promise.all(missing.map((turn) => this.#fetchOne(turn)));
  }

  #missing({ answer, answerId }: Turn): boolean {
    return answerId !== null && answer.phase === 'waiting' && this.#current?.answer !== answer;
  }

  async #fetchOne({ answer, answerId }: Turn): Promise<void> {
    if (answerId === null) return;
    try {
      const events = await call(this.#host, 'answer_events', { message: answerId });
      if (answer.phase !== 'waiting') return;
      answer.apply(events);
      const stored = this.#messages.find((message) => message.id === answerId);
      if (stored?.state === 'streaming' && !answer.over) this.#hear(answer, answerId, events.length, hearings);
      else answer.interrupt();
    } catch (thrown) {
      answer.fail(toErrorInfo(thrown));
    }
  }

  /** Hears the rest of an answer that was left while it was written: it was stopped, and ends within a pass. */
  #hear(answer: Answer, message: number, heard: number, left: number): void {
    this.#pace.clock.after(hearingMs, () => {
      if (this.#answers.get(message) !== answer) return;
      call(this.#host, 'answer_events', { message }).then(
        (events) => {
          answer.apply(events.slice(heard));
          if (left > 0 && !answer.over) this.#hear(answer, message, events.length, left - 1);
          else answer.interrupt();
        },
        (thrown: unknown) => answer.fail(toErrorInfo(thrown)),
      );
    });
  }

  async #begin(asking: Asking, before: readonly Turn[], prompt: string): Promise<void> {
    if (this.running) return;
    this.#wanted += 1;
    this.error = null;
    const shown = this.turns;
    const answer = new Answer();
    const turn: Turn = {
      key: `n${this.#unnumbered++}`,
      prompt,
      answer,
      stored: null,
      question: null,
      answerId: null,
      questions: null,
      answers: null,
    };
    this.turns = [...before, turn];
    this.stopping = false;
    const opening = this.#opening;
    const settings = this.#settings.request();
    if (!settings) {
      return this.#refused(asking, answer, shown, before, {
        code: 'no_model',
        message: language.strings.conversation.noModel,
      });
    }
    const running = this.#follow(turn, answer);
    this.#current = running;
    try {
      await this.#told.ready?.();
      await this.#instructing;
      const request = { conversation: this.id, asking, settings: { ...settings, target: '', draft: null } };
      const begun = await begin(this.#host, request, (message) => running.stream.receive(message.generation_id, message));
      running.id = begun.generation_id;
      running.stream.begin(begun.generation_id);
      answer.apply(begun.prefix);
      const early = running.early ?? [];
      running.early = null;
      running.buffer.add(early);
      if (this.#opening === opening) {
        this.id = begun.conversation;
        this.#answers.set(begun.answer, answer);
        this.#add(asking, begun.question, begun.answer, request.settings, turn.key);
        this.#told.changed();
      }
      // Stopped, or the whole conversation left, before the engine had given it a number.
      if (!answer.over && (this.stopping || this.#opening !== opening)) this.#stopGeneration(begun.generation_id);
    } catch (thrown) {
      running.stream.close();
      if (this.#opening === opening) this.#refused(asking, answer, shown, before, toErrorInfo(thrown));
      else answer.fail(toErrorInfo(thrown));
      this.#end(running);
    }
  }

  /** Nothing came of it. A new question stays where it was asked; a branch that was to be left stays on screen. */
  #refused(asking: Asking, answer: Answer, shown: readonly Turn[], before: readonly Turn[], error: ErrorInfo): void {
    answer.fail(error);
    if (asking.kind === 'question' && before === shown) return this.#giveBack(asking);
    this.turns = shown;
    this.error = error;
  }

  /** Adds what was asked and the answer that has begun to the tree. */
  #add(asking: Asking, question: number, answer: number, settings: AnswerSettings, key: string): void {
    const messages = [...this.#messages];
    const created_ms = Date.now();
    if (asking.kind === 'question')
      messages.push({ id: question, parent: asking.parent, role: 'user', content: asking.text, created_ms, state: 'complete', settings: null });
    const state: MessageState = 'streaming';
    messages.push({ id: answer, parent: question, role: 'assistant', content: '', created_ms, state, settings });
    this.#messages = messages;
    this.#leaf = answer;
    // The turn on screen is the same one; it only has its numbers now.
    this.#keys.set(answer, key);
    this.#show();
  }

  #follow(turn: Turn, answer: Answer): Running {
    const buffer = new FrameBuffer<GenerationEvent>(this.#pace.nextFrame, (events) => {
      answer.apply(events);
      if (answer.over) this.#end(running);
    });
    const stream = new EventStream<GenerationEvent>({
      snapshot: (generationId) => call(this.#host, 'generation_snapshot', { generationId }),
      deliver: (events) => (running.early ? running.early.push(...events) : buffer.add(events)),
      lost: (error) => {
        buffer.flush();
        answer.fail(error);
        this.#end(running);
      },
      clock: this.#pace.clock,
    });
    const running: Running = { turn, answer, stream, buffer, early: [], id: null };
    return running;
  }

  #end(running: Running): void {
    if (this.#current !== running) return;
    this.#current = null;
    this.stopping = false;
    this.#told.changed();
  }

  /** Leaves what is on screen; an answer being written is stopped and kept. */
  #leave(): void {
    this.#opening += 1;
    this.stop();
    this.#current?.stream.close();
    this.#current = null;
    this.stopping = false;
  }

  /** Takes turns away that never reached the engine. */
  #dropUnnumbered(): void {
    if (!this.running) this.turns = this.turns.filter((turn) => turn.answerId !== null);
  }

  /** A question that got no answer goes back to where it was typed, unless something else is there. */
  #giveBack(asking: Asking): void {
    if (this.draft === '' && asking.kind === 'question') this.draft = asking.text;
  }

  #stopGeneration(generationId: number): void {
    call(this.#host, 'stop_generation', { generationId }).catch((thrown: unknown) => {
      const running = this.#current;
      // A generation that ended meanwhile is no failure; its last events are on their way.
      if (running?.id === generationId && !running.stream.over) {
        running.stream.close();
        running.answer.fail(toErrorInfo(thrown));
        this.#end(running);
      }
    });
  }
}

/** The answer to a question that was kept without one. */
function unanswered(): Answer {
  const answer = new Answer();
  answer.interrupt();
  return answer;
}
