// Moves the focus when an element appears or a dialog closes.

import { tick } from 'svelte';

/** Gives an element the focus once it is drawn. */
export const focused = (element: HTMLElement): void => element.focus();

/**
 * Moves the focus from a removed control to the element at its index among those that match, the last one, or else to
 * another. Waits until the change is drawn.
 */
export async function focusAt(within: Element | null, selector: string, at: number, otherwise?: HTMLElement | null): Promise<void> {
  await tick();
  const all = [...(within?.querySelectorAll<HTMLElement>(selector) ?? [])];
  (all[at] ?? all.at(-1) ?? otherwise)?.focus();
}

/** Replaces the focus handling of a closing dialog: `compose` runs, unless something else has the focus by then. */
export async function leaveFocus(event: Event, compose: () => void): Promise<void> {
  event.preventDefault();
  await tick();
  // Commands that closed the dialog have run by the next frame.
  await new Promise(requestAnimationFrame);
  const holder = document.activeElement;
  if (holder === null || holder === document.body) compose();
}
