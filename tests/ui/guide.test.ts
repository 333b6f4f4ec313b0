// The explanation of the colours on the first answer.

import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { ask, calls, ended, useWindow } from './harness';
import { violations } from './violations';

const hunch = useWindow();
const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });
const first = { colours_known: false };

describe('the explanation of the colours', () => {
  it('names each colour of the first answer by one of its tokens, until it is closed for good', async () => {
    const page = await hunch.answered({ replay: 'fixture-story', preferences: first });
    const guide = page.getByTestId('colour-guide');
    const origins = await guide.locator('[data-origin]').evaluateAll((all) =>
      all.map((token) => {
        const origin = token.getAttribute('data-origin');
        const same = [...document.querySelectorAll(`[data-testid=token][data-origin=${origin}]`)];
        return { origin, isInAnswer: same.some(({ textContent }) => textContent?.trim() === token.textContent) };
      }),
    );
    expect(origins).toEqual(['accepted', 'resampled', 'bonus', 'plain'].map((origin) => ({ origin, isInAnswer: true })));
    await page.getByTestId('colour-guide-close').click();
    await guide.waitFor({ state: 'detached' });
    expect(await calls(page, 'set_preference')).toContainEqual({ key: 'colours_known', value: true });
    await ask(page);
    await page.getByTestId('stats').nth(1).waitFor();
    expect(await guide.count()).toBe(0);
  });

  it('is not shown without a draft, nor in another colour mode, nor once it was closed', async () => {
    const plain = await hunch.answered({ replay: 'fixture-plain', preferences: first });
    expect(await plain.getByTestId('colour-guide').count()).toBe(0);
    const off = await hunch.answered({ replay: 'fixture-story', preferences: { ...first, colour_mode: 'off' } });
    expect(await off.getByTestId('colour-guide').count()).toBe(0);
    const known = await hunch.answered({ replay: 'fixture-story' });
    expect(await known.getByTestId('colour-guide').count()).toBe(0);
  });

  it('is shown while the answer is written, on the last answer only, and takes no focus', async () => {
    const page = await hunch.open({ replay: 'fixture-story', preferences: first, speed: 4 });
    await ask(page);
    await page.getByTestId('colour-guide').waitFor();
    expect(await page.getByTestId('stats').count()).toBe(0);
    expect(await page.evaluate(() => document.activeElement?.getAttribute('data-testid'))).toBe('prompt');
    await page.keyboard.press('Escape');
    await ended(page);
    await ask(page);
    await page.getByTestId('turn').nth(1).getByTestId('colour-guide').waitFor();
    expect(await page.getByTestId('colour-guide').count()).toBe(1);
  });

  it.each([
    ['light', 'en-US'],
    ['dark', 'de-DE'],
  ] as const)('can be read by anyone, %s, %s', async (colours, locale) => {
    const page = await hunch.answered({ replay: 'fixture-story', preferences: first, colours, locale });
    expect(await violations(page)).toEqual([]);
    await page.screenshot({ path: `${output}guide-${colours}.png` });
  });
});
