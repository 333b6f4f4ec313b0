// Syntax highlighting: ranges of the few scopes that have a colour. No markup, no tokens.

import type { RootContent } from 'hast';
import { common, createLowlight } from 'lowlight';
import type { Scope } from './nodes';

/** A range of code with one scope. Ranges are contiguous. */
export interface ScopeSpan {
  end: number;
  scope: Scope | null;
}

/** Longest code that is highlighted at once, and longest line, beyond which some grammars are slow. */
export const longestPart = 32_768;
const longestLine = 2000;

const lowlight = createLowlight(common);

/** Scopes by the grammar's classes. */
const scopes = new Map<string, Scope>(
  (
    [
      ['keyword', 'keyword built_in literal selector-tag doctag template-tag operator'],
      ['string', 'string regexp char link symbol template-variable quote'],
      ['number', 'number'],
      ['comment', 'comment'],
      ['title', 'title section function'],
      ['type', 'type class'],
      ['name', 'name tag selector-class selector-id selector-pseudo selector-attr bullet'],
      ['attribute', 'attr attribute property'],
      ['variable', 'variable params'],
      ['meta', 'meta'],
      ['added', 'addition'],
      ['removed', 'deletion'],
    ] as const
  ).flatMap(([scope, classes]) => classes.split(' ').map((name) => [`hljs-${name}`, scope] as const)),
);
// Their contents are of several kinds, so the rest has no colour.
for (const name of ['hljs-params', 'hljs-function', 'hljs-class']) scopes.delete(name);

/** Returns `true` if there is a grammar for a fence's language. */
export function knows(lang: string | null): lang is string {
  return lang !== null && lowlight.registered(lang.toLowerCase());
}

/** The ranges of a code; one without scope for an unknown language. */
export function highlight(lang: string | null, code: string): ScopeSpan[] {
  if (!knows(lang) || code.length > longestPart + longestLine || hasLongLine(code)) return [{ end: code.length, scope: null }];
  const spans: ScopeSpan[] = [];
  let end = 0;
  const walk = (nodes: readonly RootContent[], scope: Scope | null) => {
    for (const node of nodes) {
      if (node.type === 'text') {
        end += node.value.length;
        const last = spans.at(-1);
        if (last && last.scope === scope) last.end = end;
        else spans.push({ end, scope });
      } else if (node.type === 'element') {
        walk(node.children as RootContent[], scopeOf(node.properties['className']) ?? scope);
      }
    }
  };
  walk(lowlight.highlight(lang.toLowerCase(), code).children, null);
  return spans;
}

function scopeOf(classes: unknown): Scope | null {
  const name = Array.isArray(classes) ? String(classes[0]) : '';
  return scopes.get(name) ?? null;
}

function hasLongLine(code: string): boolean {
  return code.split('\n').some((line) => line.length > longestLine);
}

/** Splits code into parts of bounded length, at line breaks. */
export function highlightAll(lang: string | null, code: string): ScopeSpan[] {
  const spans: ScopeSpan[] = [];
  for (let from = 0; from < code.length;) {
    let to = code.length;
    if (to - from > longestPart) to = code.lastIndexOf('\n', from + longestPart) + 1;
    if (to <= from) to = Math.min(code.length, from + longestPart);
    for (const { end, scope } of highlight(lang, code.slice(from, to))) spans.push({ end: end + from, scope });
    from = to;
  }
  return spans;
}
