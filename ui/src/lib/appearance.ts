// Applies appearance preferences to the document, where app.css reads them.

import type { Appearance, TextSize } from './strings/keys';

/** Applies colours and text size. */
export function showAppearance({ appearance, textSize }: { appearance: Appearance; textSize: TextSize }): void {
  const root = document.documentElement;
  if (appearance === 'system') delete root.dataset['appearance'];
  else root.dataset['appearance'] = appearance;
  root.style.setProperty('--size-text', `${textSize}px`);
}
