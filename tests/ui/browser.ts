// Starts what all browser tests share: the server of the built window, Chromium, and the script of the replay host.

import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { chromium } from 'playwright-core';
import { build, preview, type PreviewServer } from 'vite';
import type { TestProject } from 'vitest/node';

/** The shared parts, as a test file needs them to open a window. */
interface Shared {
  /** URL of the built window. */
  address: string;
  /** WebSocket of the browser. */
  browserAddress: string;
  /** The replay host. It runs before the page's scripts. */
  replayScript: string;
}

declare module 'vitest' {
  export interface ProvidedContext {
    shared: Shared;
  }
}

const ui = fileURLToPath(new URL('../../ui', import.meta.url));

const browsers = [
  process.env['HUNCH_CHROMIUM'],
  // Without the browser's own window, pages take about a fifth less time.
  '/usr/bin/chromium-headless-shell',
  '/usr/bin/chromium',
  '/usr/bin/chromium-browser',
  '/usr/bin/google-chrome',
  '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome',
  '/Applications/Chromium.app/Contents/MacOS/Chromium',
];

function findBrowser(): string {
  const found = browsers.find((path) => path !== undefined && path !== '' && existsSync(path));
  if (!found) throw new Error('No Chromium was found. Install chromium, or name one in HUNCH_CHROMIUM.');
  return found;
}

/** Bundles the replay host into one script. */
async function bundleReplay(): Promise<string> {
  const built = await build({
    configFile: false,
    logLevel: 'error',
    build: {
      write: false,
      minify: false,
      lib: { entry: fileURLToPath(new URL('./replay/install.ts', import.meta.url)), formats: ['iife'], name: 'replay' },
    },
  });
  const [output] = [built].flat();
  if (!output || !('output' in output)) throw new Error('Vite gave no output for the replay host.');
  return output.output[0].code;
}

function addressOf(server: PreviewServer): string {
  const at = server.httpServer.address();
  if (at === null || typeof at === 'string') throw new Error('the preview server listens on a port');
  return `http://127.0.0.1:${at.port}/`;
}

/** Starts server and browser. The returned function stops them. */
export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const replayScript = await bundleReplay();
  const server = await preview({ root: ui, logLevel: 'error', preview: { port: 0, host: '127.0.0.1' } });
  const browser = await chromium.launchServer({
    executablePath: findBrowser(),
    args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--force-color-profile=srgb'],
  });
  project.provide('shared', { address: addressOf(server), browserAddress: browser.wsEndpoint(), replayScript });
  return async () => {
    await browser.close();
    await new Promise((resolve) => server.httpServer.close(resolve));
  };
}
