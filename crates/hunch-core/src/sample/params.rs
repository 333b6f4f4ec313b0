//! Sampling settings and their ranges.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::limits::MAX_SEED;
use crate::token::TokenId;

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
    range("seed", 0.0, MAX_SEED as f64, |p| p.seed.map(|s| s as f64)),
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
