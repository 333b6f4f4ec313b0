//! Inputs of heads from collected answers: which numbers stand where, how they are scaled, and the parts of the target
//! that stay as they are.

use candle_core::Tensor;
use hunch_core::token::TokenId;
use hunch_error::Result;
use hunch_model::spec::LogitScaling;

use super::ops;
use super::shards::{AnswerRow, CollectedAnswer, ShardStore, TrainingSet};
use super::target::TrainingTarget;

/// Rows that mean and deviation are estimated from.
const SAMPLE: usize = 20_000;
/// Smallest deviation, so that a constant dimension is not blown up.
const LEAST: f64 = 1e-3;

/// Mean and deviation of each dimension of the target's states.
#[derive(Clone, Debug, PartialEq)]
pub struct Standard {
    /// Mean of each collected state, `[taps, n_embd]`. The last is the final state, after the output norm.
    pub mean: Vec<f32>,
    /// Deviation, `[taps, n_embd]`.
    pub deviation: Vec<f32>,
}

impl Standard {
    /// Estimates both from the answers to train on.
    ///
    /// # Errors
    /// If a shard cannot be read.
    pub fn of(target: &TrainingTarget, store: &ShardStore, data: &TrainingSet) -> Result<Self> {
        let (n, taps) = (target.rows.n_embd, target.taps.len());
        let (mut sum, mut squares, mut rows) = (vec![0.0; taps * n], vec![0.0; taps * n], 0);
        for entry in &data.answers {
            if rows >= SAMPLE {
                break;
            }
            let answer = store.read(entry)?;
            let mut state = Vec::new();
            for row in 0..answer.next.len() {
                state.clear();
                states(target, &answer, row, 0, &mut state);
                for ((x, sum), square) in state.iter().zip(&mut sum).zip(&mut squares) {
                    let x = f64::from(*x);
                    (*sum, *square) = (*sum + x, *square + x * x);
                }
            }
            rows += answer.next.len();
        }
        let rows = rows.max(1) as f64;
        let mean: Vec<f64> = sum.iter().map(|sum| sum / rows).collect();
        let deviation =
            |(square, mean): (&f64, &f64)| (square / rows - mean * mean).max(0.0).sqrt().max(LEAST);
        Ok(Self {
            deviation: squares.iter().zip(&mean).map(|pair| deviation(pair) as f32).collect(),
            mean: mean.iter().map(|mean| *mean as f32).collect(),
        })
    }
}

/// Parts that a fit does not change.
pub struct Frozen<'a> {
    /// The target.
    pub target: &'a TrainingTarget,
    /// Tokens that the head scores, ascending.
    pub vocabulary: Vec<TokenId>,
    /// Scale of the states.
    pub standard: Standard,
    /// Rows of the target's output head, times the factor of its logits, `[shortlist, n_embd]`.
    pub head: Tensor,
    /// Bound of the target's logits.
    pub cap: Option<f32>,
}

impl<'a> Frozen<'a> {
    /// Reads the rows of the output head.
    ///
    /// # Errors
    /// If the target's file cannot be read.
    pub fn new(target: &'a TrainingTarget, vocabulary: Vec<TokenId>, standard: Standard) -> Result<Self> {
        let rows = target.rows.head_rows(&vocabulary)?;
        let LogitScaling { factor, cap } = target.rows.logit_scaling();
        let rows = rows.into_iter().map(|weight| factor * weight).collect();
        let head = ops::tensor(rows, &[vocabulary.len(), target.rows.n_embd], target.device())?;
        Ok(Self { target, vocabulary, standard, head, cap })
    }

    /// Returns mean and deviation of the final state.
    pub fn final_standard(&self) -> (&[f32], &[f32]) {
        let from = (self.target.taps.len() - 1) * self.target.rows.n_embd;
        (&self.standard.mean[from..], &self.standard.deviation[from..])
    }

    /// Returns mean and deviation of the final state as tensors.
    ///
    /// # Errors
    /// If the device fails.
    pub fn final_standard_tensors(&self) -> Result<(Tensor, Tensor)> {
        let (mean, deviation) = self.final_standard();
        let vector = |values: &[f32]| ops::tensor(values.to_vec(), &[values.len()], self.target.device());
        Ok((vector(mean)?, vector(deviation)?))
    }

    /// Returns the target's logits of the shortlist after final states, `[rows, shortlist]`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn logits(&self, states: &Tensor) -> Result<Tensor> {
        Ok(ops::soft_capped(&ops::linear(states, &self.head, None)?, self.cap)?)
    }

    /// Returns standardised states of rows, from the tap `first` on, `[rows, taps n]`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn standardised(&self, positions: &[AnswerRow<'_>], first: usize) -> Result<Tensor> {
        let n = self.target.rows.n_embd;
        let width = (self.target.taps.len() - first) * n;
        let mut values = Vec::with_capacity(positions.len() * width);
        for &(answer, row) in positions {
            let from = values.len();
            states(self.target, answer, row, first, &mut values);
            let scales = self.standard.mean.iter().zip(&self.standard.deviation).skip(first * n);
            values[from..]
                .iter_mut()
                .zip(scales)
                .for_each(|(x, (mean, deviation))| *x = (*x - mean) / deviation);
        }
        Ok(ops::tensor(values, &[positions.len(), width], self.target.device())?)
    }

    /// Returns the final states of rows, after the output norm, `[rows, n]`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn final_states<'p>(&self, rows: impl Iterator<Item = AnswerRow<'p>>) -> Result<Tensor> {
        let (n, last) = (self.target.rows.n_embd, self.target.taps.len() - 1);
        let mut values = Vec::new();
        rows.for_each(|(answer, row)| states(self.target, answer, row, last, &mut values));
        Ok(ops::tensor_of_rows(values, n, self.target.device())?)
    }

    /// Returns embeddings of tokens, divided by their root mean square, `[tokens, n]`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn embeddings(&self, tokens: &[TokenId]) -> Result<Tensor> {
        let n = self.target.rows.n_embd;
        let mut values = self.target.rows.embeddings(tokens)?;
        for embedding in values.chunks_exact_mut(n) {
            let square = embedding.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / n as f64;
            let scale = (1.0 / (square + ops::EPS).sqrt()) as f32;
            embedding.iter_mut().for_each(|x| *x *= scale);
        }
        Ok(ops::tensor_of_rows(values, n, self.target.device())?)
    }
}

/// Appends the states of a row from the tap `first` on. The last is the final state, after the output norm.
fn states(target: &TrainingTarget, answer: &CollectedAnswer, row: usize, first: usize, out: &mut Vec<f32>) {
    let (n, taps) = (target.rows.n_embd, target.taps.len());
    let of_row = &answer.states[row * taps * n..][..taps * n];
    let (tapped, last) = of_row.split_at((taps - 1) * n);
    out.extend(tapped[(first * n).min(tapped.len())..].iter().map(|x| x.to_f32()));
    out.extend(last.iter().zip(&target.rows.output_norm).map(|(x, weight)| x.to_f32() * weight));
}
