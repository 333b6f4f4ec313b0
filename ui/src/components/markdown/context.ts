// Context of a formatted answer for all its parts. Read where it is used, so that a change redraws only what depends
// on it.

import { getContext, setContext } from 'svelte';
import type { TokenMark } from '../../lib/state/answer.svelte';

interface AnswerContext {
  /** Style of a token; null for text that is no answer. */
  markOf: (token: number, skipped?: number) => TokenMark | null;
  /** Index of the token that Tab reaches. */
  readonly firstToken: number;
  openLink: (href: string) => void;
}

const key = Symbol('rendered answer');

export function provideAnswer(context: AnswerContext): void {
  setContext(key, context);
}

export function useAnswer(): AnswerContext {
  return getContext<AnswerContext>(key);
}
