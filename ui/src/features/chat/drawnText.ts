// Finds a text in the drawn turns of a conversation, and marks it.

import { findText, type TextPart } from '../../lib/text/find';

/** A match in the drawn text. */
export interface DrawnMatch {
  readonly range: Range;
  /** Index of its turn. */
  readonly turn: number;
}

/** Texts of questions and answers, thoughts included. */
const texts = '[data-testid=question], .markdown, [data-testid=answer], [data-testid=stored], [data-testid=broken-text]';

/** Elements that no match reaches across. */
const blocks = 'p, div, li, td, th, pre, h3, h4, h5, h6';

/** Elements whose text does not count: buttons, and formulas, which are drawn twice. */
const skipped = 'button, [role=math], [aria-hidden=true]';

/** Text nodes of an element, in order. */
function* textsOf(element: Element): Generator<Text> {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT, (node) =>
    node instanceof Element && node.matches(skipped) ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT,
  );
  for (let node = walker.nextNode(); node; node = walker.nextNode()) if (node instanceof Text) yield node;
}

/** Finds a query in a column of turns. */
export function findDrawn(column: Element, query: string): DrawnMatch[] {
  if (query.trim() === '') return [];
  return [...column.children].flatMap((child, turn) => {
    const nodes = [...child.querySelectorAll(texts)].flatMap((element) => [...textsOf(element)]);
    let block: Element | null | undefined;
    const parts = nodes.map((node): TextPart => {
      const own = node.parentElement?.closest(blocks);
      const starts = own !== block;
      block = own;
      return { text: node.data, starts };
    });
    return findText(parts, query).flatMap(({ start, end }) => {
      const [first, last] = [nodes[start.part], nodes[end.part]];
      if (!first || !last) return [];
      const range = document.createRange();
      range.setStart(first, start.offset);
      range.setEnd(last, end.offset);
      return [{ range, turn }];
    });
  });
}

/** Names of the highlights. app.css has their colours. */
const [allName, currentName] = ['find', 'find-current'];

/** `true` if the browser can mark text without elements. */
export const canMark = 'highlights' in CSS;

/** Marks matches, and the one at `at` most. */
export function markMatches(matches: readonly DrawnMatch[], at: number): void {
  if (!canMark) return;
  const current = matches[at]?.range;
  const mark = new Highlight(...(current ? [current] : []));
  mark.priority = 1;
  CSS.highlights.set(allName, new Highlight(...matches.map(({ range }) => range)));
  CSS.highlights.set(currentName, mark);
}

/** Selects a match, where the browser cannot mark it. */
export function selectMatch({ range }: DrawnMatch): void {
  getSelection()?.setBaseAndExtent(range.startContainer, range.startOffset, range.endContainer, range.endOffset);
}

/** Removes all marks. */
export function clearMarks(): void {
  if (!canMark) return;
  CSS.highlights.delete(allName);
  CSS.highlights.delete(currentName);
}

/** Pixels by which a match is outside a scroller's upper part; 0 if it is in view. Opens the thought that it is in. */
export function distanceTo({ range }: DrawnMatch, scroller: Element): number {
  const element = range.startContainer.parentElement;
  for (let closed = element?.closest('details:not([open])'); closed; closed = closed.parentElement?.closest('details:not([open])'))
    closed.setAttribute('open', '');
  const match = range.getBoundingClientRect();
  // The text was drawn again meanwhile.
  if (match.height === 0) return 0;
  const view = scroller.getBoundingClientRect();
  const inView = match.top >= view.top + view.height / 8 && match.bottom <= view.bottom - view.height / 4;
  return inView ? 0 : match.top - view.top - view.height / 3;
}
