// Pointing at tokens in any view of an answer: one listener each for pointer, focus and keys on the container,
// however many tokens there are. Arrow keys move over the tokens. Callbacks report the pointed and the pressed token.
// Any element with data-token is a token; its first piece has data-testid="token".

import type { Action } from 'svelte/action';
import type { Anchor } from '../lib/state/tokenFocus.svelte';

export interface Pointing {
  onpoint: (token: number, anchor: Anchor) => void;
  onunpoint: () => void;
  /** A token was clicked, or Return was pressed on it. */
  onpin: (token: number, anchor: Anchor) => void;
}

const hoverDelay = 90;

/** Action that makes an element a container of tokens. */
export const tokenPointing: Action<HTMLElement, Pointing> = (container, pointing) => {
  let { onpoint, onunpoint, onpin } = pointing;
  let hoverTimer: ReturnType<typeof setTimeout> | undefined;
  let pointed: HTMLElement | null = null;
  /** The last place of the pointer, and `true` if Escape was pressed there. Text scrolling below it shows no card. */
  const pointer = { x: 0, y: 0, dismissed: false };
  let tabStop: HTMLElement | null = null;

  function point(element: HTMLElement) {
    clearTimeout(hoverTimer);
    pointed = element;
    onpoint(Number(element.dataset['token']), anchorOf(container, element));
  }

  function pin(element: HTMLElement) {
    clearTimeout(hoverTimer);
    pointed = element;
    onpin(Number(element.dataset['token']), anchorOf(container, element));
  }

  function onclick(event: MouseEvent) {
    const element = tokenAt(event.target);
    // A link handles its own clicks, and dragging over the text selects it.
    if (element && !linkAt(event.target) && (getSelection()?.isCollapsed ?? true)) pin(element);
  }

  function unpoint() {
    clearTimeout(hoverTimer);
    if (!pointed) return;
    pointed = null;
    onunpoint();
  }

  function onpointermove({ clientX: x, clientY: y }: PointerEvent) {
    if (x === pointer.x && y === pointer.y) return;
    Object.assign(pointer, { x, y, dismissed: false });
  }

  function onpointerover(event: PointerEvent) {
    const element = tokenAt(event.target);
    clearTimeout(hoverTimer);
    onpointermove(event);
    if (!element || event.buttons !== 0 || pointer.dismissed) return;
    if (pointed) point(element);
    else hoverTimer = setTimeout(() => point(element), hoverDelay);
  }

  function onfocusin(event: FocusEvent) {
    const element = tokenAt(event.target);
    if (!element) return;
    tabStop ??= container.querySelector<HTMLElement>('[data-token][tabindex="0"]');
    tabStop?.setAttribute('tabindex', '-1');
    element.setAttribute('tabindex', '0');
    element.setAttribute('aria-describedby', 'token-card');
    tabStop = element;
    if (element.matches(':focus-visible')) point(element);
  }

  function onfocusout(event: FocusEvent) {
    tokenAt(event.target)?.removeAttribute('aria-describedby');
    if (!tokenAt(event.relatedTarget)) unpoint();
  }

  function onkeydown(event: KeyboardEvent) {
    const current = tokenAt(event.target);
    if (!current || event.metaKey || event.ctrlKey || event.altKey) return;
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      pin(current);
      return;
    }
    const next = destination(container, event.key, current);
    if (next === undefined) return;
    event.preventDefault();
    next?.focus();
    next?.scrollIntoView({ block: 'nearest' });
    if (next) point(next);
  }

  /** The page scrolled under the card: follow the token, or hide the card if it is gone or its screen is hidden. */
  function onscroll() {
    if (!pointed) return;
    if (pointed.getClientRects().length > 0) point(pointed);
    else unpoint();
  }

  /** Escape hides the card. It is not shown again until something else is pointed at. */
  function onescape({ key }: KeyboardEvent) {
    if (key !== 'Escape') return;
    clearTimeout(hoverTimer);
    pointed = null;
    pointer.dismissed = true;
  }

  const ended = new AbortController();
  const { signal } = ended;
  container.addEventListener('pointerover', onpointerover, { signal });
  container.addEventListener('pointermove', onpointermove, { signal });
  container.addEventListener('pointerleave', unpoint, { signal });
  container.addEventListener('focusin', onfocusin, { signal });
  container.addEventListener('focusout', onfocusout, { signal });
  container.addEventListener('keydown', onkeydown, { signal });
  container.addEventListener('click', onclick, { signal });
  window.addEventListener('scroll', onscroll, { signal, capture: true });
  window.addEventListener('resize', onscroll, { signal });
  window.addEventListener('keydown', onescape, { signal, capture: true });

  return {
    update: (next) => ({ onpoint, onunpoint, onpin } = next),
    destroy: () => {
      clearTimeout(hoverTimer);
      ended.abort();
    },
  };
};

/** Rectangle of a token that the card is placed at. A wrapped token has a box on each line; the widest counts. */
function anchorOf(container: HTMLElement, element: HTMLElement): Anchor {
  const boxes = [...element.getClientRects()].sort((a, b) => b.width - a.width);
  const { left, right, top, bottom } = boxes[0] ?? element.getBoundingClientRect();
  return { left, right, top, bottom, edge: container.getBoundingClientRect().right };
}

function tokenAt(target: EventTarget | null): HTMLElement | null {
  return target instanceof Element ? target.closest<HTMLElement>('[data-token]') : null;
}

/** Returns `true` if an event is on a link. */
const linkAt = (target: EventTarget | null): boolean => target instanceof Element && target.closest('[role="link"]') !== null;

/** Target of a key: undefined for other keys, null if there is no token. */
function destination(container: HTMLElement, key: string, from: HTMLElement): HTMLElement | null | undefined {
  const all = [...container.querySelectorAll<HTMLElement>('[data-testid="token"]')];
  const at = all.findIndex((element) => element.dataset['token'] === from.dataset['token']);
  switch (key) {
    case 'ArrowRight':
      return all[at + 1] ?? null;
    case 'ArrowLeft':
      return all[at - 1] ?? null;
    case 'Home':
      return all[0] ?? null;
    case 'End':
      return all.at(-1) ?? null;
    case 'ArrowUp':
      return onLine(all.slice(0, at).reverse(), from);
    case 'ArrowDown':
      return onLine(all.slice(at + 1), from);
    default:
      return undefined;
  }
}

/** The token nearest to `from` on the next line among `candidates`. */
function onLine(candidates: HTMLElement[], from: HTMLElement): HTMLElement | null {
  const start = from.getBoundingClientRect();
  let line: number | null = null;
  let best: HTMLElement | null = null;
  let bestDistance = Infinity;
  for (const candidate of candidates) {
    const box = candidate.getBoundingClientRect();
    if (Math.abs(box.top - start.top) < box.height / 2) continue;
    line ??= box.top;
    if (Math.abs(box.top - line) > box.height / 2) break;
    const distance = Math.abs(box.left - start.left);
    if (distance < bestDistance) [best, bestDistance] = [candidate, distance];
  }
  return best;
}
