import { describe, expect, it } from 'vitest';
import { originRules, origins, originStyle } from './origin';

describe('origins', () => {
  it('differ without colour', () => {
    expect(new Set(origins.map((row) => row.underline)).size).toBe(origins.length);
    expect(new Set(origins.map((row) => row.colour)).size).toBe(origins.length);
  });

  it('has a rule for every row', () => {
    for (const row of origins) {
      expect(originStyle(row.origin)).toBe(row);
      expect(originRules()).toContain(`[data-origin='${row.origin}']`);
    }
  });
});
