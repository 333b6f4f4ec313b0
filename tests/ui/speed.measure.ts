// How long frames take in the built window: a long answer while it is written, and a long conversation that is
// opened and scrolled. Measures and prints; judges nothing, for times belong to the machine. `npm run measure`.

import { writeFileSync } from 'node:fs';
import type { Page } from 'playwright-core';
import { it } from 'vitest';
import type { GenerationEvent } from '../../ui/src/lib/ipc/schema.gen';
import type { RecordedApp } from '../../ui/src/lib/host/replay';
import { longConversation, longMarkdown } from './fixtures/long';
import { record, toLines } from './fixtures/build';
import recordedApp from './fixtures/fixture-app.json';
import { ask, useWindow } from './harness';

const hunch = useWindow();
const runs = Number(process.env['HUNCH_RUNS'] ?? 3);
const tokensPerSecond = 300;
const say = (line: string) => void process.stdout.write(`${line}\n`);
const profileTo = process.env['HUNCH_PROFILE'];

/** Begins to note when frames come. */
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

/** Milliseconds between the frames since then. */
const framesSeen = (page: Page): Promise<number[]> =>
  page.evaluate(() => {
    const marks = (window as unknown as { frames: { times: number[]; on: boolean } }).frames;
    marks.on = false;
    return marks.times.slice(1).map((time, index) => time - marks.times[index]!);
  });

function summary(frames: number[]): string {
  const sorted = [...frames].sort((a, b) => a - b);
  const at = (share: number) => (sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? 0).toFixed(1);
  return `p50 ${at(0.5)} p95 ${at(0.95)} p99 ${at(0.99)} max ${at(1)} ms, ${frames.length} frames, ${frames.filter((frame) => frame > 50).length} over 50 ms`;
}

async function profiled<T>(page: Page, name: string, act: () => Promise<T>): Promise<T> {
  if (!profileTo) return act();
  const session = await page.context().newCDPSession(page);
  await session.send('Profiler.enable');
  await session.send('Profiler.start');
  const done = await act();
  writeFileSync(`${profileTo}/${name}.cpuprofile`, JSON.stringify((await session.send('Profiler.stop')).profile));
  return done;
}

const messages = record({ text: longMarkdown(4000), method: 'draft-model', maxDraft: 4, seed: 21 });
const events = messages.flatMap((message) => message.events);
const ending = events.find((event): event is Extract<GenerationEvent, { type: 'finished' }> => event.type === 'finished');
const speed = tokensPerSecond / (ending?.stats.decode_tok_s ?? 1);

it.each(['rich', 'tokens'])('an answer while it is written, %s', { timeout: 300_000 }, async (view) => {
  for (let run = 0; run < runs; run += 1) {
    const page = await hunch.open({ replay: 'long', recordings: { long: toLines(messages) }, speed, preferences: { view } });
    await watchFrames(page);
    const begun = Date.now();
    await profiled(page, `writing-${view}-${run}`, async () => {
      await ask(page);
      await page.getByTestId('stats').waitFor({ timeout: 120_000 });
    });
    const seconds = (Date.now() - begun) / 1000;
    const frames = await framesSeen(page);
    say(`${view}: ${ending?.stats.generated_tokens} tokens in ${seconds.toFixed(1)} s; ${summary(frames)}`);
    await page.close();
  }
});

it('a conversation of 500 messages, opened and scrolled', { timeout: 300_000 }, async () => {
  const app = { ...structuredClone(recordedApp), conversations: [longConversation(250, 120)] } as unknown as RecordedApp;
  for (let run = 0; run < runs; run += 1) {
    const page = await hunch.open({ app: 'long', apps: { long: app } });
    const entry = page.getByTestId('conversation-entry').getByRole('button').first();
    await entry.waitFor();
    await page.getByTestId('example').first().waitFor();
    await watchFrames(page);
    const shown = await profiled(page, `open-${run}`, async () => {
      const from = await page.evaluate(() => performance.now());
      await entry.click();
      await page.waitForFunction(() => document.querySelector('[data-testid=turn]:last-child [data-testid=stats]'));
      const first = (await page.evaluate(() => performance.now())) - from;
      await page.waitForTimeout(1500);
      return first;
    });
    say(`open: last answer after ${shown.toFixed(0)} ms; ${summary(await framesSeen(page))}; ${await page.evaluate(() => document.querySelectorAll('main *').length)} elements`);
    await page.getByTestId('conversation').hover();
    await watchFrames(page);
    await profiled(page, `scroll-${run}`, async () => {
      for (let wheel = 0; wheel < 2000; wheel += 1) {
        await page.mouse.wheel(0, -1200);
        await page.waitForTimeout(8);
        if (wheel % 10 === 9 && (await page.getByTestId('conversation').evaluate((main) => main.scrollTop)) === 0) break;
      }
    });
    const top = await page.getByTestId('conversation').evaluate((main) => main.scrollTop);
    say(`scroll: ${summary(await framesSeen(page))}; left ${top} px; ${await page.evaluate(() => document.querySelectorAll('main *').length)} elements`);
    await page.close();
  }
});
