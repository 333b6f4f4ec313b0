//! Distillation of a draft model: its distributions are moved towards the target's (DistillSpec, Zhou et al., arXiv
//! 2310.08461).
//!
//! - [`texts`] keeps prompts and answers of the target.
//! - [`student`] is the draft with gradients.
//! - [`divergence`] is the loss.
//! - [`memory`] predicts the need.
//! - [`fit`] takes the steps, on texts of the target or of the draft itself.
//!
//! The result is a copy of the draft's file with other weights. A killed run continues exactly.

pub mod divergence;
pub mod fit;
pub mod memory;
pub mod student;
pub mod texts;

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use hunch_core::model::LanguageModel;
use hunch_error::{Error, Refusal, Result};
use hunch_model::decoder::Decoder;
use hunch_model::device::Compute;
use hunch_model::float_weights::FloatWeights;
use hunch_model::text::{Tokenizer, check_vocabularies};
use serde::Serialize;

use crate::train::acceptance::Acceptance;
use crate::train::collect::Goal;
use crate::train::{Interrupt, Recipe, TrainProgress, TrainWatch, TrainingTarget, is_paused};
use divergence::Divergence;
use fit::{DistilFit, answer_logits, measure};
use student::Student;
use texts::TextStore;

/// Texts that a draft learns on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextsOf {
    /// The target's answers.
    Target,
    /// The draft's own answers (on-policy), which show it its own mistakes.
    Draft,
    /// Both in turn.
    #[default]
    Both,
}

impl TextsOf {
    /// All kinds of texts.
    pub const ALL: [Self; 3] = [Self::Target, Self::Draft, Self::Both];

    /// Returns the name in commands.
    pub fn name(self) -> &'static str {
        match self {
            Self::Target => "target",
            Self::Draft => "draft",
            Self::Both => "both",
        }
    }
}

impl fmt::Display for TextsOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TextsOf {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let names = Self::ALL.map(Self::name).join(", ");
        Self::ALL.into_iter().find(|one| one.name() == text).ok_or(format!("The texts are {names}."))
    }
}

/// Settings of a distillation. Equal settings, texts and seed give equal weights.
#[derive(Clone, Debug, PartialEq)]
pub struct DistilRecipe {
    /// Loss.
    pub divergence: Divergence,
    /// Texts.
    pub texts: TextsOf,
    /// Rank of the trained matrices; `None` trains all matrices of the layers.
    pub rank: Option<usize>,
    /// Highest learning rate.
    pub learning_rate: f64,
    /// Passes over the texts.
    pub epochs: usize,
    /// Answers of a step.
    pub batch: usize,
    /// Most tokens of the draft's own answers.
    pub own_tokens: usize,
    /// Time between checkpoints.
    pub checkpoint_every: Duration,
    /// Times that held-out acceptance is measured while training.
    pub evaluations: usize,
    /// Recipe by which the target writes.
    pub collect: Recipe,
}

impl DistilRecipe {
    /// Returns the usual settings for a rank.
    pub fn of(rank: Option<usize>) -> Self {
        Self {
            divergence: Divergence::default(),
            texts: TextsOf::default(),
            rank,
            learning_rate: if rank.is_some() { 3e-4 } else { 3e-5 },
            epochs: 2,
            batch: 8,
            own_tokens: 128,
            checkpoint_every: Duration::from_secs(120),
            evaluations: 4,
            collect: Recipe::default(),
        }
    }
}

impl DistilRecipe {
    /// Checks the settings for a draft.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if one is out of range.
    fn check(&self, draft: &FloatWeights) -> Result<()> {
        self.collect.check()?;
        let most = draft.spec().n_embd;
        if self.rank.is_some_and(|rank| rank == 0 || rank > most) {
            return Err(Error::invalid(format!(
                "The rank of this draft's matrices is 1 to {most}. Nothing was changed. Give another --rank."
            )));
        }
        if self.batch == 0 || self.epochs == 0 || !(self.learning_rate > 0.0 && self.learning_rate <= 1.0) {
            return Err(Error::invalid(
                "The learning rate must be above 0 and at most 1. A step has at least one answer, and a run at least one \
                 epoch. Nothing was changed.",
            ));
        }
        Ok(())
    }
}

/// Models and budget of a distillation.
pub struct DistilPlan<'a> {
    /// The draft's file.
    pub draft: &'a Path,
    /// Tokens of the target's answers.
    pub tokens: usize,
    /// Seed of texts and weights.
    pub seed: u64,
    /// Bytes of memory that are free. `None` if they are not checked.
    pub usable: Option<u64>,
    /// Settings.
    pub recipe: DistilRecipe,
}

/// Result of a distillation.
#[derive(Clone, Debug, Serialize)]
pub struct DistilReport {
    /// Name of the target.
    pub target: String,
    /// Tokens of the target's answers.
    pub tokens: usize,
    /// Gradient steps.
    pub steps: usize,
    /// Gradient steps of this run.
    pub steps_now: usize,
    /// Held-out acceptance of the draft as it was.
    pub start: Acceptance,
    /// Held-out acceptance of the written draft. Both are measured as decoding computes them.
    pub distilled: Acceptance,
    /// True if the draft accepts more than before, so that it was written.
    pub written: bool,
}

/// Distils a draft and writes it to `out`, if it accepts more held-out tokens than before. Continues from the texts and
/// the checkpoint in `folder`.
///
/// # Errors
/// [`Error::VocabularyMismatch`] if the models have other vocabularies, [`Error::UnsupportedModel`] if the draft's
/// layers cannot be trained. [`Error::InvalidRequest`] if settings are out of range or memory is short. Nothing is
/// written then. The errors of files and devices, after which texts and the last checkpoint are kept.
/// [`Error::Stopped`] after [`Interrupt::Pause`].
pub fn distil(
    target: &TrainingTarget,
    compute: &Compute,
    folder: &Path,
    plan: &DistilPlan<'_>,
    out: &Path,
    watch: &mut dyn TrainWatch,
) -> Result<DistilReport> {
    // Everything that can be refused is refused before any work.
    let file = FloatWeights::open(plan.draft)?;
    check_vocabularies(&target.tokenizer, &Tokenizer::from_gguf(file.file().gguf())?)?;
    if out.exists() {
        return Err(Error::invalid(format!(
            "{} exists already. Give another name to --out. Nothing was changed.",
            out.display()
        )));
    }
    let recipe = &plan.recipe;
    recipe.check(&file)?;
    if let Some(usable) = plan.usable {
        memory::check(&file, recipe, usable)?;
    }
    let n_vocab = file.spec().n_vocab.min(target.rows.n_vocab);
    let context = file.spec().context_length.min(target.decoder.info().context_length);
    let student = Student::load(file, recipe.rank, plan.seed, target.device())?;

    let mut store = TextStore::open(folder, target, plan.seed)?;
    store.collect(target, &recipe.collect, Goal::HeldOut, watch)?;
    store.collect(target, &recipe.collect, Goal::Training(plan.tokens), watch)?;
    let texts = store.training(plan.tokens);
    let held_out = store.held_out(recipe.collect.held_out);
    if texts.is_empty() {
        return Err(Error::invalid("There are no answers to learn from. Raise --tokens."));
    }
    let tokens: usize = texts.iter().map(|text| text.answer.len()).sum();

    let measured = |path: &Path, watch: &dyn TrainWatch| -> Result<Acceptance> {
        let mut draft = Decoder::open(path, compute)?;
        measure(&held_out, n_vocab, &|| is_paused(watch), &mut |text| answer_logits(&mut draft, text))
    };
    let start = measured(plan.draft, &*watch)?;
    let data = fit::Data { target, texts: &texts, held_out: &held_out, n_vocab, context };
    let mut fit = DistilFit::open(data, student, plan, store.folder(), &|| is_paused(&*watch))?;
    let mut steps_now = 0;
    loop {
        if let Some(interrupt) = watch.interrupt() {
            fit.save()?;
            match interrupt {
                Interrupt::Pause => return Err(Error::Stopped),
                Interrupt::Finish => break,
            }
        }
        let Some((loss, acceptance)) = fit.step(&|| is_paused(&*watch))? else { break };
        steps_now += 1;
        let (step, total) = fit.position();
        watch.progress(TrainProgress::Fitting { step, total, loss, acceptance });
    }
    let (steps, _) = fit.position();
    let report = |distilled, written| DistilReport {
        target: target.rows.name.clone(),
        tokens,
        steps,
        steps_now,
        start,
        distilled,
        written,
    };
    // Written next to its place first: rounding to the file's type may cost what was learned.
    let fresh = folder.join("distilled.gguf");
    fit.write(&fresh)?;
    let distilled = measured(&fresh, &*watch)?;
    let better = distilled.mean() > start.mean();
    if better {
        hunch_model::atomic_file::copy(&fresh, out)?;
    }
    let _ = std::fs::remove_file(&fresh);
    Ok(report(distilled, better))
}

/// Returns the error for a loss that is not finite.
fn not_finite() -> Error {
    Refusal::StatesNotFinite.into()
}
