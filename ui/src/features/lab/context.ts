// State that the lab uses.

import { createContext } from 'svelte';
import type { ActiveConversation } from '../../lib/state/conversation.svelte';
import type { Lab } from '../../lib/state/lab.svelte';
import type { Models } from '../../lib/state/models.svelte';
import type { Settings } from '../../lib/state/settings.svelte';
import type { Work } from '../../lib/state/work.svelte';

export interface LabContext {
  readonly lab: Lab;
  readonly models: Models;
  /** The open conversation, whose answers the lab can look at. */
  readonly conversation: Pick<ActiveConversation, 'id' | 'running' | 'answered' | 'near'>;
  /** Ranges of the sliders. */
  readonly settings: Pick<Settings, 'range'>;
  readonly work: Pick<Work, 'running'>;
}

export const [useLab, provideLab] = createContext<LabContext>();
