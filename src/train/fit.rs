//! Fitting: ridge regression, then AdamW steps with warm-up and cosine, with a checkpoint that continues exactly.

use std::path::PathBuf;
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
use super::adam::AdamW;
use super::checkpoint::{Checkpoint, copies};
use super::features::{Frozen, Standard};
use super::network::Network;
use super::ops::gradients_of;
use super::prompt_rows::PromptRows;
use super::schedule::{is_measured_after, learning_rate, mean_loss, order};
use super::shards::{CollectedAnswer, Position, ShardStore, TrainingSet};
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

/// Progress of a fit, saved with its tensors.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct State {
    /// Identity of data, recipe and seed.
    digest: String,
    step: usize,
    total: usize,
    /// Set if `total` was cut to a time.
    limited: bool,
    /// Seconds of training so far.
    seconds: f64,
    start: DraftAcceptance,
    latest: DraftAcceptance,
    best: DraftAcceptance,
    loss: f64,
    /// Acceptance after `step` is still to be measured, because the run was paused there.
    #[serde(default)]
    due: bool,
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
    network: Box<dyn Network>,
    adam: AdamW,
    /// Weights with the highest held-out acceptance.
    best: Vec<Tensor>,
    /// Prompts of held-out answers, if the head reads the text before a row.
    prompts: Option<PromptRows>,
    state: State,
    group: Option<Group>,
    path: PathBuf,
    saved: Instant,
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
        let own = |state: &State| state.digest == digest;
        let mut prompts = kind.reads_text().then(|| PromptRows::of(target));
        if let Some(saved) = Checkpoint::<State>::read(&path, &names, target.device(), own) {
            let Checkpoint { state, vectors, tokens, weights, moments, best } = saved;
            let [mean, deviation] = vectors;
            let frozen = Frozen::new(target, tokens, Standard { mean, deviation })?;
            return Ok(Self {
                network: kind.network(&weights, &frozen, recipe.depth)?,
                adam: AdamW { moments, steps: state.step },
                best,
                frozen,
                recipe: recipe.clone(),
                seed,
                data,
                batches,
                prompts,
                state,
                group: None,
                path,
                saved: Instant::now(),
            });
        }
        let vocabulary = shortlist(target, store, &data, recipe, paused)?;
        let frozen = Frozen::new(target, vocabulary, Standard::of(target, store, &data)?)?;
        let weights = kind.start(&frozen, &StartData { store, data: &data, recipe, seed, paused })?;
        let network = kind.network(&weights, &frozen, recipe.depth)?;
        let start = acceptance::network(store, recipe, (&*network, &frozen), prompts.as_mut(), paused)?;
        let state = State {
            digest,
            step: 0,
            total: batches.len(),
            limited: false,
            seconds: 0.0,
            latest: start.clone(),
            best: start.clone(),
            start,
            loss: 0.0,
            due: false,
        };
        let mut fit = Self {
            adam: AdamW::new(network.vars())?,
            best: copies(network.vars())?,
            frozen,
            recipe: recipe.clone(),
            seed,
            data,
            batches,
            network,
            prompts,
            state,
            group: None,
            path,
            saved: Instant::now(),
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
        if self.state.limited || self.batches.is_empty() {
            return Ok(());
        }
        self.with_batch(store, self.batches[0])?;
        let begun = Instant::now();
        self.with_batch(store, self.batches[0])?;
        let fitting = (seconds / begun.elapsed().as_secs_f64().max(1e-6)) as usize;
        (self.state.total, self.state.limited) = (self.batches.len().min(fitting.max(1)), true);
        self.save()
    }

    /// Takes one gradient step. Returns `None` after the last.
    ///
    /// # Errors
    /// If a shard cannot be read, the device fails, or the checkpoint cannot be written. [`Error::Stopped`] if `paused`
    /// returns true while acceptance is measured. The step is saved then, and the next call measures first.
    pub fn step(&mut self, store: &ShardStore, paused: &dyn Fn() -> bool) -> Result<Option<FitStep>> {
        self.evaluate(store, paused)?;
        let &State { step, total, .. } = &self.state;
        if step >= total {
            return Ok(None);
        }
        let begun = Instant::now();
        let (positions, loss, grads) = self.with_batch(store, self.batches[step])?;
        if !loss.is_finite() {
            return Err(Refusal::StatesNotFinite.into());
        }
        let rate = learning_rate(self.recipe.learning_rate, step, total, WARM_UP);
        self.adam.step(self.network.vars(), &gradients_of(self.network.vars(), grads), rate)?;
        self.state.step += 1;
        self.state.loss = mean_loss(self.state.loss, step, loss);
        self.state.due = is_measured_after(self.state.step, total, self.recipe.evaluations);
        self.evaluate(store, paused)?;
        self.state.seconds += begun.elapsed().as_secs_f64();
        if self.state.step == total || self.saved.elapsed() >= self.recipe.checkpoint_every {
            self.save()?;
        }
        let State { loss, latest, .. } = &self.state;
        Ok(Some(FitStep { positions, loss: *loss, acceptance: latest.first }))
    }

    /// Measures held-out acceptance if it is due, and keeps the weights if they are the best.
    fn evaluate(&mut self, store: &ShardStore, paused: &dyn Fn() -> bool) -> Result<()> {
        if !self.state.due {
            return Ok(());
        }
        let network = (&*self.network, &self.frozen);
        match acceptance::network(store, &self.recipe, network, self.prompts.as_mut(), paused) {
            Ok(latest) => (self.state.latest, self.state.due) = (latest, false),
            Err(error) => {
                self.save()?;
                return Err(error);
            }
        }
        if self.state.latest.tokens_a_pass() > self.state.best.tokens_a_pass() {
            (self.state.best, self.best) = (self.state.latest.clone(), copies(self.network.vars())?);
        }
        Ok(())
    }

    /// Returns the steps taken, and all of them.
    pub fn position(&self) -> (usize, usize) {
        (self.state.step, self.state.total)
    }

    /// Returns the acceptance before the first step.
    pub fn start(&self) -> &DraftAcceptance {
        &self.state.start
    }

    /// Returns the held-out acceptance of the best weights.
    pub fn best_acceptance(&self) -> &DraftAcceptance {
        &self.state.best
    }

    /// Returns the weights with the highest held-out acceptance so far, in the order of
    /// [`HeadKind::names`](super::kind::HeadKind::names).
    pub fn best(&self) -> &[Tensor] {
        &self.best
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
        let positions: Vec<Position<'_>> =
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
        self.saved = Instant::now();
        let Standard { mean, deviation } = &self.frozen.standard;
        let checkpoint = Checkpoint {
            state: &self.state,
            vectors: [mean.clone(), deviation.clone()],
            tokens: self.frozen.vocabulary.clone(),
            weights: self.network.vars().iter().map(|var| var.as_tensor().clone()).collect(),
            moments: self.adam.moments.clone(),
            best: self.best.clone(),
        };
        checkpoint.write(&self.path, &self.recipe.kind.names(self.recipe.depth))
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
