import { describe, expect, it } from 'vitest';
import { endsUnbegunThought, saidOf, Thinking } from './thinking';

/** Answer and thought of a text that comes in parts of a length. */
function sorted(text: string, size: number): { thought: string; said: string; thinking: boolean } {
  const thinking = new Thinking();
  const pieces = text.match(new RegExp(`[^]{1,${String(size)}}`, 'g')) ?? [];
  const stretches = pieces.flatMap((piece, token) => thinking.push(token, piece));
  const open = thinking.thinking;
  const all = [...stretches, ...thinking.finish()];
  for (const { token, text: part } of all) expect(pieces[token]).toContain(part);
  const of = (wanted: string) =>
    all
      .filter(({ part }) => part === wanted)
      .map(({ text: part }) => part)
      .join('');
  return { thought: of('thought'), said: of('said'), thinking: open };
}

describe('Thinking', () => {
  it.each([1, 2, 3, 5, 100])('separates them for tokens of any size, %i characters each', (size) => {
    expect(sorted('<think>\nA < b, </thin and so on.</think>\n\nYes.', size)).toEqual({
      thought: '\nA < b, </thin and so on.',
      said: '\n\nYes.',
      thinking: false,
    });
    expect(sorted('\n <think>not over', size)).toEqual({ thought: 'not over', said: '', thinking: true });
    expect(sorted('No thought, <think> later is text.</think>', size)).toEqual({
      thought: '',
      said: 'No thought, <think> later is text.</think>',
      thinking: false,
    });
    expect(sorted('<thi', size).said).toBe('<thi');
    expect(sorted('<think>a</think', size).thought).toBe('a</think');
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
  ])('%j is %j', (text, said) => {
    expect(saidOf(text)).toBe(said);
  });
});
