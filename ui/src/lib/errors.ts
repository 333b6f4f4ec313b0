// What the window says above an error's own message, and whether it offers to open a model. One row for every code.

import type { ErrorCode } from './ipc/schema.gen';

/** A card's heading, and what it offers. */
export interface ErrorFace {
  title: string;
  /** Whether another model may be the way out. */
  offersModel: boolean;
}

/** The face of each code. */
export const errorFaces: Record<ErrorCode, ErrorFace> = {
  invalid_request: { title: 'That request cannot be run', offersModel: false },
  model_not_found: { title: 'The model was not found', offersModel: true },
  invalid_model_file: { title: 'The model file cannot be used', offersModel: true },
  unsupported_model: { title: 'This model is not supported', offersModel: true },
  vocabulary_mismatch: { title: 'The draft does not fit the target', offersModel: false },
  context_overflow: { title: 'The conversation is too long', offersModel: false },
  out_of_memory: { title: 'Memory is short', offersModel: true },
  io: { title: 'A file could not be read or written', offersModel: false },
  store: { title: 'The conversations cannot be kept', offersModel: false },
  no_model: { title: 'No model is loaded', offersModel: true },
  busy: { title: 'An answer is still being written', offersModel: false },
  device: { title: 'The device failed', offersModel: false },
  internal: { title: 'Something went wrong in Hunch', offersModel: false },
};
