// Updates of the app: looks for a newer version, downloads and installs it. Asks no server unless the user asked for it
// or has turned automatic checks on. No DOM.

import type { Host } from '../host';
import { call, downloadUpdate, toErrorInfo } from '../ipc/rpc';
import type { ErrorInfo, UpdateProgress, UpdateState } from '../ipc/schema.gen';
import { language } from '../strings/index.svelte';
import type { Models } from './models.svelte';
import type { Preferences } from './preferences.svelte';
import type { Work } from './work.svelte';

/** Milliseconds between two automatic checks. */
export const checkEvery = 24 * 3_600_000;
/** Milliseconds until a failed automatic check is repeated. */
export const repeatAfter = 3_600_000;
/** Milliseconds until an automatic check is attempted again while an answer runs. */
export const checkAgain = 60_000;

/** Other state that updates depend on. */
interface UpdatesDependencies {
  preferences: Preferences;
  work: Pick<Work, 'running'>;
  models: Pick<Models, 'loading'>;
  notify: (text: string) => void;
  /** Calls a function after some milliseconds. */
  later?: (milliseconds: number, then: () => void) => void;
}

/** Updates of this copy of the app. */
export class Updates {
  /** State of updating. */
  state = $state.raw<UpdateState>({ state: 'off' });
  /** Running step; null for none. */
  step = $state<'checking' | 'downloading' | 'installing' | null>(null);
  /** Progress of the download; null before its first bytes. */
  progress = $state.raw<UpdateProgress | null>(null);
  /** `true` if the last check found nothing newer. */
  current = $state(false);
  error = $state.raw<ErrorInfo | null>(null);

  readonly #host: Host;
  readonly #preferences: Preferences;
  readonly #work: Pick<Work, 'running'>;
  readonly #models: Pick<Models, 'loading'>;
  readonly #notify: (text: string) => void;
  readonly #later: (milliseconds: number, then: () => void) => void;
  #watching = false;

  constructor(host: Host, dependencies: UpdatesDependencies) {
    this.#host = host;
    this.#preferences = dependencies.preferences;
    this.#work = dependencies.work;
    this.#models = dependencies.models;
    this.#notify = dependencies.notify;
    this.#later = dependencies.later ?? ((milliseconds, then) => void setTimeout(then, milliseconds));
  }

  /** `true` if this copy can look for updates. */
  get on(): boolean {
    return this.state.state !== 'off';
  }

  /** `true` if a newer version can be downloaded or installed. */
  get known(): boolean {
    return this.state.state === 'found' || this.state.state === 'ready';
  }

  /** `true` if every step must wait, because the engine works. */
  get waits(): boolean {
    return this.#work.running || this.#models.loading !== null;
  }

  /** Reads what is known, without asking a server. Never rejects. */
  async read(): Promise<void> {
    try {
      this.state = await call(this.#host, 'update_state', {});
    } catch {
      // Without an answer there are no updates.
    }
  }

  /** Checks if the user has turned automatic checks on. */
  start(): void {
    if (this.#preferences.automaticUpdates) this.#watch();
  }

  /** Turns automatic checks on or off. */
  setAutomatic(on: boolean): void {
    void this.#preferences.set('automaticUpdates', on);
    if (on) this.#watch();
  }

  /** Looks for a newer version. Does nothing while the engine works. */
  async check(): Promise<void> {
    await this.#run('checking', async () => {
      this.current = false;
      this.state = await call(this.#host, 'check_for_update', {});
      this.current = this.state.state === 'none';
    });
  }

  /** Downloads the newer version. Does nothing while the engine works. */
  async download(): Promise<void> {
    await this.#run('downloading', async () => {
      this.progress = null;
      this.state = await downloadUpdate(this.#host, (progress) => (this.progress = progress));
    });
  }

  /** Installs the downloaded version and restarts the app. Does nothing while the engine works. */
  async install(): Promise<void> {
    await this.#run('installing', () => call(this.#host, 'install_update', {}));
  }

  async #run(step: 'checking' | 'downloading' | 'installing', work: () => Promise<unknown>): Promise<void> {
    if (!this.on || this.step !== null || this.waits) return;
    this.step = step;
    this.error = null;
    try {
      await work();
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    } finally {
      this.step = null;
    }
  }

  #watch(): void {
    if (this.#watching || !this.on) return;
    this.#watching = true;
    void this.#tick();
  }

  /** Checks now and again later. Not during an answer, and without a message on failure. */
  async #tick(): Promise<void> {
    if (!this.#preferences.automaticUpdates) {
      this.#watching = false;
      return;
    }
    if (this.waits || this.step !== null) return this.#later(checkAgain, () => void this.#tick());
    const before = this.state;
    await this.check();
    const failed = this.error !== null;
    this.error = null;
    const after = this.state;
    const isNew = after.state === 'found' && !(before.state === 'found' && before.version === after.version);
    if (isNew) this.#notify(language.strings.updates.notice(after.version));
    this.#later(failed ? repeatAfter : checkEvery, () => void this.#tick());
  }
}
