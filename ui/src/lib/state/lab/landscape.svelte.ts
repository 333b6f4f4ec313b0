// The speedup landscape, for measured or made-up costs, with the user's answers as points. No DOM.

import type { Host } from '../../host';
import { call, toErrorInfo } from '../../ipc/rpc';
import type { CostCurve, ErrorInfo, LabDraft, LabMachine, LabServing, LabSession, Landscape, Method } from '../../ipc/schema.gen';
import { Latest } from '../../latest';

/** Machine of the landscape. */
type MachineKind = LabMachine['kind'];

/** Ranges of the sliders, in target passes of one row. */
export const draftCosts = { min: 0, max: 1, step: 0.01 } as const;
export const rowCosts = { min: 0, max: 0.5, step: 0.01 } as const;

/** Range of the conversations that share a pass. */
export const batches = { min: 1, max: 32, step: 1 } as const;

/** Range of the acceptance of a sibling, as a share of that of the sibling before it. */
export const siblingShares = { min: 0, max: 1, step: 0.05 } as const;

/** Kinds of drafts that have a landscape. */
type SurfaceKind = LabDraft['kind'];
const surfaceKinds = ['chain', 'tree', 'lookup'] as const satisfies readonly SurfaceKind[];

/** A drafter whose costs a measurement has. */
interface MeasuredDrafter {
  method: Method;
  /** `true` if the costs of its trees are known. Earlier versions measured none of heads. */
  trees: boolean;
}

/** Drafters whose costs a measurement has; null without a measurement. */
export function measuredDrafters(curve: CostCurve | null): readonly MeasuredDrafter[] | null {
  if (!curve) return null;
  const others = curve.drafters.map(({ drafter, tree }) => ({
    method: drafter,
    trees: drafter !== 'head' || tree !== undefined,
  }));
  return [...(curve.draft ? [{ method: 'draft-model', trees: true }] : []), ...others];
}

/** A simulated server, and the numbers it was simulated with. */
interface Simulation extends LabServing {
  alpha: number;
  batch: number;
  draft: SurfaceKind;
}

/** The shown landscape. */
export class SpeedupLandscape {
  kind = $state<MachineKind>('measured');
  /** Costs of the made-up machine. Defaults to a small draft of a model with a few billion parameters on a CPU. */
  draftCost = $state(0.25);
  rowCost = $state(0.08);
  /** Conversations that share every pass. */
  batch = $state<number>(batches.min);
  /** Kind of the drafts, and of the answers that are shown as points. */
  draft = $state<SurfaceKind>('chain');
  /** Drafter of measured costs; null for the draft model, or without one for another that was measured. */
  drafter = $state<Method | null>(null);
  /** Drafters whose costs were measured. */
  #measuredDrafters = $state.raw<readonly MeasuredDrafter[]>([]);
  /** Acceptance of a sibling of a tree. Set to the measured one of the answers, if there is any. */
  siblings = $state(0.5);
  /** The simulated server with its acceptance and batch; null before a simulation. */
  serving = $state.raw<Simulation | null>(null);
  /** `true` while a server is simulated. */
  simulating = $state(false);
  grid = $state.raw<Landscape | null>(null);
  sessions = $state.raw<readonly LabSession[]>([]);
  error = $state.raw<ErrorInfo | null>(null);
  /** `true` once it is known if costs were measured. */
  known = $state(false);

  readonly #host: Host;
  readonly #requests = new Latest();
  readonly #servings = new Latest();
  #measured = $state(false);
  /** `true` once `siblings` is that of the answers. */
  #siblingsKnown = false;

  constructor(host: Host) {
    this.#host = host;
  }

  /** Reloads, because costs and answers may have changed. Falls back to a made-up machine without measured costs. */
  async open(drafters: readonly MeasuredDrafter[] | null): Promise<void> {
    const measured = drafters !== null;
    if (!measured) this.kind = 'made_up';
    else if (!this.#measured) this.kind = 'measured';
    this.#measured = measured;
    this.known = true;
    this.#measuredDrafters = drafters ?? [];
    if (!this.#measuredDrafters.some(({ method }) => method === this.drafter)) this.drafter = null;
    this.#draftAsOffered();
    await Promise.all([this.#load(), this.#loadSessions()]);
  }

  /** Chooses a machine. This one has no landscape until its costs are measured. */
  async choose(kind: MachineKind): Promise<void> {
    this.kind = kind;
    this.#draftAsOffered();
    if (kind === 'made_up' || this.#measured) return this.#load();
    this.#requests.cancel();
    this.#dropServing();
    this.error = null;
    this.grid = null;
  }

  #dropServing(): void {
    this.#servings.cancel();
    this.serving = null;
    this.simulating = false;
  }

  /** Changes the made-up machine. */
  async make(costs: { draftCost?: number; rowCost?: number }): Promise<void> {
    this.draftCost = costs.draftCost ?? this.draftCost;
    this.rowCost = costs.rowCost ?? this.rowCost;
    await this.choose('made_up');
  }

  /** Chooses the kind of the drafts. */
  async draftAs(draft: SurfaceKind, siblings = this.siblings): Promise<void> {
    [this.draft, this.siblings] = [draft, siblings];
    await this.choose(this.kind);
  }

  /** Chooses the drafter of this machine's costs. */
  async draftBy(drafter: Method): Promise<void> {
    this.drafter = drafter;
    await this.choose(this.kind);
  }

  /** Drafters to choose from for the kind of the drafts. */
  get drafters(): readonly Method[] {
    return this.#draftersOf(this.draft);
  }

  /** Kinds of drafts with known costs. Lookups need no drafter. */
  get kinds(): readonly SurfaceKind[] {
    if (this.kind === 'made_up' || !this.#measured) return surfaceKinds;
    return surfaceKinds.filter((draft) => draft === 'lookup' || this.#draftersOf(draft).length > 0);
  }

  /** Measured drafters of a kind of drafts. */
  #draftersOf(draft: SurfaceKind): readonly Method[] {
    const known = this.#measuredDrafters.filter(({ trees }) => draft !== 'tree' || trees);
    return known.map(({ method }) => method);
  }

  /** Chooses another kind of drafts if the costs of the chosen one are unknown. */
  #draftAsOffered(): void {
    const [first] = this.kinds;
    if (first && !this.kinds.includes(this.draft)) this.draft = first;
  }

  /** Answers with drafts of the shown kind and of the drafter with these costs. Made-up costs are of any drafter. */
  get points(): readonly LabSession[] {
    const drafter = this.grid?.drafter ?? null;
    return this.sessions.filter((session) => session.draft === this.draft && (drafter === null || session.drafter === drafter));
  }

  /** Simulates a server whose passes take up to `max_batch` requests. */
  async serve(alpha: number, max_batch: number): Promise<void> {
    const isLatest = this.#servings.start();
    this.error = null;
    this.simulating = true;
    const { draft } = this;
    try {
      const request = { machine: this.#machine, draft: this.#drafts, alpha, max_batch };
      const serving = await call(this.#host, 'lab_serving', { request });
      if (isLatest()) this.serving = { ...serving, alpha, batch: max_batch, draft };
    } catch (thrown) {
      if (isLatest()) this.error = toErrorInfo(thrown);
    }
    if (isLatest()) this.simulating = false;
  }

  get #machine(): LabMachine {
    const drafter = this.drafters.find((one) => one === this.drafter) ?? null;
    return this.kind === 'measured'
      ? { kind: 'measured', drafter }
      : { kind: 'made_up', draft_cost: this.draftCost, row_cost: this.rowCost };
  }

  get #drafts(): LabDraft {
    return this.draft === 'tree' ? { kind: 'tree', siblings: this.siblings } : { kind: this.draft };
  }

  /** Changes the number of conversations that share every pass. */
  async share(batch: number): Promise<void> {
    this.batch = batch;
    await this.choose(this.kind);
  }

  async #load(): Promise<void> {
    const isLatest = this.#requests.start();
    this.error = null;
    // It belongs to other costs.
    this.#dropServing();
    try {
      const grid = await call(this.#host, 'landscape', { machine: this.#machine, batch: this.batch, draft: this.#drafts });
      if (isLatest()) this.grid = grid;
    } catch (thrown) {
      if (isLatest()) this.error = toErrorInfo(thrown);
    }
  }

  async #loadSessions(): Promise<void> {
    try {
      this.sessions = await call(this.#host, 'lab_sessions', {});
      const known = this.sessions.flatMap(({ siblings }) => siblings ?? []);
      if (!this.#siblingsKnown && known.length > 0) {
        this.#siblingsKnown = true;
        const mean = known.reduce((sum, share) => sum + share, 0) / known.length;
        // Rounded to a step of the slider.
        this.siblings = Math.round(mean / siblingShares.step) / Math.round(1 / siblingShares.step);
      }
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    }
  }
}
