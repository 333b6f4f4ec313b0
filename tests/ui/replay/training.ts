// Training of drafters on the replay host: a run of a few events, which can be paused, continued and finished early.

import type { Handlers } from '../../../ui/src/lib/ipc/commands';
import type {
  Acceptance,
  ErrorInfo,
  MeasurementMessage,
  TrainEvent,
  TrainOutcome,
  TrainOutlook,
  TrainRequest,
  HeadKind,
  TrainRun,
} from '../../../ui/src/lib/ipc/schema.gen';
import { Playing, type Later, type Track } from './playing';

/** The commands of training. */
type TrainingCommand = 'training_outlook' | 'train_drafter' | 'training_snapshot' | 'finish_training' | 'discard_training';

/** Training in a recorded application. */
export interface RecordedTraining {
  /** Milliseconds between two events. */
  event_ms: number;
  /** Unfinished runs, by path of the model. */
  runs?: Record<string, TrainRun>;
  /** Free bytes of the disk. */
  disk_free?: number;
  /** Error that ends a run after its text is written. */
  failure?: ErrorInfo;
  /** `true` if the drafter in use accepts as much as the new one. */
  in_use_is_better?: boolean;
}

const parts = 8;
const steps = 800;
/** Bytes of training data for a token. */
const tokenBytes = 4_600;
/** Tokens in a second, written and learned from. */
const tokensPerSecond = 250;

/** Time of a gradient step of each architecture, relative to the quickest. */
const slowness = { mlp: 1, medusa: 2, eagle: 6 } as const satisfies Record<HeadKind, number>;
const kinds = Object.keys(slowness) as HeadKind[];

const newRun = (tokens: number, kind: HeadKind = 'mlp'): TrainRun => ({
  kind,
  tokens,
  collected: 0,
  step: 0,
  total: 0,
  curve: [],
  finished: false,
  fit_seconds: 0,
});

/** Key of the run of an architecture. */
const key = (path: string, kind: HeadKind): string => `${kind} ${path}`;

/** Acceptance after a share of all steps. */
function acceptance(share: number): Acceptance {
  const greedy = 0.37 + 0.26 * Math.sqrt(share);
  return { greedy, greedy_positions: 2_515, sampled: greedy - 0.04, sampled_positions: 5_565 };
}

/** The training of a recorded application. */
export class ReplayTraining {
  readonly #recorded: RecordedTraining;
  readonly #later: Later;
  readonly #runs: Map<string, TrainRun>;
  #playing: Playing<TrainEvent> | null = null;
  #key = '';
  /** Number of the last run, in another range than other measurements. */
  #id = 2000;

  constructor(later: Later, recorded: RecordedTraining = { event_ms: 40 }) {
    this.#recorded = recorded;
    this.#later = later;
    this.#runs = new Map(Object.entries(recorded.runs ?? {}).map(([path, run]) => [key(path, run.kind), run]));
  }

  /** The commands of training. */
  readonly handlers: Pick<Handlers, TrainingCommand> = {
    training_outlook: ({ request }) => this.#outlook(request),
    train_drafter: ({ request }, send) => this.#train(request, send),
    training_snapshot: ({ id, from }) => ({ id, seq: from, events: this.#playing?.played.slice(from) ?? [] }),
    finish_training: ({ id }) => {
      if (id === this.#id) this.#playing?.end(this.#finished(this.#current));
      return null;
    },
    discard_training: ({ target }) => {
      for (const kind of kinds) this.#runs.delete(key(target, kind));
      return null;
    },
  };

  /** Pauses a run. Returns false if the number belongs to something else. */
  stop(id: number): boolean {
    if (id <= 2000) return false;
    if (id === this.#id) this.#playing?.end({ type: 'finished', run: this.#current, outcome: null });
    return true;
  }

  get #current(): TrainRun {
    return this.#runs.get(this.#key) ?? newRun(0);
  }

  #outlook({ target, tokens, kind }: TrainRequest): TrainOutlook {
    const run = this.#runs.get(key(target, kind)) ?? null;
    const collected = Math.max(...kinds.map((kind) => this.#runs.get(key(target, kind))?.collected ?? 0));
    const unfinished = kinds.find((kind) => this.#runs.get(key(target, kind))?.finished === false) ?? null;
    return {
      disk_bytes: tokens * tokenBytes,
      disk_free: this.#recorded.disk_free ?? 80e9,
      collect_seconds: (tokens - Math.min(collected, tokens)) / tokensPerSecond,
      fit_seconds: (slowness[kind] * 4 * tokens) / tokensPerSecond,
      measured: run !== null,
      collected,
      run,
      unfinished,
    };
  }

  #train({ target, tokens, kind }: TrainRequest, deliver: (message: MeasurementMessage<TrainEvent>) => void): number {
    const id = ++this.#id;
    this.#key = key(target, kind);
    const own = this.#key;
    const run = this.#runs.get(own) ?? newRun(tokens, kind);
    const track: Track<TrainEvent> = {
      batches: this.#events({ ...run, tokens, finished: false }).map((event) => [event]),
      duration: () => this.#recorded.event_ms,
      keep: (_, events) => {
        for (const event of events) if (event.type !== 'failed') this.#runs.set(own, event.run);
      },
      deliver: (seq, events) => deliver({ id, seq, events }),
    };
    this.#playing = new Playing(track, { speed: 1, lost: new Set(), later: this.#later });
    this.#playing.start();
    return id;
  }

  /** Everything that is left of a run. */
  #events(from: TrainRun): TrainEvent[] {
    const events: TrainEvent[] = [];
    let run = from;
    const progress = (seconds_left: number | null) => events.push({ type: 'progress', run, seconds_left });
    for (let part = 0; run.total === 0 && part <= parts; part++) {
      const collected = Math.round((run.tokens * part) / parts);
      if (collected < from.collected) continue;
      run = { ...run, collected };
      progress((5 * run.tokens - collected) / tokensPerSecond);
    }
    if (this.#recorded.failure) return [...events, { type: 'failed', error: this.#recorded.failure }];
    for (let step = run.step; step <= steps; step += steps / parts) {
      const { greedy, sampled } = acceptance(step / steps);
      run = { ...run, step, total: steps, curve: [...run.curve.filter((point) => point.step < step), { step, greedy, sampled }] };
      progress((4 * run.tokens * (1 - step / steps)) / tokensPerSecond);
    }
    return [...events, this.#finished(run)];
  }

  #finished(run: TrainRun): TrainEvent {
    const trained = acceptance(run.step / steps);
    const better = this.#recorded.in_use_is_better ?? false;
    const outcome: TrainOutcome = {
      start: acceptance(0),
      trained,
      in_use: better ? acceptance(1.2) : null,
      installed: !better,
    };
    return { type: 'finished', run: { ...run, finished: true }, outcome };
  }
}
