// The lab: which of its widgets is on screen, and what each of them is about. Every figure in it comes from
// the engine. No DOM.

import type { Host } from '../host';
import { pageClock } from '../ipc/stream';
import type { Pace } from './conversation.svelte';
import { pageFrame } from './frame';
import { Acceptance } from './lab/acceptance.svelte';
import { Costs } from './lab/costs.svelte';
import { Grounds } from './lab/grounds.svelte';
import { Inspector } from './lab/inspector.svelte';
import { Spot, type Answers } from './lab/spot.svelte';
import type { Models } from './models.svelte';
import type { Settings } from './settings.svelte';
import type { LabWidget } from '../strings/keys';

/** The lab of a window. */
export class Lab {
  /** The widget on screen, remembered while the window is open. */
  widget = $state<LabWidget>('resampling');
  readonly spot: Spot;
  readonly grounds: Grounds;
  readonly acceptance: Acceptance;
  readonly inspector: Inspector;
  readonly costs: Costs;

  readonly #models: Models;
  /** The models that what is shown was made with; undefined before the lab was opened. */
  #made: string | undefined;

  constructor(host: Host, models: Models, settings: Settings, answers: Answers, pace: Pace = { clock: pageClock, nextFrame: pageFrame }) {
    this.#models = models;
    this.spot = new Spot(host, models, settings, answers, pace.nextFrame);
    this.grounds = new Grounds(host);
    this.acceptance = new Acceptance(host);
    this.inspector = new Inspector(host);
    this.costs = new Costs(host, pace.clock);
  }

  /** Follows the models: with others the costs are others, and so are the distributions. */
  follow(): void {
    const { loaded, loading } = this.#models;
    if (loading !== null) return;
    const now = `${loaded?.target.path}\n${loaded?.draft?.path}`;
    const others = this.#made !== undefined && this.#made !== now;
    this.#made = now;
    if (!others) return;
    this.spot.forget();
    void (this.grounds.known ? this.survey() : this.costs.open());
  }

  /** Asks what passes cost here, and for the landscape that comes of it. */
  async survey(): Promise<void> {
    await this.costs.open();
    await this.grounds.open(this.costs.curve !== null);
  }

  /** Shows what happens at the place of a token. */
  async show(message: number, token: number): Promise<void> {
    this.follow();
    if (this.widget !== 'unbiased' && this.widget !== 'rules') this.widget = 'resampling';
    await this.spot.lookAt(message, token);
  }
}
