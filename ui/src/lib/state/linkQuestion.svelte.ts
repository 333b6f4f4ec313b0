// The question before a link of an answer is opened. No DOM.

import { errorLine } from '../errors';
import type { Host } from '../host';
import { toErrorInfo } from '../ipc/rpc';
import { plainAddress } from '../links';

/** Functions of the window that the question needs. */
interface LinkActions {
  copy: (text: string) => unknown;
  reportFailure: (text: string) => void;
}

/** The question whether to open a link. Its plain address is shown, copied and opened. */
export class LinkQuestion {
  /** The address in question; null while nothing is asked. */
  address = $state<string | null>(null);

  readonly #host: Host;
  readonly #actions: LinkActions;

  constructor(host: Host, actions: LinkActions) {
    this.#host = host;
    this.#actions = actions;
  }

  /** Asks whether to open a link. */
  ask(href: string): void {
    this.address = plainAddress(href);
  }

  /** Closes the question. */
  dismiss(): void {
    this.address = null;
  }

  /** Opens the link. */
  async open(): Promise<void> {
    const href = this.address;
    this.dismiss();
    if (href === null) return;
    try {
      await this.#host.openLink(href);
    } catch (thrown) {
      this.#actions.reportFailure(errorLine(toErrorInfo(thrown)));
    }
  }

  /** Copies the link instead of opening it. */
  copy(): void {
    if (this.address !== null) void this.#actions.copy(this.address);
    this.dismiss();
  }
}
