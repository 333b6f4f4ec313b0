// The comparisons that were kept: their list, deleting one, writing one to a file. No DOM.

import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { ComparisonEntry, ComparisonFormat, ErrorInfo } from '../ipc/schema.gen';
import { language } from '../strings/index.svelte';
import { fileStem } from './conversations.svelte';

/** The forms a comparison can be written in, and how their files end. */
const endings: Record<ComparisonFormat, string> = { json: 'json', csv: 'csv', picture: 'svg' };

/** Every form, in the order it is offered. */
export const comparisonFormats = Object.keys(endings) as ComparisonFormat[];

/** The comparisons of this machine. */
export class Comparisons {
  entries = $state.raw<readonly ComparisonEntry[]>([]);
  error = $state.raw<ErrorInfo | null>(null);

  readonly #host: Host;

  constructor(host: Host) {
    this.#host = host;
  }

  /** Fetches the list anew. */
  async refresh(): Promise<void> {
    await this.#try(async () => {
      this.entries = await call(this.#host, 'list_comparisons', {});
    });
  }

  /** Deletes one for good. */
  async remove(id: number): Promise<void> {
    await this.#try(async () => {
      await call(this.#host, 'delete_comparison', { id });
      this.entries = await call(this.#host, 'list_comparisons', {});
    });
  }

  /** Writes one to a file that the person chooses. */
  async save(id: number, title: string, format: ComparisonFormat): Promise<void> {
    await this.#try(async () => {
      const path = await this.#host.pickWhereToSave(`${fileStem(title) || language.strings.compare.file}.${endings[format]}`);
      if (path !== null) await call(this.#host, 'export_comparison', { id, format, path });
    });
  }

  async #try(act: () => Promise<void>): Promise<void> {
    try {
      await act();
      this.error = null;
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    }
  }
}
