// The words of the window in English, all of them. The shape of this catalogue is the shape of every other.
// Numbers come in written already; a word that follows a number is one of `nouns`.

import type { AnswerOrigin, Appearance, ChoiceName, ColourMode, CommandGroup, CommandName, MarkClass, OfferedMethod, Place, TextSize, View } from './keys';
import type { AcceptanceRule, StopReason } from '../ipc/schema.gen';
import { compareEn } from './compareEn';
import { errorsEn } from './errorsEn';
import { labEn } from './labEn';
import { libraryEn } from './libraryEn';
import menu from './menuEn.json';

/** A noun in the forms that a language has after a number. */
export type Noun = Partial<Record<Intl.LDMLPluralRule, string>> & { other: string };

/** What is named and explained. */
export interface Named {
  label: string;
  /** One sentence for a person who has not read a paper. */
  meaning: string;
}

/** What a command is called. */
export interface CommandWords {
  title: string;
  /** Words it is found by as well. The English ones work in every language. */
  also?: string;
}

/** What the commands of a choice are called: one for each of its values. */
export interface ChoiceWords {
  title: (value: string) => string;
  /** Words they are found by as well. The English ones work in every language. */
  also?: string;
}

const nouns: Record<'answer' | 'download' | 'minute' | 'model' | 'prompt' | 'round' | 'row' | 'run' | 'sample' | 'thread' | 'token', Noun> = {
  answer: { one: 'answer', other: 'answers' },
  download: { one: 'download', other: 'downloads' },
  minute: { one: 'minute', other: 'minutes' },
  model: { one: 'model', other: 'models' },
  prompt: { one: 'prompt', other: 'prompts' },
  round: { one: 'round', other: 'rounds' },
  row: { one: 'row', other: 'rows' },
  run: { one: 'run', other: 'runs' },
  sample: { one: 'sample', other: 'samples' },
  thread: { one: 'thread', other: 'threads' },
  token: { one: 'token', other: 'tokens' },
};

const origins: Record<AnswerOrigin, Named> = {
  accepted: { label: 'accepted', meaning: 'Drafted, and kept by the target.' },
  resampled: { label: 'resampled', meaning: 'Drawn by the target in place of a rejected draft.' },
  bonus: { label: 'bonus', meaning: 'Drawn by the target after a whole draft was kept.' },
  plain: { label: 'plain', meaning: 'Drawn by the target with no draft.' },
  chosen: { label: 'chosen', meaning: 'Chosen by you; the answer goes on from it.' },
};

const methods: Record<OfferedMethod, Named> = {
  'draft-model': { label: 'Draft model', meaning: 'A smaller model guesses ahead' },
  'draft-tree': { label: 'Draft tree', meaning: 'A smaller model guesses several continuations' },
  cascade: { label: 'Suffix, then draft', meaning: 'Guesses from the text where that promises more' },
  ngram: { label: 'N-gram', meaning: 'Guesses from text already there' },
  suffix: { label: 'Suffix', meaning: 'Guesses what most often followed the same words' },
  lookahead: { label: 'Lookahead', meaning: 'The model guesses for itself on the side' },
  'layer-skip': { label: 'Layer skip', meaning: 'The model guesses with some of its layers' },
  'early-exit': { label: 'Early exit', meaning: 'The model guesses with its first layers' },
  plain: { label: 'Plain', meaning: 'No guessing, one token a pass' },
};

/** Which drafted tokens stand, by rule. */
const rules: Record<AcceptanceRule['name'], Named> = {
  lossless: { label: 'Lossless', meaning: 'As the target writes alone; keeps most drafts' },
  match: { label: 'Match', meaning: 'Lossless; keeps drafts that the target draws too' },
  coupled: { label: 'Coupled', meaning: 'Lossless; one seed, one text, drafts or none' },
  'lossy-typical': { label: 'Lossy, typical', meaning: 'Changes the text; keeps any plausible draft' },
  'lossy-lenience': { label: 'Lossy, lenient', meaning: 'Changes the text; keeps drafts more readily' },
};

const stops: Record<StopReason, string> = {
  end_of_turn: 'Ended by the model',
  stop_string: 'Ended at a stop text',
  max_tokens: 'Ended at the longest answer allowed',
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

const commands: Record<CommandName, CommandWords> = {
  'new-conversation': { title: 'New conversation' },
  search: { title: 'Search conversations', also: 'find' },
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
  stop: { title: 'Stop answer' },
  'answer-again': { title: 'Answer again', also: 'retry regenerate' },
  'go-on': { title: 'Go on', also: 'continue' },
  'copy-answer': { title: 'Copy last answer' },
  'edit-question': { title: 'Ask the last question differently…', also: 'edit change' },
  'previous-branch': { title: 'Previous branch', also: 'answer question version' },
  'next-branch': { title: 'Next branch', also: 'answer question version' },
  palette: { title: 'Commands' },
  settings: { title: 'Settings…', also: 'preferences options language' },
  'text-larger': { title: 'Larger text', also: 'zoom in bigger size' },
  'text-smaller': { title: 'Smaller text', also: 'zoom out size' },
  'text-usual': { title: 'Usual text size', also: 'zoom reset' },
  'show-log': { title: 'Show log', also: 'problem error crash file' },
  'open-model': { title: 'Open model…' },
  'open-draft': { title: 'Open draft…' },
  'find-model': { title: 'Search models', also: 'library find filter' },
  'get-model': { title: 'Get a model from the catalogue', also: 'download hub hugging face' },
  'other-repository': { title: 'Get a model from another repository…', also: 'download hub hugging face url' },
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
  surprise: 'Surprise',
  rounds: 'Rounds',
};

const views: Record<View, string> = { rich: 'Formatted', tokens: 'Tokens' };

export const en = {
  nouns,
  origins,
  methods,
  errors: errorsEn,
  /** What the native menu is called, by id: on a Mac, and what is called otherwise on other systems. */
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
  /** Where one can be in the window. */
  places: {
    label: 'Places',
    chat: 'Chat',
    compare: 'Compare',
    lab: 'Lab',
    library: 'Library',
    title: (place: string, keys: string) => `${place} (${keys})`,
  } satisfies Record<Place, string> & Record<string, unknown>,
  compare: compareEn,
  lab: labEn,
  library: libraryEn,
  chart: {
    table: 'Table',
    tableOf: (title: string) => `Table behind “${title}”`,
  },
  /** The key that goes with a letter where there is no ⌘. */
  controlKey: 'Ctrl',
  shiftKey: 'Shift',
  escapeKey: 'Esc',
  numberField: {
    less: (label: string) => `Less ${label}`,
    more: (label: string) => `More ${label}`,
  },
  dialogs: {
    openModel: 'Open a model',
    openDraft: 'Open a draft model',
    importConversation: 'Import a conversation',
    modelFiles: 'GGUF model',
    conversationFiles: 'Conversation',
    /** A file's name, when the title gives none. */
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
    withoutDraft: 'Without a draft',
    metal: 'Metal',
    cpu: (threads: string) => `CPU, ${threads}`,
  },
  sidebar: {
    label: 'Conversations',
    search: 'Search',
    searchLabel: 'Search conversations',
    /** What a conversation without a title is called. */
    untitled: 'New conversation',
    searchTitle: (keys: string) => `Search all conversations (${keys})`,
    newConversation: 'New conversation',
    newConversationTitle: (keys: string) => `New conversation (${keys})`,
    found: 'Found',
    nothingFound: 'Nothing was found',
    empty: 'What you ask is kept here.',
    groups: {
      pinned: 'Pinned',
      today: 'Today',
      yesterday: 'Yesterday',
      lastSevenDays: 'Last seven days',
      earlier: 'Earlier',
    },
    title: 'Title',
    more: (title: string) => `More for ${title}`,
    rename: 'Rename',
    pin: 'Pin',
    unpin: 'Unpin',
    saveMarkdown: 'Save as Markdown…',
    saveJson: 'Save as JSON…',
    delete: 'Delete',
    deleted: (title: string) => `Deleted “${title}”`,
    undoTitle: (keys: string) => `Put it back (${keys})`,
    writing: 'writing…',
    undo: 'Undo',
    import: 'Import…',
  },
  storeProblem: {
    /** The reason follows. */
    notKept: 'Conversations are not being saved',
    damaged: 'The conversations file is damaged',
    choose: 'Choose what to do before you ask something, so that nothing is lost.',
    retry: 'Try again',
    restore: (date: string) => `Restore copy of ${date}`,
    startAnew: 'Start with an empty list',
    setAside: 'The present file is moved to the folder “set-aside” and not deleted',
    goWithout: 'Continue without saving',
  },
  /** What stands over the parts of a conversation that is saved for people. */
  export: {
    question: 'You',
    answer: 'Answer',
  },
  empty: {
    loadingNote: 'The file is read once and stays in memory.',
    heading: 'What should it write?',
    answers: (model: string) => `${model} answers, on this machine.`,
    examples: [
      'Write a Python function that merges two sorted lists.',
      'Explain in three sentences why the sky is blue.',
      'Write a short scene in a lighthouse during a storm.',
    ],
    colours: 'What the colours mean',
    openHeading: 'Open a model to begin',
    runs: 'Hunch runs GGUF models on this machine.',
    /** The folder's path stands between the two. */
    looksIn: { before: 'It looks for them in ', after: '.' },
    listed: 'Or one that is here already:',
  },
  conversation: {
    failed: 'The answer failed.',
    interrupted: 'The answer was interrupted.',
    answering: 'Answering',
    finished: (tokens: string, mean: string) => `Finished. ${tokens}, ${mean} tokens a pass.`,
    follow: 'Follow the answer',
    noModel: 'No model is loaded. Open a model first.',
    /** What went wrong, in a sentence. */
    refusedElsewhere: (message: string) => `What you asked before could not be done. ${message} Your text is kept where you typed it.`,
  },
  turn: {
    question: 'Question',
    askDifferently: 'Ask differently',
    editQuestion: 'Edit question',
    cancel: 'Cancel',
    ask: 'Ask',
    templateNote: 'The model’s chat template could not be used as it is',
    draftDropped: (method: string) => `${method} failed; the answer goes on without it`,
    /** The reason follows. */
    notKept: 'This answer is not saved yet; Hunch keeps trying.',
    /** The reason follows. */
    givenUp: 'This answer was not saved. Save it as a file to keep it.',
    saveAs: 'Save as…',
    saveAsName: 'Answer',
    interrupted: 'Interrupted: the program ended while this was being written. What is here is kept.',
    interruptedAtOnce: 'Interrupted: the program ended before anything was written.',
    answerAgain: 'Answer again',
    goOn: 'Go on',
    goOnTitle: 'Go on from here',
    copy: 'Copy',
    copied: 'Copied',
    notCopied: 'The clipboard did not take it',
    textOnly: 'Of this answer only the text is here: its tokens and figures did not come with it.',
    /** What the buttons beside each are called. */
    of: {
      question: {
        previous: 'Previous question',
        next: 'Next question',
        copy: 'Copy question',
        place: (at: number, all: number) => `question ${at} of ${all}`,
      },
      answer: {
        previous: 'Previous answer',
        next: 'Next answer',
        copy: 'Copy answer',
        place: (at: number, all: number) => `answer ${at} of ${all}`,
      },
    },
  },
  /** What a number in front of each means. */
  figures: {
    rate: 'tok/s',
    rateTitle: 'Tokens a second after the prompt was read, measured',
    accepted: 'of drafts accepted',
    acceptedTitle: 'Accepted of all drafted tokens, measured',
    mean: 'tokens a pass',
    meanTitle: 'Tokens per target pass, measured',
    parked: 'drafting rests, plain is faster here',
    /** The gain of drafting one token, two tokens, and so on. */
    predicted: (gains: readonly string[]) =>
      `Predicted speed over plain by tokens drafted: ${gains.map((gain, i) => `${String(i + 1)}: ${gain}x`).join(', ')}`,
    reading: 'Reading the prompt',
    readingSoFar: (done: string, tokens: string) => `Reading the prompt, ${done} of ${tokens}`,
    promptRead: 'Prompt read',
    firstToken: (time: string) => `first token ${time}`,
    promptRate: (rate: string) => `prompt read at ${rate} tok/s`,
    inAll: (time: string) => `${time} in all`,
    measured: 'measured',
    seed: (seed: number) => `seed ${seed}`,
    /** What wrote the answer; `draft` is null where no other model drafted. */
    by: (target: string, method: string, draft: string | null) => `by ${target}, ${method}${draft === null ? '' : ` ${draft}`}`,
    byTitle: 'Model, method and draft that wrote this answer',
    repeats: 'With the same models, settings and seed the answer is the same',
    repeatsWhenCold:
      'With the same models, settings and seed the answer is the same at temperature 0; above it, with a fixed K too',
  },
  composer: {
    label: 'Message',
    placeholder: 'Ask something',
    stopping: 'Stopping',
    escStops: 'Esc stops',
    comparing: 'A comparison is running.',
    elsewhere: (title: string) => `An answer is still being written in “${title}”.`,
    elsewhereUntitled: 'An answer is still being written in another conversation.',
    showElsewhere: 'Show it',
    stopElsewhere: 'Stop it',
    depthMark: 'K',
    depth: 'Tokens drafted a round',
    depthTitle: 'Most tokens drafted a round; auto measures what pays',
    auto: 'auto',
    stop: 'Stop',
    stopTitle: 'Stop (Esc)',
    send: 'Send',
    sendTitle: 'Send (Return)',
  },
  methodSelect: {
    label: (method: string) => `Method: ${method}`,
    title: 'How tokens are guessed ahead',
    draftDoesNotFit: 'This draft does not fit the model',
    openDraftFirst: 'Open a draft first',
    notAvailable: 'Not available with this model',
  },
  settings: {
    label: 'Settings',
    instructions: 'Instructions',
    instructionsNote: 'For the whole conversation',
    noInstructions: 'None',
    temperature: 'Temperature',
    temperatureNote: 'Higher is more varied',
    temperatureZero: '0 takes the likeliest token',
    topK: 'Top K',
    topP: 'Top P',
    minP: 'Min P',
    zeroKeepsAll: '0 keeps all tokens',
    oneKeepsAll: '1 keeps all tokens',
    repeatPenalty: 'Repeat penalty',
    repeatPenaltyNote: '1 changes nothing',
    maxTokens: 'Longest answer',
    maxTokensSpoken: 'Longest answer in tokens',
    maxTokensNote: 'Tokens',
    seed: 'Seed',
    seedNote: 'Same seed, same answer',
    randomSeed: 'random',
  },
  settingsDialog: {
    title: 'Settings',
    close: 'Close',
    appearance: 'Appearance',
    textSize: 'Text size',
    textSizeNote: 'Of the conversation',
    language: 'Language',
    systemLanguage: 'System',
    colours: 'Token colours',
    view: 'Answer view',
    conversations: 'Conversations',
    conversationsNote: 'Size of their file on this machine',
    presets: 'Presets',
    presetsNote: 'Instructions and settings under a name',
    noPresets: 'None yet',
    use: 'Use',
    remove: (name: string) => `Delete ${name}`,
    rename: (name: string) => `Rename ${name}`,
    saveLabel: 'Save current settings as preset',
    placeholder: 'Name',
    save: 'Save',
    replace: 'Replace',
    /** The reason follows. */
    notKept: 'Choices hold until the window closes.',
    temperature: (value: string) => `temperature ${value}`,
    withInstructions: 'with instructions',
  },
  palette: {
    title: 'Commands',
    placeholder: 'Type a command or a conversation',
    conversations: 'Conversations',
    nothingFound: 'Nothing was found',
    found: (count: string) => `${count} found`,
  },
  /** Said when something was done. */
  notices: {
    copied: 'Copied',
    notCopied: 'The clipboard did not take it. Nothing has changed; select the text and copy it from there.',
    presetUsed: (name: string) => `Using “${name}”`,
    saved: (name: string) => `Saved as “${name}”`,
  },
  broken: {
    turn: 'This answer can’t be shown with its tokens. Here is its text.',
    window: 'The window can’t be shown',
    windowSafe: 'Your conversations are safe on this machine. Load the window again to go on. If it happens again, the log says where it failed.',
    reload: 'Load the window again',
    showLog: 'Show log',
  },
  errorCard: {
    again: 'Try again',
    /** Stands before what only the engine says, which is English. */
    details: 'Details:',
    dismiss: 'Dismiss',
  },
  /** Classes of tokens, in every colour mode. */
  marks: {
    ...origins,
    sure: { label: 'sure', meaning: 'The target gave it 90% or more.' },
    likely: { label: 'likely', meaning: 'The target gave it 50 to 90%.' },
    unsure: { label: 'unsure', meaning: 'The target gave it 10 to 50%.' },
    unlikely: { label: 'unlikely', meaning: 'The target gave it less than 10%.' },
    settled: { label: 'settled', meaning: 'Less than half a bit: hardly anything else could have come.' },
    leaning: { label: 'leaning', meaning: 'Half a bit to 1.5: one or two others were possible.' },
    open: { label: 'open', meaning: '1.5 to 3 bits: several others were possible.' },
    wide: { label: 'wide open', meaning: 'More than 3 bits: many others were possible.' },
    whole: { label: 'all kept', meaning: 'In a round whose draft was accepted to its end.' },
    partly: { label: 'some kept', meaning: 'In a round whose draft was accepted up to a rejected token.' },
    none: { label: 'none kept', meaning: 'In a round whose draft was rejected at once.' },
    undrafted: { label: 'no draft', meaning: 'In a round without a draft: one token for one pass.' },
  } satisfies Record<MarkClass, Named>,
  legend: {
    label: {
      origin: 'Tokens by origin',
      off: 'Tokens',
      confidence: 'Tokens by how likely the target found them',
      surprise: 'Tokens by how open their place was',
      rounds: 'Tokens by what became of the draft of their round, and where its time went',
    } satisfies Record<ColourMode, string>,
    /** Parts of a round's time. */
    parts: {
      proposing: 'drafting',
      passing: 'target pass',
      verifying: 'verifying',
      rest: 'the rest',
    },
    title: (meaning: string) => `${meaning} Press to dim the others.`,
  },
  answerText: {
    /** What the box of a task says to who cannot see it. */
    task: { done: 'done', open: 'to do' },
    thinking: 'Thinking',
    thought: 'What it thought first',
  },
  linkQuestion: {
    title: 'Open this link in the browser?',
    open: 'Open',
  },
  colourSelect: {
    label: (mode: string) => `Token colours: ${mode}`,
    title: 'What the colours say',
    boxed: 'Boxes',
    boxedTitle: 'Every token in a box, nothing formatted',
    meanings: {
      origin: 'Where each token came from',
      off: 'Text as it is',
      confidence: 'How likely the target found each token',
      surprise: 'How open each place was',
      rounds: 'What one pass of the target gave, and its time',
    } satisfies Record<ColourMode, string>,
  },
  tokenText: {
    label: 'Answer. Tab to a token, arrow keys move, the card tells about it.',
  },
  tokenCard: {
    label: (text: string) => `Token ${text}`,
    id: (id: number) => `id ${id}`,
    p: 'p',
    pTitle: 'Target probability, after temperature and filters',
    q: 'q',
    qTitle: 'Draft probability',
    u: 'u',
    certain: 'certain',
    notDrafted: 'not drafted',
    notKept: 'not kept',
    confidence: 'confidence',
    confidenceTitle: 'Target softmax at temperature 1, no filters',
    entropy: 'entropy',
    entropyTitle: 'Entropy of that softmax: how open the place was',
    bits: (entropy: string) => `${entropy} bits`,
    round: 'round',
    position: 'position',
    /** Follows a position. */
    ofDrafted: (drafted: number) => `of ${drafted}`,
    rejectedHere: 'Rejected here',
    target: 'Target',
    draft: 'Draft',
    goOnWith: (text: string) => `Go on with ${text} instead`,
    goOnWithRejected: (text: string) => `Go on with the rejected ${text} instead`,
    proposing: (time: string) => `drafting ${time}`,
    passing: (time: string) => `target ${time}`,
    verifying: (time: string) => `verifying ${time}`,
    howToKeep: 'Click or press Return to keep this card.',
    howToGoOn: 'Press a token to go on with it instead. Esc closes.',
  },
  /** Files dragged onto the window. */
  files: {
    asModel: 'Open as model',
    asDraft: 'Use as draft',
    import: (count: number) => (count === 1 ? 'Import conversation' : `Import ${count} conversations`),
    nothing: 'This cannot be opened here',
    takes: 'Drop a model (.gguf) or an exported conversation (.json).',
    leftOut: (names: readonly string[]) =>
      `${names.join(', ')} cannot be opened. Drop one model (.gguf) or exported conversations (.json).`,
    stillLoading: (name: string) => `${name} is still being loaded. Drop the model again after that.`,
  },
  rules: {
    ...rules,
    title: 'Acceptance',
    choose: 'Which drafted tokens stand',
    /** Why a draft stood or fell. A draft that was certain has no q. */
    because: {
      accepted: 'accepted',
      rejected: 'rejected',
      ratio: (certain: boolean): string => (certain ? 'p' : 'min(1, p/q)'),
      lenient: (lenience: string, certain: boolean) => (certain ? `min(1, p/${lenience})` : `min(1, p/(${lenience} q))`),
      /** H is the entropy of the target's distribution. */
      typical: (epsilon: string, delta: string) => `min(${epsilon}, ${delta} · e^−H)`,
      matched: 'The target drew it too',
      unmatched: 'The target drew another token',
      coupled: 'With the same noise the target drew it too',
      uncoupled: 'With the same noise the target drew another token',
    },
    /** What an answer says of the rule it was made with. */
    made: {
      match: 'match rule',
      coupled: 'coupled rule',
      'lossy-typical': (epsilon: string, delta: string) => `lossy: typical, ε ${epsilon}, δ ${delta}`,
      'lossy-lenience': (lenience: string) => `lossy: lenience ${lenience}`,
    },
  },
  context: {
    label: 'Context',
    used: (used: string, of: string) => `${used} of ${of} of context`,
    title: 'What the target can read at once. When it is full, the first messages are left out.',
    dropped: (count: number, written: string) =>
      count === 1
        ? 'The first message no longer fits into the context and was not read.'
        : `The first ${written} messages no longer fit into the context and were not read.`,
    alwaysRead: 'Instructions and the last question are always read.',
  },
  resting: {
    mostly: 'drafting mostly rested',
    mostlyTitle: 'Most rounds went without a draft, because plain was faster',
  },
  settingsButton: {
    label: 'Settings',
    title: (keys: string) => `Settings (${keys})`,
  },
};

/** The words of the window in a language. */
export type Strings = typeof en;
