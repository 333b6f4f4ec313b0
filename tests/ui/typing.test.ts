// Typing in fields of the built window: keys of an input method, and numbers as the window prints them.

import type { Locator } from 'playwright-core';
import { describe, expect, it } from 'vitest';
import { ask, calls, ended, useWindow } from './harness';

const hunch = useWindow();

/** Presses a key as WebKit reports it when it ends a composition: `isComposing` is false by then. */
const pressComposing = (field: Locator, key: string) =>
  field.evaluate((element, pressed) => {
    const init = { key: pressed, keyCode: 229, bubbles: true, cancelable: true };
    element.dispatchEvent(new KeyboardEvent('keydown', init));
  }, key);

describe('an input method', () => {
  it('keeps the Return that confirms its text from sending a question or an edit', async () => {
    const page = await hunch.answered();
    await page.getByTestId('prompt').fill('によほん');
    await pressComposing(page.getByTestId('prompt'), 'Enter');
    await page.getByTestId('edit').click();
    await page.getByTestId('edit-question').fill('によほん');
    await pressComposing(page.getByTestId('edit-question'), 'Enter');
    await pressComposing(page.getByTestId('edit-question'), 'Escape');
    expect(await page.getByTestId('edit-question').inputValue()).toBe('によほん');
    expect(await calls(page, 'answer')).toHaveLength(1);
    await page.getByTestId('edit-question').press('Enter');
    await page.waitForFunction(() => window.hunchReplay?.calls.filter(({ command }) => command === 'answer').length === 2);
    await ended(page);
  });

  it('keeps its keys from ending a rename', async () => {
    const page = await hunch.answered();
    await page.getByTestId('conversation-entry').locator('.entry').dblclick();
    const field = page.getByTestId('rename');
    await field.fill('によほん');
    for (const key of ['Enter', 'Escape']) await pressComposing(field, key);
    expect(await field.inputValue()).toBe('によほん');
    expect(await calls(page, 'rename_conversation')).toEqual([]);
  });

  it('keeps its Escape from stopping an answer', async () => {
    const page = await hunch.open({ speed: 4 });
    await ask(page);
    await page.getByTestId('stop').waitFor();
    await pressComposing(page.getByTestId('prompt'), 'Escape');
    expect(await calls(page, 'stop_generation')).toEqual([]);
    await page.getByTestId('prompt').press('Escape');
    expect(await calls(page, 'stop_generation')).toHaveLength(1);
    await ended(page);
  });
});

describe('instructions', () => {
  it('belong to the conversation that they were typed in', async () => {
    const page = await hunch.answered();
    await page.getByTestId('settings').click();
    await page.getByTestId('system').pressSequentially('Be brief.');
    await page.keyboard.press('Control+n');
    await page.getByTestId('empty').waitFor();
    await page.getByTestId('prompt').focus();
    await expect.poll(() => calls(page, 'set_system_prompt')).toEqual([{ id: 1, system: 'Be brief.' }]);
  });

  it('of a new conversation create none before its first question', async () => {
    const page = await hunch.open();
    await page.getByTestId('settings').click();
    await page.getByTestId('system').fill('Be brief.');
    await page.keyboard.press('Escape');
    await page.getByTestId('system').waitFor({ state: 'detached' });
    expect(await page.getByTestId('conversation-entry').count()).toBe(0);
    await ask(page);
    await ended(page);
    expect(await calls(page, 'set_system_prompt')).toEqual([{ id: null, system: 'Be brief.' }]);
    expect(await page.getByTestId('conversation-entry').count()).toBe(1);
  });

  it('of every new conversation are set in the settings, and kept when Escape closes them', async () => {
    const page = await hunch.open();
    await page.getByTestId('open-settings').click();
    await page.getByTestId('default-instructions').pressSequentially('Answer in Latin.');
    await page.keyboard.press('Escape');
    await page.getByTestId('settings-dialog').waitFor({ state: 'detached' });
    expect((await calls(page, 'set_preference')).at(-1)).toEqual({ key: 'default_instructions', value: 'Answer in Latin.' });
    await page.getByTestId('settings').click();
    expect(await page.getByTestId('system').inputValue()).toBe('Answer in Latin.');
    await page.keyboard.press('Escape');
    await ask(page);
    await ended(page);
    expect(await calls(page, 'set_system_prompt')).toEqual([{ id: null, system: 'Answer in Latin.' }]);
  });
});

describe('a number field', () => {
  it.each([
    ['en-US', '2,048'],
    ['de-DE', '2.048'],
  ])('takes a number as the window prints it (%s)', async (locale, typed) => {
    const page = await hunch.open({ locale });
    await page.getByTestId('settings').click();
    const field = page.getByTestId('max-tokens');
    await field.fill(typed);
    await field.press('Tab');
    expect(await field.inputValue()).toBe('2048');
    await page.getByTestId('seed').fill(typed);
    await page.getByTestId('seed').press('Tab');
    expect(await page.getByTestId('seed').inputValue()).toBe('2048');
  });
});
