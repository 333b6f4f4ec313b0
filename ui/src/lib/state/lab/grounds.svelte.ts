// The speedup landscape: of this machine once its costs are measured, or of a made-up one; and the person's
// answers as places in it. No DOM.

import type { Host } from '../../host';
import { call, toErrorInfo } from '../../ipc/rpc';
import type { ErrorInfo, LabMachine, LabSession, Landscape } from '../../ipc/schema.gen';
import { Latest } from '../../latest';

/** Whose costs the landscape is of. */
export type MachineKind = LabMachine['kind'];

/** What the sliders go over, in target passes of one row. */
export const draftCosts = { min: 0, max: 1, step: 0.01 } as const;
export const rowCosts = { min: 0, max: 0.5, step: 0.01 } as const;

/** The landscape on screen. */
export class Grounds {
  kind = $state<MachineKind>('measured');
  /** Of the made-up machine; a small model beside one of some billion weights on a processor, to begin with. */
  draftCost = $state(0.25);
  rowCost = $state(0.08);
  grid = $state.raw<Landscape | null>(null);
  sessions = $state.raw<readonly LabSession[]>([]);
  error = $state.raw<ErrorInfo | null>(null);
  /** Whether it was asked if costs were measured here. */
  known = $state(false);

  readonly #host: Host;
  readonly #requests = new Latest();
  #measured = false;

  constructor(host: Host) {
    this.#host = host;
  }

  /** Asks again, for costs and answers may be new. Without measured costs a made-up machine stands in. */
  async open(measured: boolean): Promise<void> {
    if (!measured) this.kind = 'made_up';
    else if (!this.#measured) this.kind = 'measured';
    this.#measured = measured;
    this.known = true;
    await Promise.all([this.#load(), this.#loadSessions()]);
  }

  /** Chooses a machine; of this one there is nothing to show before its costs are measured. */
  async choose(kind: MachineKind): Promise<void> {
    this.kind = kind;
    if (kind === 'made_up' || this.#measured) return this.#load();
    this.#requests.cancel();
    this.error = null;
    this.grid = null;
  }

  /** Makes up another machine. */
  async make(costs: { draftCost?: number; rowCost?: number }): Promise<void> {
    this.draftCost = costs.draftCost ?? this.draftCost;
    this.rowCost = costs.rowCost ?? this.rowCost;
    await this.choose('made_up');
  }

  async #load(): Promise<void> {
    const isLatest = this.#requests.start();
    const machine: LabMachine =
      this.kind === 'measured' ? { kind: 'measured' } : { kind: 'made_up', draft_cost: this.draftCost, row_cost: this.rowCost };
    this.error = null;
    try {
      const grid = await call(this.#host, 'landscape', { machine });
      if (isLatest()) this.grid = grid;
    } catch (thrown) {
      if (isLatest()) this.error = toErrorInfo(thrown);
    }
  }

  async #loadSessions(): Promise<void> {
    try {
      this.sessions = await call(this.#host, 'lab_sessions', {});
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    }
  }
}
