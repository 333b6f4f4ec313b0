// The speedup landscape, for measured or made-up costs, with the user's answers as points. No DOM.

import type { Host } from '../../host';
import { call, toErrorInfo } from '../../ipc/rpc';
import type { ErrorInfo, LabMachine, LabSession, Landscape } from '../../ipc/schema.gen';
import { Latest } from '../../latest';

/** Machine of the landscape. */
export type MachineKind = LabMachine['kind'];

/** Ranges of the sliders, in target passes of one row. */
export const draftCosts = { min: 0, max: 1, step: 0.01 } as const;
export const rowCosts = { min: 0, max: 0.5, step: 0.01 } as const;

/** Range of the conversations that share a pass. */
export const batches = { min: 1, max: 32, step: 1 } as const;

/** The shown landscape. */
export class SpeedupLandscape {
  kind = $state<MachineKind>('measured');
  /** Costs of the made-up machine. Defaults to a small draft of a model with a few billion parameters on a CPU. */
  draftCost = $state(0.25);
  rowCost = $state(0.08);
  /** Conversations that share every pass. */
  batch = $state<number>(batches.min);
  grid = $state.raw<Landscape | null>(null);
  sessions = $state.raw<readonly LabSession[]>([]);
  error = $state.raw<ErrorInfo | null>(null);
  /** `true` once it is known if costs were measured. */
  known = $state(false);

  readonly #host: Host;
  readonly #requests = new Latest();
  #measured = false;

  constructor(host: Host) {
    this.#host = host;
  }

  /** Reloads, because costs and answers may have changed. Falls back to a made-up machine without measured costs. */
  async open(measured: boolean): Promise<void> {
    if (!measured) this.kind = 'made_up';
    else if (!this.#measured) this.kind = 'measured';
    this.#measured = measured;
    this.known = true;
    await Promise.all([this.#load(), this.#loadSessions()]);
  }

  /** Chooses a machine. This one has no landscape until its costs are measured. */
  async choose(kind: MachineKind): Promise<void> {
    this.kind = kind;
    if (kind === 'made_up' || this.#measured) return this.#load();
    this.#requests.cancel();
    this.error = null;
    this.grid = null;
  }

  /** Changes the made-up machine. */
  async make(costs: { draftCost?: number; rowCost?: number }): Promise<void> {
    this.draftCost = costs.draftCost ?? this.draftCost;
    this.rowCost = costs.rowCost ?? this.rowCost;
    await this.choose('made_up');
  }

  /** Changes the number of conversations that share every pass. */
  async share(batch: number): Promise<void> {
    this.batch = batch;
    await this.choose(this.kind);
  }

  async #load(): Promise<void> {
    const isLatest = this.#requests.start();
    const machine: LabMachine =
      this.kind === 'measured' ? { kind: 'measured' } : { kind: 'made_up', draft_cost: this.draftCost, row_cost: this.rowCost };
    this.error = null;
    try {
      const grid = await call(this.#host, 'landscape', { machine, batch: this.batch });
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
