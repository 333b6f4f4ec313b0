// Draws a formula into an element. KaTeX is loaded with the first formula. Until then, and where it fails, the source
// text is shown.

import type { Action } from 'svelte/action';

interface FormulaText {
  tex: string;
  display: boolean;
}

type Draw = typeof import('./katex').drawFormula;

let draw: Draw | null = null;
let loading: Promise<Draw> | null = null;

async function load(): Promise<Draw> {
  const { drawFormula } = await import('./katex');
  return (draw = drawFormula);
}

/** The source text, for selecting and copying. The letters of the drawing make no sense in a row. */
function written({ tex, display }: FormulaText): HTMLElement {
  const text = document.createElement('span');
  text.className = 'screen-reader-only';
  text.textContent = display ? `$$${tex}$$` : `$${tex}$`;
  return text;
}

export const formula: Action<HTMLElement, FormulaText> = (element, initial) => {
  let current = initial;

  function show() {
    const drawn = draw?.(current.tex, current.display);
    if (drawn) element.replaceChildren(drawn, written(current));
    else element.textContent = current.tex;
  }

  show();
  if (!draw) {
    loading ??= load();
    // Without KaTeX the source text stays.
    loading.then(show, () => (loading = null));
  }
  return {
    update(next) {
      if (next.tex === current.tex && next.display === current.display) return;
      current = next;
      show();
    },
  };
};
