// The lab in the browser: each widget shows the host's answer, by pointer and by keys, with the table of its charts.
// Screenshots in tests/output/ui.

import { mkdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Locator, Page } from 'playwright-core';
import { describe, expect, it } from 'vitest';
import { labWidgets, type LabWidget } from '../../ui/src/lib/strings/keys';
import { parseRecording } from './replay/recording';
import { formatCount, formatMean, formatProbability, formatShare, formatSignificant, visibleText } from '../../ui/src/lib/format';
import { faintText } from './contrast';
import { curve, emptyMap, lab } from './fixtures/lab';
import { ask, calls, ended, useWindow, type Opening } from './harness';

const hunch = useWindow();
const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });
const app = JSON.parse(readFileSync(new URL('./fixtures/fixture-app.json', import.meta.url), 'utf8')) as Record<string, unknown>;
const toy = lab.positions.toy!;
const real = lab.positions.answer!;

/** Opens the lab at a widget, with an answer in the chat if asked for. */
async function openLab(widget: LabWidget, opening: Opening & { answered?: boolean } = {}): Promise<Page> {
  const page = await hunch.open(opening);
  if (opening.answered) {
    await ask(page);
    await ended(page);
  }
  await page.keyboard.press('Control+3');
  await page.getByTestId(`lab-${widget}`).click();
  return page;
}

/** Rows of the table of a chart, opened by keyboard. */
async function tableOf(page: Page, chart: string): Promise<string[][]> {
  await page.getByTestId(`${chart}-table`).press('Enter');
  const rows = page.getByTestId(chart).locator('tbody tr');
  await rows.first().waitFor();
  return rows.evaluateAll((all) => all.map((row) => [...row.children].map((cell) => cell.textContent?.trim() ?? '')));
}

/** Sources of the requested positions, in order. */
async function lookedAt(page: Page): Promise<Record<string, unknown>[]> {
  return (await calls(page, 'lab_position')).map(({ request }) => (request as { source: Record<string, unknown> }).source);
}

/** Clicks the name next to a number field, which must leave the number alone. */
async function clickName(field: Locator): Promise<void> {
  const before = await field.inputValue();
  await field.locator('xpath=../preceding-sibling::span').click();
  expect(await field.inputValue()).toBe(before);
}

const width = (bar: Locator): Promise<number> => bar.evaluate((element) => Number(element.getAttribute('width')));
const counted = async (page: Page): Promise<number> => {
  const all = await page.getByTestId('emitted').evaluateAll((bars) => bars.map((bar) => Number(bar.getAttribute('data-count'))));
  return all.reduce((sum, count) => sum + count, 0);
};

describe('the lab', () => {
  it('shows one widget at a time, switches by arrow keys, and remembers it', async () => {
    const page = await openLab('resampling');
    await page.getByTestId('lab-resampling').focus();
    for (const widget of [...labWidgets.slice(1), labWidgets[0]]) {
      await page.keyboard.press('ArrowRight');
      expect(await page.evaluate(() => document.activeElement?.getAttribute('data-widget'))).toBe(widget);
      expect(await page.getByRole('tab', { selected: true }).getAttribute('data-widget')).toBe(widget);
    }
    await page.keyboard.press('ArrowLeft');
    await page.keyboard.press('Control+1');
    await page.keyboard.press('Control+3');
    expect(await page.getByRole('tab', { selected: true }).getAttribute('data-widget')).toBe('costs');
  });

  it('lines its tabs up with the column below', async () => {
    const page = await openLab('samplers', { width: 1600 });
    const left = (locator: Locator) =>
      locator.evaluate((element) => element.getBoundingClientRect().left + Number.parseFloat(getComputedStyle(element).paddingLeft));
    expect(await left(page.getByTestId('lab-resampling'))).toBeCloseTo(await left(page.getByRole('heading', { level: 1 })), 0);
  });

  it('has buttons of one height, one of them primary', async () => {
    for (const [widget, testids] of [
      ['samplers', ['draw-one', 'draw-many', 'draw-again']],
      ['resampling', ['one-round', 'run', 'start-over']],
    ] as const) {
      const page = await openLab(widget);
      await page.getByTestId(testids[0]).waitFor();
      const heights = testids.map(async (testid) => (await page.getByTestId(testid).boundingBox())?.height);
      expect(new Set(await Promise.all(heights)).size).toBe(1);
      expect(await page.getByTestId(testids[1]).getAttribute('class')).toContain('filled-button');
    }
  });
});

describe('the lab opens', () => {
  const example = 'Once upon a time there was a';

  it('at the first resampled token of the answer, scrolled into view', async () => {
    const page = await openLab('resampling', { answered: true });
    await page.getByTestId('distribution').first().waitFor();
    const chosen = page.getByTestId('token-picker').getByRole('option', { selected: true });
    expect(await chosen.getAttribute('data-origin')).toBe('resampled');
    const token = Number(await chosen.getAttribute('data-pick'));
    expect(await page.locator(`[data-testid=token-picker] [data-origin=resampled]`).first().getAttribute('data-pick')).toBe(String(token));
    expect(await lookedAt(page)).toEqual([{ kind: 'answer', message: 3, token }]);
    expect(await page.getByTestId('distribution').count()).toBe(real.tokens.length + 1);
    await page.getByTestId('lab-rules').click();
    await page.getByTestId('rule-lines').waitFor();
    expect(await lookedAt(page)).toHaveLength(1);
  });

  it('at the end of a text when nothing was answered yet', async () => {
    const page = await openLab('resampling');
    await page.getByTestId('distribution').first().waitFor();
    expect(await page.getByTestId('selection-text').isChecked()).toBe(true);
    expect(await page.getByTestId('selection-typed').inputValue()).toBe(example);
    expect(await lookedAt(page)).toEqual([{ kind: 'text', text: example }]);
  });

  it('with the toy, without an error, when the models cannot be asked', async () => {
    const refusing = { ...app, lab: { ...lab, positions: { toy } } };
    const page = await openLab('resampling', { answered: true, app: 'refusing', apps: { refusing } });
    await page.getByTestId('toy-note').waitFor();
    expect((await lookedAt(page)).map(({ kind }) => kind)).toEqual(['answer', 'text', 'toy']);
    expect(await page.getByTestId('distribution').count()).toBe(toy.tokens.length);
    expect(await page.getByTestId('error').count()).toBe(0);
  });

  it('with the real models the next time, once a draft is loaded', async () => {
    const info = app['info'] as { loaded: object };
    const unpaired = { ...app, info: { ...info, loaded: { ...info.loaded, draft: null } } };
    const page = await openLab('resampling', { app: 'unpaired', apps: { unpaired } });
    await page.getByTestId('toy-note').waitFor();
    await page.getByTestId('draft-menu').click();
    await page.getByTestId('draft-list').getByRole('option', { name: /0\.5B/ }).click();
    await page.getByText('No model needed').waitFor();
    expect((await lookedAt(page)).map(({ kind }) => kind)).toEqual(['toy']);
    await page.keyboard.press('Control+1');
    await page.keyboard.press('Control+3');
    await page.getByTestId('selection-typed').waitFor();
    expect((await lookedAt(page)).map(({ kind }) => kind)).toEqual(['toy', 'text']);
  });
});

describe('residual resampling', () => {
  it('uses the toy and says so when no draft is loaded', async () => {
    const page = await openLab('resampling', { app: 'fixture-app-plain' });
    expect(await page.getByTestId('toy-note').textContent()).toContain('No draft model or head is loaded');
    await page.getByTestId('distribution').first().waitFor();
    expect(await page.getByTestId('distribution').count()).toBe(toy.tokens.length);
    await page.getByTestId('selection-answer').check();
    await page.getByTestId('needs-draft').waitFor();
    await page.getByTestId('selection-toy').check();
    expect((await calls(page, 'lab_position')).at(-1)).toMatchObject({ request: { source: { kind: 'toy' } } });
  });

  it('draws and writes the distributions of the response', async () => {
    const page = await openLab('resampling');
    await page.getByTestId('selection-toy').check();
    await page.getByTestId('toy-note').waitFor();
    await page.getByTestId('where').waitFor({ state: 'detached' });
    await page.getByTestId('distribution').first().waitFor();
    expect(await page.getByTestId('acceptance').textContent()).toContain(formatProbability(toy.acceptance));
    expect(await page.getByTestId('rejection').textContent()).toContain(formatProbability(toy.rejection));
    const [token] = toy.tokens;
    const bars = page.getByTestId('distribution').first().locator('rect');
    expect((await width(bars.nth(1))) / (await width(bars.nth(0)))).toBeCloseTo((token!.p - token!.overlap) / token!.overlap, 2);
    const identities = await page.getByTestId('identity').allTextContents();
    for (const [i, { overlap, residual, total }] of toy.tokens.entries()) {
      const [o, z, r, t] = [overlap, toy.rejection, residual, total].map(formatProbability);
      expect(identities[i]).toBe(`${o} + ${z} · ${r} = ${t}`);
    }
    const table = await tableOf(page, 'distributions');
    expect(table.map(([, p, q]) => [p, q])).toEqual(toy.tokens.map(({ p, q }) => [formatProbability(p), formatProbability(q)]));
  });

  it('draws one round, runs a thousand, and resets', async () => {
    const page = await openLab('resampling');
    await page.getByTestId('one-round').press('Enter');
    await page.getByTestId('outcome').waitFor();
    const u = Number(await page.getByTestId('u').getAttribute('data-u'));
    expect(await page.getByTestId('outcome').textContent()).toContain(`u ${formatProbability(u)}`);
    expect(await counted(page)).toBe(1);
    await page.getByTestId('run').click();
    await page.getByTestId('distance').waitFor();
    await page.getByTestId('lab-progress').waitFor({ state: 'detached' });
    expect(await counted(page)).toBe(1001);
    expect(await page.getByTestId('rounds-so-far').textContent()).toContain('1,001 rounds');
    const asked = await calls(page, 'lab_rounds');
    expect(asked).toHaveLength(11);
    expect(asked.every(({ request }) => (request as { rule: { name: string } }).rule.name === 'lossless')).toBe(true);
    await page.getByTestId('start-over').click();
    await page.getByTestId('outcome').waitFor();
    expect(await counted(page)).toBe(1);
  });

  it('selects a token of the answer by arrow keys', async () => {
    const page = await openLab('resampling', { answered: true });
    const options = page.getByTestId('token-picker').getByRole('option');
    await options.first().focus();
    await page.keyboard.press('Home');
    await page.keyboard.press('ArrowRight');
    await page.getByTestId('where').getByText('the answer continues').waitFor();
    expect((await lookedAt(page)).at(-1)).toMatchObject({ kind: 'answer', token: 1 });
    expect(await page.getByTestId('distribution').count()).toBe(real.tokens.length + 1);
    expect(await options.nth(1).getAttribute('aria-selected')).toBe('true');
  });

  it('is reached from the card of a token', async () => {
    const page = await hunch.answered();
    await page.locator('[data-testid=token][data-origin=resampled]').first().click();
    const token = Number(await page.locator('[data-testid=token][data-origin=resampled]').first().getAttribute('data-token'));
    await page.getByTestId('show-in-lab').press('Enter');
    await page.getByTestId('distribution').first().waitFor();
    expect(await lookedAt(page)).toEqual([{ kind: 'answer', message: 3, token }]);
    expect(await page.getByTestId('token-picker').getByRole('option', { selected: true }).getAttribute('data-pick')).toBe(String(token));
  });

  it('shows the end of a text, at another temperature', async () => {
    const page = await openLab('resampling');
    await page.getByTestId('selection-text').check();
    const field = page.getByTestId('selection-typed');
    await field.fill('Once upon a time');
    await field.press('Enter');
    await page.getByTestId('where').getByText('Once').waitFor();
    await clickName(page.getByTestId('selection-temperature'));
    await page.getByTestId('selection-temperature').press('ArrowUp');
    await page.waitForFunction(() => window.hunchReplay?.calls.filter(({ command }) => command === 'lab_position').length === 3);
    expect((await calls(page, 'lab_position')).at(-1)).toMatchObject({
      request: { source: { kind: 'text', text: 'Once upon a time' }, sampling: { temperature: 1.1 } },
    });
  });
});

describe('the proof', () => {
  it('goes through the steps with the numbers of a chosen token', async () => {
    const page = await openLab('resampling');
    await page.getByTestId('selection-toy').check();
    await page.getByTestId('toy-note').waitFor();
    await page.getByTestId('where').waitFor({ state: 'detached' });
    await page.getByTestId('proof').locator('summary').press('Enter');
    for (const i of [0, 1]) {
      const { id, overlap, residual, total } = toy.tokens[i]!;
      await page.getByTestId('proof-token').selectOption(String(id));
      const [o, z, r, t] = [overlap, toy.rejection, residual, total].map(formatSignificant);
      expect(await page.getByTestId('proof-sum').textContent()).toContain(`= ${o} + ${z} · ${r} = ${t}`);
    }
  });

  it('uses the sampling of the shown answer', async () => {
    const page = await openLab('resampling', { answered: true });
    await page.getByTestId('own-sampling').waitFor();
    await page.getByTestId('selection-temperature').press('ArrowUp');
    await page.getByTestId('own-sampling').getByText('was drawn at temperature').waitFor();
  });
});

describe('the q of an answer', () => {
  const note = async (page: Page, origin: string): Promise<string> => {
    await page.locator(`[data-testid=token-picker] [data-origin=${origin}]`).first().click();
    await page.getByTestId('where').waitFor();
    return page.getByTestId('own-sampling').innerText();
  };

  it('is claimed only where the draft model drafted the token', async () => {
    const page = await openLab('resampling', { answered: true });
    expect(await note(page, 'accepted')).not.toContain('drafted by');
    expect(await note(page, 'bonus')).toContain('No draft was tested');
  });

  it('is named as another where a lookup drafted the token', async () => {
    const page = await openLab('resampling', { answered: true, replay: 'fixture-ngram' });
    expect(await note(page, 'accepted')).toBe('q of the loaded draft; this token was drafted by: N-gram');
  });
});

describe('the samplers', () => {
  it.each(['light', 'dark'] as const)('draw next to theory, from p and q that move (%s)', async (colours) => {
    const page = await openLab('samplers', { colours, height: 1100 });
    const cell = async (sampler: string, name: string) =>
      Number.parseFloat((await page.locator(`[data-sampler=${sampler}]`).getByTestId(name).textContent()) ?? '');
    await page.getByTestId('draw-one').click();
    expect(await page.getByTestId('steps').textContent()).toContain('Accepted after');
    for (let i = 0; i < 10; i++) await page.getByTestId('draw-many').click();
    for (const sampler of ['speculative', 'one_try', 'von_neumann']) {
      expect(Math.abs((await cell(sampler, 'measured-acceptance')) - (await cell(sampler, 'predicted-acceptance')))).toBeLessThan(0.03);
      expect(await cell(sampler, 'measured-variation')).toBeLessThan(0.03);
    }
    const [predicted, measured] = [await cell('von_neumann', 'predicted-proposals'), await cell('von_neumann', 'measured-proposals')];
    expect(Math.abs(measured / predicted - 1)).toBeLessThan(0.06);
    expect(await page.getByTestId('proposal').count()).toBe(400);
    await page.screenshot({ path: `${output}lab-samplers-drawn-${colours}.png` });
    await page.getByTestId('height-a').press('ArrowLeft');
    expect(await page.getByTestId('proposal').count()).toBe(0);
    await page.getByTestId('envelope').press('End');
    await expect.poll(() => cell('von_neumann', 'predicted-proposals')).toBeGreaterThan(2 * predicted);
    for (const token of ['a', 'b', 'c', 'd']) await page.getByTestId(`height-${token}`).press('Home');
    await page.getByTestId('no-weight').waitFor();
  });
});

describe('the unbiasedness check', () => {
  it('finds the lossless rules consistent with p and the lossy ones not', async () => {
    const page = await openLab('unbiased');
    await page.getByTestId('check').click();
    await page.getByTestId('lab-progress').waitFor();
    await page.getByTestId('lab-progress').waitFor({ state: 'detached' });
    const verdicts = await page.locator('[data-verdict]').evaluateAll((all) => all.map((each) => each.getAttribute('data-verdict')));
    expect(verdicts).toEqual(['fits', 'fits', 'fits', 'differs', 'differs']);
    const table = await tableOf(page, 'histogram-lossless');
    expect(table.reduce((sum, row) => sum + Number(row[2]?.replace(/,/g, '')), 0)).toBe(10_000);
    expect(await page.getByTestId('check-lossless').textContent()).toContain('10,000 rounds');
  });

  it('stops at once, and keeps the rounds so far', async () => {
    const page = await openLab('unbiased');
    await page.getByTestId('check-size-100000').check();
    await page.getByTestId('check').click();
    await page.getByTestId('chi').first().waitFor();
    await page.getByTestId('lab-stop').click();
    await page.getByTestId('check').waitFor({ timeout: 500 });
    const asked = (await calls(page, 'lab_rounds')).length;
    await page.waitForTimeout(300);
    expect((await calls(page, 'lab_rounds')).length).toBe(asked);
    expect(await page.locator('[data-verdict=waiting]').count()).toBeLessThan(5);
  });
});

describe('the landscape', () => {
  const grid = lab.landscapes.measured;

  it('reads exact values by pointer and by arrow keys', async () => {
    const page = await openLab('landscape');
    const cursor = page.getByTestId('landscape-cursor');
    await cursor.focus();
    // At first at alpha 0.7 and the best K there, which is 1.
    expect(grid.best[14]).toBe(1);
    const shownValue = (row: number, column: number) =>
      `alpha ${formatMean(grid.alphas[row]!)}, K ${formatCount(grid.depths[column]!)}: ${formatMean(grid.speedup[row]![column]!)}× predicted`;
    expect(await page.getByTestId('landscape-value').textContent()).toBe(shownValue(14, 0));
    await page.keyboard.press('ArrowRight');
    await page.keyboard.press('ArrowUp');
    expect(await page.getByTestId('landscape-value').textContent()).toBe(shownValue(15, 1));
    const box = (await cursor.boundingBox())!;
    await page.mouse.move(box.x + 2, box.y + box.height - 2);
    expect(await page.getByTestId('landscape-value').textContent()).toBe(shownValue(0, 0));
    const table = await tableOf(page, 'landscape');
    expect(table[0]?.slice(1)).toEqual(grid.speedup.at(-1)!.map((value) => `${formatMean(value)}×`));
    expect(await page.getByTestId('best').count()).toBe(grid.best.filter((depth) => depth > 0).length);
  });

  it('names the answers under the pointer, and lists them below', async () => {
    const page = await openLab('landscape');
    await page.getByTestId('session').nth(1).hover();
    expect(await page.getByTestId('landscape-session').textContent()).toContain('A lighthouse in a storm, Draft model: alpha 0.52');
    expect(await page.getByTestId('sessions-label').textContent()).toBe('your answers');
    await page.getByTestId('sessions').locator('summary').press('Enter');
    await page.getByTestId('sessions').getByText('A lighthouse in a storm').waitFor();
  });

  it('models another machine, and a batch of conversations, with sliders', async () => {
    const page = await openLab('landscape');
    await page.getByTestId('machine-made_up').check();
    await page.getByTestId('draft-cost').press('ArrowRight');
    await page.waitForFunction(() => window.hunchReplay?.calls.at(-1)?.command === 'landscape');
    expect((await calls(page, 'landscape')).at(-1)).toEqual({
      machine: { kind: 'made_up', draft_cost: 0.26, row_cost: 0.08 },
      batch: 1,
      draft: { kind: 'chain' },
    });
    await page.getByTestId('batch').press('ArrowRight');
    await page.getByText('A pass has 2 · (K + 1) rows').waitFor();
    expect((await calls(page, 'landscape')).at(-1)).toMatchObject({ machine: { kind: 'made_up' }, batch: 2 });
    expect(await page.getByTestId('extrapolated').count(), 'nothing is measured').toBe(0);
  });

  it('shows what a round yields and takes, and hatches what was not measured', async () => {
    const page = await openLab('landscape');
    const figure = (name: string) => page.getByTestId(`figure-${name}`).textContent();
    const [row, column] = [14, 0];
    expect(await figure('tokens')).toContain(formatMean(grid.tokens[row]![column]!));
    expect(await figure('accepted')).toContain(formatMean(grid.tokens[row]![column]! - 1));
    expect(await figure('cost')).toContain(`${formatMean(grid.round_cost[row]![column]!)} passes`);
    expect(await figure('operations')).toContain(`${formatMean(grid.operations![row]![column]!)}×`);
    expect(await page.getByTestId('extrapolated').count()).toBe(0);
    await page.getByTestId('batch').press('ArrowRight');
    await page.getByTestId('extrapolated-note').waitFor();
    // 2 (K + 1) rows are more than 13 from K = 6 on.
    expect(await page.getByTestId('extrapolated').getAttribute('data-from')).toBe('6');
  });

  it('is of trees with the answers that drafted them', async () => {
    const page = await openLab('landscape');
    await page.getByTestId('session').first().waitFor();
    expect(await page.getByTestId('session').count()).toBe(2);
    await page.getByTestId('draft-kind-tree').check();
    await page.getByTestId('siblings').waitFor();
    expect(await page.getByTestId('session').count()).toBe(1);
    expect((await calls(page, 'landscape')).at(-1)).toMatchObject({ draft: { kind: 'tree', siblings: 0.6 } });
  });

  it('is of each drafter that was measured, with its own answers', async () => {
    const page = await openLab('landscape');
    await page.getByTestId('session').first().waitFor();
    expect(await page.getByTestId('unshown').textContent()).toBe('Not shown: 2 answers with other kinds of drafts or other drafters.');
    await page.getByTestId('drafter-head').check();
    await page.getByText('(Head, measured)').waitFor();
    expect((await calls(page, 'landscape')).at(-1)).toMatchObject({ machine: { kind: 'measured', drafter: 'head' } });
    expect(await page.getByTestId('session').count(), 'no answer was drafted by the head alone').toBe(0);
  });

  it('names the popular formulas next to simulated rounds', async () => {
    const page = await openLab('landscape');
    await page.getByTestId('landscape-cursor').focus();
    for (let step = 0; step < 4; step += 1) await page.keyboard.press('ArrowRight');
    await page.getByTestId('token-mistakes').locator('summary').press('Enter');
    const value = async (key: string) => (await page.getByTestId(`formula-${key}`).textContent())?.trim();
    expect([await value('truth'), await value('bonusTwice'), await value('firstFree')]).toEqual(['2.94', '3.11', '3.77']);
    const mean = async () => Number(await page.getByTestId('simulated-tokens').getAttribute('data-mean'));
    const before = await mean();
    expect(before).toBeCloseTo(2.94, 1);
    await page.getByTestId('simulate-tokens').click();
    await expect.poll(mean).not.toBe(before);
    await page.getByTestId('landscape-cursor').focus();
    await page.keyboard.press('ArrowLeft');
    expect(await value('truth')).toBe(formatMean(grid.tokens[14]![3]!));
  });

  it('simulates a server, and marks what is extrapolated', async () => {
    const page = await openLab('landscape');
    await page.getByTestId('serving').locator('summary').press('Enter');
    await page.getByTestId('serve').click();
    await page.getByTestId('load').first().waitFor();
    expect((await calls(page, 'lab_serving')).at(-1)).toEqual({
      request: { machine: { kind: 'measured', drafter: null }, draft: { kind: 'chain' }, alpha: 0.7, max_batch: 8 },
    });
    const shown = await page.getByTestId('served').allTextContents();
    const { loads, measured_rows } = lab.serving;
    const expected = loads.flatMap(({ served }) =>
      served.slice(1).map(({ speedup, widest }) => `${formatMean(speedup)}×${widest > measured_rows! ? ' *' : ''}`),
    );
    expect(shown).toEqual(expected);
    expect(await page.getByTestId('serving-extrapolated').textContent()).toContain('13 rows');
  });

  it('says that nothing was measured, and links to the measurement', async () => {
    const page = await openLab('landscape', { app: 'unmeasured', apps: { unmeasured: { ...app, lab: { ...lab, curve: null } } } });
    await page.getByTestId('not-measured').waitFor();
    expect((await calls(page, 'landscape')).at(-1)).toMatchObject({ machine: { kind: 'made_up' } });
    await page.getByTestId('machine-made_up').focus();
    await page.keyboard.press('ArrowLeft');
    await page.getByText('are not measured yet.').waitFor();
    expect(await page.getByTestId('landscape').count()).toBe(0);
    await page.getByTestId('go-measure').press('Enter');
    expect(await page.evaluate(() => document.activeElement?.id)).toBe('lab-tab-costs');
    await page.getByTestId('measure-costs').click();
    await page.getByTestId('relative').waitFor();
    await page.getByTestId('lab-landscape').click();
    await page.getByTestId('landscape').waitFor();
    expect(await page.getByTestId('not-measured').count()).toBe(0);
  });
});

describe('the rules side by side', () => {
  it('are read at each temperature by arrow keys, down to 0', async () => {
    const page = await openLab('rules');
    const cursor = page.getByTestId('rule-lines-cursor');
    await cursor.focus();
    const values = () => page.getByTestId('rule-values').locator('[data-rule]').allTextContents();
    const row = (temperature: number) => lab.rules.find((each) => each.temperature === temperature)!;
    const written = (temperature: number) => {
      const { lossless, argmax, matching, typical, lenience } = row(temperature);
      return [lossless, argmax, matching, typical, lenience].map(formatProbability);
    };
    expect(await values()).toEqual(written(1));
    await page.keyboard.press('ArrowRight');
    expect(await values()).toEqual(written(1.1));
    await page.keyboard.press('Home');
    expect(await values()).toEqual(written(0));
    await page.getByText('At temperature 0: the most likely token').waitFor();
    expect(await tableOf(page, 'rule-lines')).toHaveLength(24);
    // The text of the position has the colours of origins, which mean something else.
    const colours = await page
      .getByTestId('rule-lines')
      .locator('[data-line]')
      .evaluateAll((all) => all.map((one) => one.getAttribute('style')));
    expect(colours.filter((style) => style?.includes('--origin'))).toEqual([]);
  });
});

describe('the acceptance map', () => {
  it('shows the shares of the response, for this conversation or for all', async () => {
    const page = await openLab('acceptance', { answered: true });
    const table = await tableOf(page, 'by-kind');
    expect(table.map(([, share]) => share)).toEqual(lab.maps.conversation.by_kind.map(({ share }) => formatShare(share)));
    expect(await page.getByTestId('basis').textContent()).toBe('180 tokens tested in 1 answer, measured');
    await page.getByTestId('reach-all').check();
    await page.getByText('2,160 tokens tested in 14 answers').waitFor();
    expect((await calls(page, 'acceptance_map')).at(-1)).toEqual({ conversation: null });
    const confidence = await page
      .getByTestId('calibration-bin')
      .evaluateAll((bins) => bins.map((bin) => Number(bin.getAttribute('data-confidence'))));
    expect(confidence).toEqual(lab.maps.all.by_confidence.map((bin) => bin.confidence));
    expect((await tableOf(page, 'by-position')).map(([position]) => position)).toEqual(['1', '2', '3', '4']);
  });

  it('covers all answers while the conversation is not saved', async () => {
    const page = await openLab('acceptance');
    await page.getByText('2,160 tokens tested in 14 answers').waitFor();
    expect(await page.getByTestId('reach-all').isChecked()).toBe(true);
    expect(await page.getByTestId('reach-conversation').isDisabled()).toBe(true);
  });

  it('says what to do when nothing was drafted', async () => {
    const maps = { conversation: emptyMap, all: emptyMap };
    const page = await openLab('acceptance', { app: 'fresh', apps: { fresh: { ...app, lab: { ...lab, maps } } } });
    expect(await page.getByTestId('lab-placeholder').textContent()).toContain('No drafts yet');
  });
});

describe('the round inspector', () => {
  it('steps through the rounds of the answer by buttons and arrow keys', async () => {
    const page = await openLab('rounds', { answered: true });
    const at = async () => Number(/\d+/.exec((await page.getByTestId('round-at').textContent()) ?? '')?.[0]);
    const recorded = readFileSync(new URL('./fixtures/fixture-answer.jsonl', import.meta.url), 'utf8');
    const rounds = recorded
      .split('\n')
      .filter(Boolean)
      .flatMap((line) => (JSON.parse(line) as { events: { type: string; drafted: number; tokens: unknown[] }[] }).events)
      .filter(({ type }) => type === 'round');
    expect(await at()).toBe(1);
    await page.getByTestId('next-round').click();
    expect(await at()).toBe(2);
    await page.keyboard.press('ArrowRight');
    expect(await at()).toBe(3);
    expect(Number(await page.getByTestId('round').getAttribute('data-drafted'))).toBe(rounds[2]!.drafted);
    expect(await page.getByTestId('emitted-token').count()).toBe(rounds[2]!.tokens.length);
    await page.getByTestId('strip-cursor').focus();
    await page.keyboard.press('End');
    expect(await at()).toBe(rounds.length);
    expect(await page.getByTestId('strip-cursor').getAttribute('aria-valuenow')).toBe(String(rounds.length));
    expect((await tableOf(page, 'strip')).map(([round]) => round)).toEqual(rounds.map((_, i) => formatCount(i + 1)));
  });

  it('names drafted tokens that were never tested', async () => {
    const page = await openLab('rounds', { answered: true });
    const recorded = parseRecording(readFileSync(new URL('./fixtures/fixture-answer.jsonl', import.meta.url), 'utf8'));
    const rounds = recorded.messages.flatMap(({ events }) => events).filter((event) => event.type === 'round');
    const at = rounds.findIndex(({ draft }) => draft.some(({ fate }) => fate === 'untested'));
    for (let step = 0; step < at; step += 1) await page.getByTestId('next-round').click();
    const untested = rounds[at]!.draft.filter(({ fate }) => fate === 'untested').map(({ text }) => visibleText(text));
    expect(await page.getByTestId('untested-token').locator('.text').allTextContents()).toEqual(untested);
    expect(await page.getByTestId('draft-tree').count()).toBe(0);
  });

  it.each(['light', 'dark'] as const)('draws the tree of a tree draft (%s)', async (colours) => {
    const name = 'tiny-draft-tree';
    const text = readFileSync(new URL(`../streams/${name}.jsonl`, import.meta.url), 'utf8');
    const rounds = parseRecording(text)
      .messages.flatMap(({ events }) => events)
      .filter((event) => event.type === 'round');
    const page = await openLab('rounds', { answered: true, replay: name, recordings: { [name]: text }, colours });
    const at = rounds.findIndex(({ draft }) => draft.some(({ parent }, i) => i > 0 && parent === null));
    for (let step = 0; step < at; step += 1) await page.getByTestId('next-round').click();
    await page.getByTestId('draft-tree').waitFor();
    // Depth first on screen means top to bottom, so only the contents are compared, not the order.
    const shown = await page
      .getByTestId('drafted')
      .evaluateAll((all) => all.map((node) => `${node.textContent} ${node.getAttribute('data-fate')}`));
    expect(shown.sort()).toEqual(rounds[at]!.draft.map(({ text: token, fate }) => `${visibleText(token) || '·'} ${fate}`).sort());
    await page.getByTestId('round').screenshot({ path: `${output}lab-tree-${colours}.png` });
  });

  it('names the mistake of a bonus token after a rejection', async () => {
    const page = await openLab('rounds', { answered: true });
    await page.getByTestId('bonus-mistake').locator('summary').press('Enter');
    const pairs = await page
      .getByTestId('pair')
      .evaluateAll((all) => all.map((row) => ['right', 'wrong', 'simulated'].map((key) => Number(row.getAttribute(`data-${key}`)))));
    for (const [, wrong, simulated] of pairs) expect(simulated).toBeCloseTo(wrong!, 1);
    expect(Math.max(...pairs.map(([right, wrong]) => Math.abs(right! - wrong!)))).toBeGreaterThan(0.1);
  });

  it('shows the actual and the hypothetical answer side by side', async () => {
    const page = await openLab('rounds', { answered: true });
    const { was, would, covered } = lab.what_if;
    await page.getByTestId('was-alpha').waitFor();
    await clickName(page.getByTestId('what-if-depth'));
    expect(await page.getByTestId('was-mean_acceptance_length').textContent()).toBe(formatMean(was.mean_acceptance_length));
    expect(await page.getByTestId('would-alpha').textContent()).toBe(formatProbability(would.alpha));
    expect(await page.getByTestId('covered').textContent()).toContain(formatShare(covered));
    await page.getByTestId('what-if-depth').press('ArrowUp');
    await page.getByTestId('what-if-other').check();
    await page.getByTestId('would-tok_s').getByText('not known').waitFor();
    expect((await calls(page, 'what_if')).at(-1)).toEqual({ request: { message: 3, max_draft: 7, temperature: 0.2 } });
  });
});

describe('the cost curve', () => {
  const unmeasured = { ...app, lab: { ...lab, curve: null, measuring_ms: 150 } };

  it('measures with progress, and shows the result', async () => {
    const page = await openLab('costs', { app: 'unmeasured', apps: { unmeasured } });
    await page.getByTestId('lab-placeholder').waitFor();
    await page.getByTestId('measure-costs').press('Enter');
    await page.getByText(/round \d+ of 12/).waitFor();
    await page.getByTestId('relative').waitFor();
    const table = await tableOf(page, 'relative');
    expect(table).toEqual(
      curve.target.points.map(({ rows, relative }, i) => [
        formatCount(rows),
        formatMean(relative),
        formatMean(curve.draft!.points[i]!.relative),
      ]),
    );
    expect(await page.getByTestId('time-target-floor').count()).toBe(1);
    await page.getByTestId('relative-cursor').focus();
    await page.keyboard.press('Home');
    expect(await page.getByTestId('relative-value').textContent()).toBe('target 1 row: 1.00×, draft 1 row: 1.00×, measured');
  });

  it('shows the experts that a pass of the chosen rows reads', async () => {
    const experts = { count: 32, used: 2, distinct: curve.target.points.map(({ rows }) => 2 + 1.75 * (rows - 1)) };
    const mixture = { ...app, lab: { ...lab, curve: { ...curve, target: { ...curve.target, experts } } } };
    const page = await openLab('costs', { app: 'mixture', apps: { mixture } });
    const line = page.getByTestId('experts-target');
    await line.waitFor();
    expect(await line.textContent()).toBe('2 of 32 experts a row, 7.25 distinct at 4 rows, measured');
    await page.getByTestId('relative-cursor').focus();
    await page.keyboard.press('Home');
    expect(await line.textContent()).toBe('2 of 32 experts a row, 2.00 distinct at 1 row, measured');
    expect(await page.getByTestId('experts-draft').count()).toBe(0);
  });

  it('stops after the current pass', async () => {
    const page = await openLab('costs', { app: 'unmeasured', apps: { unmeasured } });
    await page.getByTestId('measure-costs').click();
    await page.getByText(/round \d+ of 12/).waitFor();
    await page.getByTestId('lab-stop').click();
    await page.getByTestId('costs-note').getByText('Stopped').waitFor();
    expect(await calls(page, 'stop_measurement')).toEqual([{ id: 1001 }]);
  });

  it('is named in the chat, where it can be stopped', async () => {
    const page = await openLab('costs', { app: 'unmeasured', apps: { unmeasured } });
    await page.getByTestId('measure-costs').click();
    await page.getByTestId('lab-rules').click();
    await page.keyboard.press('Control+1');
    await page.getByTestId('prompt').fill('Meanwhile');
    expect(await page.getByTestId('elsewhere').innerText()).toContain('The costs of this machine are being measured.');
    expect(await page.getByTestId('send').isDisabled()).toBe(true);
    await page.getByTestId('show-elsewhere').click();
    await page.getByTestId('lab-stop').waitFor();
    await page.keyboard.press('Control+1');
    await page.getByTestId('stop-elsewhere').click();
    await page.getByTestId('elsewhere').waitFor({ state: 'detached' });
    expect(await page.getByTestId('send').isEnabled()).toBe(true);
  });
});

describe('looks', () => {
  const looks = [900, 1400].flatMap((width) => (['light', 'dark'] as const).map((colours) => ({ width, colours })));

  it.each(looks)('at $width, $colours', async ({ width, colours }) => {
    const page = await openLab('resampling', { answered: true, width, colours, height: 1000 });
    for (const widget of labWidgets) {
      await page.getByTestId(`lab-${widget}`).click();
      if (widget === 'resampling') {
        await page.getByTestId('distribution').first().waitFor();
        await page.getByTestId('run').click();
        await page.getByTestId('distance').waitFor();
        await page.getByTestId('one-round').click();
      }
      if (widget === 'unbiased') await page.getByTestId('check').click();
      if (widget === 'rounds') await page.getByTestId('next-round').click();
      await page.getByTestId('lab-progress').waitFor({ state: 'detached' });
      await page.waitForTimeout(200);
      expect(await faintText(page), widget).toEqual([]);
      const wide = await page.getByTestId('lab-scroller').evaluate((element) => element.scrollWidth - element.clientWidth);
      expect(wide, `${widget} fits its width`).toBeLessThanOrEqual(0);
      await page.screenshot({ path: `${output}lab-${widget}-${width}-${colours}.png` });
    }
  });

  it('in German, with a token of an answer', async () => {
    const page = await openLab('resampling', { answered: true, locale: 'de-DE', height: 1000 });
    await page.getByTestId('selection-answer').check();
    await page.getByTestId('token-picker').getByRole('option').nth(20).click();
    await page.getByTestId('distribution').nth(10).waitFor();
    await page.screenshot({ path: `${output}lab-answer-900-german.png` });
    for (const widget of labWidgets.slice(1)) {
      await page.getByTestId(`lab-${widget}`).click();
      await page.waitForTimeout(200);
      await page.screenshot({ path: `${output}lab-${widget}-900-german.png` });
    }
  });
});
