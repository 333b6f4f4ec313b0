// The file of prompts that the user chose as a suite. No DOM.

import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { ErrorInfo, SuiteFile } from '../ipc/schema.gen';
import { Latest } from '../latest';
import { language } from '../strings/index.svelte';

/** A suite of the user. */
export class OwnSuite {
  /** The file that was read; null until one is chosen. */
  file = $state.raw<SuiteFile | null>(null);
  /** Why the last chosen file is no suite. */
  error = $state.raw<ErrorInfo | null>(null);

  readonly #host: Host;
  readonly #choices = new Latest();

  constructor(host: Host) {
    this.#host = host;
  }

  /** Lets the user choose a file. An unusable one leaves the last file. Never rejects. */
  async choose(): Promise<void> {
    const isLatest = this.#choices.start();
    const { chooseSuite, suiteFiles } = language.strings.compare.form;
    try {
      const path = await call(this.#host, 'choose_file', { kind: 'suite', title: chooseSuite, filter: suiteFiles });
      if (path === null || !isLatest()) return;
      this.error = null;
      const file = await call(this.#host, 'read_suite', { path });
      if (isLatest()) this.file = file;
    } catch (thrown) {
      if (isLatest()) this.error = toErrorInfo(thrown);
    }
  }
}
