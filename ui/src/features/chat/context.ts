// State that the chat uses.

import { createContext } from 'svelte';
import type { AdvancedSettings } from '../../lib/state/advanced.svelte';
import type { Answerer } from '../../lib/state/answerer.svelte';
import type { Attachments } from '../../lib/state/attachments.svelte';
import type { CatalogueState } from '../../lib/state/catalogue.svelte';
import type { Chat } from '../../lib/state/chat.svelte';
import type { ComposerState } from '../../lib/state/composer.svelte';
import type { ActiveConversation } from '../../lib/state/conversation.svelte';
import type { CopiedTexts } from '../../lib/state/copiedTexts.svelte';
import type { Conversations } from '../../lib/state/conversations.svelte';
import type { Downloads } from '../../lib/state/downloads.svelte';
import type { Find } from '../../lib/state/find.svelte';
import type { LayerSearch } from '../../lib/state/layerSearch.svelte';
import type { LibraryState } from '../../lib/state/library.svelte';
import type { LinkQuestion } from '../../lib/state/linkQuestion.svelte';
import type { Models } from '../../lib/state/models.svelte';
import type { Navigation } from '../../lib/state/navigation.svelte';
import type { Preferences } from '../../lib/state/preferences.svelte';
import type { Presets } from '../../lib/state/presets';
import type { ProblemLog } from '../../lib/state/problemLog';
import type { Servers } from '../../lib/state/servers.svelte';
import type { Settings } from '../../lib/state/settings.svelte';
import type { StoreRepair } from '../../lib/state/storeRepair';
import type { TokenFocus } from '../../lib/state/tokenFocus.svelte';
import type { Updates } from '../../lib/state/updates.svelte';
import type { Work } from '../../lib/state/work.svelte';

export interface ChatContext {
  readonly chat: Chat;
  readonly conversation: ActiveConversation;
  readonly conversations: Conversations;
  readonly composer: ComposerState;
  /** The find bar of the open conversation. */
  readonly find: Find;
  /** Files of the next question. */
  readonly attachments: Attachments;
  readonly models: Models;
  /** The answerer of the next question. */
  readonly answerer: Answerer;
  readonly servers: Servers;
  readonly settings: Settings;
  readonly advanced: AdvancedSettings;
  /** Search for the layers that the target skips. */
  readonly layerSearch: LayerSearch;
  /** Texts that drafts are copied from. */
  readonly copiedTexts: CopiedTexts;
  readonly preferences: Preferences;
  readonly presets: Pick<Presets, 'replaced'>;
  readonly tokens: TokenFocus;
  readonly links: LinkQuestion;
  readonly work: Work;
  readonly navigation: Navigation;
  readonly log: ProblemLog;
  readonly storeRepair: StoreRepair;
  /** Models of this machine. */
  readonly library: LibraryState;
  /** For the first pair, while there is no model. */
  readonly catalogue: CatalogueState;
  readonly downloads: Downloads;
  readonly updates: Pick<Updates, 'known'>;
}

export const [useChat, provideChat] = createContext<ChatContext>();
