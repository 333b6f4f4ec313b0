//! Training of a draft head on text that the target writes itself.
//!
//! It has four steps:
//!
//! - [`collect`] lets the target write prompts and answers, and keeps the hidden states of every row.
//! - [`fit`] starts from a ridge regression and takes gradient steps. [`kind`] lists the networks.
//! - [`acceptance`] measures acceptance on held-out answers.
//! - [`export`] writes the file that decoding loads.
//!
//! Data and checkpoints are on disk, in a folder for each target and seed, so a killed run continues from there.
//! docs/drafters.md explains the recipe.

pub mod acceptance;
pub mod adam;
pub mod checkpoint;
pub mod checkpointed;
pub mod collect;
pub mod eagle;
pub mod export;
pub mod features;
pub mod fit;
pub mod kind;
pub mod medusa;
pub mod mlp;
pub mod network;
pub mod ops;
pub mod prompt_rows;
pub mod prompts;
pub mod record;
pub mod ridge;
pub mod schedule;
pub mod shards;
pub mod start;
pub mod target;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hunch_error::{Error, Result};
use serde::Serialize;

use acceptance::{Acceptance, DraftAcceptance};
use collect::{Collected, Goal};
use fit::{FitRun, FitStep};
use kind::HeadKind;
use shards::ShardStore;
pub use target::TrainingTarget;

/// End of a training run's budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// Collects this many tokens to train on, and goes through them [`Recipe::epochs`] times.
    Tokens(usize),
    /// Collects for about two thirds of the time, and trains in the rest.
    Minutes(f64),
}

/// Settings of a training run. Equal settings, data and seed give equal weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// Architecture of the head.
    pub kind: HeadKind,
    /// Tokens of a draft that the head learns. 1 for [`HeadKind::Mlp`].
    pub depth: usize,
    /// Answers written at the same time.
    pub parallel: usize,
    /// Most tokens of a prompt.
    pub prompt_tokens: usize,
    /// Most tokens of an answer.
    pub answer_tokens: usize,
    /// Tokens of held-out answers that acceptance is measured on.
    pub held_out: usize,
    /// Tokens that the head scores.
    pub shortlist: usize,
    /// Width of the feed-forward block; `None` is four thirds of the target's width.
    pub feed_forward: Option<usize>,
    /// Positions per gradient step.
    pub batch: usize,
    /// Passes over the data.
    pub epochs: usize,
    /// Highest learning rate.
    pub learning_rate: f64,
    /// Penalty of the ridge regression.
    pub ridge: f64,
    /// Time between checkpoints.
    pub checkpoint_every: Duration,
    /// Times that held-out acceptance is measured while training.
    pub evaluations: usize,
    /// Prompts to answer, in turn; `None` if the target writes its own.
    pub prompts: Option<Arc<[String]>>,
}

impl Default for Recipe {
    fn default() -> Self {
        Self {
            kind: HeadKind::Mlp,
            depth: 1,
            parallel: 16,
            prompt_tokens: 128,
            answer_tokens: 224,
            held_out: 4_000,
            shortlist: 4_096,
            feed_forward: None,
            batch: 1_024,
            epochs: 4,
            learning_rate: 4e-4,
            ridge: 100.0,
            checkpoint_every: Duration::from_secs(60),
            evaluations: 8,
            prompts: None,
        }
    }
}

impl Recipe {
    /// Returns the usual settings for a kind of head.
    pub fn of(kind: HeadKind) -> Self {
        Self { kind, depth: kind.depth(DEPTH), ..Self::default() }
    }

    /// Returns the settings under which heads of any kind are compared: drafts of [`DEPTH`] tokens or more.
    pub fn comparable(&self) -> Self {
        Self { depth: self.depth.max(DEPTH), ..self.clone() }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if a number is too small.
    pub fn check(&self) -> Result<()> {
        let counts = [
            ("tokens of a draft", self.depth, 1),
            ("answers at the same time", self.parallel, 1),
            ("tokens of an answer", self.answer_tokens, 2),
            ("held-out tokens", self.held_out, 1),
            ("scored tokens", self.shortlist, 1),
            ("positions of a step", self.batch, 1),
            ("passes over the data", self.epochs, 1),
        ];
        match counts.iter().find(|(_, count, least)| count < least) {
            Some((what, count, least)) => Err(Error::invalid(format!(
                "The number of {what} is {count}. It must be at least {least}. Nothing was collected or trained."
            ))),
            None => Ok(()),
        }
    }
}

/// Tokens of a draft that heads with several learn. Deeper drafts seldom pay on a CPU.
pub const DEPTH: usize = 3;

/// Seed, budget and limits of a training run.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainPlan {
    /// End of the run.
    pub budget: Budget,
    /// Seed of the prompts, the answers and the weights.
    pub seed: u64,
    /// Most bytes of collected data.
    pub disk: u64,
    /// Settings.
    pub recipe: Recipe,
}

/// Progress of a training run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TrainProgress {
    /// The target writes.
    Collecting {
        /// Answer tokens so far, those of earlier runs included.
        tokens: usize,
        /// Wanted tokens, if they are known.
        goal: Option<usize>,
        /// Answer tokens per second of this run.
        per_second: f64,
    },
    /// The ridge regression runs.
    Solving,
    /// The head learns.
    Fitting {
        /// Gradient steps so far.
        step: usize,
        /// Gradient steps in all.
        total: usize,
        /// Mean loss of the last steps, in nats.
        loss: f64,
        /// Held-out acceptance of the first token when it was last measured.
        acceptance: Acceptance,
    },
}

/// Request to end a run early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// Ends with [`Error::Stopped`]. Everything is kept, and the next run continues from there.
    Pause,
    /// Stops collecting and training, and writes the best head so far.
    Finish,
}

/// Observer of a run. A closure is one that never interrupts.
pub trait TrainWatch {
    /// Receives the progress, several times a second.
    fn progress(&mut self, progress: TrainProgress);

    /// Returns the request to end early, if there is one. It is asked after every pass and every gradient step, between
    /// the blocks of the regression, and between the answers that acceptance is measured on.
    fn interrupt(&self) -> Option<Interrupt> {
        None
    }
}

impl<F: FnMut(TrainProgress)> TrainWatch for F {
    fn progress(&mut self, progress: TrainProgress) {
        self(progress);
    }
}

/// Result of a training run.
#[derive(Clone, Debug, Serialize)]
pub struct TrainReport {
    /// Name of the target.
    pub target: String,
    /// Tokens of answers that the head was trained on.
    pub tokens: usize,
    /// Gradient steps.
    pub steps: usize,
    /// Answer tokens collected in this run.
    pub collected_now: usize,
    /// Seconds of collecting in this run.
    pub collect_seconds: f64,
    /// Positions trained on in this run.
    pub trained_now: usize,
    /// Seconds of training in this run.
    pub fit_seconds: f64,
    /// Set if collecting ended because the data reached the limit of [`TrainPlan::disk`].
    pub disk_limit: bool,
    /// Acceptance after the ridge regression, before any gradient step.
    pub start: DraftAcceptance,
    /// Acceptance of the written head, in the arithmetic that decoding uses.
    pub trained: DraftAcceptance,
}

/// Share of a time budget that goes into collecting.
const COLLECTING: f64 = 0.65;

/// Trains a head for a target and writes it to `out`. Continues from the data and the checkpoint in `folder`.
///
/// # Errors
/// If the target cannot be run, another run uses the folder, or a file cannot be read or written. Complete shards and
/// the last checkpoint are kept then. [`Error::Stopped`] after [`Interrupt::Pause`].
pub fn train(
    target: &TrainingTarget,
    folder: &Path,
    plan: &TrainPlan,
    out: &Path,
    watch: &mut dyn TrainWatch,
) -> Result<TrainReport> {
    let recipe = &plan.recipe;
    recipe.check()?;
    recipe.kind.check(target.taps.len(), target.rows.n_embd)?;
    export::check_place(recipe.kind, out)?;
    let mut store = ShardStore::open(folder, target, plan.seed, plan.disk)?;
    let begun = Instant::now();
    let held_out = collect::collect(target, &mut store, recipe, Goal::HeldOut, None, watch)?;
    let (wanted, deadline) = match plan.budget {
        Budget::Tokens(tokens) => (tokens, None),
        Budget::Minutes(minutes) => {
            // The time of earlier runs counts.
            let left = (minutes * 60.0 * COLLECTING - store.seconds()).max(0.0);
            (usize::MAX, Some(begun + Duration::from_secs_f64(left.min(1e9))))
        }
    };
    let collected = collect::collect(target, &mut store, recipe, Goal::Training(wanted), deadline, watch)?;
    let collect_seconds = begun.elapsed().as_secs_f64();
    let tokens = if deadline.is_none() { wanted } else { store.training_tokens() };
    let data = store.training_set(tokens);
    if data.tokens() < 2 {
        return Err(Error::invalid(
            "There are no answers to train on yet. Raise --tokens, --minutes or --disk.",
        ));
    }

    check_held_out(&store, recipe)?;

    let fitting = Instant::now();
    watch.progress(TrainProgress::Solving);
    let mut fit = FitRun::open(target, &store, data, recipe, plan.seed, &|| is_paused(&*watch))?;
    if let Budget::Minutes(minutes) = plan.budget {
        fit.limit_time(&store, minutes * 60.0 * (1.0 - COLLECTING))?;
    }
    let mut trained_now = 0;
    loop {
        if is_finished_early(watch, || fit.save())? {
            break;
        }
        let Some(FitStep { positions, loss, acceptance }) = fit.step(&store, &|| is_paused(&*watch))? else {
            break;
        };
        trained_now += positions;
        let (step, total) = fit.position();
        watch.progress(TrainProgress::Fitting { step, total, loss, acceptance });
    }
    let fit_seconds = fitting.elapsed().as_secs_f64();
    export::write(&fit, out)?;
    let head = &mut target.load_head(out)?;
    let trained = acceptance::head(target, &store, head, &recipe.comparable(), &|| is_paused(&*watch))?;
    let Collected { tokens: of_held_out, .. } = held_out;
    Ok(TrainReport {
        target: target.rows.name.clone(),
        tokens: fit.training_tokens(),
        steps: fit.position().0,
        collected_now: collected.tokens + of_held_out,
        collect_seconds,
        trained_now,
        fit_seconds,
        disk_limit: held_out.disk_limit || collected.disk_limit,
        start: fit.start().clone(),
        trained,
    })
}

/// Refuses data without held-out answers, which nothing could be measured on.
fn check_held_out(store: &ShardStore, recipe: &Recipe) -> Result<()> {
    if store.held_out(recipe.held_out).is_empty() {
        return Err(Error::invalid(
            "There are no held-out answers to measure on. Raise --held-out or --disk.",
        ));
    }
    Ok(())
}

/// Returns whether a run is asked to pause.
pub fn is_paused(watch: &dyn TrainWatch) -> bool {
    watch.interrupt() == Some(Interrupt::Pause)
}

/// Returns whether a run is asked to finish early. Calls `save` if it is, or if it is asked to pause.
///
/// # Errors
/// [`Error::Stopped`] if it is asked to pause, and the error of `save`.
pub(crate) fn is_finished_early(watch: &dyn TrainWatch, save: impl FnOnce() -> Result<()>) -> Result<bool> {
    let Some(interrupt) = watch.interrupt() else { return Ok(false) };
    save()?;
    match interrupt {
        Interrupt::Pause => Err(Error::Stopped),
        Interrupt::Finish => Ok(true),
    }
}

/// Ends the work with [`Error::Stopped`] if the run was paused.
pub(crate) fn check_paused(paused: &dyn Fn() -> bool) -> Result<()> {
    if paused() { Err(Error::Stopped) } else { Ok(()) }
}

/// Measures a head on held-out answers of its target. Collects the answers first where they are missing.
///
/// # Errors
/// As [`train`]; [`Error::InvalidRequest`] if the head reads layers that were not collected.
pub fn evaluate(
    target: &TrainingTarget,
    folder: &Path,
    plan: &TrainPlan,
    head: &Path,
    watch: &mut dyn TrainWatch,
) -> Result<DraftAcceptance> {
    plan.recipe.check()?;
    // A head that cannot be used is refused before any work.
    let mut head = target.load_head(head)?;
    acceptance::check_layers(target, &head)?;
    let mut store = ShardStore::open(folder, target, plan.seed, plan.disk)?;
    collect::collect(target, &mut store, &plan.recipe, Goal::HeldOut, None, watch)?;
    check_held_out(&store, &plan.recipe)?;
    acceptance::head(target, &store, &mut head, &plan.recipe, &|| is_paused(&*watch))
}
