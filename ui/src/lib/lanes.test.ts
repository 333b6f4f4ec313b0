import { expect, it } from 'vitest';
import { lastTurn } from './lanes';

it('takes the last turn that most lanes finished', () => {
  const answer = (lane: number, prompt: number, run: number) => ({ lane, prompt, run });
  // Lane 2 ran after the others, and ended after the first prompt.
  const answers = [0, 1].flatMap((prompt) => [answer(0, prompt, 0), answer(1, prompt, 0)]);
  const lanesOf = (turn: { lane: number; prompt: number }[]) => turn.map(({ lane, prompt }) => [lane, prompt]);
  expect(lanesOf(lastTurn(answers))).toEqual([
    [0, 1],
    [1, 1],
  ]);
  expect(lanesOf(lastTurn([...answers, answer(2, 0, 0)]))).toEqual([
    [0, 0],
    [1, 0],
    [2, 0],
  ]);
  expect(lastTurn([])).toEqual([]);
});
