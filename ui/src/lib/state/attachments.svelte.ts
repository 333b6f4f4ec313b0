// Text files of the next question: choosing, reading and removing them. No DOM.

import { errorLine } from '../errors';
import { formatCount } from '../format';
import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { Attachment } from '../ipc/schema.gen';
import { Latest } from '../latest';
import { nameOf } from '../paths';
import { language } from '../strings/index.svelte';
import type { AttachedFile } from './attachedFile';
import type { ActiveConversation } from './conversation.svelte';
import type { MessageDrafts } from './messageDrafts.svelte';
import type { Models } from './models.svelte';
import type { Settings } from './settings.svelte';
import type { Place } from './thread.svelte';

/** Other state and functions of the window that attaching needs. */
interface AttachmentDependencies {
  conversation: Pick<ActiveConversation, 'place' | 'placing'>;
  messageDrafts: MessageDrafts;
  models: Pick<Models, 'loaded'>;
  settings: Pick<Settings, 'range'>;
  reportFailure: (text: string) => void;
}

/** A file being read, for a conversation that may get its number meanwhile. */
interface Reading {
  readonly path: string;
  readonly place: () => Place;
}

/** Files of the next question in the conversation on screen. */
export class Attachments {
  readonly #host: Host;
  readonly #on: AttachmentDependencies;
  readonly #counts = new Latest();
  #reading = $state.raw<readonly Reading[]>([]);
  /** Number of times that a file could not be read or had no room. */
  failures = $state(0);
  /** Their tokens, as far as the loaded model has counted them. */
  tokens = $derived.by(() => this.files.reduce((sum, file) => sum + (this.tokensOf(file) ?? 0), 0));
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
  get files(): readonly AttachedFile[] {
    return this.#on.messageDrafts.filesOf(this.#on.conversation.place);
  }

  /** Names of files that are still read. */
  get reading(): readonly string[] {
    const { place } = this.#on.conversation;
    return this.#reading.filter((one) => one.place() === place).map(({ path }) => nameOf(path));
  }

  get #model(): string | null {
    return this.#on.models.loaded?.target.path ?? null;
  }

  /** Tokens of a file in the loaded model; null if that has not counted them. */
  tokensOf({ tokens, countedBy }: AttachedFile): number | null {
    return countedBy !== null && countedBy === this.#model ? tokens : null;
  }

  /** Counts the tokens of files that another model has counted, or none. */
  async count(): Promise<void> {
    const { conversation, messageDrafts } = this.#on;
    const isLatest = this.#counts.start();
    const place = conversation.placing();
    const model = this.#model;
    const waiting = this.files.filter(({ countedBy }) => countedBy !== model);
    if (model === null || waiting.length === 0) return;
    // Looked up once, never drawn from.
    // eslint-disable-next-line svelte/prefer-svelte-reactivity
    const counted = new Map<Attachment, number>();
    try {
      for (const { attachment } of waiting) {
        counted.set(attachment, await call(this.#host, 'attachment_tokens', { text: attachment.text }));
        if (!isLatest() || this.#model !== model) return;
      }
    } catch {
      // The engine counts again before it answers.
      return;
    }
    const files = messageDrafts.filesOf(place()).map((file) => {
      const tokens = counted.get(file.attachment);
      return tokens === undefined ? file : { ...file, tokens, countedBy: model };
    });
    messageDrafts.attach(place(), files);
  }

  /** Attaches files chosen by the user. */
  async choose(): Promise<void> {
    const { conversation, reportFailure } = this.#on;
    const place = conversation.placing();
    try {
      const title = language.strings.dialogs.attachFiles;
      await this.#read(place, await call(this.#host, 'choose_attachments', { title }));
    } catch (thrown) {
      reportFailure(errorLine(toErrorInfo(thrown)));
    }
  }

  /** Attaches dropped files. */
  async add(paths: readonly string[]): Promise<void> {
    await this.#read(this.#on.conversation.placing(), paths);
  }

  /** Removes a file. */
  remove(file: AttachedFile): void {
    const { conversation, messageDrafts } = this.#on;
    messageDrafts.attach(
      conversation.place,
      this.files.filter((other) => other !== file),
    );
  }

  /** Reads files one by one and attaches those that can be read. Reports the first failure. */
  async #read(place: () => Place, paths: readonly string[]): Promise<void> {
    const { messageDrafts, reportFailure, settings } = this.#on;
    const most = settings.range('attached_files').max;
    const reading = paths.map((path): Reading => ({ path, place }));
    this.#reading = [...this.#reading, ...reading];
    let failure: string | null = null;
    for (const one of reading) {
      if (messageDrafts.filesOf(place()).length >= most) {
        failure ??= language.strings.composer.tooManyFiles(formatCount(most));
        break;
      }
      try {
        await this.#readOne(one);
      } catch (thrown) {
        failure ??= errorLine(toErrorInfo(thrown));
      }
      this.#reading = this.#reading.filter((other) => other !== one);
    }
    this.#reading = this.#reading.filter((other) => !reading.includes(other));
    if (failure === null) return;
    this.failures += 1;
    reportFailure(failure);
  }

  async #readOne({ path, place }: Reading): Promise<void> {
    const { messageDrafts } = this.#on;
    const model = this.#model;
    const read = await call(this.#host, 'read_attachment', { path, count: model !== null });
    const file = { ...read, path, countedBy: read.tokens !== null && model === this.#model ? model : null };
    // A file that was changed since replaces its earlier text.
    const others = messageDrafts.filesOf(place()).filter((other) => other.path !== path);
    messageDrafts.attach(place(), [...others, file]);
  }
}
