// The conversation in the built window: tokens and their marks, legend, card, keyboard, stop, errors.

import { existsSync, readdirSync } from 'node:fs';
import type { Page } from 'playwright-core';
import { describe, expect, it } from 'vitest';
import type { AnswerRequest, RoundEvent } from '../../ui/src/lib/ipc/schema.gen';
import { origins } from '../../ui/src/lib/origin';
import { record } from './fixtures/build';
import { plans } from './fixtures/plans';
import { ask, calls, ended, legend, useWindow } from './harness';
import { violations } from './violations';

const hunch = useWindow();
const allFigures = { all_figures: true };

/** Calls of one command and the text on screen, before and after an action in one task. */
async function callsDuring(page: Page, command: string, act: 'escape' | 'stop-button'): Promise<number[]> {
  return page.evaluate(
    ([name, how]) => {
      const count = () => (window.hunchReplay?.calls ?? []).filter((call) => call.command === name).length;
      const before = count();
      if (how === 'escape') document.activeElement?.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }));
      else document.querySelector<HTMLButtonElement>('[data-testid=stop]')?.click();
      return [before, count()];
    },
    [command, act] as const,
  );
}

const tokensShown = (page: Page) => page.getByTestId('token').count();

async function writing(page: Page, tokens = 12): Promise<void> {
  await page.waitForFunction((least) => document.querySelectorAll('[data-testid=token]').length >= least, tokens);
}

/** A recording of an answer with one round and one token, with changes to its start and its round. */
function oneRound(start: object, text: string, round: object = {}, ...then: object[]): string {
  const models = { method: 'plain', target: 't', draft: null, device: 'cpu', max_draft: 4, rule: { name: 'lossless' } };
  const figures = { generated_tokens: 1, rounds: 1, decode_tok_s: 9, acceptance_rate: 0, mean_acceptance_length: 1 };
  const timing = { propose_ms: 0, target_ms: 1, verify_ms: 0, other_ms: 0 };
  const tokens = [{ id: 4, text, origin: 'plain', p: 1, q: null, confidence: 1, round: 0, position: 0 }];
  const events = [
    { type: 'started', generation_id: 1, prompt_tokens: 3, seed: 7, ...models, ...start },
    { type: 'round', round: 0, drafted: 0, draft: [], tokens, rejected: [], timing, depth: null, drafted_by: null, figures, ...round },
    ...then,
  ];
  return JSON.stringify({ generation_id: 1, seq: 0, events });
}

describe('an answer', () => {
  it('shows its text exactly, each token marked by origin in colour and in pattern', async () => {
    const page = await hunch.answered({ preferences: { view: 'tokens' }, replay: 'fixture-story' });
    const text = await page.getByTestId('answer').evaluate((element) => element.textContent);
    expect(text).toMatch(/^The lamp had burned[^]*\n\nRain ☂ came[^]*answered hers\.$/);
    const marks = await page.evaluate(() =>
      ['accepted', 'resampled', 'bonus', 'plain'].map((origin) => {
        const token = document.querySelector(`[data-testid=token][data-origin=${origin}]`);
        if (!token) return null;
        const { textDecorationLine, textDecorationStyle, textDecorationColor, backgroundColor } = getComputedStyle(token);
        return { origin, textDecorationLine, textDecorationStyle, textDecorationColor, backgroundColor };
      }),
    );
    // The reader chose no token in this answer.
    for (const { origin, underline, colour } of origins.filter(({ origin }) => origin !== 'chosen')) {
      const mark = marks.find((found) => found?.origin === origin);
      expect(mark, origin).toBeTruthy();
      if (underline === 'none') expect(mark?.textDecorationLine).toBe('none');
      else expect(mark).toMatchObject({ textDecorationLine: 'underline', textDecorationStyle: underline });
      if (colour === null) expect(mark?.backgroundColor).toBe('rgba(0, 0, 0, 0)');
    }
    expect(new Set(marks.map((mark) => mark?.backgroundColor)).size).toBe(4);
    expect(new Set(marks.map((mark) => mark?.textDecorationColor)).size).toBe(4);
  });

  it('tints a token by ten to sixteen per cent', async () => {
    for (const colours of ['light', 'dark'] as const) {
      const page = await hunch.answered({ replay: 'fixture-story', colours });
      const alphas = await page.evaluate(() =>
        ['accepted', 'resampled', 'bonus'].map((origin) => {
          const token = document.querySelector(`[data-testid=token][data-origin=${origin}]`);
          const colour = token ? getComputedStyle(token).backgroundColor : '';
          return Number(/(?:\/|,)\s*([\d.]+)\)$/.exec(colour)?.[1]);
        }),
      );
      for (const alpha of alphas) {
        expect(alpha).toBeGreaterThanOrEqual(0.1);
        expect(alpha).toBeLessThanOrEqual(0.16);
      }
    }
  });

  it('has a legend whose counts are those of its tokens, those without text included', async () => {
    const page = await hunch.answered({ preferences: { view: 'tokens' }, replay: 'fixture-story' });
    const { counts, total } = await legend(page);
    const stats = await page.evaluate(() =>
      [...document.querySelectorAll('[data-testid=token]')].map((token) => token.getAttribute('data-origin') ?? ''),
    );
    expect(Object.values(counts).reduce((sum, count) => sum + count)).toBe(total);
    // The umbrella takes two tokens. The first of them has no text.
    expect(total).toBe(stats.length + 1);
    const missing = origins.map(({ origin }) => (counts[origin] ?? 0) - stats.filter((shown) => shown === origin).length);
    expect(missing.filter((count) => count === 1)).toHaveLength(1);
    expect(missing.filter((count) => count === 0)).toHaveLength(origins.length - 1);
  });

  it('keeps the counts of the legend exact while it is written', async () => {
    const page = await hunch.open({ replay: 'fixture-ngram', speed: 20 });
    await ask(page);
    for (const least of [3, 15, 30]) {
      await writing(page, least);
      const moment = await page.evaluate(() => ({
        tokens: document.querySelectorAll('[data-testid=token]').length,
        counts: [...document.querySelectorAll('[data-testid=legend] .count')].map((count) => Number(count.textContent)),
      }));
      expect(moment.counts.reduce((sum, count) => sum + count)).toBe(moment.tokens);
    }
    await ended(page);
  });

  it('shows live figures while it is written, and why and how it ended after', async () => {
    const page = await hunch.open({ speed: 4, preferences: allFigures });
    await ask(page);
    await writing(page);
    const live = await page.getByTestId('figures').textContent();
    expect(live).toMatch(/[\d.]+ tok\/s.*\d+% accepted.*[\d.]+ tokens per pass.*\d+ rounds/s);
    expect(await page.getByTestId('stats').count()).toBe(0);
    await page.keyboard.press('Escape');
    await ended(page);
    const stats = await page.getByTestId('stats').textContent();
    expect(stats).toMatch(/Stopped by you.*first token .* ms.*prompt [\d.]+ tok\/s.*measured/s);
  });

  it.each([1000, 1600])('has one line of figures at %i pixels, and more on demand, also in the next answer', async (width) => {
    const page = await hunch.answered({ replay: 'fixture-answer,fixture-story', width });
    const more = page.getByTestId('more-figures');
    const lineHeight = 20;
    expect((await page.getByTestId('stats').boundingBox())?.height).toBe(lineHeight);
    expect(await page.getByTestId('all-figures').count()).toBe(0);
    await more.click();
    expect(await more.getAttribute('aria-expanded')).toBe('true');
    expect(await page.getByTestId('all-figures').innerText()).toMatch(/Ended by the model.*first token.*total.*seed.*by .+/s);
    expect(await violations(page)).toEqual([]);
    await ask(page);
    await page.getByTestId('stats').nth(1).waitFor();
    expect(await page.getByTestId('all-figures').count()).toBe(2);
    expect(await calls(page, 'set_preference')).toContainEqual({ key: 'all_figures', value: true });
    await more.last().click();
    // The other answer does not move.
    expect(await page.getByTestId('all-figures').count()).toBe(1);
  });

  it('says which models and which method wrote it', async () => {
    const page = await hunch.answered({ replay: 'fixture-ngram,fixture-plain', preferences: allFigures });
    expect(await page.getByTestId('by').innerText()).toMatch(/^by .+, N-gram$/);
    await ask(page);
    await page.getByTestId('stats').nth(1).waitFor();
    const writers = await page.getByTestId('by').allInnerTexts();
    expect(writers[1]).toMatch(/^by .+, Plain$/);
    // Reopened, it still says so.
    await page.keyboard.press('Control+n');
    await page.getByTestId('conversation-entry').getByRole('button').first().click();
    await page.getByTestId('stats').nth(1).waitFor();
    expect(await page.getByTestId('by').allInnerTexts()).toEqual(writers);
  });

  it('counts only plain tokens in a plain answer, and claims no acceptance', async () => {
    const page = await hunch.answered({ replay: 'fixture-plain' });
    const { counts, total } = await legend(page);
    expect(counts).toEqual({ accepted: 0, resampled: 0, bonus: 0, plain: total });
    expect(await page.getByTestId('figures').textContent()).not.toContain('accepted');
  });

  it('dims the other origins when a legend entry is pressed, and none when pressed again', async () => {
    const page = await hunch.answered({ replay: 'fixture-story' });
    const dimmed = () =>
      page.evaluate(() =>
        [...document.querySelectorAll('[data-testid=token]')]
          .filter((token) => Number(getComputedStyle(token).opacity) < 1)
          .map((token) => token.getAttribute('data-origin')),
      );
    await page.locator('[data-legend=bonus]').click();
    const shown = await tokensShown(page);
    const bonus = await page.locator('[data-testid=token][data-origin=bonus]').count();
    expect(await dimmed()).toHaveLength(shown - bonus);
    expect(await dimmed()).not.toContain('bonus');
    expect(await page.locator('[data-legend=bonus]').getAttribute('aria-pressed')).toBe('true');
    await page.locator('[data-legend=bonus]').click();
    expect(await dimmed()).toEqual([]);
  });

  it('is complete when messages are lost, the last one included', async () => {
    const page = await hunch.answered({ replay: 'fixture-ngram', lose: [3, 4, 11, 29, 30, 31, 32, 33] });
    const lossy = { text: await page.getByTestId('answer').textContent(), ...(await legend(page)) };
    const whole = await hunch.answered({ replay: 'fixture-ngram' });
    expect(lossy).toEqual({ text: await whole.getByTestId('answer').textContent(), ...(await legend(whole)) });
    expect((await calls(page, 'generation_snapshot')).length).toBeGreaterThan(0);
    expect(await calls(whole, 'generation_snapshot')).toEqual([]);
  });
});

describe('the card over a token', () => {
  it('shows what decided the token under the pointer', async () => {
    const page = await hunch.answered({ replay: 'fixture-story' });
    await page.locator('[data-testid=token][data-origin=resampled]').nth(3).hover();
    const card = page.getByTestId('token-card');
    await card.waitFor();
    const text = (await card.innerText()).replace(/\s+/g, ' ');
    expect(text).toMatch(
      /id \d+ resampled The draft guessed wrong.* p, after filters [\d.]+ before filters [\d.]+ q not drafted entropy [\d.]+ bits round \d+ position \d+ of 4/,
    );
    expect(text).toMatch(/Rejected here \S+ p 0\.\d+ q 0\.\d+ u 0\.\d+/);
    const struck = await card
      .locator('s')
      .first()
      .evaluate((element) => getComputedStyle(element).textDecorationLine);
    expect(struck).toBe('line-through');
    const box = await card.boundingBox();
    // Below the title bar, and not over the token.
    expect(box && box.x >= 0 && box.y >= 52 && box.x + box.width <= 900 && box.y + box.height <= 700).toBe(true);
    await page.mouse.move(5, 400);
    await card.waitFor({ state: 'detached' });
  });

  it('stays away once another screen is shown, whatever scrolls there', async () => {
    const page = await hunch.answered({ replay: 'fixture-story' });
    // Without a pointer over the token, nothing says that it was left.
    const press = (selector: string) => page.evaluate((pressed) => document.querySelector<HTMLElement>(pressed)?.click(), selector);
    await press('[data-testid=token][data-origin=resampled]');
    await page.getByTestId('token-card').waitFor();
    await press('[data-testid=place-lab]');
    await page.getByTestId('lab-resampling').waitFor();
    await page.evaluate(() => window.dispatchEvent(new Event('scroll')));
    await page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));
    expect(await page.getByTestId('token-card').count()).toBe(0);
  });

  it('counts rounds and positions from 1', async () => {
    const page = await hunch.answered({ replay: 'fixture-story' });
    const card = async (selector: string) => {
      await page.locator(`[data-testid=token]${selector}`).first().hover();
      return (await page.getByTestId('token-card').innerText()).replace(/\s+/g, ' ');
    };
    expect(await card('')).toMatch(/round 1 position 1 of 4/);
    await page.mouse.move(5, 400);
    await page.getByTestId('token-card').waitFor({ state: 'detached' });
    expect(await card('[data-origin=bonus]')).toMatch(/position 5 after 4/);
  });

  it('shows q of an accepted token, and "certain" where the draft left nothing to chance', async () => {
    const sampled = await hunch.answered({ replay: 'fixture-story' });
    await sampled.locator('[data-testid=token][data-origin=accepted]').first().hover();
    expect(await sampled.getByTestId('token-card').innerText()).toMatch(/q\s+(0\.\d{3}|1)/);
    const certain = await hunch.answered({ replay: 'fixture-ngram' });
    await certain.locator('[data-testid=token][data-origin=accepted]').first().hover();
    expect(await certain.getByTestId('token-card').innerText()).toMatch(/q\s+certain/);
  });

  it('says why a draft was accepted and why another one was rejected, with the numbers that decided', async () => {
    const page = await hunch.answered({ replay: 'fixture-story' });
    const tokens = record(plans['fixture-story']!).flatMap(({ events }) => events);
    const accepted = tokens.flatMap((event) => (event.type === 'round' ? event.tokens : [])).find(({ origin }) => origin === 'accepted');
    const three = (value: number | null) => (value! >= 0.9995 ? '1' : value!.toFixed(3));
    await page.locator('[data-testid=token][data-origin=accepted]').first().hover();
    expect(await page.getByTestId('accepted-because').innerText()).toBe(
      `u ${three(accepted!.u)} < min(1, p/q) = ${three(accepted!.threshold)}: accepted`,
    );
    const fallen = tokens.find((event) => event.type === 'round' && event.rejected.length > 0);
    const { p, q, u } = (fallen as RoundEvent).rejected[0]!;
    await page.mouse.move(5, 400);
    await page.locator('[data-testid=token][data-origin=resampled]').first().hover();
    expect(await page.getByTestId('rejected-because').innerText()).toBe(
      `u ${three(u)} ≥ min(1, p/q) = ${three(Math.min(1, p / q!))}: rejected`,
    );
    expect(await page.getByTestId('accepted-because').count()).toBe(0);
  });

  it('follows the keyboard: one tab stop, arrows, Home, End, lines', async () => {
    const page = await hunch.answered({ preferences: { view: 'tokens' }, replay: 'fixture-story' });
    expect(await page.locator('[data-token][tabindex="0"]').count()).toBe(1);
    await page.getByTestId('edit').focus();
    await page.keyboard.press('Tab');
    const focused = () => page.evaluate(() => Number(document.activeElement?.getAttribute('data-token') ?? -1));
    expect(await focused()).toBe(0);
    await page.getByTestId('token-card').waitFor();
    await page.keyboard.press('ArrowRight');
    await page.keyboard.press('ArrowRight');
    expect(await focused()).toBe(2);
    expect(await page.evaluate(() => document.activeElement?.getAttribute('aria-describedby'))).toBe('token-card');
    const top = () => page.evaluate(() => document.activeElement?.getBoundingClientRect().top ?? 0);
    const first = await top();
    await page.keyboard.press('ArrowDown');
    expect(await top()).toBeGreaterThan(first + 10);
    await page.keyboard.press('ArrowUp');
    expect(Math.abs((await top()) - first)).toBeLessThan(4);
    await page.keyboard.press('End');
    expect(await focused()).toBe((await tokensShown(page)) + 1 - 1);
    await page.keyboard.press('Home');
    expect(await focused()).toBe(0);
    await page.keyboard.press('ArrowLeft');
    expect(await focused()).toBe(0);
    expect(await page.locator('[data-token][tabindex="0"]').count()).toBe(1);
    await page.keyboard.press('Tab');
    expect(await focused()).toBe(-1);
    await page.getByTestId('token-card').waitFor({ state: 'detached' });
  });
});

describe('stopping', () => {
  it.each(['escape', 'stop-button'] as const)('by %s calls the engine in the same task', async (act) => {
    const page = await hunch.open({ speed: 2 });
    await ask(page);
    await writing(page);
    expect(await callsDuring(page, 'stop_generation', act)).toEqual([0, 1]);
    await ended(page);
    expect(await page.getByTestId('stats').getAttribute('data-stop')).toBe('cancelled');
    const { total } = await legend(page);
    expect(total).toBe(await tokensShown(page));
    await page.getByTestId('send').waitFor();
    await expect.poll(() => page.evaluate(() => document.activeElement?.getAttribute('data-testid'))).toBe('prompt');
  });

  it('does not happen when Escape only closes a menu', async () => {
    const page = await hunch.open({ speed: 2 });
    await ask(page);
    await writing(page);
    await page.getByTestId('method').click();
    await page.getByTestId('method-plain').waitFor();
    await page.keyboard.press('Escape');
    await page.getByTestId('method-plain').waitFor({ state: 'detached' });
    expect(await calls(page, 'stop_generation')).toEqual([]);
    await page.keyboard.press('Escape');
    await ended(page);
    expect(await calls(page, 'stop_generation')).toHaveLength(1);
  });
});

describe('typing', () => {
  it('sends with Enter, breaks the line with Shift+Enter, and waits for input methods', async () => {
    const page = await hunch.open({ replay: 'fixture-plain' });
    const prompt = page.getByTestId('prompt');
    await prompt.fill('one');
    await prompt.press('Shift+Enter');
    await page.keyboard.type('two');
    expect(await prompt.inputValue()).toBe('one\ntwo');
    await prompt.dispatchEvent('keydown', { key: 'Enter', isComposing: true });
    expect(await calls(page, 'answer')).toEqual([]);
    await prompt.press('Enter');
    await ended(page);
    expect(await prompt.inputValue()).toBe('');
    expect(await page.getByTestId('question').innerText()).toBe('one\ntwo');
  });

  it('sends no blank question, and none while an answer is written', async () => {
    const page = await hunch.open({ speed: 2 });
    await ask(page, '   ');
    expect(await calls(page, 'answer')).toEqual([]);
    await ask(page, 'first');
    await writing(page);
    await ask(page, 'second');
    expect(await calls(page, 'answer')).toHaveLength(1);
    expect(await page.getByTestId('prompt').inputValue()).toBe('second');
  });

  it('sends the whole conversation, and starts a new one with Ctrl+N', async () => {
    const page = await hunch.open({ replay: 'fixture-plain,fixture-ngram' });
    await ask(page, 'one');
    await ended(page);
    await ask(page, 'two');
    await page.getByTestId('stats').nth(1).waitFor();
    const requests = (await calls(page, 'answer')).map((args) => args['request'] as AnswerRequest);
    expect(requests.map(({ conversation }) => conversation)).toEqual([null, 1]);
    // The first question is message 2, its answer 3.
    expect(requests[1]?.asking).toEqual({ kind: 'question', parent: 3, text: 'two' });
    await page.getByTestId('prompt').fill('half typed');
    await page.keyboard.press('Control+n');
    await page.getByTestId('empty').waitFor();
    expect(await page.getByTestId('turn').count()).toBe(0);
    // A draft stays in its conversation.
    expect(await page.getByTestId('prompt').inputValue()).toBe('');
    await page.getByTestId('conversation-entry').getByRole('button').first().click();
    await page.getByTestId('turn').first().waitFor();
    expect(await page.getByTestId('prompt').inputValue()).toBe('half typed');
  });

  it('is saved after a moment and restored on restart', async () => {
    const page = await hunch.open({ preferences: { drafts: { new: 'from last time' } } });
    expect(await page.getByTestId('prompt').inputValue()).toBe('from last time');
    await page.getByTestId('prompt').fill('and some more');
    await expect.poll(() => calls(page, 'set_preference')).toContainEqual({ key: 'drafts', value: { new: 'and some more' } });
    await page.getByTestId('prompt').press('Enter');
    await ended(page);
    await expect.poll(async () => (await calls(page, 'set_preference')).at(-1)).toEqual({ key: 'drafts', value: {} });
  });

  it('begins a new conversation from the native menu', async () => {
    const page = await hunch.answered({ replay: 'fixture-plain' });
    await page.evaluate(() => window.hunchReplay?.menu('new-conversation'));
    await page.getByTestId('empty').waitFor();
  });

  it('asks an example when it is pressed', async () => {
    const page = await hunch.open();
    const example = page.getByTestId('example').first();
    const text = await example.innerText();
    await example.click();
    await ended(page);
    expect(await page.getByTestId('question').innerText()).toBe(text);
  });
});

describe('an error', () => {
  it('shows a card with message and code, and puts the question back into the composer', async () => {
    const page = await hunch.open({ replay: 'fixture-refused,fixture-plain' });
    await ask(page, 'a long prompt');
    const card = page.getByTestId('error');
    await card.waitFor();
    expect(await card.getAttribute('data-code')).toBe('context_overflow');
    expect(await card.innerText()).toContain('The prompt has 9,120 tokens, but the context holds 8,192.');
    expect(await card.innerText()).toContain('context_overflow');
    expect(await page.getByTestId('prompt').inputValue()).toBe('a long prompt');
    await page.getByTestId('retry').click();
    await ended(page);
    expect(await card.count()).toBe(0);
    expect(await page.getByTestId('turn').count()).toBe(1);
    expect(await page.getByTestId('prompt').inputValue()).toBe('');
  });

  it('keeps a refused question in place until dismissed when another draft was typed', async () => {
    const page = await hunch.open({ replay: 'fixture-refused,fixture-plain', preferences: { drafts: { new: 'half typed' } } });
    await page.getByTestId('example').first().click();
    await page.getByTestId('error').waitFor();
    const lost = await page.getByTestId('question').innerText();
    expect(await page.getByTestId('prompt').inputValue()).toBe('half typed');
    await page.getByTestId('prompt').press('Enter');
    await ended(page);
    expect(await page.getByTestId('question').allInnerTexts()).toEqual([lost, 'half typed']);
    await page.getByTestId('dismiss').click();
    await page.getByTestId('error').waitFor({ state: 'detached' });
    expect(await page.getByTestId('question').allInnerTexts()).toEqual(['half typed']);
  });

  it('leaves the editor of a question open with its text', async () => {
    const page = await hunch.open({ replay: 'fixture-plain,fixture-refused,fixture-plain' });
    await ask(page, 'one');
    await ended(page);
    await page.getByTestId('edit').click();
    await page.getByTestId('edit-question').fill('in other words');
    await page.keyboard.press('Enter');
    await page.getByTestId('error').waitFor();
    expect(await page.getByTestId('edit-question').inputValue()).toBe('in other words');
    await page.getByTestId('resend').click();
    await page.getByTestId('question-branches').waitFor();
    await ended(page);
    expect(await page.getByTestId('question').innerText()).toBe('in other words');
    expect(await page.getByTestId('error').count()).toBe(0);
  });

  it('explains why nothing is drafted without one', async () => {
    const recording = oneRound({ method: 'ngram', max_draft: 'auto' }, 'Slow', { depth: { parked: true, gains: [0.9, 0.75] } });
    const page = await hunch.open({ replay: 'parked', recordings: { parked: recording } });
    await ask(page);
    await page.getByText('parked: plain is faster here').waitFor();
    expect(await page.getByTestId('parked').getAttribute('title')).toContain('1: 0.90×, 2: 0.75×');
  });

  it('halfway through keeps the text so far', async () => {
    const error = { code: 'device', message: 'The metal device failed: out of heap. Try again.' };
    const page = await hunch.open({ replay: 'broken', recordings: { broken: oneRound({}, 'Half', {}, { type: 'failed', error }) } });
    await ask(page);
    await page.getByTestId('error').waitFor();
    expect(await page.getByTestId('answer').textContent()).toBe('Half');
    expect((await legend(page)).total).toBe(1);
    await page.getByTestId('send').waitFor();
  });

  it('is never drawn as markup, nor is an answer', async () => {
    const text = '<img src=x onerror="document.title=1"><b>bold</b>';
    const failed = { type: 'failed', error: { code: 'internal', message: text } };
    const page = await hunch.open({ replay: 'markup', recordings: { markup: oneRound({}, text, {}, failed) } });
    await ask(page, text);
    await page.getByTestId('error').waitFor();
    expect(await page.getByTestId('answer').textContent()).toBe(text);
    expect(await page.locator('main img, main b:has-text("bold")').count()).toBe(0);
  });
});

const streams = new URL('../streams/', import.meta.url);
const recorded = existsSync(streams) ? readdirSync(streams).filter((name) => name.endsWith('.jsonl')) : [];
const everyRecording = [...recorded, 'fixture-answer.jsonl'].map((name) => name.replace(/\.jsonl$/, ''));

describe('recordings', () => {
  it.each(everyRecording)('%s plays to its end with exact counts in the legend', async (name) => {
    const page = await hunch.open({ replay: name });
    await ask(page);
    await page.locator('[data-testid=stats], [data-testid=error]').first().waitFor();
    if ((await page.getByTestId('legend').count()) === 0) return;
    const { counts, total } = await legend(page);
    expect(Object.values(counts).reduce((sum, count) => sum + count)).toBe(total);
    expect(await tokensShown(page)).toBeLessThanOrEqual(total);
  });
});
