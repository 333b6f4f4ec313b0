//! Progress of loading, and changes of the library.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::downloads::Download;

/// Progress of loading.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LoadProgress {
    /// Short name of the model being read.
    pub name: String,
    /// Set while the low-bit copy of this model is written. Otherwise weights are loaded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[ts(as = "Option<bool>", optional)]
    pub writes_copy: bool,
    /// Bytes of weights done so far.
    #[ts(type = "number")]
    pub done_bytes: u64,
    /// Bytes of all weights.
    #[ts(type = "number")]
    pub total_bytes: u64,
}

/// A change of the library. Each event carries the full new state of its subject, so a lost one does no
/// harm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LibraryEvent {
    /// Models were added or removed. Request the library again.
    Changed,
    /// A download changed.
    Download {
        /// Its current state.
        download: Box<Download>,
    },
    /// A download was removed.
    DownloadGone {
        /// Its id.
        id: String,
    },
    /// Models are being loaded.
    Loading {
        /// Current progress.
        progress: LoadProgress,
    },
    /// The models were unloaded, by the user or after the idle time.
    Unloaded,
    /// The store is damaged, or another file is in use. Request the app's state again.
    StoreProblem,
    /// The self-test of the GPU's kernels ended. Request the app's state again.
    GpuTested,
}
