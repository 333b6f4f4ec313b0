//! Times of single passes of a model on one device, for `hunch doctor`.

use std::path::Path;

use serde::Serialize;

use crate::bench::model_bench::{ModelPass, time_pass};
use hunch_core::model::LanguageModel;
use hunch_error::Result;
use hunch_model::decoder::Decoder;
use hunch_model::device::Compute;
use hunch_model::pass_timer::{PassTimer, TimingObserver};
use hunch_model::weights::WeightFile;

/// Rounds of passes whose median counts, after one that warms up.
const ROUNDS: usize = 5;
/// Longest context of the passes.
const CONTEXT: usize = 512;

/// Passes that were measured.
#[derive(Clone, Debug, Serialize)]
pub struct TimedPasses {
    /// Name of the model.
    pub model: String,
    /// Replaced kernels of the device, or the reason why candle runs the model there.
    pub note: Option<String>,
    /// Rows, and the median time of a pass in milliseconds.
    pub pass_ms: Vec<(usize, f64)>,
    /// Bytes of the weights in memory, as they were predicted before the model was loaded.
    pub weight_bytes: u64,
    /// Bytes that the model and these passes took of the device's memory. 0 on the CPU.
    pub device_bytes: u64,
}

impl TimedPasses {
    /// Loads a model onto a device and times passes of these numbers of rows. `weight_bytes` is the predicted size of
    /// its weights.
    ///
    /// # Errors
    /// If the model does not load or a pass fails.
    pub fn measure(path: &Path, compute: &Compute, rows: &[usize], weight_bytes: u64) -> Result<Self> {
        let before = compute.allocated_bytes();
        let mut model = Decoder::load_for(&WeightFile::open(path)?, compute, CONTEXT)?;
        let name = model.info().name.clone();
        let note = model.execution().note(&name);
        let mut timer = PassTimer::new(rows.to_vec());
        let mut time = |_, &rows: &usize| time_pass(&mut model, &ModelPass::of(rows)).map(Some);
        TimingObserver::none(|watch| timer.run(ROUNDS, &mut time, watch))?;
        let times = timer.since(0);
        let pass_ms = rows.iter().filter_map(|&rows| Some((rows, times.median(&rows)? * 1e3))).collect();
        let device_bytes = compute.allocated_bytes().saturating_sub(before);
        Ok(Self { model: name, note, pass_ms, weight_bytes, device_bytes })
    }
}
