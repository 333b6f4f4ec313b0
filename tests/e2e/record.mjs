// Records an answer in the real window as an animated PNG, for the README. Started by `scripts/record-answer OUT`,
// which sets the same variables as `scripts/e2e`. The window, the engine and the model are real; only the pace is not:
// a frame is taken whenever new tokens are on screen.

import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { HunchWindow, eventually, keys } from './webdriver.mjs';

const { HUNCH_E2E_DRIVER: driver, HUNCH_E2E_APP: app, HUNCH_E2E_MODELS: models } = process.env;
const [out, method = 'ngram'] = process.argv.slice(2);

/** Repeats its own words, so that a lookup accepts, rejects and earns bonus tokens. */
const QUESTION = 'Write a haiku about rain. Then repeat it, and change one word.';
/** Most frames, and the size they are shown in. */
const FRAMES = 40;
const SIZE = '960x';

const frames = await mkdtemp(join(tmpdir(), 'hunch-record-'));
const window = await HunchWindow.open({ driver, app, models });
try {
  await eventually('an enabled choice of methods', () =>
    window.run(() => document.querySelector('[data-testid="method"]')?.disabled === false),
  );
  await window.click('method');
  await window.click(`method-${method}`);
  await window.type('prompt', `${QUESTION}${keys.enter}`);
  const shown = () => window.run(() => document.querySelectorAll('[data-testid="token"]').length);
  const over = () => window.run(() => Boolean(document.querySelector('[data-testid="stats"]')?.dataset.stop));
  let [frame, last, ended] = [0, -1, false];
  while (frame < FRAMES && !ended) {
    ended = await over();
    const tokens = await shown();
    if (tokens === last && !ended) continue;
    last = tokens;
    await window.screenshot(join(frames, `${String(frame).padStart(3, '0')}.png`));
    frame += 1;
  }
  // The first frame of an animated PNG is what a viewer without animation shows, so it is the last one taken.
  const run = promisify(execFile);
  const file = (i) => join(frames, `${String(i).padStart(3, '0')}.png`);
  const names = [...Array(frame).keys()].map(file);
  await run('ffmpeg', [
    '-y', '-loglevel', 'error', '-framerate', '6', '-i', join(frames, '%03d.png'),
    '-vf', `scale=${SIZE.replace('x', '')}:-1:flags=lanczos,tpad=stop_mode=clone:stop_duration=3`,
    '-plays', '0', '-f', 'apng', out,
  ]);
  console.log(`${out}: ${names.length} frames`);
} finally {
  await window.close();
  await rm(frames, { recursive: true, force: true });
}
