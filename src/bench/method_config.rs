//! A method with its draft length, as benchmarks and comparisons measure it.

use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use serde::{Deserialize, Serialize};
use ts_rs::TS;

/// A method with its draft length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct MethodConfig {
    /// The method.
    pub method: Method,
    /// Most tokens drafted per round. Ignored by plain.
    pub max_draft: MaxDraft,
}

impl MethodConfig {
    /// Returns `max_draft` for a report: 0 for plain.
    pub(super) fn drafts(self) -> MaxDraft {
        if self.method == Method::Plain { MaxDraft::Fixed(0) } else { self.max_draft }
    }
}
