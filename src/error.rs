//! What can go wrong, in words a person can act on. Every message says what happened and what to
//! do; [`ErrorCode`] is the closed list the window and the command line branch on.

use std::path::PathBuf;

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
    /// The disk has no room.
    DiskFull,
    /// Another Hunch that runs is downloading that.
    DownloadElsewhere,
    /// A defect in Hunch.
    Internal,
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
    /// The disk has no room.
    #[error(
        "The disk of {} has too little room: {} more are needed. What is here already is kept. Make room, then go on.",
        folder.display(), megabytes(*missing)
    )]
    DiskFull {
        /// Where it was to go.
        folder: PathBuf,
        /// Bytes that are missing.
        missing: u64,
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
            Error::DiskFull { .. } => ErrorCode::DiskFull,
            Error::DownloadElsewhere { .. } => ErrorCode::DownloadElsewhere,
            Error::Compute(_) | Error::Internal(_) => ErrorCode::Internal,
        }
    }

    /// An [`Error::InvalidRequest`] with this text.
    pub fn invalid(message: impl Into<String>) -> Self {
        Error::InvalidRequest(message.into())
    }
}

/// Rounded up, so that making room for what is said is enough.
fn megabytes(bytes: u64) -> String {
    format!("{} MB", bytes.div_ceil(1_000_000))
}
