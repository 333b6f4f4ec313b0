//! The part of a fit that heads and draft models share: optimiser, best weights, progress and the time of the next
//! checkpoint. A fit that is resumed continues exactly.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use candle_core::{Tensor, Var};
use hunch_core::token::TokenId;
use hunch_error::Result;
use serde::{Deserialize, Serialize};

use super::acceptance::{Acceptance, DraftAcceptance};
use super::adam::AdamW;
use super::checkpoint::{Checkpoint, copies};
use super::schedule::{is_measured_after, learning_rate, mean_loss};

/// Held-out acceptance by which weights are compared.
pub trait Score {
    /// Returns the figure that is higher for better weights.
    fn score(&self) -> f64;
}

impl Score for Acceptance {
    fn score(&self) -> f64 {
        self.mean()
    }
}

impl Score for DraftAcceptance {
    fn score(&self) -> f64 {
        self.tokens_a_pass()
    }
}

/// Progress of a fit, saved with its tensors.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FitProgress<A> {
    /// Identity of models, data, settings and seed. Equal ones have equal weights.
    pub digest: String,
    /// Steps taken.
    pub step: usize,
    /// Held-out acceptance when it was last measured.
    pub latest: A,
    /// Highest held-out acceptance.
    pub best: A,
    /// Mean loss of the last steps, in nats.
    pub loss: f64,
    /// Acceptance after `step` is still to be measured, because the run was paused there.
    #[serde(default)]
    pub due: bool,
}

/// Learning rate, and intervals of measurements and checkpoints.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Highest learning rate.
    pub learning_rate: f64,
    /// Steps until the learning rate is at its highest.
    pub warm_up: usize,
    /// Measurements of acceptance in a fit.
    pub evaluations: usize,
    /// Time between two checkpoints.
    pub checkpoint_every: Duration,
}

/// Values that a checkpoint has in addition to the tensors in training.
pub struct FixedValues {
    /// Mean and deviation of the inputs.
    pub vectors: [Vec<f32>; 2],
    /// Tokens that are scored.
    pub tokens: Vec<TokenId>,
}

/// Tensors in training, without the network that they belong to.
pub struct CheckpointedFit<A> {
    /// Progress so far.
    pub progress: FitProgress<A>,
    pace: Pace,
    adam: AdamW,
    /// Weights with the highest held-out acceptance.
    best: Vec<Tensor>,
    path: PathBuf,
    saved: Instant,
}

impl<A: Clone + Score> CheckpointedFit<A> {
    /// Starts a fit of these tensors. Its checkpoint will be at `path`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn start(progress: FitProgress<A>, vars: &[Var], path: PathBuf, pace: Pace) -> Result<Self> {
        Ok(Self::resume(progress, AdamW::new(vars)?.moments, copies(vars)?, path, pace))
    }

    /// Continues a fit from the values of its checkpoint.
    pub fn resume(
        progress: FitProgress<A>,
        moments: Vec<(Tensor, Tensor)>,
        best: Vec<Tensor>,
        path: PathBuf,
        pace: Pace,
    ) -> Self {
        let adam = AdamW { moments, steps: progress.step };
        Self { progress, pace, adam, best, path, saved: Instant::now() }
    }

    /// Takes a gradient step of `total`. Without gradients, the weights stay and the step counts.
    ///
    /// # Errors
    /// If the device fails.
    pub fn step(
        &mut self,
        vars: &[Var],
        grads: Option<&[Option<Tensor>]>,
        loss: f64,
        total: usize,
    ) -> Result<()> {
        let Self { progress, pace, adam, .. } = self;
        if let Some(grads) = grads {
            let rate = learning_rate(pace.learning_rate, progress.step, total, pace.warm_up);
            adam.step(vars, grads, rate)?;
        }
        progress.loss = mean_loss(progress.loss, progress.step, loss);
        progress.step += 1;
        progress.due = is_measured_after(progress.step, total, pace.evaluations);
        Ok(())
    }

    /// Records the acceptance that was due, and keeps the weights if they are the best.
    ///
    /// # Errors
    /// If the device fails.
    pub fn record(&mut self, latest: A, vars: &[Var]) -> Result<()> {
        if latest.score() > self.progress.best.score() {
            (self.progress.best, self.best) = (latest.clone(), copies(vars)?);
        }
        (self.progress.latest, self.progress.due) = (latest, false);
        Ok(())
    }

    /// Returns the weights with the highest held-out acceptance.
    pub fn best(&self) -> &[Tensor] {
        &self.best
    }

    /// Returns the path of the checkpoint.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether a checkpoint is to be written: in intervals, and after the last step of `total`.
    pub fn is_checkpoint_due(&self, total: usize) -> bool {
        self.progress.step == total || self.saved.elapsed() >= self.pace.checkpoint_every
    }

    /// Writes the checkpoint with the state of the run, which includes the progress.
    ///
    /// # Errors
    /// If it cannot be written. The one before is intact.
    pub fn save(
        &mut self,
        state: &impl Serialize,
        vars: &[Var],
        names: &[String],
        fixed: FixedValues,
    ) -> Result<()> {
        self.saved = Instant::now();
        let checkpoint = Checkpoint {
            state,
            vectors: fixed.vectors,
            tokens: fixed.tokens,
            weights: vars.iter().map(|var| var.as_tensor().clone()).collect(),
            moments: self.adam.moments.clone(),
            best: self.best.clone(),
        };
        checkpoint.write(&self.path, names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn acceptance(greedy: f64) -> Acceptance {
        Acceptance { greedy, greedy_positions: 1, ..Acceptance::default() }
    }

    #[test]
    fn keeps_weights_of_highest_acceptance() {
        let vars = [Var::from_tensor(&Tensor::new(&[0f32], &Device::Cpu).unwrap()).unwrap()];
        let start = acceptance(0.5);
        let progress =
            FitProgress { digest: String::new(), step: 0, latest: start, best: start, loss: 0.0, due: false };
        let pace = Pace {
            learning_rate: 0.1,
            warm_up: 1,
            evaluations: 4,
            checkpoint_every: Duration::from_secs(60),
        };
        let mut fit = CheckpointedFit::start(progress, &vars, "unused".into(), pace).unwrap();
        let gradient = [Some(Tensor::new(&[1f32], &Device::Cpu).unwrap())];
        let mut weights = vec![0.0];
        for (step, greedy) in [0.4, 0.7, 0.6, 0.7].into_iter().enumerate() {
            fit.step(&vars, Some(&gradient), 2.0 - step as f64, 4).unwrap();
            assert!(fit.progress.due && fit.progress.step == step + 1);
            fit.record(acceptance(greedy), &vars).unwrap();
            weights.push(vars[0].to_vec1::<f32>().unwrap()[0]);
        }
        assert!(weights.is_sorted_by(|a, b| a > b), "{weights:?}");
        assert_eq!(fit.best()[0].to_vec1::<f32>().unwrap(), [weights[2]]);
        assert_eq!((fit.progress.best.greedy, fit.progress.latest.greedy), (0.7, 0.7));
        assert!(fit.is_checkpoint_due(4) && !fit.is_checkpoint_due(5) && fit.progress.loss < 2.0);
    }
}
