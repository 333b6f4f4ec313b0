// The conversation on screen and the answer being written, which may be another conversation's: asking, stopping,
// opening, and what the window shows of it. The engine keeps what is said. No DOM.

import { ownError } from '../errors';
import type { Host } from '../host';
import { answer as begin, call, toErrorInfo } from '../ipc/rpc';
import type { Asking, ErrorInfo, GenerationEvent, StreamMessage } from '../ipc/schema.gen';
import { EventStream, pageClock, type Clock } from '../ipc/stream';
import { Latest } from '../latest';
import { language } from '../strings/index.svelte';
import { Answer } from './answer.svelte';
import { FrameBuffer, pageFrame, type NextFrame } from './frame';
import { Preferences } from './preferences.svelte';
import type { Settings } from './settings.svelte';
import { lastAnswer, newTurn, Thread, type AnsweredTurn, type Refused, type Turn } from './thread.svelte';
import { Unsent } from './unsent.svelte';

/** Time as the conversation sees it; tests bring their own. */
export interface Pace {
  clock: Clock;
  nextFrame: NextFrame;
}

/** A generation under way. */
interface Running {
  /** Where it was asked. That stays so, whatever the reader opens meanwhile. */
  thread: Thread;
  answer: Answer;
  stream: EventStream<GenerationEvent>;
  buffer: FrameBuffer<GenerationEvent>;
  /** Events that came before it was known what the answer begins with. */
  early: GenerationEvent[] | null;
  id: number | null;
}

/** What was asked in vain, and why. */
interface Refusal {
  turn: Turn;
  error: ErrorInfo;
}

/** How often, and how many times without anything new, an answer that somebody else follows is asked for. */
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
  /** What was asked in a conversation that the reader has left could not be; its text is kept there. */
  refusedElsewhere?: (error: ErrorInfo) => void;
}

/** The conversation on screen. */
export class Conversation {
  /** Whether a stop was asked for and the engine has not ended the answer yet. */
  stopping = $state(false);

  #thread = $state.raw(new Thread());
  #current = $state.raw<Running | null>(null);

  /** Whether an answer is being written, here or in another conversation: the engine writes one at a time. */
  running = $derived(this.#current !== null);
  /** Whether it is being written here. */
  writingHere = $derived(this.#current?.thread === this.#thread);
  /** The number of the conversation it is being written in; null while there is none. */
  writing = $derived(this.#current?.thread.id ?? null);

  /** The turns that can be asked about by their answers' numbers. */
  answered = $derived(this.turns.filter((turn): turn is AnsweredTurn => turn.answerId !== null));

  readonly #host: Host;
  readonly #settings: Settings;
  readonly #pace: Pace;
  readonly #told: Told;
  readonly #unsent: Unsent;
  /** Conversations being opened. Asking or starting another one cancels them. */
  readonly #openings = new Latest();
  #unnumbered = 0;
  /** Answers whose tokens are wanted, the most wanted last. */
  // eslint-disable-next-line svelte/prefer-svelte-reactivity
  readonly #near = new Set<Answer>();
  #fetching = false;

  constructor(
    host: Host,
    settings: Settings,
    pace: Pace = { clock: pageClock, nextFrame: pageFrame },
    told: Told = { changed: () => {} },
    unsent: Unsent = new Unsent(new Preferences(host), pace.clock),
  ) {
    this.#host = host;
    this.#settings = settings;
    this.#pace = pace;
    this.#told = told;
    this.#unsent = unsent;
  }

  /** Its number; null until something was said. */
  get id(): number | null {
    return this.#thread.id;
  }

  /** Instructions for the whole conversation. */
  get system(): string {
    return this.#thread.system;
  }

  set system(system: string) {
    this.#thread.system = system;
  }

  /** The branch on screen. */
  get turns(): readonly Turn[] {
    return this.#thread.turns;
  }

  /** What is typed here and not sent. */
  get draft(): string {
    return this.#unsent.draftOf(this.id);
  }

  set draft(text: string) {
    this.#unsent.type(this.id, text);
  }

  /** Why the last thing that was asked for could not be done, where no answer can say it. */
  get error(): ErrorInfo | null {
    return this.#thread.error;
  }

  set error(error: ErrorInfo | null) {
    this.#thread.error = error;
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
    const thread = this.#thread;
    // One that was refused is asked again by this; any other stays where it was asked.
    this.#setRefused(thread, thread.refused.filter(({ turn }) => turn.prompt !== prompt));
    thread.show();
    const parent = thread.end;
    this.#unsent.ask(thread.id, prompt);
    const refusal = await this.#begin({ kind: 'question', parent, text: prompt }, thread.turns, prompt);
    this.#unsent.asked();
    if (refusal) this.#keepQuestion(thread, refusal, parent);
  }

  /** Asks a question differently; what followed it stays, on a branch of its own. A change that is refused is still
   * being made. Does nothing while an answer is being written. */
  async edit(turn: Turn, prompt: string): Promise<void> {
    if (this.running) return;
    const thread = this.#thread;
    const before = this.#before(turn);
    // Should it be refused, this is what goes on being changed.
    this.#unsent.edit(turn, prompt);
    const refusal = await this.#begin({ kind: 'question', parent: lastAnswer(before), text: prompt }, before, prompt);
    if (refusal) return this.#complain(thread, refusal.error);
    this.#unsent.edit(turn, null);
    this.#forgetRefused(thread, turn);
  }

  /** What a question is being changed to; null when it is not. */
  editOf(turn: Turn): string | null {
    return this.#unsent.editOf(turn);
  }

  /** Says what a question is being changed to, though it is not asked yet; null takes the change away. */
  setEdit(turn: Turn, text: string | null): void {
    this.#unsent.edit(turn, text);
  }

  /** Has a question answered anew; the answer that is there stays, on a branch of its own. */
  async again(turn: Turn): Promise<void> {
    if (this.running) return;
    if (turn.question === null) {
      // It never reached the engine.
      if (this.draft.trim() === turn.prompt) this.draft = '';
      this.dismiss(turn);
      return this.ask(turn.prompt);
    }
    const thread = this.#thread;
    const refusal = await this.#begin({ kind: 'again', question: turn.question }, this.#before(turn), turn.prompt);
    if (refusal) this.#complain(thread, refusal.error);
  }

  /** Whether trying once more fetches what is kept of an answer, for which no model is needed. */
  retryFetches({ answer, answerId, stored }: Turn): boolean {
    return answerId !== null && stored !== null && answer.tokens.length === 0;
  }

  /** Tries once more what has failed with a turn: to fetch what is kept of its answer, else to have it answered. */
  async retry(turn: Turn): Promise<void> {
    if (turn.answerId === null || !this.retryFetches(turn)) return this.again(turn);
    if (this.writingHere) return;
    const anew = this.#thread.forget(turn.answerId);
    if (anew) await this.#fetchOne(anew);
  }

  /** Takes a question away that was refused. */
  dismiss(turn: Turn): void {
    this.#forgetRefused(this.#thread, turn);
  }

  #forgetRefused(thread: Thread, turn: Turn): void {
    if (!thread.refused.some((refused) => refused.turn === turn)) return;
    this.#setRefused(thread, thread.refused.filter((refused) => refused.turn !== turn));
    thread.turns = thread.turns.filter((other) => other !== turn);
  }

  /** Has an answer go on where it ended. */
  async goOn(turn: Turn): Promise<void> {
    await this.#continue(turn, null, null);
  }

  /** Has an answer go on with another token in place of number `index`; the answer that is there stays, on
   * a branch of its own. Does nothing while an answer is being written. */
  async branch(answer: Answer, index: number, token: number): Promise<void> {
    const turn = this.turns.find((other) => other.answer === answer);
    if (turn) await this.#continue(turn, index, token);
  }

  async #continue(turn: Turn, tokens: number | null, then: number | null): Promise<void> {
    if (turn.answerId === null || this.running) return;
    const thread = this.#thread;
    const refusal = await this.#begin({ kind: 'continue', answer: turn.answerId, tokens, then }, this.#before(turn), turn.prompt);
    if (refusal) this.#complain(thread, refusal.error);
  }

  /** The turns on screen before this one. */
  #before(turn: Turn): readonly Turn[] {
    return this.turns.slice(0, Math.max(0, this.turns.indexOf(turn)));
  }

  /** Whether a message is on the branch on screen. */
  shows(message: number): boolean {
    return this.#thread.shows(message);
  }

  /** Shows another branch: the newest end of this message's. Does nothing while an answer is being written here. */
  async choose(message: number): Promise<void> {
    const thread = this.#thread;
    if (this.writingHere || !thread.has(message)) return;
    const leaf = thread.choose(message);
    try {
      await Promise.all([call(this.#host, 'choose_branch', { leaf }), this.#fetch()]);
    } catch (thrown) {
      thread.error = toErrorInfo(thrown);
    }
  }

  /** Asks the engine to stop, before anything else happens. */
  stop(): void {
    const running = this.#current;
    if (!running || this.stopping) return;
    this.stopping = true;
    if (running.id !== null) this.#stopGeneration(running.id);
  }

  /** Begins a new conversation, with what was typed for it before. An answer being written goes on. */
  clear(): void {
    this.#openings.cancel();
    this.#show(new Thread(this.#unsent.refusedIn(null)));
  }

  /** Opens a conversation that was kept. An answer being written goes on, there or here. */
  async open(id: number): Promise<void> {
    const isLatest = this.#openings.start();
    if (id === this.id) return;
    if (id !== this.writing) {
      const kept = await call(this.#host, 'open_conversation', { id });
      if (!isLatest()) return;
      this.#show(Thread.of(kept, this.#unsent.refusedIn(id)));
    } else this.showWriting();
    await this.#fetch();
  }

  /** Shows the conversation that an answer is being written in, as it is being written. */
  showWriting(): void {
    this.#openings.cancel();
    if (this.#current) this.#show(this.#current.thread);
  }

  #show(thread: Thread): void {
    this.#near.clear();
    this.#thread = thread;
  }

  /** Sets the instructions for the whole conversation, and begins it if nothing was said yet. */
  async instruct(system: string): Promise<void> {
    const thread = this.#thread;
    thread.system = system;
    const isLatest = thread.instructions.start();
    try {
      await thread.inOrder(async () => {
        const id = await call(this.#host, 'set_system_prompt', { id: thread.id, system });
        thread.instructed = system;
        if (thread.id !== null) return;
        this.#number(thread, id);
        this.#told.changed();
      });
    } catch (thrown) {
      // Newer ones stand or fall by themselves.
      if (isLatest()) thread.system = thread.instructed;
      this.#complain(thread, toErrorInfo(thrown));
    }
  }

  /** The engine has given a conversation its number. */
  #number(thread: Thread, id: number): void {
    if (thread.id !== null) return;
    thread.id = id;
    // What is typed belongs to what is on screen.
    if (thread === this.#thread) this.#unsent.begun(id);
    else thread.refused = [];
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

  /** Fetches what an answer on screen said. */
  async #fetchOne({ answer, answerId }: Turn): Promise<void> {
    const thread = this.#thread;
    if (answerId === null) return;
    try {
      const events = await call(this.#host, 'answer_events', { message: answerId });
      if (answer.phase !== 'waiting') return;
      answer.apply(events);
      const state = thread.stateOf(answerId);
      if (state === 'streaming' && !answer.over) this.#hear(thread, answer, answerId, events.length, hearings);
      // Brought from a file that has the text alone: that is as it was said to be.
      else if (events.length === 0 && (state === 'complete' || state === 'failed')) answer.end(state === 'complete' ? 'finished' : 'failed');
      else answer.interrupt();
    } catch (thrown) {
      answer.fail(toErrorInfo(thrown));
    }
  }

  /** Hears the rest of an answer that the engine writes and nobody here follows, as after the page was loaded anew. */
  #hear(thread: Thread, answer: Answer, message: number, heard: number, left: number): void {
    this.#pace.clock.after(hearingMs, () => {
      if (this.#thread !== thread || !thread.isAnswer(answer, message)) return;
      call(this.#host, 'answer_events', { message }).then(
        (events) => {
          answer.apply(events.slice(heard));
          if (answer.over) return;
          if (events.length > heard) this.#hear(thread, answer, message, events.length, hearings);
          else if (left > 0) this.#hear(thread, answer, message, heard, left - 1);
          else answer.interrupt();
        },
        (thrown: unknown) => answer.fail(toErrorInfo(thrown)),
      );
    });
  }

  /** Asks, in the conversation on screen, and shows it behind the turns `before`. Gives what came of it when it was
   * refused, null once the answer has begun. Nothing may be running. */
  async #begin(asking: Asking, before: readonly Turn[], prompt: string): Promise<Refusal | null> {
    this.#openings.cancel();
    const thread = this.#thread;
    const answer = new Answer();
    const turn = newTurn(`n${this.#unnumbered++}`, prompt, answer);
    thread.error = null;
    thread.turns = [...before, turn];
    this.stopping = false;
    const running = this.#follow(thread, answer);
    this.#current = running;
    try {
      const settings = this.#settings.request();
      if (!settings) throw ownError('no_model', language.strings.conversation.noModel);
      await this.#told.ready?.();
      const asked = { asking, settings: { ...settings, target: '', draft: null } };
      const begun = await thread.inOrder(async () => {
        const hear = (message: StreamMessage) => running.stream.receive(message.generation_id, message);
        const answering = await begin(this.#host, { conversation: thread.id, ...asked }, hear);
        this.#number(thread, answering.conversation);
        return answering;
      });
      running.id = begun.generation_id;
      running.stream.begin(begun.generation_id);
      answer.apply(begun.prefix);
      const early = running.early ?? [];
      running.early = null;
      running.buffer.add(early);
      thread.add(asking, begun, { key: turn.key, answer, settings: asked.settings });
      this.#told.changed();
      // Stopped before the engine had given it a number.
      if (this.stopping && !answer.over) this.#stopGeneration(begun.generation_id);
      return null;
    } catch (thrown) {
      const error = toErrorInfo(thrown);
      running.stream.close();
      answer.fail(error);
      this.#end(running);
      // What was there before is what there is.
      thread.show();
      return { turn, error };
    }
  }

  /** A question that was refused stays where it was asked. It also goes back to where it was typed, unless something
   * else is there. */
  #keepQuestion(asked: Thread, { turn, error }: Refusal, after: number | null): void {
    // What had not begun when it was left is the same as what has not begun now.
    const thread = asked.id === this.id ? this.#thread : asked;
    if (this.#unsent.draftOf(asked.id) === '') this.#unsent.type(asked.id, turn.prompt);
    this.#setRefused(thread, [...this.#unsent.refusedIn(asked.id), { turn, after }]);
    if (thread === this.#thread) thread.show();
    else this.#told.refusedElsewhere?.(error);
  }

  #setRefused(thread: Thread, refused: readonly Refused[]): void {
    thread.refused = refused;
    this.#unsent.setRefused(thread.id, refused);
  }

  /** Says why nothing came of what was asked for, where the reader is. */
  #complain(thread: Thread, error: ErrorInfo): void {
    if (thread === this.#thread) thread.error = error;
    else this.#told.refusedElsewhere?.(error);
  }

  #follow(thread: Thread, answer: Answer): Running {
    const buffer = new FrameBuffer<GenerationEvent>(this.#pace.nextFrame, (events) => {
      answer.apply(events);
      if (answer.over) this.#end(running);
    });
    const stream = new EventStream<GenerationEvent>({
      snapshot: (generationId, from) => call(this.#host, 'generation_snapshot', { generationId, from }),
      deliver: (events) => (running.early ? running.early.push(...events) : buffer.add(events)),
      lost: (error) => {
        buffer.flush();
        answer.fail(error);
        this.#end(running);
      },
      clock: this.#pace.clock,
    });
    const running: Running = { thread, answer, stream, buffer, early: [], id: null };
    return running;
  }

  #end(running: Running): void {
    if (this.#current !== running) return;
    this.#current = null;
    this.stopping = false;
    this.#told.changed();
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
