// Speed of a model in its last run here, in words. No DOM.

import { formatRate } from './format';
import type { ModelEntry } from './ipc/schema.gen';
import { methodName } from './methods';
import { language } from './strings/index.svelte';

/** The measured rate and its conditions; null if never measured. */
export function speedWords({ tokens_per_second, ran_as }: ModelEntry): string | null {
  if (tokens_per_second === null) return null;
  const words = language.strings.library.details;
  const rate = formatRate(tokens_per_second);
  if (ran_as?.kind === 'draft') return words.speedDrafting(rate);
  return ran_as && ran_as.method !== 'plain' ? words.speedWith(rate, methodName(ran_as.method)) : words.speedMeasured(rate);
}
