import { expect, it } from 'vitest';
import { shortTitle } from './shortTitle';

it.each([
  ['Qwen2.5 Coder 0.5B Instruct', 'Qwen2.5 Coder 1.5B Instruct', '0.5B'],
  ['SmolLM2 135M Instruct', 'Qwen2.5 Coder 1.5B Instruct', 'SmolLM2 135M'],
  ['Qwen3 0.6B', 'Qwen3 4B Thinking', '0.6B'],
  ['Llama 3.2 1B', 'Gemma 3 4B', 'Llama 3.2 1B'],
  ['Gemma 3', 'Gemma 3 4B', 'Gemma 3'],
  ['Gemma 3 4B', 'Gemma 3 4B', 'Gemma 3 4B'],
])('shortens %s next to %s', (title, other, short) => {
  expect(shortTitle(title, other)).toBe(short);
});
