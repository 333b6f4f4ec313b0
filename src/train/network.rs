//! Interface of a head in training.

use candle_core::Var;
use candle_core::backprop::GradStore;
use hunch_error::Result;

use super::features::Frozen;
use super::shards::{CollectedAnswer, Position};

/// Logits of an answer, `[depth][position][vocabulary]`.
pub type DepthLogits = Vec<Vec<Vec<f32>>>;

/// A head in training.
pub trait Network {
    /// Returns the trained tensors, in the order of [`HeadKind::names`](super::kind::HeadKind::names).
    fn vars(&self) -> &[Var];

    /// Returns the mean loss of a batch in nats, and its gradients.
    ///
    /// # Errors
    /// If the device fails.
    fn gradients(&self, frozen: &Frozen<'_>, positions: &[Position<'_>]) -> Result<(f64, GradStore)>;

    /// Returns the logits of the shortlist for each token of a draft, for every position of an answer:
    /// `[depth][position][shortlist]`. The tokens of the answer are drafted.
    ///
    /// # Errors
    /// If the device fails.
    fn logits(&self, frozen: &Frozen<'_>, answer: &CollectedAnswer) -> Result<DepthLogits>;
}

/// Returns the weight of each position by token of a draft: `decay` to the power of the token's depth. It is 0 after the
/// end of an answer, and all together are 1.
pub fn depth_weights(positions: &[Position<'_>], depth: usize, decay: f64) -> Vec<Vec<f32>> {
    let weight = |k: usize, (answer, row): &Position<'_>| {
        if row + 1 + k < answer.next.len() { decay.powi(k as i32) } else { 0.0 }
    };
    let sum: f64 = (0..depth).flat_map(|k| positions.iter().map(move |position| weight(k, position))).sum();
    let share = |k: usize| positions.iter().map(move |position| (weight(k, position) / sum.max(1.0)) as f32);
    (0..depth).map(|k| share(k).collect()).collect()
}
