// The saved comparisons: list, delete, save to a file. No DOM.

import type { Host } from '../host';
import { call } from '../ipc/rpc';
import type { ComparisonEntry, ComparisonFormat } from '../ipc/schema.gen';
import { language } from '../strings/index.svelte';
import { fileStem, KeptList } from './keptList.svelte';

/** File formats of a comparison, with their extensions. */
const endings: Record<ComparisonFormat, string> = { json: 'json', csv: 'csv', picture: 'svg' };

/** All formats, in display order. */
export const comparisonFormats = Object.keys(endings) as ComparisonFormat[];

/** The comparisons of this machine. */
export class Comparisons extends KeptList<ComparisonEntry> {
  constructor(host: Host, notify: (text: string) => void) {
    super(host, () => call(host, 'list_comparisons', {}), notify);
  }

  /** Deletes a comparison permanently. */
  async remove(id: number): Promise<void> {
    await this.change(() => call(this.host, 'delete_comparison', { id }));
  }

  /** Saves a comparison to a file chosen by the user. */
  async save(id: number, title: string, format: ComparisonFormat): Promise<void> {
    const name = `${fileStem(title) || language.strings.compare.file}.${endings[format]}`;
    await this.write(format, name, (token) => call(this.host, 'export_comparison', { id, format, token }));
  }
}
