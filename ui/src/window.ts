// Builds the state of the window, subject by subject. `createWindow` shows the order.

import type { ChatContext } from './features/chat/context';
import type { CompareContext } from './features/compare/context';
import type { LabContext } from './features/lab/context';
import type { LibraryContext } from './features/library/context';
import type { TitleBarContext } from './features/titlebar/context';
import type { CommandState } from './lib/commands';
import { errorLine } from './lib/errors';
import type { Host } from './lib/host';
import { labelMenu } from './lib/ipc/menu';
import { AdvancedSettings } from './lib/state/advanced.svelte';
import { Attachments } from './lib/state/attachments.svelte';
import { CatalogueState } from './lib/state/catalogue.svelte';
import { Chat } from './lib/state/chat.svelte';
import { Comparison } from './lib/state/comparison.svelte';
import { ComparisonPlan } from './lib/state/comparisonPlan.svelte';
import { Comparisons } from './lib/state/comparisons.svelte';
import { ComposerState } from './lib/state/composer.svelte';
import { ActiveConversation, type ConversationCallbacks } from './lib/state/conversation.svelte';
import { Conversations, titleOf } from './lib/state/conversations.svelte';
import { CopiedTexts } from './lib/state/copiedTexts.svelte';
import { Downloads } from './lib/state/downloads.svelte';
import { Drop } from './lib/state/drop.svelte';
import { Find } from './lib/state/find.svelte';
import { HubSearchState } from './lib/state/hubSearch.svelte';
import { Lab } from './lib/state/lab.svelte';
import { LayerSearch } from './lib/state/layerSearch.svelte';
import { LibraryState } from './lib/state/library.svelte';
import { LaneModelChoices } from './lib/state/laneModels.svelte';
import { LibraryEvents } from './lib/state/libraryEvents';
import { LinkQuestion } from './lib/state/linkQuestion.svelte';
import { LogitBias } from './lib/state/logitBias.svelte';
import { MessageDrafts } from './lib/state/messageDrafts.svelte';
import { ModelList } from './lib/state/modelList.svelte';
import { Models } from './lib/state/models.svelte';
import { Navigation } from './lib/state/navigation.svelte';
import { Notices } from './lib/state/notices.svelte';
import { OwnServerSwitch } from './lib/state/ownServer.svelte';
import { Pairing } from './lib/state/pairing.svelte';
import { Preferences } from './lib/state/preferences.svelte';
import { Presets } from './lib/state/presets';
import { ProblemLog } from './lib/state/problemLog';
import { Screen } from './lib/state/screen';
import { Answerer } from './lib/state/answerer.svelte';
import { Servers } from './lib/state/servers.svelte';
import { Settings } from './lib/state/settings.svelte';
import { StoreRepair } from './lib/state/storeRepair';
import { OwnSuite } from './lib/state/suiteFile.svelte';
import { TokenFocus } from './lib/state/tokenFocus.svelte';
import { Training } from './lib/state/training.svelte';
import { Updates } from './lib/state/updates.svelte';
import { Work } from './lib/state/work.svelte';
import { language } from './lib/strings/index.svelte';

/** State that no feature has in its context. */
interface WindowParts {
  /** Files dragged over the window. */
  readonly drop: Drop;
  readonly events: LibraryEvents;
  readonly messageDrafts: MessageDrafts;
  readonly notices: Notices;
  readonly updates: Updates;
  /** Sets the labels of the native menu, in the conventions of the system. */
  readonly labelMenu: (platform: 'mac' | 'other') => void;
  /** Loads everything, and subscribes to events of the engine. */
  readonly start: () => Promise<void>;
}

/** The state of the window. Each feature sees the part that its context lists. */
export type WindowState = ChatContext & CompareContext & LabContext & LibraryContext & TitleBarContext & CommandState & WindowParts;

/** Builds the state on a host. Each subject uses those above it, and reports to those below it by callbacks. */
export function createWindow(host: Host): WindowState {
  const page = createPage(host);
  const models = createModels(host, page);
  const downloads = createDownloads(host, models, () => void events.libraryChanged());
  const conversations = createConversations(host, page, models);
  const measurements = createMeasurements(host, page, models, conversations, () => events.pairsChanged());
  const state = { ...page, ...models, ...downloads, ...conversations, ...measurements };
  const actions = createActions(host, state);
  const events: LibraryEvents = new LibraryEvents(host, state);

  return {
    ...state,
    ...actions,
    events,
    labelMenu: (platform) => labelMenu(host, platform),
    start: async () => {
      void actions.chat.list();
      void state.servers.load();
      void state.ownServer.load();
      // First, so that events of loading are received too.
      await events.watch();
      // Settings show it while models are loading.
      await actions.updates.read();
      await state.models.start();
      actions.updates.start();
    },
  };
}

type Page = ReturnType<typeof createPage>;
type ModelState = ReturnType<typeof createModels>;
type ConversationState = ReturnType<typeof createConversations>;
type MeasurementState = ReturnType<typeof createMeasurements>;

/** The page itself: where the reader is, the find bar, notices, preferences. */
function createPage(host: Host) {
  const notices = new Notices();
  const { reportFailure } = notices;
  const screen = new Screen();
  const tokens = new TokenFocus();
  return {
    notices,
    screen,
    tokens,
    find: new Find(),
    navigation: new Navigation(tokens),
    log: new ProblemLog(host, reportFailure),
    preferences: new Preferences(host),
    links: new LinkQuestion(host, { copy: screen.copy, reportFailure }),
  };
}

/** Models of this machine and of servers, and the settings that they answer with. */
function createModels(host: Host, { notices, preferences }: Page) {
  const bias = new LogitBias(host, () => models.loaded?.target.path ?? null);
  const advanced = new AdvancedSettings(bias);
  const settings = new Settings(advanced);
  const library = new LibraryState(host);
  const servers = new Servers(host, preferences);
  const models: Models = new Models(host, settings, {
    library,
    preferences,
    reportFailure: notices.reportFailure,
    needless: () => servers.chosen !== null,
    chosen: () => servers.chosen && servers.choose(null),
  });
  return {
    advanced,
    settings,
    library,
    modelList: new ModelList(library, () => models.loaded?.target.path ?? null),
    servers,
    ownServer: new OwnServerSwitch(host),
    models,
    answerer: new Answerer({ models, servers, prepare: () => bias.prepare() }),
    copiedTexts: new CopiedTexts(host, models),
    layerSearch: new LayerSearch(host, models),
  };
}

/** Models that can be downloaded. `arrived` is called when a new one was found on disk. */
function createDownloads(host: Host, { library }: ModelState, arrived: () => void) {
  const downloads = new Downloads(host, { arrived, begun: () => void catalogue.askHubAgain() });
  const catalogue: CatalogueState = new CatalogueState(host, library, downloads);
  const hubSearch = new HubSearchState(host, { asked: () => void catalogue.askHubAgain() });
  return { downloads, catalogue, hubSearch };
}

/** The list of conversations, the one on screen, and unsent messages with their files. */
function createConversations(host: Host, { notices, preferences }: Page, { answerer, models, settings }: ModelState) {
  const { notify, reportFailure } = notices;
  const conversations = new Conversations(host, notify);
  const messageDrafts = new MessageDrafts(preferences, () => reportFailure(language.strings.notices.filesNotKept));
  const callbacks: ConversationCallbacks = {
    changed: () => void conversations.refresh(),
    ready: () => answerer.prepare(),
    by: () => answerer.by,
    writer: () => answerer.writer,
    queueStopped: (error, id) => {
      const title = titleOf(conversations.entries.find((entry) => entry.id === id) ?? { title: '' });
      reportFailure(language.strings.conversation.queueStopped(title, errorLine(error)));
    },
    refusedElsewhere: (error) => reportFailure(language.strings.conversation.refusedElsewhere(errorLine(error))),
  };
  const conversation = new ActiveConversation(host, settings, messageDrafts, callbacks);
  // A server has a context of its own, so files need not fit that of the loaded model.
  const counting = {
    get loaded() {
      return answerer.server ? null : models.loaded;
    },
  };
  const attachments = new Attachments(host, { conversation, messageDrafts, models: counting, settings, reportFailure });
  return { conversations, messageDrafts, conversation, attachments };
}

/** Comparisons, pairs, the lab, and training. `pairsChanged` is called when measured pairs changed. */
function createMeasurements(
  host: Host,
  { notices }: Page,
  { models, servers, settings }: ModelState,
  { conversation }: ConversationState,
  pairsChanged: () => void,
) {
  const comparisons = new Comparisons(host, notices.notify);
  // It may have changed the history, the loaded models and the measured pairs.
  const comparison = new Comparison(host, () => {
    void comparisons.refresh();
    void models.refresh();
    pairsChanged();
  });
  const plan = new ComparisonPlan({
    models,
    choices: new LaneModelChoices(host, models),
    suite: new OwnSuite(host),
    chat: {
      settings,
      busy: () => conversation.running,
      hasServer: (address) => servers.list.some((server) => server.address === address),
    },
  });
  return {
    comparisons,
    comparison,
    plan,
    pairing: new Pairing(host, { models, comparison, reportFailure: notices.reportFailure, copyRemoved: pairsChanged }),
    drafting: new Pairing(host, { models, comparison }),
    lab: new Lab(host, models, settings, conversation),
    training: new Training(host, { models }),
  };
}

/** Actions on several subjects: stopping work, moving between conversations, presets, updates, repairing the store,
 * dropping files. */
function createActions(host: Host, state: Page & ModelState & ConversationState & MeasurementState) {
  const { navigation, preferences, screen, tokens } = state;
  const { answerer, layerSearch, models, servers, settings } = state;
  const { attachments, conversation, conversations, messageDrafts } = state;
  const { comparison, lab, pairing, training } = state;
  const { notify, reportFailure } = state.notices;
  const work = new Work({ conversation, comparison, lab, layerSearch, models, navigation, pairing, training });
  const chat = new Chat({ conversation, conversations, messageDrafts, models, answerer, servers, navigation, tokens, work });
  const updates = new Updates(host, { preferences, work, models, notify });
  const attach = async (paths: readonly string[]) => {
    navigation.goTo('chat');
    await attachments.add(paths);
    screen.compose();
  };
  return {
    work,
    chat,
    presets: new Presets({ preferences, settings, conversation, models, notify }),
    composer: new ComposerState({ ...state, chat, work }),
    updates,
    storeRepair: new StoreRepair({ ...state, updates }),
    drop: new Drop(host, models, { importFiles: (paths) => chat.importFiles(paths), attach, reportFailure }),
  };
}
