// What can be fetched: the catalogue, any other repository of the hub, and the hub itself. No DOM.

import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { Catalogue as Offered, CatalogueModel, Download, ErrorInfo, HubRepository, HubState, MemoryClass, ModelEntry } from '../ipc/schema.gen';
import { Latest } from '../latest';
import { isHalted, type Downloads } from './downloads.svelte';
import type { Library } from './library.svelte';

/** Classes of machines, smallest first. */
export const memoryClasses = ['gb8', 'gb16', 'gb24_to36', 'gb48', 'gb96'] as const satisfies readonly MemoryClass[];

/** Models of the catalogue that are good on one class of machines. */
export interface Group {
  memoryClass: MemoryClass;
  targets: readonly CatalogueModel[];
  /** Drafts that no target of the group recommends. */
  drafts: readonly CatalogueModel[];
}

/** A target and the draft that is recommended for it. */
export interface Pair {
  target: CatalogueModel;
  draft: CatalogueModel;
}

/** Most bytes of a first pair, which one waits for. */
const soonBytes = 6e9;

/** Bytes of both; null where one is not known. */
export const pairBytes = ({ target, draft }: Pair): number | null =>
  target.size_bytes === null || draft.size_bytes === null ? null : target.size_bytes + draft.size_bytes;

/** How far a model of the catalogue is from being used; `halted` is a download that failed or was paused. */
export type Whereabouts = { kind: 'here'; path: string } | { kind: 'coming' | 'halted'; download: Download } | { kind: 'there' };

/** A file of the hub. */
export interface HubFile {
  repository: string;
  file: string;
  /** Of all its parts; nothing where it is not known for sure. */
  size_bytes?: number | null;
  /** Of a model of the catalogue: what it was checked against. */
  sha256?: string | null;
}

/** How far two sizes of one file may be apart: what is published may be rounded. */
const sizeSlack = 0.01;

/** The name that a file's model has once it is here. */
export const nameOfFile = (file: string): string => (file.split('/').at(-1) ?? file).replace(/(-\d{5}-of-\d{5})?\.gguf$/i, '');

/** What can be fetched. */
export class Catalogue {
  offered = $state.raw<Offered | null>(null);
  hub = $state.raw<HubState | null>(null);
  /** Why the catalogue could not be read, or the token not be kept. */
  error = $state.raw<ErrorInfo | null>(null);
  /** Why the hub's state could not be read. */
  hubError = $state.raw<ErrorInfo | null>(null);
  /** The repository that is looked at. */
  repository = $state.raw<HubRepository | null>(null);
  /** What was typed in place of one. */
  typed = $state('');
  looking = $state(false);
  /** Why the repository cannot be shown. */
  refusal = $state.raw<ErrorInfo | null>(null);
  /** Whether the engine took what was typed for no repository of its hub. */
  misread = $state(false);

  /** By class, this machine's first, then smaller ones, then larger ones. */
  groups = $derived.by((): readonly Group[] => {
    const offered = this.offered;
    if (!offered) return [];
    const own = memoryClasses.indexOf(offered.machine);
    const order = [...memoryClasses.slice(0, own + 1).toReversed(), ...memoryClasses.slice(own + 1)];
    const of = (role: CatalogueModel['role'], memoryClass: MemoryClass) => offered.models.filter((model) => model.role === role && model.memory_class === memoryClass);
    const recommended = offered.models.map(({ draft }) => draft);
    return order
      .map((memoryClass) => ({ memoryClass, targets: of('target', memoryClass), drafts: of('draft', memoryClass).filter(({ id }) => !recommended.includes(id)) }))
      .filter(({ targets, drafts }) => targets.length + drafts.length > 0);
  });

  /** The pair to begin with: the largest that this machine is good for and that is fetched soon, else the smallest. */
  starter = $derived.by((): Pair | null => {
    const offered = this.offered;
    if (!offered) return null;
    const suitable = memoryClasses.slice(0, memoryClasses.indexOf(offered.machine) + 1);
    const pairs = offered.models.flatMap((target): Pair[] => {
      const draft = this.find(target.draft);
      return target.role === 'target' && draft && suitable.includes(target.memory_class) ? [{ target, draft }] : [];
    });
    const bySize = pairs.sort((a, b) => b.target.parameters - a.target.parameters);
    return bySize.find((pair) => (pairBytes(pair) ?? Infinity) <= soonBytes) ?? bySize.at(-1) ?? null;
  });

  /** Whether that pair was asked for. */
  starting = $derived.by(() => {
    const pair = this.starter;
    return pair !== null && [pair.target, pair.draft].some((model) => this.#downloads.of(model) !== null);
  });

  readonly #host: Host;
  readonly #library: Library;
  readonly #downloads: Downloads;
  #asked = false;
  #hubAsked = false;
  #hubAsksAgain = false;
  readonly #looks = new Latest();

  constructor(host: Host, library: Library, downloads: Downloads) {
    this.#host = host;
    this.#library = library;
    this.#downloads = downloads;
  }

  /** Asks for the catalogue, the first time it is called, and again after it failed. */
  async open(): Promise<void> {
    if (this.#asked) return;
    this.#asked = true;
    try {
      this.offered = await call(this.#host, 'catalogue', {});
      this.error = null;
    } catch (thrown) {
      this.#asked = false;
      this.error = toErrorInfo(thrown);
    }
  }

  /** Asks how the hub is reached, the same way. By itself, because the system may ask whether the keychain may be
   * opened, and whoever says no can have the catalogue all the same. */
  async openHub(): Promise<void> {
    if (this.#hubAsked) return;
    this.#hubAsked = true;
    try {
      this.hub = await call(this.#host, 'hub_state', {});
      this.hubError = null;
    } catch (thrown) {
      this.#hubAsked = false;
      this.hubError = toErrorInfo(thrown);
    }
  }

  /** Asks that once more while it says that the keychain stayed shut: something was begun, for which the keychain was
   * asked too. */
  async askHubAgain(): Promise<void> {
    const shut = this.hub?.problems.some(({ kind }) => kind === 'keychain') ?? false;
    if (!shut || this.#hubAsksAgain) return;
    this.#hubAsksAgain = true;
    this.#hubAsked = false;
    await this.openHub();
    this.#hubAsksAgain = false;
  }

  /** The model of that number. */
  find(id: string | null): CatalogueModel | null {
    return this.offered?.models.find((model) => model.id === id) ?? null;
  }

  /** Where a file of the hub is by now. */
  whereabouts(request: HubFile): Whereabouts {
    const name = nameOfFile(request.file).toLowerCase();
    const size = request.size_bytes ?? null;
    const download = this.#downloads.of(request);
    const arrived = download?.phase === 'done' ? this.#library.at(download.path) : null;
    // Another model may have the name; hardly of the same size.
    const same = ({ size_bytes }: ModelEntry) => size === null || Math.abs(size_bytes - size) <= sizeSlack * size;
    const named = () => this.#library.models.find((model) => model.problem === null && model.name.toLowerCase() === name && same(model));
    const here = arrived?.problem === null ? arrived : named();
    if (here) return { kind: 'here', path: here.path };
    if (!download || download.phase === 'done') return { kind: 'there' };
    return { kind: isHalted(download) ? 'halted' : 'coming', download };
  }

  /** Fetches models that are not here yet, up to the first that cannot be: what stood in its way stands in that of the
   * others. */
  async fetch(models: readonly HubFile[]): Promise<void> {
    for (const model of models) {
      if (this.whereabouts(model).kind === 'here') continue;
      const { repository, file, sha256 } = model;
      await this.#downloads.start({ repository, file, ...(sha256 ? { expected_sha256: sha256 } : {}) });
      if (this.#downloads.error) return;
    }
  }

  /** Looks at the repository that is typed or pasted. What that is, and whether it is of this hub, the engine says. */
  async look(): Promise<void> {
    const isLatest = this.#looks.start();
    this.looking = true;
    this.misread = false;
    this.refusal = null;
    this.repository = null;
    try {
      const found = await call(this.#host, 'hub_repository', { repository: this.typed });
      if (isLatest()) this.repository = found;
    } catch (thrown) {
      if (!isLatest()) return;
      const error = toErrorInfo(thrown);
      // Where the hub's own address is no good, that is what is wrong.
      this.misread = error.code === 'invalid_request' && this.hubError === null;
      this.refusal = this.misread ? null : error;
    } finally {
      if (isLatest()) this.looking = false;
      // For what is no name of a repository nothing was asked.
      if (!this.misread) void this.askHubAgain();
    }
  }

  /** Keeps a token for the hub in the system's keychain; null forgets it. Never rejects. */
  async setToken(token: string | null): Promise<void> {
    try {
      this.hub = await call(this.#host, 'set_hub_token', { token });
      this.error = null;
      this.hubError = null;
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    }
  }
}
