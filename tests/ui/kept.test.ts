// Messages and remedies of the window when conversations cannot be saved. Screenshots in tests/output/ui.

import { mkdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import type { GenerationEvent, StoreProblem } from '../../ui/src/lib/ipc/schema.gen';
import { record, toLines } from './fixtures/build';
import { plans } from './fixtures/plans';
import { calls, useWindow } from './harness';

const hunch = useWindow();
const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });
const app = JSON.parse(readFileSync(new URL('./fixtures/fixture-app.json', import.meta.url), 'utf8'));

const detail = 'the file is damaged (row 7 missing from index)';
const problem: StoreProblem = {
  error: {
    code: 'store',
    message: `The conversations cannot be read or written: ${detail}. Nothing that was there has been changed.`,
    params: { detail },
  },
  in_memory: true,
  accepted: false,
  replaceable: true,
  copies: [
    { name: '2026-11-16-120000.000.db', made_ms: Date.UTC(2026, 10, 16, 12), bytes: 1_200_000 },
    { name: '2026-11-09-120000.000.db', made_ms: Date.UTC(2026, 10, 9, 12), bytes: 1_100_000 },
  ],
};
const withProblem = (change: Partial<StoreProblem> = {}) => ({
  app: 'troubled',
  apps: { troubled: { ...app, info: { ...app.info, store_problem: { ...problem, ...change } } } },
});

/** An answer that the store refuses. It is saved before its end, after its end, not yet, or given up. */
function refused(then: 'saved' | 'saved late' | 'refused' | 'given up'): string {
  const plan = plans['fixture-plain'];
  if (!plan) throw new Error('fixture-plain');
  const error = {
    code: 'store',
    message: 'The conversations cannot be read or written: database or disk is full.',
    params: { detail: 'database or disk is full' },
  } as const;
  const withRefusal = (event: GenerationEvent): GenerationEvent[] => {
    if (event.type === 'started') return [event, { type: 'not_kept', error }];
    if (event.type !== 'finished') return [event];
    if (then === 'saved') return [{ type: 'kept' }, event];
    if (then === 'saved late') return [event, { type: 'kept' }];
    return then === 'given up' ? [event, { type: 'given_up', error }] : [event];
  };
  return toLines(record(plan).map((message) => ({ ...message, events: message.events.flatMap(withRefusal) })));
}

describe('a file of conversations that cannot be used', () => {
  it('offers to retry, to restore a backup, to start over and to continue without', async () => {
    const page = await hunch.open(withProblem());
    const notice = page.getByTestId('store-problem');
    await notice.getByText('Conversations are not being saved').waitFor();
    await notice.getByText(detail).waitFor();
    await page.screenshot({ path: `${output}store-problem-light.png` });
    expect(await page.getByTestId('store-restore').count()).toBe(2);
    await page.getByTestId('store-restore').first().click();
    await notice.waitFor({ state: 'detached' });
    expect(await calls(page, 'repair_store')).toEqual([{ remedy: { type: 'restore', copy: '2026-11-16-120000.000.db' } }]);
  });

  it('stays named after continuing without', async () => {
    const page = await hunch.open(withProblem());
    await page.getByTestId('store-without').click();
    await page.getByTestId('store-without').waitFor({ state: 'detached' });
    expect(await page.getByTestId('store-retry').count()).toBe(1);
    expect(await page.getByTestId('store-anew').count()).toBe(0);
  });

  it('is not moved while another program uses it', async () => {
    const page = await hunch.open(withProblem({ replaceable: false }));
    await page.getByTestId('store-retry').waitFor();
    expect(await page.getByTestId('store-anew').count()).toBe(0);
    expect(await page.getByTestId('store-restore').count()).toBe(0);
  });

  it('is named in German, in the dark', async () => {
    const page = await hunch.open({ ...withProblem({ in_memory: false, accepted: true }), locale: 'de-DE', colours: 'dark' });
    await page.getByText('Die Datei mit den Unterhaltungen ist beschädigt').waitFor();
    expect(await page.getByTestId('store-restore').first().innerText()).toMatch(/^Sicherung vom 16\. Nov/);
    expect(await page.getByTestId('store-without').count()).toBe(0);
    await page.screenshot({ path: `${output}store-problem-dark.png` });
  });
});

describe('an answer that cannot be written', () => {
  it('says so at once and can be saved to a file', async () => {
    const page = await hunch.answered({ replay: 'refused', recordings: { refused: refused('refused') } });
    await page.getByTestId('not-kept').getByText('database or disk is full').waitFor();
    await page.getByTestId('not-kept').scrollIntoViewIfNeeded();
    await page.screenshot({ path: `${output}not-kept.png` });
    await page.getByTestId('save-answer').click();
    await expect.poll(() => calls(page, 'save_answer')).toHaveLength(1);
    const [saved] = await calls(page, 'save_answer');
    const shown = await page.getByTestId('answer').innerText();
    expect(String(saved?.['text']).slice(0, 20)).toBe(shown.slice(0, 20));
  });

  it('is still there when the reader returns to its conversation', async () => {
    const page = await hunch.answered({ replay: 'refused', recordings: { refused: refused('given up') } });
    await page.getByTestId('not-kept').waitFor();
    await page.getByTestId('new-conversation').click();
    await page.getByTestId('not-kept').waitFor({ state: 'detached' });
    await page.getByTestId('conversation-entry').click();
    await page.getByTestId('save-answer').waitFor();
    expect(await calls(page, 'open_conversation')).toEqual([]);
  });

  it('says nothing once it is saved', async () => {
    const page = await hunch.answered({ replay: 'refused', recordings: { refused: refused('saved') } });
    expect(await page.getByTestId('not-kept').count()).toBe(0);
  });
});

describe('an answer that was not saved when it ended', () => {
  it('says nothing once it is saved', async () => {
    const page = await hunch.answered({ replay: 'refused', recordings: { refused: refused('saved late') } });
    await page.getByTestId('not-kept').waitFor({ state: 'detached' });
  });

  it('says so when it is given up, and can still be saved to a file', async () => {
    const page = await hunch.answered({ replay: 'refused', recordings: { refused: refused('given up') } });
    await page.getByTestId('not-kept').getByText('This answer was not saved.').waitFor();
    await page.getByTestId('save-answer').click();
    await expect.poll(() => calls(page, 'save_answer')).toHaveLength(1);
  });
});

describe('settings that cannot be saved', () => {
  it('are named in the sidebar until they can', async () => {
    const page = await hunch.open();
    const problem = page.getByTestId('preferences-problem');
    await page.evaluate(() => {
      Object.assign(window, { cloned: window.structuredClone });
      window.structuredClone = () => {
        throw Object.assign(new Error('no room'), { code: 'store', params: { detail: 'The disk is full.' } });
      };
    });
    await page.keyboard.press('Control+=');
    await problem.getByText('Settings are not being saved').waitFor();
    await page.screenshot({ path: `${output}preferences-problem.png` });
    await page.evaluate(() => (window.structuredClone = (window as unknown as { cloned: typeof structuredClone }).cloned));
    await page.keyboard.press('Control+-');
    await problem.waitFor({ state: 'detached' });
  });
});

describe('the settings', () => {
  it('show the size of the file of conversations', async () => {
    const page = await hunch.open({ app: 'sized', apps: { sized: { ...app, info: { ...app.info, store_bytes: 12_300_000 } } } });
    await page.getByTestId('open-settings').click();
    expect(await page.getByTestId('store-bytes').innerText()).toBe('12.3 MB');
  });
});
