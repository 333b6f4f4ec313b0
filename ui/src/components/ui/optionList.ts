// Keys and attributes of a list of options. Listbox.svelte draws the list. A search field may handle its keys instead.

import { isComposing } from '../../lib/keys';

/** A list of options, one of which is selected. */
export interface OptionList {
  /** Id of the listbox element; its options are `id-0`, `id-1`, ... */
  id: string;
  count: number;
  /** Index of the selected option; -1 for none. */
  at: number;
  /** As in a menu: hovering selects, a click chooses, and the arrow keys wrap around. */
  menu?: boolean;
  /** Left and right move too, because the options stand side by side. */
  horizontal?: boolean;
  select: (at: number) => void;
  /** Called for Return; in a menu also for a click, and for Space outside a field. */
  choose?: (at: number) => void;
  /** Called for Delete and Backspace outside a field. */
  remove?: () => void;
}

/** Options that PageUp and PageDown move by. */
const page = 8;

const steps: Readonly<Record<string, number>> = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page };
const stepsAside: Readonly<Record<string, number>> = { ArrowRight: 1, ArrowLeft: -1 };
const stepsToEnds: Readonly<Record<string, number>> = { Home: -Infinity, End: Infinity };

/**
 * Handles a key for a list. Returns whether the key was used.
 * Text fields keep the keys that move their caret, delete or insert.
 */
export function onListKey(event: KeyboardEvent, list: OptionList, inField = false): boolean {
  if (event.metaKey || event.ctrlKey || event.altKey || isComposing(event)) return false;
  const { key } = event;
  const by = steps[key] ?? (list.horizontal ? stepsAside[key] : undefined) ?? (inField ? undefined : stepsToEnds[key]);
  if (by !== undefined) moveBy(by, list);
  else if (list.choose && (key === 'Enter' || (key === ' ' && list.menu && !inField))) list.choose(list.at);
  else if (list.remove && !inField && (key === 'Delete' || key === 'Backspace')) list.remove();
  else return false;
  event.preventDefault();
  return true;
}

function moveBy(by: number, { at, count, menu, select }: OptionList): void {
  if (count === 0) return;
  const wraps = menu && Math.abs(by) === 1;
  select(wraps ? (at + by + count) % count : Math.max(0, Math.min(count - 1, at + by)));
}

/** Id of an option. */
export function optionId(list: Pick<OptionList, 'id'>, at: number): string {
  return `${list.id}-${at}`;
}

/** Id of the selected option, for `aria-activedescendant`. */
export function selectedId(list: OptionList): string | undefined {
  return list.at >= 0 && list.at < list.count ? optionId(list, list.at) : undefined;
}

/** Attributes of the field that searches a list. `shown` is false while the list is not on screen. */
export function fieldAttributes(list: OptionList, shown = true) {
  return {
    role: 'combobox',
    'aria-expanded': shown,
    'aria-controls': shown ? list.id : undefined,
    'aria-activedescendant': shown ? selectedId(list) : undefined,
    autocomplete: 'off',
    spellcheck: false,
  } as const;
}
