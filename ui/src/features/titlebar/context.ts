// State that the title bar uses.

import { createContext } from 'svelte';
import type { Answerer } from '../../lib/state/answerer.svelte';
import type { Downloads } from '../../lib/state/downloads.svelte';
import type { LibraryState } from '../../lib/state/library.svelte';
import type { ModelList } from '../../lib/state/modelList.svelte';
import type { Models } from '../../lib/state/models.svelte';
import type { Navigation } from '../../lib/state/navigation.svelte';
import type { Pairing } from '../../lib/state/pairing.svelte';
import type { Screen } from '../../lib/state/screen';
import type { Servers } from '../../lib/state/servers.svelte';
import type { Work } from '../../lib/state/work.svelte';

export interface TitleBarContext {
  readonly navigation: Navigation;
  readonly models: Models;
  /** The answerer of the next question. */
  readonly answerer: Answerer;
  readonly servers: Servers;
  readonly library: LibraryState;
  readonly modelList: ModelList;
  /** The loaded target and its drafts. */
  readonly drafting: Pairing;
  readonly downloads: Pick<Downloads, 'busy' | 'share'>;
  readonly work: Pick<Work, 'running'>;
  readonly screen: Pick<Screen, 'compose'>;
}

export const [useTitleBar, provideTitleBar] = createContext<TitleBarContext>();
