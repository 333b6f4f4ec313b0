// The operating system, for key names and the room for window buttons.

import { language } from './strings/index.svelte';

/** "mac", or "other". */
export const platform: 'mac' | 'other' = /Mac/.test(navigator.userAgent) ? 'mac' : 'other';

/** A shortcut in the system's notation: ⌘N, ⇧⌘C; Ctrl+N, Ctrl+Shift+C. */
export const shortcut = (key: string, shift = false): string =>
  platform === 'mac'
    ? `${shift ? '⇧' : ''}⌘${key}`
    : `${language.strings.controlKey}+${shift ? `${language.strings.shiftKey}+` : ''}${key}`;

/** Returns `true` if the command key is held, with no other modifier but Shift. */
export const commandKey = (event: KeyboardEvent, shift = false): boolean =>
  (platform === 'mac' ? event.metaKey && !event.ctrlKey : event.ctrlKey && !event.metaKey) && !event.altKey && event.shiftKey === shift;
