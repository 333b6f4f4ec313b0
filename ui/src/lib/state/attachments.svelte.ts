// Text files of the next question: choosing, reading and removing them. No DOM.

import { errorLine } from '../errors';
import { formatCount } from '../format';
import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { Attachment, ReadAttachment } from '../ipc/schema.gen';
import { language } from '../strings/index.svelte';
import type { ActiveConversation } from './conversation.svelte';
import type { MessageDrafts } from './messageDrafts.svelte';
import type { Models } from './models.svelte';
import type { Settings } from './settings.svelte';

/** Other state and functions of the window that attaching needs. */
export interface AttachmentDependencies {
  conversation: Pick<ActiveConversation, 'id'>;
  messageDrafts: MessageDrafts;
  models: Pick<Models, 'loaded'>;
  settings: Pick<Settings, 'range'>;
  reportFailure: (text: string) => void;
}

/** Size of a file's text, in bytes. */
export const bytesOf = ({ text }: Attachment): number => new TextEncoder().encode(text).length;

/** Files of the next question in the conversation on screen. */
export class Attachments {
  readonly #host: Host;
  readonly #on: AttachmentDependencies;
  /** Their tokens, as far as they were counted. */
  tokens = $derived.by(() => this.files.reduce((sum, { tokens }) => sum + (tokens ?? 0), 0));
  /** Context of the loaded model that they exceed; null if they fit. */
  exceeded = $derived.by(() => {
    const context = this.#on.models.loaded?.context ?? Infinity;
    return this.tokens >= context ? context : null;
  });

  constructor(host: Host, dependencies: AttachmentDependencies) {
    this.#host = host;
    this.#on = dependencies;
  }

  /** The files. */
  get files(): readonly ReadAttachment[] {
    return this.#on.messageDrafts.filesOf(this.#on.conversation.id);
  }

  /** Attaches files chosen by the user. */
  async choose(): Promise<void> {
    const { conversation, reportFailure } = this.#on;
    const place = conversation.id;
    try {
      const title = language.strings.dialogs.attachFiles;
      await this.#read(place, await call(this.#host, 'choose_attachments', { title }));
    } catch (thrown) {
      reportFailure(errorLine(toErrorInfo(thrown)));
    }
  }

  /** Attaches dropped files. */
  async add(paths: readonly string[]): Promise<void> {
    await this.#read(this.#on.conversation.id, paths);
  }

  /** Removes a file. */
  remove(file: ReadAttachment): void {
    const { conversation, messageDrafts } = this.#on;
    messageDrafts.attach(
      conversation.id,
      this.files.filter((other) => other !== file),
    );
  }

  /** Reads files one by one and attaches those that can be read. Reports the first failure. */
  async #read(place: number | null, paths: readonly string[]): Promise<void> {
    const { messageDrafts, reportFailure, settings } = this.#on;
    const most = settings.range('attached_files').max;
    let failure: string | null = null;
    for (const path of paths) {
      if (messageDrafts.filesOf(place).length >= most) {
        failure ??= language.strings.composer.tooManyFiles(formatCount(most));
        break;
      }
      try {
        const file = await call(this.#host, 'read_attachment', { path });
        // A file that was changed since replaces its earlier text.
        const others = messageDrafts.filesOf(place).filter(({ attachment }) => attachment.name !== file.attachment.name);
        messageDrafts.attach(place, [...others, file]);
      } catch (thrown) {
        failure ??= errorLine(toErrorInfo(thrown));
      }
    }
    if (failure !== null) reportFailure(failure);
  }
}
