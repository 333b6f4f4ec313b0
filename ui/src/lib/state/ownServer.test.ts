import { describe, expect, it } from 'vitest';
import { SilentHost } from '../host/testing';
import { OwnServerSwitch } from './ownServer.svelte';

/** A host whose server can be switched. */
class ServingHost extends SilentHost {
  url: string | null = null;
  refuses = false;
  changes = 0;

  override async invoke(command: string, args: Record<string, unknown>): Promise<unknown> {
    if (command === 'set_own_server') {
      this.changes += 1;
      if (this.refuses) throw { code: 'internal', message: 'No free port.' };
      this.url = args['on'] === true ? 'http://127.0.0.1:8033/v1' : null;
    }
    return { url: this.url };
  }
}

describe('The server for other programs', () => {
  it('is switched on and off, one change at a time', async () => {
    const host = new ServingHost();
    const server = new OwnServerSwitch(host);
    await server.load();
    expect(server.url).toBe(null);
    await Promise.all([server.toggle(), server.toggle()]);
    expect([server.url, host.changes]).toEqual(['http://127.0.0.1:8033/v1', 1]);
    await server.toggle();
    expect(server.url).toBe(null);
  });

  it('stays off with the reason if it cannot start', async () => {
    const host = new ServingHost();
    host.refuses = true;
    const server = new OwnServerSwitch(host);
    await server.toggle();
    expect([server.url, server.error?.message, server.changing]).toEqual([null, 'No free port.', false]);
    host.refuses = false;
    await server.toggle();
    expect([server.url, server.error]).toEqual(['http://127.0.0.1:8033/v1', null]);
  });
});
