// The window's state in one place: settings, models, conversation, and what is pointed at. No DOM.

import type { Host } from '../host';
import { toErrorInfo } from '../ipc/rpc';
import type { AnswerOrigin } from '../origin';
import type { Answer, TokenDetail } from './answer.svelte';
import type { ConversationEntry } from '../ipc/schema.gen';
import { Conversation } from './conversation.svelte';
import { Conversations } from './conversations.svelte';
import { Models } from './models.svelte';
import { Settings } from './settings.svelte';

/** A rectangle in the window, in pixels. */
export interface Anchor {
  left: number;
  right: number;
  top: number;
  bottom: number;
}

/** The token the card tells about. */
export interface Pointed {
  detail: TokenDetail;
  anchor: Anchor;
}

/** Everything the window shows. */
export class WindowState {
  readonly settings: Settings;
  readonly models: Models;
  readonly conversation: Conversation;
  readonly conversations: Conversations;
  pointed = $state.raw<Pointed | null>(null);
  /** The one origin that is not dimmed; null dims none. */
  only = $state<AnswerOrigin | null>(null);

  constructor(host: Host) {
    this.settings = new Settings();
    this.models = new Models(host, this.settings);
    this.conversations = new Conversations(host);
    const changed = () => void this.conversations.refresh();
    this.conversation = new Conversation(host, this.settings, undefined, { changed });
  }

  /** Tells about a token of an answer; a token that does not exist takes the card away. */
  point(answer: Answer, index: number, anchor: Anchor): void {
    const detail = answer.detail(index);
    this.pointed = detail ? { detail, anchor } : null;
  }

  /** Takes the card away. */
  unpoint(): void {
    this.pointed = null;
  }

  /** Dims every origin but this one; the same again dims none. */
  toggleOnly(origin: AnswerOrigin): void {
    this.only = this.only === origin ? null : origin;
  }

  /** Begins a new conversation. */
  newConversation(): void {
    this.unpoint();
    this.only = null;
    this.conversation.clear();
  }

  /** Opens a conversation, at the branch of a message if one is named. */
  async openConversation(id: number, message: number | null = null): Promise<void> {
    this.unpoint();
    this.only = null;
    try {
      await this.conversation.open(id);
      if (message !== null) await this.conversation.choose(message);
    } catch (thrown) {
      this.conversations.error = toErrorInfo(thrown);
    }
  }

  /** Deletes a conversation; when it is on screen, a new one takes its place. */
  async deleteConversation(entry: ConversationEntry): Promise<void> {
    if (entry.id === this.conversation.id) this.newConversation();
    await this.conversations.remove(entry);
  }

  /** Puts back what was deleted last, and opens it. */
  async undoDelete(): Promise<void> {
    const id = await this.conversations.undo();
    if (id !== null) await this.openConversation(id);
  }

  /** Adds a conversation from a file, and opens it. */
  async importConversation(): Promise<void> {
    const id = await this.conversations.bring();
    if (id !== null) await this.openConversation(id);
  }

  /** Does what a native menu item asks for. */
  choose(item: string): void {
    if (item === 'new-conversation') this.newConversation();
    else if (item === 'open-model') void this.models.openTarget();
    else if (item === 'open-draft') void this.models.openDraft();
    else if (item === 'stop') this.conversation.stop();
  }
}
