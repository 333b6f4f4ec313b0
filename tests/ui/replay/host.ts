// The replay host: plays recorded streams in place of an engine, for the browser tests and for working on the window
// without a model.
//
// Parameters in the page's address:
//
// - replay=NAME[,NAME]: recordings, one per generation; the last one repeats
// - app=NAME: the recorded app_info, and the models of the library
// - compare=NAME: the recorded comparison
// - speed=N|instant: playback speed, 1 as recorded
// - lose=3,4: indices of messages that are not delivered
//
// Tests control it through `window.hunchReplay`.

import type {
  AnswerRequest,
  AppInfo,
  ComparisonReport,
  Download,
  ErrorInfo,
  LibraryEvent,
  LoadedModels,
  LoadRequest,
  ModelEntry,
  SavePlace,
  StoreRemedy,
  StreamMessage,
} from '../../../ui/src/lib/ipc/schema.gen';
import type { Playback } from './playing';
import { parseRecording, ReplayedGeneration, type Recording } from './recording';
import { ReplayLab, type RecordedLab } from './lab';
import { ReplayLibrary, type RecordedLibrary } from './library';
import { parseComparison, ReplayComparisons, ReplayedComparison, type CompareMessage } from './comparison';
import { ReplayStore, type RecordedConversation } from './store';
import type { FilesEvent, Host, WireArguments } from '../../../ui/src/lib/host/types';

/** A recorded application: its info, its models, and the files that fail to load. */
export interface RecordedApp {
  info: AppInfo;
  models: ModelEntry[];
  /** Results of the file dialog, in turn. */
  picks: string[];
  /** Errors of loading, by path. */
  load_errors: Record<string, ErrorInfo>;
  /** Milliseconds that loading a model takes. */
  load_ms: number;
  /** Existing conversations. */
  conversations?: RecordedConversation[];
  /** Existing comparisons, oldest first. */
  comparisons?: ComparisonReport[];
  /** Conversations that can be imported, by path. */
  imports?: Record<string, RecordedConversation>;
  /** Answers of the engine to the lab. Defaults to a small pair of models. */
  lab?: RecordedLab;
  /** Folders, machine, catalogue and hub. Defaults to a small machine. */
  library?: RecordedLibrary;
}

/** Control of the host by a test. */
export interface ReplayControl {
  calls: { command: string; args: WireArguments }[];
  menu: (item: string) => void;
  /** Drags files, as the system would. */
  files: (event: FilesEvent) => void;
  /** Changes a download, as the hub and the disk would. */
  download: (id: string, change: Partial<Download>) => void;
  /** Sends an event to the watchers of the library. */
  tell: (event: LibraryEvent) => void;
  /** Unloads the models, as after the keep-warm time. */
  letGo: () => void;
}

declare global {
  interface Window {
    hunchReplay?: ReplayControl;
  }
}

const defaultRecording = 'fixture-answer';
const defaultApp = 'fixture-app';
const defaultLab = 'fixture-lab';
const defaultLibrary = 'fixture-library';
const defaultComparison = 'fixture-comparison';

async function read(file: string): Promise<string> {
  const response = await fetch(`/replay/${encodeURIComponent(file)}`);
  if (!response.ok) throw new Error(`There is no recording "${file}".`);
  return response.text();
}

function playback(query: URLSearchParams): Playback {
  const speed = query.get('speed') ?? '1';
  return {
    speed: speed === 'instant' ? Infinity : Number(speed) || 1,
    lost: new Set((query.get('lose') ?? '').split(',').filter(Boolean).map(Number)),
    later: (milliseconds, then) => void setTimeout(then, milliseconds),
  };
}

/** Opens the replay host with the options in the page's address. */
export async function openReplay(query: URLSearchParams): Promise<Host> {
  const names = (query.get('replay') ?? defaultRecording).split(',');
  const recordings = await Promise.all(names.map(async (name) => parseRecording(await read(`${name}.jsonl`))));
  const app = JSON.parse(await read(`${query.get('app') ?? defaultApp}.json`)) as RecordedApp;
  const preferences = JSON.parse(query.get('preferences') ?? '{}') as Record<string, unknown>;
  app.lab ??= JSON.parse(await read(`${defaultLab}.json`)) as RecordedLab;
  app.library ??= JSON.parse(await read(`${defaultLibrary}.json`)) as RecordedLibrary;
  const comparison = async () => parseComparison(await read(`${query.get('compare') ?? defaultComparison}.jsonl`));
  return new ReplayHost(app, recordings, comparison, playback(query), preferences);
}

class ReplayHost implements Host {
  readonly inWindow = false;
  readonly #app: RecordedApp;
  readonly #recordings: Recording[];
  readonly #comparison: () => Promise<CompareMessage[]>;
  readonly #playback: Playback;
  readonly #control: ReplayControl = {
    calls: [],
    menu: () => {},
    files: () => {},
    download: (id, change) => this.#library?.move(id, change),
    tell: (event) => this.#library?.tell(event),
    letGo: () => this.#unload(),
  };
  #channels: ((message: unknown) => void)[] = [];
  #generations: ReplayedGeneration[] = [];
  #measurements: ReplayedComparison[] = [];
  #picked = 0;
  #saves = 0;
  readonly #store: ReplayStore;
  readonly #lab: ReplayLab | null;
  readonly #library: ReplayLibrary | null;
  /** Cancels the current loading. */
  #cancelLoading: () => void = () => {};
  readonly #comparisons: ReplayComparisons;
  readonly #preferences: Map<string, unknown>;

  constructor(
    app: RecordedApp,
    recordings: Recording[],
    comparison: () => Promise<CompareMessage[]>,
    how: Playback,
    preferences: Record<string, unknown>,
  ) {
    this.#app = app;
    this.#recordings = recordings;
    this.#comparison = comparison;
    this.#playback = how;
    this.#store = new ReplayStore(app.conversations ?? []);
    this.#lab = app.lab ? new ReplayLab(app.lab, how.later) : null;
    this.#library = app.library ? new ReplayLibrary(app.library, app.models, app.info.models_folder) : null;
    this.#comparisons = new ReplayComparisons(app.comparisons ?? []);
    this.#preferences = new Map(Object.entries(preferences));
    window.hunchReplay = this.#control;
  }

  invoke(command: string, args: WireArguments): Promise<unknown> {
    this.#control.calls.push({ command, args: JSON.parse(JSON.stringify(args)) as WireArguments });
    return this.#answer(command, args);
  }

  openChannel<T>(receive: (message: T) => void): unknown {
    this.#channels.push(receive as (message: unknown) => void);
    return this.#channels.length - 1;
  }

  async openLink(href: string): Promise<void> {
    this.#control.calls.push({ command: 'open_link', args: { href } });
  }

  onMenu(choose: (item: string) => void): void {
    this.#control.menu = choose;
  }

  labelMenu(words: Readonly<Record<string, string>>): void {
    this.#control.calls.push({ command: 'label_menu', args: { ...words } });
  }

  onFiles(hear: (event: FilesEvent) => void): void {
    this.#control.files = hear;
  }

  async #answer(command: string, args: WireArguments): Promise<unknown> {
    switch (command) {
      case 'app_info':
        return structuredClone(this.#app.info);
      case 'mend_store': {
        const remedy = args['remedy'] as StoreRemedy;
        const problem = this.#app.info.store_problem;
        const accepted = problem !== null && remedy.type === 'go_without' ? { ...problem, accepted: true } : null;
        this.#app.info = { ...this.#app.info, store_problem: accepted };
        return structuredClone(this.#app.info);
      }
      case 'report_problem':
      case 'show_log':
      case 'set_window_hidden':
      case 'reveal_model':
        return null;
      case 'choose_file':
      case 'choose_folder':
        return this.#app.picks[this.#picked++] ?? null;
      case 'choose_save_place':
        return { token: ++this.#saves, name: args['name'] } satisfies Record<keyof SavePlace, unknown>;
      case 'watch_library':
        return structuredClone(this.#library?.watch(this.#channel(args['channel'] as number)) ?? []);
      case 'load_models':
        return this.#load(args['request'] as LoadRequest);
      case 'cancel_loading':
        this.#cancelLoading();
        return null;
      case 'unload_models':
        this.#unload();
        return null;
      case 'measure_pair':
        return this.#measurePair(args['request'] as LoadRequest, args['channel'] as number);
      case 'answer':
        return this.#begin(args['request'] as AnswerRequest, args['channel'] as number);
      case 'list_conversations':
        return structuredClone(this.#store.list());
      case 'open_conversation':
        return structuredClone(this.#store.open(args['id'] as number));
      case 'answer_events':
        return structuredClone(this.#store.events(args['message'] as number));
      case 'rename_conversation':
        this.#store.rename(args['id'] as number, args['title'] as string);
        return null;
      case 'pin_conversation':
        this.#store.pin(args['id'] as number, args['pinned'] as boolean);
        return null;
      case 'delete_conversation':
      case 'restore_conversation':
        this.#store.setDeleted(args['id'] as number, command === 'delete_conversation');
        return null;
      case 'set_system_prompt':
        return this.#store.setSystem(args['id'] as number | null, args['system'] as string);
      case 'choose_branch':
        this.#store.setLeaf(args['leaf'] as number);
        return null;
      case 'search_conversations':
        return this.#store.search(args['query'] as string);
      case 'export_conversation':
      case 'save_answer':
        return null;
      case 'import_conversation':
        return this.#import(args['path'] as string);
      case 'preferences':
        return structuredClone(Object.fromEntries(this.#preferences));
      case 'set_preference':
        this.#preferences.set(args['key'] as string, structuredClone(args['value']));
        return null;
      case 'stop_generation':
        this.#generation(args).stop();
        return null;
      case 'generation_snapshot':
        return structuredClone(this.#generation(args).snapshot(args['from'] as number));
      case 'measure_costs':
        return this.#lab?.measure(this.#channel(args['channel'] as number));
      case 'compare':
        return this.#compare(args['channel'] as number);
      case 'compare_snapshot':
        return structuredClone(this.#measurement(args).snapshot(args['from'] as number));
      case 'stop_measurement':
        if (!this.#lab?.stop(args['id'] as number)) this.#measurement(args).stop();
        return null;
      case 'list_comparisons':
        return this.#comparisons.list();
      case 'open_comparison':
        return structuredClone(this.#comparisons.open(args['id'] as number));
      case 'delete_comparison':
        this.#comparisons.remove(args['id'] as number);
        return null;
      case 'export_comparison':
        return null;
      default: {
        const answer = this.#library?.answer(command, args) ?? this.#lab?.answer(command, args);
        if (answer === undefined) throw refusal('internal', `The replay host has no command "${command}".`);
        return structuredClone(answer);
      }
    }
  }

  #channel(channel: number): (message: unknown) => void {
    const deliver = this.#channels[channel];
    if (!deliver) throw refusal('internal', 'There is no such channel.');
    return deliver;
  }

  #import(path: string): number {
    const imported = this.#app.imports?.[path];
    if (!imported) throw refusal('io', `“${path}” is not an exported conversation. Choose another file.`);
    return this.#store.bring(imported);
  }

  async #load(request: LoadRequest): Promise<unknown> {
    await this.#readModels(request);
    const failing = [request.target, request.draft ?? ''].find((path) => path in this.#app.load_errors);
    if (failing !== undefined) throw this.#app.load_errors[failing];
    return structuredClone(this.#take(request));
  }

  /** Plays the reading of the files until it is cancelled. */
  async #readModels({ target, draft }: LoadRequest): Promise<void> {
    const steps = 4;
    let cancelled = false;
    this.#cancelLoading = () => (cancelled = true);
    const known = this.#app.models.filter(({ path, name }) => [target, draft].includes(path) || [target, draft].includes(name));
    const total = known.reduce((sum, model) => sum + model.size_bytes, 0);
    for (let step = 1; step <= steps; step += 1) {
      await new Promise<void>((resolve) => this.#playback.later(this.#app.load_ms / steps, resolve));
      if (cancelled) throw refusal('stopped', 'Loading was called off. What was in memory is still there.');
      const progress = { name: known[0]?.name ?? target, done_bytes: (total * step) / steps, total_bytes: total };
      if (total > 0) this.#library?.tell({ kind: 'loading', progress });
    }
  }

  #take(request: LoadRequest): LoadedModels {
    const target = this.#model(request.target);
    const draft = request.draft === null ? null : this.#model(request.draft);
    const fit = this.#library?.fit(request);
    if (fit?.verdict === 'too_large') throw refusal('out_of_memory', 'The models and their caches do not fit into the memory of this machine. Nothing was loaded; choose a smaller context or a smaller model.');
    const methods: LoadedModels['methods'] = draft ? ['plain', 'draft-model', 'ngram'] : ['plain', 'ngram'];
    const loaded = { target, draft, context: fit?.context ?? target.context_length, device: this.#app.info.device, methods };
    this.#app.info.loaded = loaded;
    return loaded;
  }

  #unload(): void {
    this.#app.info.loaded = null;
    this.#library?.tell({ kind: 'unloaded' });
  }

  async #measurePair(request: LoadRequest, channel: number): Promise<number> {
    await this.#readModels(request);
    const { target, draft } = this.#take(request);
    return this.#compare(channel, (report, comparison) => {
      const best = report.lanes.slice(1).reduce((fastest, lane) => (lane.speedup > fastest.speedup ? lane : fastest));
      if (draft) this.#library?.measured(target.name, draft.name, { speedup: best.speedup, method: best.contender.method, ended_ms: report.ended_ms, comparison });
    });
  }

  #model(path: string): ModelEntry {
    const found = this.#app.models.find((model) => model.path === path || model.name === path);
    if (!found) throw refusal('model_not_found', `No model called "${path}" was found. Choose another file.`);
    return found;
  }

  async #begin(request: AnswerRequest, channel: number): Promise<unknown> {
    const loaded = this.#app.info.loaded;
    if (!loaded) throw refusal('no_model', 'No model is loaded. Open a model first.');
    const { begun, takeBack } = this.#store.begin(request, { target: loaded.target.name, draft: loaded.draft?.name ?? null });
    try {
      const generation_id = this.#play(channel, (message) => this.#store.keep(begun.answer, message.events));
      return structuredClone({ ...begun, generation_id });
    } catch (refused) {
      takeBack();
      throw refused;
    }
  }

  #play(channel: number, keep: (message: StreamMessage) => void): number {
    if (!this.#app.info.loaded) throw refusal('no_model', 'No model is loaded. Open a model first.');
    const id = this.#generations.length + 1;
    const recording = this.#recordings[Math.min(id, this.#recordings.length) - 1];
    const deliver = this.#channels[channel];
    if (!recording || !deliver) throw refusal('internal', 'There is nothing to replay.');
    const generation = new ReplayedGeneration(id, recording, this.#playback, deliver, keep);
    this.#generations.push(generation);
    if (recording.reject) throw recording.reject;
    generation.start();
    return id;
  }

  async #compare(channel: number, kept: (report: ComparisonReport, id: number) => void = () => {}): Promise<number> {
    if (!this.#app.info.loaded) throw refusal('no_model', 'No model is loaded. Open a model first.');
    const recording = await this.#comparison();
    const deliver = this.#channels[channel];
    if (!deliver) throw refusal('internal', 'There is nothing to replay.');
    const id = this.#measurements.length + 1;
    const keep = (report: ComparisonReport) => {
      const number = this.#comparisons.keep(report);
      kept(report, number);
      return number;
    };
    const measurement = new ReplayedComparison(id, recording, this.#playback, deliver, keep);
    this.#measurements.push(measurement);
    measurement.start();
    return id;
  }

  #measurement(args: WireArguments): ReplayedComparison {
    const found = this.#measurements.find((measurement) => measurement.id === args['id']);
    if (!found) throw refusal('invalid_request', 'There is no such measurement.');
    return found;
  }

  #generation(args: WireArguments): ReplayedGeneration {
    const found = this.#generations.find((generation) => generation.id === args['generationId']);
    if (!found) throw refusal('invalid_request', 'There is no such generation.');
    return found;
  }
}

function refusal(code: ErrorInfo['code'], message: string): ErrorInfo {
  return { code, message };
}
