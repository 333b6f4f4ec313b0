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

import { dispatch, type Handlers } from '../../../ui/src/lib/ipc/commands';
import type {
  Answering,
  AnswerRequest,
  AnswerSettings,
  AppInfo,
  ComparisonReport,
  Download,
  ErrorInfo,
  LoadedModels,
  LoadRequest,
  ModelEntry,
  PreferenceValue,
  ReadAttachment,
  StoreRemedy,
  StreamMessage,
  SuiteFile,
  TextToken,
} from '../../../ui/src/lib/ipc/schema.gen';
import type { Playback } from './playing';
import { parseRecording, ReplayedGeneration, type Recording } from './recording';
import { ReplayLab, type RecordedLab } from './lab';
import { ReplayLibrary, type RecordedLibrary } from './library';
import { parseComparison, ReplayComparisons, ReplayedComparison, type CompareMessage } from './comparison';
import { ReplayTraining, type RecordedTraining } from './training';
import { ReplayServers, type RecordedServers } from './servers';
import { ReplayUpdates, type RecordedUpdates } from './updates';
import { ReplayStore, type RecordedConversation } from './store';
import type { FilesEvent, Host, WireArguments } from '../../../ui/src/lib/host/types';
import { refusal } from './refusal';

/** A recorded application: its info, its models, and the files that fail to load. */
export interface RecordedApp {
  info: AppInfo;
  models: ModelEntry[];
  /** Results of the file dialog, in turn. */
  picks: string[];
  /** Texts of files, or the errors of reading them, by path. The dialog for attachments chooses all of them. */
  texts?: Record<string, string | ErrorInfo>;
  /** Files of prompts, or the errors of reading them, by path. */
  suites?: Record<string, SuiteFile | ErrorInfo>;
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
  /** Training of drafters. Defaults to a short run. */
  training?: RecordedTraining;
  /** Servers. Defaults to none. */
  servers?: RecordedServers;
  /** Updates of the app. Defaults to a copy that looks for none. */
  updates?: RecordedUpdates;
}

/** A recorded application with defaults filled in. */
type CompleteApp = RecordedApp & Required<Pick<RecordedApp, 'lab' | 'library'>>;

/** Control of the host by a test. */
export interface ReplayControl {
  calls: { command: string; args: WireArguments }[];
  menu: (item: string) => void;
  /** Drags files, as the system would. */
  files: (event: FilesEvent) => void;
  /** Changes a download, as the hub and the disk would. */
  download: (id: string, change: Partial<Download>) => void;
  /** Unloads the models, as after the keep-warm time. */
  unload: () => void;
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

async function readJson<T>(name: string): Promise<T> {
  return JSON.parse(await read(`${name}.json`)) as T;
}

/** Runs a callback in a task of its own, at once: browsers make timers within timers wait for 4 ms at least. */
function inOwnTask(then: () => void): void {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => {
    port1.close();
    then();
  };
  port2.postMessage(null);
}

function playback(query: URLSearchParams): Playback {
  const speed = query.get('speed') ?? '1';
  return {
    speed: speed === 'instant' ? Infinity : Number(speed) || 1,
    lost: new Set((query.get('lose') ?? '').split(',').filter(Boolean).map(Number)),
    later: (milliseconds, then) => {
      if (milliseconds > 0) setTimeout(then, milliseconds);
      else inOwnTask(then);
    },
  };
}

/** Opens the replay host with the options in the page's address. */
export async function openReplay(query: URLSearchParams): Promise<Host> {
  const names = (query.get('replay') ?? defaultRecording).split(',');
  const recordings = await Promise.all(names.map(async (name) => parseRecording(await read(`${name}.jsonl`))));
  const recorded = await readJson<RecordedApp>(query.get('app') ?? defaultApp);
  const preferences = JSON.parse(query.get('preferences') ?? '{}') as Record<string, PreferenceValue>;
  const app: CompleteApp = {
    ...recorded,
    lab: recorded.lab ?? (await readJson<RecordedLab>(defaultLab)),
    library: recorded.library ?? (await readJson<RecordedLibrary>(defaultLibrary)),
  };
  const comparison = async () => parseComparison(await read(`${query.get('compare') ?? defaultComparison}.jsonl`));
  return new ReplayHost(app, recordings, comparison, playback(query), preferences);
}

class ReplayHost implements Host {
  readonly inWindow = false;
  readonly #app: CompleteApp;
  readonly #recordings: Recording[];
  readonly #comparison: () => Promise<CompareMessage[]>;
  readonly #playback: Playback;
  readonly #control: ReplayControl = {
    calls: [],
    menu: () => {},
    files: () => {},
    download: (id, change) => this.#library.move(id, change),
    unload: () => this.#unload(),
  };
  #channels: ((message: unknown) => void)[] = [];
  #generations: ReplayedGeneration[] = [];
  #measurements: ReplayedComparison[] = [];
  #picked = 0;
  /** Sources of the texts that drafts are copied from. */
  #textSources: string[] = [];
  #saves = 0;
  readonly #store: ReplayStore;
  readonly #lab: ReplayLab;
  readonly #training: ReplayTraining;
  readonly #library: ReplayLibrary;
  readonly #updates: ReplayUpdates;
  readonly #servers: ReplayServers;
  /** Cancels the current loading. */
  #cancelLoading: () => void = () => {};
  readonly #comparisons: ReplayComparisons;
  readonly #preferences: Map<string, PreferenceValue>;
  readonly #handlers: Handlers;

  constructor(
    app: CompleteApp,
    recordings: Recording[],
    comparison: () => Promise<CompareMessage[]>,
    playback: Playback,
    preferences: Record<string, PreferenceValue>,
  ) {
    this.#app = app;
    this.#recordings = recordings;
    this.#comparison = comparison;
    this.#playback = playback;
    this.#store = new ReplayStore(app.conversations ?? []);
    this.#lab = new ReplayLab(app.lab, playback.later, (layers) => {
      const { loaded } = app.info;
      if (loaded) app.info = { ...app.info, loaded: { ...loaded, skipped_layers: layers } };
    });
    this.#training = new ReplayTraining(playback.later, app.training);
    this.#library = new ReplayLibrary(app.library, app.models, app.info.models_folder);
    this.#servers = new ReplayServers(app.servers);
    this.#updates = new ReplayUpdates(playback.later, app.updates);
    this.#comparisons = new ReplayComparisons(app.comparisons ?? []);
    this.#preferences = new Map(Object.entries(preferences));
    this.#handlers = this.#createHandlers();
    window.hunchReplay = this.#control;
  }

  invoke(command: string, args: WireArguments): Promise<unknown> {
    this.#control.calls.push({ command, args: JSON.parse(JSON.stringify(args)) as WireArguments });
    const { channel, ...rest } = args;
    const send = this.#channels[Number(channel)] ?? (() => {});
    return dispatch(this.#handlers, command, rest, send).then((result) => structuredClone(result));
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

  onFiles(onEvent: (event: FilesEvent) => void): void {
    this.#control.files = onEvent;
  }

  /** The implementation of every command. Results are cloned by `invoke`. */
  #createHandlers(): Handlers {
    return {
      ...this.#library.handlers,
      ...this.#lab.handlers,
      ...this.#training.handlers,
      ...this.#servers.handlers,
      ...this.#updates.handlers,
      app_info: () => this.#app.info,
      repair_store: ({ remedy }) => this.#repairStore(remedy),
      report_problem: () => null,
      show_log: () => null,
      set_window_hidden: () => null,
      reveal_model: () => null,
      choose_file: () => this.#nextPick(),
      choose_folder: () => this.#nextPick(),
      choose_attachments: () => Object.keys(this.#app.texts ?? {}),
      read_attachment: ({ path }) => this.#readAttachment(path),
      choose_save_place: ({ name }) => ({ token: ++this.#saves, name }),
      load_models: ({ request }) => this.#load(request),
      cancel_loading: () => {
        this.#cancelLoading();
        return null;
      },
      unload_models: () => {
        this.#unload();
        return null;
      },
      chosen_texts: () => this.#textSources,
      choose_texts: ({ sources }) => this.#chooseTexts(sources),
      measure_pair: ({ request }, send) => this.#measurePair(request, send),
      attachment_tokens: ({ text }) => this.#tokens(text).length,
      text_tokens: ({ text }) => this.#tokens(text),
      answer: ({ request }, send) => this.#startAnswer(request, send),
      stop_generation: ({ generationId }) => {
        this.#generation(generationId).stop();
        return null;
      },
      generation_snapshot: ({ generationId, from }) => this.#generation(generationId).snapshot(from),
      list_conversations: () => this.#store.list(),
      open_conversation: ({ id }) => this.#store.open(id),
      answer_events: ({ message }) => this.#store.events(message),
      rename_conversation: ({ id, title }) => {
        this.#store.rename(id, title);
        return null;
      },
      pin_conversation: ({ id, pinned }) => {
        this.#store.pin(id, pinned);
        return null;
      },
      delete_conversation: ({ id }) => {
        this.#store.setDeleted(id, true);
        return null;
      },
      restore_conversation: ({ id }) => {
        this.#store.setDeleted(id, false);
        return null;
      },
      set_system_prompt: ({ id, system }) => this.#store.setSystem(id, system),
      choose_branch: ({ leaf }) => {
        this.#store.setLeaf(leaf);
        return null;
      },
      search_conversations: ({ query }) => this.#store.search(query),
      export_conversation: () => null,
      save_answer: () => null,
      import_conversation: ({ path }) => this.#import(path),
      preferences: () => Object.fromEntries(this.#preferences),
      set_preference: ({ key, value }) => {
        this.#preferences.set(key, structuredClone(value));
        return null;
      },
      read_suite: ({ path }) => this.#readSuite(path),
      compare: (_, send) => this.#compare(send),
      compare_snapshot: ({ id, from }) => this.#measurement(id).snapshot(from),
      stop_measurement: ({ id }) => {
        if (!this.#training.stop(id) && !this.#lab.stop(id)) this.#measurement(id).stop();
        return null;
      },
      list_comparisons: () => this.#comparisons.list(),
      open_comparison: ({ id }) => this.#comparisons.open(id),
      delete_comparison: ({ id }) => {
        this.#comparisons.remove(id);
        return null;
      },
      export_comparison: () => null,
    };
  }

  /** Counts a text for each source, and a token for each word, as `#tokens` splits them. */
  #chooseTexts(sources: string[]): LoadedModels | null {
    const texts = sources.filter((source) => source !== 'my-conversations').map((path) => this.#app.texts?.[path]);
    const broken = texts.find((text) => typeof text !== 'string');
    if (broken !== undefined || texts.includes(undefined))
      throw broken ?? refusal('io', 'Could not read the texts: No such file or directory.');
    this.#textSources = sources;
    const { loaded } = this.#app.info;
    if (!loaded) return null;
    const rest = { ...loaded };
    delete rest.texts;
    const tokens = texts.reduce((sum, text) => sum + (typeof text === 'string' ? this.#tokens(text).length : 0), 0);
    const used = sources.length > 0 && { texts: { texts: sources.length, tokens, cut: false } };
    // As the engine: methods that need texts can be used with some, and only then.
    const needing = this.#app.info.methods.filter(({ needs_texts }) => needs_texts).map(({ name }) => name);
    const others = rest.methods.filter((name) => !needing.includes(name));
    const methods = sources.length > 0 ? [...others, ...needing] : others;
    this.#app.info = { ...this.#app.info, loaded: { ...rest, methods, ...used } };
    return this.#app.info.loaded;
  }

  #nextPick(): string | null {
    return this.#app.picks[this.#picked++] ?? null;
  }

  /** Counts a token for each word, as `#tokens` splits them. */
  #readAttachment(path: string): ReadAttachment {
    const text = this.#app.texts?.[path];
    if (text === undefined) throw refusal('io', `Could not read ${path}: No such file or directory.`);
    if (typeof text !== 'string') throw text;
    const attachment = { name: path.split('/').at(-1) ?? path, text };
    return { attachment, tokens: this.#app.info.loaded ? this.#tokens(text).length : null };
  }

  #readSuite(path: string): SuiteFile {
    const suite = this.#app.suites?.[path];
    if (!suite) throw refusal('io', `Could not read ${path}: No such file or directory.`);
    if ('code' in suite) throw suite;
    return suite;
  }

  #repairStore(remedy: StoreRemedy): AppInfo {
    const problem = this.#app.info.store_problem;
    const accepted = problem !== null && remedy.type === 'stay_in_memory' ? { ...problem, accepted: true } : null;
    this.#app.info = { ...this.#app.info, store_problem: accepted };
    return this.#app.info;
  }

  #import(path: string): number {
    const imported = this.#app.imports?.[path];
    if (!imported) throw refusal('io', `“${path}” is not an exported conversation. Choose another file.`);
    return this.#store.add(imported);
  }

  async #load(request: LoadRequest): Promise<LoadedModels> {
    await this.#readModels(request);
    const failing = [request.target, request.draft ?? ''].find((path) => path in this.#app.load_errors);
    if (failing !== undefined) throw this.#app.load_errors[failing];
    return this.#take(request);
  }

  /** Plays the reading of the files until it is cancelled. */
  async #readModels({ target, draft }: LoadRequest): Promise<void> {
    const steps = 4;
    let cancelled = false;
    this.#cancelLoading = () => (cancelled = true);
    const copy = draft === null ? undefined : this.#library.unwrittenCopy(draft);
    const known = this.#app.models.filter(({ path, name }) => [target, draft].includes(path) || [target, draft].includes(name));
    const total = known.reduce((sum, model) => sum + model.size_bytes, 0);
    for (let step = 1; step <= steps; step += 1) {
      await new Promise<void>((resolve) => this.#playback.later(this.#app.load_ms / steps, resolve));
      if (cancelled) throw refusal('stopped', 'Loading was cancelled. The models loaded before are still loaded.');
      const progress = {
        name: known[0]?.name ?? target,
        ...(copy && { writes_copy: true }),
        done_bytes: (total * step) / steps,
        total_bytes: total,
      };
      if (total > 0) this.#library.send({ kind: 'loading', progress });
    }
    if (copy) copy.written = true;
  }

  #take(request: LoadRequest): LoadedModels {
    const target = this.#model(request.target);
    const draft = request.draft === null ? null : (this.#library.lowBitCopy(request.draft) ?? this.#model(request.draft));
    const fit = this.#library.fit(request);
    if (fit?.verdict === 'too_large')
      throw refusal(
        'out_of_memory',
        'The models and their caches do not fit into the memory of this machine. Nothing was loaded; choose a smaller context or a smaller model.',
      );
    const head = this.#library.headOf(request.head);
    const methods: LoadedModels['methods'] = draft
      ? ['plain', 'auto', 'draft-model', 'ngram']
      : head
        ? ['plain', 'auto', 'ngram-head', 'head', 'ngram']
        : ['plain', 'auto', 'ngram'];
    const loaded = {
      target,
      draft,
      ...(head && { head }),
      context: fit?.context ?? target.context_length,
      device: this.#app.info.device,
      methods,
    };
    this.#app.info.loaded = loaded;
    return loaded;
  }

  #unload(): void {
    this.#app.info.loaded = null;
    this.#library.send({ kind: 'unloaded' });
  }

  async #measurePair(request: LoadRequest, send: (message: CompareMessage) => void): Promise<number> {
    await this.#readModels(request);
    const { target, draft } = this.#take(request);
    return this.#compare(send, (report, comparison) => {
      const best = report.lanes.slice(1).reduce((fastest, lane) => (lane.speedup > fastest.speedup ? lane : fastest));
      if (draft)
        this.#library.measured(target.name, draft.name, {
          speedup: best.speedup,
          method: best.config.method,
          ended_ms: report.ended_ms,
          comparison,
        });
    });
  }

  /** Splits a text into words with their leading space. Numbers depend on the text alone. */
  #tokens(text: string): TextToken[] {
    if (!this.#app.info.loaded) throw refusal('no_model', 'No model is loaded. Open a model first.');
    const pieces = text.match(/<\|\w+\|>| ?[\p{L}\p{N}]+|[^]/gu) ?? [];
    const idOf = (piece: string) => [...piece].reduce((id, letter) => (31 * id + (letter.codePointAt(0) ?? 0)) % 49_152, 7);
    return pieces.map((piece) => ({ id: idOf(piece), text: piece }));
  }

  #model(path: string): ModelEntry {
    const found = this.#app.models.find((model) => model.path === path || model.name === path);
    if (!found) throw refusal('model_not_found', `No model called "${path}" was found. Choose another file.`);
    return found;
  }

  #startAnswer(request: AnswerRequest, send: (message: StreamMessage) => void): Answering {
    const { begun, undo } = this.#store.begin(request, this.#writer(request));
    try {
      const generation_id = this.#play(send, (message) => this.#store.keep(begun.answer, message.events));
      return { ...begun, generation_id };
    } catch (refused) {
      undo();
      throw refused;
    }
  }

  /** Names of the one who answers. */
  #writer({ by }: AnswerRequest): Pick<AnswerSettings, 'target' | 'draft' | 'server'> {
    if (by?.kind === 'server') return { target: by.model, draft: null, server: by.address };
    const loaded = this.#app.info.loaded;
    if (!loaded) throw refusal('no_model', 'No model is loaded. Open a model first.');
    return { target: loaded.target.name, draft: loaded.draft?.name ?? null };
  }

  #play(send: (message: StreamMessage) => void, keep: (message: StreamMessage) => void): number {
    const id = this.#generations.length + 1;
    const recording = this.#recordings[Math.min(id, this.#recordings.length) - 1];
    if (!recording) throw refusal('internal', 'There is nothing to replay.');
    const generation = new ReplayedGeneration(id, recording, this.#playback, send, keep);
    this.#generations.push(generation);
    if (recording.reject) throw recording.reject;
    generation.start();
    return id;
  }

  async #compare(
    send: (message: CompareMessage) => void,
    kept: (report: ComparisonReport, id: number) => void = () => {},
  ): Promise<number> {
    if (!this.#app.info.loaded) throw refusal('no_model', 'No model is loaded. Open a model first.');
    const recording = await this.#comparison();
    const id = this.#measurements.length + 1;
    const keep = (report: ComparisonReport) => {
      const number = this.#comparisons.keep(report);
      kept(report, number);
      return number;
    };
    const measurement = new ReplayedComparison(id, recording, this.#playback, send, keep);
    this.#measurements.push(measurement);
    measurement.start();
    return id;
  }

  #measurement(id: number): ReplayedComparison {
    const found = this.#measurements.find((measurement) => measurement.id === id);
    if (!found) throw refusal('invalid_request', 'There is no such measurement.');
    return found;
  }

  #generation(id: number): ReplayedGeneration {
    const found = this.#generations.find((generation) => generation.id === id);
    if (!found) throw refusal('invalid_request', 'There is no such generation.');
    return found;
  }
}
