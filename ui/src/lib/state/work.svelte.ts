// The engine's work: an answer, a comparison, a measurement of costs, a search for layers, or training. One at a time.
// No DOM.

import type { Comparison } from './comparison.svelte';
import type { ActiveConversation } from './conversation.svelte';
import type { Lab } from './lab.svelte';
import type { LayerSearch } from './layerSearch.svelte';
import type { Models } from './models.svelte';
import type { Navigation } from './navigation.svelte';
import type { Pairing } from './pairing.svelte';
import type { Training } from './training.svelte';

/** Other state that the work depends on. */
interface WorkDependencies {
  conversation: ActiveConversation;
  comparison: Comparison;
  /** Measures costs. */
  lab: Pick<Lab, 'costs' | 'widget'>;
  layerSearch: Pick<LayerSearch, 'running' | 'stopping' | 'stop'>;
  models: Models;
  navigation: Navigation;
  /** The pair that the library measures. */
  pairing: Pairing;
  training: Pick<Training, 'running' | 'here' | 'pausing' | 'pause'>;
}

/** The running work, whatever the screen. */
export class Work {
  readonly #on: WorkDependencies;

  constructor(dependencies: WorkDependencies) {
    this.#on = dependencies;
  }

  /** `true` if there is anything to stop. */
  get running(): boolean {
    return this.#on.conversation.running || this.comparing || this.measuring || this.searching || this.training;
  }

  /** `true` if a comparison runs. */
  get comparing(): boolean {
    return this.#on.comparison.running;
  }

  /** `true` if the costs of this machine are measured. */
  get measuring(): boolean {
    return this.#on.lab.costs.progress !== null;
  }

  /** `true` if layers to skip are searched for. */
  get searching(): boolean {
    return this.#on.layerSearch.running;
  }

  /** `true` if a drafter is trained. */
  get training(): boolean {
    return this.#on.training.running;
  }

  /** `true` if a stop was requested and the engine has not ended the work yet. */
  get stopping(): boolean {
    const { conversation, comparison, lab, layerSearch, training } = this.#on;
    if (this.measuring) return lab.costs.stopping;
    if (training.running) return training.pausing;
    if (layerSearch.running) return layerSearch.stopping;
    return conversation.running ? conversation.stopping : comparison.stopping;
  }

  /** `true` if the running work is on screen. Then Escape stops it, or pauses training. A search is part of the
   * settings, which Escape closes. */
  get here(): boolean {
    const { comparison, conversation, lab, navigation, pairing, training } = this.#on;
    const details = navigation.place === 'library' && navigation.libraryPart === 'here';
    if (conversation.running) return navigation.place === 'chat' && conversation.writingHere;
    if (comparison.running) return navigation.place === 'compare' || (details && pairing.measures);
    if (this.measuring) return navigation.place === 'lab' && lab.widget === 'costs';
    return details && training.here;
  }

  /** Stops the work on any screen, or pauses training. An answer that waits for its models stops waiting. */
  stop(): void {
    const { comparison, conversation, lab, layerSearch, models, training } = this.#on;
    if (conversation.running && models.loading !== null) void models.cancel();
    if (conversation.running) conversation.stop();
    else if (comparison.running) comparison.stop();
    else if (this.measuring) lab.costs.stop();
    else if (layerSearch.running) layerSearch.stop();
    else if (training.running) training.pause();
  }
}
