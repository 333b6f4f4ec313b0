//! A method with its depth, as benchmarks and comparisons measure it.

use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use serde::{Deserialize, Serialize};
use ts_rs::TS;

/// A method that takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct MethodConfig {
    /// The method.
    pub method: Method,
    /// Most tokens drafted a round; plain drafts none whatever it says.
    pub max_draft: MaxDraft,
}

impl MethodConfig {
    /// `max_draft` as the report shows it: 0 for plain.
    pub(super) fn drafts(self) -> MaxDraft {
        if self.method == Method::Plain { MaxDraft::Fixed(0) } else { self.max_draft }
    }
}
