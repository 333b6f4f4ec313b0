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

/** Value of a variable of app.css in both themes. */
function themed(name: string): string[] {
  const [, light, dark] = new RegExp(`${name}: var\\(--light, (#\\w+)\\) var\\(--dark, (#\\w+)\\)`).exec(sources['../app.css'] ?? '') ?? [];
  return [light ?? '', dark ?? ''];
}

/** Relative luminance of a colour, as WCAG 2 defines it. */
function luminance(colour: string): number {
  const channels = [1, 3, 5].map((at) => Number.parseInt(colour.slice(at, at + 2), 16) / 255);
  const linear = channels.map((channel) => (channel <= 0.04045 ? channel / 12.92 : ((channel + 0.055) / 1.055) ** 2.4));
  return linear.reduce((sum, channel, i) => sum + channel * ([0.2126, 0.7152, 0.0722][i] ?? 0), 0);
}

const contrast = (one: string, other: string): number => {
  const [low = 0, high = 0] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};

describe('the colours of the parts of a round', () => {
  const parts = ['prefill', 'propose', 'target', 'verify', 'other'].map((part) => themed(`--round-${part}`));

  it('are none of the colours of origins', () => {
    const origins = ['accepted', 'resampled', 'bonus'].flatMap((origin) => themed(`--origin-${origin}`));
    for (const colour of parts.flat()) expect(origins).not.toContain(colour);
  });

  it('stand out from the page, and drafting from the target pass next to it', () => {
    for (const theme of [0, 1]) {
      for (const part of parts) expect(contrast(part[theme] ?? '', themed('--page')[theme] ?? '')).toBeGreaterThan(3);
      expect(contrast(parts[1]?.[theme] ?? '', parts[2]?.[theme] ?? '')).toBeGreaterThan(2.5);
    }
  });
});

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
