// Questions that wait while another conversation is answered: the queue, its order, and cancelling.

import { describe, expect, it } from 'vitest';
import { ask, calls, ended, useWindow } from './harness';
import { violations } from './violations';

const hunch = useWindow();

describe('a question while another conversation is answered', () => {
  it('is queued, shown with its place, and asked when the answer has ended', async () => {
    const page = await hunch.open({ replay: 'fixture-story,fixture-plain,fixture-ngram', speed: 0.5 });
    await ask(page, 'A lighthouse');
    await page.getByTestId('token').nth(3).waitFor();
    await page.keyboard.press('Control+n');
    await ask(page, 'Why is the sky blue?');
    await page.getByTestId('queued').waitFor();
    await expect.poll(() => page.getByTestId('queued').innerText()).toBe('Queued: asked next');
    expect(await page.getByTestId('prompt').inputValue()).toBe('');
    await page.keyboard.press('Control+n');
    await ask(page, 'Merge two lists');
    await expect.poll(() => page.getByTestId('queued').innerText()).toBe('Queued: number 2 in line');
    const rows = page.getByTestId('queue').getByRole('listitem');
    expect((await rows.allInnerTexts()).map((text) => text.split('\n').slice(0, 2))).toEqual([
      ['1', 'Why is the sky blue?'],
      ['2', 'Merge two lists'],
    ]);
    expect(await violations(page)).toEqual([]);
    expect(await calls(page, 'answer')).toHaveLength(1);
    // One question waits for each conversation.
    await page.getByTestId('prompt').fill('and more');
    expect(await page.getByTestId('send').isDisabled()).toBe(true);
    await page.getByTestId('prompt').fill('');
    await page.getByTestId('stop-elsewhere').click();
    await expect.poll(() => calls(page, 'answer')).toHaveLength(2);
    await page.getByTestId('queued').getByText('asked next').waitFor();
    await page.getByTestId('stop-elsewhere').click();
    await expect.poll(() => calls(page, 'answer')).toHaveLength(3);
    // Its answer is written on screen.
    await page.getByTestId('token').first().waitFor();
    await page.getByTestId('stop').click();
    await ended(page);
    expect(await page.getByTestId('queue').count()).toBe(0);
    expect(await page.getByTestId('conversation-entry').allInnerTexts()).toEqual([
      'Merge two lists',
      'Why is the sky blue?',
      'A lighthouse',
    ]);
  });

  it('can be shown and cancelled, and then returns to its composer', async () => {
    const page = await hunch.open({ replay: 'fixture-story', speed: 0.5 });
    await ask(page, 'A lighthouse');
    await page.getByTestId('token').nth(3).waitFor();
    await page.keyboard.press('Control+n');
    await ask(page, 'Why is the sky blue?');
    await page.getByTestId('show-elsewhere').click();
    await page.getByTestId('stop').waitFor();
    await page.getByTestId('show-queued').click();
    await page.getByTestId('queued').waitFor();
    await page.getByTestId('cancel-queued').click();
    await page.getByTestId('queue').waitFor({ state: 'detached' });
    expect(await page.getByTestId('prompt').inputValue()).toBe('Why is the sky blue?');
    expect(await page.getByTestId('turn').count()).toBe(0);
    await page.getByTestId('stop-elsewhere').click();
    await page.getByTestId('elsewhere').waitFor({ state: 'detached' });
    expect(await calls(page, 'answer')).toHaveLength(1);
  });
});
