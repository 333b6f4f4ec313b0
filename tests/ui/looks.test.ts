// Screenshots of the window, light and dark, narrow and wide, in tests/output/ui, with checks that hold in each.

import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Page } from 'playwright-core';
import { describe, expect, it } from 'vitest';
import { ask, ended, useWindow } from './harness';

const window_ = useWindow();
const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });

const sizes = [900, 1400] as const;
const themes = ['light', 'dark'] as const;
const cases = sizes.flatMap((width) => themes.map((colours) => ({ width, colours })));

async function take(page: Page, name: string): Promise<void> {
  await page.screenshot({ path: `${output}${name}.png` });
  const spill = await page.evaluate(() => {
    const root = document.documentElement;
    return { wide: root.scrollWidth > root.clientWidth, tall: root.scrollHeight > root.clientHeight };
  });
  expect(spill, 'the page itself never scrolls').toEqual({ wide: false, tall: false });
}

describe.each(cases)('$width px, $colours', ({ width, colours }) => {
  const opening = { width, colours, height: 760 };
  const suffix = `${width}-${colours}`;

  it('before the first question', async () => {
    const page = await window_.open(opening);
    await page.getByTestId('example').first().waitFor();
    await take(page, `ready-${suffix}`);
  });

  it('without a model', async () => {
    const page = await window_.open({ ...opening, app: 'fixture-app-empty' });
    await page.getByTestId('open-model').waitFor();
    await take(page, `empty-${suffix}`);
  });

  it('while an answer is written', async () => {
    const page = await window_.open({ ...opening, speed: 6 });
    await ask(page);
    await page.waitForFunction(() => document.querySelectorAll('[data-testid=token]').length > 60);
    await take(page, `writing-${suffix}`);
  });

  it('two answers, and the card over a token', async () => {
    const page = await window_.open({ ...opening, replay: 'fixture-story,fixture-answer' });
    await ask(page, 'Write a short scene in a lighthouse during a storm.');
    await ended(page);
    await take(page, `story-${suffix}`);
    await ask(page);
    await page.getByTestId('stats').nth(1).waitFor();
    await page.locator('[data-testid=turn]:last-child [data-origin=resampled][data-testid=token]').nth(6).hover();
    await page.getByTestId('token-card').waitFor();
    await take(page, `card-${suffix}`);
  });

  it('an error', async () => {
    const page = await window_.open({ ...opening, replay: 'fixture-refused' });
    await ask(page, 'A prompt that is far too long for this model.');
    await page.getByTestId('error').waitFor();
    await take(page, `error-${suffix}`);
  });

  it('menus and settings', async () => {
    const page = await window_.open({ ...opening, app: 'fixture-app-plain' });
    await page.getByTestId('method').click();
    await page.getByTestId('method-draft-model').waitFor();
    await take(page, `method-${suffix}`);
    await page.keyboard.press('Escape');
    await page.getByTestId('settings').click();
    await page.getByTestId('temperature').waitFor();
    await take(page, `settings-${suffix}`);
    await page.keyboard.press('Escape');
    await page.getByTestId('target-menu').click();
    await page.getByTestId('open-target').waitFor();
    await take(page, `models-${suffix}`);
  });
});

const languages = ['en-US', 'de-DE'] as const;
/** Widths of the narrowest window and of two screens, at one and two pixels of the screen for a pixel of the page. */
const screens = [900, 1000, 1600].flatMap((width) =>
  themes.flatMap((colours) => languages.flatMap((locale) => ([1, 2] as const).map((scale) => ({ width, colours, locale, scale })))),
);

/** Elements of the title bar that are cut off or on a second line. */
const broken = (page: Page) =>
  page.evaluate(() => {
    const bar = document.querySelector('header')!;
    const { top, bottom, left, right } = bar.getBoundingClientRect();
    const texts = [...bar.querySelectorAll<HTMLElement>('button, a, [role=tab]')].filter((element) => element.offsetParent !== null);
    return texts
      .filter((element) => {
        const box = element.getBoundingClientRect();
        return box.top < top || box.bottom > bottom || box.height > 40 || box.left < left - 1 || box.right > right + 1;
      })
      .map((element) => element.innerText);
  });

describe.each(screens)('$width px, $colours, $locale, scale $scale', ({ width, colours, locale, scale }) => {
  it('keeps the title bar on one line on every screen', async () => {
    const page = await window_.open({ width, colours, locale, scale, height: 760 });
    await page.getByTestId('example').first().waitFor();
    for (const [at, name] of ['chat', 'compare', 'lab', 'library'].entries()) {
      await page.keyboard.press(`Control+${at + 1}`);
      await page.waitForTimeout(150);
      await take(page, `${name}-${width}-${colours}-${locale.slice(0, 2)}-${scale}`);
      expect(await broken(page), name).toEqual([]);
    }
  });
});
