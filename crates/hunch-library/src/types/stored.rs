//! Data that Hunch made for models.

use serde::Serialize;
use ts_rs::TS;

/// Kind of stored data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum StoredKind {
    /// Copy of a model with fewer bits per weight, to draft with.
    LowBitCopy,
    /// Collected text and states, and checkpoints of a training.
    TrainingData,
    /// Trained drafter.
    Drafter,
    /// Conversations before a repair.
    SetAside,
    /// File whose writing was cut off.
    Unfinished,
}

/// Data that Hunch made.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct StoredData {
    /// Path in the data folder, such as `low-bit/name.gguf`.
    pub id: String,
    /// Kind.
    pub kind: StoredKind,
    /// Name of the model that it belongs to. `None` if no model here is known to.
    pub model: Option<String>,
    /// Bytes on disk.
    #[ts(type = "number")]
    pub bytes: u64,
}
