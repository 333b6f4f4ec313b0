// Closed lists that the window has words for, and their types. The catalogues are keyed by them, so they stand beside
// the words and import nothing but wire types.

import type { ErrorCode, LabSource, Method, TokenOrigin } from '../ipc/schema.gen';

/** The places of the window, in the order of the title bar. */
export const places = ['chat', 'compare', 'lab', 'library'] as const;

/** What the window shows beside its sidebar. */
export type Place = (typeof places)[number];

/** What commands are grouped under. */
export type CommandGroup = 'conversation' | 'answer' | 'window' | 'model' | 'method' | 'preset';

/** A command whose name stands by itself. */
export type CommandName =
  | 'new-conversation'
  | 'search'
  | 'previous-conversation'
  | 'next-conversation'
  | 'rename'
  | 'pin'
  | 'unpin'
  | 'delete'
  | 'undo-delete'
  | 'export-markdown'
  | 'export-json'
  | 'import'
  | 'stop'
  | 'answer-again'
  | 'go-on'
  | 'copy-answer'
  | 'edit-question'
  | 'previous-branch'
  | 'next-branch'
  | 'palette'
  | 'settings'
  | 'text-larger'
  | 'text-smaller'
  | 'text-usual'
  | 'show-log'
  | 'open-model'
  | 'open-draft'
  | 'find-model'
  | 'get-model'
  | 'other-repository'
  | 'add-folder'
  | 'unload-models'
  | 'cancel-loading';

/** Something with a command for each of its values. */
export type ChoiceName = 'place' | 'appearance' | 'colours' | 'view' | 'method' | 'preset' | 'model';

/** Origins an answer's token can have. */
export type AnswerOrigin = Exclude<TokenOrigin, 'prompt'>;

/** Every mode in the order it is offered. */
export const colourModes = ['origin', 'off', 'confidence', 'surprise', 'rounds'] as const;
/** What the colours of an answer say. */
export type ColourMode = (typeof colourModes)[number];

/** Classes of confidence: the target's own probability of the token that stands there. */
export type ConfidenceClass = 'sure' | 'likely' | 'unsure' | 'unlikely';
/** Classes of surprise: the entropy of the place, in bits. */
export type SurpriseClass = 'settled' | 'leaning' | 'open' | 'wide';
/** Classes of rounds: how much of what was drafted was accepted. */
export type RoundClass = 'whole' | 'partly' | 'none' | 'undrafted';
/** A class of any mode. */
export type MarkClass = AnswerOrigin | ConfidenceClass | SurpriseClass | RoundClass;

export const appearances = ['system', 'light', 'dark'] as const;
/** Sizes of a conversation's text in pixels, smallest first. */
export const textSizes = [13, 15, 18] as const;
export const views = ['rich', 'tokens'] as const;

export type Appearance = (typeof appearances)[number];
export type TextSize = (typeof textSizes)[number];
/** How an answer is drawn: formatted, or token by token. */
export type View = (typeof views)[number];

/** Methods the window offers, the one to take first in front. The synthetic one is for tests and bench. */
export const offeredMethods = ['draft-model', 'draft-tree', 'cascade', 'ngram', 'suffix', 'lookahead', 'layer-skip', 'early-exit', 'plain'] as const satisfies readonly Method[];

/** A method the window offers. */
export type OfferedMethod = (typeof offeredMethods)[number];

/** The suites of prompts that the engine brings. */
export const suites = ['code', 'prose', 'edit'] as const;

/** What is compared on: a text of the person's, or a suite. */
export type PromptKind = 'text' | (typeof suites)[number];

/** Why a comparison cannot be started. */
export type Missing = 'model' | 'loading' | 'method' | 'same' | 'text' | 'chat';

/** Every widget, in the order they are offered. */
export const labWidgets = ['resampling', 'unbiased', 'landscape', 'rules', 'acceptance', 'rounds', 'costs'] as const;
/** A widget of the lab. */
export type LabWidget = (typeof labWidgets)[number];

/** The kinds of place. */
export type SpotKind = LabSource['kind'];

export const sorts = ['name', 'size', 'parameters', 'speed'] as const;
export type Sort = (typeof sorts)[number];

/** What models are told apart by. */
export const facets = ['source', 'architecture', 'quantisation'] as const;
export type Facet = (typeof facets)[number];

/** The parts of the library. */
export const libraryParts = ['here', 'catalogue', 'folders'] as const;
export type LibraryPart = (typeof libraryParts)[number];

/** What the engine names with each code; a Rust test keeps it to what it does name. */
export const errorParams = {
  invalid_request: ['detail'],
  model_not_found: ['name', 'detail'],
  invalid_model_file: ['path', 'detail'],
  unsupported_model: ['path', 'detail'],
  vocabulary_mismatch: ['detail'],
  context_overflow: ['prompt', 'context'],
  out_of_memory: ['detail'],
  io: ['path', 'detail'],
  store: ['detail'],
  no_model: [],
  busy: [],
  stopped: [],
  device: ['device', 'detail'],
  hub_unreachable: ['endpoint', 'detail'],
  hub_not_found: ['what', 'detail'],
  hub_gated: ['repository', 'detail'],
  hub_token: ['detail'],
  wrong_checksum: ['file', 'expected', 'found', 'path'],
  not_of_catalogue: ['file', 'expected', 'found'],
  disk_full: ['folder', 'missing', 'promised'],
  download_unreadable: ['folder', 'bytes'],
  download_elsewhere: ['name'],
  internal: ['detail'],
} as const satisfies Record<ErrorCode, readonly string[]>;

export type ParamOf<C extends ErrorCode> = Exclude<(typeof errorParams)[C][number], 'detail'>;

/** The words for one code. */
export interface ErrorWords<C extends ErrorCode = ErrorCode> {
  title: string;
  /** What happened and what is safe; everything that is named is written already, as nothing where there is none of it.
   * None where the detail says it. */
  body?: (named: Record<ParamOf<C>, string>) => string;
  /** What to do. None where the detail says it. */
  advice?: string;
}

/** The words for every code. */
export type ErrorCatalogue = { [C in ErrorCode]: ErrorWords<C> };
