//! The network of `hunch_model::heads`' own head while it is trained, on standardised states. The target's final state
//! has mean 0 and deviation 1 in each dimension. [`export`](super::export) folds the scale into the weights.

use candle_core::backprop::GradStore;
use candle_core::{Result as CandleResult, Tensor, Var};
use hunch_error::Result;

use super::features::Frozen;
use super::network::{DepthLogits, HeadInTraining};
use super::ops::{self, EPS, feed_forward, linear, rms_norm};
use super::shards::{AnswerRow, CollectedAnswer};
use super::start::{self, INPUTS, StartData, feed_forward_width};

/// Names of the trained tensors, in the order of [`HeadInTraining::vars`].
pub const NAMES: [&str; 6] = ["fc", "fc_bias", "norm", "gate", "up", "down"];

/// Trained tensors, and the frozen ones of the target.
pub struct Mlp {
    /// Trained tensors: fc `[n, inputs]`, its bias `[n]`, norm `[n]`, gate and up `[ff, n]`, down `[n, ff]`.
    vars: Vec<Var>,
    /// Deviation and mean of the final state, `[n]`.
    scale: Tensor,
    shift: Tensor,
    /// Rows of the target's output head, times the factor of its logits, `[shortlist, n]`.
    head: Tensor,
    /// Bound of the logits.
    cap: Option<f32>,
}

impl Mlp {
    /// Creates a network from its tensors, in the order of [`NAMES`].
    ///
    /// # Errors
    /// If the device fails.
    pub fn new(weights: &[Tensor], frozen: &Frozen<'_>) -> Result<Self> {
        let (shift, scale) = frozen.final_standard_tensors()?;
        let (head, cap) = (frozen.head.clone(), frozen.cap);
        Ok(Self { vars: ops::trained(weights)?, scale, shift, head, cap })
    }

    /// Returns the weights before the first step: the ridge regression, and a feed-forward block that adds nothing.
    ///
    /// # Errors
    /// As [`StartData::regression`].
    pub fn start(frozen: &Frozen<'_>, start: &StartData<'_>) -> Result<Vec<Tensor>> {
        let n = frozen.target.rows.n_embd;
        let inputs = frozen.target.inputs() * n;
        // Columns that the regression reads. The others begin at 0.
        let wide = inputs >= INPUTS;
        let read = if wide { [0..n, inputs - n..inputs] } else { [0..n, n..inputs] };
        let solved = start.regression(&read, 1, &|positions| {
            let next = positions.iter().map(|&(answer, row)| (answer, row + 1));
            Ok((self::inputs(frozen, positions)?, start::standard_states(frozen, next)?))
        })?;
        let ff = feed_forward_width(start.recipe, n);
        let mut random = start.random();
        let deviation = (1.0 / n as f64).sqrt();
        let tensor = |values, shape: &[usize]| start::weight(frozen, values, shape);
        Ok(vec![
            tensor(solved.weights, &[n, inputs])?,
            tensor(solved.bias, &[n])?,
            tensor(vec![1.0; n], &[n])?,
            tensor(random(ff * n, deviation), &[ff, n])?,
            tensor(random(ff * n, deviation), &[ff, n])?,
            tensor(vec![0.0; n * ff], &[n, ff])?,
        ])
    }

    /// Predicts the final state of the next row, `[rows, n]`, from the inputs `[rows, inputs]`.
    fn predict(&self, inputs: &Tensor) -> CandleResult<Tensor> {
        let [fc, bias, norm, gate, up, down] = &self.vars[..] else { candle_core::bail!("6 tensors") };
        let x = linear(inputs, fc, Some(bias))?;
        let x = feed_forward(&x, &rms_norm(&x, norm, EPS)?, [gate, up, down])?;
        x.broadcast_mul(&self.scale)?.broadcast_add(&self.shift)
    }

    /// Returns the logits of the shortlist after final states, `[rows, shortlist]`.
    fn scores(&self, states: &Tensor) -> CandleResult<Tensor> {
        ops::soft_capped(&linear(states, &self.head, None)?, self.cap)
    }

    /// Returns the mean cross entropy between the target's distribution over the shortlist and the head's, in nats,
    /// and its gradients.
    ///
    /// `states` are the target's true final states, `[rows, n]`. The output head is frozen, so its product stays out of
    /// autograd. The gradient of the loss for the predicted states, (q - p) W / rows, is written out. A bound of the
    /// logits multiplies q - p by its own derivative.
    fn gradients_at(&self, inputs: &Tensor, states: &Tensor) -> CandleResult<(f64, GradStore)> {
        let predicted = self.predict(inputs)?;
        let (loss, gradient) = self.loss(&predicted.detach(), states)?;
        Ok((loss, (predicted * gradient)?.sum_all()?.backward()?))
    }

    /// Returns the loss at predicted states, and its gradient for them.
    fn loss(&self, predicted: &Tensor, states: &Tensor) -> CandleResult<(f64, Tensor)> {
        let rows = predicted.dim(0)?;
        let weights = Tensor::full(1.0 / rows as f32, (rows, 1), predicted.device())?;
        let scores = self.scores(predicted)?;
        let (loss, gradient) = ops::soft_cross_entropy(&scores, &self.scores(states)?, &weights)?;
        let gradient = ops::through_soft_cap(&gradient, &scores, self.cap)?;
        Ok((loss, gradient.matmul(&self.head)?))
    }
}

impl HeadInTraining for Mlp {
    fn vars(&self) -> &[Var] {
        &self.vars
    }

    fn gradients(&self, frozen: &Frozen<'_>, positions: &[AnswerRow<'_>]) -> Result<(f64, GradStore)> {
        let states = frozen.final_states(positions.iter().map(|&(answer, row)| (answer, row + 1)))?;
        Ok(self.gradients_at(&inputs(frozen, positions)?, &states)?)
    }

    fn logits(&self, frozen: &Frozen<'_>, answer: &CollectedAnswer) -> Result<DepthLogits> {
        let positions: Vec<_> = (0..answer.positions()).map(|row| (answer, row)).collect();
        let states = self.predict(&inputs(frozen, &positions)?)?;
        Ok(vec![self.scores(&states)?.to_vec2::<f32>()?])
    }
}

/// Returns the inputs `[positions, inputs n]`.
///
/// Position i of an answer has the states of row i and the token after it. The order is that of `hunch_model::heads`:
/// standardised final state, tapped states, embedding.
fn inputs(frozen: &Frozen<'_>, positions: &[AnswerRow<'_>]) -> Result<Tensor> {
    let (target, taps) = (frozen.target, frozen.target.taps.len());
    let n = target.rows.n_embd;
    let tokens: Vec<u32> = positions.iter().map(|(answer, row)| answer.next[*row]).collect();
    let tapped = |&(answer, row): &AnswerRow<'_>| {
        answer.states[row * taps * n..][..(taps - 1) * n].iter().map(|x| x.to_f32()).collect::<Vec<_>>()
    };
    let tapped: Vec<f32> = positions.iter().flat_map(tapped).collect();
    let tapped = ops::tensor(tapped, &[positions.len(), (taps - 1) * n], target.device())?;
    let last = frozen.standardised(positions, taps - 1)?;
    Ok(Tensor::cat(&[&last, &tapped, &frozen.embeddings(&tokens)?], 1)?)
}

#[cfg(test)]
mod tests {
    use super::super::ops::check;
    use super::*;

    /// A network of width 8 with a feed-forward block of 12, and 3 rows of inputs and states.
    fn small(cap: Option<f32>) -> (Mlp, Tensor, Tensor) {
        let mut random = check::random(5);
        let weights =
            [&[8, 24][..], &[8], &[8], &[12, 8], &[12, 8], &[8, 12]].map(|shape| random(shape, 1.0));
        let (scale, shift, head) = (random(&[8], 2.0), random(&[8], 1.0), random(&[20, 8], 3.0));
        let network = Mlp { vars: ops::trained(&weights).unwrap(), scale, shift, head, cap };
        (network, random(&[3, 24], 2.0), random(&[3, 8], 2.0))
    }

    #[test]
    fn gradients_match_finite_differences() {
        for cap in [None, Some(6.0)] {
            let (network, inputs, states) = small(cap);
            let (_, grads) = network.gradients_at(&inputs, &states).unwrap();
            let loss = || network.loss(&network.predict(&inputs).unwrap(), &states).unwrap().0;
            check::assert_gradients(network.vars(), &NAMES.map(str::to_owned), &grads, &loss);
        }
    }

    #[test]
    fn loss_is_least_at_the_targets_own_states() {
        let (network, inputs, states) = small(None);
        let (least, gradient) = network.loss(&states, &states).unwrap();
        let most = gradient.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(most < 1e-6, "{most}");
        assert!(least < network.loss(&network.predict(&inputs).unwrap(), &states).unwrap().0);
    }
}
