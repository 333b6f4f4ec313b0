//! Sampling: logits to a distribution, and a distribution to a token.
//!
//! One function computes every distribution of Hunch, so the target's p and a draft's q come from the
//! same code. Pure functions only: no model, no cache, no text, and random numbers come from the caller.

mod candidates;
mod logit_row;
mod params;
mod recommended;
mod vectors;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use rand::RngCore;

use crate::error::{Error, Result};
use crate::token::{TokenId, TokenProb};
pub use candidates::top_tokens;
use candidates::{TokenCandidate, candidates_where, keep_nucleus, most_likely};
pub use logit_row::{LogitRow, TokenLogprobs};
pub use params::{LOGIT_BIAS_MAX, Range, SamplingParams};
pub use recommended::RecommendedSampling;
pub(crate) use vectors::sum;
use vectors::{exp_nonpositive, first_at, maximum, weights};

/// A format that an answer has to follow, such as a grammar.
///
/// It restricts p and q alike, so speculation under a constraint yields the target's restricted distribution.
pub trait Constraint: fmt::Debug + Send + Sync {
    /// Sets the logits of all tokens that may not follow `context` to minus infinity.
    ///
    /// `context` has the prompt and the answer so far. `logits` has an element for each token of the target.
    ///
    /// # Errors
    /// If the constraint cannot be evaluated.
    fn restrict(&self, context: &[TokenId], logits: &mut [f32]) -> Result<()>;
}

/// Settings of a draw that depends on the logits alone, for devices that draw tokens themselves.
///
/// The fields mean what they mean in [`SamplingParams`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DrawSettings {
    /// Factor of the logits after the filters: 1 / temperature, finite.
    pub sharpness: f32,
    /// Number of most likely tokens kept; 0 keeps all.
    pub top_k: usize,
    /// Mass of most likely tokens kept; 1 keeps all.
    pub top_p: f32,
    /// Least weight relative to the most likely token; 0 keeps all.
    pub min_p: f32,
}

/// Computes distributions from logits, with validated [`SamplingParams`].
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    constraint: Option<Arc<dyn Constraint>>,
}

impl Sampler {
    /// Creates a sampler with these settings.
    ///
    /// # Errors
    /// See [`SamplingParams::validate`].
    pub fn new(params: SamplingParams) -> Result<Self> {
        params.validate()?;
        Ok(Self { params, constraint: None })
    }

    /// Restricts every distribution by a constraint.
    #[must_use]
    pub fn with_constraint(self, constraint: Arc<dyn Constraint>) -> Self {
        Self { constraint: Some(constraint), ..self }
    }

    /// Returns the settings.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Returns whether every distribution is a point mass.
    pub fn is_greedy(&self) -> bool {
        self.params.temperature == 0.0
    }

    /// Returns the settings of a draw without penalties, bias and constraint. `None` if sampling is greedy.
    pub fn draw_settings(&self) -> Option<DrawSettings> {
        let p = &self.params;
        (!self.is_greedy()).then(|| DrawSettings {
            sharpness: self.sharpness(),
            top_k: p.top_k as usize,
            top_p: p.top_p,
            min_p: p.min_p,
        })
    }

    /// 1 / temperature can overflow for a tiny temperature, whose limit is the greedy distribution.
    fn sharpness(&self) -> f32 {
        (1.0 / self.params.temperature).min(f32::MAX)
    }

    /// Returns how many recent tokens [`distribution`](Self::distribution) reads: 0 without penalties, all of them
    /// with a constraint.
    pub fn window(&self) -> usize {
        if self.constraint.is_some() { usize::MAX } else { self.penalty_window() }
    }

    fn penalty_window(&self) -> usize {
        let p = &self.params;
        let neutral = p.repeat_penalty == 1.0 && p.presence_penalty == 0.0 && p.frequency_penalty == 0.0;
        if neutral { 0 } else { p.penalty_last_n as usize }
    }

    /// Returns the probability of every token after `context`, `[n_vocab]`, summing to 1.
    ///
    /// Only the last [`window`](Self::window) tokens of `context` matter. Ties go to the lower token
    /// ID, so equal input gives equal bits. NaN logits count as minus infinity.
    ///
    /// # Errors
    /// [`Error::Internal`] if no logit is above minus infinity, which means the model is broken.
    /// [`Error::InvalidRequest`] if `logit_bias` names a token outside the vocabulary. [`Error::NothingAllowed`] if
    /// the constraint allows no token that is possible.
    pub fn distribution(&self, logits: &[f32], context: &[TokenId]) -> Result<Vec<f32>> {
        self.distribution_of(&LogitRow::new(logits), context)
    }

    /// [`distribution`](Self::distribution) of a row whose softmax others need too.
    ///
    /// # Errors
    /// The errors of [`distribution`](Self::distribution).
    pub fn distribution_of(&self, row: &LogitRow<'_>, context: &[TokenId]) -> Result<Vec<f32>> {
        match self.adjusted(row.logits, context)? {
            None => self.distribution_unadjusted(row),
            Some(logits) => self.distribution_unadjusted(&LogitRow::new(&logits)),
        }
    }

    fn distribution_unadjusted(&self, row: &LogitRow<'_>) -> Result<Vec<f32>> {
        row.check()?;
        let (logits, max) = (row.logits, row.finite_max());
        if self.is_greedy() {
            let mut distribution = vec![0.0; logits.len()];
            distribution[row.first_largest()] = 1.0;
            return Ok(distribution);
        }
        let sharpness = self.sharpness();
        let Some(kept) = self.filtered(row) else {
            let (mut distribution, total) =
                if sharpness == 1.0 { row.weights() } else { weights(logits, max, sharpness) };
            let scale = (1.0 / total) as f32;
            distribution.iter_mut().for_each(|w| *w *= scale);
            return Ok(distribution);
        };
        let mut distribution = vec![0.0; logits.len()];
        let weight = |c: &TokenCandidate| exp_nonpositive((c.logit - max) * sharpness);
        let total: f64 = kept.iter().map(|c| f64::from(weight(c))).sum();
        for c in &kept {
            distribution[c.token as usize] = (f64::from(weight(c)) / total) as f32;
        }
        Ok(distribution)
    }

    /// Returns the `count` most likely tokens after `context`, most likely first, fewer if fewer are
    /// possible. Probabilities are at temperature 1, without filters.
    ///
    /// # Errors
    /// The errors of [`distribution`](Self::distribution).
    pub fn ranking(&self, logits: &[f32], context: &[TokenId], count: usize) -> Result<Vec<TokenProb>> {
        let adjusted = self.adjusted(logits, context)?;
        let row = LogitRow::new(adjusted.as_deref().unwrap_or(logits));
        row.check()?;
        Ok(row.top_tokens(count, row.total()))
    }

    /// Returns p(token) / max p after `context`, in `[0, 1]`. Both are at temperature 1, without filters.
    ///
    /// # Errors
    /// The errors of [`distribution`](Self::distribution), and [`Error::Internal`] for a token outside the vocabulary.
    pub fn relative_likelihood(
        &self,
        row: &LogitRow<'_>,
        context: &[TokenId],
        token: TokenId,
    ) -> Result<f64> {
        let ratio = |row: &LogitRow<'_>| {
            row.check()?;
            let logit = row.logits.get(token as usize).ok_or_else(|| {
                Error::Internal(format!("token {token} is outside the vocabulary of {}", row.logits.len()))
            })?;
            Ok(f64::from(exp_nonpositive(logit - row.finite_max())))
        };
        match self.adjusted(row.logits, context)? {
            None => ratio(row),
            Some(logits) => ratio(&LogitRow::new(&logits)),
        }
    }

    /// Returns the logits after penalties, bias and constraint; `None` if nothing changes.
    fn adjusted(&self, logits: &[f32], context: &[TokenId]) -> Result<Option<Vec<f32>>> {
        let adjusted = self.penalised(logits, context)?;
        let Some(constraint) = &self.constraint else { return Ok(adjusted) };
        let mut logits = adjusted.unwrap_or_else(|| logits.to_vec());
        LogitRow::new(&logits).check()?;
        constraint.restrict(context, &mut logits)?;
        match maximum(&logits) > f32::NEG_INFINITY {
            true => Ok(Some(logits)),
            false => Err(Error::NothingAllowed),
        }
    }

    /// Returns the logits after penalties and bias; `None` if nothing changes.
    fn penalised(&self, logits: &[f32], context: &[TokenId]) -> Result<Option<Vec<f32>>> {
        let p = &self.params;
        let recent = &context[context.len().saturating_sub(self.penalty_window())..];
        if recent.is_empty() && p.logit_bias.is_empty() {
            return Ok(None);
        }
        let mut logits = logits.to_vec();
        let mut counts = BTreeMap::<TokenId, u32>::new();
        for &token in recent {
            *counts.entry(token).or_default() += 1;
        }
        for (token, count) in counts {
            // The context may contain tokens outside a draft model's smaller vocabulary.
            let Some(logit) = logits.get_mut(token as usize) else {
                continue;
            };
            *logit = if *logit > 0.0 { *logit / p.repeat_penalty } else { *logit * p.repeat_penalty };
            *logit -= p.presence_penalty + p.frequency_penalty * count as f32;
        }
        let vocabulary = logits.len();
        for (&token, &bias) in &p.logit_bias {
            let logit = logits.get_mut(token as usize).ok_or_else(|| {
                Error::invalid(format!(
                    "logit_bias names token {token}, but this model's tokens are 0 to {}.",
                    vocabulary.saturating_sub(1)
                ))
            })?;
            *logit += bias;
        }
        Ok(Some(logits))
    }

    /// Returns the tokens that pass top-k, top-p and min-p; `None` if all three are off.
    fn filtered(&self, row: &LogitRow<'_>) -> Option<Vec<TokenCandidate>> {
        let (p, logits, max) = (&self.params, row.logits, row.finite_max());
        let k = p.top_k as usize;
        let top_k_on = k > 0 && k < logits.len();
        if !top_k_on && p.top_p >= 1.0 && p.min_p <= 0.0 {
            return None;
        }
        // top-p and min-p both keep a prefix of the tokens sorted by weight, so min-p may run first.
        // The total that top-p refers to is still that of all tokens top-k left.
        let (mut kept, total) = if top_k_on {
            let kept = most_likely(logits, &row.maxima, k);
            let total = kept.iter().map(|c| f64::from(exp_nonpositive(c.logit - max))).sum();
            (kept, total)
        } else {
            let (weights, total) = weights(logits, max, 1.0);
            // Even together, all tokens below this weight fit into the mass that top-p cuts off.
            let negligible = total * (1.0 - f64::from(p.top_p)) / logits.len() as f64;
            let floor = (negligible as f32).max(p.min_p);
            (candidates_where(logits, |i, _| weights[i] >= floor && weights[i] > 0.0), total)
        };
        kept.retain(|c| {
            let weight = exp_nonpositive(c.logit - max);
            weight >= p.min_p && weight > 0.0
        });
        if p.top_p < 1.0 {
            keep_nucleus(&mut kept, max, total * f64::from(p.top_p));
        }
        Some(kept)
    }
}

/// Returns a random number in `[0, 1)`, a multiple of 2^-53.
pub fn unit(rng: &mut dyn RngCore) -> f64 {
    (rng.next_u64() >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
}

/// Draws a token from non-negative weights by inverting their cumulative sum at `u` in `[0, 1)`.
///
/// The weights need not sum to 1. A token of weight 0 is never drawn.
///
/// # Panics
/// If no weight is positive.
pub fn draw(distribution: &[f32], u: f64) -> TokenId {
    const BLOCK: usize = 256;
    let masses: Vec<f64> = distribution.chunks(BLOCK).map(sum).collect();
    let goal = u * masses.iter().sum::<f64>();
    let mut passed = 0.0;
    let mut last = None;
    for (block, (chunk, mass)) in distribution.chunks(BLOCK).zip(masses).enumerate() {
        if mass > 0.0 && passed + mass > goal {
            let mut reached = passed;
            for (i, &w) in chunk.iter().enumerate().filter(|(_, w)| **w > 0.0) {
                reached += f64::from(w);
                last = Some(block * BLOCK + i);
                if reached > goal {
                    break;
                }
            }
            break;
        }
        passed += mass;
        if mass > 0.0 {
            last = chunk.iter().rposition(|&w| w > 0.0).map(|i| block * BLOCK + i).or(last);
        }
    }
    last.expect("a distribution has a token it can draw") as TokenId
}

/// Returns the most likely token, ties by lower token ID. NaN counts as minus infinity.
pub fn argmax(values: &[f32]) -> TokenId {
    first_at(values, maximum(values)) as TokenId
}

#[cfg(test)]
mod tests;
