//! The errors that a person can see. Every message says what happened and what to do; [`ErrorCode`] is the
//! closed list that the window and the command line branch on. Only errors live here: they are shared by every
//! crate above `hunch-core` and `hunch-kernels`, which have their own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use ts_rs::TS;

/// The result of every fallible operation of the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kinds of failure a caller may branch on. Closed: the window has a card for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// A parameter is out of its range or the request makes no sense.
    InvalidRequest,
    /// No file or model of that name.
    ModelNotFound,
    /// The file is not a GGUF, is truncated, or contradicts itself.
    InvalidModelFile,
    /// A sound file of a kind Hunch does not run.
    UnsupportedModel,
    /// Draft and target do not share a vocabulary.
    VocabularyMismatch,
    /// The prompt does not fit the context.
    ContextOverflow,
    /// Not enough memory.
    OutOfMemory,
    /// Reading or writing a file failed.
    Io,
    /// The file of conversations cannot be read or written.
    Store,
    /// No model is loaded.
    NoModel,
    /// A generation is already running.
    Busy,
    /// The person stopped it.
    Stopped,
    /// The compute device failed.
    Device,
    /// The hub cannot be reached or used.
    HubUnreachable,
    /// The hub has no such repository or file.
    HubNotFound,
    /// The repository's terms have to be agreed to.
    HubGated,
    /// The hub does not accept the token, or it cannot be kept.
    HubToken,
    /// What was fetched is not what the hub has.
    WrongChecksum,
    /// The hub has another file than the one the catalogue was checked against.
    #[serde(rename = "not_of_catalogue")]
    CatalogueMismatch,
    /// The disk has no room.
    DiskFull,
    /// Of an unfinished download nothing is known any more but its bytes.
    DownloadUnreadable,
    /// Another Hunch that runs is downloading that.
    DownloadElsewhere,
    /// A defect in Hunch.
    Internal,
}

/// An error as the outside sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ErrorInfo {
    /// The kind, for branching.
    pub code: ErrorCode,
    /// What happened, what is safe, what to do, in English.
    pub message: String,
    /// What a window tells it with in its own language; see [`Error::params`]. Absent in answers kept before it
    /// was told.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[ts(as = "Option<BTreeMap<String, String>>", optional)]
    pub params: BTreeMap<String, String>,
}

impl From<&Error> for ErrorInfo {
    fn from(error: &Error) -> Self {
        Self { code: error.code(), message: error.to_string(), params: error.params() }
    }
}

/// A failure of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter is out of its range, or the request makes no sense. The text names the range.
    #[error("{0}")]
    InvalidRequest(String),
    /// No model file at this path or under this name.
    #[error("No model called \"{name}\" was found. {remedy}")]
    ModelNotFound {
        /// What was asked for.
        name: String,
        /// What to do about it.
        remedy: String,
    },
    /// Not a GGUF, truncated, or self-contradictory.
    #[error("{} is not a usable GGUF model: {reason}. The file was left as it is; download it again or choose another one.", path.display())]
    InvalidModelFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Sound, but of a kind Hunch does not run.
    #[error("{} cannot be run: {reason}. Hunch runs GGUF models of the architectures llama, qwen2, qwen3 and smollm3.", path.display())]
    UnsupportedModel {
        /// The file.
        path: PathBuf,
        /// What is unsupported.
        reason: String,
    },
    /// Draft and target disagree about a token.
    #[error(
        "The draft cannot be used with this target: {0}. Choose a draft of the same model family, or a method that needs none (ngram)."
    )]
    VocabularyMismatch(String),
    /// The prompt does not fit.
    #[error(
        "The prompt has {prompt} tokens, and this model's context holds {context}. Shorten the prompt or the conversation."
    )]
    ContextOverflow {
        /// Tokens in the prompt.
        prompt: usize,
        /// Tokens the context holds.
        context: usize,
    },
    /// Not enough memory for what was asked.
    #[error("Not enough memory: {0}. Choose a smaller model, quantisation or context.")]
    OutOfMemory(String),
    /// Reading or writing a file failed.
    #[error("Could not {action} {}: {source}.", path.display())]
    Io {
        /// What was tried ("read", "write").
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file of conversations cannot be read or written.
    #[error("The conversations cannot be read or written: {0}. Nothing that was there has been changed.")]
    Store(String),
    /// No model is loaded.
    #[error("No model is loaded. Open a model first.")]
    NoModel,
    /// Another generation is running.
    #[error("The engine is busy with an answer or a measurement. Stop it or wait until it has finished.")]
    Busy,
    /// The person stopped it.
    #[error("Loading was stopped. What was in memory before is there.")]
    Stopped,
    /// The compute device failed.
    #[error("The {device} device failed: {reason}. Try again with --device cpu.")]
    Device {
        /// "cpu" or "metal".
        device: &'static str,
        /// The device's reason.
        reason: String,
    },
    /// The hub cannot be reached or used.
    #[error(
        "The hub {endpoint} cannot be used: {reason}. What is here already is kept. Check the connection (and \
         HF_ENDPOINT and HTTPS_PROXY, if they are set), then try again."
    )]
    HubUnreachable {
        /// Its address.
        endpoint: String,
        /// What happened.
        reason: String,
    },
    /// The hub has no such thing, or shows it to others only.
    #[error("The hub has not got {what}. {remedy}")]
    HubNotFound {
        /// What was asked for.
        what: String,
        /// What to do about it.
        remedy: String,
    },
    /// A repository whose terms have to be agreed to.
    #[error("The owners of {repository} give it only to those who agree to their terms. {remedy}")]
    HubGated {
        /// The repository.
        repository: String,
        /// What to do about it.
        remedy: String,
    },
    /// The hub does not accept the token, or it cannot be kept. The text never holds it.
    #[error("{0}")]
    HubToken(String),
    /// The bytes are not those that the hub has.
    #[error(
        "The checksum of {file} is not the one that the hub tells ({found} in place of {expected}). It is kept aside \
         as {} and not used as a model. Try again to fetch it anew; if that ends like this too, something on the \
         way changes it.",
        path.display()
    )]
    WrongChecksum {
        /// The file on the hub.
        file: String,
        /// The beginning of the hub's SHA-256.
        expected: String,
        /// The beginning of that of the bytes.
        found: String,
        /// Where they are.
        path: PathBuf,
    },
    /// The hub has another file by now than the one that was looked at for the catalogue.
    #[error(
        "{file} is no longer the file that the catalogue was checked against (its checksum begins \
         with {found} in place of {expected}). Nothing was fetched, and what is here stays. Its owners may have \
         published another one: to have that, look the repository up by its name and choose the file there."
    )]
    CatalogueMismatch {
        /// The file on the hub, with its repository.
        file: String,
        /// The beginning of the catalogue's SHA-256.
        expected: String,
        /// The beginning of the hub's.
        found: String,
    },
    /// The disk has no room.
    #[error(
        "The disk of {} has too little room: {} more are needed{}. What is here already is kept. Make room, then go on.",
        folder.display(), megabytes(*missing), promised_words(*promised)
    )]
    DiskFull {
        /// Where it was to go.
        folder: PathBuf,
        /// Bytes that are missing.
        missing: u64,
        /// Bytes of those that are free which other downloads that are under way still need; 0 where none does.
        promised: u64,
    },
    /// Bytes of a download of which is not known any more what they are.
    #[error(
        "What was written down of an unfinished download cannot be read, so it cannot go on. {} of it lie in {}; \
         they are no model yet, and nothing else is affected. Discard it to free the room, then fetch the model \
         again.",
        megabytes(*bytes), folder.display()
    )]
    DownloadUnreadable {
        /// Where they lie.
        folder: PathBuf,
        /// How many there are.
        bytes: u64,
    },
    /// Another program is at it.
    #[error(
        "{name} is being downloaded by another Hunch that is running. Wait for it, or pause it there and go on here."
    )]
    DownloadElsewhere {
        /// What is downloaded.
        name: String,
    },
    /// A numeric operation failed inside the engine.
    #[error(
        "The model could not be evaluated: {0}. This is a defect in Hunch; please report it with the model's name."
    )]
    Compute(#[from] candle_core::Error),
    /// Something that cannot happen happened.
    #[error("Internal error: {0}. This is a defect in Hunch; please report it.")]
    Internal(String),
}

impl From<hunch_kernels::Error> for Error {
    fn from(error: hunch_kernels::Error) -> Self {
        use hunch_kernels::Error as Kernels;
        match error {
            Kernels::OutOfMemory { .. } => Self::OutOfMemory(error.to_string()),
            // Readers of weights fail with an error of ours.
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
            // Our own models and proposers fail with an error of ours.
            Core::Model(source) => match source.downcast::<Self>() {
                Ok(ours) => *ours,
                Err(other) => Self::Internal(other.to_string()),
            },
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
    /// The kind of this failure.
    pub fn code(&self) -> ErrorCode {
        match self {
            Error::InvalidRequest(_) => ErrorCode::InvalidRequest,
            Error::ModelNotFound { .. } => ErrorCode::ModelNotFound,
            Error::InvalidModelFile { .. } => ErrorCode::InvalidModelFile,
            Error::UnsupportedModel { .. } => ErrorCode::UnsupportedModel,
            Error::VocabularyMismatch(_) => ErrorCode::VocabularyMismatch,
            Error::ContextOverflow { .. } => ErrorCode::ContextOverflow,
            Error::OutOfMemory(_) => ErrorCode::OutOfMemory,
            Error::Io { .. } => ErrorCode::Io,
            Error::Store(_) => ErrorCode::Store,
            Error::NoModel => ErrorCode::NoModel,
            Error::Busy => ErrorCode::Busy,
            Error::Stopped => ErrorCode::Stopped,
            Error::Device { .. } => ErrorCode::Device,
            Error::HubUnreachable { .. } => ErrorCode::HubUnreachable,
            Error::HubNotFound { .. } => ErrorCode::HubNotFound,
            Error::HubGated { .. } => ErrorCode::HubGated,
            Error::HubToken(_) => ErrorCode::HubToken,
            Error::WrongChecksum { .. } => ErrorCode::WrongChecksum,
            Error::CatalogueMismatch { .. } => ErrorCode::CatalogueMismatch,
            Error::DownloadUnreadable { .. } => ErrorCode::DownloadUnreadable,
            Error::DiskFull { .. } => ErrorCode::DiskFull,
            Error::DownloadElsewhere { .. } => ErrorCode::DownloadElsewhere,
            Error::Compute(_) | Error::Internal(_) => ErrorCode::Internal,
        }
    }

    /// What a window needs to tell this failure in its own language, by name. Numbers are plain decimals, sizes
    /// are in bytes, and `detail` holds what only the engine's own English says. The names that go with each
    /// code are those of `ui/src/lib/strings/keys.ts`.
    pub fn params(&self) -> BTreeMap<String, String> {
        let path = |path: &Path| path.display().to_string();
        let named: Vec<(&str, String)> = match self {
            Error::InvalidRequest(detail)
            | Error::VocabularyMismatch(detail)
            | Error::OutOfMemory(detail)
            | Error::Store(detail)
            | Error::HubToken(detail)
            | Error::Internal(detail) => vec![("detail", detail.clone())],
            Error::Compute(source) => vec![("detail", source.to_string())],
            Error::ModelNotFound { name, remedy } => vec![("name", name.clone()), ("detail", remedy.clone())],
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
            Error::NoModel | Error::Busy | Error::Stopped => Vec::new(),
            Error::Device { device, reason } => {
                vec![("device", (*device).into()), ("detail", reason.clone())]
            }
            Error::HubUnreachable { endpoint, reason } => {
                vec![("endpoint", endpoint.clone()), ("detail", reason.clone())]
            }
            Error::HubNotFound { what, remedy } => vec![("what", what.clone()), ("detail", remedy.clone())],
            Error::HubGated { repository, remedy } => {
                vec![("repository", repository.clone()), ("detail", remedy.clone())]
            }
            Error::WrongChecksum { file, expected, found, path: kept } => vec![
                ("file", file.clone()),
                ("expected", expected.clone()),
                ("found", found.clone()),
                ("path", path(kept)),
            ],
            Error::CatalogueMismatch { file, expected, found } => {
                vec![("file", file.clone()), ("expected", expected.clone()), ("found", found.clone())]
            }
            Error::DiskFull { folder, missing, promised } => vec![
                ("folder", path(folder)),
                ("missing", missing.to_string()),
                ("promised", promised.to_string()),
            ],
            Error::DownloadUnreadable { folder, bytes } => {
                vec![("folder", path(folder)), ("bytes", bytes.to_string())]
            }
            Error::DownloadElsewhere { name } => vec![("name", name.clone())],
        };
        named.into_iter().map(|(name, value)| (name.into(), value)).collect()
    }

    /// An [`Error::InvalidRequest`] with this text.
    pub fn invalid(message: impl Into<String>) -> Self {
        Error::InvalidRequest(message.into())
    }
}

/// Why more is needed than the download alone has.
fn promised_words(bytes: u64) -> String {
    match bytes {
        0 => String::new(),
        bytes => format!(", beside the {} that other downloads still need", megabytes(bytes)),
    }
}

/// Rounded up, so that making room for what is said is enough.
fn megabytes(bytes: u64) -> String {
    format!("{} MB", bytes.div_ceil(1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One error of every kind.
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
            Error::OutOfMemory(text()),
            Error::Io { action: "read", path: path(), source: std::io::Error::other("gone") },
            Error::Store(text()),
            Error::NoModel,
            Error::Busy,
            Error::Stopped,
            Error::Device { device: "metal", reason: text() },
            Error::HubUnreachable { endpoint: text(), reason: text() },
            Error::HubNotFound { what: text(), remedy: text() },
            Error::HubGated { repository: text(), remedy: text() },
            Error::HubToken(text()),
            Error::WrongChecksum { file: text(), expected: text(), found: text(), path: path() },
            Error::CatalogueMismatch { file: text(), expected: text(), found: text() },
            Error::DiskFull { folder: path(), missing: 12_000_001, promised: 0 },
            Error::DownloadUnreadable { folder: path(), bytes: 7 },
            Error::DownloadElsewhere { name: text() },
            Error::Compute(candle_core::Error::Msg(text())),
            Error::Internal(text()),
        ]
    }

    #[test]
    fn every_code_tells_the_window_what_its_words_stand_on() {
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
    fn a_full_disk_speaks_of_other_downloads_only_where_there_are_some() {
        let full = |promised| Error::DiskFull { folder: "/d".into(), missing: 1, promised };
        let told = |promised| full(promised).params()["promised"].clone();
        assert_eq!((told(0), told(3_000_000)), ("0".into(), "3000000".into()));
        let (alone, beside) = (full(0).to_string(), full(3_000_000).to_string());
        assert!(!alone.contains("other downloads"), "{alone}");
        assert!(
            beside.contains("1 MB more are needed, beside the 3 MB that other downloads still need"),
            "{beside}"
        );
    }

    #[test]
    fn numbers_are_told_as_the_window_reads_them() {
        let told = |error: Error, name: &str| error.params().get(name).cloned();
        assert_eq!(
            told(Error::ContextOverflow { prompt: 5000, context: 4096 }, "prompt").as_deref(),
            Some("5000")
        );
        let full = Error::DiskFull { folder: "/d".into(), missing: 12_000_001, promised: 0 };
        assert_eq!(told(full, "missing").as_deref(), Some("12000001"));
    }
}
