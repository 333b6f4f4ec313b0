// The verdict on a lane in words. Every number in it is the report's. No DOM.

import { formatCount, formatMean, formatShare } from './format';
import type { LaneReport } from './ipc/schema.gen';
import { language } from './strings/index.svelte';

/** A verdict in parts: the head of the sentence, what explains it, and where the time went. */
export interface VerdictWords {
  head: string;
  why: string;
  loss: string;
  shares: string;
  /** Why what the head says is not certain; null when it is, or says so itself. */
  doubt: string | null;
  /** What the head says. */
  outcome: 'faster' | 'slower' | 'unclear';
}

/** What is to be said of a lane; null for plain. */
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
