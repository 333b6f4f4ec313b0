// Tests of the real window with the real engine and the default model, over WebDriver.
// Started by scripts/e2e, which names the driver, the app and the folder of models.

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, readFile, readdir, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { serveModel } from './hub.mjs';
import { HunchWindow, eventually, keys } from './webdriver.mjs';

const { HUNCH_E2E_DRIVER: driver, HUNCH_E2E_APP: app, HUNCH_E2E_MODELS: models } = process.env;
const output = fileURLToPath(new URL('../output/', import.meta.url));

if (!driver || !app || !models) throw new Error('Run scripts/e2e: it builds the app and starts this test.');

/** Returns the text, tokens, legend and figures of the last turn. Runs in the page. */
function lastTurn() {
  const turn = [...document.querySelectorAll('[data-testid="turn"]')].at(-1);
  if (!turn) return null;
  const tokens = [...turn.querySelectorAll('[data-testid="token"]')];
  const legend = Object.fromEntries(
    [...turn.querySelectorAll('[data-legend]')].map((entry) => [
      entry.dataset.legend,
      Number(entry.querySelector('[data-count]').dataset.count),
    ]),
  );
  return {
    text: turn.querySelector('[data-testid="answer"]')?.textContent ?? '',
    shown: tokens.length,
    first: tokens.slice(0, 4).map((token) => token.textContent),
    origins: [...new Set(tokens.map((token) => token.dataset.origin))],
    underlines: Object.fromEntries(tokens.map((token) => [token.dataset.origin, getComputedStyle(token).textDecorationStyle])),
    legend,
    total: Number(turn.querySelector('[data-total]')?.dataset.total),
    figures: turn.querySelector('[data-testid="figures"]')?.textContent.trim() ?? '',
    stop: turn.querySelector('[data-testid="stats"]')?.dataset.stop ?? null,
    error: turn.querySelector('[data-testid="error"]')?.textContent.trim() ?? null,
  };
}

/** Waits until the last turn has ended. Returns its text and figures. */
async function ended(window) {
  return eventually(
    'the end of the answer',
    async () => {
      const turn = await window.run(lastTurn);
      assert.equal(turn?.error ?? null, null);
      return turn?.stop && turn;
    },
    240,
  );
}

const sum = (counts) => Object.values(counts).reduce((total, count) => total + count, 0);

/** Chooses the method of the next answer in the menu. */
async function choose(window, method) {
  await window.click('method');
  await window.click(`method-${method}`);
  await eventually(`the method ${method}`, () =>
    window.run((wanted) => document.querySelector('[data-testid="method"]').dataset.method === wanted, method),
  );
}

/** Sets the value of a number field. Returns the old value. */
async function put(window, testid, value) {
  await window.element(testid);
  const before = await window.run(
    (id, wanted) => {
      const field = document.querySelector(`[data-testid="${id}"]`);
      const { value } = field;
      field.value = wanted;
      field.dispatchEvent(new Event('change', { bubbles: true }));
      return value;
    },
    testid,
    value,
  );
  await eventually(`${value} in ${testid}`, () =>
    window.run((id, wanted) => document.querySelector(`[data-testid="${id}"]`).value === wanted, testid, value),
  );
  return before;
}

/** Sets a number in the settings popover. Returns the old value. */
async function setting(window, testid, value) {
  await window.click('settings');
  const before = await put(window, testid, value);
  await window.click('settings');
  return before;
}

// Asks a question and stops the answer. Sampled answers may end before the stop arrives. Then the question is asked
// again in a new conversation, as short answers lead to more short answers.
async function askUntilStopped(window, question, stop) {
  let turn;
  for (let attempt = 0; attempt < 6; attempt += 1) {
    await window.click('new-conversation');
    await window.type('prompt', `${question}${keys.enter}`);
    await eventually('a few tokens', async () => (await window.run(lastTurn))?.shown > 5);
    await stop();
    turn = await ended(window);
    if (turn.stop !== 'end_of_turn') break;
  }
  return turn;
}

describe('the app', () => {
  // Instances find each other over the desktop's session bus. The test starts its own bus.
  test('opens one window per data folder, and a second start shows it', async () => {
    const home = await mkdtemp(join(tmpdir(), 'hunch-once-'));
    const bus = spawn('dbus-daemon', ['--session', '--nofork', '--print-address'], { stdio: ['ignore', 'pipe', 'inherit'] });
    const [address] = await once(bus.stdout, 'data');
    const { HUNCH_DATA_DIR: _, ...environment } = process.env;
    const start = (data = {}) =>
      spawn(app, [], {
        env: {
          ...environment,
          ...data,
          HOME: home,
          XDG_DATA_HOME: join(home, 'data'),
          XDG_CONFIG_HOME: join(home, 'config'),
          XDG_CACHE_HOME: join(home, 'cache'),
          DBUS_SESSION_BUS_ADDRESS: String(address).trim(),
        },
        stdio: 'ignore',
      });
    // The second start must find the first one on the bus. Otherwise it would open its own window.
    const named = (name) =>
      eventually(`${name} on the bus`, async () => {
        const list = ['--session', '--print-reply', '--dest=org.freedesktop.DBus', '/', 'org.freedesktop.DBus.ListNames'];
        const asked = await promisify(execFile)('dbus-send', list, {
          env: { ...environment, DBUS_SESSION_BUS_ADDRESS: String(address).trim() },
        });
        return name.test(asked.stdout);
      });
    const open = [start()];
    try {
      await named(/hunch\.desktop\.SingleInstance/);
      const [code] = await once(start(), 'exit');
      assert.equal(code, 0);
      const data = { HUNCH_DATA_DIR: join(home, 'demonstration') };
      open.push(start(data));
      await named(/hunch\.desktop\.data-[0-9a-f]+\.SingleInstance/);
      const [again] = await once(start(data), 'exit');
      assert.equal(again, 0);
      assert.deepEqual(
        open.map(({ exitCode }) => exitCode),
        [null, null],
        'the first window stays open',
      );
    } finally {
      for (const running of open) {
        running.kill();
        if (running.exitCode === null && running.signalCode === null) await once(running, 'exit');
      }
      bus.kill();
      await rm(home, { recursive: true, force: true, maxRetries: 5 });
    }
  });
});

describe('the window with the default model', () => {
  /** @type {HunchWindow} */
  let window;

  before(async () => {
    await mkdir(output, { recursive: true });
    window = await HunchWindow.open({ driver, app, models });
    await window.run(() => {
      globalThis.refused = [];
      document.addEventListener('securitypolicyviolation', (event) =>
        globalThis.refused.push(`${event.violatedDirective} ${event.blockedURI}`),
      );
    });
  });

  after(async () => window?.close());

  test('opens with the model loaded and asks for a question', async () => {
    await eventually('an enabled choice of methods', () =>
      window.run(() => document.querySelector('[data-testid="method"]')?.disabled === false),
    );
    const empty = await window.run(() => document.querySelector('[data-testid="empty"]').textContent);
    assert.match(empty, /smollm2/i);
    assert.equal(await window.run(() => document.activeElement.dataset.testid), 'prompt');
    await window.screenshot(join(output, 'window-empty.png'));
  });

  test('streams a plain answer token by token', async () => {
    await choose(window, 'plain');
    await window.type('prompt', `Explain in three sentences why the sky is blue.${keys.enter}`);
    const early = await eventually('the first tokens', async () => {
      const turn = await window.run(lastTurn);
      assert.equal(turn?.error ?? null, null);
      return turn?.shown > 0 && turn;
    });
    const turn = await ended(window);
    assert.equal(early.stop, null, 'nothing was shown before the answer had ended');
    assert.ok(turn.shown > early.shown, `${early.shown} tokens at first, ${turn.shown} at the end`);
    assert.deepEqual(turn.first.slice(0, early.first.length), early.first, 'text that was shown has changed');
    assert.deepEqual(turn.origins, ['plain']);
    assert.equal(turn.legend.plain, turn.total);
    assert.match(turn.figures, /tok\/s/);
  });

  test('colours a speculative answer by origin, and the legend sums to its tokens', async () => {
    await choose(window, 'ngram');
    // On a busy machine `auto` may stop drafting, and a sampled answer may differ from the text.
    const depth = await put(window, 'max-draft', '4');
    const temperature = await setting(window, 'temperature', '0.00');
    const line = 'The lighthouse keeper counted the ships in the bay.';
    await window.type('prompt', `Repeat this text word for word: ${line} ${line} ${line}${keys.enter}`);
    const turn = await ended(window);
    await put(window, 'max-draft', depth);
    await setting(window, 'temperature', temperature);
    assert.ok(turn.legend.accepted > 0, `no draft was accepted: ${JSON.stringify(turn.legend)}`);
    assert.equal(sum(turn.legend), turn.total);
    assert.ok(turn.shown > 0 && turn.shown <= turn.total, `${turn.shown} tokens drawn of ${turn.total}`);
    assert.ok(turn.origins.includes('accepted'));
    const styles = { accepted: 'solid', resampled: 'wavy', bonus: 'double' };
    for (const [origin, style] of Object.entries(styles)) {
      if (turn.origins.includes(origin)) assert.equal(turn.underlines[origin], style, origin);
    }
    assert.match(turn.figures, /tokens per pass/);
    await window.screenshot(join(output, 'window-answer.png'));
  });

  test('stops at once and keeps the text so far', async (t) => {
    await choose(window, 'plain');
    let took;
    const turn = await askUntilStopped(window, 'Write a very long story about a lighthouse and a storm.', async () => {
      took = await window.runAsync((done) => {
        const pressed = performance.now();
        document.querySelector('[data-testid="stop"]')?.click();
        const look = () => {
          if (document.querySelector('[data-testid="stop"]')) requestAnimationFrame(look);
          else done(performance.now() - pressed);
        };
        look();
      });
    });
    assert.equal(turn.stop, 'cancelled');
    assert.equal(sum(turn.legend), turn.total);
    assert.ok(turn.shown > 5);
    t.diagnostic(`from the press to the stopped answer: ${took.toFixed(0)} ms`);
    // The goal is 100 ms. The test allows more for a busy machine.
    assert.ok(took < 1000, `${took} ms`);
  });

  test('stops on Escape', async () => {
    const turn = await askUntilStopped(window, 'Write a very long story about a train in the desert.', () =>
      window.type('prompt', keys.escape),
    );
    assert.equal(turn.stop, 'cancelled');
  });

  test('restores the conversation after a restart, with colours and counts, and finds it by search', async () => {
    await window.click('new-conversation');
    await choose(window, 'ngram');
    const line = 'The quetzal sat in the tree.';
    await window.type('prompt', `Repeat this text word for word: ${line} ${line} ${line}${keys.enter}`);
    const before = await ended(window);
    const size = () => window.run(() => [innerWidth, innerHeight]);
    const [width, height] = await size();
    await window.resize(width - 60, height - 40);
    const resized = await eventually('a smaller window', async () => {
      const now = await size();
      return now[0] < width && now[1] < height && now;
    });
    await eventually('the saved window size', () => window.wrote('.window-state.json', `"width": ${resized[0]}`));
    await window.restart();
    await eventually('an enabled choice of methods', () =>
      window.run(() => document.querySelector('[data-testid="method"]')?.disabled === false),
    );
    assert.deepEqual(await size(), resized, 'the window is as large as it was left');
    await window.type('search', 'quetzal');
    await window.click('hit');
    const again = await ended(window);
    assert.equal(again.text, before.text);
    assert.deepEqual(again.legend, before.legend);
    assert.deepEqual(again.origins, before.origins);
    await window.click('regenerate');
    const other = await ended(window);
    assert.ok(other.total > 0);
    assert.match(await window.run(() => document.querySelector('[data-testid="answer-branches"]').textContent), /2 \/ 2/);
    await window.run(() => {
      globalThis.refused = [];
      document.addEventListener('securitypolicyviolation', (event) =>
        globalThis.refused.push(`${event.violatedDirective} ${event.blockedURI}`),
      );
    });
  });

  test('branches from an alternative of a token, and the store has the counts of the legend', async () => {
    await window.click('new-conversation');
    await choose(window, 'ngram');
    await window.type('prompt', `Name three birds and say what each eats.${keys.enter}`);
    const before = await ended(window);
    const place = await window.run(() => {
      const token = document.querySelectorAll('[data-testid="token"]')[2];
      token.click();
      return Number(token.dataset.token);
    });
    const other = await eventually('an alternative that can be pressed', () =>
      window.run(() => {
        const found = document.querySelector('[data-pinned="true"] [data-testid="alternative"]:enabled');
        return found && { id: Number(found.dataset.id), text: found.querySelector('.word').textContent };
      }),
    );
    await window.screenshot(join(output, 'window-alternatives.png'));
    await window.run(() => document.querySelector('[data-pinned="true"] [data-testid="alternative"]:enabled').click());
    await eventually('the branch', () =>
      window.run(() => document.querySelector('[data-testid="answer-branches"]')?.textContent.includes('2 / 2')),
    );
    const branch = await ended(window);
    assert.deepEqual(branch.first.slice(0, 2), before.first.slice(0, 2), 'what is before stays');
    assert.equal(branch.legend.chosen, 1);
    assert.equal(sum(branch.legend), branch.total);
    const stored = await window.runAsync((done) => {
      const { invoke } = globalThis.__TAURI_INTERNALS__;
      const read = async () => {
        const [entry] = await invoke('list_conversations');
        const { leaf } = await invoke('open_conversation', { id: entry.id });
        const events = await invoke('answer_events', { message: leaf });
        return events.flatMap((event) => event.tokens ?? []);
      };
      void read().then(done);
    });
    assert.deepEqual({ id: stored[place].id, origin: stored[place].origin }, { id: other.id, origin: 'chosen' });
    for (const [origin, count] of Object.entries(branch.legend)) {
      assert.equal(stored.filter((token) => token.origin === origin).length, count, origin);
    }
  });

  test('compares with plain decoding and shows the speedup with its spread', async (t) => {
    await window.click('place-compare');
    const line = 'The lighthouse keeper counted the ships in the bay.';
    await window.type('compare-prompt', `Repeat this text word for word: ${line} ${line}`);
    for (const [field, value] of [
      ['compare-runs', '2'],
      ['compare-tokens', '40'],
    ]) {
      await window.run(
        (testid, text) => {
          const input = document.querySelector(`[data-testid="${testid}"]`);
          input.value = text;
          input.dispatchEvent(new Event('input', { bubbles: true }));
          input.dispatchEvent(new Event('change', { bubbles: true }));
        },
        field,
        value,
      );
    }
    await window.click('compare-start');
    await eventually(
      'both lanes writing',
      () =>
        window.run(() => {
          const lanes = [...document.querySelectorAll('[data-testid="lane"]')];
          return lanes.length === 2 && lanes.every((lane) => lane.querySelectorAll('[data-testid="token"]').length > 3);
        }),
      120,
    );
    const result = await eventually(
      'the result',
      () =>
        window.run(() => {
          const result = document.querySelector('[data-testid="result"]');
          return (
            result && {
              verdict: result.querySelector('[data-testid="verdict"]').textContent,
              spread: result.querySelector('[data-testid="speedup-chart"]').textContent,
              identity: result.querySelector('[data-testid="identity"]')?.dataset.proof ?? null,
              figures: result.querySelector('[data-testid="figures-table"]').textContent,
            }
          );
        }),
      240,
    );
    assert.match(result.verdict, /[\d.]+ tokens per pass/);
    await window.run(() => {
      const place = document.querySelector('[data-testid="compare"]');
      place.scrollTop +=
        document.querySelector('[data-testid="result"]').getBoundingClientRect().top - place.getBoundingClientRect().top - 16;
    });
    await window.screenshot(join(output, 'window-compare.png'));
    // The screen shows the stored report.
    const report = await window.runAsync((done) => {
      const { invoke } = globalThis.__TAURI_INTERNALS__;
      void invoke('list_comparisons')
        .then(([entry]) => invoke('open_comparison', { id: entry.id }))
        .then(done);
    });
    const lane = report.lanes[1];
    const spread = [lane.speedup, lane.speedup_low, lane.speedup_high].map((value) => value.toFixed(2));
    t.diagnostic(`speedup ${spread[0]}x (${spread[1]} to ${spread[2]}), ${lane.samples} samples`);
    assert.equal(lane.samples, 2);
    for (const number of spread) assert.ok(result.spread.includes(number), `${number} in ${result.spread}`);
    // Rates from 100 on are shown without a decimal.
    assert.ok(result.figures.includes(lane.tok_s.toFixed(lane.tok_s < 99.95 ? 1 : 0)), `${lane.tok_s} in ${result.figures}`);
    assert.equal(report.answers.length, 4);
  });

  test('runs rounds in the lab on made-up distributions if no draft is loaded', async () => {
    await window.click('place-lab');
    await window.click('lab-resampling');
    await window.click('one-round');
    const outcome = await eventually('a round', () => window.run(() => document.querySelector('[data-testid="outcome"]')?.textContent));
    assert.ok(outcome.length > 0);
    await window.screenshot(join(output, 'window-lab.png'));
    await window.click('lab-costs');
    await window.click('measure-costs');
    await eventually('the cost curve', () => window.run(() => document.querySelector('[data-testid="relative"]') !== null), 240);
    await window.click('lab-landscape');
    await eventually('the landscape of this machine', () =>
      window.run(() => document.querySelector('[data-testid="landscape-value"]')?.textContent.includes('predicted')),
    );
    await window.click('place-chat');
  });

  test('exports once, to the path of the dialog, and takes no path from the page', async () => {
    await window.click('place-chat');
    const {
      result: [{ id }],
    } = await window.call('list_conversations', {});
    const words = { untitled: 'x', question: 'x', answer: 'x' };
    const exported = { id, format: 'json', words };
    const { result: place } = await window.call('choose_save_place', { kind: 'json', name: '../../talk' });
    assert.equal(place.name, 'talk.json');
    assert.deepEqual(await window.call('export_conversation', { ...exported, token: place.token }), { result: null });
    const file = join(window.dialogs, 'talk.json');
    assert.ok(JSON.parse(await readFile(file, 'utf8')).messages.length > 0);
    const refused = { error: 'invalid_request' };
    assert.deepEqual(await window.call('export_conversation', { ...exported, token: place.token }), refused, 'it is used up');
    assert.deepEqual(await window.call('export_conversation', { ...exported, token: 999 }), refused);
    const path = join(window.dialogs, 'other.json');
    assert.match((await window.call('export_conversation', { ...exported, path })).error, /token/);
    assert.deepEqual(await readdir(window.dialogs), ['talk.json']);
    const table = (await window.call('choose_save_place', { kind: 'csv', name: 'table.csv' })).result;
    assert.deepEqual(await window.call('export_conversation', { ...exported, token: table.token }), refused, 'of another kind');
  });

  test('reads no file that the user did not choose', async () => {
    const secret = join(window.dialogs, 'opened.json');
    await writeFile(secret, await readFile(join(window.dialogs, 'talk.json')));
    const refused = { error: 'invalid_request' };
    assert.deepEqual(await window.call('import_conversation', { path: secret }), refused);
    assert.deepEqual(await window.call('add_model_folder', { path: window.dialogs }), refused);
    assert.deepEqual(await window.call('reveal_model', { path: secret }), refused);
    assert.deepEqual(await window.call('read_suite', { path: secret }), refused);
    const request = { target: secret, draft: null, context: null };
    for (const command of ['load_models', 'fit']) assert.deepEqual(await window.call(command, { request }), refused, command);
    assert.deepEqual(await window.call('fit_verdicts', { targets: [secret] }), refused);
    const { result: chosen } = await window.call('choose_file', { kind: 'conversation', title: 'x', filter: 'x' });
    assert.equal(chosen, secret);
    assert.equal(typeof (await window.call('import_conversation', { path: chosen })).result, 'number');
    const { result: folder } = await window.call('choose_folder', { title: 'x' });
    assert.equal((await window.call('add_model_folder', { path: folder })).error, undefined);
    for (const command of ['plugin:dialog|open', 'plugin:dialog|save', 'plugin:opener|reveal_item_in_dir'])
      assert.match((await window.call(command, { options: {}, paths: [secret] })).error, /not allowed/, command);
  });

  test('attaches a chosen text file and keeps it with the question', async () => {
    const file = join(window.dialogs, 'attached.txt');
    await writeFile(file, 'The password of the day is "marmalade".\n');
    assert.deepEqual(await window.call('read_attachment', { path: file, count: true }), { error: 'invalid_request' }, 'not chosen yet');
    await window.click('place-chat');
    await window.click('new-conversation');
    await window.click('attach');
    await eventually('the file', () => window.run(() => document.querySelector('[data-testid="composer-files"]') !== null));
    await window.type('prompt', `What does the file say?${keys.enter}`);
    await ended(window);
    const shown = await window.run(() => document.querySelector('[data-testid="question-files"]').textContent);
    assert.match(shown, /attached\.txt/);
    const {
      result: [{ id }],
    } = await window.call('list_conversations', {});
    const { result: conversation } = await window.call('open_conversation', { id });
    const [question] = conversation.messages;
    assert.equal(question.content, 'What does the file say?');
    assert.deepEqual(question.attachments, [{ name: 'attached.txt', text: await readFile(file, 'utf8') }]);
  });

  test('cannot navigate away or open another window', async () => {
    let visits = 0;
    const server = createServer((_, response) => {
      visits += 1;
      response.end('elsewhere');
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const address = `http://127.0.0.1:${server.address().port}/`;
    try {
      const before = await window.run(() => location.href);
      assert.equal(await window.run((url) => globalThis.open(url) === null, address), true);
      await window.run((url) => void location.assign(url), address);
      await window.run((url) => {
        const link = document.createElement('a');
        link.href = url;
        link.target = '_blank';
        document.body.append(link);
        link.click();
        link.remove();
      }, address);
      await window.run(() => void location.assign('data:text/html,elsewhere'));
      await new Promise((later) => setTimeout(later, 1000));
      assert.equal(await window.run(() => location.href), before);
      await window.element('prompt');
      assert.equal(visits, 0);
    } finally {
      server.close();
    }
  });

  test('violates no rule of its content security policy, which refuses the network', async () => {
    assert.deepEqual(await window.run(() => globalThis.refused), []);
    const answer = await window.runAsync((done) => {
      fetch('http://127.0.0.1:9/').then(
        () => done('reached'),
        () => setTimeout(() => done(globalThis.refused.join('\n')), 100),
      );
    });
    assert.match(answer, /connect-src/);
    const also = await window.runAsync((done) => {
      globalThis.refused = [];
      const add = (name, values) => {
        const element = Object.assign(document.createElement(name), values);
        document.body.append(element);
        return element;
      };
      const added = [
        add('base', { href: 'https://example.org/' }),
        add('object', { data: '/elsewhere', type: 'text/html' }),
        add('form', { action: '/elsewhere' }),
      ];
      added[2].submit();
      setTimeout(() => {
        added.forEach((element) => element.remove());
        done(globalThis.refused.join('\n'));
      }, 300);
    });
    for (const directive of ['base-uri', 'object-src', 'form-action']) assert.match(also, new RegExp(directive));
    assert.equal(await window.run(() => '__TAURI__' in globalThis), false);
  });

  test('writes the low-bit copy of the model, drafts with it, and deletes it', async () => {
    const shows = (id, text) =>
      window.run((testid, part) => document.querySelector(`[data-testid="${testid}"]`)?.textContent.includes(part), id, text);
    const idle = () => window.run(() => document.querySelector('[data-testid="loading"]') === null);
    await window.click('place-library');
    await window.click('load-low-bit');
    await eventually('the copy as the draft', async () => (await idle()) && shows('draft-menu', 'low-bit'), 240);
    await window.element('remove-low-bit');
    await window.screenshot(join(output, 'window-low-bit.png'));
    await window.click('place-chat');
    await choose(window, 'draft-model');
    const depth = await put(window, 'max-draft', '3');
    await window.type('prompt', `Count from one to ten.${keys.enter}`);
    const turn = await ended(window);
    await put(window, 'max-draft', depth);
    assert.ok(turn.legend.accepted > 0, `no draft was accepted: ${JSON.stringify(turn.legend)}`);
    await window.click('place-library');
    await window.click('without-draft');
    await window.click('load');
    await eventually('the model alone', async () => (await idle()) && !(await shows('draft-menu', 'low-bit')), 240);
    await window.click('remove-low-bit');
    await window.click('remove-low-bit-yes');
    await eventually('the copy to be gone', () => shows('low-bit', 'written when you first load it'));
    await window.click('place-chat');
  });

  test('answers after a reload during an answer', async () => {
    await window.type('prompt', `Write a very long poem about rain.${keys.enter}`);
    await eventually('a few tokens', async () => (await window.run(lastTurn))?.shown > 3);
    await window.reload();
    await eventually('an enabled choice of methods', () =>
      window.run(() => document.querySelector('[data-testid="method"]')?.disabled === false),
    );
    await window.type('prompt', `Say hello.${keys.enter}`);
    await eventually('a few tokens', async () => {
      const turn = await window.run(lastTurn);
      assert.equal(turn?.error ?? null, null);
      return turn?.shown > 0;
    });
  });
});

describe('the window without a model', () => {
  /** @type {HunchWindow} */
  let window;

  /** @type {Awaited<ReturnType<typeof serveModel>>} */
  let hub;

  before(async () => {
    const [name] = (await readdir(models)).filter((file) => /smollm2.*\.gguf$/i.test(file));
    hub = await serveModel('HuggingFaceTB/SmolLM2-135M-Instruct-GGUF', join(models, name));
    window = await HunchWindow.open({ driver, app, environment: { HF_ENDPOINT: hub.endpoint } });
  });

  after(async () => {
    await window?.close();
    await hub?.close();
  });

  test('opens with instructions', async () => {
    await window.element('open-model');
    const words = await window.run(() => document.querySelector('[data-testid="empty"]').textContent);
    assert.match(words, /Download a model to begin/);
    assert.match(words, /Download both/);
    await window.screenshot(join(output, 'window-no-model.png'));
  });

  test('downloads a model over a broken connection, loads it and answers with it', async () => {
    await window.click('place-library');
    await window.click('library-catalogue');
    await window.type('repository-field', `HuggingFaceTB/SmolLM2-135M-Instruct-GGUF${keys.enter}`);
    await window.click('get-file');
    const download = await eventually(
      'the end of the download',
      async () => {
        const shown = await window.run(() => {
          const row = document.querySelector('[data-testid="download"]');
          return row && { phase: row.dataset.phase, words: row.textContent.trim() };
        });
        assert.notEqual(shown?.phase, 'failed', shown?.words);
        return shown?.phase === 'done' && shown;
      },
      120,
    );
    assert.match(download.words, /SmolLM2/i);
    await window.screenshot(join(output, 'window-library.png'));
    await window.click('download-load');
    await eventually(
      'the model in memory',
      () => window.run(() => /smollm2/i.test(document.querySelector('[data-testid="target-menu"]').textContent)),
      120,
    );
    await window.click('place-chat');
    await choose(window, 'ngram');
    await window.type('prompt', `Say hello.${keys.enter}`);
    const turn = await ended(window);
    assert.ok(turn.total > 0);
    assert.equal(sum(turn.legend), turn.total);
  });
});
