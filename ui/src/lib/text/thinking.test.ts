import { describe, expect, it } from 'vitest';
import { endsUnbegunThought, withoutThought, Thinking } from './thinking';

/** Answer and thought of a text that comes in parts of a length. */
function split(text: string, size: number): { thought: string; answer: string; thinking: boolean } {
  const thinking = new Thinking();
  const pieces = text.match(new RegExp(`[^]{1,${String(size)}}`, 'g')) ?? [];
  const spans = pieces.flatMap((piece, token) => thinking.push(token, piece));
  const open = thinking.thinking;
  const all = [...spans, ...thinking.finish()];
  for (const { token, text: part } of all) expect(pieces[token]).toContain(part);
  const of = (wanted: string) =>
    all
      .filter(({ part }) => part === wanted)
      .map(({ text: part }) => part)
      .join('');
  return { thought: of('thought'), answer: of('answer'), thinking: open };
}

describe('Thinking', () => {
  it.each([1, 2, 3, 5, 100])('separates them for tokens of any size, %i characters each', (size) => {
    expect(split('<think>\nA < b, </thin and so on.</think>\n\nYes.', size)).toEqual({
      thought: '\nA < b, </thin and so on.',
      answer: '\n\nYes.',
      thinking: false,
    });
    expect(split('\n <think>not over', size)).toEqual({ thought: 'not over', answer: '', thinking: true });
    expect(split('No thought, <think> later is text.</think>', size)).toEqual({
      thought: '',
      answer: 'No thought, <think> later is text.</think>',
      thinking: false,
    });
    expect(split('<thi', size).answer).toBe('<thi');
    expect(split('<think>a</think', size).thought).toBe('a</think');
  });

  it('recognises a thought that the prompt started', () => {
    expect(endsUnbegunThought('Hm.</think>Yes')).toBe(true);
    expect(endsUnbegunThought('<think>Hm.</think>Yes')).toBe(false);
    expect(endsUnbegunThought('Yes')).toBe(false);
    expect(endsUnbegunThought('Write <think> and </think>.')).toBe(false);
  });
});

describe('the answer of a whole text', () => {
  it.each([
    ['<think>hm</think>\n\nYes.', 'Yes.'],
    ['The prompt had begun this.</think>Yes.', 'Yes.'],
    ['<think>cut off', ''],
    ['Yes, <think> is a tag.', 'Yes, <think> is a tag.'],
    ['', ''],
  ])('%j is %j', (text, answer) => {
    expect(withoutThought(text)).toBe(answer);
  });
});
