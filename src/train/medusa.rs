//! A Medusa head while it is trained (Cai et al., arXiv 2401.10774). It has a residual block and an output matrix for
//! each token of a draft. They read the target's standardised final state.
//!
//! ```text
//! x = f + silu(block f + bias)
//! logits = output x + bias
//! ```
//!
//! The loss of token k has the weight 0.8^k. A ridge regression that predicts the target's later states is the start:
//! it is folded into the rows of the target's output head.

use candle_core::backprop::GradStore;
use candle_core::{Result as CandleResult, Tensor, Var};
use hunch_error::Result;

use super::features::Frozen;
use super::network::{DepthLogits, HeadInTraining, draft_gradients, draft_targets};
use super::ops::{self, linear};
use super::shards::{AnswerRow, CollectedAnswer};
use super::start::{self, StartData};

/// Names of the trained tensors of each token, in the order of [`HeadInTraining::vars`].
pub const NAMES: [&str; 4] = ["block", "block_bias", "output", "output_bias"];
/// Weight of a token's loss, relative to the token before it.
const DECAY: f64 = 0.8;

/// Trained tensors of each token: block `[n, n]`, its bias `[n]`, output `[shortlist, n]`, its bias `[shortlist]`.
pub struct MedusaTraining {
    vars: Vec<Var>,
}

impl MedusaTraining {
    /// Creates a network from its tensors.
    ///
    /// # Errors
    /// If the device fails.
    pub fn new(weights: &[Tensor]) -> Result<Self> {
        Ok(Self { vars: ops::trained(weights)? })
    }

    /// Returns the weights before the first step: the ridge regression, and blocks that add nothing.
    ///
    /// # Errors
    /// As [`StartData::regression`].
    pub fn start(frozen: &Frozen<'_>, start: &StartData<'_>) -> Result<Vec<Tensor>> {
        let (n, depth) = (frozen.target.rows.n_embd, start.recipe.depth);
        let solved = start.regression(std::slice::from_ref(&(0..n)), depth, &|positions| {
            let ahead = |k: usize| {
                let rows = positions.iter().map(move |&(answer, row)| (answer, row + 1 + k));
                start::standard_states(frozen, rows)
            };
            let outputs = (0..depth).map(ahead).collect::<Result<Vec<_>>>()?;
            Ok((states(frozen, positions)?, Tensor::cat(&outputs, 1)?))
        })?;
        let (mean, deviation) = frozen.final_standard_tensors()?;
        let scaled = frozen.head.broadcast_mul(&deviation)?;
        let mut weights = Vec::new();
        for k in 0..depth {
            let tensor = |values: &[f32], shape: &[usize]| start::weight(frozen, values.to_vec(), shape);
            // From the state to the later state, in units of the deviation.
            let step = tensor(&solved.weights[k * n * n..(k + 1) * n * n], &[n, n])?;
            let constant = (tensor(&solved.bias[k * n..(k + 1) * n], &[n])?.mul(&deviation)? + &mean)?;
            let bias = frozen.head.matmul(&constant.reshape((n, 1))?)?.flatten_all()?;
            weights.extend([
                tensor(&vec![0.0; n * n], &[n, n])?,
                tensor(&vec![0.0; n], &[n])?,
                scaled.matmul(&step)?,
                bias,
            ]);
        }
        Ok(weights)
    }

    /// Returns the logits of the shortlist for each token of a draft, `[rows, shortlist]`, from states `[rows, n]`.
    fn predict(&self, states: &Tensor) -> CandleResult<Vec<Tensor>> {
        let token = |vars: &[Var]| {
            let [block, block_bias, output, output_bias] = vars else { candle_core::bail!("4 tensors") };
            let x = (states + linear(states, block, Some(block_bias))?.silu()?)?;
            linear(&x, output, Some(output_bias))
        };
        self.vars.chunks(NAMES.len()).map(token).collect()
    }
}

impl HeadInTraining for MedusaTraining {
    fn vars(&self) -> &[Var] {
        &self.vars
    }

    fn gradients(&self, frozen: &Frozen<'_>, positions: &[AnswerRow<'_>]) -> Result<(f64, GradStore)> {
        let depth = self.vars.len() / NAMES.len();
        let targets = draft_targets(frozen, positions, depth, DECAY)?;
        Ok(draft_gradients(&self.predict(&states(frozen, positions)?)?, &targets)?)
    }

    fn logits(&self, frozen: &Frozen<'_>, answer: &CollectedAnswer) -> Result<DepthLogits> {
        let positions: Vec<_> = (0..answer.positions()).map(|row| (answer, row)).collect();
        let logits = self.predict(&states(frozen, &positions)?)?;
        Ok(logits.iter().map(Tensor::to_vec2::<f32>).collect::<CandleResult<_>>()?)
    }
}

/// Returns the standardised final states of rows, `[rows, n]`.
fn states(frozen: &Frozen<'_>, positions: &[AnswerRow<'_>]) -> Result<Tensor> {
    frozen.standardised(positions, frozen.target.taps.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::super::ops::check;
    use super::*;

    #[test]
    fn gradients_match_finite_differences() {
        let mut random = check::random(7);
        let shapes: [&[usize]; 4] = [&[8, 8], &[8], &[20, 8], &[20]];
        let weights: Vec<Tensor> = (0..2).flat_map(|_| shapes).map(|shape| random(shape, 1.0)).collect();
        let network = MedusaTraining::new(&weights).unwrap();
        let (states, targets) = (random(&[3, 8], 2.0), [random(&[3, 20], 3.0), random(&[3, 20], 3.0)]);
        let row_weights =
            |values: [f32; 3]| Tensor::new(&values, states.device()).unwrap().reshape((3, 1)).unwrap();
        let weights = [row_weights([0.3, 0.3, 0.2]), row_weights([0.2, 0.0, 0.0])];
        let targets: Vec<_> = targets.into_iter().zip(weights).collect();
        let gradients = || draft_gradients(&network.predict(&states).unwrap(), &targets).unwrap();
        let (_, grads) = gradients();
        let loss = || gradients().0;
        let names: Vec<String> = (0..2).flat_map(|k| NAMES.map(|name| format!("{k}.{name}"))).collect();
        check::assert_gradients(network.vars(), &names, &grads, &loss);
    }
}
