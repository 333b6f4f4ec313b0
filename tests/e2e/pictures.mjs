// The pictures of the README, taken from the real window. Started by scripts/pictures, which names the driver, the app,
// the folder of models, and what to open. Writes to tests/output/pictures. No expectations here.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { HunchWindow, eventually, keys } from './webdriver.mjs';

const {
  HUNCH_E2E_DRIVER: driver,
  HUNCH_E2E_APP: app,
  HUNCH_PICTURE_TARGET: target,
  HUNCH_PICTURE_DRAFT: draft,
  DISPLAY: display,
} = process.env;
if (!driver || !app || !target || !display) throw new Error('Run scripts/pictures.');
const output = fileURLToPath(new URL('../output/pictures/', import.meta.url));

/** Size of the window in pixels. */
const size = { width: 1100, height: 740 };
/** Frames per second of the recording. */
const rate = 10;

const question = 'Write a Python function that merges two sorted lists. Only the code, with short comments.';
const method = draft ? 'auto' : 'suffix';

/** Returns how the last answer ended; null while it is written. Runs in the page. */
const ended = () =>
  [...document.querySelectorAll('[data-testid="turn"]')].at(-1)?.querySelector('[data-testid="stats"]')?.dataset.stop ?? null;

/** Opens a model by its file name, as target or as draft. */
async function open(window, role, name) {
  await window.click(`${role}-menu`);
  await window.run(
    (list, file) => {
      const row = [...document.querySelectorAll(`[data-testid="${list}"] .menu-item`)].find(({ title }) => title.endsWith(`/${file}`));
      if (!row) throw new Error(`no ${file} in ${list}`);
      row.click();
    },
    `${role}-list`,
    name,
  );
}

/** Waits until a model can answer. */
const ready = (window) =>
  eventually('a model that can answer', () => window.run(() => document.querySelector('[data-testid="method"]')?.disabled === false), 120);

/** Sets the appearance: light or dark. */
async function appearance(window, name) {
  await window.click('open-settings');
  await window.element('appearance');
  await window.run((wanted) => document.querySelector(`[data-testid="appearance-${wanted}"]`).click(), name);
  await window.type('settings-dialog', keys.escape);
  await sleep(400);
}

/** Records the page, which lies below the window's menu, until the returned function is called. */
function record(path, { width, height }) {
  const input = [
    '-f',
    'x11grab',
    '-draw_mouse',
    0,
    '-framerate',
    rate,
    '-video_size',
    `${width}x${height}`,
    '-i',
    `${display}+0,${size.height - height}`,
  ];
  const recorder = spawn('ffmpeg', ['-loglevel', 'error', '-y', ...input, '-c:v', 'ffv1', path].map(String), {
    stdio: ['pipe', 'inherit', 'inherit'],
  });
  return async () => {
    recorder.stdin.end('q');
    await once(recorder, 'exit');
  };
}

/** Sets the value of a field. */
const put = (window, testid, value) =>
  window.run(
    (id, wanted) => {
      const field = document.querySelector(`[data-testid="${id}"]`);
      field.value = wanted;
      for (const type of ['input', 'change']) field.dispatchEvent(new Event(type, { bubbles: true }));
    },
    testid,
    value,
  );

const folder = await mkdtemp(join(tmpdir(), 'hunch-pictures-'));
await mkdir(output, { recursive: true });
for (const file of [target, draft].filter(Boolean)) await symlink(file, join(folder, basename(file)));
const window = await HunchWindow.open({ driver, app, models: folder });
const picture = (name) => window.screenshot(join(output, `window-${name}.png`));
try {
  await window.resize(size.width, size.height);
  await window.toCorner();
  // A single model is loaded at once. With two, the window offers a choice.
  const asks = await eventually('a model or a choice of models', () =>
    window.run(() => {
      const loaded = document.querySelector('[data-testid="method"]')?.disabled === false;
      return loaded ? 'no' : document.querySelector('[data-testid="listed-model"]') && 'yes';
    }),
  );
  if (asks === 'yes') await open(window, 'target', basename(target));
  await ready(window);
  if (draft) {
    await open(window, 'draft', basename(draft));
    await eventually('the draft', () =>
      window.run(
        () =>
          document.querySelector('[data-testid="draft-menu"]').textContent.includes('draft') &&
          !document.querySelector('[data-testid="loading"]'),
      ),
    );
    await ready(window);
  }
  await window.click('method');
  await window.click(`method-${method}`);
  await sleep(500);

  // The first of two answers warms the caches and the depth controller.
  for (const recorded of [false, true]) {
    await window.click('new-conversation');
    const page = await window.run(() => ({ width: innerWidth, height: innerHeight }));
    const stop = recorded ? record(join(output, 'answer.mkv'), page) : null;
    await sleep(600);
    await window.type('prompt', question);
    await sleep(900);
    await window.type('prompt', keys.enter);
    await eventually('the end of the answer', () => window.run(ended), 300);
    await sleep(2500);
    await stop?.();
    // The first answer explains the colours, which the pictures do without.
    await window.run(() => document.querySelector('[data-testid="colour-guide-close"]')?.click());
  }
  await picture('light');
  await appearance(window, 'dark');
  await picture('dark');
  await appearance(window, 'light');

  await window.run(() => {
    const tokens = [...document.querySelectorAll('[data-testid="token"][data-origin="resampled"]')];
    const token = tokens.findLast(({ textContent }) => /\w{3}/.test(textContent)) ?? tokens[0];
    token.scrollIntoView({ block: 'center' });
    token.click();
  });
  await window.element('alternatives');
  await sleep(400);
  await picture('token');

  await window.click('show-in-lab');
  await window.click('lab-resampling');
  await sleep(1500);
  await window.click('one-round');
  await sleep(1500);
  await picture('lab');

  await window.click('place-compare');
  await window.type('compare-prompt', question);
  await put(window, 'compare-runs', '3');
  await put(window, 'compare-tokens', '96');
  await window.click('compare-start');
  await eventually('the result', () => window.run(() => Boolean(document.querySelector('[data-testid="verdict"]'))), 300);
  await window.run(() => {
    const place = document.querySelector('[data-testid="compare"]');
    const result = document.querySelector('[data-testid="result"]');
    place.scrollTop += result.getBoundingClientRect().top - place.getBoundingClientRect().top - 16;
  });
  await sleep(500);
  await picture('compare');

  await window.click('place-library');
  await window.click('library-catalogue');
  await sleep(500);
  await picture('library');
} catch (error) {
  await picture('failed').catch(() => {});
  throw error;
} finally {
  await window.close();
  await rm(folder, { recursive: true, force: true });
}
