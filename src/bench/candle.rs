//! Benchmarks against candle-transformers' models of the same file. Only with the feature `candle-baseline`, which
//! nothing else needs.

use std::time::Instant;

use candle_core::Device;
use hunch_core::model::{LanguageModel, LogitRows, Step};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};

pub use super::candle_model::CandleModel;
use super::figures::median;
use super::model::made_up_tokens;
use super::passes::PassEngine;

/// Decode speed of a target beside candle-transformers' model of the same file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CandleComparison {
    /// Plain tokens a second here.
    pub tok_s: f64,
    /// Tokens a second of candle-transformers.
    pub candle_tok_s: f64,
    /// Median over the steps of candle's time / ours.
    pub ratio: f64,
}

/// Decodes `steps` tokens with both, taking turns token by token.
///
/// # Errors
/// When a model fails.
pub fn compare_with_candle(
    ours: &mut dyn LanguageModel,
    theirs: &mut CandleModel,
    prompt: &[TokenId],
    steps: usize,
    device: &Device,
) -> Result<CandleComparison> {
    let last = prompt.len() - 1;
    ours.truncate(0)?;
    ours.forward(Step::chain(&prompt[..last], LogitRows::None))?;
    theirs.forward(&prompt[..last], 0, device)?;
    let mut token = prompt[last];
    let (mut a, mut b, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for step in 0..steps + 1 {
        let begun = Instant::now();
        let logits = ours.forward(Step::chain(&[token], LogitRows::Last))?.logits;
        let here = begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        theirs.forward(&[token], last + step, device)?;
        let there = begun.elapsed().as_secs_f64();
        token = hunch_core::sample::argmax(logits.row(0));
        // The first step warms up.
        if step > 0 {
            a.push(here);
            b.push(there);
            ratios.push(there / here);
        }
    }
    ours.truncate(0)?;
    let middle =
        |values: &[f64]| median(values).ok_or_else(|| Error::invalid("Nothing was measured: 0 steps."));
    Ok(CandleComparison {
        tok_s: 1.0 / middle(&a)?,
        candle_tok_s: 1.0 / middle(&b)?,
        ratio: middle(&ratios)?,
    })
}

/// candle-transformers' model of the same file. It computes the logits of the last row only.
pub struct Candle {
    /// The model.
    pub model: CandleModel,
    /// Tokens in its vocabulary.
    pub n_vocab: usize,
}

/// Tokens in candle's cache behind a pass: it cannot take rows back, so each pass starts anew.
const CANDLE_CONTEXT: usize = 32;

impl PassEngine for Candle {
    fn name(&self) -> &str {
        "candle"
    }

    fn pass(&mut self, rows: usize) -> Result<f64> {
        let cpu = candle_core::Device::Cpu;
        let tokens = made_up_tokens(CANDLE_CONTEXT + rows, self.n_vocab);
        self.model.forward(&tokens[..CANDLE_CONTEXT], 0, &cpu)?;
        let begun = Instant::now();
        self.model.forward(&tokens[CANDLE_CONTEXT..], CANDLE_CONTEXT, &cpu)?;
        Ok(begun.elapsed().as_secs_f64())
    }

    fn prefill(&mut self, tokens: usize) -> Result<f64> {
        let begun = Instant::now();
        self.model.forward(&made_up_tokens(tokens, self.n_vocab), 0, &candle_core::Device::Cpu)?;
        Ok(begun.elapsed().as_secs_f64())
    }
}
