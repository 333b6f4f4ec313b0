// State that comparisons use.

import { createContext } from 'svelte';
import type { Comparison } from '../../lib/state/comparison.svelte';
import type { ComparisonPlan } from '../../lib/state/comparisonPlan.svelte';
import type { Comparisons } from '../../lib/state/comparisons.svelte';
import type { LinkQuestion } from '../../lib/state/linkQuestion.svelte';
import type { Models } from '../../lib/state/models.svelte';
import type { Preferences } from '../../lib/state/preferences.svelte';
import type { Servers } from '../../lib/state/servers.svelte';
import type { TokenFocus } from '../../lib/state/tokenFocus.svelte';

export interface CompareContext {
  readonly comparison: Comparison;
  readonly comparisons: Comparisons;
  /** The form of the next comparison. */
  readonly plan: ComparisonPlan;
  readonly models: Models;
  readonly servers: Servers;
  /** View and colours of the answers in the lanes. */
  readonly preferences: Preferences;
  readonly tokens: TokenFocus;
  readonly links: LinkQuestion;
}

export const [useCompare, provideCompare] = createContext<CompareContext>();
