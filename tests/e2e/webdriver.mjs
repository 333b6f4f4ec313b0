// Drives the app's window over WebDriver: starts the driver with its own environment, opens the app, and sends the
// commands that the tests need. No tests here.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, mkdir, readFile, readdir, rm, symlink, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

/** Property that holds the id of an element. */
const ELEMENT = 'element-6066-11e4-a52e-4f735466cecf';

/** Key codes of the protocol. */
export const keys = { enter: '\uE007', escape: '\uE00C' };

/** Returns a free port. */
async function freePort() {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  await once(server, 'close');
  return port;
}

/** Calls `ask` until it returns something truthy, and returns that. Fails after `seconds` with a message about `what`. */
export async function eventually(what, ask, seconds = 60) {
  const end = Date.now() + seconds * 1000;
  let last;
  while (Date.now() < end) {
    last = await ask();
    if (last) return last;
    await sleep(50);
  }
  throw new Error(`Waited ${seconds} s for ${what}. The last value was ${JSON.stringify(last)}.`);
}

export class HunchWindow {
  #driver;
  #home;
  #base;
  #session;
  #app;
  /** Output of driver and app. */
  output = '';

  /**
   * Opens the app with its own home folder. `models` is a folder of models for the app, `environment` adds variables.
   * @param {{driver: string, app: string, models?: string, environment?: Record<string, string>}} options
   */
  static async open({ driver, app, models, environment }) {
    const window = new HunchWindow();
    try {
      await window.#start(driver, models, environment);
      await window.#openSession(app);
    } catch (error) {
      await window.close();
      throw new Error(`${error.message}\n${window.output}`, { cause: error });
    }
    return window;
  }

  async #start(driver, models, environment = {}) {
    this.#home = await mkdtemp(join(tmpdir(), 'hunch-e2e-'));
    const data = join(this.#home, 'hunch');
    await mkdir(data);
    if (models) await symlink(models, join(data, 'models'));
    const port = await freePort();
    const nativePort = await freePort();
    this.#base = `http://127.0.0.1:${port}`;
    const own = (name) => join(this.#home, name);
    await mkdir(this.dialogs);
    this.#driver = spawn(driver, ['--port', String(port), '--native-port', String(nativePort)], {
      env: {
        ...process.env,
        HUNCH_DATA_DIR: data,
        HUNCH_TEST_DIALOGS: this.dialogs,
        // No session bus: a restarted app must not find the one that is closing.
        DBUS_SESSION_BUS_ADDRESS: 'disabled:',
        // Files of other programs on this machine do not affect the tests.
        HOME: this.#home,
        HF_HOME: own('huggingface'),
        HF_HUB_CACHE: own('huggingface'),
        OLLAMA_MODELS: own('ollama'),
        LLAMA_CACHE: own('llama.cpp'),
        JAN_DATA_FOLDER: own('jan'),
        XDG_DATA_HOME: own('data'),
        XDG_CONFIG_HOME: own('config'),
        XDG_CACHE_HOME: own('cache'),
        // Nothing leaves this machine.
        HF_ENDPOINT: 'http://127.0.0.1:9',
        ...environment,
      },
      stdio: ['ignore', 'pipe', 'pipe'],
      // A group of its own, so that closing ends the driver's children as well.
      detached: true,
    });
    for (const stream of [this.#driver.stdout, this.#driver.stderr]) {
      stream.on('data', (chunk) => (this.output += chunk));
    }
    await eventually('the driver', async () => {
      if (this.#driver.exitCode !== null) throw new Error(`The driver exited with code ${this.#driver.exitCode}.`);
      return fetch(`${this.#base}/status`).then(
        (answer) => answer.ok,
        () => false,
      );
    });
  }

  /** Closes the app and opens it again with the same data. */
  async restart() {
    await this.#send('DELETE', '');
    await this.#openSession(this.#app);
  }

  async #openSession(application) {
    this.#app = application;
    const capabilities = { alwaysMatch: { browserName: 'wry', 'tauri:options': { application } } };
    const { sessionId } = await this.#request('POST', '/session', { capabilities });
    this.#session = `/session/${sessionId}`;
  }

  async #request(method, path, body) {
    const answer = await fetch(this.#base + path, {
      method,
      headers: { 'content-type': 'application/json' },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const { value } = await answer.json();
    if (!answer.ok) throw new Error(`${method} ${path}: ${value?.error}: ${value?.message}`);
    return value;
  }

  #send(method, path, body) {
    return this.#request(method, this.#session + path, body);
  }

  /** Runs a function in the page. Returns its result. */
  run(fn, ...args) {
    return this.#send('POST', '/execute/sync', { script: `return (${fn})(...arguments)`, args });
  }

  /** Runs a function in the page that calls its last parameter with the result. Returns the result. */
  runAsync(fn, ...args) {
    return this.#send('POST', '/execute/async', { script: `(${fn})(...arguments)`, args });
  }

  /** Waits for the element with this test id. Returns its id. */
  async element(testid) {
    const selector = { using: 'css selector', value: `[data-testid="${testid}"]` };
    const found = await eventually(`[data-testid="${testid}"]`, async () => {
      const [element] = await this.#send('POST', '/elements', selector);
      return element;
    });
    return found[ELEMENT];
  }

  /** Clicks the element with this test id. */
  async click(testid) {
    await this.#send('POST', `/element/${await this.element(testid)}/click`, {});
  }

  /** Types into the element with this test id. */
  async type(testid, text) {
    await this.#send('POST', `/element/${await this.element(testid)}/value`, { text });
  }

  /** Folder in which the app's dialogs find and save their files. */
  get dialogs() {
    return join(this.#home, 'dialogs');
  }

  /** Returns `true` if a file of this name in the app's settings folder contains `text`. */
  async wrote(name, text) {
    const config = join(this.#home, 'config');
    const own = (await readdir(config)).filter((folder) => folder.startsWith('app.hunch.desktop'));
    const texts = await Promise.all(own.map((folder) => readFile(join(config, folder, name), 'utf8').catch(() => '')));
    return texts.some((written) => written.includes(text));
  }

  /** Calls a command of the app as a script in the page could. Returns its result, or the code of its error. */
  call(command, args) {
    return this.runAsync(
      (name, given, done) => {
        const { invoke } = globalThis.__TAURI_INTERNALS__;
        void invoke(name, given).then(
          (result) => done({ result }),
          (error) => done({ error: error?.code ?? String(error) }),
        );
      },
      command,
      args,
    );
  }

  /** Resizes the window, in CSS pixels. */
  async resize(width, height) {
    await this.#send('POST', '/window/rect', { width, height });
  }

  /** Moves the window to the upper left corner of the screen. */
  async toCorner() {
    await this.#send('POST', '/window/rect', { x: 0, y: 0 });
  }

  /** Reloads the page. */
  async reload() {
    await this.#send('POST', '/refresh', {});
  }

  /** Writes a screenshot of the window as PNG. */
  async screenshot(path) {
    await writeFile(path, Buffer.from(await this.#send('GET', '/screenshot'), 'base64'));
  }

  /** Closes the window, ends the driver and deletes the home folder. */
  async close() {
    if (this.#session) await this.#send('DELETE', '').catch(() => {});
    if (this.#driver && this.#driver.exitCode === null) {
      const gone = once(this.#driver, 'exit');
      process.kill(-this.#driver.pid, 'SIGTERM');
      await gone;
    }
    if (this.#home) await rm(this.#home, { recursive: true, force: true, maxRetries: 5 });
  }
}
