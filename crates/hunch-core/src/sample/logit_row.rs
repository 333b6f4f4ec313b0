//! A row of logits with its softmax statistics, each computed once and on demand.

use std::cell::OnceCell;

use super::candidates::{by_likelihood, most_likely};
use super::vectors::{
    BLOCK, CACHED, exp_nonpositive, first_at, maxima_of, maximum, total_weight, weights_and_moments,
};
use crate::error::{Error, Result};
use crate::token::{TokenId, TokenProb};

/// Softmax statistics of one position at temperature 1, without filters or penalties.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenLogprobs {
    /// Probability of the requested token.
    pub confidence: f32,
    /// Entropy, in nats.
    pub entropy: f32,
    /// Most likely tokens, most likely first.
    pub top: Vec<TokenProb>,
}

/// A row of raw logits with cached softmax statistics. NaN counts as minus infinity.
pub struct LogitRow<'a> {
    pub(super) logits: &'a [f32],
    /// Largest logit of each block.
    pub(super) maxima: Vec<f32>,
    max: f32,
    sums: OnceCell<Sums>,
}

/// Sums over the softmax weights w = e^(l - max) of a row.
#[derive(Clone, Copy)]
struct Sums {
    /// Sum of w.
    total: f64,
    /// Sum of w (l - max).
    moment: f64,
}

impl<'a> LogitRow<'a> {
    /// Wraps a row of logits, `[n_vocab]`.
    pub fn new(logits: &'a [f32]) -> Self {
        let maxima = maxima_of(logits);
        Self { logits, max: maximum(&maxima), maxima, sums: OnceCell::new() }
    }

    /// Returns the softmax statistics of this position: of `token`, and the `count` most likely tokens
    /// (`count` at least 1). All zero and empty if the row has no usable logit.
    pub fn logprobs(&self, token: TokenId, count: usize) -> TokenLogprobs {
        if self.check().is_err() {
            return TokenLogprobs::default();
        }
        let Sums { total, moment } = *self.sums.get_or_init(|| self.add_up(|_| ()));
        TokenLogprobs {
            confidence: self.share(self.logits[token as usize], total),
            // H = ln Z - E[l - max].
            entropy: (total.ln() - moment / total).max(0.0) as f32,
            top: self.top_tokens(count, total),
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.max > f32::NEG_INFINITY {
            return Ok(());
        }
        Err(Error::UnusableScores)
    }

    /// Caps the maximum, so that a logit of +infinity does not turn differences into NaN.
    pub(super) fn finite_max(&self) -> f32 {
        self.max.min(f32::MAX)
    }

    pub(super) fn first_largest(&self) -> usize {
        let block = first_at(&self.maxima, self.max) * BLOCK;
        block + first_at(&self.logits[block..], self.max)
    }

    pub(super) fn total(&self) -> f64 {
        self.sums.get().map_or_else(|| total_weight(self.logits, self.finite_max()), |sums| sums.total)
    }

    /// Returns the weights and their sum.
    pub(super) fn weights(&self) -> (Vec<f32>, f64) {
        let mut weights = Vec::with_capacity(self.logits.len());
        let sums = self.add_up(|chunk| weights.extend_from_slice(chunk));
        (weights, self.sums.get_or_init(|| sums).total)
    }

    /// Computes the weights in chunks, passes each chunk to `each` and returns their sums.
    fn add_up(&self, mut each: impl FnMut(&[f32])) -> Sums {
        let max = self.finite_max();
        let mut sums = Sums { total: 0.0, moment: 0.0 };
        let (mut weights, mut weighted) = ([0.0; CACHED], [0.0; CACHED]);
        for chunk in self.logits.chunks(CACHED) {
            let weights = &mut weights[..chunk.len()];
            let (total, moment) = weights_and_moments(chunk, max, weights, &mut weighted[..chunk.len()]);
            sums = Sums { total: sums.total + total, moment: sums.moment + moment };
            each(weights);
        }
        sums
    }

    fn share(&self, logit: f32, total: f64) -> f32 {
        (f64::from(exp_nonpositive(logit - self.finite_max())) / total) as f32
    }

    /// Returns the `count` most likely tokens, most likely first.
    pub(super) fn top_tokens(&self, count: usize, total: f64) -> Vec<TokenProb> {
        let mut likely = most_likely(self.logits, &self.maxima, count);
        likely.sort_unstable_by(by_likelihood);
        likely.iter().map(|c| (c.token, self.share(c.logit, total))).collect()
    }
}
