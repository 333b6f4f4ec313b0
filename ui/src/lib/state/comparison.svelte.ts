// The comparison on screen, running or finished. All figures are the engine's; nothing here computes one. No DOM.

import type { Host } from '../host';
import { call, compare, measurePair, toErrorInfo } from '../ipc/rpc';
import type {
  CompareEvent,
  CompareRequest,
  ComparisonReport,
  ComparisonSetting,
  ErrorInfo,
  GenerationEvent,
  LaneConfig,
  LoadProgress,
  LoadRequest,
  MeasurementMessage,
} from '../ipc/schema.gen';
import { Latest } from '../latest';
import { Answer, type Progress } from './answer.svelte';
import { FrameBuffer, pagePace, type Pace } from './frame';
import { Measurement } from './measurement.svelte';
import { Race, type LaneView } from './race.svelte';

/** The current turn among prompts and runs, and the time left. */
export type Turn = Omit<Extract<CompareEvent, { type: 'turn' }>, 'type'>;

/** Progress of the current step of a comparison. */
type Steps = Partial<Pick<Comparison, 'loading' | 'restoring' | 'costs' | 'turn' | 'server'>>;

/** A lane of a running comparison. */
class LiveLane implements LaneView {
  readonly config: LaneConfig;
  answer = $state.raw(new Answer());
  at = $state(0);

  constructor(config: LaneConfig) {
    this.config = config;
  }

  /** Starts a new turn, in which the lane answers again. */
  renew(): void {
    this.answer = new Answer();
    this.at = 0;
  }
}

/** The running or shown comparison. */
export class Comparison {
  /** Its settings, as the engine reported them. */
  setting = $state.raw<ComparisonSetting | null>(null);
  /** Progress of loading models of lanes; null if nothing is loaded now. */
  loading = $state.raw<LoadProgress | null>(null);
  /** Progress of loading the models again that were unloaded for lanes; null if nothing is loaded now. */
  restoring = $state.raw<LoadProgress | null>(null);
  /** Why these could not be loaded again; null if they were. */
  notRestored = $state.raw<ErrorInfo | null>(null);
  /** Progress of measuring passes, after loading. */
  costs = $state.raw<Progress | null>(null);
  turn = $state.raw<Turn | null>(null);
  /** Answers of the server next to the lanes, the last step. */
  server = $state.raw<Progress | null>(null);
  /** Index of the lane that has its turn. */
  active = $state<number | null>(null);
  report = $state.raw<ComparisonReport | null>(null);
  /** Replay of the last turn, if there is a result. */
  race = $state.raw<Race | null>(null);
  /** Number of the result in the history; null if not saved. */
  kept = $state<number | null>(null);
  /** `true` if it was stopped. */
  stopped = $state(false);
  /** Why the shown comparison ended early. */
  trouble = $state.raw<ErrorInfo | null>(null);
  error = $state.raw<ErrorInfo | null>(null);
  /** `true` if the last comparison measured a pair. */
  ofPair = $state(false);
  /** Outcome of measuring the pair; null while it runs. */
  pairEnd = $state.raw<{ report: ComparisonReport | null; stopped: boolean; error: ErrorInfo | null } | null>(null);
  /** Text of each lane, live or in the replay. */
  lanes = $derived.by((): readonly LaneView[] => this.race?.lanes ?? this.#live);

  #live = $state.raw<readonly LiveLane[]>([]);
  readonly #host: Host;
  readonly #pace: Pace;
  readonly #changed: () => void;
  #measurement = $state.raw<Measurement<CompareEvent> | null>(null);
  readonly #openings = new Latest();
  /** `true` if a pair is being loaded, before there is a number to stop. */
  #loadsPair = false;

  /** `changed` is called at the end, however it ended: the history and the loaded models may have changed. */
  constructor(host: Host, changed: () => void, pace: Pace = pagePace) {
    this.#host = host;
    this.#changed = changed;
    this.#pace = pace;
  }

  /** Starts a comparison. The shown one stays until it has begun. Does nothing while one runs. */
  start(request: CompareRequest): Promise<void> {
    return this.#follow((receive) => compare(this.#host, request, receive));
  }

  /** Loads a pair and compares it with plain decoding. Does nothing while one runs. */
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
    this.#openings.cancel();
    this.error = null;
    this.notRestored = null;
    this.#step({});
    this.race?.pause();
    const buffer = new FrameBuffer<CompareEvent>(this.#pace.nextFrame, (events) => this.#apply(events));
    this.#measurement = new Measurement<CompareEvent>(this.#host, {
      begin,
      snapshot: (id, from) => call(this.#host, 'compare_snapshot', { id, from }),
      deliver: (events) => buffer.add(events),
      lost: (error) => {
        buffer.flush();
        // Cancelling is no failure.
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

  /** `true` if a stop was requested and the engine has not ended yet. */
  get stopping(): boolean {
    return this.#measurement?.stopping ?? false;
  }

  /** Stops the comparison. Answers so far are kept. */
  stop(): void {
    this.#measurement?.stop();
    this.#cancelLoading();
  }

  /** Cancels the loading if a stop came before there was anything to cancel. */
  onLoading(): void {
    if (this.stopping) this.#cancelLoading();
  }

  #cancelLoading(): void {
    if (this.#loadsPair) void call(this.#host, 'cancel_loading', {}).catch(() => {});
  }

  /** Shows a comparison of the history, unless another one is requested meanwhile. Does nothing while one runs. */
  async open(id: number): Promise<void> {
    if (this.running) return;
    const isLatest = this.#openings.start();
    try {
      const report = await call(this.#host, 'open_comparison', { id });
      if (!isLatest()) return;
      this.#reset();
      this.#show(report, id);
    } catch (thrown) {
      if (isLatest()) this.error = toErrorInfo(thrown);
    }
  }

  /** Clears the screen. Does nothing while one runs. */
  clear(): void {
    if (this.running) return;
    this.#openings.cancel();
    this.#reset();
  }

  #reset(): void {
    this.race?.pause();
    this.setting = null;
    this.#step({});
    this.notRestored = null;
    this.report = null;
    this.race = null;
    this.kept = null;
    this.stopped = false;
    this.trouble = null;
    this.error = null;
    this.#live = [];
  }

  /** Shows the progress of one step. That of earlier steps is stale. */
  #step({ loading = null, restoring = null, costs = null, turn = null, server = null }: Steps): void {
    this.loading = loading;
    this.restoring = restoring;
    this.costs = costs;
    this.turn = turn;
    this.server = server;
    this.active = null;
  }

  #apply(events: readonly CompareEvent[]): void {
    // Events of a lane between two frames are applied together.
    let pending: GenerationEvent[][] = [];
    const draw = () => {
      pending.forEach((events, lane) => this.#live[lane]?.answer.apply(events));
      pending = [];
    };
    for (const event of events) {
      switch (event.type) {
        case 'started':
          this.#reset();
          this.setting = event.setting;
          this.#live = event.setting.lanes.map((lane) => new LiveLane(lane));
          break;
        case 'loading':
          draw();
          this.#step({ loading: event.progress });
          break;
        case 'restoring':
          draw();
          this.#step({ restoring: event.progress });
          break;
        case 'not_restored':
          this.notRestored = event.error;
          break;
        case 'costs':
          draw();
          this.#step({ costs: { done: event.done, total: event.total } });
          break;
        case 'turn':
          draw();
          this.#step({ turn: event });
          for (const lane of event.lanes) this.#live[lane]?.renew();
          break;
        case 'server':
          draw();
          this.#step({ server: { done: event.done, total: event.total } });
          break;
        case 'slice':
          this.active = event.lane;
          break;
        case 'lane': {
          const timed = event.event;
          (pending[event.lane] ??= []).push(timed.event);
          const lane = this.#live[event.lane];
          if (lane) lane.at = timed.at_ms;
          break;
        }
        case 'finished':
          draw();
          // Without a report, the trouble is the error itself.
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
    this.race = new Race(report.setting.lanes, report.recordings, endsTogether(report));
  }

  #end(error: ErrorInfo | null, report: ComparisonReport | null = null, stopped = false): void {
    if (this.ofPair) this.pairEnd = { report, stopped, error };
    this.active = null;
    this.#measurement = null;
    this.error = error;
    // Nothing was written yet, so there is nothing to read.
    if (!report && this.#live.every(({ answer }) => answer.figures === null && answer.stats === null)) this.#live = [];
  }
}

/** Returns `true` if the last answers of all lanes are of one turn. Lanes that ran later may have ended at another. */
function endsTogether({ lanes, answers }: ComparisonReport): boolean {
  const last = lanes.map((_, lane) => answers.findLast((answer) => answer.lane === lane));
  return last.every((answer) => answer?.prompt === last[0]?.prompt && answer?.run === last[0]?.run);
}
