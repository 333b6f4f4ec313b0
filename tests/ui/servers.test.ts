// Servers in the library, in the chat and in a comparison: adding, failures, keys, answers and their figures.

import { describe, expect, it } from 'vitest';
import type {
  CompareEvent,
  ErrorInfo,
  GenerationEvent,
  MeasurementMessage,
  ServerFigures,
  ServerReport,
  TokenOrigin,
} from '../../ui/src/lib/ipc/schema.gen';
import { readFileSync } from 'node:fs';
import defaultApp from './fixtures/fixture-app-default.json';
import emptyApp from './fixtures/fixture-app-empty.json';
import { ask, calls, ended, useWindow, type Opening } from './harness';
import type { RecordedServers } from './replay/servers';
import { violations } from './violations';

const hunch = useWindow();

const llama = 'http://127.0.0.1:8080/v1';
const other = 'http://127.0.0.1:8090/v1';
const gone: ErrorInfo = {
  code: 'server',
  message: `The server ${other} did not answer: no connection (Connection refused). Check that it runs, and its address.`,
  params: { address: other, detail: 'no connection (Connection refused)', remedy: 'check_address' },
};

const servers: RecordedServers = {
  keychain: false,
  added: [{ address: llama, key: 'absent', takes_key: true }],
  responses: {
    [llama]: {
      ms: 12,
      models: [
        { id: 'qwen3-32b', kind: 'llama_cpp', context: 32768 },
        { id: 'qwen3-8b', kind: 'llama_cpp', context: null },
      ],
    },
    [other]: gone,
  },
};

const figures: ServerFigures = {
  first_ms: 210,
  wall_ms: 700,
  measured_tok_s: 41.2,
  usage: { prompt: 12, generated: 16 },
  speculation: { drafted: 12, accepted: 9, passes: null, source: 'llama_cpp_timings' },
  tokens_per_pass: 2.29,
  reported_tok_s: 44.5,
  finish_reason: 'stop',
};

function token(text: string, origin: TokenOrigin, round: number): GenerationEvent {
  return {
    type: 'round',
    round,
    drafted: 0,
    draft: [],
    drafted_by: null,
    tokens: [
      {
        id: 0,
        text,
        origin,
        p: 0,
        q: null,
        u: null,
        threshold: null,
        confidence: 0,
        entropy: null,
        top: [],
        guesses: [],
        round,
        position: 0,
      },
    ],
    rejected: [],
    timing: { propose_ms: 0, target_ms: 0, verify_ms: 0, other_ms: 0 },
    depth: null,
    figures: { generated_tokens: 0, rounds: 0, decode_tok_s: 0, acceptance_rate: 0, mean_acceptance_length: 0 },
  };
}

/** A recorded answer of a server, which ends with `last`. */
function answer(kind: 'llama_cpp' | 'hunch', last: GenerationEvent): string {
  const texts: [string, TokenOrigin][] = [
    ['Merge', 'plain'],
    [' the', 'accepted'],
    [' lists', 'accepted'],
    [' from', 'resampled'],
    [' the front.', 'bonus'],
  ];
  const events: GenerationEvent[] = [
    { type: 'server_started', generation_id: 1, address: llama, kind, model: 'qwen3-32b', context_length: 32768 },
    ...texts.map(([text, origin], i) => token(text, kind === 'hunch' ? origin : 'plain', i)),
    last,
  ];
  return `${JSON.stringify({ generation_id: 1, seq: 0, events })}\n`;
}

const finished: GenerationEvent = { type: 'server_finished', stop: 'end_of_turn', figures };

/** A window whose next answer is by a model of the server, without any model of this machine. */
const chosen = (recording: string, more: Opening = {}): Opening => ({
  app: 'with-servers',
  apps: { 'with-servers': { ...emptyApp, servers } },
  replay: 'by-server',
  recordings: { 'by-server': recording },
  ...more,
  preferences: { server: { address: llama, model: 'qwen3-32b' }, ...more.preferences },
});

describe('the server for other programs', () => {
  it('is switched on with the model that answers, and off', async () => {
    const page = await hunch.open({ app: 'with-servers', apps: { 'with-servers': { ...defaultApp, servers } } });
    await page.getByTestId('place-library').click();
    await page.getByTestId('library-servers').click();
    const button = page.getByTestId('switch-own-server');
    expect(await button.getAttribute('aria-checked')).toBe('false');
    await button.click();
    await page.getByTestId('own-server-url').waitFor();
    expect(await page.getByTestId('own-server-url').innerText()).toBe('http://127.0.0.1:8033/v1');
    // The default model is still loading.
    await page.getByTestId('own-server-note').getByText('answers').waitFor();
    expect(await violations(page)).toEqual([]);
    await button.click();
    await page.getByTestId('own-server-url').waitFor({ state: 'detached' });
    expect(await calls(page, 'set_own_server')).toEqual([{ on: true }, { on: false }]);
  });
});

describe('servers in the library', () => {
  const opening: Opening = { app: 'with-servers', apps: { 'with-servers': { ...emptyApp, servers } } };

  it('are added, checked and chosen without a model of this machine', async () => {
    const page = await hunch.open(opening);
    await page.getByTestId('place-library').click();
    await page.getByTestId('library-servers').click();
    await page.getByTestId('server-model').first().waitFor();
    expect(await page.getByTestId('server-state').innerText()).toBe('Reachable in 12 ms, 2 models');
    expect(await page.getByTestId('key-note').innerText()).toContain('The key is kept until Hunch closes.');
    expect(await violations(page)).toEqual([]);
    await page.getByTestId('server-address').fill('127.0.0.1:8090');
    await page.getByTestId('server-key').fill('sk-secret');
    await page.getByTestId('add-server').click();
    await page.getByTestId('server-problem').waitFor();
    expect(await page.getByTestId('server-problem').innerText()).toContain('Check that it runs');
    expect(await page.getByTestId('server-key-place').innerText()).toBe('Key until Hunch closes');
    expect(await page.getByTestId('server-key').inputValue()).toBe('');
    await page.getByTestId('remove-server').last().click();
    expect(await page.getByTestId('remove-server-question').innerText()).toContain('Remove http://127.0.0.1:8090/v1 and its key?');
    expect(await violations(page)).toEqual([]);
    await page.getByTestId('remove-server-no').press('Enter');
    expect(await calls(page, 'remove_server')).toEqual([]);
    await expect.poll(() => page.evaluate(() => document.activeElement?.getAttribute('data-testid'))).toBe('remove-server');
    await page.keyboard.press('Enter');
    await page.getByTestId('remove-server-yes').press('Enter');
    await expect.poll(() => page.getByTestId('server').count()).toBe(1);
    expect(await calls(page, 'remove_server')).toEqual([{ address: 'http://127.0.0.1:8090/v1' }]);
    await page.getByTestId('choose-server-model').first().click();
    await expect.poll(() => page.getByTestId('target-menu').innerText()).toContain('qwen3-32b');
    expect(await page.getByTestId('server-answers').innerText()).toBe('qwen3-32b answers from 127.0.0.1:8080.');
    expect(await page.getByTestId('draft-menu').count()).toBe(0);
    expect(await calls(page, 'load_models')).toEqual([]);
    expect(await calls(page, 'set_preference')).toContainEqual({ key: 'server', value: { address: llama, model: 'qwen3-32b' } });
  });

  it('refuse a key that others could read', async () => {
    const page = await hunch.open({ ...opening, colours: 'dark' });
    await page.getByTestId('target-menu').click();
    await page.getByTestId('open-servers').click();
    await page.getByTestId('server-address').fill('http://box.local:8000');
    await page.getByTestId('server-key').fill('sk-secret');
    await page.getByTestId('add-server').click();
    expect(await page.getByTestId('servers-error').innerText()).toContain('Others on the network could read the key');
    // The address can be corrected. The key is typed again.
    expect(await page.getByTestId('server-address').inputValue()).toBe('http://box.local:8000');
    expect(await page.getByTestId('server').count()).toBe(1);
    expect(await violations(page)).toEqual([]);
  });
});

describe('a server in the chat', () => {
  it('answers with neutral tokens and figures under its name', async () => {
    const page = await hunch.answered(chosen(answer('llama_cpp', finished)));
    expect((await calls(page, 'answer')).map(({ request }) => (request as { by: unknown }).by)).toEqual([
      { kind: 'server', address: llama, model: 'qwen3-32b' },
    ]);
    expect(await page.getByTestId('server-reports').innerText()).toBe(
      'llama.cpp reports: 9 of 12 drafted tokens accepted (75%), 2.29 tokens per pass, 44.5 tok/s',
    );
    expect(await page.getByTestId('figures').innerText()).toContain('measured by Hunch');
    expect(await page.getByTestId('by').innerText()).toBe('by qwen3-32b at 127.0.0.1:8080');
    // Nothing is known of the origins, so there is no legend.
    expect(await page.getByTestId('legend').count()).toBe(0);
    expect(await page.locator('[data-testid="token"]:not([data-origin="plain"])').count()).toBe(0);
    expect(await page.getByTestId('continue').count()).toBe(0);
    expect(await calls(page, 'load_models')).toEqual([]);
    expect(await violations(page)).toEqual([]);
  });

  it('answers in colour if it is a Hunch', async () => {
    const own: ServerFigures = { ...figures, speculation: { drafted: 4, accepted: 2, passes: 3, source: 'hunch' } };
    const page = await hunch.answered(chosen(answer('hunch', { ...finished, figures: own } as GenerationEvent)));
    expect(await page.locator('[data-testid="token"][data-origin="accepted"]').count()).toBe(2);
    expect(await page.getByTestId('legend').locator('.total').getAttribute('data-total')).toBe('5');
    expect(await page.getByTestId('server-reports').innerText()).toContain('Hunch reports: 2 of 4');
    // A server reports no probabilities, so tokens have no card.
    await page.getByTestId('token').first().click();
    expect(await page.getByTestId('token-card').count()).toBe(0);
    expect(await violations(page)).toEqual([]);
  });

  it('keeps the text of a stream that was cut, and says what to do', async () => {
    const error: ErrorInfo = {
      code: 'server',
      message: `The server ${llama} did not answer: it ended before its answer did. Try again.`,
      params: { address: llama, detail: 'it ended before its answer did', remedy: 'retry' },
    };
    const page = await hunch.open(chosen(answer('llama_cpp', { type: 'failed', error })));
    await ask(page);
    await page.getByTestId('error').waitFor();
    expect(await page.getByTestId('answer').innerText()).toContain('Merge the lists');
    expect(await page.getByTestId('error').innerText()).toContain('Try again.');
    expect(await page.getByTestId('retry').isEnabled()).toBe(true);
  });

  it('answers again on a branch with another of its models, and gives way to a loaded one', async () => {
    const page = await hunch.answered(chosen(answer('llama_cpp', finished)));
    // Its models are known once it was asked.
    await page.getByTestId('target-menu').click();
    await page.getByTestId('server-row').nth(1).waitFor();
    await page.keyboard.press('Escape');
    await page.getByTestId('answer-with').click();
    await page.getByTestId('answer-with-server').filter({ hasText: 'qwen3-8b' }).click();
    await page.getByTestId('answer-branches').waitFor();
    await ended(page);
    expect(await page.getByTestId('answer-branches').innerText()).toContain('2 / 2');
    expect(await page.getByTestId('writer').innerText()).toBe('by qwen3-8b at 127.0.0.1:8080');
    expect(await page.getByTestId('target-menu').innerText()).toContain('qwen3-8b');
  });

  it('speaks German', async () => {
    const page = await hunch.answered(chosen(answer('llama_cpp', finished), { locale: 'de-DE' }));
    expect(await page.getByTestId('server-reports').innerText()).toContain('llama.cpp meldet: 9 von 12 Vorschlägen angenommen');
    expect(await page.getByTestId('by').innerText()).toBe('von qwen3-32b auf 127.0.0.1:8080');
  });
});

/** The recorded comparison with a server next to its lanes. */
function withServer(server: ServerReport): string {
  const lines = readFileSync(new URL('./fixtures/fixture-comparison.jsonl', import.meta.url), 'utf8')
    .trim()
    .split('\n');
  return lines
    .map((line) => {
      const message = JSON.parse(line) as MeasurementMessage<CompareEvent>;
      for (const event of message.events) if (event.type === 'finished' && event.report) event.report.server = server;
      return `${JSON.stringify(message)}\n`;
    })
    .join('');
}

describe('a server in a comparison', () => {
  const report: ServerReport = {
    server: { address: llama, model: 'qwen3-32b' },
    kind: 'llama_cpp',
    answers: [{ prompt: 0, run: 0, figures, text: 'Merge the lists from the front.' }],
    tok_s: 41.2,
    first_ms: 210,
    speculation: figures.speculation,
    tokens_per_pass: 2.29,
    error: null,
    cut_off: null,
  };
  const compared = (server: ServerReport): Opening => ({
    app: 'with-servers',
    apps: { 'with-servers': { ...defaultApp, servers } },
    compare: 'with-server-comparison',
    recordings: { 'with-server-comparison': withServer(server) },
    width: 1100,
    height: 900,
  });

  it('is asked, and shown with its own figures and the limits of the comparison', async () => {
    const page = await hunch.open(compared(report));
    await page.getByTestId('place-compare').click();
    await page.getByTestId('compare-prompt').fill('Merge two lists.');
    // No server was asked yet: opening the form sends no keys.
    await page.getByTestId('compare-check-servers').click();
    await page.getByTestId('compare-server').selectOption({ label: 'qwen3-32b · 127.0.0.1:8080' });
    expect(await violations(page)).toEqual([]);
    await page.getByTestId('compare-start').click();
    await page.getByTestId('server-lane').waitFor();
    const [asked] = await calls(page, 'compare');
    expect((asked?.['request'] as { server: unknown }).server).toEqual({ address: llama, model: 'qwen3-32b' });
    expect(await page.getByTestId('server-rate').innerText()).toBe('41.2');
    expect(await page.getByTestId('server-drafts').innerText()).toBe('9 of 12 drafted tokens accepted (75%), 2.29 tokens per pass');
    expect(await page.getByTestId('not-comparable').innerText()).toContain('no speedup against the lanes');
    expect(await violations(page)).toEqual([]);
  });

  it('leaves the result of the lanes if it fails', async () => {
    const none = { answers: [], tok_s: null, first_ms: null, speculation: null, tokens_per_pass: null };
    const failed = { ...report, ...none, error: gone, cut_off: { prompt: 0, run: 0, text: 'Merge the' } };
    const page = await hunch.open(compared(failed));
    await page.getByTestId('place-compare').click();
    await page.getByTestId('compare-prompt').fill('Merge two lists.');
    await page.getByTestId('compare-start').click();
    await page.getByTestId('server-lane-error').waitFor();
    expect(await page.getByTestId('server-lane-error').innerText()).toContain('no connection');
    expect(await page.getByTestId('server-cut-off').innerText()).toBe('Merge the');
    expect(await violations(page)).toEqual([]);
    expect(await page.getByTestId('figures-table').isVisible()).toBe(true);
  });
});
