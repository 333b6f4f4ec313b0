// The list of models as options, for the listbox and for the search field that handles its keys.

import type { OptionList } from '../../components/ui/optionList';
import type { ModelList } from '../../lib/state/modelList.svelte';

/** Options of the list of models. Selecting one shows its details. */
export function modelOptions(modelList: ModelList): OptionList {
  return {
    id: 'models-list',
    count: modelList.found.length,
    at: modelList.current ? modelList.found.indexOf(modelList.current) : -1,
    select: (to) => modelList.select(modelList.found[to]!.path),
  };
}
