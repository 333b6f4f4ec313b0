//! Steps of a distillation, with a checkpoint that continues exactly.

use std::path::Path;
use std::time::Duration;

use candle_core::Tensor;
use hunch_core::model::{LanguageModel, LogitRows, PassInput};
use hunch_core::sample::{Sampler, SamplingParams, draw, unit};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use hunch_model::hex;
use sha2::{Digest, Sha256};

use super::student::{Student, StudentCache};
use super::{DistilPlan, DistilRecipe, TextsOf};
use crate::train::acceptance::{self, Acceptance};
use crate::train::checkpoint::Checkpoint;
use crate::train::checkpointed::{CheckpointedFit, FitProgress, FixedValues, Pace};
use crate::train::ops::{gradients_of, tensor_of_rows};
use crate::train::schedule::order;
use crate::train::shards::{CollectedAnswer, ShardStore};
use crate::train::start::generator;
use crate::train::{Recipe, TrainingTarget};

/// Steps until the learning rate is at its highest.
const WARM_UP: usize = 10;
/// Rows of a pass of the target.
const ROWS: usize = 64;

/// Target and texts.
#[derive(Clone, Copy)]
pub struct Data<'a> {
    /// The target.
    pub target: &'a TrainingTarget,
    /// All texts, of which held-out ones measure acceptance.
    pub store: &'a ShardStore,
    /// Texts to learn on.
    pub texts: &'a [CollectedAnswer],
    /// Size of texts that both models can read.
    pub limits: TextLimits,
}

/// Vocabulary and context that target and draft share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextLimits {
    /// Tokens that both models have. One may be padded.
    pub n_vocab: usize,
    /// Longest text, in tokens: what both models can read, and what the predicted memory counts with.
    pub context: usize,
}

impl TextLimits {
    /// Returns whether both models can read a text.
    pub fn allow(self, text: &CollectedAnswer) -> bool {
        let mut tokens = text.prompt_ids.iter().chain(&text.next);
        text.prompt_ids.len() + text.next.len() <= self.context
            && tokens.all(|&token| (token as usize) < self.n_vocab)
    }
}

/// A draft in training.
pub struct DistilFit<'a> {
    data: Data<'a>,
    student: Student,
    teacher: Box<dyn LanguageModel>,
    recipe: DistilRecipe,
    seed: u64,
    /// Texts of each step, by index.
    batches: Vec<Vec<usize>>,
    fit: CheckpointedFit<Acceptance>,
}

impl<'a> DistilFit<'a> {
    /// Continues from the checkpoint of the same models, texts, recipe and seed in a folder. Without one, measures the draft
    /// as it is.
    ///
    /// # Errors
    /// If a file cannot be read or written, or memory is short. [`Error::Stopped`] if `paused` returns true.
    pub fn open(
        data: Data<'a>,
        student: Student,
        plan: &DistilPlan<'_>,
        folder: &Path,
        paused: &dyn Fn() -> bool,
    ) -> Result<Self> {
        let (recipe, seed) = (plan.recipe.clone(), plan.seed);
        let digest = digest(&data, plan)?;
        // Each setting has a checkpoint of its own, so that no run ends another.
        let path = folder.join(format!("checkpoint-{}.safetensors", &digest[..16]));
        let teacher = data.target.decoder.fork();
        let batches = batches(data.texts.len(), &recipe, seed);
        let own = |progress: &FitProgress<Acceptance>| progress.digest == digest;
        let pace = Pace {
            learning_rate: recipe.learning_rate,
            warm_up: WARM_UP,
            evaluations: recipe.evaluations,
            checkpoint_every: recipe.checkpoint_every,
        };
        let saved = Checkpoint::read(&path, student.names(), student.device(), own);
        let is_new = saved.is_none();
        let fit = match saved {
            Some(Checkpoint { state, weights, moments, best, .. }) => {
                for (var, value) in student.vars().iter().zip(&weights) {
                    var.set(value)?;
                }
                CheckpointedFit::resume(state, moments, best, path, pace)
            }
            None => {
                let (latest, best) = (Acceptance::default(), Acceptance::default());
                let progress = FitProgress { digest, step: 0, latest, best, loss: 0.0, due: true };
                CheckpointedFit::start(progress, student.vars(), path, pace)?
            }
        };
        let mut fit = Self { data, student, teacher, recipe, seed, batches, fit };
        if is_new {
            fit.evaluate(paused)?;
            fit.save()?;
        }
        Ok(fit)
    }

    /// Returns the steps taken, and all of them.
    pub fn position(&self) -> (usize, usize) {
        (self.fit.progress.step, self.batches.len())
    }

    /// Takes one gradient step. Returns mean loss and the latest acceptance, or `None` after the last step.
    ///
    /// # Errors
    /// If a device fails or the checkpoint cannot be written. [`Error::Stopped`] if `paused` returns true; the step is
    /// taken again then, with the same result.
    pub fn step(&mut self, paused: &dyn Fn() -> bool) -> Result<Option<(f64, Acceptance)>> {
        self.evaluate(paused)?;
        let (step, total) = self.position();
        let Some(batch) = self.batches.get(step).cloned() else { return Ok(None) };
        let (mut loss, mut sum) = (0.0, None);
        for (at, &index) in batch.iter().enumerate() {
            if paused() {
                self.save()?;
                return Err(Error::Stopped);
            }
            let is_own = match self.recipe.texts {
                TextsOf::Target => false,
                TextsOf::Draft => true,
                TextsOf::Both => at % 2 == 1,
            };
            let text = &self.data.texts[index];
            let own = if is_own { Some(self.write_answer(text, (step, at))?) } else { None };
            let (part, grads) = self.gradients(own.as_ref().unwrap_or(text), batch.len())?;
            loss += part / batch.len() as f64;
            sum = Some(match sum {
                None => grads,
                Some(before) => add(before, grads)?,
            });
        }
        if !loss.is_finite() {
            return Err(diverged(step));
        }
        self.fit.step(self.student.vars(), sum.as_deref(), loss, total)?;
        self.evaluate(paused)?;
        if self.fit.is_checkpoint_due(total) {
            self.save()?;
        }
        Ok(Some((self.fit.progress.loss, self.fit.progress.latest)))
    }

    /// Measures held-out acceptance if it is due, and keeps the weights if they are the best.
    fn evaluate(&mut self, paused: &dyn Fn() -> bool) -> Result<()> {
        if !self.fit.progress.due {
            return Ok(());
        }
        let (student, step, Data { store, limits, .. }) = (&self.student, self.fit.progress.step, self.data);
        let measured = measure(store, &self.recipe, limits, paused, &mut |text| {
            let states = answer_states(student, text)?;
            let rows = student.logits(&states, limits.n_vocab)?.to_vec2::<f32>()?;
            if rows.iter().flatten().all(|logit| logit.is_finite()) { Ok(rows) } else { Err(diverged(step)) }
        });
        match measured {
            Ok(latest) => self.fit.record(latest, self.student.vars()),
            Err(error) => {
                self.save()?;
                Err(error)
            }
        }
    }

    /// Lets the draft answer a prompt, at temperature 1.
    fn write_answer(&self, text: &CollectedAnswer, (step, at): (usize, usize)) -> Result<CollectedAnswer> {
        let params = SamplingParams { temperature: 1.0, ..SamplingParams::unfiltered() };
        let (sampler, mut rng) = (Sampler::new(params)?, generator(self.seed, 4, step << 16 | at));
        let ends = self.data.target.tokenizer.end_tokens();
        let TextLimits { n_vocab, context } = self.data.limits;
        let room = context.saturating_sub(text.prompt_ids.len());
        let mut cache = StudentCache::default();
        let (mut feed, mut answer): (Vec<TokenId>, Vec<TokenId>) = (text.prompt_ids.clone(), Vec::new());
        while answer.len() < self.recipe.own_tokens.min(room) {
            let states = self.student.forward(&feed, &mut cache)?;
            let last = states.narrow(0, states.dim(0)? - 1, 1)?;
            cache.detach();
            let logits = self.student.logits(&last, n_vocab)?.flatten_all()?.to_vec1::<f32>()?;
            if logits.iter().any(|logit| !logit.is_finite()) {
                return Err(diverged(step));
            }
            let token = draw(&sampler.distribution(&logits, &[])?, unit(&mut rng));
            answer.push(token);
            if ends.contains(&token) {
                break;
            }
            feed = vec![token];
        }
        Ok(CollectedAnswer { next: answer, ..text.clone() })
    }

    /// Returns the loss of a text, and the gradients of its share of a batch.
    fn gradients(&mut self, text: &CollectedAnswer, share: usize) -> Result<(f64, Vec<Option<Tensor>>)> {
        let (n_vocab, divergence) = (self.data.limits.n_vocab, self.recipe.divergence);
        let target: Vec<f32> = answer_logits(&mut *self.teacher, text)?
            .iter()
            .flat_map(|row| row[..n_vocab].iter().copied())
            .collect();
        let states = answer_states(&self.student, text)?;
        let target = tensor_of_rows(target, n_vocab, self.student.device())?;
        // The output head is frozen, so its product stays out of autograd.
        let logits = self.student.logits(&states.detach(), n_vocab)?;
        let (loss, gradient) = divergence.of(&target, &logits)?;
        let gradient = (gradient.matmul(&self.student.head_rows(n_vocab)?)? / share as f64)?;
        let grads = (states * gradient.detach())?.sum_all()?.backward()?;
        Ok((loss, gradients_of(self.student.vars(), grads)))
    }

    /// Writes the best weights as a copy of the draft's file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        self.student.file().write(path, self.student.merged(self.fit.best()))
    }

    /// Removes the checkpoint of a run that took all steps. One that stays does no harm.
    pub fn remove_checkpoint(&self) {
        let (step, total) = self.position();
        if step == total {
            let _ = std::fs::remove_file(self.fit.path());
        }
    }

    /// Writes the checkpoint.
    ///
    /// # Errors
    /// If it cannot be written. The one before is intact.
    pub fn save(&mut self) -> Result<()> {
        let fixed = FixedValues { vectors: [Vec::new(), Vec::new()], tokens: Vec::new() };
        let state = self.fit.progress.clone();
        self.fit.save(&state, self.student.vars(), self.student.names(), fixed)
    }
}

/// Adds gradients of the trained tensors.
fn add(sum: Vec<Option<Tensor>>, grads: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
    let add = |pair: (Option<Tensor>, Option<Tensor>)| {
        Ok(match pair {
            (Some(sum), Some(grad)) => Some((sum + grad)?),
            (sum, grad) => sum.or(grad),
        })
    };
    sum.into_iter().zip(grads).map(add).collect()
}

/// Returns the error for a loss or logits that are not finite.
fn diverged(step: usize) -> Error {
    Error::invalid(format!(
        "Training diverged at step {step}: the loss is not finite. No draft was written. Lower --learning-rate."
    ))
}

/// Returns the tokens that a model reads to predict an answer: all but the last.
fn tokens_read(text: &CollectedAnswer) -> Vec<TokenId> {
    [&text.prompt_ids[..], &text.next[..text.next.len().saturating_sub(1)]].concat()
}

/// Returns the draft's states that predict each token of an answer, `[tokens, n]`.
fn answer_states(student: &Student, text: &CollectedAnswer) -> Result<Tensor> {
    let states = student.forward(&tokens_read(text), &mut StudentCache::default())?;
    let rows = text.next.len();
    Ok(states.narrow(0, states.dim(0)? - rows, rows)?)
}

/// Returns a model's logits for each token of an answer, `[tokens][n_vocab]`.
///
/// # Errors
/// If the device fails.
pub fn answer_logits(model: &mut dyn LanguageModel, text: &CollectedAnswer) -> Result<Vec<Vec<f32>>> {
    let tokens = tokens_read(text);
    let (prompt, answer) = tokens.split_at(text.prompt_ids.len().saturating_sub(1));
    model.truncate(0)?;
    for chunk in prompt.chunks(ROWS) {
        model.forward(PassInput::chain(chunk, LogitRows::None))?;
    }
    let mut rows = Vec::new();
    for chunk in answer.chunks(ROWS) {
        let logits = model.forward(PassInput::chain(chunk, LogitRows::All))?.logits;
        rows.extend((0..logits.len()).map(|row| logits.row(row).to_vec()));
    }
    Ok(rows)
}

/// Measures the acceptance of drafted tokens on held-out answers that both models can read. `logits` returns those that
/// predict each token of an answer, `[tokens][n_vocab]`.
///
/// # Errors
/// As [`acceptance::draft`].
pub fn measure(
    store: &ShardStore,
    recipe: &DistilRecipe,
    limits: TextLimits,
    paused: &dyn Fn() -> bool,
    logits: &mut dyn FnMut(&CollectedAnswer) -> Result<Vec<Vec<f32>>>,
) -> Result<Acceptance> {
    acceptance::draft(store, &recipe.collect, limits.n_vocab, paused, &mut |text| {
        if !limits.allow(text) {
            return Ok(Vec::new());
        }
        let mut rows = logits(text)?;
        rows.iter_mut().for_each(|row| row.truncate(limits.n_vocab));
        Ok(rows)
    })
}

/// Returns the texts of each step, shuffled in every epoch.
fn batches(texts: usize, recipe: &DistilRecipe, seed: u64) -> Vec<Vec<usize>> {
    let mut batches = Vec::new();
    for epoch in 0..recipe.epochs {
        batches.extend(order(texts, seed, epoch).chunks(recipe.batch.max(1)).map(<[usize]>::to_vec));
    }
    batches
}

/// Returns the identity of a fit. Equal ones have equal weights.
fn digest(data: &Data<'_>, plan: &DistilPlan<'_>) -> Result<String> {
    let mut recipe = plan.recipe.clone();
    // Intervals of checkpoints do not change the weights, and the texts are hashed below.
    recipe.checkpoint_every = Duration::ZERO;
    recipe.collect = Recipe { held_out: recipe.collect.held_out, ..Recipe::default() };
    let draft = hunch_model::low_bit::fingerprint(plan.draft)?;
    let mut hash = Sha256::new();
    hash.update(format!("{} {draft} {recipe:?} {}", data.target.fingerprint()?, plan.seed));
    for text in data.texts {
        hash.update(format!("{:?} {:?}", text.prompt_ids, text.next));
    }
    Ok(hex(&hash.finalize()))
}
