// Opens the built window in Chromium on the replay host, with a context for each test. All tests share one server and
// one browser (browser.ts). Any message in the console fails the test.

import { chromium, type Browser, type Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, expect, inject } from 'vitest';
import defaultApp from './fixtures/fixture-app-default.json';
import type { ReplayControl } from './replay/host';

/** Options of a page. */
export interface Opening {
  /** Names of recordings, one per generation. */
  replay?: string;
  app?: string;
  /** Name of the recorded comparison. */
  compare?: string;
  /** Saved preferences, by key. */
  preferences?: Record<string, unknown>;
  speed?: number | 'instant';
  lose?: number[];
  width?: number;
  height?: number;
  colours?: 'light' | 'dark';
  reducedMotion?: boolean;
  /** Recordings that are not files, by name. */
  recordings?: Record<string, string>;
  /** Applications that are not files, by name. */
  apps?: Record<string, unknown>;
  userAgent?: string;
  /** Locale of the browser. */
  locale?: string;
  /** Pixels of the screen for each pixel of the page. */
  scale?: number;
}

/** The window of a test file. */
export interface TestWindow {
  /** Opens a window. */
  open: (opening?: Opening) => Promise<Page>;
  /** Opens a window, asks a question and waits for the end of its answer. */
  answered: (opening?: Opening) => Promise<Page>;
}

/** Connects a test file to the browser. */
export function useWindow(): TestWindow {
  const { address, browserAddress, replayScript } = inject('shared');
  let browser: Browser;
  let pages: { page: Page; problems: string[] }[] = [];

  beforeAll(async () => {
    browser = await chromium.connect(browserAddress);
  });

  afterEach(async () => {
    const seen = pages.flatMap(({ problems }) => problems);
    await Promise.all(pages.map(({ page }) => page.context().close()));
    pages = [];
    expect(seen, 'errors in the console, content security policy included').toEqual([]);
  });

  afterAll(async () => {
    await browser?.close();
  });

  const window_: TestWindow = {
    async answered(opening) {
      const page = await window_.open(opening);
      await ask(page);
      await ended(page);
      return page;
    },
    async open(opening = {}) {
      const context = await browser.newContext({
        viewport: { width: opening.width ?? 900, height: opening.height ?? 700 },
        colorScheme: opening.colours ?? 'light',
        reducedMotion: opening.reducedMotion ? 'reduce' : 'no-preference',
        userAgent: opening.userAgent,
        locale: opening.locale ?? 'en-US',
        deviceScaleFactor: opening.scale ?? 1,
      });
      // The app's window freezes it too, which breaks libraries that assign inherited names.
      await context.addInitScript(() => void Object.freeze(Object.prototype));
      await context.addInitScript({ content: replayScript });
      const page = await context.newPage();
      const problems: string[] = [];
      page.on('console', (message) => {
        if (message.type() === 'error' || message.type() === 'warning') problems.push(message.text());
      });
      page.on('pageerror', (error) => problems.push(String(error)));
      page.on('request', (request) => {
        const { protocol, hostname } = new URL(request.url());
        if (protocol !== 'data:' && hostname !== '127.0.0.1') problems.push(`remote origin: ${request.url()}`);
      });
      for (const [name, text] of Object.entries(opening.recordings ?? {})) {
        await page.route(`**/replay/${name}.jsonl`, (route) => route.fulfill({ body: text, contentType: 'text/plain' }));
      }
      for (const [name, app] of Object.entries(opening.apps ?? {})) {
        await page.route(`**/replay/${name}.json`, (route) => route.fulfill({ json: app }));
      }
      pages.push({ page, problems });
      const answer = await page.goto(`${address}?${query(opening)}`);
      expect(answer?.headers()['content-security-policy']).toContain("default-src 'none'; script-src 'self'; style-src 'self'");
      await page.getByTestId('prompt').waitFor();
      return page;
    },
  };
  return window_;
}

function query(opening: Opening): URLSearchParams {
  const asked = new URLSearchParams();
  if (opening.replay) asked.set('replay', opening.replay);
  if (opening.app) asked.set('app', opening.app);
  if (opening.compare) asked.set('compare', opening.compare);
  // The explanation of the colours is closed, except in its own tests.
  asked.set('preferences', JSON.stringify({ colours_known: true, ...opening.preferences }));
  asked.set('speed', String(opening.speed ?? 'instant'));
  if (opening.lose) asked.set('lose', opening.lose.join(','));
  return asked;
}

/** An application that never finishes loading its model during a test. */
export const loading = { app: 'loading', apps: { loading: { ...defaultApp, load_ms: 3_600_000 } } };

/** Types a prompt and sends it with Enter. */
export async function ask(page: Page, prompt = 'Write a function that merges two sorted lists.'): Promise<void> {
  await page.getByTestId('prompt').fill(prompt);
  await page.getByTestId('prompt').press('Enter');
}

/** Waits until the last answer has ended. */
export async function ended(page: Page): Promise<void> {
  await page.getByTestId('stats').last().waitFor();
}

/** Arguments of the window's calls of a command. */
export async function calls(page: Page, command: string): Promise<Record<string, unknown>[]> {
  const all: ReplayControl['calls'] = await page.evaluate(() => window.hunchReplay?.calls ?? []);
  return all.filter((call) => call.command === command).map((call) => call.args);
}

/** Counts of a legend by origin, and its total. */
export async function legend(page: Page, turn = 0): Promise<{ counts: Record<string, number>; total: number }> {
  const element = page.getByTestId('legend').nth(turn);
  const entries = await element
    .locator('[data-legend]')
    .evaluateAll((all) =>
      all.map((entry) => [entry.getAttribute('data-legend') ?? '', Number(entry.querySelector('.count')?.textContent?.replace(/,/g, ''))]),
    );
  const total = Number((await element.locator('.total').textContent())?.replace(/\D/g, ''));
  return { counts: Object.fromEntries(entries) as Record<string, number>, total };
}
