// Downloadable models: the catalogue, any other repository of the hub, and the hub itself. No DOM.

import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type {
  Catalogue,
  CatalogueHead,
  CatalogueModel,
  Download,
  ErrorInfo,
  HubRepository,
  HubState,
  MemoryClass,
  ModelEntry,
} from '../ipc/schema.gen';
import { Latest } from '../latest';
import { isHalted, type Downloads } from './downloads.svelte';
import type { LibraryState } from './library.svelte';

/** Memory classes of machines, smallest first. */
export const memoryClasses = ['gb8', 'gb16', 'gb24_to36', 'gb48', 'gb96'] as const satisfies readonly MemoryClass[];

/** Models of the catalogue for one memory class. */
interface CatalogueGroup {
  memoryClass: MemoryClass;
  targets: readonly CatalogueModel[];
  /** Drafts that no target recommends. */
  drafts: readonly CatalogueModel[];
}

/** A target with its recommended draft. */
export interface Pair {
  target: CatalogueModel;
  draft: CatalogueModel;
}

/** Largest first pair, in bytes, because the user waits for it. */
const soonBytes = 6e9;

/** Largest model to try at once, in bytes. */
const smallBytes = 3e8;

/** Bytes of both; null if one is unknown. */
export const pairBytes = ({ target, draft }: Pair): number | null =>
  target.size_bytes === null || draft.size_bytes === null ? null : target.size_bytes + draft.size_bytes;

/** Availability of a model: here, being downloaded, halted (failed or paused), or only on the hub. */
type Whereabouts = { kind: 'here'; path: string } | { kind: 'coming' | 'halted'; download: Download } | { kind: 'there' };

/** A file of the hub. */
interface HubFileRequest {
  repository: string;
  file: string;
  /** Total size of all parts; null if not known exactly. */
  size_bytes?: number | null;
  /** Checksum, for models of the catalogue. */
  sha256?: string | null;
}

/** Relative tolerance between sizes of a file, since published ones may be rounded. */
const sizeSlack = 0.01;

/** True for the first weight file of a folder, which stands for the folder. All other models are GGUF files. */
export const isFolder = (file: string): boolean => !/\.gguf$/i.test(file);

/** Name of a model after the download: that of its file, or of a folder's repository. */
export const nameOf = ({ repository, file }: Pick<HubFileRequest, 'repository' | 'file'>): string =>
  nameOfFile(isFolder(file) ? `${repository}.gguf` : file);

/** Name of a file's model after the download. */
export const nameOfFile = (file: string): string => (file.split('/').at(-1) ?? file).replace(/(-\d{5}-of-\d{5})?\.gguf$/i, '');

/** Downloadable models. */
export class CatalogueState {
  offered = $state.raw<Catalogue | null>(null);
  hub = $state.raw<HubState | null>(null);
  /** Why the catalogue could not be read, or the token not saved. */
  error = $state.raw<ErrorInfo | null>(null);
  /** Why the hub's state could not be read. */
  hubError = $state.raw<ErrorInfo | null>(null);
  /** The shown repository. */
  repository = $state.raw<HubRepository | null>(null);
  /** Text typed for a repository. */
  typed = $state('');
  looking = $state(false);
  /** Why the repository cannot be shown. */
  refusal = $state.raw<ErrorInfo | null>(null);
  /** `true` if the typed text is no repository of the hub. */
  misread = $state(false);

  /** Models by class: this machine's first, then smaller ones, then larger ones. */
  groups = $derived.by((): readonly CatalogueGroup[] => {
    const offered = this.offered;
    if (!offered) return [];
    const own = memoryClasses.indexOf(offered.machine);
    const order = [...memoryClasses.slice(0, own + 1).toReversed(), ...memoryClasses.slice(own + 1)];
    const of = (role: CatalogueModel['role'], memoryClass: MemoryClass) =>
      offered.models.filter((model) => model.role === role && model.memory_class === memoryClass);
    const recommended = offered.models.map(({ draft }) => draft);
    return order
      .map((memoryClass) => ({
        memoryClass,
        targets: of('target', memoryClass),
        drafts: of('draft', memoryClass).filter(({ id }) => !recommended.includes(id)),
      }))
      .filter(({ targets, drafts }) => targets.length + drafts.length > 0);
  });

  /** The suggested first pair: the largest for this machine that downloads quickly, else the smallest. */
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

  /** The smallest model that answers, to try at once; null if none is small. */
  small = $derived.by((): CatalogueModel | null => {
    const sizeOf = (model: CatalogueModel) => model.size_bytes ?? Infinity;
    const targets = this.offered?.models.filter((model) => model.role === 'target' && sizeOf(model) <= smallBytes) ?? [];
    return targets.toSorted((a, b) => sizeOf(a) - sizeOf(b))[0] ?? null;
  });
  /** `true` if the small model is to be loaded once it is here. */
  trying = $state(false);

  /** `true` if the first pair or the small model is being downloaded. */
  starting = $derived.by(() => {
    const pair = this.starter;
    const models = [...(pair ? [pair.target, pair.draft] : []), ...(this.small ? [this.small] : [])];
    return models.some((model) => this.#downloads.of(model) !== null);
  });

  readonly #host: Host;
  readonly #library: LibraryState;
  readonly #downloads: Downloads;
  #asked = false;
  #hubAsked = false;
  #hubAsksAgain = false;
  readonly #looks = new Latest();

  constructor(host: Host, library: LibraryState, downloads: Downloads) {
    this.#host = host;
    this.#library = library;
    this.#downloads = downloads;
  }

  /** Loads the catalogue on the first call, and again after a failure. */
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

  /** Loads the state of the hub, in the same way. Separate from the catalogue, because the system may ask to open
   * the keychain, and refusing must not block the catalogue. */
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

  /** Reloads the state of the hub if it reported a locked keychain, after a request that had to open the keychain. */
  async askHubAgain(): Promise<void> {
    const keychainLocked = this.hub?.problems.some(({ kind }) => kind === 'keychain') ?? false;
    if (!keychainLocked || this.#hubAsksAgain) return;
    this.#hubAsksAgain = true;
    this.#hubAsked = false;
    await this.openHub();
    this.#hubAsksAgain = false;
  }

  /** The model with an id. */
  find(id: string | null): CatalogueModel | null {
    return this.offered?.models.find((model) => model.id === id) ?? null;
  }

  /** Published heads for a model. */
  headsFor(model: CatalogueModel): readonly CatalogueHead[] {
    return this.offered?.heads.filter(({ target }) => target === model.name) ?? [];
  }

  /** Display name of a download's model; null if the catalogue does not have it. */
  titleOf({ request }: Download): string | null {
    const { repository, file } = request;
    return this.offered?.models.find((model) => model.repository === repository && model.file === file)?.name ?? null;
  }

  /** Availability of a file of the hub. */
  whereabouts(request: HubFileRequest): Whereabouts {
    const name = nameOf(request).toLowerCase();
    const size = request.size_bytes ?? null;
    const download = this.#downloads.of(request);
    if (download?.head !== undefined && download.path !== null) return { kind: 'here', path: download.path };
    const arrived = download?.phase === 'done' ? this.#library.at(download.path) : null;
    // Another model may have the same name, but hardly the same size.
    const same = ({ size_bytes }: ModelEntry) => size === null || Math.abs(size_bytes - size) <= sizeSlack * size;
    const named = () => this.#library.models.find((model) => model.problem === null && model.name.toLowerCase() === name && same(model));
    const here = arrived?.problem === null ? arrived : named();
    if (here) return { kind: 'here', path: here.path };
    if (!download || download.phase === 'done') return { kind: 'there' };
    return { kind: isHalted(download) ? 'halted' : 'coming', download };
  }

  /** Downloads missing models up to the first failure, which would repeat for the others. */
  async fetch(models: readonly HubFileRequest[]): Promise<void> {
    for (const model of models) {
      if (this.whereabouts(model).kind === 'here') continue;
      const { repository, file, sha256 } = model;
      await this.#downloads.start({ repository, file, ...(sha256 ? { expected_sha256: sha256 } : {}) });
      if (this.#downloads.error) return;
    }
  }

  /** Downloads the small model, to be loaded once it is here. */
  async trySmall(): Promise<void> {
    if (!this.small) return;
    this.trying = true;
    await this.fetch([this.small]);
  }

  /** Looks up the typed repository. The engine decides whether it is a repository of its hub. */
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
      // If the hub's own address is invalid, that is the error to show.
      this.misread = error.code === 'invalid_request' && this.hubError === null;
      this.refusal = this.misread ? null : error;
    } finally {
      if (isLatest()) this.looking = false;
      // Invalid names caused no request.
      if (!this.misread) void this.askHubAgain();
    }
  }

  /** Saves a token in the system's keychain; null deletes it. Never rejects. */
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
