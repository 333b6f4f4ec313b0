// Unit tests: state classes, text and the replay host, without a DOM.

import { fileURLToPath } from 'node:url';
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vitest/config';

export default defineConfig({
  plugins: [svelte()],
  resolve: { alias: { vitest: fileURLToPath(new URL('./node_modules/vitest/dist/index.js', import.meta.url)) } },
  test: {
    environment: 'node',
    include: ['src/**/*.test.ts', '../tests/ui/replay/**/*.test.ts'],
    // Style sheets that a test reads as text. Others are left empty.
    css: { include: /\?raw$/ },
  },
});
