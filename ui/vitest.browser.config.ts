// Browser tests: the built window on the replay host, in Chromium. The tests are in tests/ui.

import { fileURLToPath } from 'node:url';
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vitest/config';

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));

export default defineConfig({
  // The tests import tables with texts, which are reactive.
  plugins: [svelte({ configFile: here('./svelte.config.js') })],
  root: here('..'),
  cacheDir: here('./node_modules/.vite-browser'),
  resolve: {
    alias: {
      'playwright-core': here('./node_modules/playwright-core/index.mjs'),
      vitest: here('./node_modules/vitest/dist/index.js'),
      vite: here('./node_modules/vite/dist/node/index.js'),
    },
  },
  test: {
    environment: 'node',
    include: ['tests/ui/*.test.ts'],
    globalSetup: ['tests/ui/browser.ts'],
    // Two pages at a time keep two cores busy. More would make each of them miss moments.
    maxWorkers: 2,
    // A browser on a busy machine may miss a moment. A second failure fails; tests that passed only then are listed.
    retry: 1,
    // The default of a second is too short for a page on a busy machine.
    expect: { poll: { timeout: 15_000 } },
    testTimeout: 60_000,
    hookTimeout: 60_000,
  },
});
