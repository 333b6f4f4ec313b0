// The window's state in one place: settings, models, conversation, and what is pointed at. No DOM.

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
import { Conversation, type Told } from './conversation.svelte';
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
import { Shelf } from './shelf.svelte';
import { TokenFocus } from './tokenFocus.svelte';
import { Unsent } from './unsent.svelte';
import type { ColourMode, LibraryPart, Place } from '../strings/keys';

/** A message that a search has found, to be brought before the reader. */
export interface Sought {
  message: number;
}

/** Actions that need the DOM; the window sets them once it is drawn. */
export interface Screen {
  /** Puts the caret where the next question is typed; in another place than the chat, gives it the focus. */
  compose: () => void;
  /** Puts the caret into the search for conversations; in the library, into that for models. */
  search: () => void;
  /** Puts the caret where the title of a conversation in the list is typed. */
  rename: (entry: ConversationEntry) => void;
  /** Puts the caret where the name of a repository is typed, which the library shows. */
  repository: () => void;
  /** Copies, and says so. */
  copy: (text: string) => unknown;
}

/** Everything the window shows. */
export class WindowState {
  readonly preferences: Preferences;
  readonly settings: Settings;
  /** The models on this machine. */
  readonly library: Library;
  /** How they are gone through. */
  readonly shelf: Shelf;
  readonly models: Models;
  /** The one that is looked at, and its drafts. */
  readonly pairing: Pairing;
  /** The target in memory, and its drafts. */
  readonly drafting: Pairing;
  readonly catalogue: Catalogue;
  readonly downloads: Downloads;
  readonly conversation: Conversation;
  /** What was typed and is in no conversation yet. */
  readonly unsent: Unsent;
  readonly conversations: Conversations;
  readonly comparison: Comparison;
  readonly comparisonPlan: ComparisonPlan;
  readonly comparisons: Comparisons;
  readonly lab: Lab;
  /** Files that are dragged onto the window. */
  readonly drop: Drop;
  readonly tokens = new TokenFocus();
  readonly links: LinkQuestion;
  /** What the conversation is to show next; null once it has. */
  sought = $state.raw<Sought | null>(null);
  /** What the window shows. What goes on elsewhere goes on. */
  place = $state<Place>('chat');
  /** What the library shows. */
  libraryPart = $state<LibraryPart>('here');
  /** What lies over the window. */
  sheet = $state<'palette' | 'settings' | null>(null);
  /** The turn whose question is to be asked differently, until it is. */
  toEdit = $state<string | null>(null);
  /** What was done a moment ago, in a word. */
  notice = $state<string | null>(null);
  /** What could not be done a moment ago, and what can. */
  complaint = $state<string | null>(null);
  /** Does what only the screen can; nothing before there is one. */
  screen: Screen = { compose: () => {}, search: () => {}, rename: () => {}, repository: () => {}, copy: () => {} };

  readonly #host: Host;
  /** Set while nobody can see the window. */
  #hidden = false;

  constructor(host: Host) {
    this.#host = host;
    this.preferences = new Preferences(host);
    this.settings = new Settings();
    this.library = new Library(host);
    this.shelf = new Shelf(this.library);
    const complain = (text: string) => (this.complaint = text);
    const notify = (text: string) => (this.notice = text);
    this.models = new Models(host, this.settings, { library: this.library, preferences: this.preferences, complain });
    this.downloads = new Downloads(host, {
      arrived: () => void this.#libraryChanged(),
      begun: () => void this.catalogue.askHubAgain(),
    });
    this.catalogue = new Catalogue(host, this.library, this.downloads);
    this.conversations = new Conversations(host, notify);
    this.unsent = new Unsent(this.preferences);
    const told: Told = {
      changed: () => void this.conversations.refresh(),
      ready: () => this.models.restore(),
      refusedElsewhere: (error) => complain(language.strings.conversation.refusedElsewhere(errorLine(error))),
    };
    this.conversation = new Conversation(host, this.settings, undefined, told, this.unsent);
    this.comparisons = new Comparisons(host, notify);
    this.comparison = new Comparison(host, () => this.#compared());
    this.pairing = new Pairing(host, { models: this.models, comparison: this.comparison });
    this.drafting = new Pairing(host, { models: this.models, comparison: this.comparison });
    this.comparisonPlan = new ComparisonPlan(this.models, { settings: this.settings, busy: () => this.conversation.running });
    this.lab = new Lab(host, this.models, this.settings, this.conversation);
    this.links = new LinkQuestion(host, { copy: (text) => this.screen.copy(text), notify });
    this.drop = new Drop(this.models, {
      bring: (paths) => this.#bringFiles(paths),
      complain,
    });
  }

  /** Asks for everything there is, and hears from then on what happens to the library. */
  async start(): Promise<void> {
    void this.#listConversations();
    // First, so that loading is heard too.
    try {
      this.downloads.take(await watchLibrary(this.#host, (event) => this.#hear(event)));
      // It may have been hidden before there was anything to pause.
      if (this.#hidden) this.hide(true);
    } catch (thrown) {
      this.library.error = toErrorInfo(thrown);
    }
    await this.models.start();
  }

  /** Tells the engine whether anybody can see the window: the folders of models are not watched while nobody can. */
  hide(hidden: boolean): void {
    this.#hidden = hidden;
    // Where that fails, they are watched as before.
    void call(this.#host, 'set_window_hidden', { hidden }).catch(() => {});
  }

  async #listConversations(): Promise<void> {
    await this.conversations.refresh();
    // A list that could not be read says nothing of what is there.
    if (this.conversations.error === null) this.unsent.keepOnly(this.conversations.entries.map(({ id }) => id));
  }

  #hear(event: LibraryEvent): void {
    switch (event.kind) {
      case 'changed':
        return void this.#libraryChanged();
      case 'download':
      case 'download_gone':
        return this.downloads.hear(event);
      case 'loading':
        this.comparison.hearLoading();
        return this.models.hearProgress(event.progress);
      case 'unloaded':
        return this.models.hearUnloaded(this.models.loading !== null || this.comparison.running);
    }
  }

  /** Does what the person chose about the file of conversations, and shows what is in it. */
  async mendStore(remedy: StoreRemedy): Promise<void> {
    if (!(await this.models.mendStore(remedy)) || remedy.type === 'go_without') return;
    this.conversation.clear();
    await this.#listConversations();
  }

  async #libraryChanged(): Promise<void> {
    await this.library.refresh();
    this.#refreshPairs();
  }

  /** A comparison has ended: there may be another, and it may have loaded and measured a pair. */
  #compared(): void {
    void this.comparisons.refresh();
    void this.models.refresh();
    this.#refreshPairs();
  }

  /** Only what is on screen is asked about at once; the rest when it is shown. */
  #refreshPairs(): void {
    if (this.place === 'library') this.pairing.refresh();
    else this.pairing.outdate();
    this.drafting.outdate();
  }

  /** Goes on from the token on the card with another one in its place. */
  async branch(token: number): Promise<void> {
    const { pointed } = this.tokens;
    this.tokens.unpin();
    if (pointed) await this.conversation.branch(pointed.answer, pointed.detail.index, token);
  }

  /** Shows in the lab what happens at the place of the token on the card. */
  showInLab(): void {
    const { pointed } = this.tokens;
    const turn = this.conversation.turns.find(({ answer }) => answer === pointed?.answer);
    if (!pointed || typeof turn?.answerId !== 'number') return;
    this.goTo('lab');
    void this.lab.show(turn.answerId, pointed.detail.index);
    this.screen.compose();
  }

  /** Has the colours say something else. */
  colourBy(mode: ColourMode): void {
    this.tokens.only = null;
    void this.preferences.set('colourMode', mode);
  }

  /** Shows another place of the window. */
  goTo(place: Place): void {
    this.tokens.unpin();
    this.tokens.only = null;
    this.place = place;
  }

  /** Shows a part of the library. */
  showLibrary(part: LibraryPart = 'here'): void {
    this.goTo('library');
    this.libraryPart = part;
  }

  /** Loads the model that is looked at with what is chosen for it. Does nothing while something runs on the one in memory. */
  loadShown(): void {
    if (!this.running) void this.pairing.load();
  }

  /** Shows a comparison of the history. */
  showComparison(id: number): void {
    this.goTo('compare');
    void this.comparison.open(id);
  }

  /** Begins a new conversation. */
  newConversation(): void {
    this.goTo('chat');
    this.conversation.clear();
  }

  /** Opens a conversation; at a message if one is named, on whose branch the reader is then. */
  async openConversation(id: number, message: number | null = null): Promise<void> {
    this.goTo('chat');
    const { conversation } = this;
    try {
      await conversation.open(id);
      // Something else may have been opened meanwhile.
      if (message === null || conversation.id !== id) return;
      const choosing = conversation.shows(message) ? null : conversation.choose(message);
      this.sought = { message };
      await choosing;
    } catch (thrown) {
      this.conversations.error = toErrorInfo(thrown);
    }
  }

  /** Shows the conversation in which an answer is being written. */
  showWriting(): void {
    this.goTo('chat');
    this.conversation.showWriting();
  }

  /** Deletes a conversation, and stops the answer that is being written in it; when it is on screen, a new one takes its
   * place. */
  async deleteConversation(entry: ConversationEntry): Promise<void> {
    if (entry.id === this.conversation.writing) this.stop();
    const deleted = await this.conversations.remove(entry);
    if (deleted && entry.id === this.conversation.id) this.newConversation();
  }

  /** Puts back what was deleted last. */
  async undoDelete(): Promise<void> {
    await this.#openQuietly(await this.conversations.undo());
  }

  /** Adds a conversation from a file. */
  async importConversation(): Promise<void> {
    await this.#openQuietly(await this.conversations.bring());
  }

  /** Adds conversations from files. */
  async #bringFiles(paths: readonly string[]): Promise<void> {
    await this.#openQuietly(await this.conversations.bringFiles(paths));
  }

  /** Opens a conversation that has come, unless the reader is watching an answer being written: it is in the list. */
  async #openQuietly(id: number | null): Promise<void> {
    if (id !== null && !this.conversation.writingHere) await this.openConversation(id);
  }

  /** Keeps the instructions and settings of now under a name. */
  savePreset(name: string): void {
    this.preferences.savePreset({ name, system: this.conversation.system, settings: this.settings.chosen() });
  }

  /** Takes instructions and settings from a preset. */
  usePreset({ name, system, settings }: Preset): void {
    this.settings.choose(settings, this.models.loaded);
    this.notice = language.strings.notices.presetUsed(name);
    if (system !== this.conversation.system) void this.conversation.instruct(system);
  }

  /** Whether something runs that a stop ends. */
  get running(): boolean {
    return this.conversation.running || this.comparison.running;
  }

  /** Whether what runs is on screen: then Escape stops it. */
  get runningHere(): boolean {
    const { comparison, conversation, place } = this;
    if (conversation.running) return place === 'chat' && conversation.writingHere;
    if (!comparison.running) return false;
    return place === 'compare' || (place === 'library' && this.libraryPart === 'here' && this.pairing.measures);
  }

  /** Stops what runs, in whatever place: the answer, else the comparison. An answer that waits for its models does not
   * wait any longer. */
  stop(): void {
    if (this.conversation.running && this.models.loading !== null) void this.models.cancel();
    if (this.conversation.running) this.conversation.stop();
    else if (this.comparison.running) this.comparison.stop();
  }

  /** Logs what failed. */
  report(kind: ProblemKind, thrown: unknown): void {
    reportProblem(this.#host, kind, thrown);
  }

  /** Shows the log in the system's file manager. */
  async showLog(): Promise<void> {
    try {
      await call(this.#host, 'show_log', {});
    } catch (thrown) {
      this.complaint = errorLine(toErrorInfo(thrown));
    }
  }

  /** Has the native menu speak the window's language, as is usual on this system. */
  labelMenu(platform: 'mac' | 'other'): void {
    const { menu, menuElsewhere } = language.strings;
    this.#host.labelMenu(platform === 'mac' ? menu : { ...menu, ...menuElsewhere });
  }
}
