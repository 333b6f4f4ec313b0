import { describe, expect, it } from 'vitest';
import { formatCount, formatField } from './format';
import { setLanguage } from './strings/index.svelte';
import { typedNumber, ungrouped } from './typedNumber';

describe('a typed number', () => {
  it('is read as the window prints it, in both languages', () => {
    for (const code of ['en', 'de'] as const) {
      setLanguage(code);
      expect(typedNumber(formatCount(2048), 0)).toBe(2048);
      expect(typedNumber(formatCount(1_234_567), 0)).toBe(1_234_567);
      expect(typedNumber(formatField(0.75, 2), 2)).toBe(0.75);
    }
    setLanguage('en');
  });

  it.each([
    ['2048', 0, 2048],
    ['2 048', 0, 2048],
    ['2’048', 0, 2048],
    ['1.125', 3, 1.125],
    ['1,5', 0, 1.5],
    ['-1,5', 1, -1.5],
  ])('reads "%s" with %i decimal places', (text, digits, number) => {
    expect(typedNumber(text, digits)).toBe(number);
  });

  it.each([
    ['', 0],
    ['many', 0],
    ['1.234,567', 0],
    ['1,234.5', 1],
  ] as const)('is none in "%s"', (text, digits) => {
    expect(typedNumber(text, digits)).toBeNaN();
  });

  it('loses separators only in whole groups', () => {
    expect(['12,345', '1,23', '1234,567', '20'].map(ungrouped)).toEqual(['12345', '1,23', '1234,567', '20']);
  });
});
