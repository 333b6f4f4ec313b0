// The lab: its current widget and the state of each. Figures of models, answers and machines are the engine's. No DOM.

import type { Host } from '../host';
import { pagePace, type Pace } from './frame';
import { AcceptanceMapState } from './lab/acceptance.svelte';
import { Costs } from './lab/costs.svelte';
import { measuredDrafters, SpeedupLandscape } from './lab/landscape.svelte';
import { Inspector } from './lab/inspector.svelte';
import { Samplers } from './lab/samplers.svelte';
import { Selection, type Answers } from './lab/selection.svelte';
import type { Models } from './models.svelte';
import type { Settings } from './settings.svelte';
import type { LabWidget } from '../strings/keys';

/** State of the lab. */
export class Lab {
  /** The current widget, remembered while the window is open. */
  widget = $state<LabWidget>('resampling');
  readonly selection: Selection;
  readonly samplers = new Samplers();
  readonly landscape: SpeedupLandscape;
  readonly acceptance: AcceptanceMapState;
  readonly inspector: Inspector;
  readonly costs: Costs;

  readonly #models: Models;
  /** Models of the shown results; undefined before the lab was opened. */
  #made: string | undefined;

  constructor(host: Host, models: Models, settings: Settings, answers: Answers, pace: Pace = pagePace) {
    this.#models = models;
    this.selection = new Selection(host, models, settings, answers, pace.nextFrame);
    this.landscape = new SpeedupLandscape(host);
    this.acceptance = new AcceptanceMapState(host);
    this.inspector = new Inspector(host);
    this.costs = new Costs(host, pace.clock);
  }

  /** Reloads for new models, whose costs and distributions differ. */
  follow(): void {
    const { loaded, loading } = this.#models;
    if (loading !== null) return;
    const now = `${loaded?.target.path}\n${loaded?.draft?.path}\n${loaded?.head?.path}`;
    const others = this.#made !== undefined && this.#made !== now;
    this.#made = now;
    if (!others) return;
    this.selection.forget();
    void (this.landscape.known ? this.survey() : this.costs.open());
  }

  /** Loads the measured costs, and the landscape based on them. */
  async survey(): Promise<void> {
    await this.costs.open();
    await this.landscape.open(measuredDrafters(this.costs.curve));
  }

  /** Shows the position of a token. */
  async show(message: number, token: number): Promise<void> {
    this.follow();
    if (this.widget !== 'unbiased' && this.widget !== 'rules') this.widget = 'resampling';
    await this.selection.lookAt(message, token);
  }
}
