// The list of models as a list of options, for the listbox and for the search field that handles its keys.

import type { OptionList } from '../../components/ui/optionList';
import type { WindowState } from '../../lib/state/window.svelte';

/** The list of models: keys and clicks select a model. */
export function modelOptions({ shelf }: WindowState): OptionList {
  return {
    id: 'models-list',
    count: shelf.found.length,
    at: shelf.current ? shelf.found.indexOf(shelf.current) : -1,
    select: (to) => shelf.select(shelf.found[to]!.path),
  };
}
