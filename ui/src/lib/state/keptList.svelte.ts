// A list of what is kept on this machine, and what went wrong with it last. No DOM.

import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { ErrorInfo, SaveKind } from '../ipc/schema.gen';
import { language } from '../strings/index.svelte';

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
  readonly #notify: (text: string) => void;

  constructor(host: Host, list: () => Promise<Entry[]>, notify: (text: string) => void = () => {}) {
    this.host = host;
    this.#list = list;
    this.#notify = notify;
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

  /** Has something written to a file that the person chooses. `act` gets the token that stands for it. */
  protected async write(kind: SaveKind, name: string, act: (token: number) => Promise<unknown>): Promise<void> {
    await this.attempt(async () => {
      const place = await call(this.host, 'choose_save_place', { kind, name });
      if (place === null) return;
      await act(place.token);
      this.#notify(language.strings.notices.saved(place.name));
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
