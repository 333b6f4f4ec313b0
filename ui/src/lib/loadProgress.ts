// Words for the progress of loading models. No DOM.

import { formatBytes } from './format';
import type { LoadProgress } from './ipc/schema.gen';
import { language } from './strings/index.svelte';

/** Bytes done of all bytes: of the weights being loaded, or of the low-bit copy being written. */
export function loadedBytes({ done_bytes: done, total_bytes: total, writes_copy: writes }: LoadProgress): string {
  const words = language.strings.library.loading;
  const bytes = words.bytes(formatBytes(done), formatBytes(total));
  return writes ? words.writingCopy(bytes) : bytes;
}
