//! Fitting: ridge regression, then AdamW steps with warm-up and cosine, with a checkpoint that continues exactly.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use hunch_core::sample::unit;
use hunch_core::token::TokenId;
use hunch_error::{Error, Refusal, Result};
use hunch_model::atomic_file;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::acceptance::{self, Acceptance};
use super::adam::AdamW;
use super::features::{self, Standard};
use super::network::{self, NAMES, Network};
use super::ridge::Ridge;
use super::shards::{CollectedAnswer, ShardStore, TrainingSet};
use super::{Recipe, TrainingTarget, check_paused};

/// Answers whose positions are shuffled together.
const GROUP: usize = 32;
/// Steps until the learning rate is at its highest.
const WARM_UP: usize = 30;
/// Learning rate at the end, as a share of the highest.
const LAST_RATE: f64 = 0.05;
/// Rows of a product of the ridge regression.
const RIDGE_ROWS: usize = 2_048;
/// Most positions of the ridge regression. More bring nothing.
const RIDGE_POSITIONS: usize = 200_000;
/// Most inputs of the ridge regression. For wider targets it reads the final state and the embedding only.
const RIDGE_INPUTS: usize = 8_192;
const CHECKPOINT: &str = "checkpoint.safetensors";
/// Metadata key of [`State`] in a checkpoint.
const STATE: &str = "state";

/// One gradient step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FitStep {
    /// Positions of the batch.
    pub positions: usize,
    /// Mean loss of the last steps, in nats.
    pub loss: f64,
    /// Held-out acceptance when it was last measured.
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
    start: Acceptance,
    latest: Acceptance,
    best: Acceptance,
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
    target: &'a TrainingTarget,
    recipe: Recipe,
    seed: u64,
    data: TrainingSet,
    batches: Vec<BatchPlace>,
    vocabulary: Vec<TokenId>,
    standard: Standard,
    network: Network,
    adam: AdamW,
    /// Weights with the highest held-out acceptance.
    best: Vec<Tensor>,
    state: State,
    group: Option<Group>,
    path: PathBuf,
    saved: Instant,
}

/// Answers of a group and their positions, shuffled.
struct Group {
    epoch: usize,
    number: usize,
    answers: Vec<CollectedAnswer>,
    positions: Vec<(usize, usize)>,
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
        let path = store.folder().join(CHECKPOINT);
        if let Some(saved) = Saved::read(&path, &digest) {
            let head = head_rows(target, &saved.vocabulary)?;
            let device = target.device();
            let tensors = |values: Vec<Tensor>| -> Result<Vec<Tensor>> {
                values.iter().map(|value| Ok(value.to_device(device)?)).collect()
            };
            let (first, second) = (tensors(saved.first)?, tensors(saved.second)?);
            return Ok(Self {
                network: build(target, tensors(saved.weights)?, &saved.standard, head)?,
                adam: AdamW { moments: first.into_iter().zip(second).collect(), steps: saved.state.step },
                best: tensors(saved.best)?,
                target,
                recipe: recipe.clone(),
                seed,
                data,
                batches,
                vocabulary: saved.vocabulary,
                standard: saved.standard,
                state: saved.state,
                group: None,
                path,
                saved: Instant::now(),
            });
        }
        let vocabulary = shortlist(target, store, &data, recipe, paused)?;
        let standard = Standard::of(target, store, &data)?;
        let weights = initial(target, store, &data, recipe, &standard, seed, paused)?;
        let head = head_rows(target, &vocabulary)?;
        let network = build(target, weights, &standard, head)?;
        let start = acceptance::network(target, store, recipe, (&network, &standard), &vocabulary, paused)?;
        let state = State {
            digest,
            step: 0,
            total: batches.len(),
            limited: false,
            seconds: 0.0,
            start,
            latest: start,
            best: start,
            loss: 0.0,
            due: false,
        };
        let mut fit = Self {
            adam: AdamW::new(network.vars())?,
            best: copies(&network)?,
            target,
            recipe: recipe.clone(),
            seed,
            data,
            batches,
            vocabulary,
            standard,
            network,
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
        let (inputs, states) = self.batch(store, self.batches[0])?;
        self.network.gradients(&inputs, &states)?;
        let begun = Instant::now();
        self.network.gradients(&inputs, &states)?;
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
        let (inputs, states) = self.batch(store, self.batches[step])?;
        let (loss, grads) = self.network.gradients(&inputs, &states)?;
        if !loss.is_finite() {
            return Err(Refusal::StatesNotFinite.into());
        }
        let warm_up = ((step + 1) as f64 / WARM_UP as f64).min(1.0);
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * step as f64 / total as f64).cos());
        let rate = self.recipe.learning_rate * warm_up * (LAST_RATE + (1.0 - LAST_RATE) * cosine);
        self.adam.step(self.network.vars(), &grads, rate)?;
        self.state.step += 1;
        self.state.loss = if step == 0 { loss } else { 0.9 * self.state.loss + 0.1 * loss };
        let every = (total / self.recipe.evaluations.max(1)).max(1);
        let done = self.state.step == total;
        self.state.due = done || self.state.step.is_multiple_of(every);
        self.evaluate(store, paused)?;
        self.state.seconds += begun.elapsed().as_secs_f64();
        if done || self.saved.elapsed() >= self.recipe.checkpoint_every {
            self.save()?;
        }
        let &State { loss, latest, .. } = &self.state;
        Ok(Some(FitStep { positions: inputs.dims()[0], loss, acceptance: latest }))
    }

    /// Measures held-out acceptance if it is due, and keeps the weights if they are the best.
    fn evaluate(&mut self, store: &ShardStore, paused: &dyn Fn() -> bool) -> Result<()> {
        if !self.state.due {
            return Ok(());
        }
        let parts = (&self.network, &self.standard);
        match acceptance::network(self.target, store, &self.recipe, parts, &self.vocabulary, paused) {
            Ok(latest) => (self.state.latest, self.state.due) = (latest, false),
            Err(error) => {
                self.save()?;
                return Err(error);
            }
        }
        if self.state.latest.mean() > self.state.best.mean() {
            (self.state.best, self.best) = (self.state.latest, copies(&self.network)?);
        }
        Ok(())
    }

    /// Returns the steps taken, and all of them.
    pub fn position(&self) -> (usize, usize) {
        (self.state.step, self.state.total)
    }

    /// Returns the acceptance before the first step.
    pub fn start(&self) -> Acceptance {
        self.state.start
    }

    /// Returns the held-out acceptance of the best weights.
    pub fn best_acceptance(&self) -> Acceptance {
        self.state.best
    }

    /// Returns the weights with the highest held-out acceptance so far, in the order of [`NAMES`].
    pub fn best(&self) -> &[Tensor] {
        &self.best
    }

    /// Returns the tokens that the head scores, ascending.
    pub fn vocabulary(&self) -> &[TokenId] {
        &self.vocabulary
    }

    /// Returns mean and deviation of the final state.
    pub fn standard(&self) -> &Standard {
        &self.standard
    }

    /// Returns the tokens of the answers that are trained on.
    pub fn training_tokens(&self) -> usize {
        self.data.tokens()
    }

    /// Returns inputs and true states of a batch.
    fn batch(&mut self, store: &ShardStore, place: BatchPlace) -> Result<(Tensor, Tensor)> {
        let cached = self.group.take().filter(|g| (g.epoch, g.number) == (place.epoch, place.group));
        let group = match cached {
            Some(group) => group,
            None => self.read_group(store, place)?,
        };
        let size = group.positions.len().div_ceil(place.parts);
        let part = group.positions.chunks(size.max(1)).nth(place.part).unwrap_or(&[]);
        let positions: Vec<_> = part.iter().map(|&(answer, row)| (&group.answers[answer], row)).collect();
        let batch = features::batch(self.target, &self.standard, &positions)?;
        self.group = Some(group);
        Ok(batch)
    }

    fn read_group(&self, store: &ShardStore, place: BatchPlace) -> Result<Group> {
        let order = order(self.data.answers.len(), self.seed, place.epoch);
        let members = order[place.group * GROUP..].iter().take(GROUP);
        let answers = members
            .map(|&at| store.read(&self.data.answers[at]))
            .collect::<Result<Vec<CollectedAnswer>>>()?;
        let positions = |(at, answer): (usize, &CollectedAnswer)| -> Vec<(usize, usize)> {
            (0..answer.next.len() - 1).map(|row| (at, row)).collect()
        };
        let mut positions: Vec<_> = answers.iter().enumerate().flat_map(positions).collect();
        positions.shuffle(&mut generator(self.seed, 2, place.epoch << 24 | place.group));
        Ok(Group { epoch: place.epoch, number: place.group, answers, positions })
    }

    /// Writes the checkpoint next to its place and renames it.
    ///
    /// # Errors
    /// If it cannot be written. The one before is intact.
    pub fn save(&mut self) -> Result<()> {
        self.saved = Instant::now();
        let bytes = Saved::encode(self)?;
        atomic_file::write(&self.path, &bytes)
    }
}

/// Returns the identity of a fit. Equal ones have equal weights.
fn digest(target: &TrainingTarget, data: &TrainingSet, recipe: &Recipe, seed: u64) -> Result<String> {
    // Neither changes the weights.
    let recipe = Recipe { checkpoint_every: Duration::ZERO, parallel: 0, prompts: None, ..recipe.clone() };
    let answers: Vec<(u32, usize)> = data.answers.iter().map(|entry| (entry.job(), entry.rows())).collect();
    let mut hash = Sha256::new();
    hash.update(format!("{} {recipe:?} {seed} {answers:?}", target.fingerprint()?));
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns random numbers for a purpose and a number.
fn generator(seed: u64, purpose: u64, number: usize) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // Answers use the streams below 2^32.
    rng.set_stream(purpose << 48 | number as u64);
    rng
}

/// Returns the order of the answers in an epoch.
fn order(answers: usize, seed: u64, epoch: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..answers).collect();
    order.shuffle(&mut generator(seed, 1, epoch));
    order
}

/// Returns all batches in their order.
fn plan(data: &TrainingSet, recipe: &Recipe, seed: u64) -> Vec<BatchPlace> {
    let mut batches = Vec::new();
    for epoch in 0..recipe.epochs {
        for (group, members) in order(data.answers.len(), seed, epoch).chunks(GROUP).enumerate() {
            let positions: usize = members.iter().map(|&at| data.answers[at].positions()).sum();
            let parts = (positions as f64 / recipe.batch.max(1) as f64).round().max(1.0) as usize;
            // Rounding up the size of a part may leave fewer parts.
            let parts = positions.div_ceil(positions.div_ceil(parts).max(1)).max(1);
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

fn head_rows(target: &TrainingTarget, vocabulary: &[TokenId]) -> Result<Tensor> {
    let rows = target.rows.head_rows(vocabulary)?;
    Ok(network::tensor(rows, &[vocabulary.len(), target.rows.n_embd], target.device())?)
}

fn build(
    target: &TrainingTarget,
    weights: Vec<Tensor>,
    standard: &Standard,
    head: Tensor,
) -> Result<Network> {
    let vector = |values: &[f32]| network::tensor(values.to_vec(), &[values.len()], target.device());
    let (scale, shift) = (vector(&standard.deviation)?, vector(&standard.mean)?);
    Ok(Network::new(weights, scale, shift, head)?)
}

fn copies(network: &Network) -> Result<Vec<Tensor>> {
    network.vars().iter().map(|var| Ok(var.as_tensor().copy()?.detach())).collect()
}

/// Returns the weights before the first step: the ridge regression, and a feed-forward block that adds nothing.
fn initial(
    target: &TrainingTarget,
    store: &ShardStore,
    data: &TrainingSet,
    recipe: &Recipe,
    standard: &Standard,
    seed: u64,
    paused: &dyn Fn() -> bool,
) -> Result<Vec<Tensor>> {
    let (n, device) = (target.rows.n_embd, target.device());
    let inputs = target.inputs() * n;
    // Columns that the regression reads. The others begin at 0.
    let wide = inputs >= RIDGE_INPUTS;
    let read = if wide { [0..n, inputs - n..inputs] } else { [0..n, n..inputs] };
    let mut ridge = Ridge::new();
    let mut add = |answers: &[CollectedAnswer]| -> Result<()> {
        let rows = |answer| (0..CollectedAnswer::positions(answer)).map(move |row| (answer, row));
        let positions: Vec<(&CollectedAnswer, usize)> = answers.iter().flat_map(rows).collect();
        let (x, states) = features::batch(target, standard, &positions)?;
        let (mean, deviation) = (vector(&standard.mean, device)?, vector(&standard.deviation, device)?);
        let y = states.broadcast_sub(&mean)?.broadcast_div(&deviation)?;
        let columns = read.iter().map(|range| x.narrow(1, range.start, range.len()));
        let mut columns = columns.collect::<candle_core::Result<Vec<_>>>()?;
        columns.push(Tensor::ones((positions.len(), 1), DType::F32, device)?);
        ridge.add(&Tensor::cat(&columns, 1)?, &y)
    };
    let (mut waiting, mut rows, mut all) = (Vec::new(), 0, 0);
    for entry in &data.answers {
        rows += entry.positions();
        all += entry.positions();
        waiting.push(store.read(entry)?);
        check_paused(paused)?;
        if rows >= RIDGE_ROWS {
            add(&waiting)?;
            waiting.clear();
            rows = 0;
        }
        if all >= RIDGE_POSITIONS {
            break;
        }
    }
    if !waiting.is_empty() {
        add(&waiting)?;
    }
    let solved = ridge.solve(recipe.ridge, paused).map_err(|error| match error {
        Error::Stopped => error,
        _ => Refusal::StatesNotFinite.into(),
    })?;
    let solved = solved.to_vec2::<f32>()?;
    let (bias, solved) = solved.split_last().ok_or_else(|| Error::Internal("an empty regression".into()))?;
    let mut fc = vec![0.0; n * inputs];
    for (column, weights) in read.into_iter().flatten().zip(solved) {
        weights.iter().enumerate().for_each(|(out, weight)| fc[out * inputs + column] = *weight);
    }
    // Four thirds of the width, in whole blocks of 8-bit weights.
    let ff = recipe.feed_forward.unwrap_or((n * 4 / 3).next_multiple_of(32));
    let mut rng = generator(seed, 3, 0);
    let spread = (3.0 / n as f64).sqrt();
    let mut random = |count: usize| -> Vec<f32> {
        (0..count).map(|_| ((2.0 * unit(&mut rng) - 1.0) * spread) as f32).collect()
    };
    let tensor = |values, shape: &[usize]| network::tensor(values, shape, device);
    Ok(vec![
        tensor(fc, &[n, inputs])?,
        tensor(bias.clone(), &[n])?,
        tensor(vec![1.0; n], &[n])?,
        tensor(random(ff * n), &[ff, n])?,
        tensor(random(ff * n), &[ff, n])?,
        tensor(vec![0.0; n * ff], &[n, ff])?,
    ])
}

fn vector(values: &[f32], device: &Device) -> candle_core::Result<Tensor> {
    network::tensor(values.to_vec(), &[values.len()], device)
}

/// Contents of a checkpoint.
struct Saved {
    state: State,
    vocabulary: Vec<TokenId>,
    standard: Standard,
    weights: Vec<Tensor>,
    first: Vec<Tensor>,
    second: Vec<Tensor>,
    best: Vec<Tensor>,
}

impl Saved {
    /// Reads a checkpoint. `None` if there is none, it is damaged, or it belongs to other data.
    fn read(path: &Path, digest: &str) -> Option<Self> {
        let bytes = std::fs::read(path).ok()?;
        let (_, header) = SafeTensors::read_metadata(&bytes).ok()?;
        let state: State = serde_json::from_str(header.metadata().as_ref()?.get(STATE)?).ok()?;
        if state.digest != digest {
            return None;
        }
        let file = SafeTensors::deserialize(&bytes).ok()?;
        let values = |name: &str| -> Option<(Vec<f32>, Vec<usize>)> {
            let view = file.tensor(name).ok().filter(|view| view.dtype() == Dtype::F32)?;
            let values = view.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            Some((values.collect(), view.shape().to_vec()))
        };
        let all = |kind: &str| -> Option<Vec<Tensor>> {
            let tensor = |name: &&str| {
                let (values, shape) = values(&format!("{kind}.{name}"))?;
                network::tensor(values, &shape, &Device::Cpu).ok()
            };
            NAMES.iter().map(tensor).collect()
        };
        let vocabulary = file.tensor("vocabulary").ok()?;
        Some(Self {
            vocabulary: vocabulary.data().as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect(),
            standard: Standard { mean: values("mean")?.0, deviation: values("deviation")?.0 },
            weights: all("weights")?,
            first: all("first")?,
            second: all("second")?,
            best: all("best")?,
            state,
        })
    }

    fn encode(fit: &FitRun<'_>) -> Result<Vec<u8>> {
        let internal = |error: &dyn std::fmt::Display| Error::Internal(error.to_string());
        let state = serde_json::to_string(&fit.state).map_err(|error| internal(&error))?;
        let mut tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
        let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
        for (at, name) in NAMES.iter().enumerate() {
            let (first, second) = &fit.adam.moments[at];
            let kinds = [
                ("weights", fit.network.vars()[at].as_tensor()),
                ("first", first),
                ("second", second),
                ("best", &fit.best[at]),
            ];
            for (kind, tensor) in kinds {
                let values = tensor.flatten_all()?.to_vec1::<f32>()?;
                tensors.push((format!("{kind}.{name}"), Dtype::F32, tensor.dims().to_vec(), floats(&values)));
            }
        }
        let Standard { mean, deviation } = &fit.standard;
        tensors.push(("mean".into(), Dtype::F32, vec![mean.len()], floats(mean)));
        tensors.push(("deviation".into(), Dtype::F32, vec![deviation.len()], floats(deviation)));
        let tokens = fit.vocabulary.iter().flat_map(|token| token.to_le_bytes()).collect();
        tensors.push(("vocabulary".into(), Dtype::U32, vec![fit.vocabulary.len()], tokens));
        let views = tensors.iter().map(|(name, dtype, shape, data)| {
            let view = TensorView::new(*dtype, shape.clone(), data).map_err(|error| internal(&error))?;
            Ok((name.as_str(), view))
        });
        let metadata = HashMap::from([(STATE.to_owned(), state)]);
        safetensors::serialize(views.collect::<Result<Vec<_>>>()?, Some(metadata)).map_err(|e| internal(&e))
    }
}
