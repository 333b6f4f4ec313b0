// Text files of a question: attached with the button or a drop, shown folded, kept by an edit and in the store.

import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import recordedApp from './fixtures/fixture-app.json';
import { ask, calls, ended, useWindow } from './harness';
import { violations } from './violations';

const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });

const hunch = useWindow();

const source = Array.from({ length: 60 }, (_, line) => `fn line_${line}() -> u32 { ${line} }`).join('\n');
const binary = {
  code: 'not_text',
  message: '“photo.png” is not UTF-8 text, so it is not used. Choose a text file, or save it as UTF-8.',
  params: { name: 'photo.png' },
};
const app = {
  ...recordedApp,
  texts: { '/home/me/merge.rs': source, '/home/me/notes.md': '# Notes\nSorted lists.', '/home/me/photo.png': binary },
};
const opening = { app: 'files', apps: { files: app }, replay: 'fixture-plain' };

describe('attached files', () => {
  it('are chosen, shown in the composer and sent with the question', async () => {
    const page = await hunch.open(opening);
    await page.getByTestId('attach').click();
    const files = page.getByTestId('composer-files').getByTestId('file');
    await files.nth(1).waitFor();
    expect((await files.allInnerTexts()).map((text) => text.split('\n')[0])).toEqual(['merge.rs', 'notes.md']);
    expect(await files.first().innerText()).toContain('2 kB');
    expect(await page.getByRole('alert').innerText()).toContain('“photo.png” is not UTF-8 text');
    expect(await page.getByTestId('prompt').evaluate((element) => element === document.activeElement)).toBe(true);
    expect(await violations(page)).toEqual([]);
    await page.getByTestId('composer-files').getByRole('button', { name: 'Remove notes.md' }).click();
    expect(await files.count()).toBe(1);
    await ask(page, 'What does it do?');
    await ended(page);
    expect(await page.getByTestId('composer-files').count()).toBe(0);
    const [sent] = await calls(page, 'answer');
    expect(sent?.['request']).toMatchObject({ asking: { text: 'What does it do?', attachments: [{ name: 'merge.rs', text: source }] } });
  });

  it('are folded below the question, kept by an edit, and restored', async () => {
    const page = await hunch.open(opening);
    await page.getByTestId('attach').click();
    await page.getByTestId('composer-files').waitFor();
    // That a picture is not text is said over the conversation.
    await page.getByTestId('dismiss-failure').click();
    await ask(page, 'What does it do?');
    await ended(page);
    const chips = page.getByTestId('question-files').getByTestId('file');
    expect(await chips.count()).toBe(2);
    expect(await page.getByTestId('file-text').count()).toBe(0);
    await chips.first().click();
    expect(await page.getByTestId('file-text').innerText()).toBe(source);
    expect(await violations(page)).toEqual([]);
    await chips.first().click();
    await page.getByTestId('edit').click();
    await page.getByTestId('edit-question').fill('Is it fast?');
    await page.keyboard.press('Enter');
    await page.getByTestId('question-branches').waitFor();
    await ended(page);
    const asked = (await calls(page, 'answer')).map((args) => (args['request'] as { asking: { attachments: unknown[] } }).asking);
    expect(asked.map(({ attachments }) => attachments.length)).toEqual([2, 2]);
    await page.keyboard.press('Control+n');
    await page.getByTestId('conversation-entry').getByRole('button').first().click();
    await chips.nth(1).waitFor();
  });

  it('can be dropped on the window', async () => {
    const page = await hunch.open(opening);
    const drag = (kind: 'over' | 'dropped') =>
      page.evaluate((kind) => window.hunchReplay?.files({ kind, paths: ['/home/me/notes.md'], across: 0.5 }), kind);
    await drag('over');
    expect(await page.getByTestId('drop-attach').innerText()).toContain('Attach to the question');
    await drag('dropped');
    await page.getByTestId('composer-files').getByText('notes.md').waitFor();
  });

  it('that exceed the context keep the question from being sent', async () => {
    const { info } = recordedApp;
    const small = { ...app, info: { ...info, loaded: { ...info.loaded, context: 200 } } };
    const page = await hunch.open({ ...opening, apps: { files: small } });
    await page.getByTestId('attach').click();
    await page.getByTestId('prompt').fill('Why?');
    expect(await page.getByTestId('files-too-long').innerText()).toMatch(/The files have [\d,]+ tokens, but the context holds 200/);
    expect(await page.getByTestId('send').isDisabled()).toBe(true);
    await page.getByTestId('detach').first().click();
    await page.getByTestId('files-too-long').waitFor({ state: 'detached' });
    expect(await page.getByTestId('send').isEnabled()).toBe(true);
  });
});
