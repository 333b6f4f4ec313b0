//! Side-by-side comparison of plain decoding and other methods on one prompt or a suite.
//!
//! Methods run in lanes that take turns, slice by slice, so that heat, clocks and other programs affect all of them
//! alike. Each lane is a fork of the loaded models, or of models of its own. It has shared weights, its own caches,
//! and a clock that is paused while others run. The speedup of a lane is over plain decoding of its own target at its
//! own temperature, which takes turns with it. Targets that do not fit into memory together run one after the other, in
//! batches. A batch that fails or is stopped leaves the results of earlier ones as they are.
//!
//! [`report`] has the wire types, `model_sets` assigns models to lanes, `batch` runs lanes, `summary` builds the
//! report, [`export`] writes it to files.

mod batch;
pub mod export;
mod model_sets;
pub mod report;
pub mod server;
mod summary;
mod turn;

use std::cell::OnceCell;
use std::time::Instant;

use crate::bench::lanes::SLICE;
use crate::bench::suite::{Suite, SuitePrompt};
use crate::clock;
use crate::generate::{LoadPlan, LoadWatch, Models, fresh_seed};
use batch::{BatchOutcome, ComparisonProgress, RunningBatch, plan};
use hunch_core::method::Method;
use hunch_core::propose::MethodOptions;
use hunch_core::sample::SamplingParams;
use hunch_error::{Error, Refusal, Result};
use hunch_model::device::Compute;
use model_sets::Lineup;
pub use model_sets::{LaneSet, TargetPlace};
use report::{
    CompareEvent, CompareRequest, ComparedPrompt, ComparedPrompts, ComparisonReport, ComparisonSetting,
    LaneConfig,
};
use summary::MeasuredBatches;

/// Most lanes in addition to plain.
const MAX_LANES: usize = 7;
/// Most runs.
const MAX_RUNS: u32 = 20;
/// Most answers of a comparison. Their tokens stay in memory until the next one.
const MAX_ANSWERS: usize = 4_000;

/// Observer of a comparison, which may stop it.
pub struct Listener<'a> {
    /// Called with each event except the last.
    pub on_event: &'a mut (dyn FnMut(CompareEvent) + Send),
    /// Returns whether to stop. Asked in every round.
    pub stopped: &'a dyn Fn() -> bool,
}

/// Result of a comparison.
#[derive(Debug)]
pub struct ComparisonResult {
    /// Report on the finished turns, `None` if there is none.
    pub report: Option<ComparisonReport>,
    /// True if it was stopped.
    pub stopped: bool,
    /// Error that ended the comparison after at least one turn.
    pub trouble: Option<Error>,
}

/// Models and device that a comparison runs on.
pub struct CompareOn<'a> {
    /// The loaded models. They may be unloaded meanwhile, and are loaded again at the end. `None` afterwards if that
    /// failed.
    pub models: &'a mut Option<Models>,
    /// Models of lanes that have their own.
    pub sets: &'a [LaneSet],
    /// Options of the methods on the loaded models: those of the request, and layers that were found to skip.
    pub options: &'a MethodOptions,
    /// Device that models are loaded on.
    pub compute: &'a Compute,
    /// Progress of loading the models again.
    pub restoring: Option<LoadWatch>,
}

/// Runs a comparison.
///
/// # Errors
/// [`Error::InvalidRequest`] for a request that cannot be run. Otherwise when a model fails, or cannot be loaded, before
/// the first turn of all lanes is finished.
pub fn run(
    on: CompareOn<'_>,
    request: &CompareRequest,
    listener: &mut Listener<'_>,
) -> Result<ComparisonResult> {
    let CompareOn { models, sets, options, compute, restoring } = on;
    let loaded = models.as_ref().ok_or(Error::NoModel)?;
    let (lineup, setting) = setting(loaded, request, sets, options, compute)?;
    lineup.check_files()?;
    let files = LoadPlan { progress: restoring, ..loaded.plan() };
    (listener.on_event)(CompareEvent::Started { setting: setting.clone() });
    let outcome = run_batches(models, &lineup, setting, compute, listener);
    model_sets::restore(models, &files, compute, listener);
    match outcome {
        Err(Error::Stopped) => Ok(ComparisonResult { report: None, stopped: true, trouble: None }),
        other => other,
    }
}

/// Runs all batches and builds the report.
fn run_batches(
    models: &mut Option<Models>,
    lineup: &Lineup<'_>,
    setting: ComparisonSetting,
    compute: &Compute,
    listener: &mut Listener<'_>,
) -> Result<ComparisonResult> {
    let batches = lineup.batches();
    let begun = OnceCell::new();
    let elapsed_ms = || begun.get_or_init(Instant::now).elapsed().as_secs_f64() * 1e3;
    let total = setting.turns() * batches.len();
    let mut measured = MeasuredBatches::default();
    let mut trouble = None;
    for (number, lanes) in batches.iter().enumerate() {
        let progress = ComparisonProgress { done: number * setting.turns(), total, elapsed_ms: &elapsed_ms };
        let ran = lineup.load(lanes, models, compute).and_then(|mut sets| {
            RunningBatch::new(&setting, lineup, lanes, &mut sets)?.run(&progress, listener)
        });
        let BatchOutcome { turns, costs, memory, trouble: failed } = match ran {
            Ok(ran) => ran,
            Err(error) if number == 0 => return Err(error),
            // Loading was stopped.
            Err(Error::Stopped) => break,
            Err(error) => {
                trouble = Some(error);
                break;
            }
        };
        let complete = turns.len() == setting.turns();
        measured.add(lanes, turns, costs, memory);
        trouble = failed;
        if trouble.is_some() || !complete {
            break;
        }
    }
    if measured.is_empty() {
        return Ok(ComparisonResult { report: None, stopped: true, trouble: None });
    }
    let complete = measured.turns() == total;
    let set_of = |lane| lineup.set_of(lane);
    let report = summary::report(setting, measured, &set_of, trouble.as_ref())?;
    if report.best().is_none() {
        // Only plain decoding was measured.
        return trouble.map_or(Ok(ComparisonResult { report: None, stopped: true, trouble: None }), Err);
    }
    let report = ComparisonReport { ended_ms: clock::now(), ..report };
    Ok(ComparisonResult { report: Some(report), stopped: trouble.is_none() && !complete, trouble })
}

/// Checks and completes the request, and assigns models to its lanes.
fn setting<'a>(
    models: &Models,
    request: &CompareRequest,
    sets: &'a [LaneSet],
    options: &'a MethodOptions,
    compute: &Compute,
) -> Result<(Lineup<'a>, ComparisonSetting)> {
    let usual = |lane: &LaneConfig| LaneConfig {
        rule: lane.rule.filter(|rule| *rule != request.rule),
        temperature: lane.temperature.filter(|own| *own != request.sampling.temperature),
        ..lane.clone()
    };
    let requested: Vec<LaneConfig> = request.lanes.iter().map(usual).collect();
    for (number, lane) in requested.iter().enumerate() {
        if lane.method == Method::Plain || requested[..number].contains(lane) {
            return Err(Error::invalid(format!(
                "The lane {} with max_draft {} is there already. Choose different methods or depths.",
                lane.method, lane.max_draft
            )));
        }
    }
    let (lineup, lanes) = Lineup::new(&requested, sets, options, models.plan().draft)?;
    if !(2..=1 + MAX_LANES).contains(&lanes.len()) {
        return Err(Error::invalid(format!(
            "Choose 1 to {MAX_LANES} methods to compare with plain decoding. Each further target or temperature takes one \
             of these lanes for its own plain decoding."
        )));
    }
    if !request.sampling.logit_bias.is_empty() && (0..lanes.len()).any(|lane| lineup.has_other_target(lane)) {
        return Err(Error::invalid(
            "logit_bias names tokens of the loaded target, and a lane has another one. Remove the biases or the lane.",
        ));
    }
    if !(1..=MAX_RUNS).contains(&request.runs) {
        return Err(Error::invalid(format!("runs is {}; it must be 1 to {MAX_RUNS}.", request.runs)));
    }
    let seed = request.sampling.seed.unwrap_or_else(fresh_seed);
    let setting = ComparisonSetting {
        target: models.target_name(),
        draft: models.draft_name(),
        device: compute.name().into(),
        threads: compute.threads().count() as u32,
        lanes,
        prompts: prompts(&request.prompts)?,
        sampling: SamplingParams { seed: Some(seed), ..request.sampling.clone() },
        rule: request.rule,
        max_tokens: request.max_tokens,
        runs: request.runs,
        stop: request.stop.clone(),
        options: request.options.clone(),
        thinking: request.thinking,
        slice_tokens: SLICE as u32,
        separate: lineup.batches().len() > 1,
    };
    let answers = setting.turns() * setting.lanes.len();
    if answers > MAX_ANSWERS {
        return Err(Error::invalid(format!(
            "{} prompts in {} runs over {} methods are {answers} answers, but a comparison has at most {MAX_ANSWERS}. Choose \
             fewer prompts, runs or methods.",
            setting.prompts.len(),
            setting.runs,
            setting.lanes.len()
        )));
    }
    for lane in 0..setting.lanes.len() {
        plan(&setting, &lineup, lane, 0).validate()?;
    }
    Ok((lineup, setting))
}

fn prompts(asked: &ComparedPrompts) -> Result<Vec<ComparedPrompt>> {
    match asked {
        ComparedPrompts::Text { text, .. } if text.trim().is_empty() => Err(Refusal::EmptyPrompt.into()),
        ComparedPrompts::Text { system, text } => {
            Ok(vec![ComparedPrompt { id: String::new(), system: system.clone(), text: text.clone() }])
        }
        ComparedPrompts::Suite { prompts: Some(0), .. } | ComparedPrompts::File { prompts: Some(0), .. } => {
            Err(Error::invalid("prompts is 0; it must be 1 or more, or absent for all of the suite."))
        }
        ComparedPrompts::Suite { name, prompts } => Ok(first(Suite::named(name)?, *prompts)),
        ComparedPrompts::File { path, prompts } => Ok(first(Suite::load(path)?, *prompts)),
    }
}

/// Returns the first prompts of a suite, `None` for all.
fn first(suite: Suite, prompts: Option<u32>) -> Vec<ComparedPrompt> {
    let most = prompts.map_or(usize::MAX, |most| most as usize);
    let compared = |prompt: SuitePrompt| ComparedPrompt {
        id: prompt.id,
        system: prompt.system.unwrap_or_default(),
        text: prompt.prompt,
    };
    suite.prompts.into_iter().take(most).map(compared).collect()
}
