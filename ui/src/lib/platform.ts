// Which system the window runs on, for key names and the room its buttons need.

/** "mac", or "other". */
export const platform: 'mac' | 'other' = /Mac/.test(navigator.userAgent) ? 'mac' : 'other';

/** A shortcut as the system writes it: ⌘N, Ctrl+N. */
export const shortcut = (key: string): string => (platform === 'mac' ? `⌘${key}` : `Ctrl+${key}`);

/** Whether an event holds the system's command key and no other modifier. */
export const commandKey = (event: KeyboardEvent): boolean =>
  (platform === 'mac' ? event.metaKey && !event.ctrlKey : event.ctrlKey && !event.metaKey) &&
  !event.altKey &&
  !event.shiftKey;
