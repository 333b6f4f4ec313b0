// What the window says of an error, in English: what happened, what is safe, what to do.

import type { ErrorCatalogue } from './keys';

export const errorsEn: ErrorCatalogue = {
  invalid_request: {
    title: 'That request cannot be run',
  },
  model_not_found: {
    title: 'The model was not found',
    body: ({ name }) => `There is no model called “${name}”.`,
  },
  invalid_model_file: {
    title: 'The model file cannot be used',
    body: ({ path }) => `${path} is not a GGUF model that can be used. The file was left as it is.`,
    advice: 'Download it again or choose another one.',
  },
  unsupported_model: {
    title: 'This model is not supported',
    body: ({ path }) => `${path} is of a kind that Hunch does not run. The file was left as it is.`,
    advice: 'Choose a GGUF model of an architecture that is supported.',
  },
  vocabulary_mismatch: {
    title: 'The draft does not fit the target',
    body: () => 'Draft and target do not read text as the same tokens.',
    advice: 'Choose a draft of the same model family, or a method that needs none.',
  },
  context_overflow: {
    title: 'The conversation is too long',
    body: ({ prompt, context }) => `What is to be read has ${prompt} tokens, and the context of this model holds ${context}. What was said is kept.`,
    advice: 'Shorten the question or the instructions, or load the model with a larger context.',
  },
  out_of_memory: {
    title: 'Memory is short',
    body: () => 'There is not enough memory for that.',
    advice: 'Choose a smaller model, quantisation or context.',
  },
  io: {
    title: 'A file could not be read or written',
    body: ({ path }) => `It is ${path}.`,
    advice: 'Look whether it is there and may be used, then try again.',
  },
  store: {
    title: 'The conversations cannot be kept',
    body: () => 'Their file cannot be read or written. Nothing that was there has been changed.',
    advice: 'Close other windows of Hunch, or look whether the disk can be written to.',
  },
  no_model: {
    title: 'No model is loaded',
    body: () => 'Without one nothing can be answered.',
    advice: 'Open a model first.',
  },
  busy: {
    title: 'The engine is busy',
    body: () => 'An answer is being written or a measurement runs.',
    advice: 'Stop it or wait until it has finished.',
  },
  stopped: {
    title: 'Loading was stopped',
    body: () => 'What was in memory before is still there.',
  },
  device: {
    title: 'The device failed',
    body: ({ device }) => `Computing on “${device}” failed. What was said is kept.`,
    advice: 'Start Hunch again and try once more.',
  },
  hub_unreachable: {
    title: 'The hub cannot be reached',
    body: ({ endpoint }) => `${endpoint} cannot be used. What is here already is kept.`,
    advice: 'Check the connection (and HF_ENDPOINT and HTTPS_PROXY, if they are set), then try again.',
  },
  hub_not_found: {
    title: 'The hub has no such model',
    body: ({ what }) => `The hub has not got ${what}.`,
  },
  hub_gated: {
    title: 'Its terms have to be agreed to',
    body: ({ repository }) => `The owners of ${repository} give it only to those who agree to their terms.`,
  },
  hub_token: {
    title: 'The token was not accepted',
  },
  wrong_checksum: {
    title: 'The download is damaged',
    body: ({ file, expected, found, path }) =>
      `The checksum of ${file} is not the one that the hub tells (${found} in place of ${expected}). The file is kept aside as ${path} and not used as a model.`,
    advice: 'Try again to fetch it anew; if that ends like this too, something on the way changes it.',
  },
  not_of_catalogue: {
    title: 'The hub has another file by now',
    body: ({ file, expected, found }) =>
      `${file} is no longer the file that the catalogue was checked against (its checksum begins with ${found} in place of ${expected}). Nothing was fetched, and what is here stays.`,
    advice: 'Its owners may have published another one: to have that, look the repository up by its name and choose the file there.',
  },
  disk_full: {
    title: 'The disk is full',
    body: ({ folder, missing, promised }) =>
      `The disk of ${folder} has too little room: ${promised === '' ? '' : `with the ${promised} that other downloads still need, `}${missing} more are needed. What is here already is kept.`,
    advice: 'Make room, then go on.',
  },
  download_unreadable: {
    title: 'An unfinished download cannot go on',
    body: ({ folder, bytes }) =>
      `What was written down of it cannot be read. ${bytes} of it lie in ${folder}; they are no model yet, and nothing else is affected.`,
    advice: 'Discard it to free the room, then fetch the model again.',
  },
  download_elsewhere: {
    title: 'Another Hunch is downloading this',
    body: ({ name }) => `${name} is being downloaded by another Hunch that is running.`,
    advice: 'Wait for it, or pause it there and go on here.',
  },
  internal: {
    title: 'Something went wrong in Hunch',
    body: () => 'This is a defect in Hunch. What was said is kept.',
    advice: 'Try again; if it happens again, please report it.',
  },
};
