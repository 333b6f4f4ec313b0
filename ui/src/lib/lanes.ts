// Names, settings and styles of the lanes of a comparison, the same on every chart. The colours are in app.css. No DOM.

import { formatChosen } from './format';
import type { AcceptanceRule, LaneConfig, LaneModels } from './ipc/schema.gen';
import { methodName } from './methods';
import { ruleFigure } from './rules';
import { language } from './strings/index.svelte';

/** Most lanes whose names fit next to their lines in a chart. */
export const mostNamedLanes = 3;

/** Most lanes next to plain decoding. */
export const mostLanes = 7;

/** Label of an acceptance rule. */
const ruleLabel = (rule: AcceptanceRule): string => ruleFigure(rule) ?? language.strings.compare.lanes.lossless;

/** Labels of a lane's own models. `target` is the comparison's. */
function modelLabels({ target: own, draft, head }: LaneModels, target: string): string[] {
  const words = language.strings.compare.lanes;
  return [
    ...(own === target ? [] : [words.target(own)]),
    ...(draft === undefined ? [] : [words.draft(draft)]),
    ...(head === undefined ? [] : [words.head(head)]),
    ...(own === target && draft === undefined && head === undefined ? [words.noDraft] : []),
  ];
}

/** Labels of what a lane does not share with its comparison, whose target is `target`, except for its draft length. */
export function ownLabels({ rule, temperature, models }: LaneConfig, target: string): string[] {
  return [
    ...(temperature === undefined ? [] : [language.strings.compare.lanes.temperature(formatChosen(temperature))]),
    ...(rule === undefined ? [] : [ruleLabel(rule)]),
    ...(models === undefined ? [] : modelLabels(models, target)),
  ];
}

/** Name of a lane: its method, its draft length, and its own settings. `target` is the comparison's. */
export function laneName(lane: LaneConfig, target: string): string {
  const name = methodName(lane.method);
  const method = lane.method === 'plain' ? name : language.strings.compare.lanes.name(name, String(lane.max_draft));
  return [method, ...ownLabels(lane, target)].join(', ');
}

/** Returns a text that is equal for equal lanes. */
export function laneKey({ method, max_draft, rule, temperature, models }: LaneConfig): string {
  return JSON.stringify([method, max_draft, rule, temperature, models?.target, models?.draft, models?.head]);
}

/** Targets of lanes other than the comparison's. */
export function otherTargets(lanes: readonly LaneConfig[], target: string | null): string[] {
  const own = lanes.flatMap(({ models }) => (models && models.target !== target ? [models.target] : []));
  return own.filter((one, i) => own.indexOf(one) === i);
}

/** Number of plain lanes that the engine adds: one for each further pair of target and temperature. `usual` are
 * those of the comparison. */
export function addedLanes(lanes: readonly LaneConfig[], usual: { target: string | null; temperature: number }): number {
  const pairs = lanes.map((lane) => JSON.stringify([lane.models?.target ?? usual.target, lane.temperature ?? usual.temperature]));
  return new Set([...pairs, JSON.stringify([usual.target, usual.temperature])]).size - 1;
}

/** Answers of the last turn with the most lanes. Lanes that run after others may have ended early. */
export function lastTurn<A extends { prompt: number; run: number }>(answers: readonly A[]): A[] {
  const turns = new Map<string, A[]>();
  for (const answer of answers) {
    const key = `${answer.prompt} ${answer.run}`;
    turns.set(key, [...(turns.get(key) ?? []), answer]);
  }
  return [...turns.values()].reduce((best, turn) => (turn.length >= best.length ? turn : best), []);
}

/** Colour of a lane. */
export const laneColour = (lane: number): string => `var(--lane-${lane})`;

/** Dashes of a lane's line, which distinguish lanes without colour. */
export const laneDashes = (lane: number): string | undefined => [undefined, undefined, '6 3', '2 3', '8 3 2 3', '4 4', '10 2', '1 4'][lane];
