// How a lane of a comparison is named and drawn: one way on every chart. The colours are in app.css. No DOM.

import type { MethodConfig, Method } from './ipc/schema.gen';
import { language } from './strings/index.svelte';

/** Most methods beside plain decoding. */
export const mostLanes = 5;

/** What a method is called; one that the window does not offer goes by its name on the wire. */
export function methodName(method: Method): string {
  const known: Partial<Record<Method, { label: string }>> = language.strings.methods;
  return known[method]?.label ?? method;
}

/** What a lane is called: its method, and how much it drafts. */
export function laneName({ method, max_draft }: MethodConfig): string {
  const name = methodName(method);
  return method === 'plain' ? name : language.strings.compare.lanes.name(name, String(max_draft));
}

/** The colour of a lane. */
export const laneColour = (lane: number): string => `var(--lane-${lane})`;

/** Its line on a chart, as lengths of dashes: lanes are told apart without their colours too. */
export const laneDashes = (lane: number): string | undefined => [undefined, undefined, '6 3', '2 3', '8 3 2 3', '4 4'][lane];
