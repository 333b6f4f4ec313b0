// The acceptance map of a conversation or of all. No DOM.

import type { Host } from '../../host';
import { call, toErrorInfo } from '../../ipc/rpc';
import type { AcceptanceMap, ErrorInfo } from '../../ipc/schema.gen';
import { Latest } from '../../latest';

/** Scope of the map. */
type Reach = 'conversation' | 'all';

/** The acceptance map on screen. */
export class AcceptanceMapState {
  reach = $state<Reach>('conversation');
  map = $state.raw<AcceptanceMap | null>(null);
  error = $state.raw<ErrorInfo | null>(null);

  readonly #host: Host;
  readonly #requests = new Latest();

  constructor(host: Host) {
    this.#host = host;
  }

  /** Loads the map of a conversation, or of all if none is open or all are chosen. */
  async load(conversation: number | null): Promise<void> {
    const isLatest = this.#requests.start();
    this.error = null;
    try {
      const map = await call(this.#host, 'acceptance_map', { conversation: this.reach === 'all' ? null : conversation });
      if (isLatest()) this.map = map;
    } catch (thrown) {
      if (isLatest()) this.error = toErrorInfo(thrown);
    }
  }
}
