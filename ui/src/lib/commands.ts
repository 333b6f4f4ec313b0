// The table of commands for palette, shortcuts and native menu. No DOM.

import type { ConversationEntry } from './ipc/schema.gen';
import { methodName, offeredMethods } from './methods';
import { grouped } from './state/conversations.svelte';
import { isUsable } from './state/settings.svelte';
import { saidIn, type Turn } from './state/thread.svelte';
import type { WindowState } from './state/window.svelte';
import { en } from './strings/en';
import { language } from './strings/index.svelte';
import { appearances, colourModes, places, textSizes, views, type ChoiceName, type CommandGroup, type CommandName } from './strings/keys';

/** A key pressed together with the system's command key. */
export interface Shortcut {
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

/** All commands, in display order. */
export function commands(state: WindowState): Command[] {
  const { conversation, conversations, models, preferences, screen, settings } = state;
  const { strings } = language;
  const last = () => conversation.turns.at(-1);
  const entry = () => conversations.entries.find(({ id }) => id === conversation.id);
  // A hidden conversation is not changed.
  const chatting = () => state.place === 'chat';
  const idle = () => chatting() && !state.running && models.loading === null && models.answerable;
  // The models of running work must stay in memory.
  const changeable = () => models.loading === null && !state.running;
  const said = () => {
    const turn = last();
    return turn?.answer.over ? saidIn(turn) : '';
  };
  /** A command on the open conversation. */
  const withEntry = (act: (open: ConversationEntry) => unknown) => () => {
    const open = entry();
    if (open) void act(open);
  };
  const save = (format: 'markdown' | 'json') => withEntry((open) => conversations.save(open, format));

  return [
    {
      ...named('new-conversation'),
      group: 'conversation',
      keys: { key: 'N' },
      run: () => {
        state.newConversation();
        screen.compose();
      },
    },
    { ...named('search'), group: 'conversation', keys: { key: 'F' }, run: screen.search },
    {
      ...named('previous-conversation'),
      group: 'conversation',
      enabled: () => beside(state, -1) !== null,
      run: () => open(state, beside(state, -1)),
    },
    {
      ...named('next-conversation'),
      group: 'conversation',
      enabled: () => beside(state, 1) !== null,
      run: () => open(state, beside(state, 1)),
    },
    {
      ...named('export-markdown'),
      group: 'conversation',
      enabled: () => chatting() && entry() !== undefined,
      run: save('markdown'),
    },
    {
      ...named('export-json'),
      group: 'conversation',
      enabled: () => chatting() && entry() !== undefined,
      run: save('json'),
    },
    {
      ...named('rename'),
      group: 'conversation',
      enabled: () => chatting() && entry() !== undefined,
      run: withEntry(screen.rename),
    },
    {
      ...named('pin'),
      group: 'conversation',
      enabled: () => chatting() && entry()?.pinned === false,
      run: withEntry(({ id }) => conversations.pin(id, true)),
    },
    {
      ...named('unpin'),
      group: 'conversation',
      enabled: () => chatting() && entry()?.pinned === true,
      run: withEntry(({ id }) => conversations.pin(id, false)),
    },
    {
      ...named('delete'),
      group: 'conversation',
      enabled: () => chatting() && entry() !== undefined,
      run: withEntry((open) => state.deleteConversation(open)),
    },
    { ...named('import'), group: 'conversation', run: () => void state.importConversation() },
    {
      ...named('undo-delete'),
      group: 'conversation',
      keys: { key: 'Z' },
      notInFields: true,
      enabled: () => conversations.deleted.length > 0,
      run: () => void state.undoDelete(),
    },

    { ...named('stop'), group: 'answer', escape: state.runningHere, enabled: () => state.running, run: () => state.stop() },
    {
      ...named('regenerate'),
      group: 'answer',
      keys: { key: 'R' },
      enabled: () => idle() && last()?.answer.over === true,
      run: () => {
        const turn = last();
        if (turn) void conversation.regenerate(turn);
      },
    },
    {
      ...named('continue'),
      group: 'answer',
      enabled: () => idle() && typeof last()?.answerId === 'number' && last()?.answer.over === true && last()?.answer.text !== '',
      run: () => {
        const turn = last();
        if (turn) void conversation.continueAnswer(turn);
      },
    },
    {
      ...named('copy-answer'),
      group: 'answer',
      keys: { key: 'C', shift: true },
      enabled: () => chatting() && said() !== '',
      run: () => void screen.copy(said()),
    },
    {
      ...named('edit-question'),
      group: 'answer',
      enabled: () => idle() && last()?.answer.over === true,
      run: () => (state.toEdit = last()?.key ?? null),
    },
    ...([-1, 1] as const).map((by): Command => ({
      ...named(by < 0 ? 'previous-branch' : 'next-branch'),
      group: 'answer',
      enabled: () => idle() && branchBeside(conversation.turns, by) !== null,
      run: () => {
        const message = branchBeside(conversation.turns, by);
        if (message !== null) void conversation.choose(message);
      },
    })),

    {
      ...named('palette'),
      group: 'window',
      keys: { key: 'K' },
      stays: true,
      run: () => (state.sheet = state.sheet === 'palette' ? null : 'palette'),
    },
    { ...named('settings'), group: 'window', keys: { key: ',' }, run: () => (state.sheet = 'settings') },
    ...places.map((place, i): Command => ({
      ...valued('place', place, strings.places[place]),
      group: 'window',
      keys: { key: String(i + 1) },
      chosen: state.place === place,
      run: () => {
        state.goTo(place);
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
      ...named('text-usual'),
      group: 'window',
      keys: { key: '0' },
      stays: true,
      run: () => preferences.resetSize(),
    },
    { ...named('show-log'), group: 'window', run: () => void state.showLog() },
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

    {
      ...named('open-model'),
      group: 'model',
      keys: { key: 'O' },
      enabled: changeable,
      run: () => void models.openTarget(),
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
        state.showLibrary();
        screen.search();
      },
    },
    { ...named('get-model'), group: 'model', run: () => state.showLibrary('catalogue') },
    {
      ...named('other-repository'),
      group: 'model',
      run: () => {
        state.showLibrary('catalogue');
        screen.repository();
      },
    },
    {
      ...named('add-folder'),
      group: 'model',
      run: () => {
        state.showLibrary('folders');
        void state.library.addFolder();
      },
    },
    { ...named('unload-models'), group: 'model', enabled: () => models.loaded !== null && changeable(), run: () => void models.unload() },
    {
      ...named('cancel-loading'),
      group: 'model',
      enabled: () => models.loading !== null && !models.cancelling,
      run: () => void models.cancel(),
    },
    ...offeredMethods(models.info).map(({ name }): Command => ({
      ...valued('method', name, methodName(name)),
      group: 'method',
      chosen: settings.method === name,
      enabled: () => isUsable(name, models.loaded),
      run: () => (settings.method = name),
    })),
    ...preferences.presets.map((preset): Command => ({
      ...valued('preset', preset.name, preset.name),
      group: 'preset',
      run: () => state.usePreset(preset),
    })),
  ];
}

/** Commands that load a model, for searching by name. */
export function loadCommands(state: WindowState): Command[] {
  const { library, models } = state;
  return library.models
    .filter((model) => model.problem === null)
    .map((model): Command => ({
      ...valued('model', model.path, model.name),
      group: 'model',
      chosen: models.loaded?.target.path === model.path,
      enabled: () => models.loading === null && !state.running,
      run: () => void models.loadTarget(model),
    }));
}

/** Texts of a command in the window's language. */
function named(id: CommandName): Pick<Command, 'id' | 'title' | 'also'> {
  const { title, also } = language.strings.commands[id];
  return { id, title, also: together(also, en.commands[id].also) };
}

/** Texts of a command for a value, in the window's language. */
function valued(choice: ChoiceName, value: string, label: string): Pick<Command, 'id' | 'title' | 'also'> {
  const { title, also } = language.strings.choices[choice];
  return { id: `${choice}-${value}`, title: title(label), also: together(also, en.choices[choice].also) };
}

/** Merges lists of words without duplicates. */
const together = (...lists: (string | undefined)[]): string => [...new Set(lists.flatMap((list) => list?.split(' ') ?? []))].join(' ');

/** Returns `true` if a command is possible now. */
export const possible = (command: Command): boolean => command.enabled?.() ?? true;

/** Runs a command if it is possible now, and closes the open sheet unless the command keeps it. */
export function perform(app: WindowState, command: Command): void {
  if (!possible(command)) return;
  if (!command.stays) app.sheet = null;
  command.run();
}

/** Runs the command of a native menu item. */
export function performMenuItem(app: WindowState, item: string): void {
  const command = commands(app).find(({ id }) => id === item);
  if (command) perform(app, command);
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

/** The conversation above (-1) or below (1) the open one in the list; null for none. */
function beside(state: WindowState, by: -1 | 1): number | null {
  const ids = grouped(state.conversations.entries, new Date()).flatMap(({ entries }) => entries.map(({ id }) => id));
  const at = state.conversation.id === null ? -1 : ids.indexOf(state.conversation.id);
  return (at < 0 ? (by > 0 ? ids[0] : undefined) : ids[at + by]) ?? null;
}

/** The message before (-1) or after (1) the shown one in the last place with several: of its answers, else of its
 * questions. Null for none. */
function branchBeside(turns: readonly Turn[], by: -1 | 1): number | null {
  const places = turns.flatMap(({ questions, answers }) => [questions, answers]);
  const place = places.findLast((siblings) => (siblings?.ids.length ?? 0) > 1);
  return place?.ids[place.at + by] ?? null;
}

function open(state: WindowState, id: number | null): void {
  if (id !== null) void state.openConversation(id);
}
