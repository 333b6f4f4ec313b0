// The models that lie on this machine, the folders they lie in, and whether each fits by itself. No DOM.

import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { ErrorInfo, FitVerdict, Library as Listing, MachineMemory, ModelEntry, ModelFolder } from '../ipc/schema.gen';
import { Latest } from '../latest';
import { language } from '../strings/index.svelte';

/** Bytes of usable memory that matter to verdicts. */
const memoryStep = 0.5e9;
/** Models that are judged with one question: their headers have to be read, and the first verdicts come soon. */
const judgedAtOnce = 8;

/** What is on this machine. */
export class Library {
  models = $state.raw<readonly ModelEntry[]>([]);
  folders = $state.raw<readonly ModelFolder[]>([]);
  machine = $state.raw<MachineMemory | null>(null);
  /** Whether it is known what there is. */
  known = $state(false);
  /** Whether each fits without a draft at its usual context, by path; one that is not there is not known yet. */
  fits = $state.raw<Readonly<Record<string, FitVerdict>>>({});
  error = $state.raw<ErrorInfo | null>(null);

  readonly #host: Host;
  /** Whether anybody wants to know what fits. */
  #judging = false;
  /** What the verdicts were given for, by path: the same file on the same machine has the same. */
  // Looked up, never drawn from.
  // eslint-disable-next-line svelte/prefer-svelte-reactivity
  readonly #judged = new Map<string, string>();
  readonly #judgements = new Latest();
  #asking: Promise<void> | null = null;
  #askAgain = false;

  constructor(host: Host) {
    this.#host = host;
  }

  /** The model there, if it is listed. */
  at(path: string | null | undefined): ModelEntry | null {
    return this.models.find((model) => model.path === path) ?? null;
  }

  /** Asks what there is. */
  async ask(): Promise<void> {
    this.#take(await call(this.#host, 'library', {}));
  }

  /** Asks anew, once however often it is called meanwhile. Never rejects. */
  refresh(): Promise<void> {
    if (this.#asking) this.#askAgain = true;
    this.#asking ??= this.#askUntilCurrent();
    return this.#asking;
  }

  /** Lets the person choose a folder that is looked through as well. */
  async addFolder(): Promise<void> {
    await this.#try(async () => {
      const path = await call(this.#host, 'choose_folder', { title: language.strings.library.folders.choose });
      if (path !== null) this.#take(await call(this.#host, 'add_model_folder', { path }));
    });
  }

  /** Looks through an added folder no longer. What is in it stays. */
  async removeFolder(path: string): Promise<void> {
    await this.#try(async () => this.#take(await call(this.#host, 'remove_model_folder', { path })));
  }

  /** Takes a model of Hunch's own off the disk. */
  async remove(path: string): Promise<void> {
    await this.#try(async () => this.#take(await call(this.#host, 'remove_model', { path })));
  }

  /** Shows a model's file in the system's file manager. */
  async reveal(path: string): Promise<void> {
    await this.#try(async () => void (await call(this.#host, 'reveal_model', { path })));
  }

  /** From now on it is asked of every model whether it fits. */
  judge(): void {
    if (this.#judging) return;
    this.#judging = true;
    if (this.known) void this.#judge();
  }

  #take({ models, folders, machine }: Listing): void {
    this.models = models;
    this.folders = folders;
    this.machine = machine;
    this.known = true;
    if (this.#judging) void this.#judge();
  }

  /** A few at a time, so that nothing else has to wait long; only what is new. */
  async #judge(): Promise<void> {
    const isLatest = this.#judgements.start();
    // What other programs take moves all the time; only much of it changes a verdict.
    const usable = Math.round((this.machine?.usable ?? 0) / memoryStep);
    const stamp = ({ size_bytes }: ModelEntry) => `${size_bytes} ${usable}`;
    const open = this.models.filter((model) => model.problem === null && this.#judged.get(model.path) !== stamp(model));
    for (let first = 0; first < open.length; first += judgedAtOnce) {
      const some = open.slice(first, first + judgedAtOnce);
      try {
        const verdicts = await call(this.#host, 'fit_verdicts', { targets: some.map(({ path }) => path) });
        if (!isLatest()) return;
        const fits = { ...this.fits };
        some.forEach((model, i) => {
          const verdict = verdicts[i];
          // Of one that could not be read nothing is said.
          if (!verdict) return;
          this.#judged.set(model.path, stamp(model));
          fits[model.path] = verdict;
        });
        this.fits = fits;
      } catch {
        if (!isLatest()) return;
      }
    }
  }

  async #askUntilCurrent(): Promise<void> {
    do {
      this.#askAgain = false;
      await this.#try(() => this.ask());
    } while (this.#askAgain);
    this.#asking = null;
  }

  async #try(act: () => Promise<void>): Promise<void> {
    try {
      await act();
      this.error = null;
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    }
  }
}
