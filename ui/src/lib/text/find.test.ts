import { describe, expect, it } from 'vitest';
import { findText, type TextPart } from './find';

/** Parts of a text: `|` separates parts, and `/` paragraphs. */
const parts = (text: string): TextPart[] =>
  text.split('/').flatMap((paragraph) => paragraph.split('|').map((part, i) => ({ text: part, starts: i === 0 })));

/** Matches as texts `part:offset-part:offset`. */
const found = (text: string, query: string): string[] =>
  findText(parts(text), query).map(({ start, end }) => `${start.part}:${start.offset}-${end.part}:${end.offset}`);

describe('a text in a page', () => {
  it('is found in one part and across parts', () => {
    expect(found('the sea', 'sea')).toEqual(['0:4-0:7']);
    expect(found('the s|ea| and the se|a', 'sea')).toEqual(['0:4-1:2', '2:9-3:1']);
    expect(found('a|b|c', 'abc')).toEqual(['0:0-2:1']);
    expect(found('|ab', 'ab')).toEqual(['1:0-1:2']);
  });

  it('is not found across paragraphs', () => {
    expect(found('the se/a', 'sea')).toEqual([]);
    expect(found('the sea/sea', 'sea')).toEqual(['0:4-0:7', '1:0-1:3']);
    expect(found('the/sea', 'the sea')).toEqual([]);
  });

  it('is found in any case and with any space', () => {
    expect(found('The Sea', 'tHE sEA')).toEqual(['0:0-0:7']);
    expect(found('the\nsea and the\u00a0sea', 'the sea')).toEqual(['0:0-0:7', '0:12-0:19']);
    // The lower case of the first letter has two characters.
    expect(found('İzmir, İzmir', 'zmir')).toEqual(['0:1-0:5', '0:8-0:12']);
    expect(found('🌊 sea', 'sea')).toEqual(['0:3-0:6']);
  });

  it('is found once in each place', () => {
    expect(found('aaaa', 'aa')).toEqual(['0:0-0:2', '0:2-0:4']);
  });

  it('needs a query', () => {
    expect(found('a b', '')).toEqual([]);
    expect(found('a b', ' ')).toEqual([]);
  });
});
