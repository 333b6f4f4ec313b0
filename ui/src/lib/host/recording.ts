// Recorded streams: one JSON value a line, a StreamMessage, or `{"reject": ErrorInfo}` when the
// generate command itself was refused. Reading them, and playing one as a generation. No page here.

import type {
  ErrorInfo,
  GenerationEvent,
  GenerationSnapshot,
  LiveFigures,
  StreamMessage,
  TokenEvent,
} from '../ipc/schema.gen';

/** What a recording holds. */
export interface Recording {
  messages: StreamMessage[];
  reject: ErrorInfo | null;
}

/** Reads a recording. */
export function parseRecording(text: string): Recording {
  const recording: Recording = { messages: [], reject: null };
  for (const line of text.split('\n')) {
    if (line.trim() === '') continue;
    const value = JSON.parse(line) as StreamMessage | { reject: ErrorInfo };
    if ('reject' in value) recording.reject = value.reject;
    else recording.messages.push(value);
  }
  return recording;
}

/** How long the rounds in these events took, in milliseconds. */
export function recordedDuration(events: readonly GenerationEvent[]): number {
  let total = 0;
  for (const event of events) {
    if (event.type !== 'round') continue;
    const { propose_ms, target_ms, verify_ms, other_ms } = event.timing;
    total += propose_ms + target_ms + verify_ms + other_ms;
  }
  return total;
}

/** Sets up something to happen after a time in milliseconds. */
export type Later = (milliseconds: number, then: () => void) => void;

/** How a recording is played. */
export interface Playback {
  /** 1 as recorded, 2 twice as fast, Infinity without waiting. */
  speed: number;
  /** Numbers of the messages that get lost on the way, from 0. */
  lost: ReadonlySet<number>;
  later: Later;
}

/** One recorded generation being played to a channel. Times come from the recorded rounds. */
export class ReplayedGeneration {
  readonly id: number;
  readonly #recording: Recording;
  readonly #playback: Playback;
  readonly #deliver: (message: StreamMessage) => void;
  readonly #keep: (message: StreamMessage) => void;
  #said: GenerationEvent[] = [];
  #next = 0;
  #over = false;

  /** `keep` hears every message, those that get lost on the way to `deliver` included. */
  constructor(
    id: number,
    recording: Recording,
    playback: Playback,
    deliver: (message: StreamMessage) => void,
    keep: (message: StreamMessage) => void = () => {},
  ) {
    this.#keep = keep;
    this.id = id;
    this.#recording = recording;
    this.#playback = playback;
    this.#deliver = deliver;
  }

  /** Says the next message after the time it took when it was recorded. */
  start(): void {
    const message = this.#recording.messages[this.#next];
    if (!message || this.#over) return;
    const wait = recordedDuration(message.events) / this.#playback.speed;
    this.#playback.later(wait, () => {
      if (this.#over) return;
      this.#say(message.events, this.#playback.lost.has(this.#next));
      this.#next += 1;
      this.start();
    });
  }

  /** Ends the generation as the engine does when it is stopped. */
  stop(): void {
    if (this.#over) return;
    const finished = this.#cancelled();
    this.#over = true;
    this.#playback.later(0, () => this.#say([finished], false));
  }

  /** Everything said so far, lost messages included. */
  snapshot(): GenerationSnapshot {
    return { generation_id: this.id, next_seq: this.#said.length, events: [...this.#said] };
  }

  #say(events: readonly GenerationEvent[], lost: boolean): void {
    const own = events.map((event) => (event.type === 'started' ? { ...event, generation_id: this.id } : event));
    const seq = this.#said.length;
    this.#said.push(...own);
    if (own.some((event) => event.type === 'finished' || event.type === 'failed')) this.#over = true;
    this.#keep({ generation_id: this.id, seq, events: own });
    if (!lost) this.#deliver({ generation_id: this.id, seq, events: own });
  }

  /** The recorded ending cut down to what was said: counts of those tokens, the last live figures. */
  #cancelled(): GenerationEvent {
    const all = this.#recording.messages.flatMap((message) => message.events);
    const recorded = all.find((event) => event.type === 'finished');
    if (!recorded) {
      const error: ErrorInfo = { code: 'internal', message: 'This recording has no ending to cut short.' };
      return { type: 'failed', error };
    }
    const tokens: TokenEvent[] = [];
    const rounds = this.#said.filter((event) => event.type === 'round');
    for (const round of rounds) tokens.push(...round.tokens);
    const count = (origin: TokenEvent['origin']) => tokens.filter((token) => token.origin === origin).length;
    const last: Partial<LiveFigures> = rounds.at(-1)?.figures ?? {};
    const stats = {
      ...recorded.stats,
      ...last,
      generated_tokens: tokens.length,
      rounds: rounds.length,
      drafted: rounds.reduce((sum, round) => sum + round.drafted, 0),
      accepted: count('accepted'),
      resampled: count('resampled'),
      bonus: count('bonus'),
      plain: count('plain'),
      wall_ms: recorded.stats.ttft_ms + recordedDuration(this.#said),
    };
    return { type: 'finished', stop: 'cancelled', tokens: [], stats };
  }
}
