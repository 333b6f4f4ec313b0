// Moves the focus when an element appears or a dialog closes.

import { tick } from 'svelte';

/** Gives an element the focus once it is drawn. */
export const focused = (element: HTMLElement): void => element.focus();

/** Keeps a closing dialog from choosing; unless something else has the focus by then, `compose` takes it. */
export async function leaveFocus(event: Event, compose: () => void): Promise<void> {
  event.preventDefault();
  await tick();
  // What was asked for beside the closing has happened by the next frame.
  await new Promise(requestAnimationFrame);
  const holder = document.activeElement;
  if (holder === null || holder === document.body) compose();
}
