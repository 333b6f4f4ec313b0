import { describe, expect, it } from 'vitest';
import app from '../../../../tests/ui/fixtures/fixture-app.json';
import { createWindow } from '../../window';
import { KeepingHost } from './testing';

describe('a hidden window', () => {
  it('pauses watching the folders of models', async () => {
    const host = new KeepingHost();
    const { events } = createWindow(host);
    events.hide(true);
    events.hide(false);
    expect(host.named('set_window_hidden')).toEqual([{ hidden: true }, { hidden: false }]);
  });

  it('reports it again once there is a watch to pause', async () => {
    const host = new KeepingHost();
    const { events, start } = createWindow(host);
    const started = start();
    events.hide(true);
    await started;
    const order = host.calls.map(([command]) => command).filter((command) => /watch|hidden/.test(command));
    expect(order).toEqual(['watch_library', 'set_window_hidden', 'set_window_hidden']);
  });
});

describe('a damaged file of conversations', () => {
  it('is shown once the engine reports it', async () => {
    const host = new KeepingHost();
    const { models, start } = createWindow(host);
    await start();
    expect(models.info?.store_problem ?? null).toBeNull();
    const error = { code: 'store', message: 'The file is damaged.' } as const;
    host.info = { ...app.info, store_problem: { error, in_memory: false, accepted: true, replaceable: true, copies: [] } };
    host.sendLibrary({ kind: 'store_problem' });
    await expect.poll(() => models.info?.store_problem?.error).toEqual(error);
  });
});

describe('the self-test of the GPU', () => {
  it('is shown once it has ended', async () => {
    const host = new KeepingHost();
    host.info = { ...app.info, device: 'metal', gpu: { state: 'running' } };
    const { models, start } = createWindow(host);
    await start();
    expect(models.info?.gpu).toEqual({ state: 'running' });
    const gpu = { state: 'done', problems: ['norm differs from the CPU'] } as const;
    host.info = { ...app.info, device: 'metal', gpu };
    host.sendLibrary({ kind: 'gpu_tested' });
    await expect.poll(() => models.info?.gpu).toEqual(gpu);
  });
});
