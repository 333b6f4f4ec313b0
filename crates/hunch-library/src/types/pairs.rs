//! Verdicts on pairs of models, and offers of drafts.

use hunch_core::method::Method;
use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::catalogue::CatalogueHead;
use super::fit::FitVerdict;
use super::models::ModelEntry;

/// Verdict on a model as a draft for a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PairVerdict {
    /// Both vocabularies are equal, token by token.
    Suits {
        /// Entries at the end that only one of the two has: padding or added tokens.
        padding: u32,
    },
    /// A catalogue model that is expected to share the vocabulary. Installed models are compared token by
    /// token.
    Expected {
        /// Set if this exact file was compared token by token for the catalogue. Otherwise the target has
        /// the known tokens of the model's family.
        compared: bool,
    },
    /// The vocabularies differ. The draft's tokens are translated, and only shared ones are drafted.
    Translated {
        /// Tokens of the draft that the target has too.
        shared: u32,
        /// All tokens of the draft, without control tokens and padding.
        of: u32,
    },
    /// The vocabularies differ. They share too little, or the model is not installed.
    OtherVocabulary {
        /// First differing token. For a model that is not installed, the first known one.
        first: u32,
        /// The target's text for it, empty if it has no such token.
        of_target: String,
        /// The draft's text for it.
        of_draft: String,
    },
    /// The model is not smaller than the target.
    NotSmaller,
    /// The model cannot be used at all.
    Unusable {
        /// The reason.
        reason: String,
    },
}

/// A possible draft for a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct DraftOffer {
    /// Its name.
    pub name: String,
    /// Path of its file, if it is installed.
    pub path: Option<String>,
    /// Its id in the catalogue, if it is listed there.
    pub catalogue: Option<String>,
    /// Size of its file, in bytes.
    #[ts(type = "number")]
    pub size_bytes: u64,
    /// The verdict.
    pub verdict: PairVerdict,
    /// Set if the catalogue recommends it for this target.
    pub recommended: bool,
    /// Bytes of weights read per pass, relative to the target's.
    pub size_ratio: f64,
    /// Predicted memory of both at the requested context, in bytes.
    #[ts(type = "number")]
    pub memory: u64,
    /// Verdict on the memory of both.
    pub fit: FitVerdict,
    /// Predicted speedup at a typical acceptance rate, or `None` if it cannot draft.
    pub predicted: Option<PredictedSpeedup>,
    /// Measured speedup of the pair's last comparison.
    pub measured: Option<MeasuredSpeedup>,
}

/// A head on this machine as a drafter for a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct HeadOffer {
    /// Name of its folder or file.
    pub name: String,
    /// Path of its folder or file.
    pub path: String,
    /// Its architecture, such as "EAGLE-3".
    pub kind: String,
    /// Name of the model that it was trained for, if its files state it.
    pub trained_for: Option<String>,
    /// Reason why it cannot draft for the target, or `None` if its sizes match.
    pub problem: Option<String>,
    /// Bytes of all weights in its files.
    #[ts(type = "number")]
    pub size_bytes: u64,
    /// Predicted memory of target and head at the requested context, in bytes.
    #[ts(type = "number")]
    pub memory: u64,
    /// Verdict on the memory of both.
    pub fit: FitVerdict,
    /// Predicted speedup, if there are figures to predict it from.
    pub predicted: Option<PredictedSpeedup>,
}

/// A copy of the target with fewer bits per weight, as its draft.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LowBitOffer {
    /// Path of the copy. Loading it as the draft writes it first if it is missing.
    pub path: String,
    /// Set if the copy exists.
    pub written: bool,
    /// Size of the copy in bytes, predicted until it is written.
    #[ts(type = "number")]
    pub size_bytes: u64,
    /// Predicted memory of both at the requested context, in bytes.
    #[ts(type = "number")]
    pub memory: u64,
    /// Verdict on the memory of both.
    pub fit: FitVerdict,
    /// Predicted speedup at a typical acceptance rate.
    pub predicted: PredictedSpeedup,
    /// Measured speedup of the pair's last comparison.
    pub measured: Option<MeasuredSpeedup>,
}

/// A predicted speedup.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct PredictedSpeedup {
    /// Speedup over plain decoding.
    pub speedup: f64,
    /// Assumed acceptance rate.
    pub acceptance: f64,
    /// Best draft length in tokens, or 0 if plain decoding is fastest.
    pub depth: u32,
    /// Source of the pass costs.
    pub costs: CostSource,
}

/// Source of the pass costs behind a predicted speedup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum CostSource {
    /// Passes that were measured on this machine.
    Measured,
    /// Figures of the GPU: its products, timed by the self-test, or those of its chip.
    Gpu,
    /// Sizes of the files.
    Sizes,
}

/// A speedup measured on this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct MeasuredSpeedup {
    /// Speedup over plain decoding.
    pub speedup: f64,
    /// The method that reached it.
    pub method: Method,
    /// End of the comparison, in milliseconds since 1970.
    #[ts(type = "number")]
    pub ended_ms: i64,
    /// Id of the comparison.
    #[ts(type = "number")]
    pub comparison: i64,
}

/// Possible drafts for a target. Methods without a draft model are always available.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct DraftOffers {
    /// The target.
    pub target: ModelEntry,
    /// Context for the memory prediction, in tokens.
    pub context: u32,
    /// Usable drafts first, by measured and then predicted speedup. Unusable ones follow, each with a
    /// reason.
    pub offers: Vec<DraftOffer>,
    /// Heads on this machine: those whose sizes match first, by predicted speedup.
    pub heads: Vec<HeadOffer>,
    /// Heads of the catalogue for the target that are not on this machine.
    #[serde(default)]
    pub heads_to_fetch: Vec<CatalogueHead>,
    /// The layer in the target's own file that drafts, if it can. Its path is that of the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub own_head: Option<HeadOffer>,
    /// The target's low-bit copy, unless the target has as few bits itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub low_bit: Option<LowBitOffer>,
    /// Methods without a draft model.
    pub without_draft: Vec<Method>,
}
