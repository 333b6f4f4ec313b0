// Updates of the app on the replay host: a newer version that is found, downloaded and installed.

import type { Handlers } from '../../../ui/src/lib/ipc/commands';
import type { ErrorInfo, UpdateState } from '../../../ui/src/lib/ipc/schema.gen';
import type { Later } from './playing';

/** The commands of updates. */
type UpdateCommand = 'update_state' | 'check_for_update' | 'download_update' | 'install_update';

/** Updates of a recorded application. */
export interface RecordedUpdates {
  /** The newer version; null for none. */
  version: string | null;
  /** Size of the bundle in bytes. */
  bytes: number;
  /** Milliseconds between two reports of progress. */
  progress_ms: number;
  /** Errors of the commands, by name. */
  errors?: Partial<Record<UpdateCommand, ErrorInfo>>;
}

/** Reports of progress in a download. */
const steps = 4;

/** The updates of a recorded application. */
export class ReplayUpdates {
  readonly #recorded: RecordedUpdates | undefined;
  readonly #later: Later;
  #state: UpdateState;

  constructor(later: Later, recorded?: RecordedUpdates) {
    this.#recorded = recorded;
    this.#later = later;
    this.#state = { state: recorded ? 'none' : 'off' };
  }

  readonly handlers: Pick<Handlers, UpdateCommand> = {
    update_state: () => this.#state,
    check_for_update: () => {
      this.#fail('check_for_update');
      const version = this.#recorded?.version;
      if (version) this.#state = { state: 'found', version };
      return this.#state;
    },
    download_update: async (_, send) => {
      const { bytes = 0, progress_ms = 0, version } = this.#recorded ?? {};
      for (let step = 1; step <= steps; step += 1) {
        await new Promise<void>((resolve) => this.#later(progress_ms, resolve));
        send({ received: (bytes * step) / steps, total: bytes });
      }
      this.#fail('download_update');
      if (version) this.#state = { state: 'ready', version };
      return this.#state;
    },
    install_update: () => {
      this.#fail('install_update');
      return null;
    },
  };

  #fail(command: UpdateCommand): void {
    const error = this.#recorded?.errors?.[command];
    if (error) throw error;
  }
}
