// Properties of every view of an answer: the style of tokens, and callbacks for pointing and pinning.

import type { ColourMode, MarkClass } from '../lib/strings/keys';
import type { TokenMark } from '../lib/state/answer.svelte';
import type { Pointing } from './tokenPointing';

export interface AnswerView extends Pointing {
  /** Style of a token, given the number of hidden tokens right before it. */
  markOf: (token: number, skipped?: number) => TokenMark;
  /** The colour mode. */
  mode: ColourMode;
  /** The one class that is not dimmed. */
  only: MarkClass | null;
}
