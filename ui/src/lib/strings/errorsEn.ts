// The text of errors in English: what happened, what is safe, what to do.

import type { ErrorCatalogue, RefusalCatalogue, RunningWorkWords, ServerRemedyWords } from './keys';

const serverRemedies: ServerRemedyWords = {
  check_address: 'Check that it runs, and its address.',
  check_protocol: 'Check the address: it must be of a server that speaks OpenAI’s protocol.',
  choose_model: 'Choose another of its models.',
  follow_redirect: 'It redirects to another address. Add that one.',
  add_key: 'It needs a key. Add the key in the Library.',
  check_key: 'Check its key.',
  wait: 'Wait a little, then try again.',
  change_request: 'Change the question or the settings.',
  retry: 'Try again.',
};

const runningWork: RunningWorkWords = {
  answer: 'An answer is being written. Stop it or wait until it is complete.',
  measurement: 'A measurement is running. Stop it or wait until it has finished.',
  training: 'A drafter is being trained. Pause the training or wait until it has finished.',
  loading: 'Models are being loaded or unloaded. Wait until that is done.',
  update: 'An update of Hunch is in progress. Wait until it is done.',
  other: 'An answer or a measurement is running. Stop it or wait until it has finished.',
};

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
    body: ({ path }) => `${path} is not a valid model. The file is unchanged.`,
    advice: 'Download it again or choose another one.',
  },
  unsupported_model: {
    title: 'This model is not supported',
    body: ({ path }) => `Hunch can’t run ${path}. The file is unchanged.`,
    advice: 'Choose another model, for example from the catalogue in the Library.',
  },
  vocabulary_mismatch: {
    title: 'The draft does not fit the target',
    body: () => 'Draft and target share too few tokens.',
    advice: 'Choose a draft of the same model family, or a method that needs none.',
  },
  context_overflow: {
    title: 'The conversation is too long',
    body: ({ prompt, context }) => `The prompt has ${prompt} tokens, but the context holds ${context}. The conversation is kept.`,
    advice: 'Shorten the question or the instructions, or load the model with a larger context.',
  },
  not_text: {
    title: 'Not a text file',
    body: ({ name }) => `“${name}” is not UTF-8 text, so it is not used.`,
    advice: 'Choose a text file, or save it as UTF-8.',
  },
  file_too_large: {
    title: 'The file is too large',
    body: ({ name, bytes, most }) => `“${name}” has ${bytes}, and files up to ${most} are accepted.`,
    advice: 'Choose a part of it.',
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
    body: ({ work }) => runningWork[work as keyof RunningWorkWords] ?? runningWork.other,
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
    body: ({ address, remedy }) =>
      `No answer from ${address}. ${serverRemedies[remedy as keyof ServerRemedyWords] ?? serverRemedies.retry}`,
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
    title: 'This file is not a conversation',
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
  model_too_large: {
    title: 'Not enough memory',
    body: ({ context, needed, usable }) =>
      `With a context of ${context} tokens this takes ${needed} (predicted), and models may take ${usable}. Nothing was loaded.`,
    advice: 'Choose a smaller model, quantisation or context.',
  },
  training_too_large: {
    title: 'Not enough memory for training',
    body: ({ needed }) => `Training needs ${needed} in addition to the model. Nothing was changed.`,
    advice: 'Choose a smaller model.',
  },
  no_user_turn: {
    title: 'This model can’t write prompts',
    body: () => 'Its chat template has no user turn, so it can’t write prompts for its own training.',
    advice: 'Choose another model.',
  },
  unusable_scores: {
    title: 'The model gives no usable scores',
    body: () => 'Its scores are not numbers, so no token can be chosen. Its file may be damaged.',
    advice: 'Download the model again.',
  },
  nothing_fits_format: {
    title: 'The answer can’t continue in its format',
    body: () => 'None of the model’s tokens fits the required format here. The text so far is kept.',
    advice: 'Change the format, or answer again.',
  },
  not_a_file: {
    title: 'This is not a file',
    body: ({ path }) => `${path} is a folder or a device. Nothing was added.`,
    advice: 'Choose another file.',
  },
  import_too_large: {
    title: 'The conversation is too large',
    body: ({ path, most }) => `${path} is larger than ${most}, the limit for a conversation. Nothing was added.`,
    advice: 'Choose another file.',
  },
  export_too_large: {
    title: 'The conversation is too large',
    body: ({ most }) => `The file would be larger than ${most}, so it could not be imported again. Nothing was saved.`,
    advice: 'Export the conversation as Markdown.',
  },
  too_many_files: {
    title: 'Too many files',
    body: ({ limit, found }) => `A question can have ${limit} files, and this one has ${found}.`,
    advice: 'Remove some.',
  },
  cancelled: {
    title: 'Cancelled',
    body: () => 'Nothing was changed.',
  },
  empty_prompt: {
    title: 'There is no text',
    body: () => 'The model has nothing to read.',
    advice: 'Enter some text.',
  },
  not_unicode: {
    title: 'The name can’t be read',
    body: ({ path }) => `${path} is not valid Unicode.`,
    advice: 'Rename it first.',
  },
  not_chosen: {
    title: 'The file has to be chosen first',
    body: ({ path }) => `${path} was not chosen in this window.`,
    advice: 'Choose it in the dialog, or drop it on the window.',
  },
  no_location: {
    title: 'Nothing was saved',
    body: () => 'The location of this file was used already.',
    advice: 'Save it again.',
  },
  not_kept: {
    title: 'New messages would be lost',
    body: () => 'Conversations are only in memory, and would be lost when Hunch quits.',
    advice: 'Choose what to do in the list of conversations.',
  },
  no_such_copy: {
    title: 'The copy is gone',
    body: ({ name }) => `There is no copy ${name} any more.`,
    advice: 'Choose another one.',
  },
  preference_too_large: {
    title: 'The setting is too large',
    body: ({ name }) => `“${name}” takes more than 1 MB, so it was not saved.`,
    advice: 'Shorten it.',
  },
  no_such_folder: {
    title: 'The folder does not exist',
    body: ({ folder }) => `There is no folder ${folder}. Nothing was added.`,
    advice: 'Choose another one.',
  },
  not_a_folder: {
    title: 'This is not a folder',
    body: ({ path }) => `${path} is a file.`,
    advice: 'Choose the folder that contains it.',
  },
  folder_limit: {
    title: 'Too many folders',
    body: ({ limit }) => `Hunch searches at most ${limit} added folders.`,
    advice: 'Remove one first.',
  },
  folder_not_added: {
    title: 'The folder is not on the list',
    body: ({ folder }) => `${folder} is not an added folder. Its files are unchanged.`,
  },
  folder_list_unreadable: {
    title: 'The list of folders is damaged',
    body: ({ path }) => `${path} can’t be read. No models were changed.`,
    advice: 'Move that file away and add the folders again.',
  },
  folders_fixed: {
    title: 'Folders can’t be added',
    body: () => 'Hunch was started with a single models folder.',
    advice: 'Start Hunch without that setting.',
  },
  no_data_folder: {
    title: 'There is no folder for data',
    body: () => 'This user has no folder where Hunch can keep its data.',
    advice: 'Set HUNCH_DATA_DIR to one.',
  },
  not_own_model: {
    title: 'Hunch does not remove this model',
    body: ({ path }) => `${path} is not in Hunch’s folder. Nothing was removed.`,
    advice: 'Remove it with the program that downloaded it.',
  },
  context_too_long: {
    title: 'The context is too large',
    body: ({ name, limit, context }) => `${name} supports up to ${limit} tokens, not a context of ${context}.`,
    advice: 'Choose a smaller context.',
  },
  no_such_head: {
    title: 'The head was not found',
    body: ({ name }) => `There is no head ${name} among the models.`,
    advice: 'Put its folder into the models folder, or choose another drafter.',
  },
  unknown_head: {
    title: 'This head is not supported',
    body: ({ path }) => `Hunch can’t run ${path} as a head. Its files are unchanged.`,
    advice: 'Choose another drafter.',
  },
  damaged_head: {
    title: 'The head can’t be used',
    body: ({ path }) => `${path} is not a valid file of a head. It was not changed.`,
    advice: 'Download it again or choose another drafter.',
  },
  head_of_other: {
    title: 'The head is for another model',
    body: ({ name }) => `This head was trained for ${name}.`,
    advice: 'Open that model, or choose another drafter.',
  },
  head_mismatch: {
    title: 'The head is for another model',
    body: () => 'This head does not fit the target.',
    advice: 'Open its target, or choose another drafter.',
  },
  needs_draft: {
    title: 'The method needs a draft model',
    body: ({ method }) => `“${method}” needs a draft model, and none is loaded.`,
    advice: 'Open one, or choose another method.',
  },
  needs_low_bit_copy: {
    title: 'The method needs a low-bit copy',
    body: ({ method }) => `“${method}” needs a low-bit copy of the target, and none is loaded.`,
    advice: 'Choose another method. The command line creates the copy.',
  },
  needs_texts: {
    title: 'The method needs texts',
    body: ({ method }) => `“${method}” copies from your texts, and none are chosen.`,
    advice: 'Add some under “Your texts” in the settings, or choose another method.',
  },
  no_texts: {
    title: 'No text was found',
    body: () => 'There is no text to copy from.',
    advice: 'Choose files of UTF-8 text, or folders with some.',
  },
  needs_head: {
    title: 'The method needs a head',
    body: ({ method }) => `“${method}” needs a head trained for this model, and there is none.`,
    advice: 'Train one in the Library, or choose another method.',
  },
  no_draft_to_compare: {
    title: 'Nothing drafts at this position',
    body: () => 'No draft model is open, and a head drafts only after two tokens or more.',
    advice: 'Open a draft model, choose a later position, or look at the made-up distributions.',
  },
  lane_drafts_too_large: {
    title: 'Not enough memory for the lanes',
    body: ({ missing }) => `The drafts of these lanes need ${missing} more than is free next to their target. Nothing was changed.`,
    advice: 'Compare fewer drafts at once.',
  },
  suite_too_large: {
    title: 'The file is too large',
    body: ({ name, most }) => `${name} is larger than ${most}, the limit for a suite.`,
    advice: 'Split it, or choose another file.',
  },
  suite_too_long: {
    title: 'The suite has too many prompts',
    body: ({ suite, limit }) => `“${suite}” has more than ${limit} prompts, the limit.`,
    advice: 'Split it, or choose another file.',
  },
  suite_prompt_too_long: {
    title: 'A prompt is too long',
    body: ({ id, tokens, target, context }) => `Prompt ${id} has ${tokens} tokens, but the context of ${target} holds ${context}.`,
    advice: 'Shorten the prompt, or load the model with a longer context.',
  },
  suite_not_text: {
    title: 'The file is not text',
    body: ({ name }) => `${name} is not UTF-8 text.`,
    advice: 'Save it as UTF-8, or choose another file.',
  },
  not_a_prompt: {
    title: 'The file is not a suite',
    body: ({ suite, line }) => `Line ${line} of ${suite} is not a prompt.`,
    advice: 'Write {"id": "…", "prompt": "…"} in each line, or use a .txt file with a prompt in each line.',
  },
  empty_prompt_id: {
    title: 'A prompt has no id',
    body: ({ suite, line }) => `Line ${line} of ${suite} has an empty id.`,
    advice: 'Give each prompt its own id.',
  },
  empty_suite_prompt: {
    title: 'A prompt is empty',
    body: ({ suite, line }) => `Line ${line} of ${suite} has an empty prompt.`,
    advice: 'Fill it in or delete the line.',
  },
  repeated_prompt_id: {
    title: 'Two prompts have the same id',
    body: ({ suite, line, id, first }) => `Line ${line} of ${suite} has the id “${id}” of line ${first}.`,
    advice: 'Give each prompt its own id.',
  },
  empty_suite: {
    title: 'The file has no prompts',
    body: ({ suite }) => `All lines of ${suite} are empty.`,
    advice: 'Add at least one line, or choose another file.',
  },
  costs_not_measured: {
    title: 'Not measured yet',
    body: () => 'The time of a pass with these models was not measured yet.',
    advice: 'Measure it first.',
  },
  no_longer_kept: {
    title: 'These figures are gone',
    body: () => 'The figures of this position, answer or measurement are not kept any more.',
    advice: 'Choose it again.',
  },
  nothing_measured: {
    title: 'Nothing could be measured',
    body: ({ method }) => `“${method}” wrote no text that can be timed.`,
    advice: 'Choose another prompt.',
  },
  no_usable_prompts: {
    title: 'This model can’t write prompts',
    body: () => 'It writes no usable prompts for its own training.',
    advice: 'Choose a chat model.',
  },
  trained_elsewhere: {
    title: 'This head is being trained already',
    body: () => 'Another running Hunch trains this head.',
    advice: 'Stop it there, or wait until it has finished.',
  },
  other_training_data: {
    title: 'The training data are of another model',
    body: ({ folder }) => `The data in ${folder} are of another model or version. They are unchanged.`,
    advice: 'Delete the folder to start over.',
  },
  training_data_damaged: {
    title: 'The training data are damaged',
    body: ({ path, folder }) => `${path} can’t be read, so the training in ${folder} can’t continue.`,
    advice: 'Delete the folder to start over.',
  },
  damaged_shard: {
    title: 'A part of the training data was damaged',
    body: ({ path }) => `${path} could not be read and was removed. Everything else is kept.`,
    advice: 'Start again: the missing answers are written again.',
  },
  single_layer: {
    title: 'No head fits this model',
    body: () => 'The model has a single layer, and a head reads at least two.',
    advice: 'Choose another model.',
  },
  states_not_finite: {
    title: 'This model can’t be trained on',
    body: () => 'Its hidden states are not finite numbers.',
    advice: 'Choose another model, or another file of it.',
  },
  not_a_repository: {
    title: 'This is not a repository',
    body: () => 'A repository of the Hub has an owner and a name, like Qwen/Qwen3-8B-GGUF.',
    advice: 'Write it as on its page.',
  },
  bad_search: {
    title: 'The search has no words',
    body: () => 'A search of the Hub needs 1 to 200 characters.',
    advice: 'Search for part of a name, for example qwen3 8b.',
  },
  hub_busy: {
    title: 'The Hub is busy',
    body: ({ endpoint, seconds }) =>
      `${endpoint} refused the request because there were too many. Try again in ${seconds} s. Downloaded files are kept.`,
    advice: 'With an access token the limit is higher.',
  },
  hub_slow: {
    title: 'The Hub is slow',
    body: ({ endpoint, seconds }) => `${endpoint} took longer than ${seconds} s to answer. Nothing was changed.`,
    advice: 'Check the connection and try again.',
  },
  no_hub_search: {
    title: 'The Hub can’t be searched',
    body: ({ endpoint }) => `${endpoint} does not answer searches. Nothing was changed.`,
    advice: 'Enter the exact name of a repository instead.',
  },
  not_a_model_path: {
    title: 'This is not a model file',
    body: () => 'This is not the path of a model in a repository.',
    advice: 'Choose one of the files that the repository lists.',
  },
  no_such_repository: {
    title: 'Not found on the Hub',
    body: ({ repository }) => `The Hub has no repository ${repository}, or hides it.`,
    advice: 'Check the name. Private repositories need a token with access.',
  },
  no_such_hub_file: {
    title: 'Not found on the Hub',
    body: ({ repository }) => `${repository} does not have this file any more.`,
    advice: 'It may have been renamed. Choose one of the files that the repository lists now.',
  },
  terms_need_token: {
    title: 'The terms must be accepted first',
    body: ({ repository, page }) =>
      `${repository} is only available to those who accept its terms. Accept them on ${page}, then enter a token of that account.`,
  },
  terms_not_accepted: {
    title: 'The terms must be accepted first',
    body: ({ repository, page }) =>
      `The account of your token has no access to ${repository} yet. Accept the terms on ${page}, wait for approval if needed, then try again.`,
  },
  token_rejected: {
    title: 'The access token was rejected',
    body: () => 'The token may have expired or been revoked. Downloaded files are kept.',
    advice: 'Create a new token in your settings on the Hub and replace the old one.',
  },
  no_hub_access: {
    title: 'No access to this repository',
    body: ({ repository }) => `The Hub gives no access to ${repository}. Downloaded files are kept.`,
    advice: 'Use a token with access.',
  },
  no_keychain: {
    title: 'There is no keychain',
    body: () => 'This system has no keychain, and Hunch stores a token nowhere else.',
    advice: 'Set HF_TOKEN, or log in with “hf auth login”.',
  },
  keychain_failed: {
    title: 'The token was not saved',
    body: () => 'The keychain could not be written. Nothing was changed.',
    advice: 'Try again.',
  },
  unencrypted_key: {
    title: 'The key was not used',
    body: ({ address }) => `Others on the network could read the key on its way to ${address}.`,
    advice: 'Use an https address, or reach the server through a tunnel to this machine.',
  },
  not_a_server_key: {
    title: 'The key is malformed',
    body: () => 'The server’s key must be one word of plain characters, without spaces.',
    advice: 'Copy it again from the server’s settings.',
  },
  no_such_server: {
    title: 'The server is not in the list',
    body: ({ address }) => `${address} is not among the servers of the Library.`,
    advice: 'Add it there, or choose another one.',
  },
  no_such_server_model: {
    title: 'The server does not have this model',
    body: ({ address, model }) => `${address} does not offer “${model}”.`,
    advice: 'Choose one of its models in the Library.',
  },
  server_cannot_continue: {
    title: 'A server cannot continue its answer',
    body: () => 'Only answers of loaded models can be continued.',
    advice: 'Answer the question again.',
  },
  server_keychain_failed: {
    title: 'The keychain could not be used',
    body: () => 'The key of the server was neither read nor stored.',
    advice: 'Unlock the keychain and try again, or enter the key again.',
  },
  bad_endpoint: {
    title: 'The Hub’s address is not valid',
    body: () => 'HF_ENDPOINT is not an address.',
    advice: 'Write it like https://huggingface.co, or unset it.',
  },
  bad_proxy: {
    title: 'The proxy can’t be used',
    body: () => 'The address of the proxy is not valid.',
    advice: 'Check HTTPS_PROXY and ALL_PROXY.',
  },
  no_tls: {
    title: 'No encrypted connections',
    body: () => 'TLS can’t be set up on this system.',
    advice: 'Check the system’s certificates, and SSL_CERT_FILE and SSL_CERT_DIR if they are set.',
  },
  no_such_download: {
    title: 'The download is gone',
    body: () => 'This download was discarded.',
    advice: 'Choose another one.',
  },
  name_taken: {
    title: 'The name is taken',
    body: ({ name, limit }) => `There are already ${limit} models called ${name}.`,
    advice: 'Remove some of them, then try again.',
  },
};
