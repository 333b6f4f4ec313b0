// A host with conversations, and models on any host, for tests of the whole state.

import app from '../../../../tests/ui/fixtures/fixture-app.json';
import type { Host } from '../host';
import { SilentHost } from '../host/testing';
import type {
  AnswerRequest,
  AnswerSettings,
  ConversationEntry,
  ErrorInfo,
  LibraryEvent,
  LoadRequest,
  StoredMessage,
} from '../ipc/schema.gen';
import { LibraryState } from './library.svelte';
import { Models, type ModelsDependencies } from './models.svelte';
import { Preferences } from './preferences.svelte';
import type { Settings } from './settings.svelte';

/** Models on a host. Dependencies that a test does not state are empty or do nothing. */
export function modelsOn(host: Host, settings: Settings, stated: Partial<ModelsDependencies> = {}): Models {
  return new Models(host, settings, {
    library: new LibraryState(host),
    preferences: new Preferences(host),
    reportFailure: () => {},
    needless: () => false,
    chosen: () => {},
    ...stated,
  });
}

/** The conversations of the host. */
export const entries: ConversationEntry[] = [1, 2, 3].map((id) => ({
  id,
  title: `number ${id}`,
  pinned: false,
  created_ms: 0,
  updated_ms: 0,
}));

/** A conversation with two answers, 11 and 12, to question 10. The reader is at the second. */
const messagesOf = (id: number): StoredMessage[] => {
  const at = { created_ms: 0, state: 'complete' as const, settings: null };
  return [
    { ...at, id: 10 * id, parent: null, role: 'user', content: 'asked' },
    { ...at, id: 10 * id + 1, parent: 10 * id, role: 'assistant', content: 'first' },
    { ...at, id: 10 * id + 2, parent: 10 * id, role: 'assistant', content: 'second' },
  ];
};

/** The question to answer again; undefined for a new one. */
function askedAgain({ request }: Record<string, unknown>): number | undefined {
  const { asking } = request as AnswerRequest;
  return asking.kind === 'again' ? asking.question : undefined;
}

/** A host with three conversations, and the models of a fixture. */
export class KeepingHost extends SilentHost {
  calls: [string, Record<string, unknown>][] = [];
  /** Commands that fail. */
  failing: string[] = [];
  /** Error of a refused question. */
  refusal: Promise<ErrorInfo> | null = null;
  info: unknown = app.info;
  /** Settings of the stored answers, by conversation. */
  settings: Record<number, AnswerSettings> = {};
  /** Sends an event to the watcher of the library. */
  sendLibrary: (event: LibraryEvent) => void = () => {};
  #deleted = new Set<unknown>();

  override async invoke(command: string, args: Record<string, unknown>): Promise<unknown> {
    this.calls.push([command, args]);
    if (this.failing.includes(command)) throw { code: 'store', message: 'The disk is full.' };
    switch (command) {
      case 'app_info':
        return this.info;
      case 'library':
        return { models: app.models, folders: [], machine: { total: 16e9, usable: 11e9 } };
      case 'load_models': {
        const { target } = args['request'] as LoadRequest;
        return { ...app.info.loaded, draft: null, target: app.models.find(({ path }) => path === target) };
      }
      case 'watch_library':
        return [];
      case 'list_conversations':
        return entries.filter(({ id }) => !this.#deleted.has(id));
      case 'open_conversation':
        return {
          entry: entries.find(({ id }) => id === args['id']),
          system: '',
          messages: this.#messages(args['id'] as number),
          leaf: null,
        };
      case 'answer_events':
        return [];
      case 'delete_conversation':
        return this.#deleted.add(args['id']);
      case 'restore_conversation':
        return this.#deleted.delete(args['id']);
      case 'choose_file':
        return '/tmp/brought.json';
      case 'import_conversation':
        return 3;
      case 'answer':
        if (this.refusal) throw await this.refusal;
        return { conversation: 1, question: askedAgain(args) ?? 13, answer: 14, generation_id: 5, prefix: [] };
      default:
        return null;
    }
  }

  #messages(id: number): StoredMessage[] {
    const settings = this.settings[id] ?? null;
    return messagesOf(id).map((message) => (message.role === 'assistant' ? { ...message, settings } : message));
  }

  override openChannel<T>(receive: (message: T) => void): unknown {
    this.sendLibrary = receive as (event: LibraryEvent) => void;
    return 0;
  }

  named(command: string): Record<string, unknown>[] {
    return this.calls.filter(([name]) => name === command).map(([, args]) => args);
  }
}
