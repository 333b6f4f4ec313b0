// Fixtures for tests of state classes: a silent host, sampling settings and an engine without models.

import type { AppInfo, OfferedMethod, SamplingParams } from '../ipc/schema.gen';
import type { FilesEvent, Host } from './types';

// Unused parameters document what overriding tests get.
/* eslint-disable @typescript-eslint/no-unused-vars */

/** A host that answers null. Tests override it. */
export class SilentHost implements Host {
  readonly inWindow = false;

  async invoke(_command: string, _args: Record<string, unknown>): Promise<unknown> {
    return null;
  }

  openChannel<T>(_receive: (message: T) => void): unknown {
    return 0;
  }

  onMenu(_choose: (item: string) => void): void {}

  labelMenu(_words: Readonly<Record<string, string>>): void {}

  onFiles(_onEvent: (event: FilesEvent) => void): void {}

  async openLink(_href: string): Promise<void> {}
}

/** Resolves once pending answers of a host have arrived. */
export const settled = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 0));

/** Default sampling: the distribution unchanged. */
export const sampling: SamplingParams = {
  temperature: 1,
  top_k: 0,
  top_p: 1,
  min_p: 0,
  repeat_penalty: 1,
  presence_penalty: 0,
  frequency_penalty: 0,
  penalty_last_n: 64,
  logit_bias: {},
  seed: null,
};

/** A method of the engine's list, which needs and uses nothing but what is stated. */
export const offered = (name: string, summary: string, stated: Partial<OfferedMethod> = {}): OfferedMethod => ({
  name,
  summary,
  needs_draft: false,
  uses_draft: false,
  needs_head: false,
  uses_head: false,
  needs_texts: false,
  uses_texts: false,
  options: [],
  ...stated,
});

/** An engine without a model. */
export const appInfo: AppInfo = {
  version: '0',
  device: 'cpu',
  threads: 1,
  models_folder: '',
  loaded: null,
  store_problem: null,
  store_bytes: 1_200_000,
  unfinished_load: null,
  methods: [
    offered('plain', 'No speculation'),
    offered('auto', 'The loaded draft expected to be fastest, or none', {
      uses_draft: true,
      uses_texts: true,
      options: ['draft_window'],
    }),
    offered('draft-model', 'A draft model proposes a chain of tokens', { needs_draft: true, uses_draft: true, options: ['draft_window'] }),
    offered('draft-tree', 'A draft model proposes a tree of continuations', {
      needs_draft: true,
      uses_draft: true,
      options: ['tree', 'draft_window'],
    }),
    offered('cascade', 'suffix if it expects more accepted tokens, else draft-model', {
      needs_draft: true,
      uses_draft: true,
      options: ['draft_window'],
    }),
    offered('ngram', 'Copies what followed the same tokens earlier'),
    offered('suffix', 'Proposes the most frequent continuation of the longest repeated suffix'),
    offered('retrieval', 'Copies what followed the same tokens in your texts', { needs_texts: true, uses_texts: true }),
    offered('lookahead', 'The target drafts for itself in extra rows of its passes'),
    offered('layer-skip', 'The target drafts with some layers skipped', { options: ['skipped_layers', 'draft_window'] }),
    offered('early-exit', 'The first layers of the target draft', { options: ['exit_layer', 'draft_window'] }),
  ],
  default_sampling: { ...sampling, temperature: 0 },
  ranges: [{ name: 'max_draft', min: 1, max: 15 }],
};
