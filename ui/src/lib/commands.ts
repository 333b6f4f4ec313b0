// The table of commands for palette, shortcuts and native menu. No DOM.

import type { ConversationEntry, ModelEntry } from './ipc/schema.gen';
import { methodName, offeredMethods } from './methods';
import type { Attachments } from './state/attachments.svelte';
import type { Answerer } from './state/answerer.svelte';
import type { Chat } from './state/chat.svelte';
import type { ActiveConversation } from './state/conversation.svelte';
import { grouped, type Conversations } from './state/conversations.svelte';
import type { Find } from './state/find.svelte';
import type { LibraryState } from './state/library.svelte';
import type { Models } from './state/models.svelte';
import type { Navigation } from './state/navigation.svelte';
import type { Notices } from './state/notices.svelte';
import type { Preferences } from './state/preferences.svelte';
import type { Presets } from './state/presets';
import type { ProblemLog } from './state/problemLog';
import type { Screen } from './state/screen';
import { isUsable, type Settings } from './state/settings.svelte';
import { answerText, isByServer, type Turn } from './state/thread.svelte';
import type { TokenFocus } from './state/tokenFocus.svelte';
import type { Work } from './state/work.svelte';
import { en } from './strings/en';
import { language } from './strings/index.svelte';
import {
  appearances,
  colourModes,
  places,
  textSizes,
  views,
  type ChoiceName,
  type CommandGroup,
  type AppCommandName,
} from './strings/keys';

/** A key pressed together with the system's command key. */
interface Shortcut {
  /** As displayed: N, comma, =. */
  key: string;
  shift?: boolean;
  /** Other keys with the same meaning. */
  or?: string;
}

/** A command. */
export interface Command {
  /** Part of the API if the native menu has it too. */
  readonly id: string;
  readonly title: string;
  readonly group: CommandGroup;
  /** Further search words. */
  readonly also?: string;
  readonly keys?: Shortcut;
  /** A key that runs it alone, outside text fields. */
  readonly alone?: string;
  /** `true` if Escape runs it. The window handles Escape itself. */
  readonly escape?: boolean;
  /** `true` if its keys mean something else in a text field. */
  readonly notInFields?: boolean;
  /** `true` if it is the current choice. */
  readonly chosen?: boolean;
  /** `true` if an open sheet stays open. */
  readonly stays?: boolean;
  /** `true` if it is possible now; always, if missing. */
  readonly enabled?: () => boolean;
  readonly run: () => void;
}

/** State that commands read and change. */
export interface CommandState {
  readonly chat: Chat;
  readonly conversation: ActiveConversation;
  readonly answerer: Answerer;
  readonly conversations: Conversations;
  readonly find: Find;
  readonly attachments: Attachments;
  readonly work: Work;
  readonly navigation: Navigation;
  readonly screen: Screen;
  readonly preferences: Preferences;
  readonly presets: Presets;
  readonly settings: Settings;
  readonly models: Models;
  readonly library: LibraryState;
  readonly log: ProblemLog;
}

/** All commands, in display order. */
export function commands(state: CommandState): Command[] {
  return [
    ...conversationCommands(state),
    ...answerCommands(state),
    ...windowCommands(state),
    ...modelCommands(state),
    ...methodCommands(state),
    ...presetCommands(state),
  ];
}

function conversationCommands({ chat, conversation, conversations, find, navigation, screen }: CommandState): Command[] {
  /** The open conversation, while it is on screen. */
  const entry = () => (navigation.place === 'chat' ? conversations.entries.find(({ id }) => id === conversation.id) : undefined);
  const neighbour = (by: -1 | 1) => neighbourIn(conversations.entries, conversation.id, by);
  /** A command on the open conversation. */
  const onEntry = (
    id: AppCommandName,
    act: (open: ConversationEntry) => unknown,
    when: (open: ConversationEntry) => boolean = () => true,
  ) => ({
    ...named(id),
    group: 'conversation' as const,
    enabled: () => {
      const open = entry();
      return open !== undefined && when(open);
    },
    run: () => {
      const open = entry();
      if (open) void act(open);
    },
  });
  const walk = (id: AppCommandName, by: -1 | 1) => ({
    ...named(id),
    group: 'conversation' as const,
    enabled: () => neighbour(by) !== null,
    run: () => {
      const next = neighbour(by);
      if (next !== null) void chat.open(next);
    },
  });
  return [
    {
      ...named('new-conversation'),
      group: 'conversation',
      keys: { key: 'N' },
      run: () => {
        chat.create();
        screen.compose();
      },
    },
    { ...named('search'), group: 'conversation', keys: { key: 'F' }, run: screen.search },
    ...([1, -1] as const).map((by): Command => ({
      ...named(by > 0 ? 'find-next' : 'find-previous'),
      group: 'conversation',
      keys: { key: 'G', shift: by < 0 },
      enabled: () => navigation.place === 'chat' && find.count > 0,
      run: () => find.step(by),
    })),
    { ...named('search-conversations'), group: 'conversation', keys: { key: 'F', shift: true }, run: screen.searchAll },
    walk('previous-conversation', -1),
    walk('next-conversation', 1),
    onEntry('export-markdown', (open) => conversations.save(open, 'markdown')),
    onEntry('export-json', (open) => conversations.save(open, 'json')),
    onEntry('rename', screen.rename),
    onEntry(
      'pin',
      ({ id }) => conversations.pin(id, true),
      ({ pinned }) => !pinned,
    ),
    onEntry(
      'unpin',
      ({ id }) => conversations.pin(id, false),
      ({ pinned }) => pinned,
    ),
    onEntry('delete', (open) => chat.delete(open)),
    { ...named('import'), group: 'conversation', run: () => void chat.import() },
    {
      ...named('undo-delete'),
      group: 'conversation',
      keys: { key: 'Z' },
      notInFields: true,
      enabled: () => conversations.deleted.length > 0,
      run: () => void chat.undoDelete(),
    },
  ];
}

function answerCommands({ answerer, attachments, chat, conversation, navigation, screen, work }: CommandState): Command[] {
  const last = () => conversation.turns.at(-1);
  // A hidden conversation is not changed.
  const chatting = () => navigation.place === 'chat';
  const idle = () => chatting() && !work.running && !answerer.comingUp && answerer.answerable;
  const answerOfLast = () => {
    const turn = last();
    return turn?.answer.over ? answerText(turn) : '';
  };
  const onLast = (act: (turn: Turn) => unknown) => () => {
    const turn = last();
    if (turn) void act(turn);
  };
  return [
    { ...named('stop'), group: 'answer', keys: { key: '.' }, escape: work.here, enabled: () => work.running, run: () => work.stop() },
    {
      ...named('regenerate'),
      group: 'answer',
      keys: { key: 'R' },
      enabled: () => idle() && last()?.answer.over === true,
      run: onLast((turn) => conversation.regenerate(turn)),
    },
    {
      ...named('continue'),
      group: 'answer',
      enabled: () => {
        const turn = last();
        return (
          idle() &&
          typeof turn?.answerId === 'number' &&
          turn.answer.over &&
          turn.answer.text !== '' &&
          !isByServer(turn) &&
          !answerer.server
        );
      },
      run: onLast((turn) => conversation.continueAnswer(turn)),
    },
    {
      ...named('copy-answer'),
      group: 'answer',
      keys: { key: 'C', shift: true },
      enabled: () => chatting() && answerOfLast() !== '',
      run: () => void screen.copy(answerOfLast()),
    },
    {
      ...named('edit-question'),
      group: 'answer',
      enabled: () => idle() && last()?.answer.over === true,
      run: () => (chat.toEdit = last()?.key ?? null),
    },
    { ...named('attach-files'), group: 'answer', enabled: chatting, run: () => void attachments.choose() },
    ...([-1, 1] as const).map((by): Command => ({
      ...named(by < 0 ? 'previous-branch' : 'next-branch'),
      group: 'answer',
      enabled: () => idle() && branchBeside(conversation.turns, by) !== null,
      run: () => {
        const message = branchBeside(conversation.turns, by);
        if (message !== null) void conversation.choose(message);
      },
    })),
  ];
}

function windowCommands({ log, navigation, preferences, screen }: CommandState): Command[] {
  const { strings } = language;
  return [
    {
      ...named('palette'),
      group: 'window',
      keys: { key: 'K' },
      stays: true,
      run: () => (navigation.sheet = navigation.sheet === 'palette' ? null : 'palette'),
    },
    { ...named('settings'), group: 'window', keys: { key: ',' }, run: () => (navigation.sheet = 'settings') },
    {
      ...named('shortcuts'),
      group: 'window',
      keys: { key: '/' },
      alone: '?',
      stays: true,
      run: () => (navigation.sheet = navigation.sheet === 'shortcuts' ? null : 'shortcuts'),
    },
    ...places.map((place, i): Command => ({
      ...valued('place', place, strings.places[place]),
      group: 'window',
      keys: { key: String(i + 1) },
      chosen: navigation.place === place,
      run: () => {
        navigation.goTo(place);
        screen.compose();
      },
    })),
    {
      ...named('text-larger'),
      group: 'window',
      keys: { key: '=', or: '+' },
      stays: true,
      enabled: () => preferences.textSize !== textSizes.at(-1),
      run: () => preferences.resize(1),
    },
    {
      ...named('text-smaller'),
      group: 'window',
      keys: { key: '-' },
      stays: true,
      enabled: () => preferences.textSize !== textSizes[0],
      run: () => preferences.resize(-1),
    },
    {
      ...named('text-default-size'),
      group: 'window',
      keys: { key: '0' },
      stays: true,
      run: () => preferences.resetSize(),
    },
    { ...named('show-log'), group: 'window', run: () => void log.show() },
    ...appearances.map((appearance): Command => ({
      ...valued('appearance', appearance, strings.appearances[appearance]),
      group: 'window',
      chosen: preferences.appearance === appearance,
      run: () => void preferences.set('appearance', appearance),
    })),
    ...colourModes.map((mode): Command => ({
      ...valued('colours', mode, strings.colourModes[mode]),
      group: 'window',
      chosen: preferences.colourMode === mode,
      run: () => void preferences.set('colourMode', mode),
    })),
    ...views.map((view): Command => ({
      ...valued('view', view, strings.views[view]),
      group: 'window',
      chosen: preferences.view === view,
      run: () => void preferences.set('view', view),
    })),
  ];
}

function modelCommands({ answerer, library, models, navigation, screen, work }: CommandState): Command[] {
  // The models of running work must stay in memory.
  const changeable = () => models.loading === null && !work.running;
  return [
    {
      ...named('open-model'),
      group: 'model',
      keys: { key: 'O' },
      enabled: changeable,
      run: () => void answerer.openTarget(),
    },
    {
      ...named('open-draft'),
      group: 'model',
      keys: { key: 'O', shift: true },
      enabled: changeable,
      run: () => void models.openDraft(),
    },
    {
      ...named('find-model'),
      group: 'model',
      run: () => {
        navigation.showLibrary();
        screen.search();
      },
    },
    { ...named('get-model'), group: 'model', run: () => navigation.showLibrary('catalogue') },
    {
      ...named('other-repository'),
      group: 'model',
      run: () => {
        navigation.showLibrary('catalogue');
        screen.repository();
      },
    },
    {
      ...named('add-folder'),
      group: 'model',
      run: () => {
        navigation.showLibrary('folders');
        void library.addFolder();
      },
    },
    { ...named('unload-models'), group: 'model', enabled: () => models.loaded !== null && changeable(), run: () => void models.unload() },
    {
      ...named('cancel-loading'),
      group: 'model',
      enabled: () => models.loading !== null && !models.cancelling,
      run: () => void models.cancel(),
    },
  ];
}

function methodCommands({ models, settings }: CommandState): Command[] {
  return offeredMethods(models.info).map(({ name }) => ({
    ...valued('method', name, methodName(name)),
    group: 'method',
    chosen: settings.method === name,
    enabled: () => isUsable(name, models.loaded),
    run: () => (settings.method = name),
  }));
}

function presetCommands({ preferences, presets }: CommandState): Command[] {
  return preferences.presets.map((preset) => ({
    ...valued('preset', preset.name, preset.name),
    group: 'preset',
    run: () => presets.use(preset),
  }));
}

/** Commands that load a model, for searching by name. */
export function loadCommands({ answerer, library, models, work }: CommandState): Command[] {
  return library.models
    .filter((model) => model.problem === null)
    .map((model): Command => ({
      ...modelWords(library, model),
      group: 'model',
      chosen: !answerer.server && models.loaded?.target.path === model.path,
      enabled: () => models.loading === null && !work.running,
      run: () => void answerer.useLoaded(model),
    }));
}

/** Texts of a command in the window's language. */
function named(id: AppCommandName): Pick<Command, 'id' | 'title' | 'also'> {
  const { title, also } = language.strings.commands[id];
  return { id, title, also: together(also, en.commands[id].also) };
}

/** Texts of a command for a value, in the window's language. */
function valued(choice: ChoiceName, value: string, label: string): Pick<Command, 'id' | 'title' | 'also'> {
  const { title, also } = language.strings.choices[choice];
  return { id: `${choice}-${value}`, title: title(label), also: together(also, en.choices[choice].also) };
}

/** Texts of a command for a model, found by its title and by its file name. */
function modelWords(library: LibraryState, model: ModelEntry): Pick<Command, 'id' | 'title' | 'also'> {
  const words = valued('model', model.path, library.fullTitleOf(model));
  return { ...words, also: together(words.also, model.name) };
}

/** Merges lists of words without duplicates. */
const together = (...lists: (string | undefined)[]): string => [...new Set(lists.flatMap((list) => list?.split(' ') ?? []))].join(' ');

/** Returns `true` if a command is possible now. */
export const possible = (command: Command): boolean => command.enabled?.() ?? true;

/** Runs a command if it is possible now, and closes the open sheet unless the command keeps it. */
export function perform({ navigation }: Pick<CommandState, 'navigation'>, command: Command): void {
  if (!possible(command)) return;
  if (!command.stays) navigation.sheet = null;
  command.run();
}

/** Runs the command of a native menu item. */
export function performMenuItem(state: CommandState, item: string): void {
  const command = commands(state).find(({ id }) => id === item);
  if (command) perform(state, command);
}

/** State that Escape changes. */
interface EscapeState {
  readonly find: Pick<Find, 'shown' | 'close'>;
  readonly navigation: Pick<Navigation, 'place'>;
  readonly notices: Pick<Notices, 'failure' | 'dismiss'>;
  readonly screen: Pick<Screen, 'compose'>;
  readonly tokens: TokenFocus;
  readonly work: Pick<Work, 'here' | 'stop'>;
}

/** Handles Escape where no dialog or field did: it closes a card, a failure or the find bar before it stops work. */
export function performEscape({ find, navigation, notices, screen, tokens, work }: EscapeState): void {
  if (tokens.pointed) {
    tokens.unpin();
    screen.compose();
  } else if (notices.failure !== null) notices.dismiss(notices.failure);
  else if (find.shown && navigation.place === 'chat') find.close();
  else if (work.here) work.stop();
  else tokens.only = null;
}

/** The command for a key with the command key, whether possible now or not. */
export function commandOf(all: readonly Command[], pressed: { key: string; shift: boolean }): Command | undefined {
  const key = pressed.key.toUpperCase();
  return all.find(({ keys }) => {
    if (!keys || (keys.key !== key && keys.or !== key)) return false;
    // Which symbols need Shift depends on the keyboard.
    return !/^[A-Z]$/.test(key) || (keys.shift ?? false) === pressed.shift;
  });
}

/** The command for a key pressed alone. */
export const commandOfKey = (all: readonly Command[], key: string): Command | undefined => all.find(({ alone }) => alone === key);

/** Commands of a group. */
interface CommandsOfGroup {
  group: CommandGroup;
  commands: Command[];
}

/** The commands that have keys, by group. */
export function withKeys(all: readonly Command[]): CommandsOfGroup[] {
  const groups: CommandsOfGroup[] = [];
  for (const command of all.filter(({ keys }) => keys)) {
    const last = groups.at(-1);
    if (last?.group === command.group) last.commands.push(command);
    else groups.push({ group: command.group, commands: [command] });
  }
  return groups;
}

/** The conversation above (-1) or below (1) the open one in the list; null for none. */
function neighbourIn(entries: readonly ConversationEntry[], open: number | null, by: -1 | 1): number | null {
  const ids = grouped(entries, new Date()).flatMap((group) => group.entries.map(({ id }) => id));
  const at = open === null ? -1 : ids.indexOf(open);
  return (at < 0 ? (by > 0 ? ids[0] : undefined) : ids[at + by]) ?? null;
}

/** The message before (-1) or after (1) the shown one in the last place with several: of its answers, else of its
 * questions. Null for none. */
function branchBeside(turns: readonly Turn[], by: -1 | 1): number | null {
  const places = turns.flatMap(({ questions, answers }) => [questions, answers]);
  const place = places.findLast((siblings) => (siblings?.ids.length ?? 0) > 1);
  return place?.ids[place.at + by] ?? null;
}
