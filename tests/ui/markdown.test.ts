// A formatted answer in the built window: its structure, its tokens, and that it can do no harm.

import { readFileSync } from 'node:fs';
import type { Page } from 'playwright-core';
import { describe, expect, it } from 'vitest';
import { parseRecording } from './replay/recording';
import type { TokenEvent } from '../../ui/src/lib/ipc/schema.gen';
import { plans } from './fixtures/plans';
import { ask, calls, ended, legend, useWindow, type Opening } from './harness';

const hunch = useWindow();

const python = `def merge(left, right):
    # One pass is enough.
    return sorted(left + right)`;
const rust = `fn merge(left: &[u32]) -> Vec<u32> {
    left.to_vec()
}`;

/** Tokens of a recording, in order. */
function recorded(name: string): TokenEvent[] {
  const { messages } = parseRecording(readFileSync(new URL(`./fixtures/${name}.jsonl`, import.meta.url), 'utf8'));
  return messages
    .flatMap(({ events }) => events)
    .flatMap((event) => (event.type === 'round' || event.type === 'finished' ? event.tokens : []));
}

async function answered(replay: string, opening: Opening = {}): Promise<Page> {
  const page = await hunch.open({ replay, ...opening });
  await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
  await ask(page);
  await ended(page);
  return page;
}

const clipboard = (page: Page) => page.evaluate(() => navigator.clipboard.readText());

describe('a formatted answer', () => {
  it('has the structure of the Markdown', async () => {
    const page = await answered('fixture-markdown');
    const answer = page.getByTestId('answer');
    const texts = (selector: string) => answer.locator(selector).allInnerTexts();
    expect(await texts('.heading')).toEqual(['Merging sorted lists']);
    expect(await texts('.heading strong')).toEqual(['sorted']);
    expect(await texts('em')).toEqual(['rest']);
    expect(await texts(':not(pre) > code')).toEqual(['merge']);
    expect(await texts('ol > li')).toEqual(['Compare the heads', 'Take one']);
    expect(await texts('ul > li')).toEqual(['Python', 'Rust', 'neither']);
    expect(await answer.locator('li.task input').evaluateAll((all) => all.map((box) => (box as HTMLInputElement).checked))).toEqual([
      true,
      false,
    ]);
    expect(await texts('thead th')).toEqual(['List', 'Time', 'Stable']);
    expect(await texts('tbody td')).toEqual(['left', '4', 'yes', 'right', '12', 'no']);
    const aligned = await answer
      .locator('tbody tr')
      .first()
      .locator('td')
      .evaluateAll((all) => all.map((cell) => getComputedStyle(cell).textAlign));
    expect(aligned).toEqual(['left', 'right', 'center']);
    expect(await answer.getByTestId('code').locator('.head > span').allInnerTexts()).toEqual(['python', 'rust']);
    expect(await answer.locator('pre').allTextContents()).toEqual([`${python}\n`, `${rust}\n`]);
    expect(await texts('blockquote')).toEqual(['Equal elements keep their order.']);
    // Code is coloured.
    expect(await answer.locator('[class^=code-]').count()).toBeGreaterThan(4);
  });

  it('keeps its tokens in that structure, each with its marks', async () => {
    const page = await answered('fixture-markdown');
    const events = recorded('fixture-markdown');
    const shown = await page
      .getByTestId('answer')
      .locator('[data-token]')
      .evaluateAll((all) =>
        all.map((token) => ({
          index: Number(token.getAttribute('data-token')),
          origin: token.getAttribute('data-origin'),
          first: token.getAttribute('data-testid') === 'token',
          text: token.getAttribute('role') === 'math' ? null : token.textContent,
        })),
      );
    expect(shown.length).toBeGreaterThan(150);
    for (const { index, origin, text } of shown) {
      expect(origin, `token ${index}`).toBe(events[index]?.origin);
      if (text !== null) expect(events[index]?.text, `token ${index}`).toContain(text);
    }
    // In order, and each started once.
    expect(shown.map(({ index }) => index)).toEqual(shown.map(({ index }) => index).sort((a, b) => a - b));
    const begun = shown.filter(({ first }) => first).map(({ index }) => index);
    expect(new Set(begun).size).toBe(begun.length);
    expect(new Set(shown.map(({ index }) => index)).size).toBe(begun.length);
    for (const place of ['.heading strong', 'li', 'td', 'pre > code', 'blockquote', '[data-testid=link]'])
      expect(await page.locator(`[data-testid=answer] ${place} [data-token]`).count(), place).toBeGreaterThan(0);
    // Tokens that only format are counted too.
    const { counts, total } = await legend(page);
    expect(total).toBe(events.length);
    for (const origin of ['accepted', 'resampled', 'bonus', 'plain'] as const)
      expect(counts[origin], origin).toBe(events.filter((event) => event.origin === origin).length);
    expect(begun.length).toBeLessThan(total);
  });

  it('makes no request and has no element that could', async () => {
    const page = await answered('fixture-markdown');
    const before = await page.title();
    expect(await page.locator('main').locator('script, img, iframe, object, a[href], [onclick], [onerror], [src]').count()).toBe(0);
    const text = (await page.getByTestId('answer').textContent()) ?? '';
    expect(text).toContain('<script>document.title = "script"</script>');
    expect(text).toContain('<img src="https://example.org/x.png" onerror="document.title = \'image\'">');
    expect(text).toContain('<b onclick="alert(1)">in</b>');
    expect(await page.title()).toBe(before);
    expect(['script', 'image']).not.toContain(before);
    const origins = await page.evaluate(() => performance.getEntriesByType('resource').map(({ name }) => new URL(name).origin));
    expect(new Set(origins)).toEqual(new Set([await page.evaluate(() => location.origin)]));
  });

  it('asks before it opens a link', async () => {
    const page = await answered('fixture-markdown');
    const link = page.getByTestId('link').first();
    const question = page.getByTestId('link-question');
    const address = 'https://example.org/manual?a=1&b=2';
    expect(await link.innerText()).toBe('the manual');
    await link.click();
    await question.waitFor();
    expect(await question.innerText()).toContain(address);
    await page.keyboard.press('Escape');
    await question.waitFor({ state: 'detached' });
    await link.focus();
    await page.keyboard.press('Enter');
    await question.getByRole('button', { name: 'Cancel' }).click();
    await question.waitFor({ state: 'detached' });
    expect(await calls(page, 'open_link')).toEqual([]);
    // Declining changes nothing.
    await expect.poll(() => link.evaluate((element) => element === document.activeElement)).toBe(true);
    await page.keyboard.press('Enter');
    await page.getByTestId('copy-link').click();
    await question.waitFor({ state: 'detached' });
    expect([await clipboard(page), await calls(page, 'open_link')]).toEqual([address, []]);
    await link.click();
    await page.getByTestId('open-link').click();
    await question.waitFor({ state: 'detached' });
    expect(await calls(page, 'open_link')).toEqual([{ href: address }]);
  });

  it('shows either the card or the question when a link is pressed', async () => {
    const page = await answered('fixture-markdown');
    await page.getByTestId('link').first().click();
    await page.getByTestId('link-question').waitFor();
    expect(await page.locator('[data-testid=token-card][data-pinned=true]').count()).toBe(0);
  });

  it('copies only the code of a block', async () => {
    const page = await answered('fixture-markdown');
    for (const [at, code] of [python, rust].entries()) {
      const button = page.getByTestId('copy-code').nth(at);
      await button.click();
      await expect.poll(() => button.innerText()).toBe('Copied');
      expect(await clipboard(page)).toBe(code);
    }
    await page.evaluate(() => (navigator.clipboard.writeText = () => Promise.reject(new Error('Denied.'))));
    const button = page.getByTestId('copy-code').first();
    await button.click();
    await expect.poll(() => button.innerText()).toBe('Couldn’t copy');
  });

  it('draws formulas', async () => {
    const page = await answered('fixture-markdown');
    await page.locator('[role=math] .katex').nth(1).waitFor();
    const formulas = page.locator('[data-testid=answer] [role=math]');
    expect(await formulas.evaluateAll((all) => all.map((one) => one.getAttribute('aria-label')?.trim()))).toEqual([
      'O(n + m)',
      '\\sum_{i=1}^{n} i = \\frac{n(n+1)}{2}',
    ]);
    // KaTeX's inline styles are applied. Without them nothing is raised or lowered.
    const raised = await formulas
      .nth(1)
      .locator('.vlist > span')
      .evaluateAll((all) => all.filter((span) => (span as HTMLElement).style.top !== '').length);
    expect(raised).toBeGreaterThan(3);
    expect((await formulas.nth(1).boundingBox())?.height).toBeGreaterThan(40);
    const loaded = () =>
      page.evaluate(() => [...document.fonts].filter((font) => font.family.startsWith('KaTeX') && font.status === 'loaded').length);
    await expect.poll(loaded).toBeGreaterThan(0);
  });

  it('is copied as readable text', async () => {
    const page = await answered('fixture-markdown');
    await page.locator('[role=math] .katex').nth(1).waitFor();
    const selected = await page.evaluate(() => {
      const answer = document.querySelector('[data-testid=answer]') as Element;
      getSelection()?.selectAllChildren(answer);
      return getSelection()?.toString() ?? '';
    });
    expect(selected).toContain('Merging sorted lists\n');
    expect(selected).toContain(
      'Take the smaller head each time; the rest follows. Call merge, see the manual, and mind the picture a diagram.',
    );
    expect(selected).toContain('Compare the heads\nTake one');
    expect(selected).toMatch(/left\s+4\s+yes\s+right\s+12\s+no/);
    expect(selected).toContain(`${python}\n`);
    expect(selected).toContain(rust);
    expect(selected).toContain('Equal elements keep their order.');
    // Labels and buttons of the window are not copied.
    expect(selected).not.toMatch(/\bCopy\b|python\n|rust\n/);
  });

  it('shows every token verbatim when boxed', async () => {
    const page = await answered('fixture-markdown');
    const events = recorded('fixture-markdown');
    await page.getByTestId('boxed').click();
    expect(await page.getByTestId('boxed').getAttribute('aria-pressed')).toBe('true');
    const shown = page.getByTestId('answer').getByTestId('token');
    await expect.poll(() => shown.count()).toBe(events.filter(({ text }) => text !== '').length);
    expect(await shown.evaluateAll((all) => all.map((token) => token.getAttribute('data-origin')))).toEqual(
      events.filter(({ text }) => text !== '').map(({ origin }) => origin),
    );
    const text = await page.getByTestId('answer').evaluate((answer) => {
      const copy = answer.cloneNode(true) as Element;
      for (const mark of copy.querySelectorAll('[aria-hidden=true]')) mark.remove();
      return copy.textContent;
    });
    expect(text).toBe(plans['fixture-markdown']?.text);
    // Each token has a frame.
    expect(await shown.first().evaluate((token) => getComputedStyle(token).boxShadow)).toContain('inset');
    await page.getByTestId('boxed').click();
    await page.getByTestId('answer').locator('table').waitFor();
  });
});

describe('a thought', () => {
  it('is folded, opens by keyboard, and its tokens have cards', async () => {
    const page = await answered('fixture-thought');
    const thought = page.getByTestId('thought');
    expect(await thought.evaluate((details) => (details as HTMLDetailsElement).open)).toBe(false);
    expect(await thought.locator('.token').first().isVisible()).toBe(false);
    expect(await page.getByTestId('answer').innerText()).toBe('Compare the heads and take the smaller one.');
    expect((await thought.textContent()) ?? '').not.toMatch(/<\/?think>/);
    await page.getByTestId('edit').focus();
    await page.keyboard.press('Tab');
    await page.keyboard.press('Enter');
    await expect.poll(() => thought.locator('strong').innerText()).toBe('one');
    await page.keyboard.press('Tab');
    await page.getByTestId('token-card').waitFor();
    expect(await page.evaluate(() => document.activeElement?.closest('[data-testid=thought]') !== null)).toBe(true);
    // Its tokens are counted.
    expect((await legend(page)).total).toBe(recorded('fixture-thought').length);
  });

  it('is not copied with the answer', async () => {
    const page = await answered('fixture-thought');
    await page.getByTestId('copy-answer').click();
    await page.getByText('Copied').waitFor();
    expect(await clipboard(page)).toBe('Compare the heads and take the smaller one.');
  });

  it('says that it continues while it does', async () => {
    const page = await hunch.open({ replay: 'fixture-thought', speed: 1 });
    await ask(page);
    await page.getByTestId('thought').getByText('Thinking', { exact: true }).waitFor();
    await ended(page);
    await page.getByTestId('thought').getByText('Thoughts').waitFor();
  });
});
