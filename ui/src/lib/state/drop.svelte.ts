// Files dragged onto the window: the effect of a drop, and doing it. No DOM.

import type { FilesEvent } from '../host';
import { language } from '../strings/index.svelte';
import type { Models } from './models.svelte';

/** Effect of dropping files. */
export interface DropPlan {
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
export type DropRole = 'target' | 'draft';

/** Functions of the window that a drop needs. */
export interface DropTarget {
  /** Imports conversations. Returns the files that are none. */
  importFiles: (paths: readonly string[]) => Promise<readonly string[]>;
  attach: (paths: readonly string[]) => Promise<void>;
  reportFailure: (text: string) => void;
}

/** Plan for a drop of files; null for none. */
export function planOf(paths: readonly string[]): DropPlan | null {
  if (paths.length === 0) return null;
  const models = paths.filter((path) => /\.gguf$/i.test(path));
  const conversations = paths.filter((path) => /\.json$/i.test(path));
  const attachments = paths.filter((path) => !models.includes(path) && !conversations.includes(path));
  return { model: models[0] ?? null, conversations, attachments, rest: models.slice(1) };
}

/** A file's name without its folders. */
export const nameOf = (path: string): string => path.split(/[\\/]/).at(-1) ?? path;

/** The current drag over the window. */
export class Drop {
  /** Null without a drag. */
  plan = $state.raw<DropPlan | null>(null);
  role = $state<DropRole>('target');

  readonly #models: Models;
  readonly #target: DropTarget;

  constructor(models: Models, target: DropTarget) {
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
      this.plan = null;
      return;
    }
    const plan = planOf(event.paths);
    this.role = this.takesDraft && event.across >= 0.5 ? 'draft' : 'target';
    this.plan = event.kind === 'over' ? plan : null;
    if (event.kind === 'dropped' && plan) void this.#take(plan, this.role);
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
