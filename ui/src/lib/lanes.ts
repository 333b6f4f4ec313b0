// Names and styles of the lanes of a comparison, the same on every chart. The colours are in app.css. No DOM.

import type { MethodConfig } from './ipc/schema.gen';
import { methodName } from './methods';
import { language } from './strings/index.svelte';

/** Most methods compared with plain decoding. */
export const mostLanes = 6;

/** Name of a lane: its method, and its draft length. */
export function laneName({ method, max_draft }: MethodConfig): string {
  const name = methodName(method);
  return method === 'plain' ? name : language.strings.compare.lanes.name(name, String(max_draft));
}

/** Colour of a lane. */
export const laneColour = (lane: number): string => `var(--lane-${lane})`;

/** Dashes of a lane's line, which distinguish lanes without colour. */
export const laneDashes = (lane: number): string | undefined => [undefined, undefined, '6 3', '2 3', '8 3 2 3', '4 4', '10 2'][lane];
