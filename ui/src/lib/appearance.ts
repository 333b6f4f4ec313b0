// Puts what the person prefers onto the document, where app.css takes it from.

import type { Appearance, TextSize } from './strings/keys';

/** Shows colours and text size as preferred. */
export function showAppearance({ appearance, textSize }: { appearance: Appearance; textSize: TextSize }): void {
  const root = document.documentElement;
  if (appearance === 'system') delete root.dataset['appearance'];
  else root.dataset['appearance'] = appearance;
  root.style.setProperty('--size-text', `${textSize}px`);
}
