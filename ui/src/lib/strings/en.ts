// All English text of the window. Every other language has the same shape.
// Numbers arrive formatted. A word that follows a number comes from `nouns`.

import type {
  AnswerOrigin,
  Appearance,
  ChoiceName,
  ColourMode,
  CommandGroup,
  AppCommandName,
  MarkClass,
  Place,
  TextSize,
  View,
  WordedMethod,
} from './keys';
import type { AcceptanceRule, StopReason } from '../ipc/schema.gen';
import { chatEn } from './chatEn';
import { compareEn } from './compareEn';
import { errorsEn, refusalsEn } from './errorsEn';
import { labEn } from './labEn';
import { libraryEn } from './libraryEn';
import menu from './menuEn.json';

/** A noun in the plural forms of its language. */
type Noun = Partial<Record<Intl.LDMLPluralRule, string>> & { other: string };

/** A label with an explanation. */
export interface Named {
  label: string;
  /** One sentence for a reader new to speculative decoding. */
  meaning: string;
}

/** The title and search words of a command. */
interface CommandWords {
  title: string;
  /** Extra search words. The English ones work in every language. */
  also?: string;
}

/** The titles and search words of a choice's commands, one command for each value. */
interface ChoiceWords {
  title: (value: string) => string;
  /** Extra search words. The English ones work in every language. */
  also?: string;
}

const nouns: Record<
  | 'answer'
  | 'bias'
  | 'download'
  | 'draw'
  | 'drafter'
  | 'kernel'
  | 'like'
  | 'minute'
  | 'model'
  | 'prompt'
  | 'proposal'
  | 'request'
  | 'round'
  | 'row'
  | 'run'
  | 'sample'
  | 'source'
  | 'stopString'
  | 'text'
  | 'thread'
  | 'token',
  Noun
> = {
  answer: { one: 'answer', other: 'answers' },
  bias: { one: 'token bias', other: 'token biases' },
  download: { one: 'download', other: 'downloads' },
  draw: { one: 'draw', other: 'draws' },
  drafter: { one: 'drafter', other: 'drafters' },
  kernel: { one: 'kernel', other: 'kernels' },
  like: { one: 'like', other: 'likes' },
  minute: { one: 'minute', other: 'minutes' },
  model: { one: 'model', other: 'models' },
  prompt: { one: 'prompt', other: 'prompts' },
  proposal: { one: 'proposal', other: 'proposals' },
  request: { one: 'request', other: 'requests' },
  round: { one: 'round', other: 'rounds' },
  row: { one: 'row', other: 'rows' },
  run: { one: 'run', other: 'runs' },
  sample: { one: 'sample', other: 'samples' },
  source: { one: 'source', other: 'sources' },
  stopString: { one: 'stop string', other: 'stop strings' },
  text: { one: 'text', other: 'texts' },
  thread: { one: 'thread', other: 'threads' },
  token: { one: 'token', other: 'tokens' },
};

const origins: Record<AnswerOrigin, Named> = {
  accepted: { label: 'accepted', meaning: 'The draft guessed it, and the target agreed.' },
  resampled: { label: 'resampled', meaning: 'The draft guessed wrong, so the target chose.' },
  bonus: { label: 'bonus', meaning: 'All guesses were right, so the target added one.' },
  plain: { label: 'plain', meaning: 'The target wrote it without a guess.' },
  chosen: { label: 'chosen', meaning: 'Chosen by you. The answer continues from it.' },
};

const methods: Record<WordedMethod, Named> = {
  auto: { label: 'Automatic', meaning: 'The loaded draft expected to be fastest, or none' },
  'draft-model': { label: 'Draft model', meaning: 'A smaller model drafts ahead' },
  'draft-tree': { label: 'Draft tree', meaning: 'A smaller model drafts several continuations' },
  cascade: { label: 'Suffix, then draft', meaning: 'Suffix if it expects more accepted tokens, else the draft' },
  'merged-tree': { label: 'Merged tree', meaning: 'All loaded drafts at once, merged into one tree' },
  ngram: { label: 'N-gram', meaning: 'Copies the text that followed the same tokens earlier' },
  suffix: { label: 'Suffix', meaning: 'Repeats the most frequent continuation so far' },
  retrieval: { label: 'Retrieval', meaning: 'Copies what followed the same tokens in your texts' },
  'suffix-head': { label: 'Suffix, then head', meaning: 'Suffix if it expects more accepted tokens, else the head' },
  'ngram-head': { label: 'N-gram, then head', meaning: 'N-gram if it expects more accepted tokens, else the head' },
  head: { label: 'Head', meaning: 'A network trained for this model drafts' },
  'head-tree': { label: 'Head tree', meaning: 'A network trained for this model drafts several continuations' },
  lookahead: { label: 'Lookahead', meaning: 'The model drafts in extra rows of its own passes' },
  'layer-skip': { label: 'Layer skip', meaning: 'The model drafts with some layers skipped' },
  'early-exit': { label: 'Early exit', meaning: 'The model drafts with its first layers' },
  plain: { label: 'Plain', meaning: 'No draft, one token per pass' },
};

/** Acceptance rules for drafted tokens. */
const rules: Record<AcceptanceRule['name'], Named> = {
  lossless: { label: 'Lossless', meaning: 'Keeps the target’s distribution; accepts the most tokens' },
  match: { label: 'Match', meaning: 'Lossless; accepts a token if the target samples the same' },
  coupled: { label: 'Coupled', meaning: 'Lossless; one text per seed for all methods' },
  'lossy-typical': { label: 'Lossy, typical', meaning: 'Changes the text; accepts plausible drafts' },
  'lossy-lenience': { label: 'Lossy, lenient', meaning: 'Changes the text; accepts drafts more readily' },
};

const stops: Record<StopReason, string> = {
  end_of_turn: 'Ended by the model',
  stop_string: 'Ended at a stop string',
  max_tokens: 'Ended at the maximum length',
  context_full: 'Ended because the context is full',
  cancelled: 'Stopped by you',
};

const commandGroups: Record<CommandGroup, string> = {
  conversation: 'Conversation',
  answer: 'Answer',
  window: 'Window',
  model: 'Model',
  method: 'Method',
  preset: 'Presets',
};

const commands: Record<AppCommandName, CommandWords> = {
  'new-conversation': { title: 'New conversation' },
  search: { title: 'Find…', also: 'search text' },
  'find-next': { title: 'Find next', also: 'match' },
  'find-previous': { title: 'Find previous', also: 'match' },
  'search-conversations': { title: 'Search conversations', also: 'find' },
  'previous-conversation': { title: 'Previous conversation' },
  'next-conversation': { title: 'Next conversation' },
  rename: { title: 'Rename conversation…', also: 'title' },
  pin: { title: 'Pin conversation', also: 'keep on top' },
  unpin: { title: 'Unpin conversation' },
  delete: { title: 'Delete conversation', also: 'remove' },
  'undo-delete': { title: 'Undo delete', also: 'restore bring back' },
  'export-markdown': { title: 'Save conversation as Markdown…', also: 'export' },
  'export-json': { title: 'Save conversation as JSON…', also: 'export' },
  import: { title: 'Import conversation…' },
  'attach-files': { title: 'Attach text files…', also: 'document upload paperclip' },
  stop: { title: 'Stop answer', also: 'cancel' },
  regenerate: { title: 'Regenerate answer', also: 'regenerate retry again' },
  continue: { title: 'Continue answer', also: 'continue resume' },
  'copy-answer': { title: 'Copy last answer' },
  'edit-question': { title: 'Edit last question…', also: 'edit change ask differently' },
  'previous-branch': { title: 'Previous branch', also: 'answer question version' },
  'next-branch': { title: 'Next branch', also: 'answer question version' },
  palette: { title: 'Commands' },
  settings: { title: 'Settings…', also: 'preferences options language' },
  shortcuts: { title: 'Keyboard shortcuts', also: 'keys help' },
  'text-larger': { title: 'Larger text', also: 'zoom in bigger size' },
  'text-smaller': { title: 'Smaller text', also: 'zoom out size' },
  'text-default-size': { title: 'Default text size', also: 'zoom reset default usual' },
  'show-log': { title: 'Show log', also: 'problem error crash file' },
  'open-model': { title: 'Open model…' },
  'open-draft': { title: 'Open draft…' },
  'find-model': { title: 'Search models', also: 'library find filter' },
  'get-model': { title: 'Download a model from the catalogue', also: 'download get hub hugging face' },
  'other-repository': { title: 'Download from another repository…', also: 'download get model hub hugging face url' },
  'add-folder': { title: 'Add model folder…', also: 'library directory' },
  'unload-models': { title: 'Unload models', also: 'eject free memory' },
  'cancel-loading': { title: 'Cancel loading', also: 'stop' },
};

const choices: Record<ChoiceName, ChoiceWords> = {
  place: { title: (place) => `Go to ${place}`, also: 'show screen' },
  appearance: { title: (appearance) => `Appearance: ${appearance}`, also: 'theme mode colours' },
  colours: { title: (mode) => `Token colours: ${mode}` },
  view: { title: (view) => `Answer view: ${view}`, also: 'markdown' },
  method: { title: (method) => `Method: ${method}` },
  preset: { title: (name) => `Use preset: ${name}` },
  model: { title: (name) => `Load ${name}`, also: 'open model' },
};

const appearances: Record<Appearance, string> = { system: 'System', light: 'Light', dark: 'Dark' };

const textSizes: Record<TextSize, string> = { 13: 'Small', 15: 'Medium', 18: 'Large' };

const colourModes: Record<ColourMode, string> = {
  origin: 'Origin',
  off: 'Off',
  confidence: 'Confidence',
  entropy: 'Entropy',
  rounds: 'Rounds',
};

const views: Record<View, string> = { rich: 'Formatted', tokens: 'Tokens' };

export const en = {
  nouns,
  origins,
  methods,
  errors: errorsEn,
  refusals: refusalsEn,
  /** Titles of the native menu by id: those of a Mac, and the ones that differ on other systems. */
  menu,
  menuElsewhere: {} as Readonly<Partial<typeof menu>>,
  stops,
  commandGroups,
  commands,
  choices,
  appearances,
  textSizes,
  colourModes,
  views,
  loading: (name: string) => `Loading ${name}`,
  openModelFirst: 'Open a model first',
  /** The screens of the window. */
  places: {
    label: 'Screens',
    chat: 'Chat',
    compare: 'Compare',
    lab: 'Lab',
    library: 'Library',
    title: (place: string, keys: string) => `${place} (${keys})`,
  } satisfies Record<Place, string> & Record<string, unknown>,
  ...chatEn,
  compare: compareEn,
  lab: labEn,
  library: libraryEn,
  chart: {
    table: 'Table',
    tableOf: (title: string) => `Table of “${title}”`,
  },
  /** The modifier key of shortcuts on systems without ⌘. */
  controlKey: 'Ctrl',
  shiftKey: 'Shift',
  escapeKey: 'Esc',
  numberField: {
    less: (label: string) => `Decrease ${label}`,
    more: (label: string) => `Increase ${label}`,
  },
  dialogs: {
    openModel: 'Open a model',
    openDraft: 'Open a draft model',
    importConversation: 'Import a conversation',
    attachFiles: 'Attach text files',
    modelFiles: 'Model (GGUF)',
    conversationFiles: 'Conversation',
    /** The file name of a conversation whose title gives none. */
    conversationFile: 'conversation',
  },
  models: {
    target: {
      named: (name: string) => `Model: ${name}`,
      none: 'No model',
      heading: 'Models on this machine',
      open: 'Open model…',
    },
    draft: {
      none: 'No draft',
      heading: 'Draft for this model',
      open: 'Open draft…',
    },
    draftMark: 'draft',
    /** Mark of a head, a network trained for the model. */
    headMark: 'head',
    /** For a model that brings a drafter, if no draft was chosen. */
    ownDraft: 'Own drafter',
    ownDrafter: 'Own drafter of this model',
    withoutDraft: 'Without a draft',
    metal: 'Metal',
    /** Costs of passes come from published figures of the chip, or from products that were timed. */
    metalPredicted: 'Metal, times predicted',
    metalMeasured: 'Metal, GPU timed',
    chipFigures: (chip: string, bandwidth: string, cores: string) =>
      `Pass times are predicted from published figures of ${chip}: ${bandwidth} GB/s, ${cores} GPU cores. Its kernels were not timed.`,
    productFigures: (bandwidth: string) =>
      `Pass times are predicted from measurements on this GPU: products of 1 to 16 rows, memory ${bandwidth} GB/s.`,
    /** Kernels of the GPU failed their test, or lack a shape of the model. */
    metalReplaced: 'Metal, some kernels replaced',
    testingGpu: 'Testing Metal kernels…',
    gpuProblems: (kernels: string) => `Metal: ${kernels} failed`,
    cpu: (threads: string) => `CPU, ${threads}`,
  },
  /** Headings in a conversation exported as Markdown. */
  export: {
    question: 'You',
    answer: 'Answer',
  },
  settingsDialog: {
    title: 'Settings',
    close: 'Close',
    appearance: 'Appearance',
    textSize: 'Text size',
    textSizeNote: 'In conversations',
    language: 'Language',
    systemLanguage: 'System',
    colours: 'Token colours',
    view: 'Answer view',
    conversations: 'Conversations',
    conversationsNote: 'File size on this machine',
    defaultInstructions: 'Default instructions',
    defaultInstructionsNote: 'For every new conversation',
    presets: 'Presets',
    presetsNote: 'Saved instructions and settings',
    noPresets: 'None yet',
    use: 'Use',
    remove: (name: string) => `Delete ${name}`,
    confirmRemove: (name: string) => `Delete “${name}” permanently?`,
    removeYes: 'Delete',
    removeNo: 'Keep',
    rename: (name: string) => `Rename ${name}`,
    saveLabel: 'Save current settings as preset',
    placeholder: 'Name',
    save: 'Save',
    replace: 'Replace',
    /** The reason follows. */
    notSaved: 'Changes last until you close the window.',
    temperature: (value: string) => `temperature ${value}`,
    withInstructions: 'with instructions',
  },
  updates: {
    title: 'Updates',
    version: 'Version',
    elsewhere: 'Get updates where you downloaded Hunch',
    check: 'Check for updates',
    checking: 'Checking for updates…',
    current: 'Hunch is up to date',
    found: (version: string) => `Version ${version} is available`,
    download: 'Download update',
    of: (received: string, total: string) => `${received} of ${total}`,
    ready: (version: string) => `Version ${version} is ready`,
    restart: 'Restart to update',
    installing: 'Installing…',
    waits: 'When the running work has finished',
    automatic: 'Automatic checks',
    automaticNote: 'At each start, and once a day; sends no data about you',
    off: 'Off',
    on: 'On',
    notice: (version: string) => `Hunch ${version} is available. Find the update in the settings.`,
  },
  palette: {
    title: 'Commands',
    placeholder: 'Search commands and conversations',
    conversations: 'Conversations',
    nothingFound: 'No results',
    found: (count: string) => `${count} found`,
  },
  shortcuts: {
    title: 'Keyboard shortcuts',
    close: 'Close',
    /** Keys that are no commands. */
    more: 'Writing and reading',
    returnKey: 'Return',
    tabKey: 'Tab',
    send: 'Send the question',
    newLine: 'New line',
    tokens: 'Go to the tokens of an answer',
    move: 'Move over tokens',
    escape: 'Close what is open, else stop',
  },
  /** Short confirmations. */
  notices: {
    copied: 'Copied',
    filesNotKept: 'Some attached files are too large to keep. Send them before you close Hunch.',
    notCopied: 'Couldn’t copy. Select the text and copy it by hand.',
    presetUsed: (name: string) => `Using “${name}”`,
    saved: (name: string) => `Saved as “${name}”`,
  },
  broken: {
    turn: 'This answer can’t be shown token by token. Here is its text.',
    window: 'The window can’t be shown',
    windowSafe: 'Your conversations are safe on this machine. Reload the window to continue. If it fails again, see the log.',
    reload: 'Reload window',
    showLog: 'Show log',
  },
  errorCard: {
    again: 'Try again',
    /** Precedes the engine's own message, which is English. */
    details: 'Details:',
    dismiss: 'Dismiss',
  },
  /** Classes of tokens, in every colour mode. */
  marks: {
    ...origins,
    sure: { label: 'sure', meaning: 'Target probability 90% or more.' },
    likely: { label: 'likely', meaning: 'Target probability 50 to 90%.' },
    unsure: { label: 'unsure', meaning: 'Target probability 10 to 50%.' },
    unlikely: { label: 'unlikely', meaning: 'Target probability below 10%.' },
    settled: { label: 'very low', meaning: 'Below 0.5 bits: almost no alternative.' },
    leaning: { label: 'low', meaning: '0.5 to 1.5 bits: one or two alternatives.' },
    open: { label: 'medium', meaning: '1.5 to 3 bits: several alternatives.' },
    wide: { label: 'high', meaning: 'Above 3 bits: many alternatives.' },
    whole: { label: 'full', meaning: 'From a round whose draft was fully accepted.' },
    partly: { label: 'partial', meaning: 'From a round whose draft was accepted up to a rejection.' },
    none: { label: 'rejected', meaning: 'From a round whose first draft token was rejected.' },
    undrafted: { label: 'no draft', meaning: 'From a round without a draft: one pass, one token.' },
  } satisfies Record<MarkClass, Named>,
  linkQuestion: {
    title: 'Open this link in the browser?',
    open: 'Open',
  },
  /** Files dragged onto the window. */
  files: {
    asModel: 'Open as model',
    asDraft: 'Use as draft',
    import: (count: number) => (count === 1 ? 'Import conversation or attach file' : `Import or attach ${count} files`),
    attach: (count: number) => (count === 1 ? 'Attach to the question' : `Attach ${count} files to the question`),
    oneModel: (names: readonly string[]) => `Couldn’t open ${names.join(', ')}. Drop one model at a time.`,
    stillLoading: (name: string) => `${name} is still loading. Drop the model again afterwards.`,
  },
  rules: {
    ...rules,
    title: 'Acceptance',
    noEffect: 'No effect at temperature 0',
    otherDistribution: 'The answer does not follow the target’s distribution.',
    numbers: {
      epsilon: { label: 'Epsilon', note: 'Drafts above this probability are always accepted' },
      delta: { label: 'Delta', note: 'Drafts above delta · e^−H are accepted too; H is the target’s entropy' },
      lenience: {
        label: 'Lenience',
        note: 'Accepts with min(1, p/(lenience · q)). At temperature 0: tokens at least this likely, relative to the likeliest one',
      },
    },
    choose: 'Which drafted tokens are accepted',
    /** The test that a drafted token passed or failed. A deterministic draft has no q. */
    because: {
      accepted: 'accepted',
      rejected: 'rejected',
      ratio: (certain: boolean): string => (certain ? 'p' : 'min(1, p/q)'),
      lenient: (lenience: string, certain: boolean) => (certain ? `min(1, p/${lenience})` : `min(1, p/(${lenience} q))`),
      /** The test at temperature 0. */
      near: (lenience: string) => `At least ${lenience} times as likely as the likeliest token`,
      far: (lenience: string) => `Less than ${lenience} times as likely as the likeliest token`,
      /** H is the entropy of the target's distribution. */
      typical: (epsilon: string, delta: string) => `min(${epsilon}, ${delta} · e^−H)`,
      matched: 'The target sampled it too',
      unmatched: 'The target sampled another token',
      coupled: 'The target drew it too, with the same noise',
      uncoupled: 'The target drew another token, with the same noise',
    },
    /** The rule of an answer, unless it was the default. */
    made: {
      match: 'match rule',
      coupled: 'coupled rule',
      'lossy-typical': (epsilon: string, delta: string) => `lossy: typical, ε ${epsilon}, δ ${delta}`,
      'lossy-lenience': (lenience: string) => `lossy: lenience ${lenience}`,
    },
  },
  settingsButton: {
    label: 'Settings',
    labelUpdate: 'Settings, update available',
    title: (keys: string, update: boolean) => `Settings (${keys})${update ? ', update available' : ''}`,
  },
};

/** All text of the window in one language. */
export type Strings = typeof en;
