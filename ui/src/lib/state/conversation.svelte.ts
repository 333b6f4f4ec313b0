// The conversation on screen, and the answer being written, maybe in another conversation: asking, stopping, opening.
// The engine stores everything. No DOM.

import { ownError } from '../errors';
import type { Host } from '../host';
import { answer as begin, call, toErrorInfo } from '../ipc/rpc';
import type { AnsweredBy, Answering, AnswerSettings, Asking, Attachment, ErrorInfo, Thinking } from '../ipc/schema.gen';
import { Latest } from '../latest';
import { language } from '../strings/index.svelte';
import { Answer } from './answer.svelte';
import { AnswerLoader } from './answerLoader';
import { pagePace, type Pace } from './frame';
import { QuestionQueue, type Queued } from './questionQueue.svelte';
import { RunningAnswer } from './runningAnswer';
import type { Settings } from './settings.svelte';
import { UnsavedThreads } from './unsavedThreads';
import { lastAnswer, newTurn, Thread, type AnsweredTurn, type Place, type Question, type Refused, type Turn } from './thread.svelte';
import type { MessageDrafts } from './messageDrafts.svelte';

/** A refused question, and why. */
interface Refusal {
  turn: Turn;
  error: ErrorInfo;
  /** `true` if any other question would be refused too: the engine is busy, or the models cannot be loaded. */
  any: boolean;
}

/** The request for a new question after a message. */
const askingOf = ({ prompt, attachments }: Question, parent: number | null): Asking => ({
  kind: 'question',
  parent,
  text: prompt,
  ...(attachments.length > 0 && { attachments: [...attachments] }),
});

/** Callbacks of a conversation. */
export interface ConversationCallbacks {
  /** Called when it was created or changed. */
  changed: () => void;
  /** Loads the models for an answer. Rejects if that is impossible. */
  ready: () => Promise<void>;
  /** The answerer, for the request; undefined for the loaded models. */
  by: () => AnsweredBy | undefined;
  /** Names of the answerer, as the engine stores them. */
  writer: () => Pick<AnswerSettings, 'target' | 'draft' | 'server'> | null;
  /** Called when a question was refused in a conversation that is no longer on screen, where its text is kept. */
  refusedElsewhere: (error: ErrorInfo) => void;
  /** Called when the queue stopped at a question of a conversation, which is null while it is new. */
  queueStopped: (error: ErrorInfo, conversation: number | null) => void;
}

/** The conversation on screen. */
export class ActiveConversation {
  /** `true` if a stop was requested and the engine has not ended the answer yet. */
  stopping = $state(false);
  /** Number of questions asked on screen and conversations shown so far. Each takes the reader to the end. */
  arrivals = $state(0);

  #thread = $state.raw(new Thread());
  #current = $state.raw<RunningAnswer | null>(null);

  /** `true` if an answer is being written, here or elsewhere. The engine writes one at a time. */
  running = $derived(this.#current !== null);
  /** `true` if it is being written in this conversation. */
  writingHere = $derived(this.#current?.thread === this.#thread);
  /** Questions that wait for their turn, the next one first. */
  queue = $derived.by((): readonly Queued[] =>
    this.#queue.waiting.map(({ thread, turn }) => ({ turn, conversation: thread.id, here: thread === this.#thread })),
  );
  /** `true` if a question waits in this conversation. */
  queuedHere = $derived(this.queue.some(({ here }) => here));
  /** `true` if a question can be asked here, now or in the queue. */
  takes = $derived(!this.writingHere && !this.queuedHere);
  /** Number of its conversation; null for none. */
  writing = $derived(this.#current?.thread.id ?? null);

  /** Turns whose answers have numbers. */
  answered = $derived(this.turns.filter((turn): turn is AnsweredTurn => turn.answerId !== null));

  readonly #host: Host;
  readonly #settings: Settings;
  readonly #pace: Pace;
  readonly #callbacks: ConversationCallbacks;
  readonly #messageDrafts: MessageDrafts;
  readonly #queue: QuestionQueue;
  readonly #answers: AnswerLoader;
  readonly #unsaved = new UnsavedThreads();
  /** Conversations being opened. Asking or starting another one cancels them. */
  readonly #openings = new Latest();
  /** The choice of reasoning in conversations that were left. */
  // Looked up, never drawn from.
  // eslint-disable-next-line svelte/prefer-svelte-reactivity
  readonly #thinking = new Map<number, Thinking | null>();
  #unnumbered = 0;

  constructor(host: Host, settings: Settings, messageDrafts: MessageDrafts, callbacks: ConversationCallbacks, pace: Pace = pagePace) {
    this.#host = host;
    this.#settings = settings;
    this.#messageDrafts = messageDrafts;
    this.#callbacks = callbacks;
    this.#pace = pace;
    this.#queue = new QuestionQueue(messageDrafts);
    this.#answers = new AnswerLoader(host, pace, {
      thread: () => this.#thread,
      isWritten: (answer) => this.#current?.answer === answer,
    });
  }

  /** Number of the conversation; null while it is new. */
  get id(): number | null {
    return this.#thread.id;
  }

  /** The place of its unsent text and files. */
  get place(): Place {
    return this.#thread.place;
  }

  /** Returns `place` for the conversation that is on screen now, also once it has a number or another one is shown. */
  placing(): () => Place {
    const thread = this.#thread;
    return () => thread.place;
  }

  /** Identity of the conversation on screen. A new one keeps it when it gets its number. */
  get identity(): object {
    return this.#thread;
  }

  /** Instructions for the whole conversation. */
  get system(): string {
    return this.#systemOf(this.#thread);
  }

  /** The branch on screen. */
  get turns(): readonly Turn[] {
    return this.#thread.turns;
  }

  /** The composer's text for this conversation. */
  get draft(): string {
    return this.#messageDrafts.draftOf(this.place);
  }

  set draft(text: string) {
    this.#messageDrafts.type(this.place, text);
  }

  /** Error of the last action, where no answer shows it. */
  get error(): ErrorInfo | null {
    return this.#thread.error;
  }

  set error(error: ErrorInfo | null) {
    this.#thread.error = error;
  }

  /** Sends the draft, see `ask`. Does nothing if nothing is typed. */
  async send(): Promise<void> {
    const prompt = this.draft.trim();
    if (prompt === '' || !this.takes) return;
    const attachments = this.#messageDrafts.sentFilesOf(this.place);
    this.draft = '';
    this.#messageDrafts.attach(this.place, []);
    await this.ask(prompt, attachments);
  }

  /** Sends a question and leaves the draft alone. While another conversation's answer is written, queues it. Does
   * nothing while one is written or queued here. */
  async ask(prompt: string, attachments: readonly Attachment[] = []): Promise<void> {
    if (!this.takes) return;
    if (this.running) this.#enqueue(this.#thread, { prompt, attachments });
    else {
      const thread = this.#thread;
      const refusal = await this.#ask(thread, { prompt, attachments });
      if (refusal) this.#keepQuestion(thread, refusal.refused, refusal.error);
    }
  }

  /** Shows a question as queued in its conversation. */
  #enqueue(thread: Thread, question: Question, first = false): void {
    this.#name(thread);
    if (thread === this.#thread) this.arrivals += 1;
    this.#queue.add(thread, this.#newTurn(question, new Answer()), first);
  }

  #newTurn(question: Question, answer: Answer): Turn {
    return newTurn(`n${this.#unnumbered++}`, question, answer);
  }

  /** Names a new conversation that is asked, so that its unsent text and its instructions are its own. */
  #name(thread: Thread): void {
    if (thread.place !== null) return;
    thread.system = this.#messageDrafts.instructions;
    this.#messageDrafts.instruct(null);
    thread.name = this.#messageDrafts.newPlace();
    // The unsent text of the new conversation belongs to the one on screen.
    if (thread === this.#thread) this.#messageDrafts.move(null, thread.name);
  }

  /** Takes the name of a conversation without a number back, so that it is found as the new conversation. Returns
   * its thread, which is the one on screen if that is new too. */
  #unname(thread: Thread): Thread {
    if (thread.id !== null || thread.name === null) return thread.place === this.place ? this.#thread : thread;
    this.#messageDrafts.move(thread.name, null);
    this.#messageDrafts.giveBackInstructions(thread.system);
    thread.name = null;
    const shown = this.place === null ? this.#thread : thread;
    shown.refused = this.#messageDrafts.refusedIn(null);
    shown.show();
    return shown;
  }

  /** Place of a turn in the queue, from 1; null if it is not queued. */
  placeOf(turn: Turn): number | null {
    const at = this.queue.findIndex((queued) => queued.turn === turn);
    return at < 0 ? null : at + 1;
  }

  /** Removes a question from the queue, and puts it back into an empty composer. Else it stays in its place, with
   * the note that it was removed. */
  cancelQueued(turn: Turn): void {
    const asked = this.#queue.remove(turn);
    if (!asked) return;
    const thread = this.#unname(asked);
    if (this.#restoreToComposer(thread.place, turn)) return;
    const error = ownError('stopped', language.strings.conversation.removedText);
    turn.answer.fail(error);
    this.#addRefused(thread, { turn: { ...turn, removed: true }, after: asked.end });
  }

  /** Removes the question of a conversation from the queue. */
  cancelQueuedIn(conversation: number): void {
    const queued = this.queue.find((other) => other.conversation === conversation);
    if (queued) this.cancelQueued(queued.turn);
  }

  /** Removes all questions from the queue. */
  cancelAllQueued(): void {
    for (const { turn } of this.queue) this.cancelQueued(turn);
  }

  /** Shows the conversation of a queued question. */
  showQueued(turn: Turn): void {
    const thread = this.#queue.threadOf(turn);
    if (!thread) return;
    this.#openings.cancel();
    this.#show(thread);
  }

  /** Asks the next question of the queue, unless an answer is being written. If any question would be refused, the
   * queue stops there. */
  async askQueued(): Promise<void> {
    const [next] = this.#queue.waiting;
    if (!next || this.running) return;
    const { thread, turn } = next;
    this.#queue.remove(turn);
    const refusal = await this.#ask(thread, turn);
    if (!refusal) return;
    if (!refusal.any) return this.#keepQuestion(thread, refusal.refused, refusal.error);
    this.#enqueue(thread, turn, true);
    this.#callbacks.queueStopped(refusal.error, thread.id);
  }

  /** Asks a question in a conversation. Returns the refusal and the question's place; null once the answer began. */
  async #ask(thread: Thread, question: Question): Promise<(Refusal & { refused: Refused }) | null> {
    const { prompt } = question;
    this.#name(thread);
    const { place } = thread;
    // This repeats a refused question. Other refused ones stay.
    this.#setRefused(
      thread,
      thread.refused.filter(({ turn }) => turn.prompt !== prompt),
    );
    thread.show();
    const parent = thread.end;
    this.#messageDrafts.ask(place, question);
    const refusal = await this.#begin(askingOf(question, parent), thread.turns, question, thread);
    this.#messageDrafts.asked(place);
    return refusal && { ...refusal, refused: { turn: refusal.turn, after: parent } };
  }

  /** Replaces a question by an edited one, with its files, on a new branch. If it is refused, the edit stays open.
   * Does nothing while an answer is written. */
  async edit(turn: Turn, prompt: string): Promise<void> {
    if (this.running) return;
    const thread = this.#thread;
    const before = this.#before(turn);
    // Kept open in case it is refused.
    this.#messageDrafts.edit(turn, prompt);
    this.#name(thread);
    const question = { prompt, attachments: turn.attachments };
    const refusal = await this.#begin(askingOf(question, lastAnswer(before)), before, question);
    if (refusal) return this.#showError(this.#unname(thread), refusal.error);
    this.#messageDrafts.edit(turn, null);
    this.#forgetRefused(thread, turn);
  }

  /** Text of an edit; null if the question is not being edited. */
  editOf(turn: Turn): string | null {
    return this.#messageDrafts.editOf(turn);
  }

  /** Sets the text of an edit; null cancels it. */
  setEdit(turn: Turn, text: string | null): void {
    this.#messageDrafts.edit(turn, text);
  }

  /** Regenerates an answer on a new branch. */
  async regenerate(turn: Turn): Promise<void> {
    if (this.running) return;
    if (turn.question === null) {
      // The question never reached the engine. It stays where it is while another one is queued here.
      if (!this.takes) return;
      if (this.draft.trim() === turn.prompt) {
        this.draft = '';
        // Files added since stay.
        const sent = turn.attachments.map((attachment) => this.#messageDrafts.fileOf(attachment).attachment);
        const files = this.#messageDrafts.filesOf(this.place).filter(({ attachment }) => !sent.includes(attachment));
        this.#messageDrafts.attach(this.place, files);
      }
      this.dismiss(turn);
      return this.ask(turn.prompt, turn.attachments);
    }
    const thread = this.#thread;
    const refusal = await this.#begin({ kind: 'again', question: turn.question }, this.#before(turn), turn);
    if (refusal) this.#showError(thread, refusal.error);
  }

  /** Returns `true` if a retry only fetches the saved answer, which needs no model. */
  retryFetches({ answer, answerId, stored }: Turn): boolean {
    return answerId !== null && stored !== null && answer.tokens.length === 0;
  }

  /** Retries a failed turn: fetches the saved answer, else regenerates it. */
  async retry(turn: Turn): Promise<void> {
    if (turn.answerId === null || !this.retryFetches(turn)) return this.regenerate(turn);
    if (this.writingHere) return;
    const anew = this.#thread.forget(turn.answerId);
    if (anew) await this.#answers.fetch(anew);
  }

  /** Removes a refused question. */
  dismiss(turn: Turn): void {
    this.#forgetRefused(this.#thread, turn);
  }

  #forgetRefused(thread: Thread, turn: Turn): void {
    if (!thread.refused.some((refused) => refused.turn === turn)) return;
    this.#setRefused(
      thread,
      thread.refused.filter((refused) => refused.turn !== turn),
    );
    thread.turns = thread.turns.filter((other) => other !== turn);
  }

  /** Continues an answer where it ended. */
  async continueAnswer(turn: Turn): Promise<void> {
    await this.#continue(turn, null, null);
  }

  /** Continues an answer with another token at `index`, on a new branch. Does nothing while an answer is written. */
  async branch(answer: Answer, index: number, token: number): Promise<void> {
    const turn = this.turns.find((other) => other.answer === answer);
    if (turn) await this.#continue(turn, index, token);
  }

  async #continue(turn: Turn, tokens: number | null, then: number | null): Promise<void> {
    if (turn.answerId === null || this.running) return;
    const thread = this.#thread;
    const refusal = await this.#begin({ kind: 'continue', answer: turn.answerId, tokens, then }, this.#before(turn), turn);
    if (refusal) this.#showError(thread, refusal.error);
  }

  /** Turns on screen before this one. */
  #before(turn: Turn): readonly Turn[] {
    return this.turns.slice(0, Math.max(0, this.turns.indexOf(turn)));
  }

  /** Returns `true` if a message is on the branch on screen. */
  shows(message: number): boolean {
    return this.#thread.shows(message);
  }

  /** Shows the branch of a message, at its newest end. Does nothing while an answer is written here. */
  async choose(message: number): Promise<void> {
    const thread = this.#thread;
    if (this.writingHere || !thread.has(message)) return;
    const leaf = thread.choose(message);
    try {
      await Promise.all([call(this.#host, 'choose_branch', { leaf }), this.#answers.fetchLast()]);
    } catch (thrown) {
      thread.error = toErrorInfo(thrown);
    }
  }

  /** Requests a stop. Synchronous, so that nothing runs before it. */
  stop(): void {
    const running = this.#current;
    if (!running || this.stopping) return;
    this.stopping = true;
    running.stop();
  }

  /** Shows a new conversation with its draft. An answer being written continues. */
  clear(): void {
    this.#openings.cancel();
    this.#show(new Thread(this.#messageDrafts.refusedIn(null)));
  }

  /** Shows a new conversation, because another store is in use. Without `keepsNumbers`, its conversations have other
   * numbers. An answer that is not saved stays on screen, as text of the new conversation. */
  leaveStore(keepsNumbers: boolean): void {
    if (!keepsNumbers) {
      this.#thinking.clear();
      this.#unsaved.clear();
    }
    if (this.#thread.unsaved) this.#thread.detach();
    else this.clear();
  }

  /** Opens a saved conversation. An answer being written continues. */
  async open(id: number): Promise<void> {
    const isLatest = this.#openings.start();
    if (id === this.id) return;
    const queued = this.queue.find(({ conversation }) => conversation === id);
    const unsaved = this.#unsaved.at(id);
    if (queued) this.showQueued(queued.turn);
    else if (id === this.writing) this.showWriting();
    else if (unsaved) this.#show(unsaved);
    else {
      const kept = await call(this.#host, 'open_conversation', { id });
      if (!isLatest()) return;
      this.#show(Thread.of(kept, this.#messageDrafts.refusedIn(id)));
    }
    await this.#answers.fetchLast();
  }

  /** Shows the conversation of the answer being written. */
  showWriting(): void {
    this.#openings.cancel();
    if (this.#current) this.#show(this.#current.thread);
  }

  #show(thread: Thread): void {
    this.#answers.leave();
    this.#unsaved.keep(this.#thread);
    if (this.#thread.id !== null) this.#thinking.set(this.#thread.id, this.#settings.thinking);
    this.#thread = thread;
    this.arrivals += 1;
    const thinking = this.#thinkingIn(thread);
    if (thinking !== undefined) this.#settings.thinking = thinking;
  }

  /** The choice of reasoning in a conversation: the one it was left with, else that of its last answer. Undefined for a
   * new conversation. */
  #thinkingIn({ id, turns }: Thread): Thinking | null | undefined {
    const left = id === null ? undefined : this.#thinking.get(id);
    if (left !== undefined) return left;
    const last = turns.findLast(({ settings }) => settings !== null)?.settings;
    return last && (last.thinking ?? null);
  }

  #systemOf(thread: Thread): string {
    return thread.place === null ? this.#messageDrafts.instructions : thread.system;
  }

  /** Sets the instructions of the conversation. A new one gets them with its first question. */
  async instruct(system: string): Promise<void> {
    await this.#instruct(this.#thread, system);
  }

  /** Returns `instruct` for the conversation that is on screen now, also once another one is. */
  instructing(): (system: string) => Promise<void> {
    const thread = this.#thread;
    return (system) => this.#instruct(thread, system);
  }

  async #instruct(thread: Thread, system: string): Promise<void> {
    if (thread.place === null) return this.#messageDrafts.instruct(system);
    thread.system = system;
    const isLatest = thread.instructions.start();
    try {
      await thread.inOrder(async () => {
        // Its first question was refused, or waits in the queue.
        if (thread.id === null) return;
        await call(this.#host, 'set_system_prompt', { id: thread.id, system });
        thread.instructed = system;
      });
    } catch (thrown) {
      // Newer instructions are not undone.
      if (isLatest()) thread.system = thread.instructed;
      this.#showError(thread, toErrorInfo(thrown));
    }
  }

  /** Sets the number of a new conversation. */
  #number(thread: Thread, id: number): void {
    if (thread.id !== null) return;
    thread.id = id;
    this.#messageDrafts.move(thread.name, id);
  }

  /** Reports whether a turn is near the screen. Tokens of near answers are fetched. */
  near(turn: Turn, isNear: boolean): void {
    this.#answers.near(turn, isNear);
  }

  /** Starts an answer in a conversation, by default the one on screen, after the turns `before`. Returns the refusal,
   * or null once the answer has begun. Nothing may be running. */
  async #begin(asking: Asking, before: readonly Turn[], question: Question, thread = this.#thread): Promise<Refusal | null> {
    if (thread === this.#thread) {
      this.#openings.cancel();
      this.arrivals += 1;
    }
    const answer = new Answer();
    const turn = this.#newTurn(question, answer);
    thread.error = null;
    thread.turns = [...before, turn];
    this.stopping = false;
    const running = new RunningAnswer(this.#host, this.#pace, thread, answer, (ended) => this.#end(ended));
    let ready = false;
    this.#current = running;
    try {
      const settings = this.#settings.request();
      if (!settings) throw ownError('no_model', language.strings.conversation.noModel);
      await this.#callbacks.ready();
      ready = true;
      // The tokens of biases are those of the models that are loaded now.
      const by = this.#callbacks.by();
      const { logit_bias } = (this.#settings.request() ?? settings).sampling;
      const asked = {
        asking,
        settings: { ...settings, sampling: { ...settings.sampling, logit_bias }, target: '', draft: null },
        ...(by && { by }),
      };
      const begun = await thread.inOrder(() =>
        this.#instructed(thread, async (conversation) => {
          const answering = await begin(this.#host, { conversation, ...asked }, (message) => running.receive(message));
          this.#number(thread, answering.conversation);
          return answering;
        }),
      );
      running.begin(begun);
      thread.add(asking, begun, { key: turn.key, answer, settings: { ...asked.settings, ...this.#callbacks.writer() } });
      this.#callbacks.changed();
      // It was stopped before the engine had numbered it.
      if (this.stopping && !answer.over) running.stop();
      return null;
    } catch (thrown) {
      const error = toErrorInfo(thrown);
      running.refuse(error);
      const any = !ready || error.code === 'busy';
      this.#end(running, !any);
      // Restores the turns from before.
      thread.show();
      return { turn, error, any };
    }
  }

  /** Asks in a conversation. A new one with instructions is created with them first, and deleted again if it is
   * refused. */
  async #instructed(thread: Thread, ask: (conversation: number | null) => Promise<Answering>): Promise<Answering> {
    const system = this.#systemOf(thread);
    if (thread.id !== null || system === '') return ask(thread.id);
    const created = await call(this.#host, 'set_system_prompt', { id: null, system });
    try {
      const answering = await ask(created);
      thread.instructed = system;
      return answering;
    } catch (thrown) {
      await call(this.#host, 'delete_conversation', { id: created }).catch(() => {});
      throw thrown;
    }
  }

  /** Keeps a refused question in its place, and also puts it back into an empty composer. */
  #keepQuestion(asked: Thread, refused: Refused, error: ErrorInfo): void {
    const thread = this.#unname(asked);
    this.#restoreToComposer(thread.place, refused.turn);
    this.#addRefused(thread, refused);
    if (thread !== this.#thread) this.#callbacks.refusedElsewhere(error);
  }

  /** Puts a question back into a composer without text and files. Returns whether it had room. */
  #restoreToComposer(place: Place, { prompt, attachments }: Question): boolean {
    if (this.#messageDrafts.draftOf(place) !== '' || this.#messageDrafts.filesOf(place).length > 0) return false;
    this.#messageDrafts.type(place, prompt);
    const files = attachments.map((attachment) => this.#messageDrafts.fileOf(attachment));
    this.#messageDrafts.attach(place, files);
    return true;
  }

  #addRefused(thread: Thread, refused: Refused): void {
    this.#setRefused(thread, [...this.#messageDrafts.refusedIn(thread.place), refused]);
    if (thread === this.#thread) thread.show();
  }

  #setRefused(thread: Thread, refused: readonly Refused[]): void {
    thread.refused = refused;
    this.#messageDrafts.setRefused(thread.place, refused);
  }

  /** Shows an error where the reader is. */
  #showError(thread: Thread, error: ErrorInfo): void {
    if (thread === this.#thread) thread.error = error;
    else this.#callbacks.refusedElsewhere(error);
  }

  /** Ends the current answer, and asks the next question. */
  #end(running: RunningAnswer, asksNext = true): void {
    if (running.thread !== this.#thread) this.#unsaved.keep(running.thread);
    if (this.#current !== running) return;
    this.#current = null;
    this.stopping = false;
    this.#callbacks.changed();
    if (asksNext) void this.askQueued();
  }
}
