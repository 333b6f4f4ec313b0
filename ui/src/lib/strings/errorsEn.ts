// The text of errors in English: what happened, what is safe, what to do.

import type { ErrorCatalogue, RefusalCatalogue } from './keys';

export const errorsEn: ErrorCatalogue = {
  invalid_request: {
    title: 'This request can’t be run',
  },
  model_not_found: {
    title: 'Model not found',
    body: ({ name }) => `There is no model named “${name}”.`,
    advice: 'Choose another one in the Library.',
  },
  invalid_model_file: {
    title: 'The model file can’t be used',
    body: ({ path }) => `${path} is not a valid GGUF model. The file is unchanged.`,
    advice: 'Download it again or choose another one.',
  },
  unsupported_model: {
    title: 'This model is not supported',
    body: ({ path }) => `Hunch can’t run ${path}. The file is unchanged.`,
    advice: 'Choose another model, for example from the catalogue in the Library.',
  },
  vocabulary_mismatch: {
    title: 'The draft does not fit the target',
    body: () => 'Draft and target have different vocabularies.',
    advice: 'Choose a draft of the same model family, or a method that needs none.',
  },
  context_overflow: {
    title: 'The conversation is too long',
    body: ({ prompt, context }) => `The prompt has ${prompt} tokens, but the context holds ${context}. The conversation is kept.`,
    advice: 'Shorten the question or the instructions, or load the model with a larger context.',
  },
  not_text: {
    title: 'Not a text file',
    body: ({ name }) => `“${name}” is not UTF-8 text, so it was not attached.`,
    advice: 'Choose a text file, or save it as UTF-8.',
  },
  file_too_large: {
    title: 'The file is too large',
    body: ({ name, bytes, most }) => `“${name}” has ${bytes}, and files up to ${most} can be attached.`,
    advice: 'Attach a part of it.',
  },
  file_over_context: {
    title: 'The file is too long for the model',
    body: ({ name, tokens, context }) => `“${name}” has ${tokens} tokens, but the context holds ${context}.`,
    advice: 'Attach a part of it, or load the model with a larger context.',
  },
  out_of_memory: {
    title: 'Not enough memory',
    body: () => 'This needs more memory than is available.',
    advice: 'Choose a smaller model, quantisation or context.',
  },
  io: {
    title: 'A file could not be read or written',
    body: ({ path }) => `The file is ${path}.`,
    advice: 'Check that it exists and that you have access, then try again.',
  },
  store: {
    title: 'Conversations can’t be saved',
    body: () => 'Their file can’t be read or written. Its contents are unchanged.',
    advice: 'Close other Hunch windows, or check that the disk is writable.',
  },
  no_model: {
    title: 'No model is loaded',
    body: () => 'An answer needs a model.',
    advice: 'Open a model first.',
  },
  busy: {
    title: 'The engine is busy',
    body: () => 'An answer or a measurement is running.',
    advice: 'Stop it or wait until it has finished.',
  },
  stopped: {
    title: 'Loading was cancelled',
    body: () => 'Models that were in memory are still loaded.',
  },
  device: {
    title: 'The computation failed',
    body: ({ device }) => `The computation on “${device}” failed. The conversation is kept.`,
    advice: 'Restart Hunch and try again.',
  },
  server: {
    title: 'The server did not answer',
    body: ({ address }) => `No answer from ${address}. Text received so far is kept.`,
    advice: 'Check that the server runs, its address and its key. Then try again.',
  },
  hub_unreachable: {
    title: 'The Hub can’t be reached',
    body: ({ endpoint }) => `No connection to ${endpoint}. Downloaded files are kept.`,
    advice: 'Check the network, and HF_ENDPOINT and HTTPS_PROXY if they are set. Then try again.',
  },
  hub_not_found: {
    title: 'Not found on the Hub',
    body: ({ what }) => `Not found on the Hub: ${what}.`,
  },
  hub_gated: {
    title: 'The terms must be accepted first',
    body: ({ repository }) => `${repository} is only available to those who accept its terms.`,
  },
  hub_token: {
    title: 'The access token was rejected',
  },
  wrong_checksum: {
    title: 'The download is corrupt',
    body: ({ file, expected, found, path }) =>
      `The checksum of ${file} is ${found}, but the Hub lists ${expected}. The file is quarantined as ${path}.`,
    advice: 'Download it again. If this repeats, check your proxy and your disk.',
  },
  catalogue_mismatch: {
    title: 'The file on the Hub has changed',
    body: ({ file, expected, found }) =>
      `${file} no longer matches the catalogue: its checksum starts with ${found} instead of ${expected}. Nothing was downloaded.`,
    advice: 'To get the new file, look up the repository by name and choose the file there.',
  },
  disk_full: {
    title: 'The disk is full',
    body: ({ folder, missing, reserved }) =>
      `The disk of ${folder} needs ${missing} more free space${reserved === '' ? '' : ` (other downloads need ${reserved})`}. Downloaded files are kept.`,
    advice: 'Free some space, then resume.',
  },
  download_unreadable: {
    title: 'An unfinished download can’t resume',
    body: ({ folder, bytes }) => `Its state can’t be read. ${bytes} of it are in ${folder}. Other files are not affected.`,
    advice: 'Discard it to free the space, then download the model again.',
  },
  download_elsewhere: {
    title: 'Another Hunch is downloading this',
    body: ({ name }) => `${name} is being downloaded by another running Hunch.`,
    advice: 'Wait for it, or pause it there and resume here.',
  },
  update_unreachable: {
    title: 'Updates can’t be fetched',
    body: () => 'The list of releases or the update can’t be fetched. Nothing was changed.',
    advice: 'Check the network, and HTTPS_PROXY if it is set. Then try again.',
  },
  update_rejected: {
    title: 'The update was rejected',
    body: ({ version }) => `The update to ${version} is not signed as that release of Hunch. It was discarded, and nothing was changed.`,
    advice: 'Try again later. If it is rejected again, please report it.',
  },
  update_not_installed: {
    title: 'The update was not installed',
    body: ({ version }) => `The update to ${version} could not be installed. Conversations and models are safe.`,
    advice: 'Check that you may replace the app and that it is not on a disk image. Then try again, or install the new version by hand.',
  },
  internal: {
    title: 'Something went wrong in Hunch',
    body: () => 'This is a bug in Hunch. The conversation is kept.',
    advice: 'Try again. If it happens again, please report it.',
  },
};

/** Refused requests, by reason. */
export const refusalsEn: RefusalCatalogue = {
  no_such_conversation: {
    title: 'The conversation is gone',
    body: () => 'This conversation was deleted.',
    advice: 'Choose another one.',
  },
  no_such_message: {
    title: 'The message is gone',
    body: () => 'This message was deleted.',
    advice: 'Choose another one.',
  },
  no_such_comparison: {
    title: 'The comparison is gone',
    body: () => 'This comparison was deleted.',
    advice: 'Choose another one.',
  },
  other_writer: {
    title: 'Another model wrote this answer',
    body: ({ writer, loaded }) => `This answer is by ${writer}, and ${loaded} is loaded. To continue it, load ${writer}.`,
    advice: 'Or regenerate the answer with the loaded model.',
  },
  not_an_alternative: {
    title: 'This token is not an alternative',
    body: () => 'This token is not among the alternatives that were saved at this position.',
    advice: 'Choose one of those shown.',
  },
  end_token: {
    title: 'This token ends the answer',
    body: () => 'Nothing can follow this token.',
    advice: 'Choose another one.',
  },
  nothing_drafted: {
    title: 'Nothing was drafted in this answer',
    body: () => 'This answer has no drafted tokens to calculate with.',
    advice: 'Choose an answer of a method that drafts.',
  },
  not_a_conversation: {
    title: 'This file is no conversation',
    body: () => 'This file is not a conversation exported by Hunch. Nothing was added.',
    advice: 'Choose a JSON file that Hunch has saved.',
  },
  conversation_version: {
    title: 'The file has another version',
    body: ({ version, readable }) =>
      `The conversation has version ${version} of the format, and this Hunch reads version ${readable}. Nothing was added.`,
    advice: 'Import it with the Hunch that exported it.',
  },
  empty_file: {
    title: 'The file is empty',
    body: ({ name }) => `${name} has no text, so it was not attached.`,
    advice: 'Choose another file.',
  },
  file_exists: {
    title: 'The file exists already',
    body: ({ path }) => `${path} exists already, so nothing was saved.`,
    advice: 'Choose that file to replace it, or choose another name.',
  },
  folder_known: {
    title: 'The folder is already searched',
    body: ({ folder }) => `Hunch already searches ${folder} for models.`,
    advice: 'Choose another folder.',
  },
  model_in_memory: {
    title: 'The model is loaded',
    body: ({ name }) => `${name} is in memory, so nothing was removed.`,
    advice: 'Unload it or open another model first.',
  },
  model_not_in_library: {
    title: 'The model is not in the Library',
    body: ({ name }) => `The Library does not have ${name}.`,
    advice: 'Open it with “Open model…”, or add its folder to the Library.',
  },
  draft_too_large: {
    title: 'The draft is larger than the target',
    body: () => 'A draft that is larger than the target can’t save time.',
    advice: 'Swap the two, or choose a smaller draft.',
  },
  not_a_token: {
    title: 'This is not an access token',
    body: () => 'An access token of the Hub is one word of letters, digits and signs, like hf_….',
    advice: 'Copy it again from your settings on the Hub.',
  },
  no_disk_for_training: {
    title: 'Not enough disk space for training',
    body: ({ needed, free }) => `The training data need ${needed} more, and ${free} are free.`,
    advice: 'Train on fewer tokens, or free some space.',
  },
  no_user_turn: {
    title: 'This model can’t write prompts',
    body: () => 'Its chat template has no user turn, so it can’t write prompts for its own training.',
    advice: 'Choose another model.',
  },
};
