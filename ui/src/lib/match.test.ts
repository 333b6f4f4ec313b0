import { describe, expect, it } from 'vitest';
import { fit, fitting } from './match';

const titles = [
  'New conversation',
  'Search conversations',
  'Save conversation as JSON…',
  'Settings…',
  'Larger text',
  'Smaller text',
  'Übung macht den Meister',
];
const found = (typed: string) => fitting(typed, titles, (title) => ({ title }));

describe('a search', () => {
  it('finds everything while nothing is typed', () => {
    expect(found('  ')).toEqual(titles);
  });

  it('ranks the start of a title above the start of a word, and that above the inside', () => {
    expect(found('s')).toEqual([
      'Search conversations',
      'Save conversation as JSON…',
      'Settings…',
      'Smaller text',
      'New conversation',
      'Übung macht den Meister',
    ]);
    expect(found('conv')).toEqual(['New conversation', 'Search conversations', 'Save conversation as JSON…']);
  });

  it('requires every typed word, in any order', () => {
    expect(found('text large')).toEqual(['Larger text']);
    expect(found('text xyz')).toEqual([]);
  });

  it('joins starts of words, and ranks scattered letters last', () => {
    expect(found('neco')).toEqual(['New conversation']);
    expect(found('nc')).toEqual(['New conversation']);
    expect(found('stngs')).toEqual(['Settings…']);
  });

  it('ignores capitals and accents, and includes further words', () => {
    expect(found('UBUNG')).toEqual(['Übung macht den Meister']);
    expect(fit('zoom', 'Larger text', 'size zoom in')).toBeGreaterThan(0);
    expect(fit('oom', 'Larger text', 'size zoom in')).toBe(0);
  });
});
