// Files dragged onto the window: the effect of a drop, and doing it. No DOM.

import type { FilesEvent, Host } from '../host';
import { call } from '../ipc/rpc';
import { Latest } from '../latest';
import { nameOf } from '../paths';
import { language } from '../strings/index.svelte';
import type { Models } from './models.svelte';

/** Effect of dropping files. */
interface DropPlan {
  /** The model to load. Only one can be. */
  readonly model: string | null;
  /** Files to import as conversations, or else to attach. */
  readonly conversations: readonly string[];
  /** Files to attach to the next question. */
  readonly attachments: readonly string[];
  /** Further models, which are ignored. */
  readonly rest: readonly string[];
}

/** Role of a dropped model. */
type DropRole = 'target' | 'draft';

/** Functions of the window that a drop needs. */
interface DropTarget {
  /** Imports conversations. Returns the files that are none. */
  importFiles: (paths: readonly string[]) => Promise<readonly string[]>;
  attach: (paths: readonly string[]) => Promise<void>;
  reportFailure: (text: string) => void;
}

const isGguf = (path: string): boolean => /\.gguf$/i.test(path);
const isJson = (path: string): boolean => /\.json$/i.test(path);

/** Plan for a drop of files; null for none. `folders` are the paths that are folders of a model. */
export function planOf(paths: readonly string[], folders: readonly string[] = []): DropPlan | null {
  if (paths.length === 0) return null;
  const models = paths.filter((path) => isGguf(path) || folders.includes(path));
  const conversations = paths.filter((path) => isJson(path) && !models.includes(path));
  const attachments = paths.filter((path) => !models.includes(path) && !conversations.includes(path));
  return { model: models[0] ?? null, conversations, attachments, rest: models.slice(1) };
}

/** The current drag over the window. */
export class Drop {
  /** Null without a drag. */
  plan = $state.raw<DropPlan | null>(null);
  role = $state<DropRole>('target');

  readonly #host: Host;
  readonly #models: Models;
  readonly #target: DropTarget;
  readonly #looks = new Latest();
  /** The paths that were asked about, joined, and the model folders among them. */
  #known = '';
  #folders: readonly string[] = [];

  constructor(host: Host, models: Models, target: DropTarget) {
    this.#host = host;
    this.#models = models;
    this.#target = target;
  }

  /** `true` if the right half of the window takes a model as a draft. */
  get takesDraft(): boolean {
    return this.#models.loaded !== null;
  }

  /** Applies an event of a drag. */
  onEvent(event: FilesEvent): void {
    if (event.kind === 'left') {
      this.#forget();
      this.plan = null;
      return;
    }
    this.role = this.takesDraft && event.across >= 0.5 ? 'draft' : 'target';
    if (event.kind === 'over') {
      this.plan = planOf(event.paths, this.#folders);
      void this.#look(event.paths);
    } else {
      this.plan = null;
      void this.#dropped(event.paths, this.role);
    }
  }

  /** Finds out once for each drag which of the paths are model folders, and corrects the shown plan. */
  async #look(paths: readonly string[]): Promise<void> {
    const key = paths.join('\n');
    if (key === this.#known) return;
    const isLatest = this.#looks.start();
    this.#known = key;
    const folders = await this.#foldersAmong(paths);
    if (!isLatest()) return;
    this.#folders = folders;
    this.plan &&= planOf(paths, folders);
  }

  #forget(): void {
    this.#looks.cancel();
    this.#known = '';
    this.#folders = [];
  }

  async #dropped(paths: readonly string[], role: DropRole): Promise<void> {
    this.#forget();
    const plan = planOf(paths, await this.#foldersAmong(paths));
    if (plan) await this.#take(plan, role);
  }

  /** Model folders among paths. The engine looks, because a folder has no extension. */
  async #foldersAmong(paths: readonly string[]): Promise<readonly string[]> {
    const others = paths.filter((path) => !isGguf(path) && !isJson(path));
    if (others.length === 0) return [];
    try {
      return await call(this.#host, 'dropped_models', { paths: others });
    } catch {
      // They are attached, which says what is wrong with them.
      return [];
    }
  }

  async #take(plan: DropPlan, role: DropRole): Promise<void> {
    const words = language.strings.files;
    const { model, conversations, attachments, rest } = plan;
    const waiting = model !== null ? this.#models.loading : null;
    if (waiting !== null) this.#target.reportFailure(words.stillLoading(waiting));
    else if (rest.length > 0) this.#target.reportFailure(words.oneModel(rest.map(nameOf)));
    await Promise.all([
      model !== null && waiting === null ? this.#models.openFile(model, role) : undefined,
      this.#takeFiles(conversations, attachments),
    ]);
  }

  /** Imports conversations, then attaches the other files. */
  async #takeFiles(conversations: readonly string[], attachments: readonly string[]): Promise<void> {
    const others = conversations.length > 0 ? await this.#target.importFiles(conversations) : [];
    const files = [...attachments, ...others];
    if (files.length > 0) await this.#target.attach(files);
  }
}
