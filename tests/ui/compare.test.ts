// The Compare screen on recorded comparisons: its requests, its display while they run, and that every figure on
// screen is from the report.

import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Page } from 'playwright-core';
import { describe, expect, it } from 'vitest';
import type { CompareEvent, ComparisonReport, ErrorInfo } from '../../ui/src/lib/ipc/schema.gen';
import { toLines } from './fixtures/build';
import { recordComparison, type PlannedComparison } from './fixtures/comparison';
import recordedApp from './fixtures/fixture-app.json';
import { comparisons, ownLanesComparison, suiteComparison, sweepComparison } from './fixtures/plans';
import { ask, calls, useWindow, type Opening } from './harness';
import { violations } from './violations';

const hunch = useWindow();
const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });

const planned = comparisons['fixture-comparison'] as PlannedComparison;

function reportOf(plan: PlannedComparison): ComparisonReport {
  const ending = recordComparison(plan)
    .flatMap(({ events }) => events)
    .at(-1);
  if (ending?.type !== 'finished' || !ending.report) throw new Error('a recorded comparison ends');
  return ending.report;
}

const report = reportOf(planned);
const suite = {
  compare: 'suite',
  recordings: { suite: toLines(recordComparison(suiteComparison)) },
};

async function openCompare(opening: Opening = {}): Promise<Page> {
  const page = await hunch.open({ speed: 'instant', ...opening });
  await page.getByTestId('place-compare').click();
  await page.getByTestId('compare').waitFor();
  return page;
}

async function start(page: Page, prompt = 'Write a short scene in a lighthouse during a storm.'): Promise<void> {
  await page.getByTestId('compare-prompt').fill(prompt);
  await page.getByTestId('compare-start').click();
}

async function compared(opening: Opening = {}): Promise<Page> {
  const page = await openCompare(opening);
  await start(page);
  await page.getByTestId('result').waitFor();
  return page;
}

/** Gives the first lane the draft model. */
async function draftModel(page: Page): Promise<void> {
  await page.getByTestId('lane-method').first().click();
  await page.getByTestId('method-draft-model').click();
}

/** Text written by a lane. */
const written = (page: Page, lane: number) => page.locator(`[data-testid=lane][data-lane="${lane}"] [data-testid=answer]`).innerText();
const figure = (page: Page, key: string) => page.locator(`td[data-figure=${key}]`).allInnerTexts();
const fixed = (value: number, digits: number) => value.toFixed(digits);

describe('a sweep of draft lengths', () => {
  const recorded = {
    compare: 'sweep',
    recordings: { sweep: toLines(recordComparison(sweepComparison)) },
  };

  it('starts with one click, and shows a curve and the best length', async () => {
    const planned = reportOf(sweepComparison);
    const page = await openCompare(recorded);
    expect(await page.getByTestId('sweep-start').isDisabled()).toBe(true);
    await page.getByTestId('compare-prompt').fill('A lighthouse');
    await page.getByTestId('sweep-start').click();
    await page.getByTestId('result').waitFor();
    const [asked] = await calls(page, 'compare');
    const lanes = [1, 2, 3, 4, 6, 8, 'auto'].map((max_draft) => ({
      method: 'draft-model',
      max_draft,
    }));
    expect(asked?.['request']).toMatchObject({ lanes });
    // The form keeps its own lane.
    await page.getByTestId('compare-setup').click();
    expect(await page.getByTestId('lane-choice').count()).toBe(1);
    const best = planned.lanes.slice(1).reduce((fastest, lane) => (lane.speedup > fastest.speedup ? lane : fastest));
    const depth = String(best.config.max_draft);
    expect(await page.getByTestId('sweep').getAttribute('data-best')).toBe(depth);
    expect(await page.getByTestId('sweep').innerText()).toContain(`Best K for Draft model: ${depth}, ${fixed(best.speedup, 2)}× plain`);
    expect(
      await page
        .getByTestId('sweep-chart')
        .locator('circle')
        .evaluateAll((all) => all.map((dot) => dot.getAttribute('data-depth'))),
    ).toEqual(['1', '2', '3', '4', '6', '8', 'auto']);
    await page.getByTestId('sweep-chart-table').click();
    const rows = await page.getByTestId('sweep-chart').locator('tbody tr').all();
    expect(await rows.at(-1)?.locator('th,td').allInnerTexts()).toEqual([
      'auto',
      ...['speedup', 'speedup_low', 'speedup_high'].map((key) => fixed(planned.lanes.at(-1)?.[key as 'speedup'] ?? 0, 2)),
      '3',
    ]);
    expect(await violations(page)).toEqual([]);
  });

  it('is not claimed for other comparisons', async () => {
    const page = await compared(suite);
    expect(await page.getByTestId('sweep').count()).toBe(0);
  });
});

describe('lanes with settings of their own', () => {
  const path = (name: string) => `/home/person/.local/share/hunch/models/${name}.gguf`;

  it('show their method only, and as labels what differs from the comparison', async () => {
    const page = await openCompare();
    const lane = page.getByTestId('lane-choice');
    await draftModel(page);
    expect((await lane.innerText()).trim()).toBe('Draft model');
    await page.getByTestId('lane-settings').click();
    await page.getByTestId('lane-depth').fill('6');
    await page.getByTestId('lane-temperature').fill('0.8');
    await page.getByTestId('lane-rule').click();
    await page.getByTestId('rule-coupled').click();
    expect(await violations(page)).toEqual([]);
    await page.keyboard.press('Escape');
    expect(await page.getByTestId('lane-labels').innerText()).toBe('K 6 · temperature 0.8 · coupled rule');
    expect(await page.getByTestId('lane-settings').getAttribute('aria-label')).toBe(
      'Settings of the lane: K 6, temperature 0.8, coupled rule, lane 2',
    );
    await start(page);
    const [asked] = await calls(page, 'compare');
    expect(asked?.['request']).toMatchObject({
      lanes: [
        {
          method: 'draft-model',
          max_draft: 6,
          temperature: 0.8,
          rule: { name: 'coupled' },
        },
      ],
      rule: { name: 'lossless' },
      sampling: { temperature: 0 },
    });
    await page.getByTestId('result').waitFor();
    await page.getByTestId('compare-setup').click();
    await page.getByTestId('lane-settings').click();
    await page.getByTestId('lane-reset').click();
    expect(await page.getByTestId('lane-labels').count()).toBe(0);
  });

  it('can have another target, and say what they lack', async () => {
    const page = await openCompare();
    await page.getByTestId('compare-prompt').fill('A lighthouse');
    await draftModel(page);
    await page.getByTestId('lane-settings').focus();
    await page.keyboard.press('Enter');
    const target = path('qwen2.5-coder-0.5b-instruct-q4_k_m');
    await page.getByTestId('lane-target').selectOption(target);
    await page.getByTestId('further-target').waitFor();
    expect(await page.getByTestId('further-target').innerText()).toContain('Another target writes another text.');
    expect(await violations(page)).toEqual([]);
    await page.keyboard.press('Escape');
    expect(await page.evaluate(() => document.activeElement?.getAttribute('data-testid'))).toBe('lane-settings');
    expect(await page.getByTestId('lane-labels').innerText()).toContain('target Qwen2.5 Coder 0.5B Instruct');
    // Nothing smaller can draft for this target.
    expect(await page.getByTestId('compare-hint').innerText()).toBe('A lane needs a draft or head. Choose one in its settings');
    await page.getByTestId('lane-method').click();
    await page.getByTestId('method-ngram').click();
    await page.getByTestId('compare-start').click();
    const [asked] = await calls(page, 'compare');
    expect(asked?.['request']).toMatchObject({
      lanes: [{ method: 'ngram', max_draft: 'auto', models: { target } }],
    });
  });

  it('are named in the result, with the limits of the comparison', async () => {
    const own = {
      compare: 'own',
      recordings: { own: toLines(recordComparison(ownLanesComparison)) },
    };
    const page = await compared(own);
    const names = await page.getByTestId('lane').evaluateAll((all) => all.map((lane) => lane.getAttribute('aria-label')));
    expect(names).toEqual([
      'Plain',
      'Draft model, K 4',
      'Draft model, K auto, temperature 0.8',
      expect.stringMatching(/^Draft model, K 4, temperature 0.8, .*lenience/),
      'Draft model, K 4, target Qwen2.5 7B Instruct Q4_K_M, draft Qwen2.5 0.5B Instruct Q8_0',
      'Plain, temperature 0.8',
      'Plain, target Qwen2.5 7B Instruct Q4_K_M',
    ]);
    expect(await page.getByTestId('verdict').count()).toBe(4);
    expect(await page.getByTestId('identity').innerText()).toContain('Same text: 6 answers compared');
    const [lossless, lossy] = await page.getByTestId('not-compared').allInnerTexts();
    expect(lossless).toContain('The text may differ from plain: Draft model, K auto, temperature 0.8. Above temperature 0');
    // No sentence on lossless rules covers the lossy lane.
    expect(lossless).not.toContain('lenience');
    expect(lossy).toMatch(/^A lossy rule changes the distribution of the text: Draft model, K 4, .*lenience/);
    expect(await page.getByTestId('own-temperatures').innerText()).toContain('over plain decoding at that temperature');
    expect(await page.locator('td[data-figure=max_draft]').allInnerTexts()).toEqual(['–', '4', 'auto', '4', '4', '–', '–']);
    expect(await page.locator('[data-testid=figures-table] .own').allInnerTexts()).toContain('temperature 0.8');
    expect(await page.getByTestId('other-targets').innerText()).toContain('no lane is lossless against another target');
    expect(await page.getByTestId('sweep').count()).toBe(0);
    expect(await violations(page)).toEqual([]);
  });

  it('that did not run are named with the reason, next to the result of the others', async () => {
    const whole = reportOf(suiteComparison);
    const lost = {
      method: 'draft-model',
      max_draft: 4,
      models: { target: 'Qwen2.5 7B Instruct Q4_K_M' },
    } as const;
    const error: ErrorInfo = {
      code: 'model_not_found',
      message: 'The model is gone.',
    };
    const report: ComparisonReport = {
      ...whole,
      left_out: { lanes: [lost], error },
    };
    const events: CompareEvent[] = [
      { type: 'started', setting: whole.setting },
      { type: 'not_restored', error },
      { type: 'finished', report, kept: 1, trouble: error, stopped: false },
    ];
    const page = await compared({
      compare: 'early',
      recordings: { early: toLines([{ id: 1, seq: 0, events }]) },
    });
    const words = await page.getByTestId('left-out').innerText();
    expect(words).toContain('Ended early.');
    expect(words).toContain('Not measured: Draft model, K 4, target Qwen2.5 7B Instruct Q4_K_M. The result covers');
    expect(await page.getByTestId('trouble').count()).toBe(0);
    expect(await page.getByTestId('lane').count()).toBe(3);
    expect(await page.getByTestId('not-restored').innerText()).toContain('could not be loaded again');
    expect(await violations(page)).toEqual([]);
  });
});

describe('advanced settings of the chat', () => {
  it('apply to the lanes, and are among the conditions of the result', async () => {
    const { setting } = report;
    const sampling = {
      ...setting.sampling,
      presence_penalty: 0.5,
      logit_bias: { 7: -5 },
    };
    const changed = {
      ...setting,
      sampling,
      stop: ['END'],
      options: { exit_layer: 2 },
    };
    const finished = {
      type: 'finished',
      report: { ...report, setting: changed },
      kept: 1,
      trouble: null,
      stopped: false,
    } as const;
    const events: CompareEvent[] = [{ type: 'started', setting: changed }, finished];
    const page = await hunch.open({
      height: 900,
      speed: 'instant',
      compare: 'set',
      recordings: { set: toLines([{ id: 1, seq: 0, events }]) },
    });
    await page.getByTestId('example').first().waitFor();
    await page.getByTestId('settings').click();
    await page.getByTestId('advanced').locator('summary').click();
    await page.getByTestId('presence-penalty').fill('0.5');
    await page.getByTestId('presence-penalty').press('Enter');
    await page.getByTestId('stop').fill('END');
    await page.getByTestId('stop').press('Enter');
    await page.keyboard.press('Escape');
    await page.getByTestId('place-compare').click();
    expect(await page.getByTestId('shared').innerText()).toBe('Advanced settings of the chat apply to all lanes.');
    await page.screenshot({ path: `${output}compare-shared.png` });
    await start(page);
    await page.getByTestId('result').waitFor();
    const [asked] = await calls(page, 'compare');
    expect(asked?.['request']).toMatchObject({
      sampling: { presence_penalty: 0.5 },
      stop: ['END'],
    });
    expect(await page.getByTestId('made').innerText()).toContain('presence penalty 0.5; 1 token bias; 1 stop string; method options');
    await page.screenshot({ path: `${output}compare-shared-result.png` });
    expect(await violations(page)).toEqual([]);
  });
});

describe('a file of prompts', () => {
  const suites = {
    '/home/me/mine.jsonl': {
      path: '/home/me/mine.jsonl',
      name: 'mine',
      prompts: 40,
    },
    '/home/me/broken.jsonl': {
      code: 'invalid_request',
      message: 'Line 3 of the suite "broken" is not a prompt.',
      params: { reason: 'not_a_prompt', suite: 'broken', line: '3' },
    },
  };
  const app = {
    ...recordedApp,
    suites,
    picks: ['/home/me/broken.jsonl', '/home/me/mine.jsonl'],
  };

  it('is chosen in the window, and says what is wrong with one that is no suite', async () => {
    const page = await openCompare({ app: 'prompts', apps: { prompts: app } });
    await page.getByTestId('compare-kind-edit').focus();
    // The arrow key chooses, as in every group of radio buttons, and opens nothing.
    await page.keyboard.press('ArrowRight');
    expect(await page.getByTestId('compare-kind-file').isChecked()).toBe(true);
    expect(await calls(page, 'choose_file')).toEqual([]);
    await page.getByTestId('suite-file').click();
    await page.getByTestId('suite-error').waitFor();
    expect(await page.getByTestId('suite-error').innerText()).toContain('Line 3 of the suite "broken" is not a prompt.');
    expect(await page.getByTestId('compare-hint').innerText()).toBe('Choose a file of prompts first');
    await page.getByTestId('suite-file').click();
    await page.getByTestId('suite-file').getByText('mine, 40 prompts').waitFor();
    expect(await page.getByTestId('suite-error').count()).toBe(0);
    expect(await violations(page)).toEqual([]);
    await page.getByTestId('compare-prompts').fill('25');
    await page.getByTestId('compare-start').click();
    expect((await calls(page, 'choose_file'))[0]).toMatchObject({
      kind: 'suite',
    });
    const [asked] = await calls(page, 'compare');
    expect(asked?.['request']).toMatchObject({
      prompts: { kind: 'file', path: '/home/me/mine.jsonl', prompts: 25 },
    });
  });
});

describe('what is asked for', () => {
  it('is plain and the best method of the loaded models, with the settings of the chat', async () => {
    const page = await openCompare();
    expect(await page.getByTestId('compare-start').isDisabled()).toBe(true);
    expect(await page.getByTestId('compare-hint').innerText()).toBe('Write a prompt or choose an example');
    await start(page, ' Why is the sky blue? ');
    const [asked] = await calls(page, 'compare');
    expect(asked?.['request']).toMatchObject({
      prompts: { kind: 'text', system: '', text: 'Why is the sky blue?' },
      lanes: [{ method: 'auto', max_draft: 'auto' }],
      sampling: { temperature: 0 },
      rule: { name: 'lossless' },
      max_tokens: 512,
      runs: 6,
    });
  });

  it('can be changed: a suite, more lanes, their depth, runs, tokens and rule', async () => {
    const page = await openCompare();
    await page.getByTestId('compare-kind-prose').check();
    await page.getByTestId('compare-prompts').fill('2');
    await page.getByTestId('add-lane').click();
    expect(await page.getByTestId('lane-choice').count()).toBe(2);
    await page.getByTestId('lane-settings').first().click();
    await page.getByTestId('lane-depth').fill('6');
    await page.keyboard.press('Escape');
    await page.getByTestId('compare-runs').fill('5');
    await page.getByTestId('compare-tokens').fill('64');
    await page.getByTestId('compare-temperature').fill('0.7');
    await page.getByTestId('compare-form').getByTestId('acceptance').click();
    await page.getByTestId('rule-coupled').click();
    await page.getByTestId('compare-start').click();
    const [asked] = await calls(page, 'compare');
    expect(asked?.['request']).toMatchObject({
      prompts: { kind: 'suite', name: 'prose', prompts: 2 },
      lanes: [
        { method: 'auto', max_draft: 6 },
        { method: 'draft-model', max_draft: 'auto' },
      ],
      sampling: { temperature: 0.7 },
      rule: { name: 'coupled' },
      max_tokens: 64,
      runs: 5,
    });
    // Choices made here stay here.
    await page.getByTestId('place-chat').click();
    await page.getByTestId('settings').click();
    expect(await page.getByTestId('temperature').inputValue()).toBe('0.00');
  });

  it('without a model, says what to do', async () => {
    const page = await openCompare({ app: 'fixture-app-empty' });
    await page.getByTestId('compare-open-model').waitFor();
    expect(await page.getByTestId('compare-empty').innerText()).toContain('Open a model to compare');
    expect(await page.getByTestId('compare-hint').innerText()).toBe('Open a model first');
    expect(await page.getByTestId('compare-start').isDisabled()).toBe(true);
  });
});

describe('while it runs', () => {
  it('both lanes write in turn, coloured by origin, with the time left', async () => {
    const page = await openCompare({ speed: 12 });
    await start(page);
    await page.waitForFunction(() => document.querySelectorAll('[data-testid=lane][data-lane="1"] [data-testid=token]').length > 20);
    expect(await page.locator('[data-lane="1"] [data-testid=token][data-origin=accepted]').count()).toBeGreaterThan(5);
    expect(await page.locator('[data-lane="0"] [data-testid=token]:not([data-origin=plain])').count()).toBe(0);
    await expect.poll(() => page.getByTestId('lane-status').allInnerTexts()).toContain('running');
    await expect
      .poll(() => page.getByTestId('compare-progress').innerText(), {
        timeout: 20_000,
      })
      .toMatch(/^prompt 1 of 1, run 2 of 2, about [\d.]+ m?s left \(predicted\)$/);
    await page.getByTestId('result').waitFor();
    expect(await page.getByTestId('compare-progress').count()).toBe(0);
  });

  it('shows the progress of a suite', async () => {
    const page = await openCompare({ ...suite, speed: 40 });
    await page.getByTestId('compare-kind-code').check();
    await page.getByTestId('compare-start').click();
    await expect
      .poll(() => page.getByTestId('compare-progress').innerText(), {
        timeout: 20_000,
      })
      .toMatch(/^prompt 2 of 2, run 1 of 2, about .* left \(predicted\)$/);
    await page.getByTestId('result').waitFor();
    expect(await page.getByTestId('lane').count()).toBe(3);
  });

  it('stops at once, by button and by Escape, and keeps no unmeasured result', async () => {
    for (const stop of [(page: Page) => page.getByTestId('compare-stop').click(), (page: Page) => page.keyboard.press('Escape')]) {
      const page = await openCompare({ speed: 2 });
      await start(page);
      await page.locator('[data-lane="0"] [data-testid=token]').first().waitFor();
      await stop(page);
      await page.getByTestId('nothing-kept').waitFor({ timeout: 1000 });
      expect(await calls(page, 'stop_measurement')).toEqual([{ id: 1 }]);
      expect(await page.getByTestId('compare-start').isEnabled()).toBe(true);
      expect(await page.getByTestId('comparison-entry').count()).toBe(0);
    }
  });

  it.each(['light', 'dark'] as const)(
    'is shown in the chat, and stopped there with its button: Escape stops only what is on screen (%s)',
    async (colours) => {
      const page = await openCompare({ speed: 2, colours });
      await start(page);
      await page.keyboard.press('Control+1');
      expect(await page.getByTestId('elsewhere').innerText()).toContain('A comparison is running.');
      await page.screenshot({ path: `${output}chat-comparing-${colours}.png` });
      await page.keyboard.press('Escape');
      await page.getByTestId('show-elsewhere').click();
      await page.getByTestId('compare-stop').waitFor();
      await page.keyboard.press('Control+1');
      expect(await calls(page, 'stop_measurement')).toEqual([]);
      await page.getByTestId('stop-elsewhere').click();
      await expect.poll(() => calls(page, 'stop_measurement')).toEqual([{ id: 1 }]);
      await page.getByTestId('elsewhere').waitFor({ state: 'detached' });
    },
  );

  it('recovers messages lost by the channel', async () => {
    const page = await compared({ lose: [3, 4, 9, 20] });
    expect(await written(page, 0)).toBe(await written(page, 1));
  });

  it('continues while the chat is shown, where sending waits and says why', async () => {
    const page = await openCompare({ speed: 12 });
    await start(page);
    await page.keyboard.press('Control+1');
    await page.getByTestId('prompt').fill('Hello');
    expect(await page.getByTestId('send').isDisabled()).toBe(true);
    expect(await page.getByTestId('elsewhere').innerText()).toContain('A comparison is running.');
    await page.keyboard.press('Control+2');
    await page.getByTestId('result').waitFor();
  });

  it('blocks retrying a failed question in the chat', async () => {
    const page = await hunch.open({
      replay: 'fixture-refused,fixture-plain',
      speed: 2,
    });
    await ask(page);
    const again = page.getByTestId('retry');
    expect(await again.isEnabled()).toBe(true);
    await page.keyboard.press('Control+2');
    await start(page);
    await page.keyboard.press('Control+1');
    expect(await again.isDisabled()).toBe(true);
    await page.getByTestId('stop-elsewhere').click();
    await expect.poll(() => again.isEnabled()).toBe(true);
  });
});

describe('the result', () => {
  it('says the verdict in one sentence, with the report’s figures', async () => {
    const page = await compared();
    const verdict = report.lanes[1]?.verdict;
    if (!verdict) throw new Error('the lane has a verdict');
    expect(await page.getByTestId('verdict').getAttribute('data-outcome')).toBe('faster');
    const share = (value: number) => `${fixed(100 * value, 0)}%`;
    expect((await page.getByTestId('verdict').innerText()).replace(/\s+/g, ' ')).toBe(
      `Draft model, K 4 ${fixed(verdict.speedup, 2)}× the speed of plain: ${fixed(verdict.tokens_per_pass, 2)} tokens per pass at ${fixed(verdict.pass_cost, 2)}× the cost of a plain pass; largest loss: drafting. ` +
        `Decode time: drafting ${share(verdict.drafting_share)}, wider passes ${share(verdict.wider_share)}, other ${share(verdict.loop_share)}. ` +
        'All 2 samples agree. A verdict needs six.',
    );
  });

  it('shows every figure as the report has it', async () => {
    const page = await compared();
    const [plain, lane] = report.lanes;
    if (!plain || !lane) throw new Error('two lanes');
    expect(await figure(page, 'tok_s')).toEqual([fixed(plain.tok_s, 1), fixed(lane.tok_s, 1)]);
    expect(await figure(page, 'ttft_ms')).toEqual([`${fixed(plain.ttft_ms, 0)} ms`, `${fixed(lane.ttft_ms, 0)} ms`]);
    expect(await figure(page, 'mean_acceptance_length')).toEqual(['1.00', fixed(lane.mean_acceptance_length, 2)]);
    expect(await figure(page, 'acceptance_rate')).toEqual(['–', `${fixed(100 * lane.acceptance_rate, 0)}%`]);
    expect(await figure(page, 'predicted_speedup')).toEqual(['–', `${fixed(lane.predicted_speedup ?? 0, 2)}×`]);
    const table = page.getByTestId('figures-table');
    expect(await table.locator('tbody th').allInnerTexts()).toEqual(['Plain', 'Draft model']);
    // Said once, not for each figure.
    expect((await table.innerText()).toLowerCase()).not.toContain('measured');
    expect((await table.innerText()).toLowerCase()).not.toContain('samples');
    const note = await table.evaluate((element) => document.getElementById(element.getAttribute('aria-describedby') ?? '')?.textContent);
    expect(note).toContain('Measured in 2 samples per lane unless marked predicted.');
  });

  it('has a table behind every chart, with the same figures', async () => {
    const page = await compared();
    const rows = async (chart: string) => {
      await page.getByTestId(`${chart}-table`).click();
      const all = await page.getByTestId(chart).locator('tbody tr').all();
      return Promise.all(all.map((row) => row.locator('th,td').allInnerTexts()));
    };
    const lane = report.lanes[1];
    if (!lane) throw new Error('two lanes');
    const name = 'Draft model, K 4';
    const two = (value: number) => fixed(value, 2);
    expect(await rows('speedup-chart')).toEqual([
      [
        name,
        two(lane.speedup),
        two(lane.speedup_low),
        two(lane.speedup_high),
        '2',
        two(lane.decode_speedup),
        two(lane.predicted_speedup ?? 0),
      ],
    ]);
    expect(await rows('position-chart')).toEqual(
      lane.positions.map(({ drafted, accepted, share }, i) => [
        name,
        String(i + 1),
        String(drafted),
        String(accepted),
        `${fixed(100 * share, 0)}%`,
      ]),
    );
    const split = await rows('split-chart');
    expect(split.map(([lane_]) => lane_)).toEqual(['Plain', name]);
    expect(split[1]?.[1]).toBe(lane.split.prefill_ms.toFixed(0));
    const tokens = await rows('tokens-chart');
    expect(tokens).toHaveLength(report.answers.slice(-2).reduce((sum, { timeline }) => sum + timeline.length, 0));
    expect(tokens.at(-1)?.[2]).toBe(String(report.answers.at(-1)?.stats.generated_tokens));
    expect((await rows('rate-chart')).length).toBeGreaterThan(10);
    expect(await rows('memory-chart')).toContainEqual(['process peak', '1.8 GB']);
  });

  it('says that it ended early, and that it could not be saved', async () => {
    const messages = recordComparison(planned);
    const ending = messages.at(-1)?.events.at(-1);
    if (ending?.type !== 'finished') throw new Error('it ends');
    ending.trouble = { code: 'out_of_memory', message: 'No memory is left.' };
    const page = await compared({
      compare: 'early',
      recordings: { early: toLines(messages) },
    });
    expect(await page.getByTestId('trouble').innerText()).toMatch(/^Ended early.* No memory is left\.$/);
    expect(await page.getByTestId('not-saved').count()).toBe(0);
    expect(await (await compared()).getByTestId('trouble').count()).toBe(0);
  });

  it('says that the texts are identical, or why they may differ', async () => {
    const page = await compared();
    expect(await page.getByTestId('identity').getAttribute('data-proof')).toBe('same');
    expect(await page.getByTestId('identity').innerText()).toContain('Same text: 2 answers compared');
    expect(await written(page, 0)).toBe(await written(page, 1));
    const warm = toLines(recordComparison({ ...planned, temperature: 0.8 }));
    const other = await compared({ compare: 'warm', recordings: { warm } });
    expect(await other.getByTestId('identity').getAttribute('data-proof')).toBe('unknown');
    expect(await other.getByTestId('identity').innerText()).toContain('Above temperature 0');
  });

  it('says where the texts first differ', async () => {
    const messages = recordComparison(planned);
    const ending = messages.at(-1)?.events.at(-1);
    if (ending?.type !== 'finished' || !ending.report) throw new Error('it ends');
    ending.report.identity = {
      compared: 3,
      differences: [
        {
          suite: '',
          prompt: '',
          method: 'draft-model',
          max_draft: 4,
          run: 1,
          position: 17,
        },
      ],
    };
    const page = await compared({
      compare: 'differs',
      recordings: { differs: toLines(messages) },
    });
    expect(await page.getByTestId('identity').innerText()).toContain('Draft model, K 4, run 2: first difference at token 17');
  });

  it('says that a lane is slower, or that there is no clear difference', async () => {
    const page = await compared(suite);
    const outcomes = await page.getByTestId('verdict').evaluateAll((all) => all.map((one) => one.getAttribute('data-outcome')));
    expect(outcomes).toEqual(['faster', 'slower']);
    expect(await page.getByTestId('verdict').nth(1).innerText()).toMatch(/slower, 0\.\d\d× the speed of plain/);
    const messages = recordComparison(planned);
    const ending = messages.at(-1)?.events.at(-1);
    const lane = ending?.type === 'finished' ? ending.report?.lanes[1] : undefined;
    if (!lane?.verdict) throw new Error('it ends');
    Object.assign(lane, { speedup_low: 0.94, speedup_high: 1.12 });
    Object.assign(lane.verdict, {
      speedup: 1.03,
      unanimous: false,
      certain: false,
    });
    const unclear = await compared({
      compare: 'unclear',
      recordings: { unclear: toLines(messages) },
    });
    expect(await unclear.getByTestId('verdict').innerText()).toContain('no clear difference: 1.03× (0.94× to 1.12×)');
    expect(await unclear.getByTestId('verdict').innerText()).not.toContain('make it certain');
  });
});

describe('the order of the screen', () => {
  const top = async (page: Page, testid: string) => (await page.getByTestId(testid).first().boundingBox())?.y ?? Number.NaN;

  it('with a result is the verdict, the race, and the figures, under a folded form', async () => {
    const page = await compared({ height: 900 });
    expect(await page.getByTestId('compare-form').count()).toBe(0);
    expect(await page.getByTestId('compare-summary').innerText()).toContain('Write a short scene in a lighthouse');
    const places = ['compare-summary', 'verdict', 'race', 'lane', 'figures-table', 'speedup-chart'];
    const tops = await Promise.all(places.map((testid) => top(page, testid)));
    expect(tops).toEqual([...tops].sort((a, b) => a - b));
    expect(tops[1], 'the verdict is in the window').toBeLessThan(300);
  });

  it('opens the form again, which folds for the next comparison', async () => {
    const page = await compared();
    const setup = page.getByTestId('compare-setup');
    await setup.click();
    expect(await setup.getAttribute('aria-expanded')).toBe('true');
    expect(await page.getByTestId('compare-prompt').inputValue()).toContain('lighthouse');
    await setup.click();
    expect(await page.getByTestId('compare-form').count()).toBe(0);
    await setup.click();
    await page.getByTestId('compare-start').click();
    await page.getByTestId('compare-form').waitFor({ state: 'detached' });
    expect(await page.evaluate(() => document.activeElement?.getAttribute('data-testid'))).toBe('compare-summary');
    await page.getByTestId('result').waitFor();
    expect(await page.getByTestId('compare-form').count()).toBe(0);
    await page.getByTestId('new-comparison').click();
    await page.getByTestId('compare-form').waitFor();
    expect(await page.getByTestId('compare-summary').count()).toBe(0);
  });

  it('offers examples before the first comparison', async () => {
    const page = await openCompare();
    const example = page.getByTestId('compare-example').first();
    const text = await example.innerText();
    await page.getByTestId('compare-kind-edit').check();
    expect(await page.getByTestId('suite-note').innerText()).toContain('repeat a given file');
    await example.click();
    expect(await page.getByTestId('compare-prompt').inputValue()).toBe(text);
    expect(await calls(page, 'compare')).toEqual([]);
    expect(await page.evaluate(() => document.activeElement?.getAttribute('data-testid'))).toBe('compare-start');
    await page.keyboard.press('Enter');
    await page.getByTestId('result').waitFor();
  });
});

describe('the lanes', () => {
  it('are of one width, and fade the line that their edge cuts', async () => {
    const recordings = { own: toLines(recordComparison(ownLanesComparison)) };
    const page = await compared({ compare: 'own', recordings, width: 1000 });
    const widths = await page.getByTestId('lane').evaluateAll((all) => all.map((lane) => Math.round(lane.getBoundingClientRect().width)));
    expect(widths).toHaveLength(7);
    expect(new Set(widths).size).toBe(1);
    const masks = await page
      .getByTestId('lane')
      .evaluateAll((all) => all.map((lane) => [...lane.querySelectorAll('.text')].map((text) => getComputedStyle(text).maskImage)));
    expect(masks.flat().some((mask) => mask.includes('linear-gradient'))).toBe(true);
  });

  it('are named below a chart of many lines, and next to a few', async () => {
    const recordings = { own: toLines(recordComparison(ownLanesComparison)) };
    const page = await compared({ compare: 'own', recordings });
    expect(await page.getByTestId('tokens-chart').getByTestId('lane-key').locator('li').count()).toBe(7);
    expect(await page.getByTestId('tokens-chart').locator('text.over').count()).toBe(0);
    const few = await compared();
    expect(await few.getByTestId('lane-key').count()).toBe(0);
    expect(await few.getByTestId('tokens-chart').locator('text.over').allTextContents()).toContain('Draft model, K 4');
  });
});

describe('the race', () => {
  it('replays both lanes on one clock, pauses, and seeks', async () => {
    const page = await compared();
    const full = await written(page, 0);
    await page.getByTestId('race-restart').click();
    expect(await page.getByTestId('race-place').innerText()).toMatch(/^0 ms of/);
    expect(await page.getByTestId('lane').getByTestId('token').count()).toBe(0);
    await page.getByTestId('race-speed-2').check();
    await page.getByTestId('race-play').click();
    await page.waitForFunction(() => document.querySelectorAll('[data-lane="1"] [data-testid=token]').length > 6);
    await page.getByTestId('race-play').click();
    const place = await page.getByTestId('race-place').innerText();
    const [plain, drafted] = [await written(page, 0), await written(page, 1)];
    expect(drafted.length).toBeGreaterThan(plain.length);
    await page.waitForTimeout(150);
    expect(await page.getByTestId('race-place').innerText()).toBe(place);
    await page.getByTestId('race-clock').focus();
    await page.keyboard.press('End');
    await expect.poll(() => written(page, 0)).toBe(full);
    await page.keyboard.press('Home');
    await expect.poll(() => page.getByTestId('lane').getByTestId('token').count()).toBe(0);
  });

  it('moves only by hand with reduced motion', async () => {
    const page = await compared({ reducedMotion: true });
    expect(await page.getByTestId('race-play').count()).toBe(0);
    await page.getByTestId('race-clock').focus();
    await page.keyboard.press('Home');
    await expect.poll(() => page.getByTestId('lane').getByTestId('token').count()).toBe(0);
  });
});

describe('the history', () => {
  it('keeps comparisons, opens one, saves it to a file, and deletes it after confirmation', async () => {
    const page = await compared();
    const entry = page.getByTestId('comparison-entry');
    await entry.waitFor();
    expect(await entry.innerText()).toContain(`Draft model, K 4: ${fixed(report.lanes[1]?.speedup ?? 0, 2)}×`);
    await page.getByTestId('new-comparison').click();
    await page.getByTestId('compare-empty').waitFor();
    await entry.getByRole('button').first().click();
    await page.getByTestId('result').waitFor();
    expect(await entry.getByRole('button').first().getAttribute('aria-current')).toBe('page');
    for (const format of ['json', 'csv', 'picture']) {
      await page.getByTestId('save-comparison').click();
      await page.getByTestId(`save-${format}`).click();
    }
    await expect
      .poll(() => calls(page, 'export_comparison'))
      .toEqual(
        ['json', 'csv', 'picture'].map((format, i) => ({
          id: 1,
          format,
          token: i + 1,
        })),
      );
    expect(await calls(page, 'choose_save_place')).toEqual(
      [
        ['json', 'json'],
        ['csv', 'csv'],
        ['picture', 'svg'],
      ].map(([kind, ending]) => ({
        kind,
        name: `Write a short scene in a lighthouse during a storm.${ending}`,
      })),
    );
    await entry.hover();
    await page.getByTestId('comparison-menu').click();
    await page.getByTestId('menu-delete').click();
    await page.getByTestId('delete-no').click();
    const focused = () => page.evaluate(() => document.activeElement?.getAttribute('data-testid'));
    expect(await focused()).toBe('comparison-menu');
    expect(await calls(page, 'delete_comparison')).toEqual([]);
    await page.getByTestId('comparison-menu').click();
    await page.getByTestId('menu-delete').click();
    await page.getByTestId('delete-yes').click();
    await expect.poll(() => entry.count()).toBe(0);
    await page.getByTestId('compare-empty').waitFor();
    await expect.poll(focused).toBe('new-comparison');
  });
});

describe('by keyboard', () => {
  it('compares, from the palette to the figures, by keyboard alone', async () => {
    const page = await hunch.open({ speed: 'instant' });
    await page.keyboard.press('Control+k');
    await page.keyboard.type('go to compare');
    await page.keyboard.press('Enter');
    await page.getByTestId('compare').waitFor();
    await page.getByTestId('compare-prompt').focus();
    await page.keyboard.type('A lighthouse');
    await page.keyboard.press('Enter');
    await page.getByTestId('result').waitFor();
    const reached: string[] = [];
    for (let i = 0; i < 80 && reached.at(-1) !== 'memory-chart-table'; i += 1) {
      await page.keyboard.press('Tab');
      reached.push((await page.evaluate(() => document.activeElement?.getAttribute('data-testid'))) ?? '');
    }
    for (const stop of [
      'race-play',
      'race-clock',
      'token',
      'save-comparison',
      'speedup-chart-table',
      'split-chart-table',
      'memory-chart-table',
    ])
      expect(reached).toContain(stop);
    await page.keyboard.press('Enter');
    expect(await page.getByTestId('memory-chart').locator('tbody tr').count()).toBe(5);
    await page.keyboard.press('Control+1');
    await expect.poll(() => page.evaluate(() => document.activeElement?.getAttribute('data-testid'))).toBe('prompt');
  });

  it('shows the card over a token of a lane', async () => {
    const page = await compared();
    await page.locator('[data-lane="1"] [data-testid=token][data-origin=accepted]').first().hover();
    await page.getByTestId('token-card').waitFor();
  });
});

const sizes = [900, 1400] as const;
const cases = sizes.flatMap((width) => (['light', 'dark'] as const).map((colours) => ({ width, colours })));

async function take(page: Page, name: string): Promise<void> {
  await page.screenshot({ path: `${output}compare-${name}.png` });
  const spill = await page.evaluate(() => {
    const wide = (element: Element | null) => element !== null && element.scrollWidth > element.clientWidth;
    return wide(document.documentElement) || wide(document.querySelector('[data-testid=compare]'));
  });
  expect(spill, 'nothing is wider than the window').toBe(false);
}

describe.each(cases)('looks, $width px, $colours', ({ width, colours }) => {
  const suffix = `${width}-${colours}`;

  it('before, while, after', async () => {
    const page = await openCompare({ width, colours, height: 800, speed: 10 });
    await page.getByTestId('compare-empty').waitFor();
    await take(page, `ready-${suffix}`);
    await start(page);
    await page.waitForFunction(() => document.querySelectorAll('[data-lane="1"] [data-testid=token]').length > 40);
    await take(page, `running-${suffix}`);
    await page.getByTestId('compare-stop').click();
    await page.getByTestId('nothing-kept').waitFor();
    const done = await compared({ width, colours, height: 2300 });
    await take(done, `result-${suffix}`);
    const empty = await openCompare({
      width,
      colours,
      height: 800,
      app: 'fixture-app-empty',
    });
    await empty.getByTestId('compare-open-model').waitFor();
    await take(empty, `empty-${suffix}`);
  });

  it('three lanes, a race, in German', async () => {
    const page = await compared({
      ...suite,
      width,
      colours,
      height: 2300,
      locale: 'de-DE',
    });
    await page.getByTestId('race-clock').focus();
    await page.keyboard.press('Home');
    for (let i = 0; i < 4; i += 1) await page.keyboard.press('PageUp');
    await page.waitForFunction(() => document.querySelectorAll('[data-lane="1"] [data-testid=token]').length > 3);
    await take(page, `german-${suffix}`);
  });
});

describe.each(
  ([1000, 1600] as const).flatMap((width) =>
    (['light', 'dark'] as const).flatMap((colours) =>
      (['en-US', 'de-DE'] as const).map((locale) => ({
        width,
        colours,
        locale,
      })),
    ),
  ),
)('looks of lanes and sweeps, $width px, $colours, $locale', ({ width, colours, locale }) => {
  const suffix = `${width}-${colours}-${locale.slice(0, 2)}`;
  const suites = {
    '/home/me/mine.jsonl': {
      path: '/home/me/mine.jsonl',
      name: 'mine',
      prompts: 40,
    },
  };
  const app = { ...recordedApp, suites, picks: ['/home/me/mine.jsonl'] };

  it('the form, the settings of a lane, and both results', async () => {
    const form = await openCompare({
      width,
      colours,
      locale,
      height: 800,
      app: 'prompts',
      apps: { prompts: app },
    });
    await form.getByTestId('compare-kind-file').check();
    await form.getByTestId('suite-file').click();
    await form.getByTestId('suite-file').getByText('40').waitFor();
    await form.getByTestId('add-lane').click();
    await form.getByTestId('lane-settings').nth(1).click();
    await form.getByTestId('lane-temperature').fill('0.8');
    await form.keyboard.press('Escape');
    await form.getByTestId('lane-settings').first().click();
    await form.getByTestId('lane-target').selectOption({ index: 1 });
    await form.getByTestId('further-target').waitFor();
    await take(form, `lane-settings-${suffix}`);
    await form.keyboard.press('Escape');
    await take(form, `lane-labels-${suffix}`);
    for (const [name, plan] of [
      ['sweep', sweepComparison],
      ['own-lanes', ownLanesComparison],
    ] as const) {
      const recordings = { [name]: toLines(recordComparison(plan)) };
      const done = await compared({
        width,
        colours,
        locale,
        height: 2700,
        compare: name,
        recordings,
      });
      await take(done, `${name}-${suffix}`);
    }
  });
});
