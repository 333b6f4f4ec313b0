import { describe, expect, it } from 'vitest';
import { ReplayUpdates, type RecordedUpdates } from '../../../../tests/ui/replay/updates';
import { SilentHost, settled } from '../host/testing';
import { dispatch } from '../ipc/commands';
import { checkAgain, checkEvery, repeatAfter, Updates } from './updates.svelte';
import { Preferences } from './preferences.svelte';

const newer: RecordedUpdates = { version: '0.2.0', bytes: 20_000_000, progress_ms: 0 };
const rejected = { code: 'update_rejected', message: 'Not signed.', params: { version: '0.2.0', detail: 'wrong key' } } as const;

class UpdatesHost extends SilentHost {
  readonly asked: string[] = [];
  readonly #engine: ReplayUpdates;
  readonly #receivers: ((message: never) => void)[] = [];

  constructor(recorded: RecordedUpdates | undefined) {
    super();
    this.#engine = new ReplayUpdates((_, then) => then(), recorded);
  }

  override async invoke(command: string, args: Record<string, unknown>): Promise<unknown> {
    this.asked.push(command);
    if (command === 'set_preference') return null;
    const { channel, ...rest } = args;
    const send = this.#receivers[Number(channel)] ?? (() => {});
    return dispatch(this.#engine.handlers, command, rest, send as (message: unknown) => void);
  }

  override openChannel<T>(receive: (message: T) => void): unknown {
    this.#receivers.push(receive as (message: never) => void);
    return this.#receivers.length - 1;
  }
}

/** `recorded` is null for a copy without a key. */
function make(recorded: RecordedUpdates | null = newer) {
  const host = new UpdatesHost(recorded ?? undefined);
  const preferences = new Preferences(host);
  const work = { running: false };
  const models: { loading: string | null } = { loading: null };
  const timers: { milliseconds: number; then: () => void }[] = [];
  const notices: string[] = [];
  const updates = new Updates(host, {
    preferences,
    work,
    models,
    notify: (text) => notices.push(text),
    later: (milliseconds, then) => timers.push({ milliseconds, then }),
  });
  return { host, preferences, work, models, timers, notices, updates };
}

describe('updates', () => {
  it('ask no server at the start, and none at all if this copy has no key', async () => {
    const { host, updates } = make();
    await updates.read();
    updates.start();
    expect([updates.on, host.asked]).toEqual([true, ['update_state']]);
    const off = make(null);
    await off.updates.read();
    off.updates.start();
    off.updates.setAutomatic(true);
    await off.updates.check();
    expect([off.updates.on, off.host.asked]).toEqual([false, ['update_state', 'set_preference']]);
  });

  it('wait while models are loading and while the engine works, which refuses them', async () => {
    const { models, work, updates } = make();
    await updates.read();
    models.loading = 'a';
    expect(updates.waits).toBe(true);
    models.loading = null;
    work.running = true;
    expect(updates.waits).toBe(true);
    work.running = false;
    expect(updates.waits).toBe(false);
  });

  it('are found, downloaded with progress, and installed', async () => {
    const { host, updates } = make();
    await updates.read();
    updates.start();
    await updates.check();
    expect(updates.state).toEqual({ state: 'found', version: '0.2.0' });
    const downloading = updates.download();
    expect(updates.step).toBe('downloading');
    await downloading;
    expect([updates.step, updates.progress]).toEqual([null, { received: 20_000_000, total: 20_000_000 }]);
    expect(updates.state).toEqual({ state: 'ready', version: '0.2.0' });
    await updates.install();
    expect(host.asked.at(-1)).toBe('install_update');
  });

  it('say if the app is up to date', async () => {
    const { updates } = make({ ...newer, version: null });
    await updates.read();
    updates.start();
    expect(updates.current).toBe(false);
    await updates.check();
    expect([updates.current, updates.state.state]).toEqual([true, 'none']);
  });

  it('are neither looked for, downloaded nor installed while the engine works', async () => {
    const { host, work, updates } = make();
    await updates.read();
    updates.start();
    await updates.check();
    work.running = true;
    await updates.check();
    await updates.download();
    await updates.install();
    expect(host.asked).toEqual(['update_state', 'check_for_update']);
    expect(updates.state.state).toBe('found');
  });

  it('show why an update was rejected, and can be tried again', async () => {
    const { updates } = make({ ...newer, errors: { download_update: rejected } });
    await updates.read();
    updates.start();
    await updates.check();
    await updates.download();
    expect([updates.error?.code, updates.step, updates.state.state]).toEqual(['update_rejected', null, 'found']);
    await updates.check();
    expect(updates.error).toBeNull();
  });
});

describe('automatic checks', () => {
  it('run once a day after the user turned them on, and notify of a version once', async () => {
    const { host, timers, notices, updates } = make();
    await updates.read();
    updates.start();
    updates.setAutomatic(true);
    await settled();
    expect(notices).toEqual(['Hunch 0.2.0 is available. Find the update in the settings.']);
    expect(updates.known).toBe(true);
    expect(timers.map(({ milliseconds }) => milliseconds)).toEqual([checkEvery]);
    timers[0]?.then();
    await settled();
    expect(host.asked.filter((command) => command === 'check_for_update')).toHaveLength(2);
    expect(notices).toHaveLength(1);
  });

  it('end when they are turned off', async () => {
    const { host, timers, updates } = make();
    await updates.read();
    updates.start();
    updates.setAutomatic(true);
    await settled();
    updates.setAutomatic(false);
    timers[0]?.then();
    await settled();
    expect(host.asked.filter((command) => command === 'check_for_update')).toHaveLength(1);
    expect(timers).toHaveLength(1);
  });

  it('wait for the end of an answer', async () => {
    const { host, timers, work, updates } = make();
    await updates.read();
    updates.start();
    work.running = true;
    updates.setAutomatic(true);
    await settled();
    expect([host.asked.includes('check_for_update'), timers.at(-1)?.milliseconds]).toEqual([false, checkAgain]);
    work.running = false;
    timers.at(-1)?.then();
    await settled();
    expect(host.asked).toContain('check_for_update');
  });

  it('fail without a message, and are repeated sooner', async () => {
    const unreachable = { code: 'update_unreachable', message: 'No connection.', params: { detail: 'offline' } } as const;
    const { timers, notices, updates } = make({ ...newer, errors: { check_for_update: unreachable } });
    await updates.read();
    updates.start();
    updates.setAutomatic(true);
    await settled();
    expect([updates.error, notices, timers.map(({ milliseconds }) => milliseconds)]).toEqual([null, [], [repeatAfter]]);
  });
});
