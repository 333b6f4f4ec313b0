// An answer while the engine writes it: its events, from the request to the last one. No DOM.

import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { Answering, ErrorInfo, GenerationEvent, StreamMessage } from '../ipc/schema.gen';
import { EventStream } from '../ipc/stream';
import type { Answer } from './answer.svelte';
import { FrameBuffer, type Pace } from './frame';
import type { Thread } from './thread.svelte';

/** An answer being written, in its conversation. */
export class RunningAnswer {
  readonly #host: Host;
  readonly #stream: EventStream<GenerationEvent>;
  readonly #buffer: FrameBuffer<GenerationEvent>;
  readonly #ended: (running: RunningAnswer) => void;
  /** Events that came before the prefix of the answer was known. */
  #early: GenerationEvent[] | null = [];
  #id: number | null = null;

  /** `ended` is called with this answer when it is complete, has failed, or can no longer be followed. */
  constructor(
    host: Host,
    pace: Pace,
    /** The answer's conversation, whatever the reader opens meanwhile. */
    readonly thread: Thread,
    readonly answer: Answer,
    ended: (running: RunningAnswer) => void,
  ) {
    this.#host = host;
    this.#ended = ended;
    this.#buffer = new FrameBuffer<GenerationEvent>(pace.nextFrame, (events) => {
      answer.apply(events);
      if (answer.over) ended(this);
    });
    this.#stream = new EventStream<GenerationEvent>({
      snapshot: (generationId, from) => call(host, 'generation_snapshot', { generationId, from }),
      deliver: (events) => (this.#early ? this.#early.push(...events) : this.#buffer.add(events)),
      lost: (error) => {
        this.#buffer.flush();
        answer.fail(error);
        ended(this);
      },
      clock: pace.clock,
    });
  }

  /** Receives a message of the engine. */
  receive(message: StreamMessage): void {
    this.#stream.receive(message.generation_id, message);
  }

  /** Follows the answer that the engine has begun. */
  begin({ generation_id, prefix }: Answering): void {
    this.#id = generation_id;
    this.#stream.begin(generation_id);
    this.answer.apply(prefix);
    const early = this.#early ?? [];
    this.#early = null;
    this.#buffer.add(early);
  }

  /** Ends an answer that the engine refused. */
  refuse(error: ErrorInfo): void {
    this.#stream.close();
    this.answer.fail(error);
  }

  /** Asks the engine to stop. Does nothing until the answer has begun. */
  stop(): void {
    if (this.#id === null) return;
    call(this.#host, 'stop_generation', { generationId: this.#id }).catch((thrown: unknown) => {
      // A generation that has ended meanwhile is no failure. Its last events are on their way.
      if (this.#stream.over) return;
      this.refuse(toErrorInfo(thrown));
      this.#ended(this);
    });
  }
}
