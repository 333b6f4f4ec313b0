// Conversations in the sidebar: saved, found, renamed, pinned, deleted and restored, branched.

import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import emptyApp from './fixtures/fixture-app-empty.json';
import recordedApp from './fixtures/fixture-app.json';
import { ask, calls, ended, legend, useWindow } from './harness';
import { violations } from './violations';

const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });

const hunch = useWindow();

const titles = 'conversation-entry';

describe('the list of conversations', () => {
  it('lists questions newest first, and reopens one with its colours', async () => {
    const page = await hunch.open({ replay: 'fixture-ngram,fixture-story' });
    expect(await page.getByTestId('sidebar').innerText()).toContain('Your conversations appear here');
    await ask(page, 'Merge two lists');
    await ended(page);
    const before = await legend(page);
    const text = await page.getByTestId('answer').textContent();
    await page.keyboard.press('Control+n');
    await ask(page, 'A lighthouse');
    await ended(page);
    await page.waitForFunction((id) => document.querySelectorAll(`[data-testid=${id}]`).length === 2, titles);
    expect(await page.getByTestId(titles).allInnerTexts()).toEqual(['A lighthouse', 'Merge two lists']);
    await page.getByTestId(titles).nth(1).getByRole('button').first().click();
    await page.getByText('Merge two lists').nth(1).waitFor();
    await ended(page);
    expect(await page.getByTestId('answer').textContent()).toBe(text);
    expect(await legend(page)).toEqual(before);
    expect(await page.getByTestId(titles).nth(1).getByRole('button').first().getAttribute('aria-current')).toBe('page');
  });

  it('searches with Ctrl+F and opens a hit', async () => {
    const page = await hunch.open({ replay: 'fixture-story' });
    await ask(page, 'A lighthouse in a storm');
    await ended(page);
    await page.keyboard.press('Control+n');
    await page.keyboard.press('Control+f');
    await page.keyboard.type('lighthouse');
    await page.getByTestId('hit').first().waitFor();
    expect(await page.getByTestId('hits').locator('mark').first().innerText()).toBe('lighthouse');
    await page.getByTestId('hit').nth(1).click();
    await page.getByTestId('turn').waitFor();
    await page.getByTestId('search').focus();
    await page.keyboard.type(' xyzzy');
    await page.getByText('No results').waitFor();
    await page.keyboard.press('Escape');
    await page.getByTestId(titles).waitFor();
  });

  it('has one menu, which returns the focus to the button of its row', async () => {
    const page = await hunch.open({ replay: 'fixture-plain' });
    for (const title of ['first', 'second']) {
      await page.keyboard.press('Control+n');
      await ask(page, title);
      await ended(page);
    }
    const buttons = page.getByTestId('entry-menu');
    const menu = page.getByRole('menu');
    const expanded = () => buttons.evaluateAll((all) => all.map((button) => button.getAttribute('aria-expanded')));
    const focused = () => buttons.evaluateAll((all) => all.indexOf(document.activeElement as HTMLElement));
    await expect.poll(() => buttons.count()).toBe(2);
    await buttons.last().focus();
    await page.keyboard.press('ArrowDown');
    await menu.waitFor();
    expect(await expanded()).toEqual(['false', 'true']);
    await expect.poll(() => page.evaluate(() => document.activeElement?.getAttribute('data-testid'))).toBe('menu-rename');
    await page.keyboard.press('Escape');
    await menu.waitFor({ state: 'detached' });
    await expect.poll(focused).toBe(1);
    await page.keyboard.press('Enter');
    await menu.waitFor();
    await page.keyboard.press('Tab');
    await menu.waitFor({ state: 'detached' });
    await expect.poll(focused).toBe(1);
    // While the menu is open, a press anywhere else only closes it.
    const press = async (at: number) => {
      const box = await buttons.nth(at).boundingBox();
      await page.mouse.click((box?.x ?? 0) + 12, (box?.y ?? 0) + 12);
    };
    await press(1);
    await menu.waitFor();
    expect(await expanded()).toEqual(['false', 'true']);
    await press(1);
    await menu.waitFor({ state: 'detached' });
    await press(1);
    await menu.waitFor();
    await press(0);
    await menu.waitFor({ state: 'detached' });
    await press(0);
    await menu.waitFor();
    expect(await expanded()).toEqual(['true', 'false']);
  });

  it('renames, pins, saves, deletes and undoes', async () => {
    const page = await hunch.open({ replay: 'fixture-plain' });
    for (const title of ['first', 'second']) {
      await page.keyboard.press('Control+n');
      await ask(page, title);
      await ended(page);
    }
    const first = page.getByTestId(titles).filter({ hasText: 'first' });
    const choose = async (item: string) => {
      await page.getByTestId(titles).last().getByTestId('entry-menu').click();
      await page.getByTestId(item).click();
    };
    await first.waitFor();
    await choose('menu-rename');
    await page.getByTestId('rename').fill('Renamed');
    await page.getByTestId('rename').press('Enter');
    await page.getByTestId(titles).filter({ hasText: 'Renamed' }).waitFor();
    await choose('menu-json');
    await choose('menu-pin');
    await page.getByText('Pinned').waitFor();
    expect(await page.getByTestId(titles).allInnerTexts()).toEqual(['Renamed', 'second']);
    expect((await calls(page, 'export_conversation'))[0]).toMatchObject({ format: 'json', token: 1 });
    expect(await calls(page, 'choose_save_place')).toEqual([{ kind: 'json', name: 'Renamed.json' }]);
    // Deleting the open one shows an empty one. Undo reopens it.
    await choose('menu-delete');
    await page.getByTestId('empty').waitFor();
    expect(await page.getByTestId(titles).count()).toBe(1);
    await page.getByTestId('undo').click();
    await page.getByTestId('turn').waitFor();
    expect(await page.getByTestId(titles).count()).toBe(2);
    // Undo repeats, also from the keyboard. In a text field it undoes typing instead.
    await choose('menu-delete');
    await page.getByTestId(titles).nth(1).waitFor({ state: 'detached' });
    await choose('menu-delete');
    await page.getByTestId(titles).first().waitFor({ state: 'detached' });
    await page.getByTestId('prompt').focus();
    await page.keyboard.press('Control+z');
    expect(await calls(page, 'restore_conversation')).toHaveLength(1);
    await page.getByTestId('prompt').blur();
    await page.keyboard.press('Control+z');
    await page.getByTestId(titles).first().waitFor();
    expect(await page.getByTestId('deleted').innerText()).toContain('Deleted');
    await page.keyboard.press('Control+z');
    await page.getByTestId(titles).nth(1).waitFor();
    expect(await page.getByTestId('deleted').count()).toBe(0);
  });
});

describe('an answer that is left while it is written', () => {
  it('continues, is marked in the list, and is live when reopened', async () => {
    const page = await hunch.open({ replay: 'fixture-plain,fixture-story', speed: 1 });
    await ask(page, 'first');
    await page.getByTestId('stop').click();
    await ended(page);
    await page.keyboard.press('Control+n');
    await ask(page, 'A lighthouse');
    await page.getByTestId('token').nth(5).waitFor();
    const entry = (title: string) => page.getByTestId(titles).filter({ hasText: title });
    await entry('first').getByRole('button').first().click();
    await page.getByTestId('stats').waitFor();
    expect(await entry('A lighthouse').getByRole('button').first().innerText()).toContain('writing…');
    expect(await entry('first').getByTestId('writing').count()).toBe(0);
    // The composer says so. A question can be queued.
    expect(await page.getByTestId('elsewhere').innerText()).toContain('An answer is still being written in “A lighthouse”.');
    await page.getByTestId('prompt').fill('meanwhile');
    expect(await page.getByTestId('send').isEnabled()).toBe(true);
    expect(await violations(page)).toEqual([]);
    await page.screenshot({ path: `${output}chat-elsewhere.png` });
    await page.getByTestId('show-elsewhere').click();
    await page.getByTestId('stop').waitFor();
    const shown = await page.getByTestId('token').count();
    await page.waitForFunction((before) => document.querySelectorAll('[data-testid=token]').length > before, shown);
    expect(await calls(page, 'answer_events')).toHaveLength(1);
    await page.keyboard.press('Control+n');
    await page.getByTestId('elsewhere').waitFor();
    expect(await calls(page, 'stop_generation')).toHaveLength(1);
    await page.getByTestId('stop-elsewhere').click();
    await page.getByTestId('elsewhere').waitFor({ state: 'detached' });
    expect(await page.getByTestId('writing').count()).toBe(0);
    expect(await calls(page, 'stop_generation')).toHaveLength(2);
    await entry('first').getByRole('button').first().click();
    expect(await page.getByTestId('prompt').inputValue()).toBe('meanwhile');
  });
});

describe('Escape', () => {
  it('does not stop an answer that is out of sight: it closes the card and clears the filter', async () => {
    const page = await hunch.open({ replay: 'fixture-plain,fixture-story', speed: 0.5 });
    await ask(page, 'first');
    await page.getByTestId('token').nth(3).waitFor();
    await page.keyboard.press('Escape');
    await ended(page);
    await page.keyboard.press('Control+n');
    await ask(page, 'A lighthouse');
    await page.getByTestId('token').nth(5).waitFor();
    await page.getByTestId(titles).filter({ hasText: 'first' }).getByRole('button').first().click();
    await page.getByTestId('stats').waitFor();
    await page.getByTestId('token').nth(2).click();
    await page.locator('[data-testid=token-card][data-pinned=true]').waitFor();
    await page.keyboard.press('Escape');
    await page.locator('[data-testid=token-card][data-pinned=true]').waitFor({ state: 'detached' });
    const filter = page.locator('[data-legend=plain]');
    await filter.click();
    expect(await filter.getAttribute('aria-pressed')).toBe('true');
    await page.keyboard.press('Escape');
    await expect.poll(() => filter.getAttribute('aria-pressed')).toBe('false');
    await page.keyboard.press('Control+3');
    await page.keyboard.press('Escape');
    // The palette does not offer it either.
    const stop = page.getByTestId('palette').getByRole('option', { name: 'Stop' });
    await page.keyboard.press('Control+k');
    await page.keyboard.type('stop');
    expect(await stop.first().innerText()).not.toContain('Esc');
    await page.keyboard.press('Escape');
    await page.keyboard.press('Control+1');
    await page.getByTestId('show-elsewhere').click();
    await page.getByTestId('stop').waitFor();
    expect(await calls(page, 'stop_generation')).toHaveLength(1);
    await page.keyboard.press('Escape');
    await ended(page);
    expect(await calls(page, 'stop_generation')).toHaveLength(2);
  });
});

describe('what is kept of an answer', () => {
  it('can be fetched again without a model', async () => {
    const at = { created_ms: 0, state: 'complete', settings: null };
    const messages = [
      { ...at, id: 2, parent: null, role: 'user', content: 'asked' },
      { ...at, id: 3, parent: 2, role: 'assistant', content: 'As it was.' },
    ];
    const entry = { id: 1, title: 'Kept', pinned: false, created_ms: 0, updated_ms: 0 };
    const unreadable = { code: 'store', message: 'A record cannot be read.', params: { detail: 'a record cannot be read' } };
    const app = { ...emptyApp, conversations: [{ conversation: { entry, system: '', leaf: 3, messages }, events: { 3: unreadable } }] };
    const page = await hunch.open({ app: 'unread', apps: { unread: app } });
    await page.getByTestId(titles).getByRole('button').first().click();
    await page.getByTestId('error').waitFor();
    expect(await page.getByTestId('stored').innerText()).toBe('As it was.');
    expect(await page.getByTestId('regenerate').isDisabled()).toBe(true);
    await page.getByTestId('retry').click();
    await expect.poll(() => calls(page, 'answer_events')).toHaveLength(2);
    expect(await calls(page, 'answer')).toEqual([]);
  });

  it('is shown as text while its tokens are missing', async () => {
    const at = { created_ms: 0, state: 'complete' };
    const settings = { method: 'draft-model', target: 'Big', draft: 'Small' };
    const messages = [
      { ...at, id: 2, parent: null, role: 'user', content: 'asked', settings: null },
      { ...at, id: 3, parent: 2, role: 'assistant', content: 'From a file.', settings },
    ];
    const entry = { id: 1, title: 'Brought', pinned: false, created_ms: 0, updated_ms: 0 };
    const app = { ...recordedApp, conversations: [{ conversation: { entry, system: '', leaf: 3, messages }, events: {} }] };
    const page = await hunch.open({ app: 'brought', apps: { brought: app } });
    await page.getByTestId(titles).getByRole('button').first().click();
    await page.getByTestId('text-only').waitFor();
    expect(await page.getByTestId('stored').innerText()).toBe('From a file.');
    expect(await page.getByTestId('by').innerText()).toBe('by Big, Draft model Small');
    expect(await page.getByTestId('interrupted').count()).toBe(0);
    expect(await violations(page)).toEqual([]);
  });
});

describe('a turn', () => {
  it('is regenerated on a new branch, and the branches can be browsed', async () => {
    const page = await hunch.answered({ replay: 'fixture-plain,fixture-story' });
    const first = await page.getByTestId('answer').textContent();
    await page.getByTestId('regenerate').click();
    await page.getByTestId('answer-branches').waitFor();
    await ended(page);
    expect(await page.getByTestId('answer-branches').innerText()).toContain('2 / 2');
    expect(await page.getByTestId('answer').textContent()).not.toBe(first);
    await page.getByRole('button', { name: 'Previous answer' }).click();
    await page.getByText('1 / 2').waitFor();
    expect(await page.getByTestId('answer').textContent()).toBe(first);
    expect(await page.getByTestId('turn').count()).toBe(1);
  });

  it('is edited and sent with Enter, and Escape cancels the edit', async () => {
    const page = await hunch.open({ replay: 'fixture-plain' });
    await ask(page, 'one');
    await ended(page);
    await page.getByTestId('edit').click();
    await page.getByTestId('edit-question').fill('gone');
    await page.keyboard.press('Escape');
    expect(await page.getByTestId('question').innerText()).toBe('one');
    await page.getByTestId('edit').click();
    await page.getByTestId('edit-question').fill('uno');
    await page.keyboard.press('Enter');
    await page.getByTestId('question-branches').waitFor();
    expect(await page.getByTestId('question').innerText()).toBe('uno');
    expect((await calls(page, 'answer')).map((args) => (args['request'] as { asking: unknown }).asking)).toEqual([
      { kind: 'question', parent: null, text: 'one' },
      { kind: 'question', parent: null, text: 'uno' },
    ]);
  });

  it('branches from an alternative on the card', async () => {
    const page = await hunch.answered({ replay: 'fixture-plain,fixture-ngram' });
    const token = page.locator('[data-testid=token]').nth(4);
    await token.click();
    const card = page.getByTestId('token-card');
    expect(await card.getAttribute('data-pinned')).toBe('true');
    await expect.poll(() => card.evaluate((element) => element.contains(document.activeElement))).toBe(true);
    // Away from the token the card stays. Escape closes it and stops nothing.
    await page.mouse.move(5, 400);
    await card.waitFor();
    await page.keyboard.press('Escape');
    await page.locator('[data-testid=token-card][data-pinned=true]').waitFor({ state: 'detached' });
    expect(await calls(page, 'stop_generation')).toEqual([]);
    await token.click();
    const other = card.getByTestId('alternative').and(page.locator(':enabled')).first();
    const [id, word] = [Number(await other.getAttribute('data-id')), await other.locator('.word').innerText()];
    await other.press('Enter');
    await page.getByTestId('answer-branches').waitFor();
    await ended(page);
    expect((await calls(page, 'answer')).at(-1)?.['request']).toMatchObject({ asking: { kind: 'continue', tokens: 4, then: id } });
    const chosen = page.locator('[data-testid=token][data-origin=chosen]');
    expect((await chosen.innerText()).trim()).toBe(word.replace('·', ''));
    const { counts, total } = await legend(page);
    expect(counts['chosen']).toBe(1);
    expect(Object.values(counts).reduce((sum, count) => sum + count)).toBe(total);
    expect(await page.getByTestId('answer-branches').innerText()).toContain('2 / 2');
  });

  it('continues where it ended', async () => {
    const page = await hunch.answered({ replay: 'fixture-plain,fixture-ngram' });
    const first = (await page.getByTestId('answer').textContent()) ?? '';
    await page.getByTestId('continue').click();
    await page.getByTestId('answer-branches').waitFor();
    await ended(page);
    const both = (await page.getByTestId('answer').textContent()) ?? '';
    expect(both.startsWith(first)).toBe(true);
    expect(both.length).toBeGreaterThan(first.length);
    const { counts, total } = await legend(page);
    expect(Object.values(counts).reduce((sum, count) => sum + count)).toBe(total);
  });
});
