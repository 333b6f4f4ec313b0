//! Sampling: logits to a distribution, and a distribution to a token.
//!
//! One function computes every distribution of Hunch, so the target's p and a draft's q come from the
//! same code. Pure functions only: no model, no cache, no text, and random numbers come from the caller.

use std::cell::OnceCell;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use multiversion::multiversion;
use multiversion::target::target_cfg_f;
use rand::RngCore;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::token::{TokenId, TokenProb};

/// Sampling settings, shared by the settings form, the command line and bench plans.
///
/// Stages run in llama.cpp's order: penalties, logit bias, top-k, top-p, min-p, temperature. The
/// filters therefore see the distribution at temperature 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(default)]
pub struct SamplingParams {
    /// Flattens (above 1) or sharpens (below 1) the distribution. 0 always takes the most likely token.
    pub temperature: f32,
    /// Keeps this many of the most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the fewest most likely tokens whose probabilities sum to this; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this fraction as likely as the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Penalty of recent tokens: divides positive logits and multiplies negative ones by it
    /// (CTRL, arXiv 1909.05858); 1 changes nothing.
    pub repeat_penalty: f32,
    /// Subtracted from the logit of every recent token; 0 changes nothing.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit once per recent occurrence; 0 changes nothing.
    pub frequency_penalty: f32,
    /// Number of last tokens, prompt included, that count as recent; 0 disables penalties.
    pub penalty_last_n: u32,
    /// Added to the logit of a token, by token ID.
    #[cfg_attr(feature = "ts", ts(type = "Record<number, number>"))]
    pub logit_bias: BTreeMap<TokenId, f32>,
    /// Makes a generation repeatable; `None` picks a new seed each time. At most 2^53 - 1, the largest
    /// integer that JavaScript represents exactly.
    #[cfg_attr(feature = "ts", ts(type = "number | null"))]
    pub seed: Option<u64>,
}

/// Allowed range of one numeric setting, inclusive.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// Field name in [`SamplingParams`].
    pub name: &'static str,
    /// Minimum.
    pub min: f64,
    /// Maximum.
    pub max: f64,
    value: fn(&SamplingParams) -> Option<f64>,
}

const fn range(name: &'static str, min: f64, max: f64, value: fn(&SamplingParams) -> Option<f64>) -> Range {
    Range { name, min, max, value }
}

/// Largest logit bias. The smallest one is its negative.
pub const LOGIT_BIAS_MAX: f64 = 100.0;

static RANGES: [Range; 9] = [
    range("temperature", 0.0, 5.0, |p| Some(p.temperature.into())),
    range("top_k", 0.0, 1_000_000.0, |p| Some(p.top_k.into())),
    range("top_p", 0.0, 1.0, |p| Some(p.top_p.into())),
    range("min_p", 0.0, 1.0, |p| Some(p.min_p.into())),
    range("repeat_penalty", 0.5, 4.0, |p| Some(p.repeat_penalty.into())),
    range("presence_penalty", -2.0, 2.0, |p| Some(p.presence_penalty.into())),
    range("frequency_penalty", -2.0, 2.0, |p| Some(p.frequency_penalty.into())),
    range("penalty_last_n", 0.0, 1_048_576.0, |p| Some(p.penalty_last_n.into())),
    range("seed", 0.0, 9_007_199_254_740_991.0, |p| p.seed.map(|s| s as f64)),
];

impl Default for SamplingParams {
    /// Sensible settings for chat.
    fn default() -> Self {
        Self {
            temperature: 0.7,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_last_n: 64,
            logit_bias: BTreeMap::new(),
            seed: None,
        }
    }
}

impl SamplingParams {
    /// Greedy decoding: always the most likely token, without penalties.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::unfiltered() }
    }

    /// The model's own distribution: temperature 1, no filters, no penalties.
    pub fn unfiltered() -> Self {
        Self { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Self::default() }
    }

    /// Returns the allowed range of every numeric setting.
    ///
    /// [`validate`](Self::validate) checks against this table and the settings form shows it.
    pub fn ranges() -> &'static [Range] {
        &RANGES
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] naming the first setting that is NaN or out of range, and its range.
    pub fn validate(&self) -> Result<()> {
        for range in &RANGES {
            let Some(value) = (range.value)(self) else {
                continue;
            };
            // `contains` is false for NaN, unlike `value < min || value > max`.
            if !(range.min..=range.max).contains(&value) {
                // Print 5.1f32 as 5.1 instead of 5.099999904632568.
                let narrow = value as f32;
                let shown = if f64::from(narrow) == value { narrow.to_string() } else { value.to_string() };
                return Err(Error::invalid(format!(
                    "{} is {shown}; choose a number from {} to {}.",
                    range.name, range.min, range.max
                )));
            }
        }
        for (token, bias) in &self.logit_bias {
            if !(-LOGIT_BIAS_MAX..=LOGIT_BIAS_MAX).contains(&f64::from(*bias)) {
                return Err(Error::invalid(format!(
                    "logit_bias of token {token} is {bias}; choose a number from -{LOGIT_BIAS_MAX} to {LOGIT_BIAS_MAX}."
                )));
            }
        }
        Ok(())
    }
}

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

/// A token that passed the filters so far.
#[derive(Clone, Copy, Debug)]
struct TokenCandidate {
    logit: f32,
    token: TokenId,
}

/// Most likely first, ties by lower token ID.
fn by_likelihood(a: &TokenCandidate, b: &TokenCandidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
}

fn candidates_where(logits: &[f32], keep: impl Fn(usize, f32) -> bool) -> Vec<TokenCandidate> {
    let tokens = logits.iter().enumerate().filter(|&(i, &l)| keep(i, l));
    tokens.map(|(i, &logit)| TokenCandidate { logit, token: i as TokenId }).collect()
}

/// Logits per block of the block-maximum search.
const BLOCK: usize = 64;

/// Returns the largest logit of each block.
fn maxima_of(logits: &[f32]) -> Vec<f32> {
    let mut maxima = vec![f32::NEG_INFINITY; logits.len().div_ceil(BLOCK)];
    block_maxima(logits, &mut maxima);
    maxima
}

/// Returns the `k` most likely tokens (`k` at least 1) in no order, fewer if fewer are possible.
/// `maxima` are the block maxima of `logits`.
fn most_likely(logits: &[f32], maxima: &[f32], k: usize) -> Vec<TokenCandidate> {
    // Each of the k blocks with the largest maxima holds a logit of at least the k-th largest block
    // maximum. No smaller logit can be in the top k, so one vectorised pass leaves few candidates.
    let bound = if k <= maxima.len() {
        *maxima.to_vec().select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1
    } else {
        f32::NEG_INFINITY
    };
    let mut kept = Vec::new();
    for (block, chunk) in logits.chunks(BLOCK).enumerate() {
        if maxima[block] < bound {
            continue;
        }
        for (i, &logit) in chunk.iter().enumerate() {
            if logit >= bound && logit > f32::NEG_INFINITY {
                kept.push(TokenCandidate { logit, token: (block * BLOCK + i) as TokenId });
            }
        }
    }
    if kept.len() > k {
        kept.select_nth_unstable_by(k - 1, by_likelihood);
        kept.truncate(k);
    }
    kept
}

/// Keeps the fewest most likely candidates whose weights sum to `wanted` or more, at least one.
///
/// Bisects with partial selection: linear time, no full sort.
fn keep_nucleus(kept: &mut Vec<TokenCandidate>, max: f32, wanted: f64) {
    let (mut low, mut high) = (0, kept.len());
    let mut below = 0.0;
    // Invariant: the first `low` candidates are the most likely, their weights sum to `below` and that
    // is too little. The result is in low + 1..=high.
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        kept[low..high].select_nth_unstable_by(middle - low - 1, by_likelihood);
        let part: f64 = kept[low..middle].iter().map(|c| f64::from(exp_nonpositive(c.logit - max))).sum();
        if below + part >= wanted {
            high = middle;
        } else {
            below += part;
            low = middle;
        }
    }
    kept.truncate(high.max(1));
}

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
    logits: &'a [f32],
    /// Largest logit of each block.
    maxima: Vec<f32>,
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

    fn check(&self) -> Result<()> {
        if self.max > f32::NEG_INFINITY {
            return Ok(());
        }
        Err(Error::Internal(
            "the model gave no usable score for any token (all are NaN or minus infinity); its file may be damaged"
                .into(),
        ))
    }

    /// Caps the maximum, so that a logit of +infinity does not turn differences into NaN.
    fn finite_max(&self) -> f32 {
        self.max.min(f32::MAX)
    }

    fn first_largest(&self) -> usize {
        let block = first_at(&self.maxima, self.max) * BLOCK;
        block + first_at(&self.logits[block..], self.max)
    }

    fn total(&self) -> f64 {
        self.sums.get().map_or_else(|| total_weight(self.logits, self.finite_max()), |sums| sums.total)
    }

    /// Returns the weights and their sum.
    fn weights(&self) -> (Vec<f32>, f64) {
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
    fn top_tokens(&self, count: usize, total: f64) -> Vec<TokenProb> {
        let mut likely = most_likely(self.logits, &self.maxima, count);
        likely.sort_unstable_by(by_likelihood);
        likely.iter().map(|c| (c.token, self.share(c.logit, total))).collect()
    }
}

/// Returns the `count` most likely tokens of a distribution, most likely first, fewer if fewer are
/// possible.
pub fn top_tokens(distribution: &[f32], count: usize) -> Vec<TokenProb> {
    let mut likely = most_likely(distribution, &maxima_of(distribution), count);
    likely.sort_unstable_by(by_likelihood);
    likely.iter().filter(|c| c.logit > 0.0).map(|c| (c.token, c.logit)).collect()
}

/// Returns the sum of e^(l - max).
fn total_weight(logits: &[f32], max: f32) -> f64 {
    let mut weights = [0.0; CACHED];
    let chunks = logits.chunks(weights.len());
    chunks.map(|chunk| weights_of(chunk, max, 1.0, &mut weights[..chunk.len()])).sum()
}

/// Returns e^((l - max) * sharpness) of every logit, and their sum.
fn weights(logits: &[f32], max: f32, sharpness: f32) -> (Vec<f32>, f64) {
    let mut chunk_weights = [0.0; CACHED];
    let mut weights = Vec::with_capacity(logits.len());
    let mut total = 0.0;
    for chunk in logits.chunks(CACHED) {
        let out = &mut chunk_weights[..chunk.len()];
        total += weights_of(chunk, max, sharpness, out);
        weights.extend_from_slice(out);
    }
    (weights, total)
}

/// Chunk size at which weights are computed and summed while in the L1 cache.
const CACHED: usize = 1024;

/// Computes `out[i] = e^((logits[i] - max) * sharpness)` and returns their sum.
#[multiversion(targets = "simd")]
fn weights_of(logits: &[f32], max: f32, sharpness: f32, out: &mut [f32]) -> f64 {
    let fused = target_cfg_f!(any(target_feature = "fma", target_arch = "aarch64"));
    for (w, &l) in out.iter_mut().zip(logits) {
        *w = if fused {
            exp_by::<true>((l - max) * sharpness)
        } else {
            exp_nonpositive((l - max) * sharpness)
        };
    }
    sum(out)
}

/// [`weights_of`] at sharpness 1, plus `weighted[i] = weight * (logit - max)`. Returns both sums.
#[multiversion(targets = "simd")]
fn weights_and_moments(logits: &[f32], max: f32, weights: &mut [f32], weighted: &mut [f32]) -> (f64, f64) {
    let fused = target_cfg_f!(any(target_feature = "fma", target_arch = "aarch64"));
    for ((w, m), &l) in weights.iter_mut().zip(&mut *weighted).zip(logits) {
        let x = l - max;
        *w = if fused { exp_by::<true>(x) } else { exp_nonpositive(x) };
        // 0 times minus infinity is NaN, so weightless tokens are skipped.
        *m = if *w > 0.0 { *w * x } else { 0.0 };
    }
    (sum(weights), sum(weighted))
}

/// Computes the maximum of each [`BLOCK`] of values.
#[multiversion(targets = "simd")]
fn block_maxima(values: &[f32], maxima: &mut [f32]) {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let blocks = values.chunks_exact(BLOCK);
    if let Some(last) = maxima.last_mut() {
        *last = blocks.remainder().iter().copied().fold(f32::NEG_INFINITY, larger);
    }
    for (max, block) in maxima.iter_mut().zip(blocks) {
        let mut lanes = [f32::NEG_INFINITY; 16];
        for part in block.as_chunks::<16>().0 {
            for (lane, &v) in lanes.iter_mut().zip(part) {
                *lane = larger(*lane, v);
            }
        }
        *max = lanes.iter().copied().fold(f32::NEG_INFINITY, larger);
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

/// Returns the index of the first value equal to `max`; 0 if there is none.
fn first_at(values: &[f32], max: f32) -> usize {
    values.iter().position(|&v| v == max).unwrap_or(0)
}

/// Returns the largest number, ignoring NaN; minus infinity if there is none. Works in lanes so that it
/// vectorises.
#[multiversion(targets = "simd")]
fn maximum(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; 16];
    let chunks = values.chunks_exact(lanes.len());
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &v) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, v);
        }
    }
    rest.iter().chain(&lanes).copied().fold(f32::NEG_INFINITY, larger)
}

/// Returns the sum in f64, added in lanes in a fixed order.
#[multiversion(targets = "simd")]
pub(crate) fn sum(values: &[f32]) -> f64 {
    let mut lanes = [0.0f64; 8];
    let chunks = values.chunks_exact(lanes.len());
    let rest: f64 = chunks.remainder().iter().copied().map(f64::from).sum();
    for chunk in chunks {
        for (lane, &v) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(v);
        }
    }
    lanes.iter().sum::<f64>() + rest
}

/// Returns e^x for x <= 0, within 2 units in the last place. Branch-free, so that it vectorises.
///
/// Results below the smallest normal f32 are 0. Positive x counts as 0, NaN gives 0.
#[inline(always)]
fn exp_nonpositive(x: f32) -> f32 {
    exp_by::<false>(x)
}

/// [`exp_nonpositive`], optionally with fused multiply-add.
#[inline(always)]
fn exp_by<const FUSED: bool>(x: f32) -> f32 {
    let multiply_add = |a: f32, b: f32, c: f32| if FUSED { a.mul_add(b, c) } else { a * b + c };
    const LOWEST: f32 = -87.336_54;
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts (Cody and Waite). The first has few bits, so n * LN2_HIGH is exact.
    const LN2_HIGH: f32 = 355.0 / 512.0;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding 1.5 * 2^23 rounds to an integer in the low mantissa bits.
    const ROUND: f32 = 12_582_912.0;
    let bounded = if x > LOWEST { x } else { LOWEST };
    let bounded = if bounded < 0.0 { bounded } else { 0.0 };
    let rounded = multiply_add(bounded, LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = multiply_add(-n, LN2_LOW, multiply_add(-n, LN2_HIGH, bounded));
    // Taylor series to r^7 on |r| <= ln 2 / 2: the truncation error is below 6e-9.
    let mut series = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5] {
        series = multiply_add(series, r, coefficient);
    }
    let series = multiply_add(multiply_add(series, r, 1.0), r, 1.0);
    let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    if x >= LOWEST { series * power } else { 0.0 }
}

#[cfg(test)]
mod tests;
