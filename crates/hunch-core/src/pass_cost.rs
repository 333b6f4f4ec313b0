//! Wire types of the measured pass cost: milliseconds of a model's passes by number of rows.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

/// Cost of passes with one number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct CostPoint {
    /// Number of rows M.
    pub rows: u32,
    /// t(M) in milliseconds, the median over rounds.
    pub ms: f64,
    /// t(M) / t(1), the median of the ratios within each round.
    pub relative: f64,
}

/// Pass cost of one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct ModelCosts {
    /// Name of the model.
    pub name: String,
    /// Cost by number of rows.
    pub points: Vec<CostPoint>,
    /// Weights that one pass reads, in bytes.
    #[ts(type = "number")]
    pub weight_bytes: u64,
    /// Lower bound of a pass in milliseconds: the time to read the weights at full memory bandwidth.
    pub floor_ms: f64,
}

/// Pass cost measured on this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct CostCurve {
    /// Time of the measurement, in milliseconds since 1970.
    #[ts(type = "number")]
    pub measured_ms: i64,
    /// Device: "cpu" or "metal".
    pub device: String,
    /// Number of CPU threads.
    pub threads: u32,
    /// Peak memory bandwidth measured, in 10^9 bytes per second.
    pub memory_gb_s: f64,
    /// Cost of the target.
    pub target: ModelCosts,
    /// Cost of the draft model, if one was loaded.
    pub draft: Option<ModelCosts>,
}
