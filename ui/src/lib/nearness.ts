// Reports when an element comes near the visible part of its scroll container, and when it leaves. One observer per
// container.

/** Margin that counts as near: two heights of the container, above and below. */
const margin = '200% 0px';

type NearnessListener = (near: boolean) => void;

interface ContainerWatch {
  observer: IntersectionObserver;
  listeners: Map<Element, NearnessListener>;
}

const watches = new WeakMap<Element, ContainerWatch>();

function watchOf(root: Element): ContainerWatch {
  const known = watches.get(root);
  if (known) return known;
  const listeners = new Map<Element, NearnessListener>();
  const onEntries = (entries: IntersectionObserverEntry[]) => {
    for (const { target, isIntersecting } of entries) listeners.get(target)?.(isIntersecting);
  };
  const watch = { observer: new IntersectionObserver(onEntries, { root, rootMargin: margin }), listeners };
  watches.set(root, watch);
  return watch;
}

/** Watches an element until the returned function is called. */
export function watchNear(element: Element, root: Element, listener: NearnessListener): () => void {
  const watch = watchOf(root);
  watch.listeners.set(element, listener);
  watch.observer.observe(element);
  return () => {
    watch.listeners.delete(element);
    watch.observer.unobserve(element);
  };
}
