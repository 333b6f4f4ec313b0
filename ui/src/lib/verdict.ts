// The verdict on a lane in words. All numbers are the report's. No DOM.

import { formatCount, formatMean, formatShare } from './format';
import type { LaneReport } from './ipc/schema.gen';
import { language } from './strings/index.svelte';

/** A verdict in parts: headline, explanation, and where the time went. */
interface VerdictWords {
  head: string;
  why: string;
  loss: string;
  shares: string;
  /** Why the headline is uncertain; null if it is not, or says so itself. */
  doubt: string | null;
  /** The headline. */
  outcome: 'faster' | 'slower' | 'unclear';
}

/** The verdict on a lane; null for plain. */
export function verdictWords({ verdict, speedup_low, speedup_high, samples }: LaneReport): VerdictWords | null {
  if (!verdict) return null;
  const words = language.strings.compare.verdict;
  const speedup = formatMean(verdict.speedup);
  const outcome = !verdict.unanimous ? 'unclear' : verdict.speedup >= 1 ? 'faster' : 'slower';
  const unclear = samples > 1 ? words.unclear(speedup, formatMean(speedup_low), formatMean(speedup_high)) : words.single(speedup);
  return {
    head: outcome === 'unclear' ? unclear : words[outcome](speedup),
    why: words.why(formatMean(verdict.tokens_per_pass), formatMean(verdict.pass_cost)),
    loss: words.losses[verdict.loss],
    shares: words.shares(formatShare(verdict.drafting_share), formatShare(verdict.wider_share), formatShare(verdict.loop_share)),
    doubt: verdict.unanimous && !verdict.certain ? words.almostCertain(formatCount(samples)) : null,
    outcome,
  };
}
