// Servers on the replay host: a list, and recorded responses by address.

import type { Handlers } from '../../../ui/src/lib/ipc/commands';
import type { ErrorInfo, ServerCheck, ServerEntry } from '../../../ui/src/lib/ipc/schema.gen';
import { refusal } from './refusal';

/** The commands of servers. */
type ServerCommand = 'servers' | 'add_server' | 'remove_server' | 'check_server' | 'own_server' | 'set_own_server';

/** Servers of a recorded application. */
export interface RecordedServers {
  /** `true` if the system has a keychain. */
  keychain: boolean;
  /** Servers that were added before. */
  added: ServerEntry[];
  /** Responses of servers, or errors of asking them, by address. */
  responses: Record<string, ServerCheck | ErrorInfo>;
}

const silent: RecordedServers = { keychain: false, added: [], responses: {} };

/** The servers of a recorded application. */
export class ReplayServers {
  readonly #recorded: RecordedServers;
  #list: ServerEntry[];
  #url: string | null = null;

  constructor(recorded: RecordedServers = silent) {
    this.#recorded = recorded;
    this.#list = [...recorded.added];
  }

  readonly handlers: Pick<Handlers, ServerCommand> = {
    servers: () => ({ servers: this.#list, keychain: this.#recorded.keychain }),
    add_server: ({ address: typed, key }) => this.#add(typed, key),
    remove_server: ({ address }) => {
      this.#list = this.#list.filter((server) => server.address !== address);
      return null;
    },
    own_server: () => ({ url: this.#url }),
    set_own_server: ({ on }) => {
      this.#url = on ? 'http://127.0.0.1:8033/v1' : null;
      return { url: this.#url };
    },
    check_server: ({ address }) => {
      const response = this.#recorded.responses[address];
      if (!response) throw refusal('server', `The server ${address} did not answer: no connection. Check that it runs, and its address.`);
      if ('code' in response) throw response;
      return response;
    },
  };

  #add(typed: string, key: string | null): ServerEntry {
    const address = `${typed.includes('://') ? '' : 'http://'}${typed}`.replace(/\/?$/, '').replace(/(:\d+)$/, '$1/v1');
    const takesKey = address.startsWith('https://') || /\/\/(127\.|localhost)/.test(address);
    if (key !== null && !takesKey)
      throw {
        code: 'invalid_request',
        message: `The key was not used: others on the network could read it on its way to ${address}.`,
        params: { reason: 'unencrypted_key', address },
      } satisfies ErrorInfo;
    const before = this.#list.find((server) => server.address === address);
    const place = this.#recorded.keychain ? 'keychain' : 'memory';
    const added: ServerEntry = { address, key: key === null ? (before?.key ?? 'absent') : place, takes_key: takesKey };
    this.#list = [...this.#list.filter((server) => server !== before), added];
    return added;
  }
}
