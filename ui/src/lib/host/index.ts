// Chooses the host: Tauri in the app, otherwise one injected into the page.

import type { Host } from './types';

export type { FilesEvent, Host } from './types';

declare global {
  interface Window {
    /** Opens the host of a page outside the app. Browser tests and the dev server set it. */
    openHost?: () => Promise<Host>;
  }
}

/** The host this page runs in. */
export async function connectHost(): Promise<Host> {
  if ('__TAURI_INTERNALS__' in window) return (await import('./tauri')).tauriHost;
  if (window.openHost) return window.openHost();
  throw new Error('This page runs in the Hunch app only.');
}
