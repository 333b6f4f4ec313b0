// Actions that need the DOM, for state and commands. No DOM here: the window supplies them.

import type { ConversationEntry } from '../ipc/schema.gen';

/** Actions on what is drawn. */
interface ScreenActions {
  /** Focuses the composer, or the current screen where there is none. */
  compose: () => void;
  /** Finds in the open conversation, or focuses the search field of a screen without one. */
  search: () => void;
  /** Focuses the search field of the conversations. */
  searchAll: () => void;
  /** Starts renaming a conversation in the list. */
  rename: (entry: ConversationEntry) => void;
  /** Focuses the field for a repository in the library. */
  repository: () => void;
  /** Copies a text and shows a notice. */
  copy: (text: string) => unknown;
}

/** The actions of the window. They do nothing until it is drawn. */
export class Screen implements ScreenActions {
  #actions: Partial<ScreenActions> = {};

  /** Sets the actions once the window is drawn. */
  drawn(actions: ScreenActions): void {
    this.#actions = actions;
  }

  readonly compose = (): void => this.#actions.compose?.();
  readonly search = (): void => this.#actions.search?.();
  readonly searchAll = (): void => this.#actions.searchAll?.();
  readonly rename = (entry: ConversationEntry): void => this.#actions.rename?.(entry);
  readonly repository = (): void => this.#actions.repository?.();
  readonly copy = (text: string): unknown => this.#actions.copy?.(text);
}
