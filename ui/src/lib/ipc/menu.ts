// Labels of the native menu.

import type { Host } from '../host';
import { language } from '../strings/index.svelte';

/** Sets the labels of the native menu, in the conventions of the system. */
export function labelMenu(host: Host, platform: 'mac' | 'other'): void {
  const { menu, menuElsewhere } = language.strings;
  host.labelMenu(platform === 'mac' ? menu : { ...menu, ...menuElsewhere });
}
