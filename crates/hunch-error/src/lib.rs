//! Errors shown to the user, shared by every crate above `hunch-core` and `hunch-kernels`. Each message
//! says what happened and what to do next. [`ErrorCode`] is the closed list that the window and the command
//! line branch on, and [`RefusalReason`] the one of refusals.

mod refusal;
mod running_work;
mod server_remedy;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use ts_rs::TS;

pub use refusal::{EnglishOnly, Refusal, RefusalReason};
pub use running_work::RunningWork;
pub use server_remedy::ServerRemedy;

/// Result of a fallible engine operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Failure kinds that callers branch on. The list is closed: the window has a card for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// A parameter is out of range, or the request makes no sense.
    InvalidRequest,
    /// No model file has this path or name.
    ModelNotFound,
    /// The file is not a GGUF, is truncated, or contradicts itself.
    InvalidModelFile,
    /// A valid model of an architecture or type that Hunch does not run.
    UnsupportedModel,
    /// Draft and target do not share a vocabulary.
    VocabularyMismatch,
    /// The prompt does not fit in the context.
    ContextOverflow,
    /// A file to attach is not text.
    NotText,
    /// A file to attach is too large.
    FileTooLarge,
    /// A file to attach has more tokens than the context.
    FileOverContext,
    /// Not enough memory.
    OutOfMemory,
    /// Reading or writing a file failed.
    Io,
    /// The conversation database cannot be read or written.
    Store,
    /// No model is loaded.
    NoModel,
    /// A generation or measurement is already running.
    Busy,
    /// The user stopped the operation.
    Stopped,
    /// The compute device failed.
    Device,
    /// A server that was to answer cannot be reached, or refused.
    Server,
    /// The Hub cannot be reached or used.
    HubUnreachable,
    /// The Hub has no such repository or file.
    HubNotFound,
    /// The repository requires accepting its terms.
    HubGated,
    /// The Hub rejects the token, or the token cannot be saved.
    HubToken,
    /// A downloaded file does not match the Hub's checksum.
    WrongChecksum,
    /// The Hub's file differs from the one the catalogue was checked against.
    #[serde(alias = "not_of_catalogue")]
    CatalogueMismatch,
    /// The disk is full.
    DiskFull,
    /// The state file of an unfinished download is missing or corrupt.
    DownloadUnreadable,
    /// Another running Hunch is downloading this file.
    DownloadElsewhere,
    /// The list of releases or an update cannot be fetched.
    UpdateUnreachable,
    /// An update is not signed as that release of Hunch.
    UpdateRejected,
    /// An update could not be installed.
    UpdateNotInstalled,
    /// A defect in Hunch.
    Internal,
}

/// Serialisable form of an [`Error`], as the window receives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ErrorInfo {
    /// Failure kind, for branching.
    pub code: ErrorCode,
    /// English message: what happened, what is safe, what to do.
    pub message: String,
    /// Values that the window inserts into its translated message; see [`Error::params`]. Missing in
    /// answers stored by versions without this field.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[ts(as = "Option<BTreeMap<String, String>>", optional)]
    pub params: BTreeMap<String, String>,
}

impl From<&Error> for ErrorInfo {
    fn from(error: &Error) -> Self {
        Self { code: error.code(), message: error.to_string(), params: error.params() }
    }
}

/// An engine failure.
///
/// The message contains its causes, so none is offered as [`source`](std::error::Error::source): whatever prints the
/// chain of an error would repeat them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter is out of range, or the request makes no sense. The text names the range.
    #[error("{0}")]
    InvalidRequest(String),
    /// The request is refused for a reason that the window shows in its own language.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No model file has this path or name.
    #[error("No model called \"{name}\" was found. {remedy}")]
    ModelNotFound {
        /// The path or name that was requested.
        name: String,
        /// A remedy.
        remedy: String,
    },
    /// The file is not a GGUF, is truncated, or contradicts itself.
    #[error("{} is not a usable model: {reason}. The file was not changed. Download it again or choose another one.", path.display())]
    InvalidModelFile {
        /// The file.
        path: PathBuf,
        /// The defect of the file.
        reason: String,
    },
    /// A valid model of an architecture or type that Hunch does not run.
    #[error("{} cannot be run: {reason}. The file was not changed. Choose another model, for example from the catalogue.", path.display())]
    UnsupportedModel {
        /// The file.
        path: PathBuf,
        /// The unsupported feature.
        reason: String,
    },
    /// Draft and target disagree about a token.
    #[error(
        "The draft cannot be used with this target: {0}. Choose a draft of the same model family, or a method that needs none (ngram)."
    )]
    VocabularyMismatch(String),
    /// The prompt does not fit in the context.
    #[error(
        "The prompt has {prompt} tokens, and this model's context holds {context}. Shorten the prompt or the conversation."
    )]
    ContextOverflow {
        /// Tokens in the prompt.
        prompt: usize,
        /// Tokens the context holds.
        context: usize,
    },
    /// A chosen file is not UTF-8 text.
    #[error("“{name}” is not UTF-8 text, so it is not used. Choose a text file, or save it as UTF-8.")]
    NotText {
        /// Name of the file.
        name: String,
    },
    /// A file to attach is too large.
    #[error(
        "“{name}” has {}, and files up to {} are accepted. Choose a part of it.",
        megabytes(*bytes), megabytes(*most)
    )]
    FileTooLarge {
        /// Name of the file.
        name: String,
        /// Its size, in bytes.
        bytes: u64,
        /// The limit, in bytes.
        most: u64,
    },
    /// A file to attach has more tokens than the context.
    #[error(
        "“{name}” has {tokens} tokens, and this model's context holds {context}. Attach a part of it, or load the \
         model with a larger context."
    )]
    FileOverContext {
        /// Name of the file.
        name: String,
        /// Tokens in the file.
        tokens: usize,
        /// Tokens the context holds.
        context: usize,
    },
    /// Not enough memory for the request.
    #[error("Not enough memory: {0}. Choose a smaller model, quantisation or context.")]
    OutOfMemory(String),
    /// Reading or writing a file failed.
    #[error(
        "Could not {action} {}: {source}. Check that it exists, that you can access it and, for writing, that the disk is not \
         full. Then try again.",
        path.display()
    )]
    Io {
        /// The operation that failed: "read", "write".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's reason. The raw identifier keeps it out of the chain.
        r#source: std::io::Error,
    },
    /// The conversation database cannot be read or written.
    #[error(
        "The conversations cannot be read or written: {0}. Nothing was changed. Close other Hunch windows, check that the \
         disk is writable and not full, then try again."
    )]
    Store(String),
    /// No model is loaded.
    #[error("No model is loaded. Open a model first.")]
    NoModel,
    /// Other work is running.
    #[error("{0}")]
    Busy(RunningWork),
    /// The user stopped loading.
    #[error("Loading was stopped. The models loaded before are still in memory.")]
    Stopped,
    /// The compute device failed.
    #[error("The {device} device failed: {reason}. Try again with --device cpu.")]
    Device {
        /// "cpu" or "metal".
        device: &'static str,
        /// The device's reason.
        reason: String,
    },
    /// A server that was to answer cannot be reached, or refused.
    #[error("The server {address} did not answer: {reason}. {remedy}")]
    Server {
        /// Address of the server's API.
        address: String,
        /// The reason.
        reason: String,
        /// A remedy.
        remedy: ServerRemedy,
    },
    /// The Hub cannot be reached or used.
    #[error(
        "The Hub at {endpoint} cannot be used: {reason}. Downloaded data is kept. Check the connection (and \
         HF_ENDPOINT and HTTPS_PROXY, if they are set), then try again."
    )]
    HubUnreachable {
        /// Address of the Hub.
        endpoint: String,
        /// The reason.
        reason: String,
    },
    /// The Hub has no such repository or file, or hides it from this account.
    #[error("Not found on the Hub: {what}. {remedy}")]
    HubNotFound {
        /// The requested item.
        what: String,
        /// A remedy.
        remedy: String,
    },
    /// A downloaded file does not match the Hub's checksum.
    #[error(
        "The checksum of {file} does not match the Hub's (expected {expected}, found {found}). The file is kept as \
         {} and is not used as a model. Download it again. If the checksum is wrong again, something on the \
         network changes the file.",
        path.display()
    )]
    WrongChecksum {
        /// Path of the file in its repository.
        file: String,
        /// First characters of the Hub's SHA-256.
        expected: String,
        /// First characters of the downloaded file's SHA-256.
        found: String,
        /// Path of the quarantined file.
        path: PathBuf,
    },
    /// The Hub's file differs from the one the catalogue was checked against.
    #[error(
        "{file} differs from the file that the catalogue was checked against (expected checksum {expected}, found \
         {found}). Nothing was downloaded or changed. Its owners may have published a new version. Enter \
         the repository's name and choose the file there to download it."
    )]
    CatalogueMismatch {
        /// The file and its repository.
        file: String,
        /// First characters of the catalogue's SHA-256.
        expected: String,
        /// First characters of the Hub's SHA-256.
        found: String,
    },
    /// The disk is full.
    #[error(
        "Not enough space on the disk of {}: {} more are needed{}. Downloaded data is kept. Free some space, then resume.",
        folder.display(), megabytes(*missing), reserved_clause(*reserved)
    )]
    DiskFull {
        /// The destination folder.
        folder: PathBuf,
        /// Bytes to free.
        missing: u64,
        /// Free bytes reserved by other active downloads, 0 if there are none.
        reserved: u64,
    },
    /// The state file of an unfinished download is missing or corrupt.
    #[error(
        "The state of an unfinished download cannot be read, so the download cannot be resumed. Its partial files take \
         {} in {}. Nothing else is affected. Discard it to free the space, then download the model again.",
        megabytes(*bytes), folder.display()
    )]
    DownloadUnreadable {
        /// Folder of the partial files.
        folder: PathBuf,
        /// Size of the partial files, in bytes.
        bytes: u64,
    },
    /// Another running Hunch is downloading this file.
    #[error(
        "{name} is being downloaded by another running Hunch. Wait for it, or pause it there and resume here."
    )]
    DownloadElsewhere {
        /// Name of the model.
        name: String,
    },
    /// The list of releases or an update cannot be fetched.
    #[error(
        "Updates cannot be fetched: {0}. Nothing was changed. Check the connection (and HTTPS_PROXY, if it is set), then \
         try again."
    )]
    UpdateUnreachable(String),
    /// An update is not signed as that release of Hunch.
    #[error(
        "The update to {version} is not signed as that release of Hunch: {reason}. It was discarded, and nothing was \
         changed. Try again later. If it is rejected again, report it."
    )]
    UpdateRejected {
        /// Version that was announced.
        version: String,
        /// The reason.
        reason: String,
    },
    /// An update could not be installed.
    #[error(
        "The update to {version} could not be installed: {reason}. Conversations and models are safe. Check that you may \
         replace the app and that it is not on a disk image. Then try again, or install the new version by hand."
    )]
    UpdateNotInstalled {
        /// Version of the update.
        version: String,
        /// The reason.
        reason: String,
    },
    /// A numeric operation failed inside the engine.
    #[error(
        "The model could not be evaluated: {0}. This is a defect in Hunch; please report it with the model's name."
    )]
    Compute(candle_core::Error),
    /// A broken invariant.
    #[error("Internal error: {0}. This is a defect in Hunch; please report it.")]
    Internal(String),
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Self::Compute(error)
    }
}

impl From<hunch_kernels::Error> for Error {
    fn from(error: hunch_kernels::Error) -> Self {
        use hunch_kernels::Error as Kernels;
        match error {
            Kernels::OutOfMemory { .. } => Self::OutOfMemory(error.to_string()),
            // Readers of weights wrap this crate's errors.
            Kernels::Read(source) => match source.downcast::<Self>() {
                Ok(ours) => *ours,
                Err(other) => Self::Internal(other.to_string()),
            },
            Kernels::Layout(reason) => Self::Internal(reason),
        }
    }
}

impl From<hunch_core::error::Error> for Error {
    fn from(error: hunch_core::error::Error) -> Self {
        use hunch_core::error::Error as Core;
        match error {
            Core::InvalidRequest(message) => Self::InvalidRequest(message),
            Core::ContextOverflow { prompt, context } => Self::ContextOverflow { prompt, context },
            // Hunch's models and proposers wrap this crate's errors.
            Core::Model(source) => match source.downcast::<Self>() {
                Ok(ours) => *ours,
                Err(other) => Self::Internal(other.to_string()),
            },
            Core::UnusableScores => Refusal::UnusableScores.into(),
            Core::NothingAllowed => Refusal::NothingFitsFormat.into(),
            Core::Internal(reason) => Self::Internal(reason),
            other => Self::Internal(other.to_string()),
        }
    }
}

impl From<Error> for hunch_core::error::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::InvalidRequest(message) => Self::InvalidRequest(message),
            Error::ContextOverflow { prompt, context } => Self::ContextOverflow { prompt, context },
            Error::Internal(reason) => Self::Internal(reason),
            other => Self::model(other),
        }
    }
}

impl Error {
    /// Returns the failure kind.
    pub fn code(&self) -> ErrorCode {
        match self {
            Error::InvalidRequest(_) => ErrorCode::InvalidRequest,
            Error::Refused(refusal) => refusal.code(),
            Error::ModelNotFound { .. } => ErrorCode::ModelNotFound,
            Error::InvalidModelFile { .. } => ErrorCode::InvalidModelFile,
            Error::UnsupportedModel { .. } => ErrorCode::UnsupportedModel,
            Error::VocabularyMismatch(_) => ErrorCode::VocabularyMismatch,
            Error::ContextOverflow { .. } => ErrorCode::ContextOverflow,
            Error::NotText { .. } => ErrorCode::NotText,
            Error::FileTooLarge { .. } => ErrorCode::FileTooLarge,
            Error::FileOverContext { .. } => ErrorCode::FileOverContext,
            Error::OutOfMemory(_) => ErrorCode::OutOfMemory,
            Error::Io { .. } => ErrorCode::Io,
            Error::Store(_) => ErrorCode::Store,
            Error::NoModel => ErrorCode::NoModel,
            Error::Busy(_) => ErrorCode::Busy,
            Error::Stopped => ErrorCode::Stopped,
            Error::Device { .. } => ErrorCode::Device,
            Error::Server { .. } => ErrorCode::Server,
            Error::HubUnreachable { .. } => ErrorCode::HubUnreachable,
            Error::HubNotFound { .. } => ErrorCode::HubNotFound,
            Error::WrongChecksum { .. } => ErrorCode::WrongChecksum,
            Error::CatalogueMismatch { .. } => ErrorCode::CatalogueMismatch,
            Error::DownloadUnreadable { .. } => ErrorCode::DownloadUnreadable,
            Error::DiskFull { .. } => ErrorCode::DiskFull,
            Error::DownloadElsewhere { .. } => ErrorCode::DownloadElsewhere,
            Error::UpdateUnreachable(_) => ErrorCode::UpdateUnreachable,
            Error::UpdateRejected { .. } => ErrorCode::UpdateRejected,
            Error::UpdateNotInstalled { .. } => ErrorCode::UpdateNotInstalled,
            Error::Compute(_) | Error::Internal(_) => ErrorCode::Internal,
        }
    }

    /// Returns the values that the window inserts into its translated message, by name. Numbers are plain
    /// decimals and sizes are bytes. `detail` holds a cause that exists only in English, and `reason` the name of a
    /// [`Refusal`]. The names for each code and reason match `ui/src/lib/strings/keys.ts`.
    pub fn params(&self) -> BTreeMap<String, String> {
        let path = |path: &Path| path.display().to_string();
        let named: Vec<(&str, String)> = match self {
            Error::Refused(refusal) => refusal.params(),
            Error::InvalidRequest(detail)
            | Error::VocabularyMismatch(detail)
            | Error::OutOfMemory(detail)
            | Error::Store(detail)
            | Error::UpdateUnreachable(detail)
            | Error::Internal(detail) => vec![("detail", detail.clone())],
            Error::Compute(source) => vec![("detail", source.to_string())],
            Error::ModelNotFound { name, .. } => vec![("name", name.clone())],
            Error::InvalidModelFile { path: file, reason }
            | Error::UnsupportedModel { path: file, reason } => {
                vec![("path", path(file)), ("detail", reason.clone())]
            }
            Error::ContextOverflow { prompt, context } => {
                vec![("prompt", prompt.to_string()), ("context", context.to_string())]
            }
            Error::Io { action, path: file, source } => {
                vec![("path", path(file)), ("detail", format!("{action}: {source}"))]
            }
            Error::Busy(work) => vec![("work", work.code().to_owned())],
            Error::NoModel | Error::Stopped => Vec::new(),
            Error::Device { device, reason } => {
                vec![("device", (*device).into()), ("detail", reason.clone())]
            }
            Error::Server { address, reason, remedy } => vec![
                ("address", address.clone()),
                ("detail", reason.clone()),
                ("remedy", remedy.code().to_owned()),
            ],
            Error::HubUnreachable { endpoint, reason } => {
                vec![("endpoint", endpoint.clone()), ("detail", reason.clone())]
            }
            Error::HubNotFound { what, remedy } => vec![("what", what.clone()), ("detail", remedy.clone())],
            Error::WrongChecksum { file, expected, found, path: quarantined } => vec![
                ("file", file.clone()),
                ("expected", expected.clone()),
                ("found", found.clone()),
                ("path", path(quarantined)),
            ],
            Error::CatalogueMismatch { file, expected, found } => {
                vec![("file", file.clone()), ("expected", expected.clone()), ("found", found.clone())]
            }
            Error::DiskFull { folder, missing, reserved } => vec![
                ("folder", path(folder)),
                ("missing", missing.to_string()),
                ("reserved", reserved.to_string()),
            ],
            Error::DownloadUnreadable { folder, bytes } => {
                vec![("folder", path(folder)), ("bytes", bytes.to_string())]
            }
            Error::UpdateRejected { version, reason } | Error::UpdateNotInstalled { version, reason } => {
                vec![("version", version.clone()), ("detail", reason.clone())]
            }
            Error::NotText { name } | Error::DownloadElsewhere { name } => vec![("name", name.clone())],
            Error::FileTooLarge { name, bytes, most } => {
                vec![("name", name.clone()), ("bytes", bytes.to_string()), ("most", most.to_string())]
            }
            Error::FileOverContext { name, tokens, context } => {
                vec![("name", name.clone()), ("tokens", tokens.to_string()), ("context", context.to_string())]
            }
        };
        named.into_iter().map(|(name, value)| (name.into(), value)).collect()
    }

    /// Creates an [`Error::InvalidRequest`] with this message.
    pub fn invalid(message: impl Into<String>) -> Self {
        Error::InvalidRequest(message.into())
    }
}

/// Returns the clause about space reserved by other downloads, empty if there is none.
fn reserved_clause(bytes: u64) -> String {
    match bytes {
        0 => String::new(),
        bytes => format!(", in addition to the {} that other downloads still need", megabytes(bytes)),
    }
}

/// Returns an amount of memory or disk space that is needed, as in "12 MB". Rounded up: freeing it must be enough.
pub fn megabytes(bytes: u64) -> String {
    format!("{} MB", bytes.div_ceil(1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one error of every kind.
    fn every_error() -> Vec<Error> {
        let text = || String::from("text");
        let path = || PathBuf::from("/models/a.gguf");
        vec![
            Error::invalid("text"),
            Error::ModelNotFound { name: text(), remedy: text() },
            Error::InvalidModelFile { path: path(), reason: text() },
            Error::UnsupportedModel { path: path(), reason: text() },
            Error::VocabularyMismatch(text()),
            Error::ContextOverflow { prompt: 5000, context: 4096 },
            Error::NotText { name: text() },
            Error::FileTooLarge { name: text(), bytes: 7, most: 5 },
            Error::FileOverContext { name: text(), tokens: 5000, context: 4096 },
            Error::OutOfMemory(text()),
            Error::Io { action: "read", path: path(), source: std::io::Error::other("gone") },
            Error::Store(text()),
            Error::NoModel,
            Error::Busy(RunningWork::Answer),
            Error::Stopped,
            Error::Device { device: "metal", reason: text() },
            Error::Server { address: text(), reason: text(), remedy: ServerRemedy::Retry },
            Error::HubUnreachable { endpoint: text(), reason: text() },
            Error::HubNotFound { what: text(), remedy: text() },
            Error::WrongChecksum { file: text(), expected: text(), found: text(), path: path() },
            Error::CatalogueMismatch { file: text(), expected: text(), found: text() },
            Error::DiskFull { folder: path(), missing: 12_000_001, reserved: 0 },
            Error::DownloadUnreadable { folder: path(), bytes: 7 },
            Error::DownloadElsewhere { name: text() },
            Error::UpdateUnreachable(text()),
            Error::UpdateRejected { version: text(), reason: text() },
            Error::UpdateNotInstalled { version: text(), reason: text() },
            Error::Compute(candle_core::Error::Msg(text())),
            Error::Internal(text()),
        ]
    }

    #[test]
    fn messages_contain_their_causes() {
        for error in every_error() {
            assert!(std::error::Error::source(&error).is_none(), "{error}");
        }
        let io = Error::Io { action: "read", path: "/a".into(), source: std::io::Error::other("gone") };
        assert!(io.to_string().starts_with("Could not read /a: gone. Check "), "{io}");
    }

    /// Verbs that begin a remedy.
    const REMEDIES: [&str; 44] = [
        "Accept", "Add", "Answer", "Ask", "Attach", "Check", "Choose", "Close", "Compare", "Copy", "Create",
        "Delete", "Discard", "Download", "Enter", "Export", "Fill", "Free", "Give", "Import", "Load",
        "Measure", "Move", "Name", "Open", "Pause", "Put", "Raise", "Remove", "Rename", "Save", "Set",
        "Shorten", "Split", "Start", "Stop", "Swap", "Train", "Try", "Unload", "Unlock", "Use", "Wait",
        "Write",
    ];

    /// Returns whether a sentence or clause of the message says what to do.
    fn has_remedy(message: &str) -> bool {
        let begins = |part: &str| {
            REMEDIES.iter().any(|verb| part.strip_prefix(verb).is_some_and(|r| r.starts_with(' ')))
        };
        message.split(". ").any(|sentence| begins(sentence.trim_start()))
    }

    #[test]
    fn messages_say_what_to_do() {
        // Their remedy is a value, or they are the reader's own wish.
        let from_values = |error: &Error| {
            matches!(
                error,
                Error::InvalidRequest(_)
                    | Error::ModelNotFound { .. }
                    | Error::HubNotFound { .. }
                    | Error::Stopped
                    | Error::Compute(_)
                    | Error::Internal(_)
                    | Error::Refused(Refusal::NotOwnModel { .. } | Refusal::NoSuchServerModel { .. })
            )
        };
        let refusals = Refusal::every().into_iter().map(Error::from);
        let errors = every_error().into_iter().chain(refusals).filter(|error| !from_values(error));
        let without: Vec<String> =
            errors.map(|error| error.to_string()).filter(|message| !has_remedy(message)).collect();
        assert!(without.is_empty(), "{without:#?}");
        assert!(!has_remedy("This model has a single layer. A head reads at least two."));
    }

    #[test]
    fn params_match_the_names_in_the_window_strings() {
        let window = include_str!("../../../ui/src/lib/strings/keys.ts");
        for error in every_error() {
            let code = serde_json::to_value(error.code()).unwrap();
            let code = code.as_str().unwrap();
            let (_, row) = window.split_once(&format!("\n  {code}: [")).expect(code);
            let (row, _) = row.split_once(']').expect(code);
            let mut named: Vec<&str> = row
                .split(',')
                .map(|name| name.trim().trim_matches('\''))
                .filter(|name| !name.is_empty())
                .collect();
            named.sort_unstable();
            let params = error.params();
            assert!(params.values().all(|value| !value.is_empty()), "{code}");
            assert_eq!(params.keys().map(String::as_str).collect::<Vec<_>>(), named, "{code}");
        }
    }

    #[test]
    fn disk_full_message_mentions_other_downloads_only_if_they_reserve_space() {
        let full = |reserved| Error::DiskFull { folder: "/d".into(), missing: 1, reserved };
        let param = |reserved| full(reserved).params()["reserved"].clone();
        assert_eq!((param(0), param(3_000_000)), ("0".into(), "3000000".into()));
        let (alone, shared) = (full(0).to_string(), full(3_000_000).to_string());
        assert!(!alone.contains("other downloads"), "{alone}");
        assert!(
            shared.contains("1 MB more are needed, in addition to the 3 MB that other downloads still need"),
            "{shared}"
        );
    }

    #[test]
    fn reads_earlier_name_of_catalogue_mismatch() {
        let read = |name: &str| serde_json::from_str::<ErrorCode>(name).ok();
        assert_eq!(read("\"not_of_catalogue\""), Some(ErrorCode::CatalogueMismatch));
        assert_eq!(read("\"catalogue_mismatch\""), Some(ErrorCode::CatalogueMismatch));
    }

    #[test]
    fn params_are_plain_decimals() {
        let param = |error: Error, name: &str| error.params().get(name).cloned();
        assert_eq!(
            param(Error::ContextOverflow { prompt: 5000, context: 4096 }, "prompt").as_deref(),
            Some("5000")
        );
        let full = Error::DiskFull { folder: "/d".into(), missing: 12_000_001, reserved: 0 };
        assert_eq!(param(full, "missing").as_deref(), Some("12000001"));
    }
}
