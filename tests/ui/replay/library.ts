// The library of the replay host. Models and folders are recorded, fit and pairs are computed from sizes, and tests
// change downloads. The sizes of caches are invented. No DOM.

import type { Handlers } from '../../../ui/src/lib/ipc/commands';
import type {
  Catalogue,
  CatalogueHead,
  CatalogueModel,
  Download,
  DownloadRequest,
  DraftOffer,
  DraftOffers,
  ErrorInfo,
  Fit,
  FitVerdict,
  HeadOffer,
  HubCard,
  HubRepository,
  HubResult,
  HubSearch,
  HubSearchPage,
  HubState,
  Library,
  LibraryEvent,
  LoadRequest,
  LoadedHead,
  LowBitOffer,
  MachineMemory,
  MeasuredSpeedup,
  ModelEntry,
  ModelFolder,
  PairVerdict,
  PredictedMemory,
  PredictedSpeedup,
  SmallerChoice,
  StoredData,
} from '../../../ui/src/lib/ipc/schema.gen';
import { refusal } from './refusal';

/** The commands that the library implements. */
type LibraryCommand =
  | 'library'
  | 'add_model_folder'
  | 'remove_model_folder'
  | 'remove_model'
  | 'remove_low_bit_copy'
  | 'stored_data'
  | 'remove_stored_data'
  | 'template_note'
  | 'watch_library'
  | 'fit'
  | 'fit_verdicts'
  | 'draft_offers'
  | 'catalogue'
  | 'dropped_models'
  | 'search_hub'
  | 'hub_card'
  | 'hub_repository'
  | 'hub_state'
  | 'set_hub_token'
  | 'downloads'
  | 'start_download'
  | 'pause_download'
  | 'resume_download'
  | 'remove_download';

/** Recording of the library, without its models. */
export interface RecordedLibrary {
  /** Folders. The number of models in each is computed. */
  folders: Omit<ModelFolder, 'models'>[];
  machine: MachineMemory;
  catalogue: Catalogue;
  hub: HubState;
  /** Repositories of the hub by name, or the error of looking them up. */
  repositories: Record<string, HubRepository | ErrorInfo>;
  /** Folders that can be dropped as models. */
  model_folders?: string[];
  /** Results of searches by word, or the error of a search. GGUF models only. */
  searches?: Record<string, HubResult[] | ErrorInfo>;
  /** Milliseconds that a search takes, by word. */
  search_ms?: Record<string, number>;
  /** Model cards by repository, or the error of fetching one. */
  cards?: Record<string, HubCard | ErrorInfo>;
  /** First difference of two vocabularies, by the names of both tokenisers separated by a space. */
  differences: Record<string, { first: number; of_target: string; of_draft: string }>;
  /** Vocabulary entries of only one of two models, by the name of the draft. */
  padding: Record<string, number>;
  /** Measured speedups, by the names of both models separated by a space. */
  measured: Record<string, MeasuredSpeedup>;
  /** Problems of chat templates, by path. */
  template_notes?: Record<string, string>;
  /** Heads, by the name of the model that they fit. For other models they have a reason. */
  heads?: Record<string, HeadOffer[]>;
  /** Layers that models bring along to draft, by the model's name. */
  own_heads?: Record<string, HeadOffer>;
  /** Heads to download, by the name of the model that they are for. */
  heads_to_fetch?: Record<string, CatalogueHead[]>;
  /** Low-bit copies that models have or can get, by the model's name. */
  low_bit?: Record<string, LowBitOffer>;
  /** Data that Hunch made for models. */
  stored?: StoredData[];
  /** Existing downloads. */
  downloads: Download[];
}

/** Number of downloads that run at once. */
const atOnce = 2;
/** Search results of a page. */
const perPage = 2;
const usualContext = 8192;
const leastContext = 512;
/** Bytes that a loaded model takes in addition to weights and caches. */
const overhead = 340e6;

/** The library of a recorded application. */
export class ReplayLibrary {
  readonly #recorded: RecordedLibrary;
  readonly #models: ModelEntry[];
  readonly #folder: string;
  #downloads: Download[];
  #stored: StoredData[];
  #send: (event: LibraryEvent) => void = () => {};

  /** `folder` is Hunch's own folder. */
  constructor(recorded: RecordedLibrary, models: ModelEntry[], folder: string) {
    this.#recorded = recorded;
    this.#models = models;
    this.#folder = folder;
    this.#downloads = [...recorded.downloads];
    this.#stored = [...(recorded.stored ?? [])];
  }

  /** The commands of the library. */
  readonly handlers: Pick<Handlers, LibraryCommand> = {
    library: () => this.listing(),
    add_model_folder: ({ path }) => this.#addFolder(path),
    remove_model_folder: ({ path }) => this.#removeFolder(path),
    remove_model: ({ path }) => this.removeModel(path),
    remove_low_bit_copy: ({ target }) => this.#removeLowBitCopy(this.find(target)),
    stored_data: () => this.#stored,
    remove_stored_data: ({ id }) => (this.#stored = this.#stored.filter((stored) => stored.id !== id)),
    template_note: ({ path }) => this.#recorded.template_notes?.[path] ?? null,
    watch_library: (_, send) => this.#watch(send),
    fit: ({ request }) => this.fit(request),
    fit_verdicts: ({ targets }) => targets.map((target) => this.fit({ target, draft: null, context: null }).verdict),
    draft_offers: ({ target, context }) => this.#offers(this.find(target), context),
    catalogue: () => this.#recorded.catalogue,
    dropped_models: ({ paths }) => paths.filter((path) => this.#recorded.model_folders?.includes(path)),
    search_hub: ({ search }) => this.#search(search),
    hub_card: ({ repository }) => this.#card(repository),
    hub_repository: ({ repository }) => this.#repository(repository),
    hub_state: () => this.#recorded.hub,
    set_hub_token: ({ token }) => this.#setToken(token),
    downloads: () => this.#downloads,
    start_download: ({ request }) => this.start(request),
    pause_download: ({ id }) =>
      this.move(id, {
        phase: 'paused',
        bytes_per_second: null,
        seconds_left: null,
      }),
    resume_download: ({ id }) => this.move(id, { phase: 'running', error: null }),
    remove_download: ({ id }) => this.#removeDownload(id),
  };

  /** Sends an event to the watcher of the library. */
  send(event: LibraryEvent): void {
    this.#send(structuredClone(event));
  }

  listing(): Library {
    const models = [...this.#models].sort(
      (a, b) => Number(a.problem !== null) - Number(b.problem !== null) || a.name.localeCompare(b.name),
    );
    const folders = this.#recorded.folders.map((folder) => ({
      ...folder,
      models: models.filter(({ path }) => path.startsWith(`${folder.path}/`)).length,
    }));
    return { models, folders, machine: this.#recorded.machine };
  }

  /** A model by path or name. */
  find(name: string): ModelEntry {
    const found = this.#models.find((model) => model.path === name || model.name === name) ?? this.lowBitCopy(name);
    if (!found) throw refusal('model_not_found', `No model called "${name}" was found. Choose another file.`);
    return found;
  }

  /** The low-bit copy with a path, as a model. */
  lowBitCopy(path: string): ModelEntry | undefined {
    const [name, copy] = Object.entries(this.#recorded.low_bit ?? {}).find(([, copy]) => copy.path === path) ?? [];
    const target = this.#models.find((model) => model.name === name);
    if (!target || !copy) return undefined;
    return { ...target, name: stem(path), path, title: `${target.title} low-bit`, size_bytes: copy.size_bytes, quantisation: 'Q2_K' };
  }

  /** The low-bit copy with a path, unless it is written. */
  unwrittenCopy(path: string): LowBitOffer | undefined {
    return Object.values(this.#recorded.low_bit ?? {}).find((copy) => copy.path === path && !copy.written);
  }

  /** The measured speedup of a pair. */
  measured(target: string, draft: string, speedup: MeasuredSpeedup): void {
    this.#recorded.measured[`${target} ${draft}`] = speedup;
  }

  /** Changes a download, as the hub and the disk would. */
  move(id: string, change: Partial<Download>): null {
    const at = this.#downloads.findIndex((download) => download.id === id);
    const before = this.#downloads[at];
    if (!before) throw refusal('invalid_request', 'There is no such download any more.');
    const download: Download = { ...before, ...change };
    if (download.phase === 'done') {
      const all = download.total_bytes ?? 0;
      Object.assign(download, {
        done_bytes: all,
        bytes_per_second: null,
        seconds_left: null,
        error: null,
        path: `${this.#folder}/${download.name}.gguf`,
      });
    }
    this.#downloads = this.#downloads.with(at, download);
    this.send({ kind: 'download', download });
    if (download.phase === 'done' && before.phase !== 'done') this.#arrive(download);
    this.#next();
    return null;
  }

  /** Predicted memory, computed from sizes. */
  fit({ target, draft, context }: LoadRequest): Fit {
    const [first, second] = [this.find(target), draft === null ? null : this.find(draft)];
    const tokens = context ?? Math.min(usualContext, first.context_length);
    const fit = predict(first, second, tokens, this.#recorded.machine);
    return {
      ...fit,
      smaller: fit.verdict === 'too_large' ? this.#smaller(first, second, tokens) : [],
    };
  }

  #removeLowBitCopy({ name }: ModelEntry): null {
    const copy = this.#recorded.low_bit?.[name];
    if (copy) copy.written = false;
    return null;
  }

  #watch(send: (event: LibraryEvent) => void): Download[] {
    this.#send = send;
    return this.#downloads;
  }

  #removeFolder(removed: string): Library {
    this.#recorded.folders = this.#recorded.folders.filter(({ path }) => path !== removed);
    return this.listing();
  }

  #setToken(token: string | null): HubState {
    this.#recorded.hub = {
      ...this.#recorded.hub,
      token: token === null ? 'absent' : 'keychain',
    };
    return this.#recorded.hub;
  }

  #removeDownload(removed: string): null {
    this.#downloads = this.#downloads.filter(({ id }) => id !== removed);
    this.send({ kind: 'download_gone', id: removed });
    this.#next();
    return null;
  }

  #smaller(target: ModelEntry, draft: ModelEntry | null, context: number): SmallerChoice[] {
    const { machine, catalogue } = this.#recorded;
    const fits = (model: ModelEntry, second: ModelEntry | null, tokens: number) =>
      predict(model, second, tokens, machine).verdict !== 'too_large';
    const choices: SmallerChoice[] = [];
    for (let tokens = context / 2; tokens >= leastContext; tokens /= 2) {
      if (!fits(target, draft, tokens)) continue;
      choices.push({ kind: 'context', context: tokens });
      break;
    }
    if (draft && fits(target, null, context)) choices.push({ kind: 'without_draft' });
    const largest = (models: ModelEntry[]) =>
      models
        .filter((model) => model.problem === null && model.size_bytes < target.size_bytes && fits(model, draft, context))
        .sort((a, b) => b.size_bytes - a.size_bytes)[0];
    const other = largest(this.#models);
    if (other) choices.push({ kind: 'model', name: other.name, path: other.path });
    const offered = catalogue.models.find(
      ({ role, size_bytes }) =>
        role === 'target' && size_bytes !== null && size_bytes < 0.6 * machine.usable && size_bytes < target.size_bytes,
    );
    if (offered) choices.push({ kind: 'catalogue', id: offered.id, name: offered.name });
    return choices;
  }

  #offers(target: ModelEntry, context: number | null): DraftOffers {
    const tokens = context ?? Math.min(usualContext, target.context_length);
    const own = this.#models.filter(({ path }) => path !== target.path).map((draft) => this.#offer(target, draft, tokens));
    const there = this.#recorded.catalogue.models
      .filter((model) => !this.#models.some(({ name }) => name === stem(model.file)))
      .map((model) => this.#remote(target, model, tokens));
    const worth = ({ measured, predicted, verdict }: DraftOffer) =>
      (measured ? 100 + measured.speedup : (predicted?.speedup ?? 0)) + (isSuited(verdict) ? 1 : -100);
    const offers = [...own, ...there].sort((a, b) => worth(b) - worth(a));
    const ownHead = this.#recorded.own_heads?.[target.name];
    const copy = this.#recorded.low_bit?.[target.name];
    return {
      target,
      context: tokens,
      offers,
      heads: this.#heads(target),
      heads_to_fetch: this.#recorded.heads_to_fetch?.[target.name] ?? [],
      ...(ownHead && { own_head: ownHead }),
      ...(copy && { low_bit: copy }),
      without_draft: [...(ownHead ? (['head'] as const) : []), 'ngram', 'suffix', 'lookahead', 'layer-skip'],
    };
  }

  /** A head by path, as it is loaded. */
  headOf(path: string | undefined): LoadedHead | null {
    const head = Object.values(this.#recorded.heads ?? {})
      .flat()
      .find((one) => one.path === path);
    return head ? { name: head.name, path: head.path, kind: head.kind } : null;
  }

  #heads(target: ModelEntry): HeadOffer[] {
    const all = Object.entries(this.#recorded.heads ?? {});
    const fitting = all.flatMap(([name, heads]) => (name === target.name ? heads : []));
    const others = all.flatMap(([name, heads]) => (name === target.name ? [] : heads));
    const problem = `This head was made for another target: its states differ from those of ${target.title}. Open its target, or decode without the head.`;
    return [...fitting, ...others.map((head) => ({ ...head, problem, predicted: null }))];
  }

  #offer(target: ModelEntry, draft: ModelEntry, tokens: number): DraftOffer {
    const { machine, measured } = this.#recorded;
    const verdict = this.#verdict(target, draft);
    const ratio = draft.size_bytes / target.size_bytes;
    const { total, verdict: fit } = predict(target, draft, tokens, machine);
    const suits = verdict.kind === 'suits';
    return {
      name: draft.name,
      path: draft.path,
      catalogue: this.#recorded.catalogue.models.find(({ file }) => stem(file) === draft.name)?.id ?? null,
      size_bytes: draft.size_bytes,
      verdict,
      recommended: suits && this.#recommends(target, draft.name),
      size_ratio: ratio,
      memory: total,
      fit,
      predicted: suits ? predictSpeedup(ratio) : null,
      measured: suits ? (measured[`${target.name} ${draft.name}`] ?? null) : null,
    };
  }

  #remote(target: ModelEntry, model: CatalogueModel, tokens: number): DraftOffer {
    const size = model.size_bytes ?? 0;
    const entry = { ...target, size_bytes: size, parameters: model.parameters };
    const { total, verdict: fit } = predict(target, entry, tokens, this.#recorded.machine);
    const ratio = size / target.size_bytes;
    const verdict = this.#remoteVerdict(target, model);
    const suited = isSuited(verdict);
    const recommended = suited && this.#recommends(target, stem(model.file));
    return {
      name: model.name,
      path: null,
      catalogue: model.id,
      size_bytes: size,
      verdict,
      recommended,
      size_ratio: ratio,
      memory: total,
      fit,
      predicted: suited ? predictSpeedup(ratio) : null,
      measured: null,
    };
  }

  #remoteVerdict(target: ModelEntry, model: CatalogueModel): PairVerdict {
    if ((model.size_bytes ?? Infinity) >= target.size_bytes) return { kind: 'not_smaller' };
    const tokenizer = `gpt2 (${model.vocabulary})`;
    if (tokenizer === target.tokenizer) return { kind: 'expected', compared: false };
    return this.#differ(target.tokenizer, tokenizer);
  }

  #recommends(target: ModelEntry, draft: string): boolean {
    const { models } = this.#recorded.catalogue;
    const wanted = models.find(({ file }) => stem(file) === target.name)?.draft;
    return models.some(({ id, file }) => id === wanted && stem(file) === draft);
  }

  #verdict(target: ModelEntry, draft: ModelEntry): PairVerdict {
    if (draft.problem !== null) return { kind: 'unusable', reason: draft.problem };
    if (draft.tokenizer !== target.tokenizer) return this.#differ(target.tokenizer, draft.tokenizer);
    if (draft.size_bytes >= target.size_bytes) return { kind: 'not_smaller' };
    return { kind: 'suits', padding: this.#recorded.padding[draft.name] ?? 0 };
  }

  #differ(target: string, draft: string): PairVerdict {
    const known = this.#recorded.differences[`${target} ${draft}`];
    return {
      kind: 'other_vocabulary',
      ...(known ?? { first: 3, of_target: '#', of_draft: '$' }),
    };
  }

  #addFolder(path: string): Library {
    if (this.#recorded.folders.some((folder) => folder.path === path))
      throw refusal('invalid_request', `${path} is already searched. Choose another folder.`, { folder: path, reason: 'folder_known' });
    this.#recorded.folders = [...this.#recorded.folders, { path, source: 'added', exists: true, problem: null }];
    return this.listing();
  }

  /** Removes a model from Hunch's own folder. */
  removeModel(path: string): Library {
    const model = this.find(path);
    if (model.source !== 'hunch')
      throw refusal('invalid_request', `“${model.name}” is not in Hunch’s own folder. It was left as it is; remove it there.`);
    this.#models.splice(this.#models.indexOf(model), 1);
    this.send({ kind: 'changed' });
    return this.listing();
  }

  /** A page of the recorded results: two results a page, the cursor is the number of the first one. */
  async #search({ query, sort, format, cursor }: HubSearch): Promise<HubSearchPage> {
    await new Promise((resolve) => setTimeout(resolve, this.#recorded.search_ms?.[query] ?? 0));
    const found = this.#recorded.searches?.[`${format} ${query}`] ?? this.#recorded.searches?.[query] ?? [];
    if ('code' in found) throw found;
    const from = Number(cursor ?? 0);
    const sorted = [...found].sort((a, b) => (b[sort] ?? 0) - (a[sort] ?? 0));
    return { results: sorted.slice(from, from + perPage), next: from + perPage < found.length ? String(from + perPage) : null };
  }

  #card(repository: string): HubCard {
    const card = this.#recorded.cards?.[repository] ?? { repository, text: '', cut: false };
    if ('code' in card) throw card;
    return card;
  }

  #repository(text: string): HubRepository {
    const path = text.trim().replace(/^(https?:\/\/)?(huggingface\.co|hf\.co)\//, '');
    const name = /^[\w-][\w.-]*\/[\w-][\w.-]*/.exec(path)?.[0];
    if (!name || /[\s:]/.test(path))
      throw refusal('invalid_request', 'That is not the name of a repository on the hub.', { reason: 'not_a_repository' });
    const found = this.#recorded.repositories[name];
    if (!found) throw refusal('hub_not_found', `The hub has no repository “${name}”.`, { repository: name, reason: 'no_such_repository' });
    if ('code' in found) throw found;
    return found;
  }

  /** Starts a download, or returns the running one of the same file. */
  start(request: DownloadRequest): Download {
    const same = this.#downloads.find(
      (download) => download.request.repository === request.repository && download.request.file === request.file,
    );
    // It resumes with the new request, checksum included. A running one is left alone.
    if (same && ['paused', 'failed', 'done'].includes(same.phase))
      this.move(same.id, {
        request,
        phase: 'running',
        error: null,
        path: null,
        done_bytes: same.phase === 'done' ? 0 : same.done_bytes,
      });
    if (same) return this.#downloads.find(({ id }) => id === same.id) ?? same;
    const running = this.#downloads.filter(({ phase }) => phase === 'running').length;
    const download: Download = {
      id: `d${this.#downloads.length + 1}`,
      request,
      name: stem(request.file),
      phase: running < atOnce ? 'running' : 'waiting',
      done_bytes: 0,
      total_bytes: this.#size(request),
      bytes_per_second: null,
      seconds_left: null,
      error: null,
      path: null,
    };
    this.#downloads = [...this.#downloads, download];
    this.send({ kind: 'download', download });
    return download;
  }

  #size({ repository, file }: DownloadRequest): number | null {
    const listed = this.#recorded.repositories[repository];
    const there = listed && 'files' in listed ? listed.files.find(({ path }) => path === file) : undefined;
    return (
      there?.size_bytes ??
      this.#recorded.catalogue.models.find((model) => model.repository === repository && model.file === file)?.size_bytes ??
      null
    );
  }

  /** Starts the next waiting download. */
  #next(): void {
    const waiting = this.#downloads.find(({ phase }) => phase === 'waiting');
    if (waiting && this.#downloads.filter(({ phase }) => phase === 'running').length < atOnce) this.move(waiting.id, { phase: 'running' });
  }

  #arrive({ name, path, total_bytes, request, head }: Download): void {
    // A head is no model. The engine offers it for its target.
    if (head !== undefined) return void this.send({ kind: 'changed' });
    const known = this.#recorded.catalogue.models.find((model) => model.repository === request.repository && model.file === request.file);
    this.#models.push({
      name,
      title: known?.name ?? name,
      path: path ?? '',
      source: 'hunch',
      parts: 1,
      size_bytes: total_bytes ?? 0,
      architecture: 'qwen2',
      parameters: known?.parameters ?? 1e9,
      quantisation: known?.quantisation ?? 'Q4_K_M',
      context_length: 32768,
      tokenizer: `gpt2 (${known?.vocabulary ?? 'qwen2'})`,
      has_template: true,
      licence: known?.licence ?? null,
      tokens_per_second: null,
      is_default: false,
      problem: null,
    });
    this.send({ kind: 'changed' });
  }
}

/** `true` for a draft that can be used, or is assumed to be usable. */
const isSuited = ({ kind }: PairVerdict): boolean => kind === 'suits' || kind === 'expected';

/** File name without folders, extension and part number. */
const stem = (file: string): string => (file.split('/').at(-1) ?? file).replace(/(-\d{5}-of-\d{5})?\.gguf$/i, '');

function memoryOf(model: ModelEntry, tokens: number): PredictedMemory {
  return {
    weights: model.size_bytes,
    cache: Math.round(tokens * (12_000 + model.parameters / 80_000)),
  };
}

function predict(target: ModelEntry, draft: ModelEntry | null, context: number, machine: MachineMemory): Fit {
  const [first, second] = [memoryOf(target, context), draft ? memoryOf(draft, context) : null];
  const total = first.weights + first.cache + (second ? second.weights + second.cache : 0) + overhead;
  const verdict: FitVerdict = total > machine.usable ? 'too_large' : total > 0.9 * machine.usable ? 'tight' : 'fits';
  return {
    context,
    target: first,
    draft: second,
    head: null,
    other: overhead,
    total,
    machine,
    verdict,
    smaller: [],
  };
}

/** Speedup by the cost model, at the typical acceptance of a draft of that size. */
function predictSpeedup(ratio: number): PredictedSpeedup {
  const acceptance = Math.round(100 * (0.6 + 0.25 * Math.min(1, 2 * ratio))) / 100;
  const at = (depth: number) => (1 - acceptance ** (depth + 1)) / ((1 - acceptance) * (1 + 0.05 * depth + ratio * depth));
  const depth = [0, 1, 2, 3, 4, 5, 6].reduce((best, one) => (at(one) > at(best) ? one : best));
  return { speedup: at(depth), acceptance, depth, costs: 'sizes' };
}
