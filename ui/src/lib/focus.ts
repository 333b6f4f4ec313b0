// Moves the focus when an element appears or a dialog closes.

import { tick } from 'svelte';

/** Gives an element the focus once it is drawn. */
export const focused = (element: HTMLElement): void => element.focus();

/** Replaces the focus handling of a closing dialog: `compose` runs, unless something else has the focus by then. */
export async function leaveFocus(event: Event, compose: () => void): Promise<void> {
  event.preventDefault();
  await tick();
  // Commands that closed the dialog have run by the next frame.
  await new Promise(requestAnimationFrame);
  const holder = document.activeElement;
  if (holder === null || holder === document.body) compose();
}
