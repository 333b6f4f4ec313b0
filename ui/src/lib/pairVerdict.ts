// Words for the verdict on a pair of models. No DOM.

import { causeText } from './errors';
import { formatCount, formatMean, formatShare, visibleText } from './format';
import type { MeasuredSpeedup, PairVerdict, PredictedSpeedup } from './ipc/schema.gen';
import { language } from './strings/index.svelte';

/** Assumptions of a predicted speedup, and where its pass costs come from. */
export function predictionWords({ acceptance, depth, costs }: PredictedSpeedup): string {
  const words = language.strings.library.offers;
  return `${words.predictedTitle(formatShare(acceptance), formatCount(depth))} ${words.predictedCosts[costs]}`;
}

/** A verdict as a sentence without full stop. */
export function verdictWords(verdict: PairVerdict): string {
  const words = language.strings.library.offers;
  // Makes a token of spaces visible.
  const token = (text: string) => (text === '' ? words.missingToken : words.quoted(visibleText(text)));
  switch (verdict.kind) {
    case 'suits':
      return verdict.padding === 0 ? words.suits : words.suitsPadded(formatCount(verdict.padding));
    case 'expected':
      return verdict.compared ? words.expectedCompared : words.expected;
    case 'translated':
      return words.translated(formatCount(verdict.shared), formatCount(verdict.of));
    case 'other_vocabulary':
      return words.otherVocabulary(formatCount(verdict.first), token(verdict.of_target), token(verdict.of_draft));
    case 'not_smaller':
      return words.notSmaller;
    case 'unusable':
      return causeText(verdict.reason);
  }
}

/** A measured speedup, else the predicted one; empty if there is none. */
export function gainWords(measured: MeasuredSpeedup | null, predicted: PredictedSpeedup | null): string {
  const words = language.strings.library.offers;
  if (measured) return words.measured(formatMean(measured.speedup));
  if (!predicted) return '';
  return predicted.depth === 0 ? words.predictedPlain : words.predicted(formatMean(predicted.speedup));
}

/** Architecture of a head, and the model it was trained for or that its sizes match. */
export function headWords(kind: string, model: string | null): string {
  const words = language.strings.library.offers;
  return `${kind}, ${model === null ? words.headMatches : words.trainedFor(model)}`;
}
