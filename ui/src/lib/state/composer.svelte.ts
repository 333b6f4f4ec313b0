// The composer: what its question waits for, and work out of sight that keeps the engine busy. No DOM.

import { language } from '../strings/index.svelte';
import type { Answerer } from './answerer.svelte';
import type { Attachments } from './attachments.svelte';
import type { Chat } from './chat.svelte';
import type { ActiveConversation } from './conversation.svelte';
import { titleOf, type Conversations } from './conversations.svelte';
import type { Lab } from './lab.svelte';
import type { ModelList } from './modelList.svelte';
import type { Models } from './models.svelte';
import type { Navigation } from './navigation.svelte';
import type { Place } from './thread.svelte';
import type { Training } from './training.svelte';
import type { Work } from './work.svelte';

/** Other state that the composer depends on. */
interface ComposerDependencies {
  answerer: Pick<Answerer, 'answerable' | 'comingUp' | 'server'>;
  attachments: Pick<Attachments, 'exceeded' | 'failures' | 'reading'>;
  chat: Pick<Chat, 'showWriting'>;
  conversation: ActiveConversation;
  conversations: Pick<Conversations, 'entries'>;
  lab: Pick<Lab, 'widget'>;
  modelList: Pick<ModelList, 'show'>;
  models: Models;
  navigation: Navigation;
  training: Pick<Training, 'trainee'>;
  work: Work;
}

/** Work that is out of sight, which Escape does not stop. */
interface WorkElsewhere {
  readonly text: string;
  readonly show: () => void;
  /** `true` if it is paused in place of being stopped. */
  readonly pausable: boolean;
}

/** A question that waits, and how many files had failed by then. */
interface Waiting {
  readonly place: Place;
  readonly failures: number;
}

/** State of the composer. */
export class ComposerState {
  #waiting = $state.raw<Waiting | null>(null);

  readonly #on: ComposerDependencies;

  constructor(dependencies: ComposerDependencies) {
    this.#on = dependencies;
  }

  /** Work that is out of sight; null for none. */
  get elsewhere(): WorkElsewhere | null {
    const { chat, conversation, conversations, lab, navigation, work } = this.#on;
    const words = language.strings.composer;
    if (conversation.running && !conversation.writingHere) {
      const writing = conversations.entries.find(({ id }) => id === conversation.writing);
      const text = writing ? words.elsewhere(titleOf(writing)) : words.elsewhereUntitled;
      return { text, show: () => chat.showWriting(), pausable: false };
    }
    if (work.comparing) return { text: words.comparing, show: () => navigation.goTo('compare'), pausable: false };
    if (work.measuring) {
      const show = () => {
        lab.widget = 'costs';
        navigation.goTo('lab');
      };
      return { text: words.measuring, show, pausable: false };
    }
    return this.#training;
  }

  get #training(): WorkElsewhere | null {
    const { modelList, navigation, training } = this.#on;
    const { trainee } = training;
    if (!trainee) return null;
    const show = () => {
      modelList.show(trainee.path);
      navigation.showLibrary();
    };
    return { text: language.strings.composer.training(trainee.title), show, pausable: true };
  }

  /** `true` while the engine works on another screen. Then a server does not answer either. */
  get #occupied(): boolean {
    const { work } = this.#on;
    return work.comparing || work.measuring || work.training;
  }

  /** `true` while the models are searched for layers to skip. A server answers meanwhile. */
  get #searching(): boolean {
    return this.#on.work.searching && !this.#on.answerer.server;
  }

  /** `true` if there is a question that could be sent. */
  get #typed(): boolean {
    const { attachments, conversation } = this.#on;
    return conversation.draft.trim() !== '' && attachments.exceeded === null && !this.#occupied && !this.#searching;
  }

  /** `true` if the question can be sent now. */
  get #sendable(): boolean {
    const { answerer, attachments } = this.#on;
    return this.#typed && answerer.answerable && !answerer.comingUp && attachments.reading.length === 0;
  }

  /** `true` if the question can wait for models that are loading, or for files that are read. */
  get #waitable(): boolean {
    const { answerer, attachments, conversation } = this.#on;
    if (!this.#typed) return false;
    return answerer.comingUp ? !conversation.running : answerer.answerable && attachments.reading.length > 0;
  }

  /** `true` if the question is sent as soon as that is possible. */
  get waits(): boolean {
    return this.#waiting !== null;
  }

  /** `true` if the send button does anything. */
  get enabled(): boolean {
    return (this.#sendable || (this.#waitable && !this.waits)) && this.#on.conversation.takes;
  }

  /** A note next to the send button; empty for none. */
  get hint(): string {
    const { answerer, conversation, models } = this.#on;
    const { composer: words, library, loading, openModelFirst } = language.strings;
    if (conversation.stopping) return words.stopping;
    if (this.waits) return answerer.comingUp ? words.sentWhenLoaded : words.sentWhenRead;
    if (this.elsewhere) return '';
    if (conversation.running) return words.escStops;
    if (this.#searching) return words.searching;
    if (answerer.server) return '';
    if (models.loading !== null) return loading(models.loading);
    if (!models.ready) return '';
    if (models.reloadable) return library.loading.reloadsOnSend(models.reloadable.title);
    return models.loaded ? '' : openModelFirst;
  }

  /** Sends the question, or lets it wait. Returns whether it was sent. */
  send(): boolean {
    const { attachments, conversation } = this.#on;
    if (!conversation.takes) return false;
    if (!this.#sendable) {
      this.#waiting = this.#waitable ? { place: conversation.place, failures: attachments.failures } : null;
      return false;
    }
    this.#waiting = null;
    void conversation.send();
    return true;
  }

  /** Lets the question wait no longer. */
  stopWaiting(): void {
    this.#waiting = null;
  }

  /** Returns `true` if the question that waits can be sent now. Stops waiting if another conversation is shown, a file
   * could not be read, or the models could not be loaded. */
  ready(): boolean {
    const { attachments, conversation } = this.#on;
    const { place, failures } = this.#waiting ?? {};
    if (!this.#waiting) return false;
    const isStale = place !== conversation.place || failures !== attachments.failures;
    if (!isStale && this.#sendable && conversation.takes) return true;
    if (isStale || !this.#waitable) this.#waiting = null;
    return false;
  }
}
