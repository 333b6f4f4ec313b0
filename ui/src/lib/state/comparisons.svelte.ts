// The comparisons that were kept: their list, deleting one, writing one to a file. No DOM.

import type { Host } from '../host';
import { call } from '../ipc/rpc';
import type { ComparisonEntry, ComparisonFormat } from '../ipc/schema.gen';
import { language } from '../strings/index.svelte';
import { fileStem, KeptList } from './keptList.svelte';

/** The forms a comparison can be written in, and how their files end. */
const endings: Record<ComparisonFormat, string> = { json: 'json', csv: 'csv', picture: 'svg' };

/** Every form, in the order it is offered. */
export const comparisonFormats = Object.keys(endings) as ComparisonFormat[];

/** The comparisons of this machine. */
export class Comparisons extends KeptList<ComparisonEntry> {
  constructor(host: Host, notify?: (text: string) => void) {
    super(host, () => call(host, 'list_comparisons', {}), notify);
  }

  /** Deletes one for good. */
  async remove(id: number): Promise<void> {
    await this.change(() => call(this.host, 'delete_comparison', { id }));
  }

  /** Writes one to a file that the person chooses. */
  async save(id: number, title: string, format: ComparisonFormat): Promise<void> {
    const name = `${fileStem(title) || language.strings.compare.file}.${endings[format]}`;
    await this.write(format, name, (token) => call(this.host, 'export_comparison', { id, format, token }));
  }
}
