// The place of the reader: screen, part of the library, open sheet. No DOM.

import type { LibraryPart, Place } from '../strings/keys';
import type { TokenFocus } from './tokenFocus.svelte';

/** A sheet over the window. */
type Sheet = 'palette' | 'settings' | 'shortcuts';

/** The reader's place in the window. */
export class Navigation {
  /** The current screen. Work on other screens continues. */
  place = $state<Place>('chat');
  /** The current part of the library. */
  libraryPart = $state<LibraryPart>('here');
  /** The open sheet; null for none. */
  sheet = $state<Sheet | null>(null);

  readonly #tokens: TokenFocus;

  constructor(tokens: TokenFocus) {
    this.#tokens = tokens;
  }

  /** Switches to another screen. No token stands out there. */
  goTo(place: Place): void {
    this.#tokens.unpin();
    this.#tokens.only = null;
    this.place = place;
  }

  /** Switches to a part of the library. */
  showLibrary(part: LibraryPart = 'here'): void {
    this.goTo('library');
    this.libraryPart = part;
  }
}
