// Every CSS variable that a component uses is defined. CSS ignores a declaration with an undefined one.

import { describe, expect, it } from 'vitest';

const sources = import.meta.glob<string>(['../**/*.{svelte,css,ts}', '!../**/*.test.ts'], {
  query: '?raw',
  import: 'default',
  eager: true,
});

const namesIn = (text: string, pattern: RegExp): string[] => [...text.matchAll(pattern)].map(([, name]) => name ?? '');

/** Names in `var()` and in quotes. */
const usedIn = (text: string): string[] => [...namesIn(text, /var\((--[\w-]+)[\s,)]/g), ...namesIn(text, /['"](--[a-z][\w-]*)['"]/g)];

/** Names in declarations and in style directives. */
const definedIn = (text: string): string[] => [...namesIn(text, /(--[\w-]+)\s*:/g), ...namesIn(text, /style:(--[\w-]+)/g)];

describe('CSS variables', () => {
  const defined = new Set(Object.values(sources).flatMap(definedIn));

  it.each(Object.keys(sources).filter((path) => usedIn(sources[path] ?? '').length > 0))('of %s are defined', (path) => {
    // Popovers set these on their content.
    const own = usedIn(sources[path] ?? '').filter((name) => !name.startsWith('--bits-'));
    expect(own.filter((name) => !defined.has(name))).toEqual([]);
  });

  it('that are undefined are found', () => {
    const text = "a { color: var(--no-such, red); } const colour = '--neither';";
    expect(usedIn(text).filter((name) => !defined.has(name))).toEqual(['--no-such', '--neither']);
  });
});
