// Which system the window runs on, for key names and the room its buttons need.

import { language } from './strings/index.svelte';

/** "mac", or "other". */
export const platform: 'mac' | 'other' = /Mac/.test(navigator.userAgent) ? 'mac' : 'other';

/** A shortcut as the system writes it: ⌘N, ⇧⌘C; Ctrl+N, Ctrl+Shift+C. */
export const shortcut = (key: string, shift = false): string =>
  platform === 'mac'
    ? `${shift ? '⇧' : ''}⌘${key}`
    : `${language.strings.controlKey}+${shift ? `${language.strings.shiftKey}+` : ''}${key}`;

/** Whether an event holds the system's command key and no other modifier, or Shift as well. */
export const commandKey = (event: KeyboardEvent, shift = false): boolean =>
  (platform === 'mac' ? event.metaKey && !event.ctrlKey : event.ctrlKey && !event.metaKey) &&
  !event.altKey &&
  event.shiftKey === shift;
