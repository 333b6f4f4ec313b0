// Marks the last token of each round on screen with `data-ends`, where its bracket closes. The last token depends on
// what follows, maybe in another block drawn later, so it is found in the DOM. Only changes are examined, so the work
// per frame does not grow with the answer. Other modes mark nothing.

import type { Action } from 'svelte/action';
import type { ColourMode } from '../lib/strings/keys';

/** A token on screen, all of its pieces included. */
const tokens = '[data-token]';

/** Action for a container of tokens that marks round ends while the colour mode is rounds. */
export const roundEnds: Action<HTMLElement, ColourMode> = (container, mode) => {
  const watcher = new MutationObserver(update);
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

  /** Marks added tokens, tokens with a new round, and the tokens before either or before a removed one. */
  function update(records: MutationRecord[]) {
    const touched = new Set<HTMLElement>();
    const touch = (node: Node) => tokensIn(node).forEach((token) => touched.add(token));
    for (const { type, target, addedNodes, removedNodes, previousSibling } of records) {
      if (type === 'attributes') touch(target);
      addedNodes.forEach(touch);
      if (removedNodes.length === 0) continue;
      // The token before it may be gone too: then the whole container is examined.
      if (previousSibling?.isConnected) touch(lastIn(previousSibling) ?? neighbour(previousSibling, 'previousNode') ?? target);
      else touch(target);
    }
    for (const token of [...touched]) {
      const before = neighbour(token, 'previousNode');
      if (before) touched.add(before);
    }
    for (const token of touched) if (container.contains(token)) markEnd(token, neighbour(token, 'nextNode'));
  }

  /** The token before or after a node, in reading order. */
  function neighbour(node: Node, step: 'previousNode' | 'nextNode'): HTMLElement | undefined {
    walker.currentNode = node;
    const found = walker[step]();
    return found instanceof HTMLElement && found !== container ? found : undefined;
  }

  show(mode);
  return { update: show, destroy: () => watcher.disconnect() };
};

/** Visible tokens in a node, itself included. */
function tokensIn(node: Node): HTMLElement[] {
  if (!(node instanceof HTMLElement) || !node.isConnected) return [];
  return node.matches(tokens) ? [node] : [...node.querySelectorAll<HTMLElement>(tokens)];
}

const lastIn = (node: Node): HTMLElement | undefined => tokensIn(node).at(-1);

function markEnd(token: HTMLElement, next: HTMLElement | undefined): void {
  token.toggleAttribute('data-ends', next?.dataset['round'] !== token.dataset['round']);
}
