// Saving and applying presets. No DOM.

import { language } from '../strings/index.svelte';
import type { ActiveConversation } from './conversation.svelte';
import type { Models } from './models.svelte';
import type { Preferences, Preset } from './preferences.svelte';
import { ReplacedInstructions } from './replacedInstructions.svelte';
import type { Settings } from './settings.svelte';

/** Other state that presets are taken from and applied to. */
interface PresetDependencies {
  preferences: Preferences;
  settings: Settings;
  conversation: ActiveConversation;
  models: Models;
  notify: (text: string) => void;
}

/** Presets of the conversation on screen. */
export class Presets {
  readonly replaced: ReplacedInstructions;

  readonly #on: PresetDependencies;

  constructor(dependencies: PresetDependencies) {
    this.#on = dependencies;
    this.replaced = new ReplacedInstructions(dependencies.conversation);
  }

  /** Saves the current instructions and settings as a preset. */
  save(name: string): void {
    const { preferences, conversation, settings } = this.#on;
    preferences.savePreset({ name, system: conversation.system, settings: settings.chosen() });
  }

  /** Applies a preset. */
  use({ name, system, settings }: Preset): void {
    const { models, notify } = this.#on;
    this.#on.settings.choose(settings, models.loaded);
    notify(language.strings.notices.presetUsed(name));
    this.replaced.replace(name, system);
  }
}
