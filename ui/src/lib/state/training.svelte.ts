// Training a drafter for a model: the prediction, the running or paused run, and its result. The engine trains one at a
// time, and nothing else meanwhile. No DOM.

import type { Host } from '../host';
import { call, toErrorInfo, trainDrafter } from '../ipc/rpc';
import type { ErrorInfo, HeadKind, ModelEntry, TrainEvent, TrainOutcome, TrainOutlook, TrainRequest, TrainRun } from '../ipc/schema.gen';
import { pageClock, type Clock } from '../ipc/stream';
import { Latest } from '../latest';
import { Measurement } from './measurement.svelte';
import type { Models } from './models.svelte';

/** Other state that training needs. */
interface TrainingDependencies {
  models: Models;
  clock?: Clock;
}

/** A model in training. */
interface Trainee {
  path: string;
  title: string;
}

/** Result of a run: its drafter, or why it failed. */
interface Result {
  path: string;
  kind: HeadKind;
  outcome: TrainOutcome | null;
  error: ErrorInfo | null;
}

/** Tokens to choose from. */
export const trainingTokens = [50_000, 200_000, 1_000_000] as const;

/** Architectures to choose from, the quickest first. */
export const headKinds = ['mlp', 'medusa', 'eagle'] as const satisfies readonly HeadKind[];

/** Training of drafters. */
export class Training {
  /** Architecture of the drafter. */
  kind = $state<HeadKind>(headKinds[0]);
  /** Tokens that the model writes to train on. */
  tokens = $state<number>(trainingTokens[1]);
  /** Prediction for the selected model; null while unknown. */
  outlook = $state.raw<TrainOutlook | null>(null);
  /** The model that is trained for; null when idle. */
  trainee = $state.raw<Trainee | null>(null);
  /** State of the current run of the selected model; null for none. */
  run = $state.raw<TrainRun | null>(null);
  secondsLeft = $state.raw<number | null>(null);
  /** `true` if the best drafter is wanted now. */
  finishing = $state(false);

  readonly #host: Host;
  readonly #models: Models;
  readonly #clock: Clock;
  readonly #outlooks = new Latest();
  #selected = $state.raw<Trainee | null>(null);
  /** Result of the last run, for any model; null for none. */
  #result = $state.raw<Result | null>(null);
  /** Why the prediction, the early end or the deletion of the selected model failed. */
  #problem = $state.raw<ErrorInfo | null>(null);
  #measurement = $state.raw<Measurement<TrainEvent> | null>(null);
  /** `true` until the state of the selected model is known. */
  #isNew = false;
  #id: number | null = null;
  /** Loads the models again that were in memory before. */
  #restore: () => Promise<unknown> = async () => {};

  constructor(host: Host, { models, clock = pageClock }: TrainingDependencies) {
    this.#host = host;
    this.#models = models;
    this.#clock = clock;
  }

  /** The drafter of the last run, if that was of the selected model and architecture. */
  get outcome(): TrainOutcome | null {
    return this.#shownResult?.outcome ?? null;
  }

  /** Why the last run of the selected model and architecture failed, or another request for it. */
  get error(): ErrorInfo | null {
    return this.#shownResult?.error ?? this.#problem;
  }

  get #shownResult(): Result | null {
    return this.#result?.path === this.#selected?.path && this.#result?.kind === this.kind ? this.#result : null;
  }

  /** `true` while a drafter is trained, for any model. */
  get running(): boolean {
    return this.trainee !== null;
  }

  /** `true` while the run belongs to the selected model. */
  get here(): boolean {
    return this.trainee !== null && this.trainee.path === this.#selected?.path;
  }

  /** `true` if a pause was requested and the engine is still in a step. */
  get pausing(): boolean {
    return this.#measurement?.stopping ?? false;
  }

  /** `true` if an unfinished run of the selected model can be continued. */
  get paused(): boolean {
    const run = this.run;
    return !this.running && run !== null && !run.finished && (run.collected > 0 || run.step > 0);
  }

  /** Selects a model; null for none. */
  show(model: ModelEntry | null): void {
    const selected = model?.problem === null ? { path: model.path, title: this.#models.titleOf(model) } : null;
    if (selected?.path === this.#selected?.path) return;
    this.#selected = selected;
    this.#isNew = true;
    this.outlook = null;
    this.#problem = null;
    if (this.here) return;
    this.run = null;
    void this.#ask();
  }

  /** Chooses the tokens to train on. */
  choose(tokens: number): void {
    this.tokens = tokens;
    void this.#ask();
  }

  /** Chooses the architecture. Each has runs of its own. */
  chooseKind(kind: HeadKind): void {
    if (this.running) return;
    this.kind = kind;
    this.run = null;
    this.#problem = null;
    void this.#ask();
  }

  /** Starts or continues the run of the selected model. Does nothing while one runs. */
  async start(): Promise<void> {
    const trainee = this.#selected;
    if (this.running || !trainee || this.#models.loading !== null) return;
    const { loaded } = this.#models;
    this.#restore = async () => {
      if (!loaded || this.#models.loaded) return;
      const { target, draft, head, context } = loaded;
      const request = { target: target.path, draft: draft?.path ?? null, ...(head && { head: head.path }), context };
      await this.#models.load(request, this.#models.titleOf(loaded.target), false);
    };
    this.trainee = trainee;
    this.#problem = null;
    this.#result = null;
    this.secondsLeft = null;
    this.finishing = false;
    this.#id = null;
    const request = this.#request(trainee);
    this.#measurement = new Measurement<TrainEvent>(this.#host, {
      begin: async (receive) => {
        this.#id = await trainDrafter(this.#host, request, receive);
        return this.#id;
      },
      snapshot: (id, from) => call(this.#host, 'training_snapshot', { id, from }),
      deliver: (events) => this.#apply(events),
      lost: (error) => void this.#end(null, error),
      clock: this.#clock,
    });
    await this.#measurement.begin();
  }

  /** Pauses the run. Everything is kept. */
  pause(): void {
    this.#measurement?.stop();
  }

  /** Ends the run early with the best drafter so far. */
  async finish(): Promise<void> {
    if (this.#id === null || this.finishing) return;
    this.finishing = true;
    try {
      await call(this.#host, 'finish_training', { id: this.#id });
    } catch (thrown) {
      this.finishing = false;
      this.#problem = toErrorInfo(thrown);
    }
  }

  /** Deletes the data of the selected model's run. */
  async discard(): Promise<void> {
    if (this.running || !this.#selected) return;
    try {
      await call(this.#host, 'discard_training', { target: this.#selected.path });
      this.run = null;
      if (this.#shownResult) this.#result = null;
      this.#problem = null;
      await this.#ask();
    } catch (thrown) {
      this.#problem = toErrorInfo(thrown);
    }
  }

  #request({ path }: Trainee): TrainRequest {
    return { target: path, tokens: this.tokens, kind: this.kind };
  }

  #apply(events: readonly TrainEvent[]): void {
    for (const event of events) {
      if (event.type === 'failed') void this.#end(null, event.error);
      else {
        if (this.here) this.run = event.run;
        if (event.type === 'progress') this.secondsLeft = event.seconds_left;
        else void this.#end(event.outcome, null);
      }
    }
  }

  async #end(outcome: TrainOutcome | null, error: ErrorInfo | null): Promise<void> {
    if (this.trainee) this.#result = { path: this.trainee.path, kind: this.kind, outcome, error };
    this.#measurement = null;
    this.trainee = null;
    this.finishing = false;
    await this.#ask();
    // The models are loaded again with the newest drafter.
    await this.#restore();
  }

  async #ask(): Promise<void> {
    const selected = this.#selected;
    if (!selected) return;
    const isLatest = this.#outlooks.start();
    try {
      const outlook = await call(this.#host, 'training_outlook', { request: this.#request(selected) });
      if (!isLatest()) return;
      this.outlook = outlook;
      if (this.running) return;
      const { run, unfinished } = outlook;
      // A run that waits comes first when a model is selected.
      if (this.#isNew && unfinished && (run?.finished ?? true)) return this.chooseKind(unfinished);
      this.#isNew = false;
      // A paused run continues with its own tokens.
      if (run && !run.finished && run.tokens !== this.tokens && this.run === null) {
        this.run = run;
        this.choose(run.tokens);
      }
      this.run = run;
    } catch (thrown) {
      if (isLatest() && !this.running) this.#problem ??= toErrorInfo(thrown);
    }
  }
}
