// The server of this window for other programs: a switch, and its address. It answers with the loaded models. No DOM.

import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { ErrorInfo } from '../ipc/schema.gen';

/** The server for other programs. */
export class OwnServerSwitch {
  /** Address of its API; null while it is off. */
  url = $state<string | null>(null);
  /** Error of the last change. */
  error = $state.raw<ErrorInfo | null>(null);
  /** `true` while it starts or ends. */
  changing = $state(false);

  readonly #host: Host;

  constructor(host: Host) {
    this.#host = host;
  }

  /** Loads the state. Never rejects. */
  async load(): Promise<void> {
    try {
      this.url = (await call(this.#host, 'own_server', {})).url;
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    }
  }

  /** Starts the server, or ends it. Never rejects. */
  async toggle(): Promise<void> {
    if (this.changing) return;
    this.changing = true;
    this.error = null;
    try {
      this.url = (await call(this.#host, 'set_own_server', { on: this.url === null })).url;
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    } finally {
      this.changing = false;
    }
  }
}
