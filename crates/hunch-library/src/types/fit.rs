//! Predicted memory of models, and smaller choices.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

/// The memory of this machine, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct MachineMemory {
    /// Total memory.
    #[ts(type = "number")]
    pub total: u64,
    /// Memory available to models: on a Mac, the working set that Metal recommends. Elsewhere, the memory
    /// available now plus what loaded models hold.
    #[ts(type = "number")]
    pub usable: u64,
}

/// Predicted memory of one model, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct PredictedMemory {
    /// Weights.
    #[ts(type = "number")]
    pub weights: u64,
    /// The full KV cache.
    #[ts(type = "number")]
    pub cache: u64,
}

/// Degree to which something fits in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum FitVerdict {
    /// At least 10% of usable memory remains free.
    Fits,
    /// Less than 10% remains free. Other programs may slow down.
    Tight,
    /// It does not fit, and loading is refused.
    TooLarge,
}

/// Predicted memory of a target and its draft.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct Fit {
    /// Tokens that both caches hold.
    pub context: u32,
    /// The target.
    pub target: PredictedMemory,
    /// The draft model.
    pub draft: Option<PredictedMemory>,
    /// The head that drafts for the target.
    pub head: Option<PredictedMemory>,
    /// Scratch space, tokeniser and program, in bytes.
    #[ts(type = "number")]
    pub other: u64,
    /// Sum of all parts, in bytes.
    #[ts(type = "number")]
    pub total: u64,
    /// Memory of the machine.
    pub machine: MachineMemory,
    /// The verdict.
    pub verdict: FitVerdict,
    /// Alternatives that fit, closest first, if this does not.
    pub smaller: Vec<SmallerChoice>,
}

/// An alternative that fits in memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SmallerChoice {
    /// The same models with a smaller context.
    Context {
        /// Tokens.
        context: u32,
    },
    /// The target without a draft.
    WithoutDraft,
    /// Another installed model.
    Model {
        /// Its short name.
        name: String,
        /// Path of its file.
        path: String,
    },
    /// A catalogue model.
    Catalogue {
        /// Its id in the catalogue.
        id: String,
        /// Its name.
        name: String,
    },
}
