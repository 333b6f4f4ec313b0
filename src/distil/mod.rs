//! Distillation of a draft model: its distributions are moved towards the target's (DistillSpec, Zhou et al., arXiv
//! 2310.08461).
//!
//! - [`student`] is the draft with gradients.
//! - [`divergence`] is the loss.
//! - [`memory`] predicts the memory that a run needs.
//! - [`fit`] takes the steps, on texts of the target or of the draft itself.
//!
//! Collecting, held-out acceptance, AdamW and checkpoints are those of heads, in [`train`](crate::train). The result is a
//! copy of the draft's file with other weights. A killed run continues exactly.

pub mod divergence;
pub mod fit;
pub mod memory;
pub mod student;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use hunch_core::model::LanguageModel;
use hunch_error::{Error, Result};
use hunch_model::atomic_file;
use hunch_model::decoder::Decoder;
use hunch_model::float_weights::FloatWeights;
use hunch_model::spec::ModelSpec;
use hunch_model::text::{Tokenizer, check_vocabularies};
use serde::Serialize;

use crate::train::acceptance::Acceptance;
use crate::train::collect::{Goal, collect};
use crate::train::shards::ShardStore;
use crate::train::{Recipe, TrainProgress, TrainWatch, TrainingTarget, is_finished_early, is_paused};
use divergence::Divergence;
use fit::{Data, DistilFit, TextLimits, answer_logits, measure};
use memory::longest_text;
use student::Student;

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
    /// Texts to learn on.
    pub texts: TextsOf,
    /// Rank of the trained matrices; `None` trains all matrices of the layers.
    pub rank: Option<usize>,
    /// Highest learning rate.
    pub learning_rate: f64,
    /// Passes over the texts.
    pub epochs: usize,
    /// Answers of a step.
    pub batch: usize,
    /// Most tokens of an answer of the draft.
    pub own_tokens: usize,
    /// Time between checkpoints.
    pub checkpoint_every: Duration,
    /// Times that held-out acceptance is measured while training.
    pub evaluations: usize,
    /// Settings of the target's texts.
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
        if !(self.learning_rate > 0.0 && self.learning_rate <= 1.0) {
            return Err(Error::invalid(
                "The learning rate must be above 0 and at most 1. Nothing was changed. Give another --learning-rate.",
            ));
        }
        if [self.batch, self.epochs, self.own_tokens].contains(&0) {
            return Err(Error::invalid(
                "The answers of a step, the epochs, and the tokens of the draft's answers must be at least 1. Nothing was \
                 changed.",
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
    /// Most bytes of texts on disk.
    pub disk: u64,
    /// Free bytes of memory. `None` skips the check.
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
    /// Set if collecting ended because the texts reached the limit of [`DistilPlan::disk`].
    pub disk_limit: bool,
    /// Held-out acceptance of the draft's file, in the arithmetic that decoding uses.
    pub start: Acceptance,
    /// The same of the distilled draft.
    pub distilled: Acceptance,
    /// True if more is accepted than before, so that the distilled draft was written.
    pub written: bool,
}

/// Returns the folder of texts and checkpoints, next to the folder of the data of heads.
pub fn folder(of_heads: &Path) -> PathBuf {
    let mut name = of_heads.file_name().unwrap_or_default().to_os_string();
    name.push("-distil");
    of_heads.with_file_name(name)
}

/// Distils a draft and writes it to `out` if more of its held-out tokens are accepted than before. Continues from the
/// texts and the checkpoint in `folder`.
///
/// # Errors
/// [`Error::VocabularyMismatch`] if the models have other vocabularies, [`Error::UnsupportedModel`] if the draft's
/// layers cannot be trained, [`Error::InvalidModelFile`] if its weights are not finite. [`Error::InvalidRequest`] if
/// settings are out of range, memory is short, or `out` exists. These are found before any work. The errors of files and
/// devices, after which texts and the last checkpoint are kept. [`Error::Stopped`] after [`Interrupt::Pause`](crate::train::Interrupt::Pause).
pub fn distil(
    target: &TrainingTarget,
    folder: &Path,
    plan: &DistilPlan<'_>,
    out: &Path,
    watch: &mut dyn TrainWatch,
) -> Result<DistilReport> {
    let recipe = &plan.recipe;
    let file = open_checked(target, plan, out)?;
    let limits = text_limits(target, file.spec(), recipe);
    // The decoder checks the shapes of all tensors.
    let before = Decoder::open(plan.draft, target.compute())?;
    let student = Student::load(file, recipe.rank, plan.seed, target.device())?;

    let mut store = ShardStore::open_tokens(folder, target, plan.seed, plan.disk)?;
    let disk_limit = collect_answers(target, &mut store, plan, watch)?;
    let entries = store.training_set(plan.tokens).answers;
    let mut texts = entries.iter().map(|entry| store.read(entry)).collect::<Result<Vec<_>>>()?;
    texts.retain(|text| limits.allow(text));
    let measured = |mut draft: Decoder, watch: &dyn TrainWatch| {
        let paused = || is_paused(watch);
        measure(&store, recipe, limits, &paused, &mut |text| answer_logits(&mut draft, text))
    };
    let start = measured(before, &*watch)?;
    if texts.is_empty() || start.greedy_positions + start.sampled_positions == 0 {
        return Err(Error::invalid(
            "The target wrote too little text that the draft can read. Raise --tokens, --held-out or --disk.",
        ));
    }

    let data = Data { target, store: &store, texts: &texts, limits };
    let mut fit = DistilFit::open(data, student, plan, store.folder(), &|| is_paused(&*watch))?;
    let steps_now = take_steps(&mut fit, watch)?;
    // Measured as written: rounding to the types of the file may cost what was learned.
    let fresh = folder.join("distilled.gguf");
    fit.write(&fresh)?;
    let distilled = measured(Decoder::open(&fresh, target.compute())?, &*watch)?;
    let written = distilled.mean() > start.mean();
    let copied = if written { atomic_file::copy_new(&fresh, out) } else { Ok(()) };
    let _ = std::fs::remove_file(&fresh);
    copied.map_err(|error| {
        if_taken(
            error,
            out,
            "It was not replaced, and no step is lost. Run the command again with another --out.",
        )
    })?;
    fit.remove_checkpoint();
    Ok(DistilReport {
        target: target.rows.name.clone(),
        tokens: texts.iter().map(|text| text.next.len()).sum(),
        steps: fit.position().0,
        steps_now,
        disk_limit,
        start,
        distilled,
        written,
    })
}

/// Opens the draft's file, and checks everything that can be refused before any work.
fn open_checked(target: &TrainingTarget, plan: &DistilPlan<'_>, out: &Path) -> Result<FloatWeights> {
    let file = FloatWeights::open(plan.draft)?;
    check_vocabularies(&target.tokenizer, &Tokenizer::from_gguf(file.file().gguf())?)?;
    plan.recipe.check(&file)?;
    if let Some(usable) = plan.usable {
        memory::check(&file, &plan.recipe, usable)?;
    }
    atomic_file::check_new(out)
        .map_err(|error| if_taken(error, out, "Nothing was changed. Give another name to --out."))?;
    Ok(file)
}

/// Returns the size of texts that both models can read.
fn text_limits(target: &TrainingTarget, draft: &ModelSpec, recipe: &DistilRecipe) -> TextLimits {
    let contexts = draft.context_length.min(target.decoder.info().context_length);
    TextLimits {
        n_vocab: draft.n_vocab.min(target.rows.n_vocab),
        context: contexts.min(longest_text(recipe)),
    }
}

/// Collects answers to measure on and to learn on. Returns true if the texts reached their limit on disk.
fn collect_answers(
    target: &TrainingTarget,
    store: &mut ShardStore,
    plan: &DistilPlan<'_>,
    watch: &mut dyn TrainWatch,
) -> Result<bool> {
    let mut disk_limit = false;
    for goal in [Goal::HeldOut, Goal::Training(plan.tokens)] {
        disk_limit |= collect(target, store, &plan.recipe.collect, goal, None, watch)?.disk_limit;
    }
    Ok(disk_limit)
}

/// Takes the steps that are left, until the watcher ends them. Returns their number.
fn take_steps(fit: &mut DistilFit<'_>, watch: &mut dyn TrainWatch) -> Result<usize> {
    let mut steps = 0;
    while !is_finished_early(watch, || fit.save())? {
        let Some((loss, acceptance)) = fit.step(&|| is_paused(&*watch))? else { break };
        steps += 1;
        let (step, total) = fit.position();
        watch.progress(TrainProgress::Fitting { step, total, loss, acceptance });
    }
    Ok(steps)
}

/// Adds a remedy to the error for a file that exists.
fn if_taken(error: Error, out: &Path, remedy: &str) -> Error {
    match error {
        Error::Io { source, .. } if source.kind() == std::io::ErrorKind::AlreadyExists => {
            Error::invalid(format!("{} exists already. {remedy}", out.display()))
        }
        other => other,
    }
}
