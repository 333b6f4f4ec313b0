// Reports when an element comes near the visible part of its scroll container, and when it leaves. One observer per
// container.

/** Margin that counts as near: two heights of the container, above and below. */
const margin = '200% 0px';

type Heard = (near: boolean) => void;

interface Watch {
  observer: IntersectionObserver;
  heard: Map<Element, Heard>;
}

const watches = new WeakMap<Element, Watch>();

function watchOf(root: Element): Watch {
  const known = watches.get(root);
  if (known) return known;
  const heard = new Map<Element, Heard>();
  const told = (entries: IntersectionObserverEntry[]) => {
    for (const { target, isIntersecting } of entries) heard.get(target)?.(isIntersecting);
  };
  const watch = { observer: new IntersectionObserver(told, { root, rootMargin: margin }), heard };
  watches.set(root, watch);
  return watch;
}

/** Watches an element until the returned function is called. */
export function watchNear(element: Element, root: Element, heard: Heard): () => void {
  const watch = watchOf(root);
  watch.heard.set(element, heard);
  watch.observer.observe(element);
  return () => {
    watch.heard.delete(element);
    watch.observer.unobserve(element);
  };
}
