// Marks, in the mode of rounds, the last token of each round that is on screen with `data-ends`: where its bracket
// closes. Which that is depends on what follows, which may be in another block and is often drawn later, so it is
// found where the tokens are drawn. Only what has changed is looked at: work per frame does not grow with the
// answer. Nothing is marked in other modes.

import type { Action } from 'svelte/action';
import type { ColourMode } from '../lib/strings/keys';

/** A token on screen, its later stretches included. */
const tokens = '[data-token]';

/** Makes an element a container of tokens whose rounds have ends, while its mode is that of rounds. */
export const roundEnds: Action<HTMLElement, ColourMode> = (container, mode) => {
  const watcher = new MutationObserver(mend);
  const walker = document.createTreeWalker(container, NodeFilter.SHOW_ELEMENT, (node) =>
    node instanceof Element && node.matches(tokens) ? NodeFilter.FILTER_ACCEPT : NodeFilter.FILTER_SKIP,
  );

  function show(next: ColourMode) {
    watcher.disconnect();
    if (next !== 'rounds') return;
    const all = [...container.querySelectorAll<HTMLElement>(tokens)];
    for (const [at, token] of all.entries()) markEnd(token, all[at + 1]);
    watcher.observe(container, { subtree: true, childList: true, attributes: true, attributeFilter: ['data-round'] });
  }

  /** Marks what was added, what was given another round, and what stands before either or before what is gone. */
  function mend(records: MutationRecord[]) {
    const touched = new Set<HTMLElement>();
    const touch = (node: Node) => tokensIn(node).forEach((token) => touched.add(token));
    for (const { type, target, addedNodes, removedNodes, previousSibling } of records) {
      if (type === 'attributes') touch(target);
      addedNodes.forEach(touch);
      if (removedNodes.length === 0) continue;
      // What it stood behind may be gone as well: then all around is looked at.
      if (previousSibling?.isConnected) touch(lastIn(previousSibling) ?? neighbour(previousSibling, 'previousNode') ?? target);
      else touch(target);
    }
    for (const token of [...touched]) {
      const before = neighbour(token, 'previousNode');
      if (before) touched.add(before);
    }
    for (const token of touched) if (container.contains(token)) markEnd(token, neighbour(token, 'nextNode'));
  }

  /** The token before or behind a node, in the order they are read. */
  function neighbour(node: Node, step: 'previousNode' | 'nextNode'): HTMLElement | undefined {
    walker.currentNode = node;
    const found = walker[step]();
    return found instanceof HTMLElement && found !== container ? found : undefined;
  }

  show(mode);
  return { update: show, destroy: () => watcher.disconnect() };
};

/** The tokens in a node that is shown, itself included. */
function tokensIn(node: Node): HTMLElement[] {
  if (!(node instanceof HTMLElement) || !node.isConnected) return [];
  return node.matches(tokens) ? [node] : [...node.querySelectorAll<HTMLElement>(tokens)];
}

const lastIn = (node: Node): HTMLElement | undefined => tokensIn(node).at(-1);

function markEnd(token: HTMLElement, next: HTMLElement | undefined): void {
  token.toggleAttribute('data-ends', next?.dataset['round'] !== token.dataset['round']);
}
