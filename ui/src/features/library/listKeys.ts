// The keys of the list of models, in the list and in the search field beside it.

import type { WindowState } from '../../lib/state/window.svelte';

/** Places that a page key goes. */
const page = 8;

/** What keys do besides moving. */
interface Acts {
  enter?: () => void;
  remove?: () => void;
}

/** Does what a key means for the list; whether it meant anything. */
export function onListKey(event: KeyboardEvent, app: WindowState, { enter, remove }: Acts = {}): boolean {
  if (event.metaKey || event.ctrlKey || event.altKey || event.isComposing) return false;
  const moves: Record<string, number> = {
    ArrowDown: 1,
    ArrowUp: -1,
    PageDown: page,
    PageUp: -page,
    Home: -Infinity,
    End: Infinity,
  };
  const by = moves[event.key];
  if (by !== undefined) app.shelf.move(by);
  else if (enter && event.key === 'Enter') enter();
  else if (remove && (event.key === 'Delete' || event.key === 'Backspace')) remove();
  else return false;
  event.preventDefault();
  return true;
}
