// Measures frame times in the built window while a long answer is written, and while a long conversation is opened
// and scrolled. Both contain tables, code, formulas and lists. `npm run measure` prints a table with a verdict: every
// frame should take at most 50 ms. It never fails, because times depend on the machine. quality.test.ts checks the work
// per frame. HUNCH_RUNS sets the repetitions (3), HUNCH_PROFILE the folder for profiles.

import { writeFileSync } from 'node:fs';
import { cpus, loadavg } from 'node:os';
import type { Page } from 'playwright-core';
import { afterAll, it } from 'vitest';
import type { GenerationEvent } from '../../ui/src/lib/ipc/schema.gen';
import type { RecordedApp } from './replay/host';
import { longConversation, longMarkdown } from './fixtures/long';
import { record, toLines } from './fixtures/build';
import recordedApp from './fixtures/fixture-app.json';
import { ask, useWindow, type Opening } from './harness';

const hunch = useWindow();
const runs = Number(process.env['HUNCH_RUNS'] ?? 3);
const tokensPerSecond = 300;
const say = (line: string) => void process.stdout.write(`${line}\n`);
const profileTo = process.env['HUNCH_PROFILE'];

/** Starts recording frame times. */
const watchFrames = (page: Page) =>
  page.evaluate(() => {
    const times: number[] = [];
    const marks = { times, on: true };
    const frame = (now: number) => {
      times.push(now);
      if (marks.on) requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
    Object.assign(window, { frames: marks });
  });

/** Milliseconds between the recorded frames. */
const framesSeen = (page: Page): Promise<number[]> =>
  page.evaluate(() => {
    const marks = (window as unknown as { frames: { times: number[]; on: boolean } }).frames;
    marks.on = false;
    return marks.times.slice(1).map((time, index) => time - marks.times[index]!);
  });

/** Longest allowed frame, in milliseconds. */
const longestAllowed = 50;

/** One run of one scenario. */
interface Row {
  what: string;
  frames: readonly number[];
  note: string;
}

const rows: Row[] = [];

function report(what: string, frames: readonly number[], note: string): void {
  rows.push({ what, frames, note });
  say(line(what, frames, note));
}

/** The quantile of frame times at a share, in milliseconds. */
function quantile(frames: readonly number[], share: number): number {
  const sorted = [...frames].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? 0;
}

const overLong = (frames: readonly number[]): number => frames.filter((frame) => frame > longestAllowed).length;

/** A row of the table. */
function line(what: string, frames: readonly number[], note: string): string {
  const over = overLong(frames);
  const cells = [0.5, 0.99, 1].map((share) => quantile(frames, share).toFixed(1).padStart(7));
  return [
    what.padEnd(44),
    String(frames.length).padStart(6),
    ...cells,
    String(over).padStart(5),
    (over === 0 ? 'holds' : 'misses').padEnd(6),
    note,
  ].join('  ');
}

const heading = ['what'.padEnd(44), 'frames', '  p50ms', '  p99ms', ' longest', ' >50', 'verdict'].join('  ');

afterAll(() => {
  const load = loadavg()
    .map((one) => one.toFixed(1))
    .join(' ');
  say(
    `\n${cpus()[0]?.model.trim() ?? 'unknown processor'}, ${cpus().length} logical cores, load ${load}; ${browser}, no GPU, ${tokensPerSecond} tokens/s; runs of each: ${runs}, all their frames together`,
  );
  say(heading);
  for (const what of new Set(rows.map((row) => row.what))) {
    const all = rows.filter((row) => row.what === what).flatMap(({ frames }) => frames);
    say(line(what, all, ''));
  }
});

async function profiled<T>(page: Page, name: string, act: () => Promise<T>): Promise<T> {
  if (!profileTo) return act();
  const session = await page.context().newCDPSession(page);
  await session.send('Profiler.enable');
  await session.send('Profiler.start');
  const done = await act();
  writeFileSync(`${profileTo}/${name}.cpuprofile`, JSON.stringify((await session.send('Profiler.stop')).profile));
  return done;
}

let browser = 'no browser';

/** Opens the window and records the browser's version. */
async function opened(opening: Opening): Promise<Page> {
  const page = await hunch.open(opening);
  const instance = page.context().browser();
  if (instance) browser = `Chromium ${instance.version()}`;
  return page;
}

const elements = (page: Page): Promise<number> => page.evaluate(() => document.querySelectorAll('main *').length);

const plan = { method: 'draft-model', maxDraft: 4 } as const;
const long = record({ ...plan, text: longMarkdown(4000), seed: 21 });
const next = record({ ...plan, text: longMarkdown(1500), seed: 22 });
const recordings = { long: toLines(long), next: toLines(next) };

/** Playback speed, in times the recorded speed. */
function speedOf(messages: typeof long): number {
  const events = messages.flatMap((message) => message.events);
  const ending = events.find((event): event is Extract<GenerationEvent, { type: 'finished' }> => event.type === 'finished');
  return tokensPerSecond / (ending?.stats.decode_tok_s ?? 1);
}

it.each(['rich', 'tokens'])('an answer of 4,000 tokens while it is written, %s', { timeout: 600_000 }, async (view) => {
  for (let run = 0; run < runs; run += 1) {
    const page = await opened({ replay: 'long', recordings, speed: speedOf(long), preferences: { view } });
    await watchFrames(page);
    const begun = Date.now();
    await profiled(page, `writing-${view}-${run}`, async () => {
      await ask(page);
      await page.getByTestId('stats').waitFor({ timeout: 120_000 });
    });
    const seconds = (Date.now() - begun) / 1000;
    report(
      `4,000 tokens while they come, view ${view}`,
      await framesSeen(page),
      `${seconds.toFixed(1)} s, ${await elements(page)} elements`,
    );
    await page.close();
  }
});

it.each(['rich', 'tokens'])('another answer under one of 4,000 tokens, %s', { timeout: 600_000 }, async (view) => {
  for (let run = 0; run < runs; run += 1) {
    const page = await opened({ replay: 'long,next', recordings, speed: speedOf(next), preferences: { view } });
    await ask(page);
    await page.getByTestId('stats').waitFor({ timeout: 120_000 });
    await watchFrames(page);
    await profiled(page, `under-${view}-${run}`, async () => {
      await ask(page, 'And once more?');
      await page.getByTestId('stats').nth(1).waitFor({ timeout: 120_000 });
    });
    report(`1,500 more under 4,000 tokens, view ${view}`, await framesSeen(page), `${await elements(page)} elements`);
    await page.close();
  }
});

it.each(['sentences', 'everything'] as const)(
  'a conversation of 500 messages, opened and scrolled, %s',
  { timeout: 600_000 },
  async (kind) => {
    const app = { ...structuredClone(recordedApp), conversations: [longConversation(250, 120, kind)] } as unknown as RecordedApp;
    for (let run = 0; run < runs; run += 1) {
      const page = await opened({ app: 'long', apps: { long: app } });
      const entry = page.getByTestId('conversation-entry').getByRole('button').first();
      await entry.waitFor();
      await page.getByTestId('example').first().waitFor();
      await watchFrames(page);
      const shown = await profiled(page, `open-${kind}-${run}`, async () => {
        const from = await page.evaluate(() => performance.now());
        await entry.click();
        await page.waitForFunction(() => document.querySelector('[data-testid=turn]:last-child [data-testid=stats]'));
        const first = (await page.evaluate(() => performance.now())) - from;
        await page.waitForTimeout(1500);
        return first;
      });
      report(
        `500 messages opened, ${kind}`,
        await framesSeen(page),
        `last answer after ${shown.toFixed(0)} ms, ${await elements(page)} elements`,
      );
      await page.getByTestId('conversation').hover();
      await watchFrames(page);
      await profiled(page, `scroll-${kind}-${run}`, async () => {
        for (let wheel = 0; wheel < 2000; wheel += 1) {
          await page.mouse.wheel(0, -1200);
          await page.waitForTimeout(8);
          if (wheel % 10 === 9 && (await page.getByTestId('conversation').evaluate((main) => main.scrollTop)) === 0) break;
        }
      });
      const top = await page.getByTestId('conversation').evaluate((main) => main.scrollTop);
      report(
        `500 messages scrolled from end to start, ${kind}`,
        await framesSeen(page),
        `left ${top} px, ${await elements(page)} elements`,
      );
      await page.close();
    }
  },
);
