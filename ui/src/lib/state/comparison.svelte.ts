// The comparison on screen: how it goes while it runs, and what came of it. Every figure is the engine's;
// here nothing is computed. No DOM.

import type { Host } from '../host';
import { call, compare, measurePair, toErrorInfo } from '../ipc/rpc';
import type {
  CompareEvent,
  CompareRequest,
  ComparisonReport,
  ComparisonSetting,
  MethodConfig,
  ErrorInfo,
  GenerationEvent,
  LoadRequest,
  MeasurementMessage,
} from '../ipc/schema.gen';
import { pageClock } from '../ipc/stream';
import { Answer, type Progress } from './answer.svelte';
import type { Pace } from './conversation.svelte';
import { FrameBuffer, pageFrame } from './frame';
import { Measurement } from './measurement.svelte';
import { Race, type LaneView } from './race.svelte';

/** Whose turn it is among prompts and runs, and what is left. */
export type Turn = Omit<Extract<CompareEvent, { type: 'turn' }>, 'type'>;

/** A lane while it runs. */
class LiveLane implements LaneView {
  readonly contender: MethodConfig;
  answer = $state.raw(new Answer());
  at = $state(0);

  constructor(contender: MethodConfig) {
    this.contender = contender;
  }

  /** A new turn: the same lane answers again. */
  renew(): void {
    this.answer = new Answer();
    this.at = 0;
  }
}

/** The comparison that runs, or whose result is shown. */
export class Comparison {
  /** With what, as the engine said when it began. */
  setting = $state.raw<ComparisonSetting | null>(null);
  /** How far the measuring of passes is, which comes first. */
  costs = $state.raw<Progress | null>(null);
  turn = $state.raw<Turn | null>(null);
  /** Number of the lane that has its turn. */
  active = $state<number | null>(null);
  report = $state.raw<ComparisonReport | null>(null);
  /** The last turn once more, when there is a result. */
  race = $state.raw<Race | null>(null);
  /** The result's number in the history; null when it is not there. */
  kept = $state<number | null>(null);
  /** Whether the last one was stopped. */
  stopped = $state(false);
  /** Why the one that is shown ended before its time. */
  trouble = $state.raw<ErrorInfo | null>(null);
  error = $state.raw<ErrorInfo | null>(null);
  /** Whether the one that runs, or ran last, was begun to measure a pair. */
  ofPair = $state(false);
  /** How measuring that pair has ended; null while it runs. */
  pairEnd = $state.raw<{ report: ComparisonReport | null; stopped: boolean; error: ErrorInfo | null } | null>(null);
  /** What is said in each lane: live, or in the race. */
  lanes = $derived.by((): readonly LaneView[] => this.race?.lanes ?? this.#live);

  #live = $state.raw<readonly LiveLane[]>([]);
  readonly #host: Host;
  readonly #pace: Pace;
  readonly #changed: () => void;
  #measurement = $state.raw<Measurement<CompareEvent> | null>(null);
  /** How often something else was asked for: what was asked for before comes too late. */
  #asked = 0;
  /** Whether a pair is being loaded: then there is no number yet that could be stopped. */
  #loadsPair = false;

  /** `changed` hears that one has ended, however it did: the history may have another one, and other models may be in
   * memory. */
  constructor(host: Host, changed: () => void = () => {}, pace: Pace = { clock: pageClock, nextFrame: pageFrame }) {
    this.#host = host;
    this.#changed = changed;
    this.#pace = pace;
  }

  /** Starts one. What is shown stays until it has begun. Does nothing while another runs. */
  start(request: CompareRequest): Promise<void> {
    return this.#follow((receive) => compare(this.#host, request, receive));
  }

  /** Loads a pair and measures it against plain decoding. Does nothing while another runs. */
  measurePair(request: LoadRequest): Promise<void> {
    return this.#follow((receive) => {
      this.#loadsPair = true;
      return measurePair(this.#host, request, receive).finally(() => (this.#loadsPair = false));
    }, true);
  }

  async #follow(begin: (receive: (message: MeasurementMessage<CompareEvent>) => void) => Promise<number>, ofPair = false): Promise<void> {
    if (this.running) return;
    this.ofPair = ofPair;
    this.pairEnd = null;
    this.#asked += 1;
    this.error = null;
    this.costs = null;
    this.turn = null;
    this.race?.pause();
    const buffer = new FrameBuffer<CompareEvent>(this.#pace.nextFrame, (events) => this.#hear(events));
    this.#measurement = new Measurement<CompareEvent>(this.#host, {
      begin,
      snapshot: (id, from) => call(this.#host, 'compare_snapshot', { id, from }),
      deliver: (events) => buffer.add(events),
      lost: (error) => {
        buffer.flush();
        // Loading the pair was called off, which is no failure.
        const stopped = ofPair && error.code === 'stopped';
        this.#end(stopped ? null : error, null, stopped);
        this.#changed();
      },
      clock: this.#pace.clock,
    });
    await this.#measurement.begin();
  }

  get running(): boolean {
    return this.#measurement !== null;
  }

  /** Whether a stop was asked for and the engine has not ended yet. */
  get stopping(): boolean {
    return this.#measurement?.stopping ?? false;
  }

  /** Stops the one that runs; what every lane has answered by then is kept. */
  stop(): void {
    this.#measurement?.stop();
    this.#cancelLoading();
  }

  /** The engine reads files. A stop may have come before there was anything to call off. */
  hearLoading(): void {
    if (this.stopping) this.#cancelLoading();
  }

  #cancelLoading(): void {
    if (this.#loadsPair) void call(this.#host, 'cancel_loading', {}).catch(() => {});
  }

  /** Shows one of the history, unless something else is asked for meanwhile. Does nothing while one runs. */
  async open(id: number): Promise<void> {
    if (this.running) return;
    const asked = (this.#asked += 1);
    try {
      const report = await call(this.#host, 'open_comparison', { id });
      if (asked !== this.#asked) return;
      this.#wipe();
      this.#show(report, id);
    } catch (thrown) {
      if (asked === this.#asked) this.error = toErrorInfo(thrown);
    }
  }

  /** Takes what is shown away. Does nothing while one runs. */
  clear(): void {
    if (this.running) return;
    this.#asked += 1;
    this.#wipe();
  }

  #wipe(): void {
    this.race?.pause();
    this.setting = null;
    this.costs = null;
    this.turn = null;
    this.active = null;
    this.report = null;
    this.race = null;
    this.kept = null;
    this.stopped = false;
    this.trouble = null;
    this.error = null;
    this.#live = [];
  }

  #hear(events: readonly CompareEvent[]): void {
    // What a lane says between two frames is drawn at once.
    let told: GenerationEvent[][] = [];
    const draw = () => {
      told.forEach((said, lane) => this.#live[lane]?.answer.apply(said));
      told = [];
    };
    for (const event of events) {
      switch (event.type) {
        case 'started':
          this.#wipe();
          this.setting = event.setting;
          this.#live = event.setting.lanes.map((lane) => new LiveLane(lane));
          break;
        case 'costs':
          this.costs = { done: event.done, total: event.total };
          break;
        case 'turn':
          draw();
          this.turn = event;
          this.active = null;
          for (const lane of this.#live) lane.renew();
          break;
        case 'slice':
          this.active = event.lane;
          break;
        case 'lane': {
          (told[event.lane] ??= []).push(event.told.event);
          const lane = this.#live[event.lane];
          if (lane) lane.at = event.told.at_ms;
          break;
        }
        case 'finished':
          draw();
          // Without a result there is nothing that the trouble could be a remark on.
          this.#end(event.report ? null : event.trouble, event.report, event.stopped);
          this.stopped = event.stopped;
          this.trouble = event.report ? event.trouble : null;
          if (event.report) this.#show(event.report, event.kept);
          this.#changed();
          break;
        case 'failed':
          draw();
          this.#end(event.error);
          this.#changed();
          break;
      }
    }
    draw();
  }

  #show(report: ComparisonReport, kept: number | null): void {
    this.setting = report.setting;
    this.report = report;
    this.kept = kept;
    this.race = new Race(report.setting.lanes, report.recordings);
  }

  #end(error: ErrorInfo | null, report: ComparisonReport | null = null, stopped = false): void {
    if (this.ofPair) this.pairEnd = { report, stopped, error };
    this.active = null;
    this.#measurement = null;
    this.error = error;
  }
}
