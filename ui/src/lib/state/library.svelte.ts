// The models of this machine, their folders, and whether each fits alone. No DOM.

import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { ErrorInfo, FitVerdict, Library, MachineMemory, ModelEntry, ModelFolder, StoredData } from '../ipc/schema.gen';
import { Latest } from '../latest';
import { language } from '../strings/index.svelte';

/** Step of usable memory that may change a verdict, in bytes. */
const memoryStep = 0.5e9;
/** Models per request. Their headers have to be read, and the first verdicts come soon. */
const judgedAtOnce = 8;

/** The models and folders of this machine. */
export class LibraryState {
  models = $state.raw<readonly ModelEntry[]>([]);
  folders = $state.raw<readonly ModelFolder[]>([]);
  machine = $state.raw<MachineMemory | null>(null);
  /** `true` if the list is loaded. */
  known = $state(false);
  /** Verdict of each model alone at its default context, by path. Missing while unknown. */
  fits = $state.raw<Readonly<Record<string, FitVerdict>>>({});
  /** Why a model's chat template cannot be used as it is, by path; null for no problem. */
  templateNotes = $state.raw<Readonly<Record<string, string | null>>>({});
  /** Data that Hunch made for models; null while unknown. */
  stored = $state.raw<readonly StoredData[] | null>(null);
  error = $state.raw<ErrorInfo | null>(null);
  /** Number of models of each title and quantisation. */
  #alike = $derived.by((): Readonly<Record<string, number>> => {
    const counts: Record<string, number> = {};
    for (const one of this.models.map(titleAndQuantisation)) counts[one] = (counts[one] ?? 0) + 1;
    return counts;
  });

  readonly #host: Host;
  /** `true` if verdicts are wanted. */
  #judging = false;
  /** Inputs of the verdicts, by path. The same file and memory give the same verdict. */
  // Looked up, never drawn from.
  // eslint-disable-next-line svelte/prefer-svelte-reactivity
  readonly #judged = new Map<string, string>();
  /** Models whose chat template was tried, by path and size. */
  // Looked up, never drawn from.
  // eslint-disable-next-line svelte/prefer-svelte-reactivity
  readonly #tried = new Set<string>();
  readonly #judgements = new Latest();
  #asking: Promise<void> | null = null;
  #askAgain = false;

  constructor(host: Host) {
    this.#host = host;
  }

  /** The listed model with a path; null for none. */
  at(path: string | null | undefined): ModelEntry | null {
    return this.models.find((model) => model.path === path) ?? null;
  }

  /** The name of a model to show next to its quantisation: its title, or its file name if another model shares both. */
  titleOf(model: ModelEntry): string {
    return (this.#alike[titleAndQuantisation(model)] ?? 0) > 1 ? model.name : model.title;
  }

  /** The name of a model to show alone, with its quantisation. */
  fullTitleOf(model: ModelEntry): string {
    const title = this.titleOf(model);
    return title === model.name ? title : `${title} ${model.quantisation}`;
  }

  /** Loads the list. */
  async ask(): Promise<void> {
    this.#take(await call(this.#host, 'library', {}));
  }

  /** Reloads the list. Calls meanwhile are merged into one more. Never rejects. */
  refresh(): Promise<void> {
    if (this.#asking) this.#askAgain = true;
    this.#asking ??= this.#askUntilCurrent();
    return this.#asking;
  }

  /** Adds a folder chosen by the user. */
  async addFolder(): Promise<void> {
    await this.#try(async () => {
      const path = await call(this.#host, 'choose_folder', { title: language.strings.library.folders.choose });
      if (path !== null) this.#take(await call(this.#host, 'add_model_folder', { path }));
    });
  }

  /** Removes an added folder from the search. Its files stay. */
  async removeFolder(path: string): Promise<void> {
    await this.#try(async () => this.#take(await call(this.#host, 'remove_model_folder', { path })));
  }

  /** Deletes a model of Hunch's own folder. */
  async remove(path: string): Promise<void> {
    await this.#try(async () => this.#take(await call(this.#host, 'remove_model', { path })));
  }

  /** Loads the list of data that Hunch made for models. */
  async askStored(): Promise<void> {
    await this.#try(async () => void (this.stored = await call(this.#host, 'stored_data', {})));
  }

  /** Deletes data that Hunch made for models. */
  async removeStored(id: string): Promise<void> {
    await this.#try(async () => void (this.stored = await call(this.#host, 'remove_stored_data', { id })));
  }

  /** Shows a model's file in the system's file manager. */
  async reveal(path: string): Promise<void> {
    await this.#try(async () => void (await call(this.#host, 'reveal_model', { path })));
  }

  /** Tries a model's chat template once. A failed attempt is not shown and is repeated next time. */
  async tryTemplate({ path, size_bytes: bytes, has_template: has, problem }: ModelEntry): Promise<void> {
    const file = `${path} ${bytes}`;
    if (!has || problem !== null || this.#tried.has(file)) return;
    this.#tried.add(file);
    try {
      const note = await call(this.#host, 'template_note', { path });
      this.templateNotes = { ...this.templateNotes, [path]: note };
    } catch {
      this.#tried.delete(file);
    }
  }

  /** Requests verdicts from now on. */
  judge(): void {
    if (this.#judging) return;
    this.#judging = true;
    if (this.known) void this.#judge();
  }

  #take({ models, folders, machine }: Library): void {
    this.models = models;
    this.folders = folders;
    this.machine = machine;
    this.known = true;
    if (this.#judging) void this.#judge();
  }

  /** A few at a time, so that nothing else waits long. Only what changed. */
  async #judge(): Promise<void> {
    const isLatest = this.#judgements.start();
    // Free memory changes all the time; only large changes matter.
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
          // Unreadable models have no verdict.
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

/** The short name and the path of a model or head, a line each. */
export const fileLines = ({ name, path }: Pick<ModelEntry, 'name' | 'path'>): string => `${name}\n${path}`;

const titleAndQuantisation = ({ title, quantisation }: ModelEntry): string => `${title} ${quantisation}`;
