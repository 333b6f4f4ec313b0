//! Fitting: ridge regression, then AdamW steps with warm-up and cosine, with a checkpoint that continues exactly.

use std::time::{Duration, Instant};

use candle_core::Tensor;
use candle_core::backprop::GradStore;
use hunch_core::token::TokenId;
use hunch_error::{Refusal, Result};
use hunch_model::hex;
use rand::seq::SliceRandom;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::acceptance::{self, Acceptance, DraftAcceptance};
use super::checkpoint::Checkpoint;
use super::checkpointed::{CheckpointedFit, FitProgress, FixedValues, Pace};
use super::features::{Frozen, Standard};
use super::network::HeadInTraining;
use super::ops::gradients_of;
use super::prompt_rows::PromptRows;
use super::schedule::order;
use super::shards::{AnswerRow, CollectedAnswer, ShardStore, TrainingSet};
use super::start::{StartData, generator};
use super::{Recipe, TrainingTarget, check_paused};

/// Answers whose positions are shuffled together.
const GROUP: usize = 32;
/// Steps until the learning rate is at its highest.
const WARM_UP: usize = 30;

/// One gradient step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FitStep {
    /// Positions of the batch.
    pub positions: usize,
    /// Mean loss of the last steps, in nats.
    pub loss: f64,
    /// Held-out acceptance of the first token when it was last measured.
    pub acceptance: Acceptance,
}

/// State of a run, saved with its tensors.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SavedState {
    #[serde(flatten)]
    progress: FitProgress<DraftAcceptance>,
    #[serde(flatten)]
    run: RunState,
}

/// State of a run that other fits do not have.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RunState {
    total: usize,
    /// Set if `total` was cut to a time.
    limited: bool,
    /// Seconds of training so far.
    seconds: f64,
    start: DraftAcceptance,
}

/// A batch: part `part` of `parts` of a group of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BatchPlace {
    epoch: usize,
    group: usize,
    part: usize,
    parts: usize,
}

/// A head in training.
pub struct FitRun<'a> {
    frozen: Frozen<'a>,
    recipe: Recipe,
    seed: u64,
    data: TrainingSet,
    batches: Vec<BatchPlace>,
    network: Box<dyn HeadInTraining>,
    fit: CheckpointedFit<DraftAcceptance>,
    run: RunState,
    /// Prompts of held-out answers, if the head reads the text before a row.
    prompts: Option<PromptRows>,
    group: Option<Group>,
}

/// Answers of a group and their positions. They are shuffled, unless the head reads whole answers.
struct Group {
    epoch: usize,
    number: usize,
    answers: Vec<CollectedAnswer>,
    /// Positions of each batch.
    parts: Vec<Vec<(usize, usize)>>,
}

impl<'a> FitRun<'a> {
    /// Continues from the checkpoint in the store's folder if it belongs to the same data, recipe and seed. Otherwise
    /// starts with the ridge regression.
    ///
    /// # Errors
    /// If a shard cannot be read, the checkpoint cannot be written, or memory is short. [`Error::Stopped`] if `paused`
    /// returns true; the regression begins again then.
    pub fn open(
        target: &'a TrainingTarget,
        store: &ShardStore,
        data: TrainingSet,
        recipe: &Recipe,
        seed: u64,
        paused: &dyn Fn() -> bool,
    ) -> Result<Self> {
        let digest = digest(target, &data, recipe, seed)?;
        let batches = plan(&data, recipe, seed);
        let path = store.folder().join(recipe.kind.file("checkpoint.safetensors"));
        let (kind, names) = (recipe.kind, recipe.kind.names(recipe.depth));
        let own = |state: &SavedState| state.progress.digest == digest;
        let pace = Pace {
            learning_rate: recipe.learning_rate,
            warm_up: WARM_UP,
            evaluations: recipe.evaluations,
            checkpoint_every: recipe.checkpoint_every,
        };
        let mut prompts = kind.reads_text().then(|| PromptRows::of(target));
        if let Some(saved) = Checkpoint::<SavedState>::read(&path, &names, target.device(), own) {
            let Checkpoint { state, vectors, tokens, weights, moments, best } = saved;
            let [mean, deviation] = vectors;
            let frozen = Frozen::new(target, tokens, Standard { mean, deviation })?;
            return Ok(Self {
                network: kind.network(&weights, &frozen, recipe.depth)?,
                fit: CheckpointedFit::resume(state.progress, moments, best, path, pace),
                run: state.run,
                frozen,
                recipe: recipe.clone(),
                seed,
                data,
                batches,
                prompts,
                group: None,
            });
        }
        let vocabulary = shortlist(target, store, &data, recipe, paused)?;
        let frozen = Frozen::new(target, vocabulary, Standard::of(target, store, &data)?)?;
        let weights = kind.start(&frozen, &StartData { store, data: &data, recipe, seed, paused })?;
        let network = kind.network(&weights, &frozen, recipe.depth)?;
        let start = acceptance::network(store, recipe, (&*network, &frozen), prompts.as_mut(), paused)?;
        let (latest, best) = (start.clone(), start.clone());
        let progress = FitProgress { digest, step: 0, latest, best, loss: 0.0, due: false };
        let mut fit = Self {
            fit: CheckpointedFit::start(progress, network.vars(), path, pace)?,
            run: RunState { total: batches.len(), limited: false, seconds: 0.0, start },
            frozen,
            recipe: recipe.clone(),
            seed,
            data,
            batches,
            network,
            prompts,
            group: None,
        };
        fit.save()?;
        Ok(fit)
    }

    /// Cuts the steps to what fits into this time, from the time of a step. A fit that was cut before keeps its length,
    /// so that it continues exactly.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn limit_time(&mut self, store: &ShardStore, seconds: f64) -> Result<()> {
        if self.run.limited || self.batches.is_empty() {
            return Ok(());
        }
        self.with_batch(store, self.batches[0])?;
        let begun = Instant::now();
        self.with_batch(store, self.batches[0])?;
        let fitting = (seconds / begun.elapsed().as_secs_f64().max(1e-6)) as usize;
        (self.run.total, self.run.limited) = (self.batches.len().min(fitting.max(1)), true);
        self.save()
    }

    /// Takes one gradient step. Returns `None` after the last.
    ///
    /// # Errors
    /// If a shard cannot be read, the device fails, or the checkpoint cannot be written. [`Error::Stopped`] if `paused`
    /// returns true while acceptance is measured. The step is saved then, and the next call measures first.
    pub fn step(&mut self, store: &ShardStore, paused: &dyn Fn() -> bool) -> Result<Option<FitStep>> {
        self.evaluate(store, paused)?;
        let (step, total) = self.position();
        if step >= total {
            return Ok(None);
        }
        let begun = Instant::now();
        let (positions, loss, grads) = self.with_batch(store, self.batches[step])?;
        if !loss.is_finite() {
            return Err(Refusal::StatesNotFinite.into());
        }
        let vars = self.network.vars();
        self.fit.step(vars, Some(&gradients_of(vars, grads)), loss, total)?;
        self.evaluate(store, paused)?;
        self.run.seconds += begun.elapsed().as_secs_f64();
        if self.fit.is_checkpoint_due(total) {
            self.save()?;
        }
        let FitProgress { loss, latest, .. } = &self.fit.progress;
        Ok(Some(FitStep { positions, loss: *loss, acceptance: latest.first }))
    }

    /// Measures held-out acceptance if it is due, and keeps the weights if they are the best.
    fn evaluate(&mut self, store: &ShardStore, paused: &dyn Fn() -> bool) -> Result<()> {
        if !self.fit.progress.due {
            return Ok(());
        }
        let network = (&*self.network, &self.frozen);
        match acceptance::network(store, &self.recipe, network, self.prompts.as_mut(), paused) {
            Ok(latest) => self.fit.record(latest, self.network.vars()),
            Err(error) => {
                self.save()?;
                Err(error)
            }
        }
    }

    /// Returns the steps taken, and all of them.
    pub fn position(&self) -> (usize, usize) {
        (self.fit.progress.step, self.run.total)
    }

    /// Returns the acceptance before the first step.
    pub fn start(&self) -> &DraftAcceptance {
        &self.run.start
    }

    /// Returns the held-out acceptance of the best weights.
    pub fn best_acceptance(&self) -> &DraftAcceptance {
        &self.fit.progress.best
    }

    /// Returns the weights with the highest held-out acceptance so far, in the order of
    /// [`HeadKind::names`](super::kind::HeadKind::names).
    pub fn best(&self) -> &[Tensor] {
        self.fit.best()
    }

    /// Returns the parts that the fit does not change.
    pub fn frozen(&self) -> &Frozen<'a> {
        &self.frozen
    }

    /// Returns the settings.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// Returns the tokens of the answers that are trained on.
    pub fn training_tokens(&self) -> usize {
        self.data.tokens()
    }

    /// Returns positions, loss and gradients of a batch.
    fn with_batch(&mut self, store: &ShardStore, place: BatchPlace) -> Result<(usize, f64, GradStore)> {
        let cached = self.group.take().filter(|g| (g.epoch, g.number) == (place.epoch, place.group));
        let group = match cached {
            Some(group) => group,
            None => self.read_group(store, place)?,
        };
        let part = group.parts.get(place.part).map_or(&[][..], |part| part);
        let positions: Vec<AnswerRow<'_>> =
            part.iter().map(|&(answer, row)| (&group.answers[answer], row)).collect();
        let (loss, grads) = self.network.gradients(&self.frozen, &positions)?;
        let count = positions.len();
        self.group = Some(group);
        Ok((count, loss, grads))
    }

    fn read_group(&self, store: &ShardStore, place: BatchPlace) -> Result<Group> {
        let BatchPlace { epoch, group: number, parts, .. } = place;
        let order = order(self.data.answers.len(), self.seed, epoch);
        let members = order[number * GROUP..].iter().take(GROUP);
        let answers = members
            .map(|&at| store.read(&self.data.answers[at]))
            .collect::<Result<Vec<CollectedAnswer>>>()?;
        let positions = |(at, answer): (usize, &CollectedAnswer)| -> Vec<(usize, usize)> {
            (0..answer.positions()).map(|row| (at, row)).collect()
        };
        let parts = if self.recipe.kind.reads_text() {
            let whole: Vec<Vec<(usize, usize)>> = answers.iter().enumerate().map(positions).collect();
            whole.chunks(answers.len().div_ceil(parts)).map(<[_]>::concat).collect()
        } else {
            let mut positions: Vec<_> = answers.iter().enumerate().flat_map(positions).collect();
            positions.shuffle(&mut generator(self.seed, 2, epoch << 24 | number));
            positions.chunks(positions.len().div_ceil(parts).max(1)).map(<[_]>::to_vec).collect()
        };
        Ok(Group { epoch, number, answers, parts })
    }

    /// Writes the checkpoint next to its place and renames it.
    ///
    /// # Errors
    /// If it cannot be written. The one before is intact.
    pub fn save(&mut self) -> Result<()> {
        let Standard { mean, deviation } = &self.frozen.standard;
        let fixed = FixedValues {
            vectors: [mean.clone(), deviation.clone()],
            tokens: self.frozen.vocabulary.clone(),
        };
        let state = SavedState { progress: self.fit.progress.clone(), run: self.run.clone() };
        let names = self.recipe.kind.names(self.recipe.depth);
        self.fit.save(&state, self.network.vars(), &names, fixed)
    }
}

/// Returns the identity of a fit. Equal ones have equal weights.
fn digest(target: &TrainingTarget, data: &TrainingSet, recipe: &Recipe, seed: u64) -> Result<String> {
    // Neither changes the weights.
    let recipe = Recipe { checkpoint_every: Duration::ZERO, parallel: 0, prompts: None, ..recipe.clone() };
    let answers: Vec<(u32, usize)> = data.answers.iter().map(|entry| (entry.job(), entry.rows())).collect();
    let mut hash = Sha256::new();
    hash.update(format!("{} {recipe:?} {seed} {answers:?}", target.fingerprint()?));
    Ok(hex(&hash.finalize()))
}

/// Returns all batches in their order.
fn plan(data: &TrainingSet, recipe: &Recipe, seed: u64) -> Vec<BatchPlace> {
    let mut batches = Vec::new();
    for epoch in 0..recipe.epochs {
        for (group, members) in order(data.answers.len(), seed, epoch).chunks(GROUP).enumerate() {
            let positions: usize = members.iter().map(|&at| data.answers[at].positions()).sum();
            let parts = (positions as f64 / recipe.batch.max(1) as f64).round().max(1.0) as usize;
            // Rounding up the size of a part may leave fewer parts.
            let units = if recipe.kind.reads_text() { members.len() } else { positions };
            let parts = units.div_ceil(units.div_ceil(parts).max(1)).max(1);
            batches.extend((0..parts).map(|part| BatchPlace { epoch, group, part, parts }));
        }
    }
    batches
}

/// Returns the most frequent tokens of the answers, filled up with the first of the vocabulary, ascending.
fn shortlist(
    target: &TrainingTarget,
    store: &ShardStore,
    data: &TrainingSet,
    recipe: &Recipe,
    paused: &dyn Fn() -> bool,
) -> Result<Vec<TokenId>> {
    let mut counts = vec![0u64; target.rows.n_vocab];
    for entry in &data.answers {
        check_paused(paused)?;
        for token in store.next(entry)? {
            counts[token as usize] += 1;
        }
    }
    let mut tokens: Vec<TokenId> = (0..counts.len() as TokenId).collect();
    tokens.sort_by_key(|&token| (std::cmp::Reverse(counts[token as usize]), token));
    tokens.truncate(recipe.shortlist.max(1));
    tokens.sort_unstable();
    Ok(tokens)
}
