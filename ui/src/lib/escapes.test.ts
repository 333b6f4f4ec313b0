import { expect, it } from 'vitest';
import { unescaped } from './escapes';

it('replaces escapes, and leaves other backslashes alone', () => {
  expect(unescaped('a\\nb\\tc')).toBe('a\nb\tc');
  expect(unescaped('\\\\nabla')).toBe('\\nabla');
  expect(unescaped('C:\\dir \\')).toBe('C:\\dir \\');
});
