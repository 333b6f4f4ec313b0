// Rules of the linter for scripts and components, with the restrictions that keep layers and model output apart.

import js from '@eslint/js';
import svelte from 'eslint-plugin-svelte';
import globals from 'globals';
import ts from 'typescript-eslint';
import svelteConfig from './svelte.config.js';

/** Only the Tauri host imports Tauri. Model output never becomes markup. */
const restrictions = {
  'no-restricted-imports': ['error', { patterns: [{ group: ['@tauri-apps/*'], message: 'Only src/lib/host/tauri.ts imports Tauri.' }] }],
  'no-restricted-properties': [
    'error',
    { property: 'innerHTML', message: 'Model output is never trusted: build text nodes.' },
    { property: 'outerHTML', message: 'Model output is never trusted: build text nodes.' },
    { property: 'insertAdjacentHTML', message: 'Model output is never trusted: build text nodes.' },
  ],
  'no-console': 'error',
  eqeqeq: 'error',
};

/** Messages of errors are English. Displayed texts come from lib/errors.ts, in the window's language. */
const isError = '/(error|problem|refusal|thrown|trouble)$/i';
const wordsOfErrors = [
  `MemberExpression[property.name="message"]:matches([object.name=${isError}], [object.property.name=${isError}])`,
  `VariableDeclarator:matches([init.name=${isError}], [init.property.name=${isError}]) > ObjectPattern > Property[key.name="message"]`,
  ':function > ObjectPattern > Property[key.name="message"]',
].map((selector) => ({ selector, message: 'Show errors by errorLine or an ErrorCard.' }));

export default ts.config(
  { ignores: ['**/dist/', '**/node_modules/', '**/schema.gen.ts'] },
  js.configs.recommended,
  ...ts.configs.recommended,
  ...svelte.configs.recommended,
  { languageOptions: { globals: { ...globals.browser } }, rules: restrictions },
  {
    files: ['**/*.svelte', '**/*.svelte.ts'],
    languageOptions: { parserOptions: { parser: ts.parser, svelteConfig } },
    rules: { 'svelte/no-at-html-tags': 'error' },
  },
  {
    // `npm run layers` sees compiled components, which have lost their type imports.
    files: ['ui/src/components/**'],
    rules: {
      'no-restricted-imports': [
        'error',
        { patterns: [{ group: ['@tauri-apps/*', '**/features/**'], message: 'Components may not import features.' }] },
      ],
    },
  },
  { files: ['**/lib/host/tauri.ts'], rules: { 'no-restricted-imports': 'off' } },
  {
    files: ['ui/src/**'],
    ignores: ['**/*.test.ts', '**/testing.ts', '**/lib/errors.ts', '**/lib/{host,ipc}/**'],
    rules: { 'no-restricted-syntax': ['error', ...wordsOfErrors] },
  },
  { files: ['ui/*.config.*', 'ui/.*.cjs', 'tests/**'], languageOptions: { globals: { ...globals.node } } },
);
