// Recorded comparisons, one MeasurementMessage<CompareEvent> a line: playback, and the history of results. No DOM.

import type { CompareEvent, ComparisonEntry, ComparisonReport, ErrorInfo, MeasurementMessage } from '../../../ui/src/lib/ipc/schema.gen';
import { Playing, type Playback, type Track } from './playing';
import { recordedDuration } from './recording';

/** A message of a comparison. */
export type CompareMessage = MeasurementMessage<CompareEvent>;

/** Reads a recorded comparison. */
export function parseComparison(text: string): CompareMessage[] {
  return text
    .split('\n')
    .filter((line) => line.trim() !== '')
    .map((line) => JSON.parse(line) as CompareMessage);
}

/** Milliseconds that one round of measuring passes is played for. Its real time is not recorded. */
const costMs = 120;

function duration(events: readonly CompareEvent[]): number {
  const wrapped = events.flatMap((event) => (event.type === 'lane' ? [event.event.event] : []));
  return recordedDuration(wrapped) + costMs * events.filter(({ type }) => type === 'costs').length;
}

/** Playback of a recorded comparison to a channel. */
export class ReplayedComparison {
  readonly id: number;
  readonly #playing: Playing<CompareEvent>;

  /** `keep` adds a report to the history and returns its number. */
  constructor(
    id: number,
    recording: readonly CompareMessage[],
    playback: Playback,
    deliver: (message: CompareMessage) => void,
    keep: (report: ComparisonReport) => number,
  ) {
    this.id = id;
    const track: Track<CompareEvent> = {
      batches: recording.map(({ events }) => events),
      duration,
      own: (event) => (event.type === 'finished' && event.report ? { ...event, kept: keep(event.report) } : event),
      deliver: (seq, events) => deliver({ id, seq, events }),
    };
    this.#playing = new Playing(track, playback);
  }

  /** Starts playing. */
  start(): void {
    this.#playing.start();
  }

  /** Ends it as the engine does when not every lane has answered yet. */
  stop(): void {
    this.#playing.end({ type: 'finished', report: null, kept: null, trouble: null, stopped: true });
  }

  /** Returns the events numbered `from` and later, lost messages included. */
  snapshot(from: number): CompareMessage {
    return { id: this.id, seq: from, events: this.#playing.played.slice(from) };
  }
}

/** The saved comparisons of the replay host, in memory. */
export class ReplayComparisons {
  readonly #kept = new Map<number, ComparisonReport>();
  #next = 1;

  constructor(recorded: readonly ComparisonReport[]) {
    for (const report of recorded) this.keep(report);
  }

  keep(report: ComparisonReport): number {
    this.#kept.set(this.#next, report);
    return this.#next++;
  }

  list(): ComparisonEntry[] {
    return [...this.#kept].map(([id, report]) => entryOf(id, report)).reverse();
  }

  open(id: number): ComparisonReport {
    const report = this.#kept.get(id);
    const refusal: ErrorInfo = { code: 'invalid_request', message: `There is no comparison ${id} any more. Open another one.` };
    if (!report) throw refusal;
    return report;
  }

  remove(id: number): void {
    this.#kept.delete(id);
  }
}

function entryOf(id: number, { setting, lanes, ended_ms }: ComparisonReport): ComparisonEntry {
  const best = lanes.slice(1).reduce((fastest, lane) => (lane.speedup > fastest.speedup ? lane : fastest));
  const first = setting.prompts[0];
  const title =
    setting.prompts.length === 1 ? (first?.text.slice(0, 60) ?? '') : `${first?.id.split('-')[0]}, ${setting.prompts.length} prompts`;
  return { id, ended_ms, title, target: setting.target, draft: setting.draft, best: best.config, speedup: best.speedup };
}
