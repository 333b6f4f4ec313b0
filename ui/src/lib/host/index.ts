// Chooses the host: the real window when there is one, else the replay of a recording.

import type { Host } from './types';

export type { FilesEvent, Host } from './types';

/** The host this page runs in. */
export async function connectHost(): Promise<Host> {
  if ('__TAURI_INTERNALS__' in window) return (await import('./tauri')).tauriHost;
  const { openReplay } = await import('./replay');
  return openReplay(new URLSearchParams(location.search));
}
