// A list of what is kept on this machine, and what went wrong with it last. No DOM.

import type { Host } from '../host';
import { toErrorInfo } from '../ipc/rpc';
import type { ErrorInfo } from '../ipc/schema.gen';

/** What a file is called before its ending, as any system takes it; empty when the title has nothing to go by. */
export function fileStem(title: string): string {
  const plain = title.replace(/[^\p{L}\p{N} _-]+/gu, ' ').replace(/\s+/g, ' ').trim();
  return plain.slice(0, 60);
}

/** What is kept, as a list. */
export class KeptList<Entry> {
  entries = $state.raw<readonly Entry[]>([]);
  error = $state.raw<ErrorInfo | null>(null);

  protected readonly host: Host;
  readonly #list: () => Promise<Entry[]>;

  constructor(host: Host, list: () => Promise<Entry[]>) {
    this.host = host;
    this.#list = list;
  }

  /** Fetches the list anew. */
  async refresh(): Promise<void> {
    await this.change(async () => {});
  }

  /** Does something that changes the list. Says whether it was done, whether or not the list could be read after. */
  protected async change(act: () => Promise<unknown>): Promise<boolean> {
    let done = false;
    await this.attempt(async () => {
      await act();
      done = true;
      this.entries = await this.#list();
    });
    return done;
  }

  /** Has something written to a file that the person chooses. */
  protected async write(name: string, act: (path: string) => Promise<unknown>): Promise<void> {
    await this.attempt(async () => {
      const path = await this.host.pickWhereToSave(name);
      if (path !== null) await act(path);
    });
  }

  /** Does something that may go wrong. */
  protected async attempt(act: () => Promise<unknown>): Promise<void> {
    try {
      await act();
      this.error = null;
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    }
  }
}
