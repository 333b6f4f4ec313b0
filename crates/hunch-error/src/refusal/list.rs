//! The closed list of refusals, for which the window has words in every language. A row is a refusal: its English
//! message and the values that the window inserts into its words.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::{EnglishOnly, Shown};
use crate::megabytes;

refusals! {
    /// A conversation with this id was deleted.
    #[error("There is no conversation {id} any more. Choose another one.")]
    NoSuchConversation {
        /// Its id in the store.
        id: i64,
    },
    /// A message with this id was deleted.
    #[error("There is no message {id} any more. Choose another one.")]
    NoSuchMessage {
        /// Its id in the store.
        id: i64,
    },
    /// A saved comparison with this id was deleted.
    #[error("There is no comparison {id} any more. Choose another one.")]
    NoSuchComparison {
        /// Its id in the store.
        id: i64,
    },
    /// The loaded target has not written the answer, whose tokens belong to another vocabulary.
    #[error(
        "This answer is by {writer}, and {loaded} is loaded. Load {writer} to continue with it, or answer again."
    )]
    OtherWriter {
        /// Name of the target that wrote the answer.
        writer: String,
        /// Name of the loaded target.
        loaded: String,
    },
    /// The token was not stored as an alternative at its position.
    #[error(
        "That token is not among the alternatives that were kept for this place. Choose one of those shown."
    )]
    NotAnAlternative,
    /// The token ends an answer.
    #[error("That token ends the answer, so nothing can follow it. Choose another one.")]
    EndToken,
    /// The answer tested no drafted token.
    #[error("This answer tested no draft. Choose one of a method that drafts.")]
    NothingDrafted,
    /// The file is not an exported conversation.
    #[error("This is not a conversation exported by Hunch ({detail}). Nothing was added. Choose another file.")]
    NotAConversation {
        /// The defect of the file, in English.
        detail: String,
    },
    /// The exported conversation has a version that this Hunch does not read.
    #[error(
        "This conversation was exported in version {version} of the format, and this Hunch reads version {readable}. \
         Nothing was added. Import it with the Hunch that exported it."
    )]
    ConversationVersion {
        /// Version of the file.
        version: u32,
        /// Version that can be read.
        readable: u32,
    },
    /// A file to attach has no text.
    #[error("“{name}” is empty, so it was not attached. Choose another file.")]
    EmptyFile {
        /// Name of the file.
        name: String,
    },
    /// A file has the name that the default extension completes.
    #[error(
        "{} exists already, so nothing was written. Choose that file to replace it, or choose another name.",
        path.display()
    )]
    FileExists {
        /// The existing file.
        path: PathBuf,
    },
    /// The folder is one of those searched for models.
    #[error("{} is already searched. Choose another folder.", folder.display())]
    FolderKnown {
        /// The folder.
        folder: PathBuf,
    },
    /// The model is loaded, so its files stay.
    #[error("{name} is in memory. Nothing was removed. Unload it or open another model first.")]
    ModelInMemory {
        /// Name of the model.
        name: String,
    },
    /// The library does not list the model, and the user has not chosen its file.
    #[error("{name} is not in the library. Open it with “Open model…”, or add its folder to the library.")]
    ModelNotInLibrary {
        /// Path or name of the model.
        name: String,
    },
    /// The draft has more weights than the target.
    #[error(
        "The draft is larger than the target, so it cannot save time. Swap the two, or choose a smaller draft."
    )]
    DraftTooLarge,
    /// The text is not an access token of the Hub. It is not quoted.
    #[error(
        "This is not a Hub token: it must be one word of plain characters, like hf_…. Copy it again from your settings \
         on the Hub."
    )]
    NotAToken,
    /// The disk has no room for the training data.
    #[error(
        "The training data needs {}, and {} MB are free. Train on fewer tokens, or free some space.",
        megabytes(*needed), free / 1_000_000
    )]
    NoDiskForTraining {
        /// Bytes that the data still need.
        needed: u64,
        /// Free bytes on the disk.
        free: u64,
    },
    /// Models are not expected to fit into memory.
    #[error("Not enough memory: {text}. Choose a smaller model, quantisation or context.")]
    ModelTooLarge {
        /// Their context, in tokens.
        context: u32,
        /// Predicted memory, in bytes.
        needed: u64,
        /// Memory that models may take, in bytes.
        usable: u64,
        /// The prediction in words.
        text: EnglishOnly,
    },
    /// There is no room for training a head next to its target.
    #[error(
        "Not enough memory: training a head for this model needs {} in addition to it, and nothing was changed. Choose a \
         smaller model, quantisation or context.",
        megabytes(*needed)
    )]
    TrainingTooLarge {
        /// Bytes that training needs.
        needed: u64,
    },
    /// The chat template has no text before the user's, so the model cannot write prompts.
    #[error(
        "This model's chat template has no user turn, so the model cannot write prompts for itself. Choose another model, or \
         give prompts with --from."
    )]
    NoUserTurn,
    /// All scores of the target are NaN or minus infinity.
    #[error("The model's scores are not numbers, so no token can be chosen. Its file may be damaged. Download it again.")]
    UnusableScores,
    /// The format of the answer allows no token that the model can choose.
    #[error(
        "The answer cannot continue in the required format: none of the model's tokens fits here. Choose another format, or \
         answer again."
    )]
    NothingFitsFormat,
    /// A path to import is a folder, a pipe or a device.
    #[error("{} is not a regular file. Nothing was added. Choose another file.", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A conversation to import is too large.
    #[error(
        "{} is larger than {} GiB, the limit for a conversation. Nothing was added. Choose another file.",
        path.display(), most >> 30
    )]
    ImportTooLarge {
        /// The file.
        path: PathBuf,
        /// The limit, in bytes.
        most: u64,
    },
    /// An exported conversation could not be imported again.
    #[error(
        "The file would be larger than {} GiB and could not be imported again. Export the conversation as Markdown.",
        most >> 30
    )]
    ExportTooLarge {
        /// The limit, in bytes.
        most: u64,
    },
    /// A question has too many files.
    #[error("A question can have {limit} files, and this one has {found}. Remove some.")]
    TooManyFiles {
        /// The limit.
        limit: usize,
        /// Files of the question.
        found: usize,
    },
    /// The user cancelled reading a position of the lab.
    #[error("Cancelled. Nothing was changed. Try again at any time.")]
    Cancelled,
    /// The text to read is empty.
    #[error("The prompt is empty. Enter some text.")]
    EmptyPrompt,
    /// The name of a chosen file or folder is not valid Unicode.
    #[error("{} is not valid Unicode. Rename it first.", path.display())]
    NotUnicode {
        /// The path.
        path: PathBuf,
    },
    /// The page names a file that the user has not chosen.
    #[error("{} was not chosen in this window. Choose it in the dialog, or drop it on the window.", path.display())]
    NotChosen {
        /// The path.
        path: PathBuf,
    },
    /// The place to save a file at was used already.
    #[error("No location was chosen for this file, so nothing was written. Save it again.")]
    NoLocation,
    /// Conversations are only in memory, and the user has not accepted that.
    #[error(
        "The file of the conversations cannot be used, so new messages would be lost when the app closes. Nothing was \
         changed. Choose what to do in the list of conversations."
    )]
    NotKept,
    /// The backup copy of the conversations was deleted.
    #[error("There is no copy {name} any more. Choose another one.")]
    NoSuchCopy {
        /// Its name.
        name: String,
    },
    /// A setting is larger than the store keeps.
    #[error("The preference {name} is too large to be kept. Shorten it.")]
    PreferenceTooLarge {
        /// Its name.
        name: String,
    },
    /// The folder to add does not exist.
    #[error("The folder {} does not exist. Nothing was added. Choose another one.", folder.display())]
    NoSuchFolder {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder to add is a file.
    #[error("{} is not a folder. Choose the folder that contains it.", path.display())]
    NotAFolder {
        /// The file.
        path: PathBuf,
    },
    /// As many folders are searched as the library allows.
    #[error("The limit of {limit} added folders is reached. Remove one first.")]
    FolderLimit {
        /// The limit.
        limit: usize,
    },
    /// The folder to remove is not on the list.
    #[error("{} is not in the list of added folders. Nothing was changed. Choose a folder from the list.", folder.display())]
    FolderNotAdded {
        /// The folder.
        folder: PathBuf,
    },
    /// The list of added folders is damaged.
    #[error(
        "The list of added folders, {}, cannot be read. No models were changed. Move that file away and add the folders \
         again.",
        path.display()
    )]
    FolderListUnreadable {
        /// File of the list.
        path: PathBuf,
    },
    /// Hunch was started with a single models folder.
    #[error(
        "Folders cannot be added: Hunch was started with a single models folder. Put models into that folder, or start \
         Hunch without a fixed one."
    )]
    FoldersFixed,
    /// This user has no folder for data.
    #[error("This user has no folder for Hunch's data. Set HUNCH_DATA_DIR to one.")]
    NoDataFolder,
    /// Hunch deletes models in its own folder only.
    #[error("{} is not in Hunch's folder, so Hunch does not remove it. {detail}", path.display())]
    NotOwnModel {
        /// The file.
        path: PathBuf,
        /// The program that can remove it, in English.
        detail: String,
    },
    /// The model has a shorter context than requested.
    #[error("{name} supports 1 to {limit} tokens, not a context of {context}. Choose a smaller one.")]
    ContextTooLong {
        /// Name of the model.
        name: String,
        /// Its longest context, in tokens.
        limit: usize,
        /// The requested context, in tokens.
        context: u32,
    },
    /// No head of this name or path is listed.
    #[error(
        "There is no head {name} among the models. Put its folder into the models folder, or choose another drafter."
    )]
    NoSuchHead {
        /// Its name or path.
        name: String,
    },
    /// The files are not of a head that Hunch supports.
    #[error("{} is not a head that Hunch supports: {detail}. Choose one of those in docs/drafters.md.", path.display())]
    UnknownHead {
        /// The head's file or folder.
        path: PathBuf,
        /// The difference, in English.
        detail: String,
    },
    /// A file of a head is damaged.
    #[error(
        "{} is not usable as a head: {detail}. The file was not changed. Download it again or choose another one.",
        path.display()
    )]
    DamagedHead {
        /// The file.
        path: PathBuf,
        /// The defect, in English.
        detail: String,
    },
    /// A head of Hunch was trained for another model.
    #[error("This head was trained for {name}. Open that model, or decode without the head.")]
    HeadOfOther {
        /// Name of its target.
        name: String,
    },
    /// A head does not fit the target.
    #[error("This head was made for another target: {detail}. Open its target, or decode without the head.")]
    HeadMismatch {
        /// The difference, in English.
        detail: String,
    },
    /// The method needs a draft model.
    #[error("The method {method} needs a draft model. Open one (--draft), or choose ngram or plain.")]
    NeedsDraft {
        /// Name of the method.
        method: String,
    },
    /// The method needs a low-bit copy of the target.
    #[error(
        "The method {method} needs a low-bit copy of the target, which is not loaded. Create it on the command line: hunch run \
         --method {method}."
    )]
    NeedsLowBitCopy {
        /// Name of the method.
        method: String,
    },
    /// The method needs texts to copy from.
    #[error("The method {method} copies from your texts, and none are chosen. Name files or folders with --texts.")]
    NeedsTexts {
        /// Name of the method.
        method: String,
    },
    /// There is no text to copy from.
    #[error("There is no text to copy from. Choose files of UTF-8 text, or folders with some.")]
    NoTexts,
    /// The method needs a trained head.
    #[error("The method {method} needs a head trained for this model, and there is none. Choose ngram or suffix.")]
    NeedsHead {
        /// Name of the method.
        method: String,
    },
    /// Nothing drafts at a position: no draft model is loaded, and a head needs two tokens before it.
    #[error(
        "Nothing drafts at this position. Open a draft model, choose a later position, or look at the made-up \
         distributions."
    )]
    NoDraftToCompare,
    /// The drafts of a comparison's lanes do not fit into memory next to their target.
    #[error(
        "The drafts of these lanes need {} more memory than is free next to their target. Nothing was changed. Compare \
         fewer drafts at once.",
        megabytes(*missing)
    )]
    LaneDraftsTooLarge {
        /// Bytes that are missing.
        missing: u64,
    },
    /// The file of a suite is too large.
    #[error("{name} is larger than {} MB, the limit for a suite. Split it, or choose another file.", most / 1_000_000)]
    SuiteTooLarge {
        /// Name of the file.
        name: String,
        /// The limit, in bytes.
        most: u64,
    },
    /// A suite has too many prompts.
    #[error("The suite \"{suite}\" has more than {limit} prompts, the limit. Split it, or choose another file.")]
    SuiteTooLong {
        /// Name of the suite.
        suite: String,
        /// The limit.
        limit: usize,
    },
    /// A prompt of a suite is longer than the context.
    #[error(
        "Prompt {id} of the suite has {tokens} tokens, but the context of {target} holds {context}. Shorten the prompt, or \
         load the model with a longer context."
    )]
    SuitePromptTooLong {
        /// Id of the prompt.
        id: String,
        /// Its tokens.
        tokens: usize,
        /// Title of the model.
        target: String,
        /// Tokens that the context holds.
        context: usize,
    },
    /// The file of a suite is not text.
    #[error("{name} is not UTF-8 text. Save it as UTF-8, or choose another file.")]
    SuiteNotText {
        /// Name of the file.
        name: String,
    },
    /// A line of a suite is not a prompt.
    #[error(
        "Line {line} of the suite \"{suite}\" is not a prompt: {detail}. Write each line as one object: \
         {{\"id\": \"...\", \"system\": null, \"prompt\": \"...\"}}."
    )]
    NotAPrompt {
        /// Name of the suite.
        suite: String,
        /// Number of the line, from 1.
        line: usize,
        /// The defect, in English.
        detail: String,
    },
    /// A prompt of a suite has no id.
    #[error("Line {line} of the suite \"{suite}\" has an empty id. Give each prompt its own id.")]
    EmptyPromptId {
        /// Name of the suite.
        suite: String,
        /// Number of the line, from 1.
        line: usize,
    },
    /// A prompt of a suite has no text.
    #[error("Line {line} of the suite \"{suite}\" has an empty prompt. Fill it in or delete the line.")]
    EmptySuitePrompt {
        /// Name of the suite.
        suite: String,
        /// Number of the line, from 1.
        line: usize,
    },
    /// Two prompts of a suite have the same id.
    #[error("Line {line} of the suite \"{suite}\" has the id \"{id}\" of line {first}. Give each prompt its own id.")]
    RepeatedPromptId {
        /// Name of the suite.
        suite: String,
        /// Number of the line, from 1.
        line: usize,
        /// The id.
        id: String,
        /// Number of the first line with this id.
        first: usize,
    },
    /// A suite has no prompts.
    #[error("The suite \"{suite}\" has no prompts. Add at least one line.")]
    EmptySuite {
        /// Name of the suite.
        suite: String,
    },
    /// The passes of the loaded models were not timed.
    #[error("The cost of passes with these models was not measured yet. Measure it first.")]
    CostsNotMeasured,
    /// The figures belong to an earlier answer, position or measurement, whose record is gone.
    #[error("The figures of this position, answer or measurement are not kept any more. Choose it again.")]
    NoLongerKept,
    /// A method wrote nothing that can be timed.
    #[error("The method {method} generated nothing that could be measured. Choose another prompt.")]
    NothingMeasured {
        /// Name of the method.
        method: String,
    },
    /// The model writes no text that a head can be trained on.
    #[error("This model writes no usable prompts, so it cannot write its own training text. Choose a chat model.")]
    NoUsablePrompts,
    /// Another program trains on the same data.
    #[error("Another run is training on this data. Stop it, or choose another --seed.")]
    TrainedElsewhere,
    /// The folder has training data of something else.
    #[error("The data in {} belongs to another model, seed or version. Delete the folder to start over.", folder.display())]
    OtherTrainingData {
        /// The folder.
        folder: PathBuf,
    },
    /// A shard of training data was damaged, and its file has been removed.
    #[error("{} was damaged and has been removed. Start again: its answers are written again.", path.display())]
    DamagedShard {
        /// The file.
        path: PathBuf,
    },
    /// The index of training data is damaged.
    #[error("{} is damaged: {detail}. Delete {} to start over.", path.display(), folder.display())]
    TrainingDataDamaged {
        /// The index.
        path: PathBuf,
        /// The folder of the data.
        folder: PathBuf,
        /// The defect, in English.
        detail: String,
    },
    /// A head cannot be trained for a target of one layer.
    #[error("This model has a single layer, and a head reads at least two. Choose another model.")]
    SingleLayer,
    /// A head cannot be trained on states that are not finite numbers.
    #[error(
        "The hidden states of this target are not finite, so no head can be trained on them. Choose another model, or \
         another file of it."
    )]
    StatesNotFinite,
    /// The text is not the name of a repository. It is not quoted.
    #[error(
        "This is not the name of a Hub repository. Write it as on its page, for example Qwen/Qwen3-8B-GGUF."
    )]
    NotARepository,
    /// The search of the Hub has no words, or too many. It is not quoted.
    #[error("The search is empty or has more than 200 characters. Enter a few words, for example qwen3 8b.")]
    BadSearch,
    /// The Hub refused a request because there were too many.
    #[error(
        "The Hub at {endpoint} refused the request because there were too many (status 429). Downloaded data is kept. \
         Try again in {seconds} s. With a token the limit is higher."
    )]
    HubBusy {
        /// Address of the Hub.
        endpoint: String,
        /// Seconds to wait.
        seconds: u64,
    },
    /// An answer of the Hub did not arrive in time.
    #[error(
        "The Hub at {endpoint} took longer than {seconds} s to answer. Nothing was changed. Check the connection and \
         try again."
    )]
    HubSlow {
        /// Address of the Hub.
        endpoint: String,
        /// Limit of the time, in seconds.
        seconds: u64,
    },
    /// The Hub has no search, or its answer cannot be read.
    #[error(
        "The Hub at {endpoint} cannot be searched: {detail}. Nothing was changed. Enter the exact name of a repository \
         instead."
    )]
    NoHubSearch {
        /// Address of the Hub.
        endpoint: String,
        /// The reason, as a phrase in English.
        detail: String,
    },
    /// The path is not one of a model in a repository. It is not quoted, as it may have control characters.
    #[error("This is not the path of a model in a repository. Choose one of the files that the repository lists.")]
    NotAModelPath,
    /// The Hub has no such repository, or hides it from this account.
    #[error(
        "Not found on the Hub: the repository {repository}. Check the name. Private repositories need a token with access."
    )]
    NoSuchRepository {
        /// Owner and name.
        repository: String,
    },
    /// The repository has no such file or version any more.
    #[error(
        "Not found on the Hub: this file in {repository}. It may have been renamed. Choose one of the files that the \
         repository lists now."
    )]
    NoSuchHubFile {
        /// Owner and name.
        repository: String,
    },
    /// The repository requires accepting its terms, and no token is set.
    #[error(
        "{repository} requires accepting its owners' terms. Accept them on {page} and give Hunch a token of that account \
         (HF_TOKEN)."
    )]
    TermsNeedToken {
        /// Owner and name.
        repository: String,
        /// Address of its page.
        page: String,
    },
    /// The account of the token has not accepted the terms, or waits for approval.
    #[error(
        "{repository} requires accepting its owners' terms. The token's account has no access yet. Accept them on {page}, \
         wait if the owners have to approve, then try again."
    )]
    TermsNotAccepted {
        /// Owner and name.
        repository: String,
        /// Address of its page.
        page: String,
    },
    /// The Hub rejects the token.
    #[error(
        "The Hub rejects the token ({detail}). It may have expired or been revoked. Downloaded data is kept. Create a new \
         token in your settings on the Hub and replace the old one."
    )]
    TokenRejected {
        /// The Hub's answer, without the token.
        detail: String,
    },
    /// The token's account, or a guest, may not read the repository.
    #[error(
        "The Hub gives no access to {repository} ({detail}). Downloaded data is kept. Use a token with access."
    )]
    NoHubAccess {
        /// Owner and name.
        repository: String,
        /// The Hub's answer, without the token.
        detail: String,
    },
    /// This system has no keychain.
    #[error(
        "This system has no keychain, and Hunch stores a token nowhere else. Set HF_TOKEN, or log in with `hf auth login`."
    )]
    NoKeychain,
    /// The keychain cannot be written.
    #[error("The keychain could not be written: {detail}. Nothing was changed. Try again.")]
    KeychainFailed {
        /// The system's reason, without the token.
        detail: String,
    },
    /// A key would be sent over a connection that others can read.
    #[error(
        "The key was not used: others on the network could read it on its way to {address}. Use an https address, \
         reach the server through a tunnel to this machine, or unset HUNCH_SERVER_KEY."
    )]
    UnencryptedKey {
        /// Address of the server's API.
        address: String,
    },
    /// The key of a server is malformed.
    #[error("The server's key must be one word of plain characters, without spaces. Copy it again from the server's settings.")]
    NotAServerKey,
    /// The server was removed, or never added.
    #[error("The server {address} is not in the list. Add it there.")]
    NoSuchServer {
        /// Address of the server's API.
        address: String,
    },
    /// A server does not offer the model.
    #[error("There is no model {model} at {address}. {detail}")]
    NoSuchServerModel {
        /// Address of the server's API.
        address: String,
        /// Name of the model.
        model: String,
        /// The names there are, in English.
        detail: String,
    },
    /// The answer of a server cannot be continued.
    #[error("A server cannot continue its answer. Answer the question again.")]
    ServerCannotContinue,
    /// The keychain cannot be used for the key of a server.
    #[error("The keychain could not be used: {detail}. Unlock it and try again, or enter the key again.")]
    ServerKeychainFailed {
        /// The system's reason, without the key.
        detail: String,
    },
    /// The address of the Hub is invalid. It is not quoted, as it may have a password.
    #[error("HF_ENDPOINT is not a valid address. Write it like https://huggingface.co, or unset it.")]
    BadEndpoint,
    /// The proxy cannot be used.
    #[error("The proxy cannot be used: {detail}. Check HTTPS_PROXY and ALL_PROXY.")]
    BadProxy {
        /// The defect, in English.
        detail: String,
    },
    /// Encrypted connections cannot be set up.
    #[error(
        "TLS cannot be set up: {detail}. Check the system's certificates and, if they are set, SSL_CERT_FILE and \
         SSL_CERT_DIR."
    )]
    NoTls {
        /// The defect, in English.
        detail: String,
    },
    /// The download was discarded.
    #[error("This download no longer exists. Choose another one.")]
    NoSuchDownload,
    /// Too many models have the name of a download.
    #[error("There are already {limit} models called {name}. Remove some of them, then try again.")]
    NameTaken {
        /// Name of the model.
        name: String,
        /// The limit.
        limit: usize,
    },
}
