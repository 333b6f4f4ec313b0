// Build of the window. Everything has one origin: no remote script, style, font or image.

import { createReadStream, existsSync } from 'node:fs';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig, type Connect, type Plugin } from 'vite';

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));

/** Folders of recordings: streams of the Rust tests, then fixtures of the browser tests. */
const recordings = [here('../tests/streams/'), here('../tests/ui/fixtures/')];

const serveRecording: Connect.NextHandleFunction = (request, response, next) => {
  const name = basename(new URL(request.url ?? '/', 'http://localhost').pathname);
  const file = recordings.map((folder) => join(folder, name)).find((path) => existsSync(path));
  if (!file || !/\.jsonl?$/.test(name)) return next();
  response.setHeader('content-type', 'text/plain; charset=utf-8');
  createReadStream(file).pipe(response);
};

/** Serves `/replay/NAME`, and runs the window on the replay host under `npm run dev`. Builds are not changed. */
function replay(): Plugin {
  return {
    name: 'hunch-replay',
    apply: 'serve',
    config: () => ({ server: { fs: { allow: ['.', here('../tests/ui/replay')] } } }),
    configureServer: (server) => void server.middlewares.use('/replay', serveRecording),
    configurePreviewServer: (server) => void server.middlewares.use('/replay', serveRecording),
    transformIndexHtml: () => [
      { tag: 'script', attrs: { type: 'module', src: `/@fs${here('../tests/ui/replay/install.ts')}` }, injectTo: 'head-prepend' },
    ],
  };
}

/** The content security policy of the app's window. `connect-src` also lets the replay host fetch recordings. */
const contentSecurityPolicy = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self' data:",
  "font-src 'self'",
  "connect-src 'self'",
].join('; ');

export default defineConfig({
  plugins: [svelte(), replay()],
  clearScreen: false,
  build: {
    // Loaded from disk, all at once.
    chunkSizeWarningLimit: 900,
    target: ['safari17', 'chrome120'],
    outDir: 'dist',
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  preview: { headers: { 'Content-Security-Policy': contentSecurityPolicy } },
});
