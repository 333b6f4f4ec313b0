// Formulas by KaTeX, with limits on time and no external access. Loaded on demand.

import katex, { type KatexOptions } from 'katex';
import 'katex/dist/katex.min.css';

/** KaTeX's own tree, which creates the elements. */
interface Drawn {
  attributes?: Record<string, string>;
  children?: Drawn[];
  toNode: () => Node;
}

/** Holds the style attribute, which the content security policy forbids. */
const heldStyle = 'data-style';

const options: KatexOptions = {
  output: 'html',
  throwOnError: true,
  trust: false,
  errorColor: 'currentColor',
  strict: 'ignore',
  maxExpand: 200,
  maxSize: 20,
};

/** A formula as an element; null if it cannot be drawn. */
export function drawFormula(tex: string, displayMode: boolean): Node | null {
  try {
    const tree = (katex as unknown as { __renderToDomTree: (tex: string, options: KatexOptions) => Drawn }).__renderToDomTree(tex, {
      ...options,
      displayMode,
    });
    holdStyles(tree);
    const node = tree.toNode();
    if (node instanceof Element) setStyles(node);
    return node;
  } catch {
    return null;
  }
}

/** Style sheets and the style object may set styles; attributes may not. */
function holdStyles(tree: Drawn): void {
  const style = tree.attributes?.['style'];
  if (tree.attributes && style !== undefined) {
    delete tree.attributes['style'];
    tree.attributes[heldStyle] = style;
  }
  for (const child of tree.children ?? []) holdStyles(child);
}

function setStyles(root: Element): void {
  for (const element of root.querySelectorAll<HTMLElement | SVGElement>(`[${heldStyle}]`)) {
    element.style.cssText = element.getAttribute(heldStyle) ?? '';
    element.removeAttribute(heldStyle);
  }
}
