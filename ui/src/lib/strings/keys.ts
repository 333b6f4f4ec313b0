// Closed lists that key the string tables, and their types. Imports wire types only.

import type { ErrorCode, LabSource, RefusalReason, TokenOrigin } from '../ipc/schema.gen';

/** The screens of the window, in the order of the title bar. */
export const places = ['chat', 'compare', 'lab', 'library'] as const;

/** A screen of the window. */
export type Place = (typeof places)[number];

/** Groups of commands in the palette. */
export type CommandGroup = 'conversation' | 'answer' | 'window' | 'model' | 'method' | 'preset';

/** A command without a value. */
export type AppCommandName =
  | 'new-conversation'
  | 'search'
  | 'find-next'
  | 'find-previous'
  | 'search-conversations'
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
  | 'attach-files'
  | 'stop'
  | 'regenerate'
  | 'continue'
  | 'copy-answer'
  | 'edit-question'
  | 'previous-branch'
  | 'next-branch'
  | 'palette'
  | 'settings'
  | 'shortcuts'
  | 'text-larger'
  | 'text-smaller'
  | 'text-default-size'
  | 'show-log'
  | 'open-model'
  | 'open-draft'
  | 'find-model'
  | 'get-model'
  | 'other-repository'
  | 'add-folder'
  | 'unload-models'
  | 'cancel-loading';

/** A choice, with one command for each value. */
export type ChoiceName = 'place' | 'appearance' | 'colours' | 'view' | 'method' | 'preset' | 'model';

/** Origins of an answer's tokens. */
export type AnswerOrigin = Exclude<TokenOrigin, 'prompt'>;

/** Colour modes, in the order of the menu. */
export const colourModes = ['origin', 'off', 'confidence', 'entropy', 'rounds'] as const;
/** A colour mode of an answer. */
export type ColourMode = (typeof colourModes)[number];

/** Classes of the target's probability of the emitted token. */
export type ConfidenceClass = 'sure' | 'likely' | 'unsure' | 'unlikely';
/** Classes of the target's entropy at a position, in bits. */
export type EntropyClass = 'settled' | 'leaning' | 'open' | 'wide';
/** Classes of rounds, by how much of the draft was accepted. */
export type RoundClass = 'whole' | 'partly' | 'none' | 'undrafted';
/** A token class of any colour mode. */
export type MarkClass = AnswerOrigin | ConfidenceClass | EntropyClass | RoundClass;

export const appearances = ['system', 'light', 'dark'] as const;
/** Text sizes of a conversation in px, smallest first. */
export const textSizes = [13, 15, 18] as const;
export const views = ['rich', 'tokens'] as const;

export type Appearance = (typeof appearances)[number];
export type TextSize = (typeof textSizes)[number];
/** Rendering of an answer: formatted, or token by token. */
export type View = (typeof views)[number];

/** Methods with words of their own. Others show the engine's name and summary. */
export type WordedMethod =
  | 'auto'
  | 'draft-model'
  | 'draft-tree'
  | 'cascade'
  | 'merged-tree'
  | 'ngram'
  | 'suffix'
  | 'retrieval'
  | 'suffix-head'
  | 'ngram-head'
  | 'head'
  | 'head-tree'
  | 'lookahead'
  | 'layer-skip'
  | 'early-exit'
  | 'plain';

/** Built-in prompt suites of the engine. */
export const suites = ['code', 'prose', 'edit'] as const;

/** Prompts of a comparison: the user's own text, a suite, or the user's file. */
export type PromptKind = 'text' | (typeof suites)[number] | 'file';

/** Reasons why a comparison cannot start. */
export type Missing = 'model' | 'loading' | 'method' | 'same' | 'lanes' | 'needs' | 'text' | 'file' | 'chat';

/** Widgets of the lab, in the order of their tabs. */
export const labWidgets = ['resampling', 'unbiased', 'samplers', 'landscape', 'rules', 'acceptance', 'rounds', 'costs'] as const;
/** A widget of the lab. */
export type LabWidget = (typeof labWidgets)[number];

/** Kinds of position in the lab. */
export type LabSourceKind = LabSource['kind'];

export const sorts = ['name', 'size', 'parameters', 'speed'] as const;
export type Sort = (typeof sorts)[number];

/** Filters of the model list. */
export const facets = ['source', 'architecture', 'quantisation'] as const;
export type Facet = (typeof facets)[number];

/** The parts of the library. */
export const libraryParts = ['here', 'catalogue', 'folders', 'servers'] as const;
export type LibraryPart = (typeof libraryParts)[number];

/** Parameters of each error code. A Rust test compares them with the engine's. */
export const errorParams = {
  invalid_request: ['detail'],
  model_not_found: ['name'],
  invalid_model_file: ['path', 'detail'],
  unsupported_model: ['path', 'detail'],
  vocabulary_mismatch: ['detail'],
  context_overflow: ['prompt', 'context'],
  not_text: ['name'],
  file_too_large: ['name', 'bytes', 'most'],
  file_over_context: ['name', 'tokens', 'context'],
  out_of_memory: ['detail'],
  io: ['path', 'detail'],
  store: ['detail'],
  no_model: [],
  busy: ['work'],
  stopped: [],
  device: ['device', 'detail'],
  server: ['address', 'detail', 'remedy'],
  hub_unreachable: ['endpoint', 'detail'],
  hub_not_found: ['what', 'detail'],
  hub_gated: ['repository', 'detail'],
  hub_token: ['detail'],
  wrong_checksum: ['file', 'expected', 'found', 'path'],
  catalogue_mismatch: ['file', 'expected', 'found'],
  disk_full: ['folder', 'missing', 'reserved'],
  download_unreadable: ['folder', 'bytes'],
  download_elsewhere: ['name'],
  update_unreachable: ['detail'],
  update_rejected: ['version', 'detail'],
  update_not_installed: ['version', 'detail'],
  internal: ['detail'],
} as const satisfies Record<ErrorCode, readonly string[]>;

/** Codes of the work that keeps the engine from other work, as in `RunningWork`. */
export const runningWork = ['answer', 'measurement', 'training', 'loading', 'update'] as const;

/** Words for that work in one language: what runs, and what to do. `other` is for errors that do not name it. */
export type RunningWorkWords = Readonly<Record<(typeof runningWork)[number] | 'other', string>>;

/** Codes of remedies for failures of servers, as in `ServerRemedy`. */
export const serverRemedies = [
  'check_address',
  'check_protocol',
  'choose_model',
  'follow_redirect',
  'add_key',
  'check_key',
  'wait',
  'change_request',
  'retry',
] as const;

/** Remedies for failures of servers in a language. */
export type ServerRemedyWords = Readonly<Record<(typeof serverRemedies)[number], string>>;

export type ParamOf<C extends ErrorCode> = Exclude<(typeof errorParams)[C][number], 'detail'>;

/** The text for one error code. */
export interface ErrorWords<C extends ErrorCode = ErrorCode> {
  title: string;
  /** Says what happened and what is safe. Parameters are formatted, empty if zero. Absent if the detail says it. */
  body?: (named: Record<ParamOf<C>, string>) => string;
  /** The remedy. Absent if the detail says it. */
  advice?: string;
}

/** The text for every error code. */
export type ErrorCatalogue = { [C in ErrorCode]: ErrorWords<C> };

/** Parameters of each reason of a refused request. A Rust test compares them with the engine's. */
export const refusalParams = {
  no_such_conversation: [],
  no_such_message: [],
  no_such_comparison: [],
  other_writer: ['writer', 'loaded'],
  not_an_alternative: [],
  end_token: [],
  nothing_drafted: [],
  not_a_conversation: ['detail'],
  conversation_version: ['version', 'readable'],
  empty_file: ['name'],
  file_exists: ['path'],
  folder_known: ['folder'],
  model_in_memory: ['name'],
  model_not_in_library: ['name'],
  draft_too_large: [],
  not_a_token: [],
  no_disk_for_training: ['needed', 'free'],
  model_too_large: ['context', 'needed', 'usable'],
  training_too_large: ['needed'],
  no_user_turn: [],
  unusable_scores: [],
  nothing_fits_format: [],
  not_a_file: ['path'],
  import_too_large: ['path', 'most'],
  export_too_large: ['most'],
  too_many_files: ['limit', 'found'],
  cancelled: [],
  empty_prompt: [],
  not_unicode: ['path'],
  not_chosen: ['path'],
  no_location: [],
  not_kept: [],
  no_such_copy: ['name'],
  preference_too_large: ['name'],
  no_such_folder: ['folder'],
  not_a_folder: ['path'],
  folder_limit: ['limit'],
  folder_not_added: ['folder'],
  folder_list_unreadable: ['path'],
  folders_fixed: [],
  no_data_folder: [],
  not_own_model: ['path', 'detail'],
  context_too_long: ['name', 'limit', 'context'],
  no_such_head: ['name'],
  unknown_head: ['path', 'detail'],
  damaged_head: ['path', 'detail'],
  head_of_other: ['name'],
  head_mismatch: ['detail'],
  needs_draft: ['method'],
  needs_low_bit_copy: ['method'],
  needs_texts: ['method'],
  no_texts: [],
  needs_head: ['method'],
  no_draft_to_compare: [],
  lane_drafts_too_large: ['missing'],
  suite_too_large: ['name', 'most'],
  suite_too_long: ['suite', 'limit'],
  suite_prompt_too_long: ['id', 'tokens', 'target', 'context'],
  suite_not_text: ['name'],
  not_a_prompt: ['suite', 'line', 'detail'],
  empty_prompt_id: ['suite', 'line'],
  empty_suite_prompt: ['suite', 'line'],
  repeated_prompt_id: ['suite', 'line', 'id', 'first'],
  empty_suite: ['suite'],
  costs_not_measured: [],
  no_longer_kept: [],
  nothing_measured: ['method'],
  no_usable_prompts: [],
  trained_elsewhere: [],
  other_training_data: ['folder'],
  training_data_damaged: ['path', 'folder', 'detail'],
  damaged_shard: ['path'],
  single_layer: [],
  states_not_finite: [],
  not_a_repository: [],
  bad_search: [],
  hub_busy: ['endpoint', 'seconds'],
  hub_slow: ['endpoint', 'seconds'],
  no_hub_search: ['endpoint', 'detail'],
  not_a_model_path: [],
  no_such_repository: ['repository'],
  no_such_hub_file: ['repository'],
  terms_need_token: ['repository', 'page'],
  terms_not_accepted: ['repository', 'page'],
  token_rejected: ['detail'],
  no_hub_access: ['repository', 'detail'],
  no_keychain: [],
  keychain_failed: ['detail'],
  unencrypted_key: ['address'],
  not_a_server_key: [],
  no_such_server: ['address'],
  no_such_server_model: ['address', 'model', 'detail'],
  server_cannot_continue: [],
  server_keychain_failed: ['detail'],
  bad_endpoint: [],
  bad_proxy: ['detail'],
  no_tls: ['detail'],
  no_such_download: [],
  name_taken: ['name', 'limit'],
} as const satisfies Record<RefusalReason, readonly string[]>;

/** The text for one reason. It replaces that of the code `invalid_request`. */
interface RefusalWords<R extends RefusalReason = RefusalReason> {
  title: string;
  /** Says what happened and what is safe. Parameters arrive formatted. */
  body: (named: Record<Exclude<(typeof refusalParams)[R][number], 'detail'>, string>) => string;
  /** The remedy. Absent if the body says it. */
  advice?: string;
}

/** The text for every reason. */
export type RefusalCatalogue = { [R in RefusalReason]: RefusalWords<R> };
