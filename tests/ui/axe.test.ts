// axe-core finds no serious or critical violation in any state of the window, light or dark.

import { describe, expect, it } from 'vitest';
import { colourModes, labWidgets } from '../../ui/src/lib/strings/keys';
import { ask, ended, useWindow } from './harness';
import { violations } from './violations';

const hunch = useWindow();

describe.each(['light', 'dark'] as const)('%s', (colours) => {
  it('before the first question, and without a model', async () => {
    const page = await hunch.open({ colours });
    await page.getByTestId('example').first().waitFor();
    expect(await violations(page)).toEqual([]);
    const empty = await hunch.open({ colours, app: 'fixture-app-empty' });
    await empty.getByTestId('open-model').waitFor();
    expect(await violations(empty)).toEqual([]);
  });

  it('while an answer is written', async () => {
    const page = await hunch.open({ colours, replay: 'fixture-markdown', speed: 6 });
    await ask(page);
    await page.waitForFunction(() => document.querySelectorAll('[data-testid=token]').length > 30);
    expect(await violations(page)).toEqual([]);
    await page.keyboard.press('Escape');
    await ended(page);
  });

  it.each(colourModes)('an answer, coloured by %s', async (mode) => {
    for (const view of ['rich', 'tokens']) {
      const page = await hunch.answered({ colours, replay: 'fixture-markdown', height: 2400, preferences: { colour_mode: mode, view } });
      if (view === 'rich') await page.locator('[role=math] .katex').nth(1).waitFor();
      expect(await violations(page), view).toEqual([]);
    }
  });

  it('a thought, open and folded', async () => {
    const page = await hunch.answered({ colours, replay: 'fixture-thought' });
    expect(await violations(page)).toEqual([]);
    await page.getByTestId('thought').locator('summary').click();
    expect(await violations(page)).toEqual([]);
  });

  it('a pinned card', async () => {
    const page = await hunch.answered({ colours, replay: 'fixture-story' });
    await page.locator('[data-testid=token][data-origin=resampled]').nth(3).hover();
    await page.getByTestId('token-card').waitFor();
    expect(await violations(page)).toEqual([]);
    await page.locator('[data-testid=token][data-origin=resampled]').nth(3).click();
    await page.locator('[data-testid=token-card][data-pinned=true]').waitFor();
    expect(await violations(page)).toEqual([]);
  });

  it('the settings, the settings of answers, the palette, the menus', async () => {
    const page = await hunch.answered({ colours, replay: 'fixture-plain' });
    await page.keyboard.press('Control+,');
    await page.getByTestId('settings-dialog').waitFor();
    expect(await violations(page), 'dialog').toEqual([]);
    await page.keyboard.press('Escape');
    await page.getByTestId('settings').click();
    await page.getByTestId('temperature').waitFor();
    expect(await violations(page), 'popover').toEqual([]);
    await page.keyboard.press('Escape');
    await page.keyboard.press('Control+k');
    await page.getByTestId('palette').waitFor();
    expect(await violations(page), 'palette').toEqual([]);
    await page.keyboard.press('Escape');
    await page.getByTestId('colours').click();
    await page.getByTestId('colours-off').waitFor();
    expect(await violations(page), 'colours').toEqual([]);
    await page.keyboard.press('Escape');
    await page.getByTestId('target-menu').click();
    await page.getByTestId('open-target').waitFor();
    expect(await violations(page), 'models').toEqual([]);
  });

  it('a question being edited, a title being renamed, a deletion that can be undone', async () => {
    const page = await hunch.answered({ colours, replay: 'fixture-plain' });
    await page.getByTestId('edit').click();
    await page.getByTestId('edit-question').waitFor();
    expect(await violations(page), 'edit box').toEqual([]);
    await page.keyboard.press('Escape');
    await page.getByTestId('conversation-entry').first().hover();
    await page.getByTestId('entry-menu').first().click();
    await page.getByTestId('menu-rename').click();
    await page.getByTestId('rename').waitFor();
    expect(await violations(page), 'rename field').toEqual([]);
    await page.keyboard.press('Escape');
    await page.getByTestId('conversation-entry').first().hover();
    await page.getByTestId('entry-menu').first().click();
    await page.getByTestId('menu-delete').click();
    await page.getByTestId('undo').first().waitFor();
    expect(await violations(page), 'undo bar').toEqual([]);
  });

  it('files that are dragged over the window', async () => {
    const page = await hunch.open({ colours });
    for (const [paths, testid] of [
      [['/models/a.gguf'], 'drop-target'],
      [['/tmp/a.json', '/tmp/b.json'], 'drop-import'],
      [['/tmp/a.png'], 'drop-attach'],
    ] as const) {
      await page.evaluate((dragged) => window.hunchReplay?.files({ kind: 'over', paths: dragged, across: 0.2 }), [...paths]);
      await page.getByTestId(testid).waitFor();
      expect(await violations(page), testid).toEqual([]);
    }
  });

  it('in German: before, an answer, its card, the palette, the settings, the library, an error', async () => {
    const german = { colours, locale: 'de-DE' } as const;
    const page = await hunch.open({ ...german, replay: 'fixture-story' });
    await page.getByTestId('example').first().waitFor();
    expect(await violations(page), 'before').toEqual([]);
    await ask(page);
    await ended(page);
    await page.locator('[data-testid=token][data-origin=resampled]').nth(3).click();
    await page.locator('[data-testid=token-card][data-pinned=true]').waitFor();
    expect(await violations(page), 'card').toEqual([]);
    await page.keyboard.press('Escape');
    await page.keyboard.press('Control+k');
    await page.getByTestId('palette').waitFor();
    expect(await violations(page), 'palette').toEqual([]);
    await page.keyboard.press('Escape');
    await page.keyboard.press('Control+,');
    await page.getByTestId('settings-dialog').waitFor();
    expect(await violations(page), 'settings').toEqual([]);
    await page.keyboard.press('Escape');
    await page.getByTestId('place-library').click();
    await page.waitForFunction(() => document.activeElement !== null);
    expect(await violations(page), 'library').toEqual([]);
    const refused = await hunch.open({ ...german, replay: 'fixture-refused' });
    await ask(refused);
    await refused.getByTestId('error').waitFor();
    expect(await violations(refused), 'error').toEqual([]);
  });

  it('what the search found', async () => {
    const page = await hunch.open({ colours, replay: 'fixture-story' });
    await ask(page, 'A lighthouse in a storm');
    await ended(page);
    await page.keyboard.press('Control+Shift+f');
    await page.keyboard.type('lighthouse');
    await page.getByTestId('hit').first().waitFor();
    expect(await violations(page)).toEqual([]);
  });

  it('the question about a link', async () => {
    const page = await hunch.answered({ colours, replay: 'fixture-markdown' });
    await page.getByTestId('link').first().click();
    await page.getByTestId('link-question').waitFor();
    expect(await violations(page)).toEqual([]);
  });

  it('the lab, each of its parts', async () => {
    const page = await hunch.answered({ colours, height: 1600 });
    await page.keyboard.press('Control+3');
    for (const widget of labWidgets) {
      await page.getByTestId(`lab-${widget}`).click();
      if (widget === 'resampling') await page.getByTestId('one-round').click();
      if (widget === 'unbiased') await page.getByTestId('check').click();
      if (widget === 'samplers') await page.getByTestId('draw-one').click();
      for (const summary of await page.locator('#lab-panel summary').all()) await summary.click();
      if (widget === 'landscape') await page.getByTestId('serve').click();
      await page.getByTestId('lab-progress').waitFor({ state: 'detached' });
      await page.waitForTimeout(200);
      expect(await violations(page), widget).toEqual([]);
    }
    await page.getByTestId('relative-table').click();
    await page.getByTestId('lab-resampling').click();
    await page.getByTestId('selection-answer').check();
    await page.getByTestId('token-picker').waitFor();
    expect(await violations(page), 'picker').toEqual([]);
  });

  it('comparing: before, while it runs, with its tables open, and without a model', async () => {
    const page = await hunch.open({ colours, speed: 10, height: 2400 });
    await page.getByTestId('place-compare').click();
    await page.getByTestId('compare-empty').waitFor();
    expect(await violations(page), 'before').toEqual([]);
    await page.getByTestId('compare-prompt').fill('A lighthouse');
    await page.getByTestId('compare-start').click();
    await page.locator('[data-lane="1"] [data-testid=token]').nth(20).waitFor();
    expect(await violations(page), 'while it runs').toEqual([]);
    await page.getByTestId('result').waitFor();
    for (const chart of ['speedup', 'split', 'tokens', 'rate', 'position', 'memory'])
      await page.getByTestId(`${chart}-chart-table`).click();
    expect(await violations(page), 'result').toEqual([]);
    await page.getByTestId('comparison-entry').hover();
    await page.getByTestId('comparison-menu').click();
    await page.getByTestId('menu-delete').click();
    await page.getByTestId('delete-no').waitFor();
    expect(await violations(page), 'deleting').toEqual([]);
    const empty = await hunch.open({ colours, app: 'fixture-app-empty' });
    await empty.getByTestId('place-compare').click();
    await empty.getByTestId('compare-open-model').waitFor();
    expect(await violations(empty), 'without a model').toEqual([]);
  });

  it('an error', async () => {
    const page = await hunch.open({ colours, replay: 'fixture-refused' });
    await ask(page);
    await page.getByTestId('error').waitFor();
    expect(await violations(page)).toEqual([]);
  });
});
