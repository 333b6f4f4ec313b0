// All text of the window belongs in the string tables. A component or logic file with its own text fails here.

import { parse, type AST } from 'svelte/compiler';
import { describe, expect, it } from 'vitest';

const components = import.meta.glob<string>(['../../App.svelte', '../../{features,components}/**/*.svelte'], {
  query: '?raw',
  import: 'default',
  eager: true,
});
/** Excludes the replay host, wire types, the string tables, and units, which are the same in every language. */
const logic = import.meta.glob<string>(
  ['../**/*.ts', '!../**/{*.test,testing}.ts', '!../{host,ipc,strings}/**', '!../format.ts', '!../text/markdown/highlight.ts'],
  {
    query: '?raw',
    import: 'default',
    eager: true,
  },
);

/** Attributes that are visible or read by screen readers. */
const spokenAttributes = new Set([
  'alt',
  'aria-description',
  'aria-label',
  'aria-roledescription',
  'aria-valuetext',
  'label',
  'placeholder',
  'title',
]);

interface Node {
  type: string;
  [key: string]: unknown;
}

const isNode = (value: unknown): value is Node => typeof value === 'object' && value !== null && 'type' in value;
const children = (node: Node): Node[] => Object.values(node).flat().filter(isNode);
const letters = (text: string): string[] => (/\p{L}/u.test(text) ? [text.trim()] : []);

/** Texts an expression evaluates to, without those it compares, looks up or passes to a function. */
function given(node: Node): string[] {
  switch (node.type) {
    case 'Literal':
      return typeof node['value'] === 'string' ? letters(node['value']) : [];
    case 'TemplateElement':
      return letters((node['value'] as { raw: string }).raw);
    case 'BinaryExpression':
      return node['operator'] === '+' ? children(node).flatMap(given) : [];
    case 'ConditionalExpression':
      return [node['consequent'], node['alternate']].filter(isNode).flatMap(given);
    case 'CallExpression':
    case 'MemberExpression':
      return [];
    default:
      return children(node).flatMap(given);
  }
}

/** Hard-coded text in a component's markup. */
function ownWords(node: Node): string[] {
  switch (node.type) {
    case 'Text':
      return letters((node as unknown as AST.Text).data);
    case 'Comment':
    case 'StyleDirective':
      return [];
    case 'ExpressionTag':
      return given(node['expression'] as Node);
    case 'Attribute':
      return spokenAttributes.has(node['name'] as string) ? [node['value']].flat().filter(isNode).flatMap(ownWords) : [];
    default:
      return children(node).flatMap(ownWords);
  }
}

/** True for a capitalised word or several words, unless it looks like CSS. */
const readsLikeWords = (text: string): boolean => /^\p{Lu}\p{Ll}|\p{L} | \p{L}/u.test(text) && !/[[\]{};]|--/.test(text);

/** Hard-coded text in a script, and any value of a title or label property. */
function scriptWords(node: Node): string[] {
  // Types contain no visible text, but an expression with a type assertion may.
  if (node.type.startsWith('TS') && !isNode(node['expression'])) return [];
  switch (node.type) {
    case 'Literal':
      return given(node).filter(readsLikeWords);
    case 'TemplateElement':
      return readsLikeWords((node['value'] as { raw: string }).raw) ? given(node) : [];
    case 'Property': {
      const value = node['value'] as Node;
      const named = spokenAttributes.has((node['key'] as { name?: string }).name ?? '');
      return named ? [...new Set([...given(value), ...scriptWords(value)])] : scriptWords(value);
    }
    case 'BinaryExpression':
      return node['operator'] === '+' ? children(node).flatMap(scriptWords) : [];
    case 'ImportDeclaration':
    case 'ThrowStatement':
      return [];
    default:
      return children(node).flatMap(scriptWords);
  }
}

function wordsOf(source: string): string[] {
  const { fragment, instance, module } = parse(source, { modern: true });
  const scripts = [instance, module].flatMap((script) => (script ? [script.content as unknown as Node] : []));
  return [...ownWords(fragment as unknown as Node), ...scripts.flatMap(scriptWords)];
}

const wordsOfLogic = (source: string): string[] => wordsOf(`<script lang="ts">${source}</script>`);

describe('a component', () => {
  it('is reported for hard-coded text in markup', () => {
    expect(wordsOf('<p title="Told">Said {1} <b>{a ? "this" : `${b} that`}</b></p>')).toEqual(['Told', 'Said', 'this', 'that']);
    expect(wordsOf('{#if a === "b"}<i class="c" data-d="e">{words.f("g")}, {h.i}</i>{:else}kept{/if}')).toEqual(['kept']);
  });

  it('is reported for hard-coded text in its script', () => {
    const script = (text: string) => wordsOf(`<script lang="ts">${text}</script>`);
    expect(script("const words = { a: 'Said', b: (n: number) => `with ${n} words`, c: 'two words' };")).toEqual([
      'Said',
      'with',
      'words',
      'two words',
    ]);
    expect(script("const all = [{ value: 'en', label: 'Language' }].map((x) => ({ ...x, title: x ? 'this' : 'that' }));")).toEqual([
      'Language',
      'this',
      'that',
    ]);
    expect(script("let x: 'Type' = f('escape', y.key === 'Escape'); throw new Error('Not for a person');")).toEqual([]);
  });

  it.each(Object.keys(components))('%s has no hard-coded text', (path) => {
    expect(wordsOf(components[path] ?? '')).toEqual([]);
  });
});

describe('logic', () => {
  it.each(Object.keys(logic))('%s has no hard-coded text', (path) => {
    expect(wordsOfLogic(logic[path] ?? '')).toEqual([]);
  });
});
