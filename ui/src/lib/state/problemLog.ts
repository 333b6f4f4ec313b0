// The log of failures of the page. No DOM.

import { errorLine } from '../errors';
import type { Host } from '../host';
import { reportProblem, type ProblemKind } from '../ipc/problems';
import { call, toErrorInfo } from '../ipc/rpc';

/** The log. */
export class ProblemLog {
  readonly #host: Host;
  readonly #reportFailure: (text: string) => void;

  constructor(host: Host, reportFailure: (text: string) => void) {
    this.#host = host;
    this.#reportFailure = reportFailure;
  }

  /** Logs a failure. */
  report(kind: ProblemKind, thrown: unknown): void {
    reportProblem(this.#host, kind, thrown);
  }

  /** Shows the log in the system's file manager. */
  async show(): Promise<void> {
    try {
      await call(this.#host, 'show_log', {});
    } catch (thrown) {
      this.#reportFailure(errorLine(toErrorInfo(thrown)));
    }
  }
}
