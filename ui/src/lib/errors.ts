// What the window says above an error's own message, and whether it offers to open a model.

import type { ErrorCode } from './ipc/schema.gen';
import { language } from './strings/index.svelte';

/** A card's heading, and what it offers. */
export interface ErrorFace {
  title: string;
  /** Whether another model may be the way out. */
  offersModel: boolean;
}

/** One row for every code. */
const offersModel: Record<ErrorCode, boolean> = {
  invalid_request: false,
  model_not_found: true,
  invalid_model_file: true,
  unsupported_model: true,
  vocabulary_mismatch: false,
  context_overflow: false,
  out_of_memory: true,
  io: false,
  store: false,
  no_model: true,
  busy: false,
  stopped: false,
  device: false,
  hub_unreachable: false,
  hub_not_found: false,
  hub_gated: false,
  hub_token: false,
  wrong_checksum: false,
  disk_full: false,
  download_elsewhere: false,
  internal: false,
};

/** The face of a code; a code that is not known is an internal error. */
export function errorFace(code: ErrorCode): ErrorFace {
  const known = Object.hasOwn(offersModel, code) ? code : 'internal';
  return { title: language.strings.errors[known], offersModel: offersModel[known] };
}
