//! Inputs of a head from collected answers: which numbers stand where, and how they are scaled.

use candle_core::Tensor;
use hunch_error::Result;

use super::shards::{CollectedAnswer, ShardStore, TrainingSet};
use super::{TrainingTarget, network};

/// Rows that mean and deviation are estimated from.
const SAMPLE: usize = 20_000;
/// Smallest deviation, so that a constant dimension is not blown up.
const LEAST: f64 = 1e-3;

/// Mean and deviation of each dimension of the target's final state.
#[derive(Clone, Debug, PartialEq)]
pub struct Standard {
    /// Mean, `[n_embd]`.
    pub mean: Vec<f32>,
    /// Deviation, `[n_embd]`.
    pub deviation: Vec<f32>,
}

impl Standard {
    /// Estimates both from the answers to train on.
    ///
    /// # Errors
    /// If a shard cannot be read.
    pub fn of(target: &TrainingTarget, store: &ShardStore, data: &TrainingSet) -> Result<Self> {
        let n = target.rows.n_embd;
        let (mut sum, mut squares, mut rows) = (vec![0.0; n], vec![0.0; n], 0);
        for entry in &data.answers {
            if rows >= SAMPLE {
                break;
            }
            let answer = store.read(entry)?;
            let mut states = Vec::new();
            (0..answer.next.len()).for_each(|row| final_state(target, &answer, row, &mut states));
            for state in states.chunks_exact(n) {
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

/// Appends the target's final state of a row, after the output norm.
fn final_state(target: &TrainingTarget, answer: &CollectedAnswer, row: usize, out: &mut Vec<f32>) {
    let (n, taps) = (target.rows.n_embd, target.taps.len());
    let last = &answer.states[((row + 1) * taps - 1) * n..][..n];
    out.extend(last.iter().zip(&target.rows.output_norm).map(|(x, weight)| x.to_f32() * weight));
}

/// Returns the inputs `[positions, inputs n]` and the target's next final states `[positions, n]`.
///
/// Position i of an answer has the states of row i and the token after it. It predicts the state of row i + 1.
/// The order is that of `hunch_model::heads`: standardised final state, tapped states, embedding.
///
/// # Errors
/// If the device fails.
pub fn batch(
    target: &TrainingTarget,
    standard: &Standard,
    positions: &[(&CollectedAnswer, usize)],
) -> Result<(Tensor, Tensor)> {
    let (n, taps) = (target.rows.n_embd, target.taps.len());
    let tokens: Vec<u32> = positions.iter().map(|(answer, row)| answer.next[*row]).collect();
    let embeddings = target.rows.embeddings(&tokens)?;
    let mut inputs = Vec::with_capacity(positions.len() * (taps + 1) * n);
    let mut states = Vec::with_capacity(positions.len() * n);
    for (&(answer, row), embedding) in positions.iter().zip(embeddings.chunks_exact(n)) {
        let from = inputs.len();
        final_state(target, answer, row, &mut inputs);
        let scales = standard.mean.iter().zip(&standard.deviation);
        inputs[from..].iter_mut().zip(scales).for_each(|(x, (mean, deviation))| *x = (*x - mean) / deviation);
        inputs.extend(answer.states[row * taps * n..][..(taps - 1) * n].iter().map(|x| x.to_f32()));
        let square = embedding.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / n as f64;
        let scale = (1.0 / (square + network::EPS).sqrt()) as f32;
        inputs.extend(embedding.iter().map(|x| x * scale));
        final_state(target, answer, row + 1, &mut states);
    }
    let (rows, device) = (positions.len(), target.device());
    Ok((
        network::tensor(inputs, &[rows, (taps + 1) * n], device)?,
        network::tensor(states, &[rows, n], device)?,
    ))
}
