// Instructions of the conversation on screen that a preset replaced, which can be restored. No DOM.

import type { ActiveConversation } from './conversation.svelte';

/** Instructions that a preset replaced. */
interface Replaced {
  /** Name of the preset. */
  readonly preset: string;
  readonly before: string;
  readonly after: string;
  /** Questions and conversations shown until then. */
  readonly arrivals: number;
}

/** The last replaced instructions. */
export class ReplacedInstructions {
  #last = $state.raw<Replaced | null>(null);

  readonly #conversation: Pick<ActiveConversation, 'arrivals' | 'instruct' | 'system'>;

  constructor(conversation: Pick<ActiveConversation, 'arrivals' | 'instruct' | 'system'>) {
    this.#conversation = conversation;
  }

  /** Name of the preset that replaced instructions on screen, until they are changed, a question is asked or another
   * conversation is shown; null for none. */
  get preset(): string | null {
    return this.#current?.preset ?? null;
  }

  get #current(): Replaced | null {
    const { arrivals, system } = this.#conversation;
    return this.#last?.arrivals === arrivals && this.#last.after === system ? this.#last : null;
  }

  /** Replaces the instructions by those of a preset. */
  replace(preset: string, system: string): void {
    const { arrivals, system: current } = this.#conversation;
    if (system === current) return;
    // After several presets, the instructions from before the first one are restored.
    const before = this.#current?.before ?? current;
    this.#last = before.trim() === '' || before === system ? null : { preset, before, after: system, arrivals };
    void this.#conversation.instruct(system);
  }

  /** Restores the replaced instructions. */
  restore(): void {
    const current = this.#current;
    this.#last = null;
    if (current) void this.#conversation.instruct(current.before);
  }
}
