// Recorded streams: one JSON value a line, a StreamMessage, or `{"reject": ErrorInfo}` when the command itself was
// refused. Parses them and plays one as a generation. No DOM.

import type { ErrorInfo, GenerationEvent, LiveFigures, StreamMessage, TokenEvent } from '../../../ui/src/lib/ipc/schema.gen';
import { Playing, type Playback, type Track } from './playing';

/** A parsed recording. */
export interface Recording {
  messages: StreamMessage[];
  reject: ErrorInfo | null;
}

/** Parses a recording. */
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

/** Total time of the rounds in these events, in milliseconds. */
export function recordedDuration(events: readonly GenerationEvent[]): number {
  let total = 0;
  for (const event of events) {
    if (event.type !== 'round') continue;
    const { propose_ms, target_ms, verify_ms, other_ms } = event.timing;
    total += propose_ms + target_ms + verify_ms + other_ms;
  }
  return total;
}

/** Playback of a recorded generation to a channel, in the time of its rounds. */
export class ReplayedGeneration {
  readonly id: number;
  readonly #recording: Recording;
  readonly #playing: Playing<GenerationEvent>;

  /** `keep` receives every message, undelivered ones included. */
  constructor(
    id: number,
    recording: Recording,
    playback: Playback,
    deliver: (message: StreamMessage) => void,
    keep: (message: StreamMessage) => void = () => {},
  ) {
    this.id = id;
    this.#recording = recording;
    const track: Track<GenerationEvent> = {
      batches: recording.messages.map(({ events }) => events),
      duration: recordedDuration,
      own: (event) => (event.type === 'started' || event.type === 'server_started' ? { ...event, generation_id: id } : event),
      keep: (seq, events) => keep({ generation_id: id, seq, events }),
      deliver: (seq, events) => deliver({ generation_id: id, seq, events }),
    };
    this.#playing = new Playing(track, playback);
  }

  /** Starts playing. */
  start(): void {
    this.#playing.start();
  }

  /** Ends the generation as the engine does when it is stopped. */
  stop(): void {
    this.#playing.end(this.#cancelled());
  }

  /** Returns the events numbered `from` and later, lost messages included. */
  snapshot(from: number): StreamMessage {
    return { generation_id: this.id, seq: from, events: this.#playing.played.slice(from) };
  }

  /** The recorded ending, reduced to the tokens so far: their counts and the last live figures. */
  #cancelled(): GenerationEvent {
    const all = this.#recording.messages.flatMap((message) => message.events);
    const byServer = all.find((event) => event.type === 'server_finished');
    if (byServer) {
      const none = { measured_tok_s: null, usage: null, speculation: null, tokens_per_pass: null, reported_tok_s: null };
      return { type: 'server_finished', stop: 'cancelled', figures: { ...byServer.figures, ...none, finish_reason: 'cancelled' } };
    }
    const recorded = all.find((event) => event.type === 'finished');
    if (!recorded) {
      const error: ErrorInfo = { code: 'internal', message: 'This recording has no ending to cut short.' };
      return { type: 'failed', error };
    }
    const tokens: TokenEvent[] = [];
    const { played } = this.#playing;
    const rounds = played.filter((event) => event.type === 'round');
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
      wall_ms: recorded.stats.ttft_ms + recordedDuration(played),
    };
    return { type: 'finished', stop: 'cancelled', tokens: [], stats };
  }
}
