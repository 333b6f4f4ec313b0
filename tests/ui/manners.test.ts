// Dropped files, the acceptance rule, the context figure, parked drafting, and Escape. Screenshots in
// tests/output/ui.

import { mkdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Page } from 'playwright-core';
import { describe, expect, it } from 'vitest';
import type { FilesEvent } from '../../ui/src/lib/host';
import type { DepthState, GenerationEvent, StreamMessage } from '../../ui/src/lib/ipc/schema.gen';
import { record, toLines } from './fixtures/build';
import { plans } from './fixtures/plans';
import { ask, calls, ended, loading, useWindow } from './harness';

const hunch = useWindow();
const output = fileURLToPath(new URL('../output/ui/', import.meta.url));
mkdirSync(output, { recursive: true });
const app = JSON.parse(readFileSync(new URL('./fixtures/fixture-app.json', import.meta.url), 'utf8'));
const small = '/home/person/.local/share/hunch/models/smollm2-135m-instruct-q4_1.gguf';

const drag = (page: Page, event: FilesEvent) => page.evaluate((sent) => window.hunchReplay?.files(sent), event);

/** The recording of an answer with some events changed. */
function changed(change: (event: GenerationEvent) => Partial<GenerationEvent>, name = 'fixture-answer'): string {
  const plan = plans[name];
  if (!plan) throw new Error(name);
  const messages: StreamMessage[] = record(plan);
  const events = (all: GenerationEvent[]) => all.map((event) => ({ ...event, ...change(event) }) as GenerationEvent);
  return toLines(messages.map((message) => ({ ...message, events: events(message.events) })));
}

const started = (change: Partial<GenerationEvent & { type: 'started' }>) => changed((event) => (event.type === 'started' ? change : {}));

/** A conversation as imported from a file. */
function imported(id: number, title: string) {
  const entry = { id, title, pinned: false, created_ms: 1, updated_ms: 2 };
  const messages = [{ id: id + 1, parent: null, role: 'user', content: title, state: 'complete', settings: null, created_ms: 1 }];
  return { conversation: { entry, system: '', leaf: id + 1, messages }, events: {} };
}

describe('files dragged onto the window', () => {
  it('say what a drop would do, and are forgotten when they leave', async () => {
    const page = await hunch.open();
    await drag(page, { kind: 'over', paths: [small], across: 0.2 });
    expect(await page.getByTestId('drop-target').getAttribute('data-here')).toBe('true');
    expect(await page.getByTestId('drop').innerText()).toContain('smollm2-135m-instruct-q4_1.gguf');
    await drag(page, { kind: 'over', paths: [small], across: 0.8 });
    expect(await page.getByTestId('drop-draft').getAttribute('data-here')).toBe('true');
    await drag(page, { kind: 'over', paths: ['/tmp/a.json', '/tmp/b.json'], across: 0.8 });
    expect(await page.getByTestId('drop-import').innerText()).toContain('Import or attach 2 files');
    await drag(page, { kind: 'over', paths: ['/tmp/notes.txt'], across: 0.8 });
    expect(await page.getByTestId('drop-attach').innerText()).toContain('Attach to the question');
    await drag(page, { kind: 'left' });
    expect(await page.getByTestId('drop').count()).toBe(0);
    expect(await calls(page, 'load_models')).toEqual([]);
  });

  it('open a model, on the right half as a draft', async () => {
    const page = await hunch.open();
    await drag(page, { kind: 'dropped', paths: [small], across: 0.8 });
    await page.waitForFunction(() => document.querySelector('[data-testid=draft-menu]')?.textContent?.includes('SmolLM2'));
    await drag(page, { kind: 'dropped', paths: [small, '/tmp/other.gguf'], across: 0.2 });
    await page.waitForFunction(() => document.querySelector('[data-testid=target-menu]')?.textContent?.includes('SmolLM2'));
    const { target, context } = app.info.loaded;
    expect((await calls(page, 'load_models')).map((args) => args['request'])).toEqual([
      { target: target.path, draft: small, context },
      { target: small, draft: null, context: null },
    ]);
    expect(await page.getByTestId('failure').innerText()).toContain('Couldn’t open other.gguf');
    expect(await page.getByTestId('drop').count()).toBe(0);
  });

  it('import conversations, and open the last one', async () => {
    const imports = { '/tmp/a.json': imported(100, 'About tides'), '/tmp/b.json': imported(200, 'About wind') };
    const page = await hunch.open({ app: 'importing', apps: { importing: { ...app, imports } } });
    await drag(page, { kind: 'dropped', paths: Object.keys(imports), across: 0.2 });
    await page.getByTestId('question').filter({ hasText: 'About wind' }).waitFor();
    expect(await calls(page, 'import_conversation')).toEqual([{ path: '/tmp/a.json' }, { path: '/tmp/b.json' }]);
    expect(await page.getByTestId('conversation-entry').count()).toBe(2);
  });

  it('that cannot be read are refused with a message', async () => {
    const page = await hunch.open();
    await drag(page, { kind: 'dropped', paths: ['/tmp/notes.txt'], across: 0.2 });
    const failure = page.getByTestId('failure');
    await failure.waitFor();
    expect(await failure.innerText()).toContain('Could not read /tmp/notes.txt');
    expect(await calls(page, 'load_models')).toEqual([]);
    expect(await calls(page, 'import_conversation')).toEqual([]);
  });
});

describe('the acceptance rule', () => {
  it('is chosen in the settings, sent with the request, and named under the answer', async () => {
    const rule = { name: 'lossy-typical', epsilon: 0.09, delta: 0.3 } as const;
    const page = await hunch.open({ replay: 'lossy', recordings: { lossy: started({ rule }) } });
    await page.getByTestId('settings').click();
    await page.getByTestId('temperature').fill('0.7');
    await page.getByTestId('acceptance').click();
    expect(await page.getByTestId('rule-lossy-typical').innerText()).toContain('Changes the text');
    await page.getByTestId('rule-lossy-typical').click();
    expect(await page.getByTestId('acceptance').getAttribute('data-rule')).toBe('lossy-typical');
    await page.keyboard.press('Escape');
    await page.getByTestId('acceptance').waitFor({ state: 'detached' });
    await ask(page);
    await ended(page);
    expect((await calls(page, 'answer'))[0]?.['request']).toMatchObject({ settings: { rule } });
    expect(await page.getByTestId('rule').innerText()).toBe('lossy: typical, ε 0.09, δ 0.30');
  });

  it('that is lossy says that it has no effect at temperature 0', async () => {
    const rule = { name: 'lossy-typical', epsilon: 0.09, delta: 0.3 } as const;
    const page = await hunch.open({ replay: 'lossy', recordings: { lossy: started({ rule }) }, preferences: { all_figures: true } });
    await page.getByTestId('settings').click();
    await page.getByTestId('acceptance').click();
    expect(await page.getByTestId('rule-lossy-typical').innerText()).toContain('No effect at temperature 0');
    await page.getByTestId('rule-lossy-typical').click();
    const meaning = page.getByTestId('acceptance-meaning');
    expect(await meaning.innerText()).toBe('No effect at temperature 0');
    await page.getByTestId('temperature').fill('0.7');
    await page.getByTestId('temperature').press('Enter');
    await expect.poll(() => meaning.innerText()).toContain('Changes the text');
    await page.getByTestId('temperature').fill('0');
    await page.keyboard.press('Escape');
    await ask(page);
    await ended(page);
    expect(await page.getByTestId('rule').innerText()).toBe('lossy: typical, ε 0.09, δ 0.30. No effect at temperature 0');
    expect(await page.getByTestId('rule').evaluate((figure) => figure.classList.contains('lossy'))).toBe(false);
  });

  it('is lossless by default, and then not named', async () => {
    const page = await hunch.answered();
    expect((await calls(page, 'answer'))[0]?.['request']).toMatchObject({ settings: { rule: { name: 'lossless' } } });
    expect(await page.getByTestId('rule').count()).toBe(0);
  });
});

describe('the context', () => {
  it('is shown under the last answer', async () => {
    const page = await hunch.answered({ replay: 'fixture-answer,fixture-story', preferences: { all_figures: true } });
    const events = record(plans['fixture-answer']!).flatMap((message) => message.events);
    const ending = events.at(-1) as GenerationEvent & { type: 'finished' };
    const used = 41 + ending.stats.generated_tokens;
    expect(await page.getByTestId('context').innerText()).toBe(`${used} of 4,096 tokens of context`);
    const gauge = page.getByRole('meter', { name: 'Context' });
    expect(await gauge.getAttribute('aria-valuenow')).toBe(String(used));
    await ask(page);
    await page.getByTestId('stats').nth(1).waitFor();
    expect(await page.getByTestId('context').count()).toBe(1);
  });

  it('warns when it is nearly full, without being asked, and is hidden when its length is unknown', async () => {
    const recordings = { full: started({ context_length: 270 }), unknown: started({ context_length: 0 }) };
    const page = await hunch.open({ replay: 'full,unknown', recordings });
    const colour = () => page.getByTestId('context').evaluate((element) => getComputedStyle(element).color);
    await ask(page);
    await ended(page);
    expect(await colour()).toBe('rgb(143, 84, 0)');
    await ask(page);
    await page.getByTestId('stats').nth(1).waitFor();
    expect(await page.getByTestId('context').count()).toBe(0);
  });

  it('says which messages were left out', async () => {
    const recordings = { four: started({ dropped_messages: 4 }), one: started({ dropped_messages: 1 }) };
    const page = await hunch.open({ replay: 'four,one,fixture-answer', recordings });
    for (const turn of [0, 1, 2]) {
      await ask(page);
      await page.getByTestId('stats').nth(turn).waitFor();
    }
    // Far turns are not laid out, so they have no inner text.
    expect(await page.getByTestId('dropped').allTextContents()).toEqual([
      'The first 4 messages no longer fit and were not read.',
      'The first message no longer fits and was not read.',
    ]);
    expect(await page.getByTestId('dropped').first().getAttribute('title')).toBe('Instructions and the last question are always read.');
  });
});

/** An answer whose draft fails at once. */
function droppedDraft(): string {
  const plan = plans['fixture-plain'];
  if (!plan) throw new Error('fixture-plain');
  const error = {
    code: 'out_of_memory',
    message: 'Not enough memory: a cache needs 7 MiB. Choose a smaller model.',
    params: { detail: 'a cache needs 7 MiB' },
  } as const;
  const withDropped = (event: GenerationEvent): GenerationEvent[] =>
    event.type === 'started'
      ? [
          { ...event, method: 'draft-model' },
          { type: 'draft_dropped', method: 'draft-model', error },
        ]
      : [event];
  return toLines(record(plan).map((message) => ({ ...message, events: message.events.flatMap(withDropped) })));
}

describe('a draft that fails', () => {
  it('is named at the answer, which continues without it', async () => {
    const page = await hunch.answered({ replay: 'dropped', recordings: { dropped: droppedDraft() } });
    const notice = page.getByTestId('draft-dropped');
    expect(await notice.locator('summary').innerText()).toBe('Draft model failed; continuing without it');
    await notice.locator('summary').focus();
    await page.keyboard.press('Enter');
    await page.getByText('Details: a cache needs 7 MiB').waitFor();
    expect(await page.getByTestId('stats').getAttribute('data-stop')).not.toBeNull();
  });

  it('is named in German', async () => {
    const page = await hunch.answered({ replay: 'dropped', recordings: { dropped: droppedDraft() }, locale: 'de-DE' });
    expect(await page.getByTestId('draft-dropped').locator('summary').innerText()).toBe(
      'Draft-Modell ist fehlgeschlagen. Die Antwort geht ohne diese Methode weiter.',
    );
  });
});

describe('a chat template that fails', () => {
  it('is reported once per conversation', async () => {
    const note = 'The chat template ended the process; a built-in one is used.';
    const failing = started({ template_note: note });
    const page = await hunch.open({ replay: 'first,second,sound', recordings: { first: failing, second: failing, sound: started({}) } });
    for (const turn of [0, 1, 2]) {
      await ask(page);
      await page.getByTestId('stats').nth(turn).waitFor();
    }
    const notice = page.getByTestId('template-note');
    expect(await notice.count()).toBe(1);
    expect(await page.getByTestId('turn').first().getByTestId('template-note').count()).toBe(1);
    expect(await notice.locator('span').textContent()).toBe(note);
  });
});

/** An answer for which plain decoding is faster. */
const parkedStream = changed((event) => {
  const depth: DepthState = { parked: true, gains: [0.9, 0.75] };
  return event.type === 'round' ? { depth } : event.type === 'finished' ? { stats: { ...event.stats, plain: event.stats.rounds } } : {};
}, 'fixture-plain').replaceAll('"method":"plain"', '"method":"ngram"');

describe('parked drafting', () => {
  it('shows its forecast by keyboard, and a note under the answer', async () => {
    const page = await hunch.open({ replay: 'parked', recordings: { parked: parkedStream }, speed: 4 });
    await ask(page);
    const parked = page.getByTestId('parked');
    await parked.waitFor();
    expect(await parked.innerText()).toBe('parked: plain is faster here');
    await page.getByTestId('more-figures').focus();
    await page.keyboard.press('Enter');
    await page.getByText('1: 0.90×, 2: 0.75×').waitFor();
    await page.getByTestId('stop').click();
    const over = await hunch.answered({ replay: 'parked', recordings: { parked: parkedStream } });
    expect(await over.getByTestId('parked').innerText()).toBe('mostly parked');
  });
});

describe('settings', () => {
  it('have a heading, sections and a button that closes them', async () => {
    const page = await hunch.open();
    await page.getByTestId('settings').click();
    const settings = page.getByRole('dialog', { name: 'Settings' });
    expect(await settings.getByRole('heading').allInnerTexts()).toEqual(['Settings', 'Drafting', 'Sampling']);
    await page.getByTestId('system').fill('Be brief.');
    await page.getByTestId('settings-close').click();
    await settings.waitFor({ state: 'detached' });
    await page.getByTestId('settings').click();
    expect(await page.getByTestId('system').inputValue()).toBe('Be brief.');
  });

  it('keep a number being typed when Escape closes them', async () => {
    const page = await hunch.open();
    await page.getByTestId('settings').click();
    await page.getByTestId('system').pressSequentially('Be brief.');
    await page.keyboard.press('Escape');
    await page.getByTestId('system').waitFor({ state: 'detached' });
    await page.getByTestId('settings').click();
    expect(await page.getByTestId('system').inputValue()).toBe('Be brief.');
    await page.getByTestId('temperature').fill('0.8');
    await page.keyboard.press('Escape');
    await page.getByTestId('system').waitFor({ state: 'detached' });
    // The button that opened them has the focus again.
    await expect.poll(() => page.evaluate(() => document.activeElement?.getAttribute('data-testid'))).toBe('settings');
    await page.getByTestId('settings').click();
    expect(await page.getByTestId('temperature').inputValue()).toBe('0.80');
    await page.getByTestId('system').fill('Be long.');
    await page.getByTestId('conversation').click({ position: { x: 20, y: 20 } });
    await page.getByTestId('system').waitFor({ state: 'detached' });
    await page.getByTestId('settings').click();
    expect(await page.getByTestId('system').inputValue()).toBe('Be long.');
  });

  it('of the window are opened by a button', async () => {
    const page = await hunch.open();
    const button = page.getByTestId('open-settings');
    expect(await button.getAttribute('title')).toBe('Settings (Ctrl+,)');
    await button.click();
    await page.getByTestId('settings-dialog').waitFor();
  });
});

describe('a bar for a model that is being loaded', () => {
  it('does not move with reduced motion, and names the model', async () => {
    const page = await hunch.open({ ...loading, reducedMotion: true });
    const bar = page.getByTestId('loading');
    await bar.waitFor();
    expect(await bar.getAttribute('aria-label')).toContain('SmolLM2 135M');
    expect(await bar.evaluate((element) => getComputedStyle(element, '::after').animationName)).toBe('none');
    expect(await page.getByTestId('status').textContent()).toContain('SmolLM2 135M');
  });
});

const cases = ([900, 1400] as const).flatMap((width) => (['light', 'dark'] as const).map((colours) => ({ width, colours })));

describe.each(cases)('at $width px, $colours', ({ width, colours }) => {
  const opening = { width, colours, height: 760 };
  const take = (page: Page, name: string) => page.screenshot({ path: `${output}manners-${name}-${width}-${colours}.png` });

  it('drops', async () => {
    const page = await hunch.open(opening);
    await page.getByTestId('example').first().waitFor();
    await drag(page, { kind: 'over', paths: [small, '/tmp/tides.json'], across: 0.2 });
    await take(page, 'drop-model');
    await drag(page, { kind: 'over', paths: ['/tmp/tides.json', '/tmp/wind.json'], across: 0.2 });
    await take(page, 'drop-import');
    await drag(page, { kind: 'over', paths: ['/tmp/notes.txt'], across: 0.2 });
    await take(page, 'drop-attach');
    await drag(page, { kind: 'dropped', paths: ['/tmp/notes.txt'], across: 0.2 });
    await page.getByTestId('failure').waitFor();
    await take(page, 'failure');
  });

  it('figures', async () => {
    const rule = { name: 'lossy-lenience', lenience: 0.5 } as const;
    const recordings = { full: started({ dropped_messages: 4, context_length: 270, rule }), parked: parkedStream };
    const page = await hunch.answered({ ...opening, replay: 'full,parked', recordings });
    // The fold and the controls stay at the first line, however many lines the figures take.
    const tops = await page
      .locator('[data-testid=figures] > :first-child, [data-testid=more-figures]')
      .evaluateAll((all) => all.map((one) => one.getBoundingClientRect().top));
    expect(tops).toEqual([tops[0], tops[0]]);
    await take(page, 'full');
    await page.getByTestId('conversation').evaluate((element) => (element.scrollTop = 0));
    await take(page, 'dropped');
    await ask(page);
    await page.getByTestId('stats').nth(1).waitFor();
    await page.getByTestId('turn').last().getByTestId('more-figures').click();
    await page.getByTestId('parked-gains').waitFor();
    await take(page, 'parked-over');
  });

  it('figures of an answer that is being written', async () => {
    const page = await hunch.open({ ...opening, replay: 'parked', recordings: { parked: parkedStream }, speed: 4 });
    await ask(page);
    await page.getByTestId('parked').waitFor();
    await take(page, 'parked');
  });

  it('rules', async () => {
    const page = await hunch.open({ ...opening, locale: width === 900 ? 'de-DE' : 'en-US' });
    await page.getByTestId('settings').click();
    await page.getByTestId('acceptance').click();
    await page.getByTestId('rule-match').waitFor();
    const lefts = await page
      .getByTestId('rule-match')
      .locator('.name, .note')
      .evaluateAll((all) => all.map((one) => one.getBoundingClientRect().left));
    expect(lefts).toEqual([lefts[0], lefts[0]]);
    await take(page, 'rules');
    await page.getByTestId('rule-lossy-lenience').click();
    await page.getByTestId('rule-match').waitFor({ state: 'detached' });
    await take(page, 'rule-chosen');
  });
});
