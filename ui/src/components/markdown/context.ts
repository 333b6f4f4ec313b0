// What every part of a rendered answer needs to know of the whole. Read where it is drawn, so that a
// change reaches what depends on it and nothing else.

import { getContext, setContext } from 'svelte';
import type { AnswerView } from '../answerView';

export interface AnswerContext extends Pick<AnswerView, 'markOf'> {
  /** The token that Tab reaches. */
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
