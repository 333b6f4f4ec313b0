// The list of models as options, for the listbox and for the search field that handles its keys.

import type { OptionList } from '../../components/ui/optionList';
import type { WindowState } from '../../lib/state/window.svelte';

/** Options of the list of models. Selecting one shows its details. */
export function modelOptions({ shelf }: WindowState): OptionList {
  return {
    id: 'models-list',
    count: shelf.found.length,
    at: shelf.current ? shelf.found.indexOf(shelf.current) : -1,
    select: (to) => shelf.select(shelf.found[to]!.path),
  };
}
