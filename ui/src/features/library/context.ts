// State that the library uses.

import { createContext } from 'svelte';
import type { CatalogueState } from '../../lib/state/catalogue.svelte';
import type { Comparison } from '../../lib/state/comparison.svelte';
import type { HubSearchState } from '../../lib/state/hubSearch.svelte';
import type { Downloads } from '../../lib/state/downloads.svelte';
import type { LibraryState } from '../../lib/state/library.svelte';
import type { LinkQuestion } from '../../lib/state/linkQuestion.svelte';
import type { ModelList } from '../../lib/state/modelList.svelte';
import type { Models } from '../../lib/state/models.svelte';
import type { Navigation } from '../../lib/state/navigation.svelte';
import type { OwnServerSwitch } from '../../lib/state/ownServer.svelte';
import type { Pairing } from '../../lib/state/pairing.svelte';
import type { Screen } from '../../lib/state/screen';
import type { Servers } from '../../lib/state/servers.svelte';
import type { Training } from '../../lib/state/training.svelte';
import type { Work } from '../../lib/state/work.svelte';

export interface LibraryContext {
  readonly library: LibraryState;
  /** The list of models with its filters. */
  readonly modelList: ModelList;
  readonly models: Models;
  readonly servers: Servers;
  /** The server of this window for other programs. */
  readonly ownServer: OwnServerSwitch;
  /** The selected model and its drafts. */
  readonly pairing: Pairing;
  /** The measurement of a pair. */
  readonly comparison: Comparison;
  /** Training of a drafter for the selected model. */
  readonly training: Training;
  readonly catalogue: CatalogueState;
  /** Search of the hub, and the shown model card. */
  readonly hubSearch: HubSearchState;
  readonly downloads: Downloads;
  readonly navigation: Navigation;
  readonly work: Pick<Work, 'running'>;
  readonly links: Pick<LinkQuestion, 'ask'>;
  readonly screen: Pick<Screen, 'copy' | 'search'>;
}

export const [useLibrary, provideLibrary] = createContext<LibraryContext>();

/** Loads the selected model with its choices. Does nothing while the loaded one is in use. */
export function loadSelected(pairing: Pairing, work: Pick<Work, 'running'>): void {
  if (!work.running) void pairing.load();
}
