// A list of saved items, with the last error. No DOM.

import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { ErrorInfo, SaveKind } from '../ipc/schema.gen';
import { Latest } from '../latest';
import { language } from '../strings/index.svelte';

/** File name without extension, valid on any system; empty if the title has no usable characters. */
export function fileStem(title: string): string {
  const plain = title
    .replace(/[^\p{L}\p{N} _-]+/gu, ' ')
    .replace(/\s+/g, ' ')
    .trim();
  return plain.slice(0, 60);
}

/** A list of saved items. */
export class KeptList<Entry> {
  entries = $state.raw<readonly Entry[]>([]);
  error = $state.raw<ErrorInfo | null>(null);

  protected readonly host: Host;
  readonly #list: () => Promise<Entry[]>;
  readonly #notify: (text: string) => void;
  readonly #lists = new Latest();

  constructor(host: Host, list: () => Promise<Entry[]>, notify: (text: string) => void) {
    this.host = host;
    this.#list = list;
    this.#notify = notify;
  }

  /** Reloads the list. */
  async refresh(): Promise<void> {
    await this.change(async () => {});
  }

  /** Runs an action and reloads the list. Returns whether the action succeeded. A late answer to an earlier request of
   * the list is dropped: it may have entries that were deleted since. */
  protected async change(act: () => Promise<unknown>): Promise<boolean> {
    let done = false;
    await this.attempt(async () => {
      await act();
      done = true;
      const isLatest = this.#lists.start();
      const entries = await this.#list();
      if (!isLatest()) return;
      this.entries = entries;
      this.listed();
    });
    return done;
  }

  /** Called when the list was reloaded. */
  protected listed(): void {}

  /** Saves to a file chosen by the user. `act` gets the token of its place. */
  protected async write(kind: SaveKind, name: string, act: (token: number) => Promise<unknown>): Promise<void> {
    await this.attempt(async () => {
      const place = await call(this.host, 'choose_save_place', { kind, name });
      if (place === null) return;
      await act(place.token);
      this.#notify(language.strings.notices.saved(place.name));
    });
  }

  /** Runs an action and keeps its error. */
  protected async attempt(act: () => Promise<unknown>): Promise<void> {
    try {
      await act();
      this.error = null;
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    }
  }
}
