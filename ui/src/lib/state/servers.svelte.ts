// Servers that can answer in place of the loaded models: the list, which of them can be reached, and the chosen model.
// Keys stay with the engine. No DOM.

import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { ErrorInfo, RemoteModel, ServerCheck, ServerEntry } from '../ipc/schema.gen';
import type { Preferences, ServerChoice } from './preferences.svelte';

/** State of a server, as of the last request. */
type ServerState =
  { readonly kind: 'asking' } | ({ readonly kind: 'reachable' } & ServerCheck) | { readonly kind: 'failed'; readonly error: ErrorInfo };

/** The servers that were added. */
export class Servers {
  list = $state.raw<readonly ServerEntry[]>([]);
  /** `true` if keys are stored in the system's keychain. Else they last until the app ends. */
  keychain = $state(true);
  /** Error of the last change. */
  error = $state.raw<ErrorInfo | null>(null);
  /** `true` while a server is being added. */
  adding = $state(false);

  #states = $state.raw<Readonly<Record<string, ServerState>>>({});
  /** Models of the last list of each server. They stay while it is asked again, and when it fails. */
  #known = $state.raw<Readonly<Record<string, readonly RemoteModel[]>>>({});

  /** The model that answers in place of the loaded ones; null for the loaded ones. */
  chosen = $derived.by((): ServerChoice | null => this.#preferences.server);

  readonly #host: Host;
  readonly #preferences: Preferences;

  constructor(host: Host, preferences: Preferences) {
    this.#host = host;
    this.#preferences = preferences;
  }

  /** State of a server; null if it was not asked yet. */
  stateOf(address: string): ServerState | null {
    return this.#states[address] ?? null;
  }

  /** Models of a server's last list; null before it sent one. */
  knownOf(address: string): readonly RemoteModel[] | null {
    return this.#known[address] ?? null;
  }

  /** Models of a server, as of its last list. The chosen one is known before that. */
  modelsOf(address: string): readonly Pick<RemoteModel, 'id'>[] {
    const known = this.knownOf(address);
    if (known) return known;
    return this.chosen?.address === address ? [{ id: this.chosen.model }] : [];
  }

  /** Loads the list. Never rejects. */
  async load(): Promise<void> {
    try {
      const { servers, keychain } = await call(this.#host, 'servers', {});
      this.list = servers;
      this.keychain = keychain;
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    }
  }

  /** Reloads the list from another store, and adds those of this session that it lacks. Never rejects. */
  async bringTo(): Promise<void> {
    const before = this.list;
    await this.load();
    const lacking = before.filter(({ address }) => this.list.every((server) => server.address !== address));
    try {
      // The engine still has their keys.
      for (const { address } of lacking) await call(this.#host, 'add_server', { address, key: null });
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    }
    if (lacking.length > 0) await this.load();
  }

  /** Adds a server, or replaces its key, and asks it for its models. Returns whether it was added. */
  async add(address: string, key: string | null): Promise<boolean> {
    if (this.adding) return false;
    this.adding = true;
    this.error = null;
    try {
      const added = await call(this.#host, 'add_server', { address, key });
      await this.load();
      void this.check(added.address);
      return true;
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
      return false;
    } finally {
      this.adding = false;
    }
  }

  /** Removes a server with its key. If one of its models was chosen, the loaded ones answer again. */
  async remove(address: string): Promise<void> {
    this.error = null;
    try {
      await call(this.#host, 'remove_server', { address });
      if (this.chosen?.address === address) this.choose(null);
      this.#states = without(this.#states, address);
      this.#known = without(this.#known, address);
      await this.load();
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    }
  }

  /** Asks a server for its models. Never rejects. */
  async check(address: string): Promise<void> {
    if (this.stateOf(address)?.kind === 'asking') return;
    this.#set(address, { kind: 'asking' });
    try {
      const checked = await call(this.#host, 'check_server', { address });
      this.#known = { ...this.#known, [address]: checked.models };
      this.#set(address, { kind: 'reachable', ...checked });
    } catch (thrown) {
      this.#set(address, { kind: 'failed', error: toErrorInfo(thrown) });
    }
  }

  /** Asks the chosen server for its models, unless it was asked since the start. Others are asked on the Servers page
   * only, because a request sends their key. */
  learn(): void {
    const { chosen } = this;
    if (chosen && this.stateOf(chosen.address) === null) void this.check(chosen.address);
  }

  /** Asks all servers. */
  checkAll(): void {
    for (const { address } of this.list) void this.check(address);
  }

  /** Chooses the model that answers; null for the loaded ones. */
  choose(choice: ServerChoice | null): void {
    void this.#preferences.set('server', choice);
  }

  #set(address: string, state: ServerState): void {
    this.#states = { ...this.#states, [address]: state };
  }
}

/** A record without a key. */
function without<Value>(record: Readonly<Record<string, Value>>, key: string): Readonly<Record<string, Value>> {
  return Object.fromEntries(Object.entries(record).filter(([name]) => name !== key));
}

/** An address as shown: without scheme and path, where they are the usual ones. */
export function shortAddress(address: string): string {
  return address.replace(/^http:\/\//, '').replace(/\/v1$/, '');
}
