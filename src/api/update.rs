//! Wire types of updates of the app.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

/// State of updating the app.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum UpdateState {
    /// This copy looks for no updates: it was built without an update key, or not installed from a bundle.
    Off,
    /// No newer version is known.
    None,
    /// A newer version can be downloaded.
    Found {
        /// The new version.
        version: String,
    },
    /// A newer version was downloaded, and its signature is valid.
    Ready {
        /// The new version.
        version: String,
    },
}

/// Progress of downloading an update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct UpdateProgress {
    /// Bytes received.
    pub received: u64,
    /// Size in bytes, if the server reports it.
    pub total: Option<u64>,
}
