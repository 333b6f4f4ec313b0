//! Interface of a head in training.

use candle_core::backprop::GradStore;
use candle_core::{DType, Result as CandleResult, Tensor, Var};
use hunch_error::Result;

use super::features::Frozen;
use super::ops::{soft_cross_entropy, tensor};
use super::shards::{AnswerRow, CollectedAnswer};

/// Logits of an answer, `[depth][position][vocabulary]`.
pub type DepthLogits = Vec<Vec<Vec<f32>>>;

/// A head in training.
pub trait HeadInTraining {
    /// Returns the trained tensors, in the order of [`HeadKind::names`](super::kind::HeadKind::names).
    fn vars(&self) -> &[Var];

    /// Returns the mean loss of a batch in nats, and its gradients.
    ///
    /// # Errors
    /// If the device fails.
    fn gradients(&self, frozen: &Frozen<'_>, positions: &[AnswerRow<'_>]) -> Result<(f64, GradStore)>;

    /// Returns the logits of the shortlist for each token of a draft, for every position of an answer:
    /// `[depth][position][shortlist]`. The tokens of the answer are drafted.
    ///
    /// # Errors
    /// If the device fails.
    fn logits(&self, frozen: &Frozen<'_>, answer: &CollectedAnswer) -> Result<DepthLogits>;
}

/// Logits of the target `[rows, shortlist]`, and the weight of each row `[rows, 1]`, for a token of a draft.
pub type DraftTarget = (Tensor, Tensor);

/// Returns the targets of each token of the drafts from these positions. The loss of a token has `decay` to the power of
/// its depth as weight.
///
/// # Errors
/// If the device fails.
pub fn draft_targets(
    frozen: &Frozen<'_>,
    positions: &[AnswerRow<'_>],
    depth: usize,
    decay: f64,
) -> Result<Vec<DraftTarget>> {
    let weights = depth_weights(positions, depth, decay);
    let target = |(k, weights): (usize, Vec<f32>)| {
        // Rows after the end of an answer have no weight.
        let rows = positions.iter().map(|&(answer, row)| (answer, (row + 1 + k).min(answer.next.len() - 1)));
        let logits = frozen.logits(&frozen.final_states(rows)?)?;
        Ok((logits, tensor(weights, &[positions.len(), 1], frozen.target.device())?))
    };
    weights.into_iter().enumerate().map(target).collect()
}

/// Returns the loss of drafts and its gradients, from the logits of each token `[rows, shortlist]`.
///
/// # Errors
/// If the device fails.
pub fn draft_gradients(logits: &[Tensor], targets: &[DraftTarget]) -> CandleResult<(f64, GradStore)> {
    let Some(first) = logits.first() else { candle_core::bail!("a draft without tokens") };
    let (mut loss, mut sum) = (0.0, Tensor::zeros((), DType::F32, first.device())?);
    for (logits, (target, weights)) in logits.iter().zip(targets) {
        let (part, gradient) = soft_cross_entropy(logits, target, weights)?;
        loss += part;
        sum = (sum + (logits * gradient)?.sum_all()?)?;
    }
    Ok((loss, sum.backward()?))
}

/// Returns the weight of each position by token of a draft: `decay` to the power of the token's depth. It is 0 after the
/// end of an answer, and all together are 1.
fn depth_weights(positions: &[AnswerRow<'_>], depth: usize, decay: f64) -> Vec<Vec<f32>> {
    let weight = |k: usize, (answer, row): &AnswerRow<'_>| {
        if row + 1 + k < answer.next.len() { decay.powi(k as i32) } else { 0.0 }
    };
    let sum: f64 = (0..depth).flat_map(|k| positions.iter().map(move |position| weight(k, position))).sum();
    let share = |k: usize| positions.iter().map(move |position| (weight(k, position) / sum.max(1.0)) as f32);
    (0..depth).map(|k| share(k).collect()).collect()
}
