// Moves between conversations: opening, creating, deleting, importing. No DOM.

import { toErrorInfo } from '../ipc/rpc';
import type { ConversationEntry, ModelEntry } from '../ipc/schema.gen';
import type { ActiveConversation } from './conversation.svelte';
import type { Conversations } from './conversations.svelte';
import type { MessageDrafts } from './messageDrafts.svelte';
import type { Models } from './models.svelte';
import type { ServerChoice } from './preferences.svelte';
import type { Servers } from './servers.svelte';
import type { Answerer } from './answerer.svelte';
import type { Navigation } from './navigation.svelte';
import type { TokenFocus } from './tokenFocus.svelte';
import type { Turn } from './thread.svelte';
import type { Work } from './work.svelte';

/** A search hit to scroll to. */
interface ScrollTarget {
  message: number;
}

/** Other state of the chat. */
interface ChatDependencies {
  conversation: ActiveConversation;
  conversations: Conversations;
  messageDrafts: MessageDrafts;
  models: Models;
  answerer: Pick<Answerer, 'useLoaded'>;
  servers: Pick<Servers, 'choose'>;
  navigation: Navigation;
  tokens: TokenFocus;
  work: Work;
}

/** The chat: the conversation on screen and the list. */
export class Chat {
  /** Message to scroll to; null once done. */
  scrollTarget = $state.raw<ScrollTarget | null>(null);
  /** Key of the turn to edit, until its editor opens. */
  toEdit = $state<string | null>(null);

  readonly #on: ChatDependencies;

  constructor(dependencies: ChatDependencies) {
    this.#on = dependencies;
  }

  /** Loads the list. Drafts of conversations that are gone are deleted. */
  async list(): Promise<void> {
    const { conversations, messageDrafts } = this.#on;
    await conversations.refresh();
    // An unreadable list does not mean that conversations are gone.
    if (conversations.error === null) messageDrafts.keepOnly(conversations.entries.map(({ id }) => id));
  }

  /** Starts a new conversation. */
  create(): void {
    this.#on.navigation.goTo('chat');
    this.#on.conversation.clear();
  }

  /** Opens a conversation, at a message and its branch if one is given. */
  async open(id: number, message: number | null = null): Promise<void> {
    const { conversation, conversations, navigation } = this.#on;
    navigation.goTo('chat');
    try {
      await conversation.open(id);
      // Another one may have been opened meanwhile.
      if (message === null || conversation.id !== id) return;
      const choosing = conversation.shows(message) ? null : conversation.choose(message);
      this.scrollTarget = { message };
      await choosing;
    } catch (thrown) {
      conversations.error = toErrorInfo(thrown);
    }
  }

  /** Shows the conversation of the answer being written. */
  showWriting(): void {
    this.#on.navigation.goTo('chat');
    this.#on.conversation.showWriting();
  }

  /** Shows the conversation of a queued question. */
  showQueued(turn: Turn): void {
    this.#on.navigation.goTo('chat');
    this.#on.conversation.showQueued(turn);
  }

  /** Branches the answer at the token of the card, with another token. */
  async branch(token: number): Promise<void> {
    const { conversation, tokens } = this.#on;
    const { pointed } = tokens;
    tokens.unpin();
    if (pointed) await conversation.branch(pointed.answer, pointed.detail.index, token);
  }

  /** Loads another model and regenerates an answer with it, on a new branch. Another conversation opened meanwhile
   * cancels that, and the model stays. */
  async answerWith(model: ModelEntry, { question }: Pick<Turn, 'question'>): Promise<void> {
    const { answerer, conversation, models, work } = this.#on;
    if (work.running || question === null) return;
    await answerer.useLoaded(model);
    const turn = conversation.turns.find((other) => other.question === question);
    if (turn && models.loaded?.target.path === model.path) await conversation.regenerate(turn);
  }

  /** Regenerates an answer with the model of a server, on a new branch. */
  async answerWithServer(choice: ServerChoice, { question }: Pick<Turn, 'question'>): Promise<void> {
    const { conversation, servers, work } = this.#on;
    if (work.running || question === null) return;
    servers.choose(choice);
    const turn = conversation.turns.find((other) => other.question === question);
    if (turn) await conversation.regenerate(turn);
  }

  /** Deletes a conversation and stops its answer. If it is on screen, a new one replaces it. */
  async delete(entry: ConversationEntry): Promise<void> {
    const { conversation, conversations, work } = this.#on;
    if (entry.id === conversation.writing) work.stop();
    if (!(await conversations.remove(entry))) return;
    conversation.cancelQueuedIn(entry.id);
    // The question may have been asked meanwhile.
    if (entry.id === conversation.writing) work.stop();
    if (entry.id === conversation.id) this.create();
  }

  /** Undoes the last deletion. */
  async undoDelete(): Promise<void> {
    await this.#openQuietly(await this.#on.conversations.undo());
  }

  /** Imports a conversation chosen by the user. */
  async import(): Promise<void> {
    await this.#openQuietly(await this.#on.conversations.importChosen());
  }

  /** Imports conversations from files. Returns the files that are no exported conversations. */
  async importFiles(paths: readonly string[]): Promise<readonly string[]> {
    const { added, others } = await this.#on.conversations.importFiles(paths);
    await this.#openQuietly(added);
    return others;
  }

  /** Opens a new conversation of the list, unless the reader watches an answer being written. */
  async #openQuietly(id: number | null): Promise<void> {
    if (id !== null && !this.#on.conversation.writingHere) await this.open(id);
  }
}
