//! Wire types of training a head.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use crate::train::acceptance::Acceptance;
use crate::train::kind::HeadKind;
use crate::train::record::TrainRun;
use hunch_error::ErrorInfo;

/// A request to train a head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct TrainRequest {
    /// Path or name of the model to train for.
    pub target: String,
    /// Tokens to train on.
    pub tokens: u32,
    /// Architecture of the head.
    pub kind: HeadKind,
}

/// Prediction for a training run, and the state of an earlier one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct TrainOutlook {
    /// Disk that the data take in addition to those that are collected, in bytes.
    #[ts(type = "number")]
    pub disk_bytes: u64,
    /// Free bytes of that disk, if known.
    #[ts(type = "number | null")]
    pub disk_free: Option<u64>,
    /// Seconds of collecting that are left.
    pub collect_seconds: f64,
    /// Seconds of training.
    pub fit_seconds: f64,
    /// True if both times follow from measurements on this machine, false if they are estimated.
    pub measured: bool,
    /// Tokens that were collected before.
    #[ts(type = "number")]
    pub collected: u64,
    /// The last run of this architecture, if there was one.
    pub run: Option<TrainRun>,
    /// An architecture whose run can be continued, if there is one.
    pub unfinished: Option<HeadKind>,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct TrainOutcome {
    /// Acceptance before the first gradient step.
    pub start: Acceptance,
    /// Acceptance of the head.
    pub trained: Acceptance,
    /// Acceptance of the head that was in use before, if there was one.
    pub in_use: Option<Acceptance>,
    /// True if the head is used from the next load on, false if the one in use accepts as much.
    pub installed: bool,
}

/// Events of a training run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TrainEvent {
    /// Progress, about twice a second.
    Progress {
        /// State of the run.
        run: TrainRun,
        /// Predicted seconds to the end, if known.
        seconds_left: Option<f64>,
    },
    /// The run ended.
    Finished {
        /// State of the run.
        run: TrainRun,
        /// The result. `None` if the run was paused.
        outcome: Option<TrainOutcome>,
    },
    /// The run failed. Collected text and earlier steps are kept.
    Failed {
        /// The reason.
        error: ErrorInfo,
    },
}
