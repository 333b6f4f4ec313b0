// Hears when an element comes near what is on screen of a scrolled one, and when it goes. One observer for
// each scrolled element, however many are watched in it.

/** How near that is: two heights of what is on screen, above and below. */
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

/** Watches an element until the function that is given back is called. */
export function watchNear(element: Element, root: Element, heard: Heard): () => void {
  const watch = watchOf(root);
  watch.heard.set(element, heard);
  watch.observer.observe(element);
  return () => {
    watch.heard.delete(element);
    watch.observer.unobserve(element);
  };
}
