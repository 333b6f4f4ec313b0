// The window's state in one place: settings, models, conversation, and what is pointed at. No DOM.

import type { Host } from '../host';
import type { AnswerOrigin } from '../origin';
import type { Answer, TokenDetail } from './answer.svelte';
import { Conversation } from './conversation.svelte';
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
  pointed = $state.raw<Pointed | null>(null);
  /** The one origin that is not dimmed; null dims none. */
  only = $state<AnswerOrigin | null>(null);

  constructor(host: Host) {
    this.settings = new Settings();
    this.models = new Models(host, this.settings);
    this.conversation = new Conversation(host, this.settings);
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

  /** Does what a native menu item asks for. */
  choose(item: string): void {
    if (item === 'new-conversation') this.newConversation();
    else if (item === 'open-model') void this.models.openTarget();
    else if (item === 'open-draft') void this.models.openDraft();
    else if (item === 'stop') this.conversation.stop();
  }
}
