// Colour modes of answers, one by one: marks, legend, filter, contrast. Screenshots in tests/output/ui.

import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Page } from 'playwright-core';
import { describe, expect, it } from 'vitest';
import type { TokenEvent } from '../../ui/src/lib/ipc/schema.gen';
import {
  classesOf,
  confidenceClasses,
  confidenceOf,
  roundClasses,
  roundClassOf,
  entropyClasses,
  entropyClassOf,
} from '../../ui/src/lib/marks';
import { faintText } from './contrast';
import { record, toLines } from './fixtures/build';
import { plans } from './fixtures/plans';
import { ask, calls, ended, legend, useWindow, type Opening } from './harness';
import { colourModes, type ColourMode } from '../../ui/src/lib/strings/keys';

const hunch = useWindow();
const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });

/** An answer with tokens of every class of every mode. */
const messages = record(plans['fixture-story']!);
const tokens: TokenEvent[] = messages
  .flatMap(({ events }) => events)
  .flatMap((event) => (event.type === 'round' || event.type === 'finished' ? event.tokens : []));
for (const [index, token] of tokens.entries()) {
  token.confidence = [0.97, 0.7, 0.3, 0.02][index % 4]!;
  token.entropy = [0.05, 0.7, 1.5, 3][Math.floor(index / 3) % 4]!;
}
const recordings = { spread: toLines(messages) };
const shownTokens = tokens.filter(({ text }) => text !== '');

async function answered(colourMode: ColourMode, opening: Opening = {}): Promise<Page> {
  const page = await hunch.open({
    replay: 'spread',
    recordings,
    ...opening,
    preferences: { colour_mode: colourMode, ...opening.preferences },
  });
  await ask(page, 'Write a short scene in a lighthouse during a storm.');
  await ended(page);
  return page;
}

interface Look {
  line: string;
  style: string;
  back: string;
  alpha: number;
}

/** The style of the first token of a class. */
const look = (page: Page, selector: string): Promise<Look> =>
  page
    .locator(`[data-testid=token]${selector}`)
    .first()
    .evaluate((token) => {
      const { textDecorationLine: line, textDecorationStyle: style, backgroundColor: back } = getComputedStyle(token);
      const alpha = back === 'rgba(0, 0, 0, 0)' ? 0 : Number(/(?:\/|,)\s*([\d.]+)\)$/.exec(back)?.[1] ?? 1);
      return { line, style, back, alpha };
    });

const plainLook = { line: 'none', back: 'rgba(0, 0, 0, 0)' };

describe.each([
  ['confidence', confidenceClasses, (token: TokenEvent) => confidenceOf(token.confidence)],
  ['entropy', entropyClasses, (token: TokenEvent) => (token.entropy === null ? null : entropyClassOf(token.entropy))],
] as const)('%s', (mode, classes, classOf) => {
  it('marks each class as its table says, stronger towards the end of the scale', async () => {
    const page = await answered(mode);
    const alphas: number[] = [];
    for (const { key, strength, underline } of [...classes].sort((a, b) => a.strength - b.strength)) {
      const drawn = await look(page, `[data-${mode}=${key}]`);
      if (underline === 'none') expect(drawn, key).toMatchObject({ line: 'none' });
      else expect(drawn, key).toMatchObject({ line: 'underline', style: underline });
      expect(drawn.alpha, key).toBeCloseTo(0.24 * strength, 2);
      alphas.push(drawn.alpha);
    }
    expect(new Set(alphas).size).toBe(classes.length);
  });

  it('has a legend whose entries add up, and dims all classes but the pressed one', async () => {
    const page = await answered(mode, { preferences: { view: 'tokens' } });
    const { counts, total } = await legend(page);
    expect(Object.keys(counts)).toEqual(classes.map(({ key }) => key));
    expect(total).toBe(tokens.length);
    for (const { key } of classes) expect(counts[key], key).toBe(tokens.filter((token) => classOf(token) === key).length);
    const pressed = classes[2]!.key;
    const dimmed = () =>
      page
        .getByTestId('token')
        .evaluateAll(
          (all, name) => all.filter((token) => Number(getComputedStyle(token).opacity) < 1).map((token) => token.getAttribute(name)),
          `data-${mode}`,
        );
    await page.locator(`[data-legend=${pressed}]`).click();
    const others = shownTokens.filter((token) => classOf(token) !== pressed).length;
    expect(await dimmed()).toHaveLength(others);
    expect(await dimmed()).not.toContain(pressed);
    // Escape clears the filter.
    await page.keyboard.press('Escape');
    expect(await dimmed()).toEqual([]);
  });
});

/** Text indices where brackets open and close on screen, and where they should. */
const brackets = (page: Page) =>
  page
    .getByTestId('answer')
    .last()
    .evaluate((answer) => {
      const all = [...answer.querySelectorAll<HTMLElement>('[data-token]')];
      const at = (fits: (token: HTMLElement, i: number) => boolean) => all.flatMap((token, i) => (fits(token, i) ? [i] : []));
      const side = (name: 'borderLeftStyle' | 'borderRightStyle') => at((token) => getComputedStyle(token)[name] === 'solid');
      return {
        opened: side('borderLeftStyle'),
        closed: side('borderRightStyle'),
        first: at((token, i) => token.dataset['round'] !== all[i - 1]?.dataset['round']),
        last: at((token, i) => token.dataset['round'] !== all[i + 1]?.dataset['round']),
        joined: all.every(
          (token) => parseFloat(getComputedStyle(token).borderBottomWidth) >= 2 && getComputedStyle(token).borderBottomStyle !== 'none',
        ),
      };
    });

describe('off', () => {
  it('marks nothing but still counts', async () => {
    const page = await answered('off');
    for (const { key } of confidenceClasses) expect(await look(page, `[data-confidence=${key}]`), key).toMatchObject(plainLook);
    for (const origin of classesOf('origin').filter((key) => key !== 'chosen'))
      expect(await look(page, `[data-origin=${origin}]`), origin).toMatchObject(plainLook);
    expect(await legend(page)).toEqual({ counts: {}, total: tokens.length });
  });
});

describe('rounds', () => {
  it.each(['rich', 'tokens'])('has a bar where each round begins, in the view %s', async (view) => {
    const page = await answered('rounds', { preferences: { view } });
    const bars = await page.locator('[data-begins]').evaluateAll((all) =>
      all.map((token) => {
        const { width, backgroundImage } = getComputedStyle(token, '::before');
        const places = ['--proposed', '--passed', '--verified'].map((name) =>
          parseFloat((token as HTMLElement).style.getPropertyValue(name)),
        );
        return {
          index: Number(token.getAttribute('data-token')),
          width,
          layers: backgroundImage.match(/(repeating-)?linear-gradient/g),
          places,
        };
      }),
    );
    const shown = await page.getByTestId('token').evaluateAll((all) => all.map((token) => Number(token.getAttribute('data-token'))));
    const firsts = shown.filter((index, at) => tokens[shown[at - 1] ?? -1]?.round !== tokens[index]?.round);
    expect(firsts.length).toBeGreaterThan(30);
    expect(bars.map(({ index }) => index)).toEqual(firsts);
    for (const { width, layers, places } of bars) {
      // Patterns distinguish the parts without colour: slanted, solid, upright.
      expect([width, layers]).toEqual(['26px', ['repeating-linear-gradient', 'linear-gradient', 'repeating-linear-gradient']]);
      expect(places[0]).toBeGreaterThanOrEqual(0);
      expect(places[1]).toBeGreaterThan(places[0]!);
      expect(places[2]).toBeGreaterThan(places[1]!);
      expect(places[2]).toBeLessThanOrEqual(100);
    }
    expect(await page.getByTestId('round-part').allInnerTexts()).toEqual(['drafting', 'target pass', 'verifying', 'other']);
  });

  it.each(['rich', 'tokens'])('keeps each bar with the word behind it, however lines break, in the view %s', async (view) => {
    const page = await answered('rounds', { preferences: { view } });
    for (const width of [700, 760, 820, 900]) {
      await page.setViewportSize({ width, height: 700 });
      const parted = await page
        .locator('[data-begins]')
        .evaluateAll((all) =>
          all
            .filter(
              (token) => /\S/.test(token.textContent ?? '') && !/\n/.test(token.textContent ?? '') && token.getClientRects().length > 1,
            )
            .map((token) => token.textContent),
        );
      expect(parted, `${width} px wide`).toEqual([]);
    }
  });

  it.each(['rich', 'tokens'])('has a bracket from the first to the last token of each round, in the view %s', async (view) => {
    for (const replay of ['spread', 'fixture-markdown']) {
      const page = await answered('rounds', { replay, preferences: { view } });
      const { opened, closed, first, last, joined } = await brackets(page);
      expect(opened.length).toBeGreaterThan(20);
      expect(opened, replay).toEqual(first);
      expect(closed, replay).toEqual(last);
      expect(joined, 'every token has the line that joins them').toBe(true);
    }
  });

  it('closes each bracket while the answer is written, across blocks and redraws', async () => {
    const page = await answered('off', { replay: 'fixture-markdown' });
    await page.getByTestId('colours').click();
    await page.getByTestId('colours-rounds').click();
    await page.getByTestId('regenerate').click();
    await page.getByTestId('stats').waitFor();
    const { opened, closed, first, last } = await brackets(page);
    expect(opened).toEqual(first);
    expect(closed).toEqual(last);
    const slow = await hunch.open({ replay: 'fixture-markdown', speed: 8, preferences: { colour_mode: 'rounds' } });
    await ask(slow);
    for (const count of [20, 60, 120, 180]) {
      await slow.waitForFunction((wanted) => document.querySelectorAll('[data-testid=token]').length > wanted, count);
      const now = await brackets(slow);
      expect(now.closed, `${count} tokens`).toEqual(now.last);
    }
    await slow.keyboard.press('Escape');
    await ended(slow);
  });

  it('has a legend of draft outcomes whose entries add up, and dims all but the pressed one', async () => {
    const page = await answered('rounds', { preferences: { view: 'tokens' } });
    const rounds = messages.flatMap(({ events }) => events).flatMap((event) => (event.type === 'round' ? [event] : []));
    const { counts, total } = await legend(page);
    expect(Object.keys(counts)).toEqual(roundClasses.map(({ key }) => key));
    for (const { key } of roundClasses) {
      const held = rounds.filter((round) => roundClassOf(round) === key).flatMap((round) => round.tokens);
      expect(counts[key], key).toBe(held.length);
      expect(held.length, `the recording has rounds of the class ${key}`).toBeGreaterThan(0);
    }
    expect(Object.values(counts).reduce((sum, count) => sum + count)).toBe(total);
    await page.locator('[data-legend=partly]').click();
    const bright = await page
      .getByTestId('token')
      .evaluateAll((all) => [
        ...new Set(all.filter((token) => getComputedStyle(token).opacity === '1').map((token) => token.getAttribute('data-kept'))),
      ]);
    expect(bright).toEqual(['partly']);
    const lines = await page
      .getByTestId('legend')
      .locator('.sample')
      .evaluateAll((all) => all.map((sample) => getComputedStyle(sample).borderBottomStyle));
    expect(lines).toEqual(roundClasses.map(({ line }) => line));
  });

  it('has a bar for rounds that begin with formatting characters', async () => {
    const page = await answered('rounds', { replay: 'fixture-markdown' });
    const [bars, seen] = await page
      .getByTestId('answer')
      .evaluate((answer) => [answer.querySelectorAll('[data-begins]').length, answer.querySelectorAll('[data-testid=token]').length]);
    const all = record(plans['fixture-markdown']!)
      .flatMap(({ events }) => events)
      .flatMap((event) => (event.type === 'round' ? [event.tokens] : []));
    const shown = new Set(
      await page.getByTestId('token').evaluateAll((list) => list.map((token) => Number(token.getAttribute('data-token')))),
    );
    let at = 0;
    const visible = all.filter((round) => round.map(() => shown.has(at++)).includes(true)).length;
    expect(seen).toBe(shown.size);
    expect(bars).toBe(visible);
    expect(visible).toBeLessThan(all.length);
  });
});

describe('choosing', () => {
  it('changes the marks at once, saves the choice, and clears the filter', async () => {
    const page = await answered('origin');
    await page.locator('[data-legend=bonus]').click();
    await page.getByTestId('colours').click();
    await page.getByTestId('colours-entropy').click();
    await page.locator('[data-testid=answer][data-mode=entropy]').waitFor();
    expect(await page.locator('[data-only]').count()).toBe(0);
    expect((await calls(page, 'set_preference')).at(-1)).toEqual({ key: 'colour_mode', value: 'entropy' });
    expect(await look(page, '[data-entropy=wide]')).toMatchObject({ line: 'underline', style: 'wavy' });
  });
});

describe.each(['light', 'dark'] as const)('%s', (colours) => {
  it.each(colourModes)('can be read in every mode: %s', async (mode) => {
    const page = await answered(mode, { colours });
    expect(await faintText(page)).toEqual([]);
    const formatted = await answered(mode, { colours, replay: 'fixture-markdown' });
    await formatted.locator('[role=math] .katex').nth(1).waitFor();
    expect(await faintText(formatted)).toEqual([]);
  });

  it.each([900, 1400])('looks as it should, %i px wide', async (width) => {
    const opening = { colours, width, height: 760 };
    const take = (page: Page, name: string) => page.screenshot({ path: `${output}${name}-${width}-${colours}.png` });
    const page = await answered('origin', opening);
    for (const mode of colourModes) {
      await page.getByTestId('colours').click();
      await page.getByTestId(`colours-${mode}`).click();
      await page.locator(`[data-testid=answer][data-mode=${mode}]`).waitFor();
      await take(page, `colours-${mode}`);
      // The legend fits one row where there is room, and never overflows.
      const row = await page.getByTestId('legend').evaluate((element) => {
        const boxes = [...element.children].map((child) => child.getBoundingClientRect());
        return {
          lines: new Set(boxes.map((box) => Math.round(box.top + box.height / 2))).size,
          spills: element.scrollWidth > element.clientWidth,
        };
      });
      expect(row.spills, mode).toBe(false);
      // In the mode of rounds, the parts of the bars are listed below.
      expect(row.lines, mode).toBeLessThanOrEqual(width >= 1400 && mode !== 'rounds' ? 1 : 2);
    }
    await page.getByTestId('colours').click();
    await page.getByTestId('colours-off').waitFor();
    await take(page, 'colours-menu');
    await page.keyboard.press('Escape');
    const formatted = await answered('origin', { ...opening, replay: 'fixture-markdown,fixture-thought' });
    await formatted.locator('[role=math] .katex').nth(1).waitFor();
    const spills = await formatted.getByTestId('conversation').evaluate((main) => main.scrollWidth > main.clientWidth);
    expect(spills).toBe(false);
    await formatted.getByTestId('conversation').evaluate((main) => (main.scrollTop = 0));
    await take(formatted, 'markdown-top');
    await formatted.getByTestId('answer').locator('pre').first().scrollIntoViewIfNeeded();
    await formatted.getByTestId('conversation').evaluate((main) => (main.scrollTop = 560));
    await take(formatted, 'markdown-middle');
    await formatted.getByTestId('conversation').evaluate((main) => (main.scrollTop = main.scrollHeight));
    await take(formatted, 'markdown-end');
    await ask(formatted, 'And in one sentence?');
    await formatted.getByTestId('stats').nth(1).waitFor();
    await formatted.getByTestId('thought').locator('summary').click();
    await take(formatted, 'thought');
    await formatted.getByTestId('boxed').click();
    await take(formatted, 'boxed');
  });
});
