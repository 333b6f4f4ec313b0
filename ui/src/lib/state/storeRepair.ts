// Repairs the file of conversations, and brings what the window holds into the store that is open then. No DOM.

import type { StoreRemedy } from '../ipc/schema.gen';
import type { Conversations } from './conversations.svelte';
import type { ActiveConversation } from './conversation.svelte';
import type { CopiedTexts } from './copiedTexts.svelte';
import type { MessageDrafts } from './messageDrafts.svelte';
import type { Models } from './models.svelte';
import type { Preferences, Values } from './preferences.svelte';
import type { Servers } from './servers.svelte';
import type { Settings } from './settings.svelte';
import type { Place } from './thread.svelte';
import type { Updates } from './updates.svelte';

/** State that a store has, or that refers to it. */
interface StoreRepairDependencies {
  conversation: ActiveConversation;
  conversations: Conversations;
  copiedTexts: Pick<CopiedTexts, 'bringTo'>;
  messageDrafts: MessageDrafts;
  models: Models;
  preferences: Preferences;
  servers: Pick<Servers, 'bringTo'>;
  settings: Settings;
  updates: Pick<Updates, 'start'>;
}

/** Repairs of the file of conversations. */
export class StoreRepair {
  readonly #on: StoreRepairDependencies;

  constructor(dependencies: StoreRepairDependencies) {
    this.#on = dependencies;
  }

  /** Applies a remedy. Another store has preferences, drafts and servers of its own, which are joined with those of
   * this session. Never rejects. */
  async repair(remedy: StoreRemedy): Promise<void> {
    const { conversation, conversations, copiedTexts, models, preferences, servers, updates } = this.#on;
    if (remedy.type === 'stay_in_memory') return void (await models.repairStore(remedy));
    const fromMemory = models.info?.store_problem?.in_memory ?? false;
    let isOther = false;
    const replace = async () => {
      if (!(await models.repairStore(remedy))) return false;
      conversation.cancelAllQueued();
      await conversations.refresh();
      return (isOther = true);
    };
    await preferences.replaceStore(replace, (before) => this.#bring(before, fromMemory, remedy.type === 'restore'));
    if (!isOther) return;
    updates.start();
    await servers.bringTo();
    await copiedTexts.bringTo();
  }

  /** Brings unsent text into the new store, and shows it. Conversations in memory get other numbers in the file, and
   * only a backup has those of the file before. */
  #bring(before: Values, fromMemory: boolean, isBackup: boolean): void {
    const { conversation, conversations, messageDrafts, models, preferences, settings } = this.#on;
    const keepsNumbers = isBackup && !fromMemory;
    const numbers = conversations.entries.map(({ id }) => id);
    const places: Place[] = fromMemory ? [] : [null, ...(keepsNumbers ? numbers : [])];
    messageDrafts.bringTo(places, before);
    if (conversations.error === null) messageDrafts.keepOnly(numbers);
    conversations.forgetDeleted();
    conversation.leaveStore(keepsNumbers);
    settings.restore(preferences.settings);
    if (models.loaded) settings.fit(models.loaded);
  }
}
