//! The measured cost of a model's passes by their number of rows.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

/// What a pass costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct CostPoint {
    /// Its rows M.
    pub rows: u32,
    /// t(M), in milliseconds: the median.
    pub ms: f64,
    /// t(M) / t(1): the median of the ratios within a round.
    pub relative: f64,
}

/// A model's costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct ModelCosts {
    /// Its name.
    pub name: String,
    /// By rows.
    pub points: Vec<CostPoint>,
    /// Bytes of weights that a pass reads.
    #[ts(type = "number")]
    pub weight_bytes: u64,
    /// What reading these takes at the memory's speed, in milliseconds: no pass is faster.
    pub floor_ms: f64,
}

/// The cost curve of this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct CostCurve {
    /// When it was measured, in milliseconds since 1970.
    #[ts(type = "number")]
    pub measured_ms: i64,
    /// "cpu" or "metal".
    pub device: String,
    /// CPU threads.
    pub threads: u32,
    /// The most that the memory gave in a second, in 10^9 bytes.
    pub memory_gb_s: f64,
    /// The target's.
    pub target: ModelCosts,
    /// The draft model's, if one was loaded.
    pub draft: Option<ModelCosts>,
}
