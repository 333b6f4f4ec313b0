// State of the window: settings, models, conversations, screens. No DOM.

import { errorLine } from '../errors';
import type { Host } from '../host';
import { call, toErrorInfo, watchLibrary } from '../ipc/rpc';
import type { ConversationEntry, LibraryEvent, StoreRemedy } from '../ipc/schema.gen';
import { reportProblem, type ProblemKind } from '../ipc/problems';
import { language } from '../strings/index.svelte';
import { Catalogue } from './catalogue.svelte';
import { Comparison } from './comparison.svelte';
import { ComparisonPlan } from './comparisonPlan.svelte';
import { Comparisons } from './comparisons.svelte';
import { Conversation, type ConversationCallbacks } from './conversation.svelte';
import { Conversations } from './conversations.svelte';
import { Downloads } from './downloads.svelte';
import { Drop } from './drop.svelte';
import { Lab } from './lab.svelte';
import { Library } from './library.svelte';
import { LinkQuestion } from './linkQuestion.svelte';
import { Models } from './models.svelte';
import { Pairing } from './pairing.svelte';
import { Preferences, type Preset } from './preferences.svelte';
import { Settings } from './settings.svelte';
import { ModelList } from './modelList.svelte';
import { TokenFocus } from './tokenFocus.svelte';
import { MessageDrafts } from './messageDrafts.svelte';
import type { ColourMode, LibraryPart, Place } from '../strings/keys';

/** A search hit to scroll to. */
export interface ScrollTarget {
  message: number;
}

/** Actions that need the DOM. The window sets them once it is drawn. */
export interface Screen {
  /** Focuses the composer, or the current screen where there is none. */
  compose: () => void;
  /** Focuses the search field of the current screen. */
  search: () => void;
  /** Starts renaming a conversation in the list. */
  rename: (entry: ConversationEntry) => void;
  /** Focuses the field for a repository in the library. */
  repository: () => void;
  /** Copies a text and shows a notice. */
  copy: (text: string) => unknown;
}

/** The state of the window. */
export class WindowState {
  readonly preferences: Preferences;
  readonly settings: Settings;
  /** Models of this machine. */
  readonly library: Library;
  /** The list of models with its filters. */
  readonly modelList: ModelList;
  readonly models: Models;
  /** The selected model and its drafts. */
  readonly pairing: Pairing;
  /** The loaded target and its drafts. */
  readonly drafting: Pairing;
  readonly catalogue: Catalogue;
  readonly downloads: Downloads;
  readonly conversation: Conversation;
  /** Unsent text. */
  readonly messageDrafts: MessageDrafts;
  readonly conversations: Conversations;
  readonly comparison: Comparison;
  readonly comparisonPlan: ComparisonPlan;
  readonly comparisons: Comparisons;
  readonly lab: Lab;
  /** Drags of files over the window. */
  readonly drop: Drop;
  readonly tokens = new TokenFocus();
  readonly links: LinkQuestion;
  /** Message to scroll to; null once done. */
  scrollTarget = $state.raw<ScrollTarget | null>(null);
  /** The current screen. Work on other screens continues. */
  place = $state<Place>('chat');
  /** The current part of the library. */
  libraryPart = $state<LibraryPart>('here');
  /** The open sheet. */
  sheet = $state<'palette' | 'settings' | null>(null);
  /** Key of the turn to edit, until its editor opens. */
  toEdit = $state<string | null>(null);
  /** Notice of a recent action. */
  notice = $state<string | null>(null);
  /** Recent failure with its remedy. */
  failure = $state<string | null>(null);
  /** DOM actions; nothing until the window is drawn. */
  screen: Screen = { compose: () => {}, search: () => {}, rename: () => {}, repository: () => {}, copy: () => {} };

  readonly #host: Host;
  /** `true` if the window is hidden. */
  #hidden = false;

  constructor(host: Host) {
    this.#host = host;
    this.preferences = new Preferences(host);
    this.settings = new Settings();
    this.library = new Library(host);
    this.modelList = new ModelList(this.library);
    const reportFailure = (text: string) => (this.failure = text);
    const notify = (text: string) => (this.notice = text);
    this.models = new Models(host, this.settings, { library: this.library, preferences: this.preferences, reportFailure });
    this.downloads = new Downloads(host, {
      arrived: () => void this.#libraryChanged(),
      begun: () => void this.catalogue.askHubAgain(),
    });
    this.catalogue = new Catalogue(host, this.library, this.downloads);
    this.conversations = new Conversations(host, notify);
    this.messageDrafts = new MessageDrafts(this.preferences);
    const callbacks: ConversationCallbacks = {
      changed: () => void this.conversations.refresh(),
      ready: () => this.models.restore(),
      refusedElsewhere: (error) => reportFailure(language.strings.conversation.refusedElsewhere(errorLine(error))),
    };
    this.conversation = new Conversation(host, this.settings, undefined, callbacks, this.messageDrafts);
    this.comparisons = new Comparisons(host, notify);
    this.comparison = new Comparison(host, () => this.#compared());
    this.pairing = new Pairing(host, { models: this.models, comparison: this.comparison });
    this.drafting = new Pairing(host, { models: this.models, comparison: this.comparison });
    this.comparisonPlan = new ComparisonPlan(this.models, { settings: this.settings, busy: () => this.conversation.running });
    this.lab = new Lab(host, this.models, this.settings, this.conversation);
    this.links = new LinkQuestion(host, { copy: (text) => this.screen.copy(text), notify });
    this.drop = new Drop(this.models, {
      bring: (paths) => this.#bringFiles(paths),
      reportFailure,
    });
  }

  /** Loads everything, and subscribes to events of the library. */
  async start(): Promise<void> {
    void this.#listConversations();
    // First, so that events of loading are received too.
    try {
      this.downloads.take(await watchLibrary(this.#host, (event) => this.#onLibraryEvent(event)));
      // It may have been hidden before the watch started.
      if (this.#hidden) this.hide(true);
    } catch (thrown) {
      this.library.error = toErrorInfo(thrown);
    }
    await this.models.start();
  }

  /** Reports whether the window is visible. Folders of models are not watched while it is hidden. */
  hide(hidden: boolean): void {
    this.#hidden = hidden;
    // On failure they are watched as before.
    void call(this.#host, 'set_window_hidden', { hidden }).catch(() => {});
  }

  async #listConversations(): Promise<void> {
    await this.conversations.refresh();
    // An unreadable list does not mean that conversations are gone.
    if (this.conversations.error === null) this.messageDrafts.keepOnly(this.conversations.entries.map(({ id }) => id));
  }

  #onLibraryEvent(event: LibraryEvent): void {
    switch (event.kind) {
      case 'changed':
        return void this.#libraryChanged();
      case 'download':
      case 'download_gone':
        return this.downloads.onEvent(event);
      case 'loading':
        this.comparison.onLoading();
        return this.models.onProgress(event.progress);
      case 'gpu_tested':
      case 'store_problem':
        return void this.models.refreshInfo();
      case 'unloaded':
        return this.models.onUnloaded(this.models.loading !== null || this.comparison.running);
    }
  }

  /** Applies a remedy to the file of conversations, and reloads it. */
  async repairStore(remedy: StoreRemedy): Promise<void> {
    if (!(await this.models.repairStore(remedy)) || remedy.type === 'stay_in_memory') return;
    this.conversation.clear();
    await this.#listConversations();
  }

  async #libraryChanged(): Promise<void> {
    await this.library.refresh();
    this.#refreshPairs();
  }

  /** Reloads what a finished comparison may have changed: the history, the loaded models, measured pairs. */
  #compared(): void {
    void this.comparisons.refresh();
    void this.models.refresh();
    this.#refreshPairs();
  }

  /** Reloads visible pairs now, others when shown. */
  #refreshPairs(): void {
    if (this.place === 'library') this.pairing.refresh();
    else this.pairing.outdate();
    this.drafting.outdate();
  }

  /** Branches the answer at the token of the card, with another token. */
  async branch(token: number): Promise<void> {
    const { pointed } = this.tokens;
    this.tokens.unpin();
    if (pointed) await this.conversation.branch(pointed.answer, pointed.detail.index, token);
  }

  /** Shows the position of the card's token in the lab. */
  showInLab(): void {
    const { pointed } = this.tokens;
    const turn = this.conversation.turns.find(({ answer }) => answer === pointed?.answer);
    if (!pointed || typeof turn?.answerId !== 'number') return;
    this.goTo('lab');
    void this.lab.show(turn.answerId, pointed.detail.index);
    this.screen.compose();
  }

  /** Changes the colour mode. */
  colourBy(mode: ColourMode): void {
    this.tokens.only = null;
    void this.preferences.set('colourMode', mode);
  }

  /** Switches to another screen. */
  goTo(place: Place): void {
    this.tokens.unpin();
    this.tokens.only = null;
    this.place = place;
  }

  /** Switches to a part of the library. */
  showLibrary(part: LibraryPart = 'here'): void {
    this.goTo('library');
    this.libraryPart = part;
  }

  /** Loads the selected model with its choices. Does nothing while the loaded one is in use. */
  loadShown(): void {
    if (!this.running) void this.pairing.load();
  }

  /** Shows a comparison of the history. */
  showComparison(id: number): void {
    this.goTo('compare');
    void this.comparison.open(id);
  }

  /** Starts a new conversation. */
  newConversation(): void {
    this.goTo('chat');
    this.conversation.clear();
  }

  /** Opens a conversation, at a message and its branch if one is given. */
  async openConversation(id: number, message: number | null = null): Promise<void> {
    this.goTo('chat');
    const { conversation } = this;
    try {
      await conversation.open(id);
      // Another one may have been opened meanwhile.
      if (message === null || conversation.id !== id) return;
      const choosing = conversation.shows(message) ? null : conversation.choose(message);
      this.scrollTarget = { message };
      await choosing;
    } catch (thrown) {
      this.conversations.error = toErrorInfo(thrown);
    }
  }

  /** Shows the conversation of the answer being written. */
  showWriting(): void {
    this.goTo('chat');
    this.conversation.showWriting();
  }

  /** Deletes a conversation and stops its answer. If it is on screen, a new one replaces it. */
  async deleteConversation(entry: ConversationEntry): Promise<void> {
    if (entry.id === this.conversation.writing) this.stop();
    const deleted = await this.conversations.remove(entry);
    if (deleted && entry.id === this.conversation.id) this.newConversation();
  }

  /** Undoes the last deletion. */
  async undoDelete(): Promise<void> {
    await this.#openQuietly(await this.conversations.undo());
  }

  /** Imports a conversation chosen by the user. */
  async importConversation(): Promise<void> {
    await this.#openQuietly(await this.conversations.bring());
  }

  /** Imports conversations from files. */
  async #bringFiles(paths: readonly string[]): Promise<void> {
    await this.#openQuietly(await this.conversations.bringFiles(paths));
  }

  /** Opens a new conversation of the list, unless the reader watches an answer being written. */
  async #openQuietly(id: number | null): Promise<void> {
    if (id !== null && !this.conversation.writingHere) await this.openConversation(id);
  }

  /** Saves the current instructions and settings as a preset. */
  savePreset(name: string): void {
    this.preferences.savePreset({ name, system: this.conversation.system, settings: this.settings.chosen() });
  }

  /** Applies a preset. */
  usePreset({ name, system, settings }: Preset): void {
    this.settings.choose(settings, this.models.loaded);
    this.notice = language.strings.notices.presetUsed(name);
    if (system !== this.conversation.system) void this.conversation.instruct(system);
  }

  /** `true` if there is anything to stop. */
  get running(): boolean {
    return this.conversation.running || this.comparison.running;
  }

  /** `true` if the running work is on screen. Then Escape stops it. */
  get runningHere(): boolean {
    const { comparison, conversation, place } = this;
    if (conversation.running) return place === 'chat' && conversation.writingHere;
    if (!comparison.running) return false;
    return place === 'compare' || (place === 'library' && this.libraryPart === 'here' && this.pairing.measures);
  }

  /** Stops the answer, else the comparison, on any screen. An answer that waits for its models stops waiting. */
  stop(): void {
    if (this.conversation.running && this.models.loading !== null) void this.models.cancel();
    if (this.conversation.running) this.conversation.stop();
    else if (this.comparison.running) this.comparison.stop();
  }

  /** Logs a failure. */
  report(kind: ProblemKind, thrown: unknown): void {
    reportProblem(this.#host, kind, thrown);
  }

  /** Shows the log in the system's file manager. */
  async showLog(): Promise<void> {
    try {
      await call(this.#host, 'show_log', {});
    } catch (thrown) {
      this.failure = errorLine(toErrorInfo(thrown));
    }
  }

  /** Sets the labels of the native menu, in the conventions of the system. */
  labelMenu(platform: 'mac' | 'other'): void {
    const { menu, menuElsewhere } = language.strings;
    this.#host.labelMenu(platform === 'mac' ? menu : { ...menu, ...menuElsewhere });
  }
}
