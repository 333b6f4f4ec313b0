//! Comparisons with the facts of this machine, and the log of measured speeds. Timing and comparing belongs to
//! [`crate::bench`].

use hunch_core::method::Method;
use hunch_core::rule::AcceptanceRule;
use hunch_core::stats::GenerationStats;
use hunch_error::Result;
use hunch_library::speed_log::{ModelId, Rates, SpeedLog};
use hunch_library::types::{MeasuredSpeedup, ModelEntry};
use hunch_model::device::peak_memory_bytes;

use crate::bench::compare::report::{CompareRequest, ComparisonReport};
use crate::bench::compare::{self, CompareOn, ComparisonResult, Listener};

/// Runs a comparison on this machine. The report includes the peak memory of this process.
///
/// # Errors
/// As [`compare::run`].
pub fn compare(
    on: CompareOn<'_>,
    request: &CompareRequest,
    listener: &mut Listener<'_>,
) -> Result<ComparisonResult> {
    let mut outcome = compare::run(on, request, listener)?;
    if let Some(report) = &mut outcome.report {
        report.memory.peak = peak_memory_bytes();
    }
    Ok(outcome)
}

/// Returns the speedup of a pair from a complete comparison, stored under the id `comparison`. A comparison with a
/// lossy rule or options of methods, or without a method that can use the draft, has none.
pub fn pair_speedup(report: &ComparisonReport, comparison: i64) -> Option<MeasuredSpeedup> {
    let with_draft =
        report.lanes.iter().filter(|lane| lane.config.is_usual() && lane.config.method.uses_draft());
    let best = with_draft.max_by(|a, b| a.speedup.total_cmp(&b.speedup))?;
    let is_usual = report.setting.rule.is_lossless() && report.setting.options.is_default();
    is_usual.then_some(MeasuredSpeedup {
        speedup: best.speedup,
        method: best.config.method,
        ended_ms: report.ended_ms,
        comparison,
    })
}

/// Writes the speeds of a target and its draft to the log. Failures are ignored: a speed that cannot be saved does
/// no harm.
pub struct SpeedRecorder {
    /// Log of the device that the models run on.
    pub log: SpeedLog,
    /// Entry of the target.
    pub target: ModelEntry,
    /// Entry of the draft.
    pub draft: Option<ModelEntry>,
}

impl SpeedRecorder {
    /// Records the speed of an answer, if it was long enough.
    pub fn record_answer(&self, method: Method, rule: AcceptanceRule, stats: &GenerationStats) {
        self.record(Rates::of_answer(method, rule, stats));
    }

    /// Records rates. Rates that were not measured keep their last value.
    pub fn record(&self, rates: Rates) {
        let draft = self.draft.as_ref().map(ModelId::of);
        warn_unless_saved(self.log.remember(&ModelId::of(&self.target), draft.as_ref(), rates));
    }

    /// Records the speedup of the pair. Without a draft, nothing is recorded.
    pub fn record_pair(&self, speedup: MeasuredSpeedup) {
        if let Some(draft) = &self.draft {
            let (target, draft) = (ModelId::of(&self.target), ModelId::of(draft));
            warn_unless_saved(self.log.remember_pair(&target, &draft, speedup));
        }
    }
}

/// Logs that a speed was not saved. The measurement itself has succeeded.
fn warn_unless_saved(saved: Result<()>) {
    if let Err(error) = saved {
        tracing::warn!("A measured speed was not saved. {error}");
    }
}
