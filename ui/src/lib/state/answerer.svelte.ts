// The answerer of the next question: the loaded models, or a model of a server. No DOM.

import type { AnsweredBy, AnswerSettings, ModelEntry } from '../ipc/schema.gen';
import type { Models } from './models.svelte';
import type { ServerChoice } from './preferences.svelte';
import type { Servers } from './servers.svelte';

/** Other state that the choice depends on. */
interface AnswererDependencies {
  models: Models;
  servers: Pick<Servers, 'chosen' | 'choose'>;
  /** Prepares what the loaded models need. */
  prepare: () => Promise<void>;
}

/** The answerer. */
export class Answerer {
  readonly #on: AnswererDependencies;

  constructor(dependencies: AnswererDependencies) {
    this.#on = dependencies;
  }

  /** The model of a server that answers; null if the loaded models do. */
  get server(): ServerChoice | null {
    return this.#on.servers.chosen;
  }

  /** `true` if a question can be answered. */
  get answerable(): boolean {
    return this.server !== null || this.#on.models.answerable;
  }

  /** `true` while models are loading, and at the start before that begins. A server needs none. */
  get comingUp(): boolean {
    const { models } = this.#on;
    return this.server === null && (models.loading !== null || (!models.ready && !models.loaded));
  }

  /** The answerer, for a request; undefined for the loaded models. */
  get by(): AnsweredBy | undefined {
    return this.server ? { kind: 'server', ...this.server } : undefined;
  }

  /** Names of the answerer, as the engine stores them; null if there is none. */
  get writer(): Pick<AnswerSettings, 'target' | 'draft' | 'server'> | null {
    if (this.server) return { target: this.server.model, draft: null, server: this.server.address };
    const { loaded } = this.#on.models;
    return loaded && { target: loaded.target.name, draft: loaded.draft?.name ?? null };
  }

  /** Lets a model of this machine answer, and loads it if it is not. */
  async useLoaded(model: ModelEntry): Promise<void> {
    const { models } = this.#on;
    if (models.loaded?.target.path !== model.path || !this.server) await models.loadTarget(model);
    this.#answerWithLoaded(model.path);
  }

  /** Lets a model chosen in the file dialog answer, once it is loaded. */
  async openTarget(): Promise<void> {
    const path = await this.#on.models.openTarget();
    if (path !== null) this.#answerWithLoaded(path);
  }

  /** Ends the server's turn if this target is in memory. */
  #answerWithLoaded(path: string): void {
    const { models, servers } = this.#on;
    if (this.server && models.loaded?.target.path === path) servers.choose(null);
  }

  /** Gets ready for an answer. Rejects if that is impossible. */
  async prepare(): Promise<void> {
    if (this.server) return;
    await this.#on.models.restore();
    await this.#on.prepare();
  }
}
