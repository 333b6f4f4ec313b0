// Builds the state of the window, and gives each feature the part that it uses.

import type { ChatContext } from './features/chat/context';
import type { CompareContext } from './features/compare/context';
import type { LabContext } from './features/lab/context';
import type { LibraryContext } from './features/library/context';
import type { TitleBarContext } from './features/titlebar/context';
import type { CommandState } from './lib/commands';
import { errorLine } from './lib/errors';
import type { Host } from './lib/host';
import { labelMenu } from './lib/ipc/menu';
import type { ErrorInfo } from './lib/ipc/schema.gen';
import { AdvancedSettings } from './lib/state/advanced.svelte';
import { Attachments } from './lib/state/attachments.svelte';
import { CatalogueState } from './lib/state/catalogue.svelte';
import { Chat } from './lib/state/chat.svelte';
import { Comparison } from './lib/state/comparison.svelte';
import { ComparisonPlan } from './lib/state/comparisonPlan.svelte';
import { Comparisons } from './lib/state/comparisons.svelte';
import { ActiveConversation } from './lib/state/conversation.svelte';
import { Conversations, titleOf } from './lib/state/conversations.svelte';
import { CopiedTexts } from './lib/state/copiedTexts.svelte';
import { Downloads } from './lib/state/downloads.svelte';
import { Drop } from './lib/state/drop.svelte';
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
import { OwnSuite } from './lib/state/suiteFile.svelte';
import { TokenFocus } from './lib/state/tokenFocus.svelte';
import { Training } from './lib/state/training.svelte';
import { Updates } from './lib/state/updates.svelte';
import { Work } from './lib/state/work.svelte';
import { language } from './lib/strings/index.svelte';

/** The state of the window, by the feature that uses it. */
export interface WindowState {
  readonly chat: ChatContext;
  readonly compare: CompareContext;
  readonly lab: LabContext;
  readonly library: LibraryContext;
  readonly titleBar: TitleBarContext;
  readonly commands: CommandState;
  /** Files dragged over the window. */
  readonly drop: Drop;
  readonly events: LibraryEvents;
  readonly log: ProblemLog;
  readonly messageDrafts: MessageDrafts;
  readonly notices: Notices;
  readonly updates: Updates;
  /** Sets the labels of the native menu, in the conventions of the system. */
  readonly labelMenu: (platform: 'mac' | 'other') => void;
  /** Loads everything, and subscribes to events of the engine. */
  readonly start: () => Promise<void>;
}

/** Builds the state on a host. */
export function createWindow(host: Host): WindowState {
  const notices = new Notices();
  const { notify, reportFailure } = notices;
  const screen = new Screen();
  const tokens = new TokenFocus();
  const navigation = new Navigation(tokens);
  const log = new ProblemLog(host, reportFailure);
  const preferences = new Preferences(host);
  const bias = new LogitBias(host, () => models.loaded?.target.path ?? null);
  const advanced = new AdvancedSettings(bias);
  const settings = new Settings(advanced);
  const links = new LinkQuestion(host, { copy: screen.copy, reportFailure });

  const library = new LibraryState(host);
  const modelList = new ModelList(library);
  const models: Models = new Models(host, settings, {
    library,
    preferences,
    reportFailure,
    needless: () => servers.chosen !== null,
    chosen: () => servers.chosen && servers.choose(null),
  });
  const copiedTexts = new CopiedTexts(host, models);
  const servers = new Servers(host, preferences);
  const ownServer = new OwnServerSwitch(host);
  const answerer = new Answerer({ models, servers, prepare: () => bias.prepare() });
  const downloads = new Downloads(host, {
    arrived: () => void events.libraryChanged(),
    begun: () => void catalogue.askHubAgain(),
  });
  const catalogue = new CatalogueState(host, library, downloads);
  const hubSearch = new HubSearchState(host, { asked: () => void catalogue.askHubAgain() });

  const conversations = new Conversations(host, notify);
  const messageDrafts = new MessageDrafts(preferences, undefined, () => reportFailure(language.strings.notices.filesNotKept));
  const callbacks = {
    changed: () => void conversations.refresh(),
    ready: () => answerer.prepare(),
    by: () => answerer.by,
    writer: () => answerer.writer,
    queueStopped: (error: ErrorInfo, id: number | null) => {
      const title = titleOf(conversations.entries.find((entry) => entry.id === id) ?? { title: '' });
      reportFailure(language.strings.conversation.queueStopped(title, errorLine(error)));
    },
    refusedElsewhere: (error: ErrorInfo) => reportFailure(language.strings.conversation.refusedElsewhere(errorLine(error))),
  };
  const conversation = new ActiveConversation(host, settings, undefined, callbacks, messageDrafts);
  // A server has a context of its own, so files need not fit that of the loaded model.
  const counting = {
    get loaded() {
      return answerer.server ? null : models.loaded;
    },
  };
  const attachments = new Attachments(host, { conversation, messageDrafts, models: counting, settings, reportFailure });

  const comparisons = new Comparisons(host, notify);
  // It may have changed the history, the loaded models and the measured pairs.
  const comparison = new Comparison(host, () => {
    void comparisons.refresh();
    void models.refresh();
    events.pairsChanged();
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
  const pairing = new Pairing(host, { models, comparison, reportFailure, copyRemoved: () => events.pairsChanged() });
  const drafting = new Pairing(host, { models, comparison });
  const lab = new Lab(host, models, settings, conversation);

  const training = new Training(host, { models });
  const layerSearch = new LayerSearch(host, models);
  const work = new Work({ conversation, comparison, lab, layerSearch, models, navigation, pairing, training });
  const updates = new Updates(host, { preferences, work, models, notify });
  const chat = new Chat({ conversation, conversations, messageDrafts, models, answerer, servers, navigation, tokens, work });
  const presets = new Presets({ preferences, settings, conversation, models, notify });
  const attach = async (paths: readonly string[]) => {
    navigation.goTo('chat');
    await attachments.add(paths);
    screen.compose();
  };
  const drop = new Drop(host, models, { importFiles: (paths) => chat.importFiles(paths), attach, reportFailure });
  const events = new LibraryEvents(host, { library, downloads, models, comparison, navigation, pairing, drafting });

  return {
    chat: {
      chat,
      conversation,
      conversations,
      attachments,
      models,
      answerer,
      servers,
      settings,
      advanced,
      layerSearch,
      copiedTexts,
      preferences,
      tokens,
      links,
      work,
      navigation,
      log,
      library,
      catalogue,
      downloads,
      lab,
      updates,
    },
    compare: { comparison, comparisons, plan, models, servers, preferences, tokens, links },
    lab: { lab, models, conversation, settings, work },
    library: {
      library,
      modelList,
      models,
      servers,
      ownServer,
      pairing,
      comparison,
      training,
      catalogue,
      hubSearch,
      downloads,
      navigation,
      work,
      links,
      screen,
    },
    titleBar: { navigation, models, answerer, servers, library, modelList, drafting, downloads, work, screen },
    commands: {
      chat,
      conversation,
      answerer,
      conversations,
      attachments,
      work,
      navigation,
      screen,
      preferences,
      presets,
      settings,
      models,
      library,
      log,
    },
    drop,
    events,
    log,
    messageDrafts,
    notices,
    updates,
    labelMenu: (platform) => labelMenu(host, platform),
    start: async () => {
      void chat.list();
      void servers.load();
      void ownServer.load();
      // First, so that events of loading are received too.
      await events.watch();
      // Settings show it while models are loading.
      await updates.read();
      await models.start();
      updates.start();
    },
  };
}
