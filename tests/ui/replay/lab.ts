// The lab of the replay host: recorded answers of the engine. Rounds are drawn from a recorded position with a seeded
// generator, so their counts are consistent. No DOM.

import type { Handlers } from '../../../ui/src/lib/ipc/commands';
import type {
  AcceptanceMap,
  AcceptanceRule,
  CostCurve,
  CostEvent,
  LabMachine,
  LabPosition,
  LabRequest,
  LabRound,
  LabRounds,
  LabRoundsRequest,
  LabRuleRow,
  LabServing,
  LabSession,
  Landscape,
  MeasurementMessage,
  SkipSearchEvent,
  WhatIf,
  WhatIfRequest,
} from '../../../ui/src/lib/ipc/schema.gen';
import { Playing, type Later, type Track } from './playing';
import { refusal } from './refusal';

type SourceKind = LabRequest['source']['kind'];

/** The commands that the lab implements. */
type LabCommand =
  | 'lab_position'
  | 'lab_rounds'
  | 'lab_rules'
  | 'landscape'
  | 'lab_serving'
  | 'lab_sessions'
  | 'acceptance_map'
  | 'what_if'
  | 'measure_costs'
  | 'cost_curve'
  | 'costs_snapshot'
  | 'search_skipped_layers'
  | 'skip_search_snapshot';

/** Recording of the lab. */
export interface RecordedLab {
  /** Positions by kind of source. A missing kind is refused. */
  positions: Partial<Record<SourceKind, LabPosition>>;
  rules: LabRuleRow[];
  /** Output distribution under the rules that change it, by kind of source: the listed tokens, then all others; and
   * how often a draft is accepted. Under the other rules the output is p. */
  changed: Partial<Record<SourceKind, Partial<Record<AcceptanceRule['name'], { distribution: number[]; acceptance: number }>>>>;
  landscapes: Record<LabMachine['kind'], Landscape>;
  serving: LabServing;
  sessions: LabSession[];
  maps: { conversation: AcceptanceMap; all: AcceptanceMap };
  what_if: WhatIf;
  /** The last measurement; null for none. */
  curve: CostCurve | null;
  /** Result of measuring. */
  measuring: CostEvent[];
  /** Milliseconds between two progress events. */
  measuring_ms: number;
  /** The search for layers to skip. */
  searching: SkipSearchEvent[];
  /** Milliseconds between two events of it. */
  searching_ms: number;
}

/** The lab of a recorded application. */
export class ReplayLab {
  readonly #lab: RecordedLab;
  readonly #later: Later;
  readonly #positions: LabPosition[] = [];
  readonly #tallies = new Map<string, LabRounds>();
  /** Takes the layers that a search found. */
  readonly #found: (layers: number[]) => void;
  #curve: CostCurve | null;
  #measuring: Playing<CostEvent> | null = null;
  #searching: Playing<SkipSearchEvent> | null = null;
  /** Number of the last measurement, in another range than comparisons. */
  #id = 1000;

  constructor(lab: RecordedLab, later: Later, found: (layers: number[]) => void) {
    this.#found = found;
    this.#lab = lab;
    this.#later = later;
    this.#curve = lab.curve;
  }

  /** The commands of the lab. */
  readonly handlers: Pick<Handlers, LabCommand> = {
    lab_position: ({ request }) => this.#look(request),
    lab_rounds: ({ request }) => this.#rounds(request),
    lab_rules: ({ temperatures }) => this.#rules(temperatures),
    landscape: ({ machine, batch, draft }) => {
      const drafter = machine.kind === 'measured' && draft.kind !== 'lookup' ? (machine.drafter ?? 'draft-model') : null;
      return { ...this.#lab.landscapes[machine.kind], batch, draft, drafter };
    },
    lab_serving: () => this.#lab.serving,
    lab_sessions: () => this.#lab.sessions,
    acceptance_map: ({ conversation }) => (conversation === null ? this.#lab.maps.all : this.#lab.maps.conversation),
    what_if: ({ request }) => this.#whatIf(request),
    measure_costs: (_, send) => this.#measure(send),
    cost_curve: () => this.#curve,
    costs_snapshot: ({ id, from }) => this.#snapshot(id, from),
    search_skipped_layers: (_, send) => this.#search(send),
    skip_search_snapshot: ({ id, from }) => ({ id, seq: from, events: this.#searching?.played.slice(from) ?? [] }),
  };

  /** Plays the recorded measurement. Returns its number. */
  #measure(deliver: (message: MeasurementMessage<CostEvent>) => void): number {
    const id = ++this.#id;
    const track: Track<CostEvent> = {
      batches: this.#lab.measuring.map((event) => [event]),
      duration: () => this.#lab.measuring_ms,
      keep: (_, events) => {
        for (const event of events) if (event.type === 'finished') this.#curve = event.curve ?? this.#curve;
      },
      deliver: (seq, events) => deliver({ id, seq, events }),
    };
    // Progress stays visible, however fast answers are played.
    this.#measuring = new Playing(track, { speed: 1, lost: new Set(), later: this.#later });
    this.#measuring.start();
    return id;
  }

  /** Plays the recorded search. Returns its number. */
  #search(deliver: (message: MeasurementMessage<SkipSearchEvent>) => void): number {
    const id = ++this.#id;
    const track: Track<SkipSearchEvent> = {
      batches: this.#lab.searching.map((event) => [event]),
      duration: () => this.#lab.searching_ms,
      keep: (_, events) => {
        for (const event of events) if (event.type === 'finished' && event.found) this.#found(event.found.best.skipped);
      },
      deliver: (seq, events) => deliver({ id, seq, events }),
    };
    this.#searching = new Playing(track, { speed: 1, lost: new Set(), later: this.#later });
    this.#searching.start();
    return id;
  }

  /** Stops a measurement of this lab: it ends without a result, as the engine does after the current pass. */
  stop(id: number): boolean {
    if (id <= 1000) return false;
    if (id !== this.#id) return true;
    this.#measuring?.end({ type: 'finished', curve: null }, this.#lab.measuring_ms);
    this.#searching?.end({ type: 'finished', found: null }, this.#lab.measuring_ms);
    return true;
  }

  #look({ source, sampling }: LabRequest): LabPosition {
    const recorded = this.#lab.positions[source.kind];
    if (!recorded) throw refusal('no_model', 'There is no draft model to look at both distributions with. Open a draft first.');
    const position = { ...recorded, id: this.#positions.length + 1, source, sampling };
    this.#positions.push(position);
    return position;
  }

  #snapshot(id: number, from: number): MeasurementMessage<CostEvent> {
    return { id, seq: from, events: this.#measuring?.played.slice(from) ?? [] };
  }

  #rules(temperatures: number[]): LabRuleRow[] {
    return temperatures.map((temperature) => {
      const nearest = this.#lab.rules.toSorted((a, b) => Math.abs(a.temperature - temperature) - Math.abs(b.temperature - temperature))[0];
      if (!nearest) throw refusal('internal', 'No rules were recorded.');
      return { ...nearest, temperature };
    });
  }

  #whatIf({ max_draft, temperature }: WhatIfRequest): WhatIf {
    const { was, would, known, tree, covered } = this.#lab.what_if;
    const time = temperature === null ? would.tok_s : null;
    return {
      was,
      would: { ...would, mean_acceptance_length: would.mean_acceptance_length + max_draft / 100, tok_s: time },
      known,
      tree,
      covered,
    };
  }

  #rounds({ position: id, rule, rounds, restart }: LabRoundsRequest): LabRounds {
    const position = this.#positions.find((other) => other.id === id);
    if (!position) throw refusal('invalid_request', 'This position is not kept any more. Choose it again.');
    const key = `${id} ${rule.name}`;
    const before = restart ? undefined : this.#tallies.get(key);
    const counts = before ? [...before.counts] : position.tokens.map(() => 0);
    let [accepted, rest, last]: [number, number, LabRound | null] = [before?.accepted ?? 0, before?.rest ?? 0, null];
    const done = before?.rounds ?? 0;
    const random = uniform(done + 17 * rule.name.length);
    for (let at = 0; at < rounds; at++) {
      last = this.#round(position, rule, random);
      const emitted = position.tokens.findIndex((token) => token.id === last?.emitted);
      if (emitted < 0) rest += 1;
      else counts[emitted] = (counts[emitted] ?? 0) + 1;
      if (last.accepted) accepted += 1;
    }
    const tally = {
      position: id,
      rule,
      rounds: done + rounds,
      accepted,
      counts,
      rest,
      ...against(position, counts, rest),
      last: rounds === 1 ? last : null,
    };
    this.#tallies.set(key, tally);
    return tally;
  }

  /** One round: simulated for rejection sampling, drawn from the output distribution for other rules. */
  #round({ source, tokens, rest, acceptance }: LabPosition, rule: AcceptanceRule, random: () => number): LabRound {
    const all = [...tokens, { ...rest, id: otherToken }];
    const pick = (weights: readonly number[]) => all[drawn(weights, random())] ?? all[0]!;
    const draft = pick(all.map(({ q }) => q));
    const { id: drafted, p, q } = draft;
    if (rule.name === 'lossless') {
      const u = random();
      const threshold = drafted === otherToken ? draft.overlap / Math.max(q, 1e-9) : Math.min(1, p / q);
      const accepted = u < threshold;
      return { drafted, p, q, u, threshold, accepted, emitted: accepted ? drafted : pick(all.map(({ residual }) => residual)).id };
    }
    const changed = this.#lab.changed[source.kind]?.[rule.name];
    const accepted = random() < (changed?.acceptance ?? acceptance * 0.8);
    return { drafted, p, q, u: null, threshold: null, accepted, emitted: pick(changed?.distribution ?? all.map((token) => token.p)).id };
  }
}

/** Stands for all unlisted tokens. */
const otherToken = 100_000;

/** Index of the weight that a uniform number falls on. */
function drawn(weights: readonly number[], uniformly: number): number {
  let left = uniformly * weights.reduce((sum, weight) => sum + weight, 0);
  return Math.max(
    0,
    weights.findIndex((weight) => (left -= weight) < 0),
  );
}

/** A seeded generator of uniform numbers (mulberry32). */
function uniform(seed: number): () => number {
  let state = Math.imul(seed + 1, 0x9e3779b1) >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

type Distance = Pick<LabRounds, 'chi_square' | 'degrees' | 'p_value' | 'refuted' | 'total_variation' | 'expected_variation'>;

/** Goodness of fit of counts to a distribution. An approximation of the engine's exact figures. */
function against(position: LabPosition, counts: readonly number[], rest: number): Distance {
  const distribution = [...position.tokens.map(({ p }) => p), position.rest.p];
  const all = [...counts, rest];
  const rounds = all.reduce((sum, count) => sum + count, 0);
  let [chi_square, total_variation, expected_variation] = [0, 0, 0];
  for (const [i, p] of distribution.entries()) {
    const count = all[i] ?? 0;
    if (p > 0) chi_square += (count - rounds * p) ** 2 / (rounds * p);
    total_variation += Math.abs(count / rounds - p) / 2;
    expected_variation += Math.sqrt((p * (1 - p)) / (2 * Math.PI * rounds));
  }
  const degrees = distribution.filter((p) => p > 0).length - 1;
  const p_value = upperTail(chi_square, degrees);
  return { chi_square, degrees, p_value, refuted: p_value < 1e-6, total_variation, expected_variation };
}

/** P-value of a chi-square statistic, by Wilson and Hilferty's normal approximation. */
function upperTail(chiSquare: number, degrees: number): number {
  const spread = 2 / (9 * degrees);
  const z = (Math.cbrt(chiSquare / degrees) - (1 - spread)) / Math.sqrt(spread);
  return 1 / (1 + Math.exp(1.5976 * z + 0.07056 * z ** 3));
}
