//! Files on the Hub, downloads and the token.

use hunch_error::ErrorInfo;
use serde::{Deserialize, Serialize};
use ts_rs::TS;

/// A model file in a Hub repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct HubFile {
    /// Path in the repository. For a split model, of its first part.
    pub path: String,
    /// Number of files.
    pub parts: u32,
    /// Size of all files, in bytes.
    #[ts(type = "number")]
    pub size_bytes: u64,
    /// SHA-256 of the file, if the Hub reports it. Absent for split models, whose parts have one each.
    pub sha256: Option<String>,
    /// Quantisation, such as "Q4_K_M". Empty if the name does not contain one.
    pub quantisation: String,
    /// Set for a folder whose names say that it is a head, which drafts for a model.
    #[serde(default)]
    pub is_head: bool,
}

/// The models of a Hub repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct HubRepository {
    /// Name, such as "Qwen/Qwen3-8B-GGUF".
    pub repository: String,
    /// Commit of this listing.
    pub revision: String,
    /// Set if its terms must be accepted on its page.
    pub gated: bool,
    /// Licence, if the Hub reports it.
    pub licence: Option<String>,
    /// GGUF models, smallest first. The repository itself, if it is the folder of a model or a head.
    pub files: Vec<HubFile>,
}

/// A file to download.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct DownloadRequest {
    /// Name of the repository, such as "Qwen/Qwen3-8B-GGUF". Empty if the download's state file is
    /// unreadable.
    pub repository: String,
    /// Path of the file in the repository. For a split model, of its first part.
    pub file: String,
    /// Required SHA-256, for a catalogue model. If the Hub's file differs, nothing is downloaded. Absent:
    /// any file is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub expected_sha256: Option<String>,
}

/// Phase of a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum DownloadPhase {
    /// Waiting for another download to finish.
    Waiting,
    /// Receiving bytes.
    Running,
    /// The connection was lost and will be retried.
    Retrying,
    /// Verifying the checksum.
    Checking,
    /// Paused by the user. Can be resumed.
    Paused,
    /// Ended with an error. Can be resumed.
    Failed,
    /// The model is in the library.
    Done,
}

/// A download.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct Download {
    /// Its id, stable across restarts.
    pub id: String,
    /// The requested file.
    pub request: DownloadRequest,
    /// Short name of the resulting model.
    pub name: String,
    /// Current phase.
    pub phase: DownloadPhase,
    /// Bytes received so far.
    #[ts(type = "number")]
    pub done_bytes: u64,
    /// Size of all files in bytes, once the Hub has reported it.
    #[ts(type = "number | null")]
    pub total_bytes: Option<u64>,
    /// Current speed, absent while nothing arrives.
    pub bytes_per_second: Option<f64>,
    /// Time left at that speed.
    pub seconds_left: Option<f64>,
    /// The error being retried, or the one that ended the download.
    pub error: Option<ErrorInfo>,
    /// Path of the model, once done.
    pub path: Option<String>,
    /// Architecture of a head, once done, such as "EAGLE-3". A head drafts for a model, and is no model itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub head: Option<String>,
}

/// Source of the Hub token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum HubTokenSource {
    /// There is no token.
    Absent,
    /// `HF_TOKEN`.
    Environment,
    /// The system's keychain.
    Keychain,
    /// The token file of Hugging Face's tools.
    File,
}

/// Reason for not using a configured token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum HubTokenProblem {
    /// `HF_TOKEN` is not a well-formed token.
    Environment,
    /// The keychain could not be read.
    Keychain {
        /// The system's reason.
        reason: String,
    },
    /// `HF_ENDPOINT` is unencrypted, so the token could be read in transit.
    Unencrypted,
}

/// State of the Hub connection. The token itself never leaves the engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct HubState {
    /// Address of the Hub. `HF_ENDPOINT` changes it.
    pub endpoint: String,
    /// Source of the token.
    pub token: HubTokenSource,
    /// Set if this system has a keychain to store a token in.
    pub can_keep_token: bool,
    /// Reasons for not using configured tokens.
    pub problems: Vec<HubTokenProblem>,
}
