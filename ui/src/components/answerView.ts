// What every view of an answer is told besides what it draws: how tokens are marked, and whom to tell about
// the one that is pointed at or pressed.

import type { ColourMode, MarkClass } from '../lib/strings/keys';
import type { TokenMark } from '../lib/state/answer.svelte';
import type { Pointing } from './tokenPointing';

export interface AnswerView extends Pointing {
  /** How a token is drawn, where so many right before it are not shown. */
  markOf: (token: number, skipped?: number) => TokenMark;
  /** What the colours say. */
  mode: ColourMode;
  /** The one class that is not dimmed. */
  only: MarkClass | null;
}
