// How the window's files are built. The result has one origin: no remote script, style, font or image.

import { createReadStream, existsSync } from 'node:fs';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig, type Connect, type Plugin } from 'vite';

/** Folders that hold recorded streams: those of the Rust tests, then the fixtures of the browser tests. */
const recordingFolders = ['../tests/streams/', '../tests/ui/fixtures/'].map((folder) =>
  fileURLToPath(new URL(folder, import.meta.url)),
);

/** Serves `/replay/NAME` from the recording folders to the replay host. Nothing of it is built in. */
function recordings(): Plugin {
  const serve: Connect.NextHandleFunction = (request, response, next) => {
    const name = basename(new URL(request.url ?? '/', 'http://localhost').pathname);
    const file = recordingFolders.map((folder) => join(folder, name)).find((path) => existsSync(path));
    if (!file || !/\.jsonl?$/.test(name)) return next();
    response.setHeader('content-type', 'text/plain; charset=utf-8');
    createReadStream(file).pipe(response);
  };
  return {
    name: 'hunch-recordings',
    configureServer: (server) => void server.middlewares.use('/replay', serve),
    configurePreviewServer: (server) => void server.middlewares.use('/replay', serve),
  };
}

/** The policy of the real window, except that the replay host fetches its recordings from here. */
const contentSecurityPolicy = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self' data:",
  "font-src 'self'",
  "connect-src 'self'",
].join('; ');

export default defineConfig({
  plugins: [svelte(), recordings()],
  clearScreen: false,
  build: {
    target: ['safari17', 'chrome120'],
    outDir: 'dist',
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  preview: { headers: { 'Content-Security-Policy': contentSecurityPolicy } },
});
