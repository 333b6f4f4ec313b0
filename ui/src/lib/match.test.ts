import { describe, expect, it } from 'vitest';
import { fit, fitting } from './match';

const titles = ['New conversation', 'Search conversations', 'Save conversation as JSON…', 'Settings…', 'Larger text', 'Smaller text', 'Übung macht den Meister'];
const found = (typed: string) => fitting(typed, titles, (title) => ({ title }));

describe('what is found', () => {
  it('is everything while nothing is typed', () => {
    expect(found('  ')).toEqual(titles);
  });

  it('has the start of a title before the start of a word, and that before its inside', () => {
    expect(found('s')).toEqual(['Search conversations', 'Save conversation as JSON…', 'Settings…', 'Smaller text', 'New conversation', 'Übung macht den Meister']);
    expect(found('conv')).toEqual(['New conversation', 'Search conversations', 'Save conversation as JSON…']);
  });

  it('has every word that was typed, in any order', () => {
    expect(found('text large')).toEqual(['Larger text']);
    expect(found('text xyz')).toEqual([]);
  });

  it('puts starts of words together, and letters in order after those', () => {
    expect(found('neco')).toEqual(['New conversation']);
    expect(found('nc')).toEqual(['New conversation']);
    expect(found('stngs')).toEqual(['Settings…']);
  });

  it('knows no capitals and no accents, and further words', () => {
    expect(found('UBUNG')).toEqual(['Übung macht den Meister']);
    expect(fit('zoom', 'Larger text', 'size zoom in')).toBeGreaterThan(0);
    expect(fit('oom', 'Larger text', 'size zoom in')).toBe(0);
  });
});
