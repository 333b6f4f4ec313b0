// The command palette, its shortcuts, and the settings, by keyboard.

import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Page } from 'playwright-core';
import { describe, expect, it } from 'vitest';
import { ask, calls, ended, useWindow } from './harness';
import { violations } from './violations';

const hunch = useWindow();
const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });

const style = (page: Page, selector: string, property: string) =>
  page.locator(selector).evaluate((element, name) => getComputedStyle(element).getPropertyValue(name), property);

async function palette(page: Page, typed = ''): Promise<void> {
  await page.keyboard.press('Control+k');
  await page.getByTestId('palette').waitFor();
  await expect.poll(() => focused(page)).toBe('palette-input');
  if (typed !== '') await page.keyboard.type(typed);
}

const options = (page: Page) => page.getByTestId('palette').getByRole('option');
const selected = (page: Page) => page.getByTestId('palette').locator('[aria-selected=true] .name').innerText();
const focused = (page: Page) => page.evaluate(() => document.activeElement?.getAttribute('data-testid'));

describe('the command palette', () => {
  it('opens, finds, selects and runs, by keyboard alone', async () => {
    const page = await hunch.open();
    await palette(page);
    await expect.poll(() => focused(page)).toBe('palette-input');
    expect(await selected(page)).toBe('New conversation');
    await page.keyboard.press('ArrowUp');
    const final = await options(page).last().locator('.name').innerText();
    await expect.poll(() => selected(page)).toBe(final);
    await page.keyboard.press('ArrowDown');
    await page.keyboard.press('ArrowDown');
    await expect.poll(() => selected(page)).toBe('Find…');
    await page.keyboard.type('appearance dark');
    await expect.poll(() => selected(page)).toBe('Appearance: Dark');
    expect(await options(page).count()).toBe(1);
    await page.keyboard.press('Enter');
    await page.getByTestId('palette').waitFor({ state: 'detached' });
    expect(await style(page, 'body', 'background-color')).toBe('rgb(28, 28, 31)');
    await expect.poll(() => focused(page)).toBe('prompt');
    await palette(page, 'xyzzyx');
    await page.getByText('No results').first().waitFor();
    await page.keyboard.press('Enter');
    await page.keyboard.press('Control+k');
    await page.getByTestId('palette').waitFor({ state: 'detached' });
    // The typed text is cleared the next time.
    await palette(page);
    expect(await page.getByTestId('palette-input').inputValue()).toBe('');
  });

  it('shows shortcuts in the notation of the system', async () => {
    const page = await hunch.open();
    await palette(page, 'new conv');
    expect(await options(page).first().locator('.aside').innerText()).toBe('Ctrl+N');
    const mac = await hunch.open({ userAgent: 'Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7)' });
    await mac.keyboard.press('Meta+k');
    await mac.keyboard.type('open draft');
    expect(await options(mac).first().locator('.aside').innerText()).toBe('⇧⌘O');
  });

  it('finds conversations by title below the commands, and opens them', async () => {
    const page = await hunch.open({ replay: 'fixture-story' });
    for (const title of ['A lighthouse in a storm', 'Merge two lists']) {
      await page.keyboard.press('Control+n');
      await ask(page, title);
      await ended(page);
    }
    await palette(page, 'light');
    const found = await options(page).locator('.name').allInnerTexts();
    expect(found).toEqual(['Appearance: Light', 'A lighthouse in a storm']);
    await page.keyboard.press('ArrowDown');
    await page.keyboard.press('Enter');
    await expect.poll(() => page.getByTestId('question').allInnerTexts()).toEqual(['A lighthouse in a storm']);
    // The previous one in the list is the newer one.
    await palette(page, 'previous');
    await page.keyboard.press('Enter');
    await expect.poll(() => page.getByTestId('question').allInnerTexts()).toEqual(['Merge two lists']);
  });

  it('leaves the focus where a command put it, and closes alone on Escape', async () => {
    const page = await hunch.open({ speed: 1 });
    await palette(page, 'search conv');
    await page.keyboard.press('Enter');
    await expect.poll(() => focused(page)).toBe('search');
    await ask(page);
    await page.getByTestId('stop').waitFor();
    await palette(page);
    await page.keyboard.press('Escape');
    await page.getByTestId('palette').waitFor({ state: 'detached' });
    expect(await calls(page, 'stop_generation')).toEqual([]);
    await palette(page, 'stop');
    expect(await options(page).first().locator('.aside').innerText()).toBe('Esc');
    await page.keyboard.press('Enter');
    await expect.poll(async () => (await calls(page, 'stop_generation')).length).toBe(1);
  });

  it('renames, pins, deletes and restores a conversation by keyboard alone', async () => {
    const page = await hunch.open({ replay: 'fixture-plain' });
    await ask(page, 'A lighthouse');
    await ended(page);
    const run = async (typed: string) => {
      await palette(page, typed);
      await page.keyboard.press('Enter');
      await page.getByTestId('palette').waitFor({ state: 'detached' });
    };
    const titles = () => page.getByTestId('conversation-entry').locator('.title').allInnerTexts();
    await run('rename');
    await expect.poll(() => focused(page)).toBe('rename');
    await page.keyboard.type('Storm');
    await page.keyboard.press('Enter');
    await expect.poll(titles).toEqual(['Storm']);
    await run('pin conv');
    await expect.poll(async () => (await calls(page, 'pin_conversation')).at(-1)).toMatchObject({ pinned: true });
    await run('unpin');
    await expect.poll(async () => (await calls(page, 'pin_conversation')).at(-1)).toMatchObject({ pinned: false });
    await run('delete conv');
    await expect.poll(titles).toEqual([]);
    await run('undo delete');
    await expect.poll(titles).toEqual(['Storm']);
    await expect.poll(() => page.getByTestId('question').allInnerTexts()).toEqual(['A lighthouse']);
    await run('find');
    await expect.poll(() => focused(page)).toBe('find');
  });

  it('edits the last question and browses the branches by keyboard alone', async () => {
    const page = await hunch.open({ replay: 'fixture-plain' });
    await ask(page, 'Why?');
    await ended(page);
    const run = async (typed: string) => {
      await palette(page, typed);
      await page.keyboard.press('Enter');
      await page.getByTestId('palette').waitFor({ state: 'detached' });
    };
    await run('edit last');
    await expect.poll(() => focused(page)).toBe('edit-question');
    await page.keyboard.press('Control+a');
    await page.keyboard.type('Why not?');
    await page.keyboard.press('Enter');
    await ended(page);
    const asked = () => page.getByTestId('question').allInnerTexts();
    await expect.poll(asked).toEqual(['Why not?']);
    await run('previous branch');
    await expect.poll(asked).toEqual(['Why?']);
    await run('next branch');
    await expect.poll(asked).toEqual(['Why not?']);
  });

  it('keeps the text when a question being edited is edited again', async () => {
    const page = await hunch.open({ replay: 'fixture-plain' });
    await ask(page, 'Why?');
    await ended(page);
    await page.getByTestId('edit').click();
    await page.getByTestId('edit-question').fill('Why not, and what');
    await palette(page, 'edit last');
    await page.keyboard.press('Enter');
    await expect.poll(() => focused(page)).toBe('edit-question');
    expect(await page.getByTestId('edit-question').inputValue()).toBe('Why not, and what');
  });

  it('runs commands by shortcut as by name', async () => {
    const page = await hunch.open({ replay: 'fixture-plain' });
    await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
    await ask(page);
    await ended(page);
    await page.keyboard.press('Control+Shift+c');
    await page.getByTestId('notice').waitFor();
    const copied = await page.evaluate(() => navigator.clipboard.readText());
    expect(copied).toBe(await page.getByTestId('answer').textContent());
    await page.keyboard.press('Control+r');
    await expect.poll(async () => (await calls(page, 'answer')).length).toBe(2);
    expect((await calls(page, 'answer'))[1]).toMatchObject({ request: { asking: { kind: 'again' } } });
    await ended(page);
    // The native menu runs the same command.
    await page.evaluate(() => window.hunchReplay?.menu('settings'));
    await page.getByTestId('settings-dialog').waitFor();
    await page.keyboard.press('Control+n');
    await page.getByTestId('settings-dialog').waitFor({ state: 'detached' });
    await page.getByTestId('empty').waitFor();
    await expect.poll(() => focused(page)).toBe('prompt');
  });
});

describe('the settings', () => {
  it.each(['light', 'dark'] as const)('turn a %s system the other way, and back', async (colours) => {
    const page = await hunch.open({ colours });
    const shown = () => style(page, 'body', 'background-color');
    const light = 'rgb(255, 255, 255)';
    const dark = 'rgb(28, 28, 31)';
    await page.keyboard.press('Control+,');
    const choose = (appearance: string) => page.getByTestId(`appearance-${appearance}`).check();
    expect(await shown()).toBe(colours === 'light' ? light : dark);
    await choose('dark');
    expect(await shown()).toBe(dark);
    expect(await style(page, 'html', 'color-scheme')).toBe('dark');
    await choose('light');
    expect(await shown()).toBe(light);
    expect(await style(page, 'html', 'color-scheme')).toBe('light');
    await choose('system');
    expect(await shown()).toBe(colours === 'light' ? light : dark);
    expect((await calls(page, 'set_preference')).map(({ value }) => value)).toEqual(['dark', 'light', 'system']);
    expect((await calls(page, 'set_preference'))[0]).toEqual({ key: 'appearance', value: 'dark' });
  });

  it('turn every colour, whatever the system has', async () => {
    // Colours of the styles' variables, as the page computes them.
    const palette = (page: Page) =>
      page.evaluate(() => {
        const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]).filter((rule) => rule instanceof CSSStyleRule);
        const roots = rules.filter(({ selectorText }) => selectorText === ':root');
        const names = roots.flatMap(({ style }) => [...style]).filter((name) => name.startsWith('--'));
        const computed = getComputedStyle(document.documentElement);
        return Object.fromEntries(names.map((name) => [name, computed.getPropertyValue(name)]));
      });
    for (const colours of ['light', 'dark'] as const) {
      const other = colours === 'light' ? 'dark' : 'light';
      const page = await hunch.open({ colours: other, preferences: { appearance: colours } });
      const system = await hunch.open({ colours });
      const wanted = await palette(system);
      expect(Object.keys(wanted).length).toBeGreaterThan(50);
      expect(await palette(page)).toEqual(wanted);
    }
  });

  it('resize only the text of the conversation', async () => {
    const page = await hunch.answered({ replay: 'fixture-plain' });
    const size = (selector: string) => style(page, selector, 'font-size');
    const sizes = async () => [
      await size('[data-testid=question]'),
      await size('[data-testid=answer]'),
      await size('[data-testid=prompt]'),
    ];
    const rest = () => Promise.all(['[data-testid=sidebar]', 'header', 'body'].map(size));
    const before = await rest();
    expect(await sizes()).toEqual(['15px', '15px', '15px']);
    await page.keyboard.press('Control+=');
    expect(await sizes()).toEqual(['18px', '18px', '18px']);
    expect(await rest()).toEqual(before);
    await page.keyboard.press('Control+-');
    await page.keyboard.press('Control+-');
    await page.keyboard.press('Control+-');
    expect(await sizes()).toEqual(['13px', '13px', '13px']);
    await page.keyboard.press('Control+0');
    expect(await sizes()).toEqual(['15px', '15px', '15px']);
    await page.keyboard.press('Control+,');
    await page.getByTestId('text-size-18').check();
    expect((await sizes())[1]).toBe('18px');
    // A shortcut works while the settings are open, and they show it.
    await page.keyboard.press('Control+0');
    expect(await page.getByTestId('text-size-15').isChecked()).toBe(true);
  });

  it('keep instructions and settings as a preset, which changes the request', async () => {
    const page = await hunch.open({ replay: 'fixture-plain' });
    await page.getByTestId('settings').click();
    await page.getByTestId('system').fill('Answer in one sentence.');
    await page.getByTestId('temperature').fill('0.7');
    await page.getByTestId('temperature').press('Tab');
    await page.keyboard.press('Escape');
    await page.keyboard.press('Control+,');
    await page.getByTestId('preset-name').fill('Short');
    await page.keyboard.press('Enter');
    await page.getByTestId('preset').waitFor();
    expect(await page.getByTestId('preset').locator('.note').innerText()).toMatch(/, temperature 0.7, with instructions$/);
    await page.getByTestId('preset-rename').fill('Shorter');
    await page.getByTestId('preset-rename').press('Enter');
    await page.keyboard.press('Escape');
    await page.keyboard.press('Control+n');
    await page.getByTestId('settings').click();
    await page.getByTestId('temperature').fill('0');
    await page.getByTestId('temperature').press('Tab');
    await page.keyboard.press('Escape');
    await ask(page);
    await ended(page);
    await page.keyboard.press('Control+n');
    await palette(page, 'shorter');
    expect(await selected(page)).toBe('Use preset: Shorter');
    await page.keyboard.press('Enter');
    await page.getByTestId('palette').waitFor({ state: 'detached' });
    expect(await page.getByTestId('notice').innerText()).toBe('Using “Shorter”');
    await ask(page);
    await ended(page);
    const asked = (await calls(page, 'answer')) as { request: { settings: { sampling: { temperature: number } } } }[];
    expect(asked.map(({ request }) => request.settings.sampling.temperature)).toEqual([0, 0.7]);
    expect((await calls(page, 'set_system_prompt')).at(-1)).toMatchObject({ system: 'Answer in one sentence.' });
    // A preset that replaces other instructions can give them back.
    await page.keyboard.press('Control+n');
    await page.getByTestId('settings').click();
    await page.getByTestId('system').fill('Answer in Latin.');
    await page.keyboard.press('Escape');
    await palette(page, 'shorter');
    await page.keyboard.press('Enter');
    expect(await page.getByTestId('instructions-replaced').innerText()).toBe('The preset “Shorter” replaced the instructions.\nRestore');
    expect(await violations(page)).toEqual([]);
    await page.getByTestId('restore-instructions').click();
    await page.getByTestId('instructions-replaced').waitFor({ state: 'detached' });
    await page.getByTestId('settings').click();
    expect(await page.getByTestId('system').inputValue()).toBe('Answer in Latin.');
    await page.keyboard.press('Escape');
    await page.keyboard.press('Control+,');
    // Escape answers the question and leaves the settings open.
    await page.getByTestId('preset-delete').press('Enter');
    await page.getByTestId('preset-delete-question').press('Escape');
    await expect.poll(() => page.evaluate(() => document.activeElement?.getAttribute('data-testid'))).toBe('preset-delete');
    await page.keyboard.press('Enter');
    expect(await page.getByTestId('preset-delete-question').innerText()).toContain('Delete “Shorter” permanently?');
    expect(await violations(page)).toEqual([]);
    await page.getByTestId('preset-delete-yes').press('Enter');
    await page.getByText('None yet').waitFor();
    expect((await calls(page, 'set_preference')).at(-1)).toEqual({ key: 'presets', value: [] });
  });
});

describe.each(['light', 'dark'] as const)('looks, %s', (colours) => {
  it('palette and settings', async () => {
    const page = await hunch.open({ colours, height: 760, replay: 'fixture-story' });
    const take = (name: string) => page.screenshot({ path: `${output}${name}-900-${colours}.png` });
    await ask(page, 'Write a short scene in a lighthouse during a storm.');
    await ended(page);
    await palette(page);
    await take('palette');
    await page.keyboard.type('token');
    await take('palette-found');
    await page.keyboard.press('Escape');
    await page.keyboard.press('Control+,');
    await page.getByTestId('settings-dialog').waitFor();
    await take('preferences-empty');
    for (const name of ['Short answers', 'Haiku']) {
      await page.getByTestId('preset-name').fill(name);
      await page.keyboard.press('Enter');
    }
    await page.getByTestId('preset').nth(1).waitFor();
    await page.getByTestId('preset-name').fill('Haiku');
    await take('preferences');
    await page.keyboard.press('Escape');
    await page.getByTestId('settings-dialog').waitFor({ state: 'detached' });
    await page.keyboard.press('Control+=');
    await take('large-text');
  });
});
