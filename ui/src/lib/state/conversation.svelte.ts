// One conversation: its turns, the answer being written, sending and stopping. No DOM.

import type { Host } from '../host';
import { call, generate, toErrorInfo } from '../ipc/rpc';
import type { ChatMessage, GenerationEvent } from '../ipc/schema.gen';
import { GenerationStream, pageClock, type Clock } from '../ipc/stream';
import { Answer } from './answer.svelte';
import { FrameBuffer, pageFrame, type NextFrame } from './frame';
import type { Settings } from './settings.svelte';

/** A question and its answer. */
export interface Turn {
  readonly id: number;
  readonly prompt: string;
  readonly answer: Answer;
}

/** Time as the conversation sees it; tests bring their own. */
export interface Pace {
  clock: Clock;
  nextFrame: NextFrame;
}

/** A generation under way. */
interface Running {
  turn: Turn;
  stream: GenerationStream;
  buffer: FrameBuffer<GenerationEvent>;
  id: number | null;
}

/** The conversation on screen. */
export class Conversation {
  turns = $state.raw<readonly Turn[]>([]);
  /** What is typed and not sent. */
  draft = $state('');
  /** Whether a stop was asked for and the engine has not ended the answer yet. */
  stopping = $state(false);
  running = $derived.by(() => {
    const last = this.turns.at(-1);
    return last !== undefined && !last.answer.over;
  });

  readonly #host: Host;
  readonly #settings: Settings;
  readonly #pace: Pace;
  #current: Running | null = null;
  #nextId = 0;

  constructor(host: Host, settings: Settings, pace: Pace = { clock: pageClock, nextFrame: pageFrame }) {
    this.#host = host;
    this.#settings = settings;
    this.#pace = pace;
  }

  /** Sends what is typed. Does nothing while an answer is being written or nothing is typed. */
  async send(): Promise<void> {
    const prompt = this.draft.trim();
    if (prompt === '' || this.running) return;
    this.draft = '';
    await this.ask(prompt);
  }

  /** Asks a failed turn's question again. */
  async retry(turn: Turn): Promise<void> {
    if (this.running) return;
    if (this.draft.trim() === turn.prompt) this.draft = '';
    this.turns = this.turns.filter((other) => other !== turn);
    await this.ask(turn.prompt);
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
    this.stop();
    this.#current?.stream.close();
    this.#current = null;
    this.stopping = false;
    this.turns = [];
  }

  /** The messages a question would be sent with. Turns that failed without a word are left out. */
  messages(): ChatMessage[] {
    return this.turns.filter(worthKeeping).flatMap((turn) => [
      { role: 'user' as const, content: turn.prompt },
      { role: 'assistant' as const, content: turn.answer.text },
    ]);
  }

  /** Asks this and leaves what is typed alone. Does nothing while an answer is being written. */
  async ask(prompt: string): Promise<void> {
    if (this.running) return;
    const messages: ChatMessage[] = [...this.messages(), { role: 'user', content: prompt }];
    const turn: Turn = { id: this.#nextId++, prompt, answer: new Answer() };
    this.turns = [...this.turns.filter(worthKeeping), turn];
    this.stopping = false;
    const settings = this.#settings.request();
    if (!settings) {
      turn.answer.fail({ code: 'no_model', message: 'No model is loaded. Open a model first.' });
      return this.#giveBack(prompt);
    }
    const running = this.#follow(turn);
    this.#current = running;
    try {
      const id = await generate(this.#host, { messages, ...settings }, (message) => running.stream.receive(message));
      running.id = id;
      running.stream.begin(id);
      // Stopped, or the whole conversation left, before the engine had given it a number.
      if (!turn.answer.over && (this.stopping || !this.turns.includes(turn))) this.#stopGeneration(id);
    } catch (thrown) {
      running.stream.close();
      turn.answer.fail(toErrorInfo(thrown));
      if (this.turns.includes(turn)) this.#giveBack(prompt);
      this.#end(running);
    }
  }

  #follow(turn: Turn): Running {
    const buffer = new FrameBuffer<GenerationEvent>(this.#pace.nextFrame, (events) => {
      turn.answer.apply(events);
      if (turn.answer.over) this.#end(running);
    });
    const stream = new GenerationStream({
      snapshot: (generationId) => call(this.#host, 'generation_snapshot', { generationId }),
      deliver: (events) => buffer.add(events),
      lost: (error) => {
        buffer.flush();
        turn.answer.fail(error);
        this.#end(running);
      },
      clock: this.#pace.clock,
    });
    const running: Running = { turn, stream, buffer, id: null };
    return running;
  }

  #end(running: Running): void {
    if (this.#current !== running) return;
    this.#current = null;
    this.stopping = false;
  }

  /** A prompt that got no answer goes back to where it was typed, unless something else is there. */
  #giveBack(prompt: string): void {
    if (this.draft === '') this.draft = prompt;
  }

  #stopGeneration(generationId: number): void {
    call(this.#host, 'stop_generation', { generationId }).catch((thrown: unknown) => {
      const running = this.#current;
      // A generation that ended meanwhile is no failure; its last events are on their way.
      if (running?.id === generationId && !running.stream.over) {
        running.stream.close();
        running.turn.answer.fail(toErrorInfo(thrown));
        this.#end(running);
      }
    });
  }
}

function worthKeeping(turn: Turn): boolean {
  return turn.answer.phase !== 'failed' || turn.answer.tokens.length > 0;
}
