// Screenshots of the window, light and dark, narrow and wide, in tests/output/ui, with checks that hold in each.

import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Locator, Page } from 'playwright-core';
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

/** Fails if what floats covers the title bar, leaves the window, or needs scrolling sideways. */
async function expectInPlace(page: Page, floating: Locator): Promise<void> {
  const [box, bar, inner] = [await floating.boundingBox(), await page.locator('header').first().boundingBox(), page.viewportSize()];
  expect(box!.y).toBeGreaterThanOrEqual(bar!.y + bar!.height);
  expect(box!.y + box!.height).toBeLessThanOrEqual(inner!.height);
  expect(box!.x + box!.width).toBeLessThanOrEqual(inner!.width);
  const wider = (element: Element) =>
    [element, ...element.querySelectorAll('.parts')].filter(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth).length;
  expect(await floating.evaluate(wider), 'elements that scroll sideways').toBe(0);
}

describe.each(screens)('$width px, $colours, $locale, scale $scale', ({ width, colours, locale, scale }) => {
  const named = (name: string) => `${name}-${width}-${colours}-${locale.slice(0, 2)}-${scale}`;

  it('keeps the title bar on one line on every screen, and what floats below it', async () => {
    const page = await window_.open({ width, colours, locale, scale, height: 760 });
    await page.getByTestId('example').first().waitFor();
    for (const [at, name] of ['chat', 'compare', 'lab', 'library'].entries()) {
      await page.keyboard.press(`Control+${at + 1}`);
      await page.waitForTimeout(150);
      await take(page, named(name));
      expect(await broken(page), name).toEqual([]);
    }
    if (width === 900) return;
    await page.keyboard.press('Control+1');
    await ask(page);
    await ended(page);
    await page.locator('[data-origin=resampled][data-testid=token]').nth(9).click();
    const card = page.getByTestId('token-card');
    await expectInPlace(page, card);
    const [beside, answer] = [await card.boundingBox(), await page.getByTestId('answer').boundingBox()];
    // Next to the answer where there is room.
    if (width === 1600) expect(beside!.x).toBeGreaterThanOrEqual(answer!.x + answer!.width);
    await take(page, named('answer-card'));
    await page.keyboard.press('Escape');
    await page.getByTestId('settings').click();
    await page.getByTestId('seed').waitFor();
    await expectInPlace(page, page.getByRole('dialog'));
    await take(page, named('answer-settings'));
    await page.keyboard.press('Escape');
    await page.getByTestId('target-menu').click();
    await page.getByTestId('open-target').waitFor();
    await take(page, named('model-picker'));
    await page.keyboard.press('Escape');
    await page.keyboard.press('Control+,');
    await page.getByTestId('settings-dialog').waitFor();
    await take(page, named('preferences'));
  });
});
