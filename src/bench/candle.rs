//! Benchmarks against candle-transformers' models of the same file. Needs the feature `candle-baseline`.

use candle_core::Device;
use hunch_core::model::{LanguageModel, LogitRows, PassInput};
use hunch_core::quantile::median;
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};

pub use super::candle_model::CandleModel;
use super::model_bench::synthetic_tokens;
use super::passes::PassEngine;
use hunch_model::pass_timer::seconds_of;

/// Decode speeds of Hunch and of candle-transformers for the same file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CandleComparison {
    /// Tokens per second of Hunch, plain decoding.
    pub tok_s: f64,
    /// Tokens per second of candle-transformers.
    pub candle_tok_s: f64,
    /// Median over the steps of candle's time / Hunch's time.
    pub ratio: f64,
}

/// Decodes `steps` tokens with both engines, taking turns token by token.
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
    ours.forward(PassInput::chain(&prompt[..last], LogitRows::None))?;
    theirs.forward(&prompt[..last], 0, device)?;
    let (mut token, mut next) = (prompt[last], prompt[last]);
    let (mut here, mut there) = (Vec::new(), Vec::new());
    // The first step warms up.
    for step in 0..=steps {
        let decode_here = || {
            let logits = ours.forward(PassInput::chain(&[token], LogitRows::Last))?.logits;
            next = hunch_core::sample::argmax(logits.row(0));
            Ok(())
        };
        let seconds = seconds_of(decode_here)?;
        let candle_seconds = seconds_of(|| theirs.forward(&[token], last + step, device).map(drop))?;
        token = next;
        if step > 0 {
            here.push(seconds);
            there.push(candle_seconds);
        }
    }
    ours.truncate(0)?;
    let ratios: Vec<f64> = here.iter().zip(&there).map(|(here, there)| there / here).collect();
    let middle =
        |values: &[f64]| median(values).ok_or_else(|| Error::invalid("Nothing was measured: 0 steps."));
    Ok(CandleComparison {
        tok_s: 1.0 / middle(&here)?,
        candle_tok_s: 1.0 / middle(&there)?,
        ratio: middle(&ratios)?,
    })
}

/// candle-transformers' model as a [`PassEngine`]. It computes the logits of the last row only.
pub struct Candle {
    /// The model.
    pub model: CandleModel,
    /// Size of the vocabulary.
    pub n_vocab: usize,
}

/// Tokens in candle's cache during a pass. It cannot drop rows, so each pass starts from an empty cache.
const CANDLE_CONTEXT: usize = 32;

impl PassEngine for Candle {
    fn name(&self) -> &str {
        "candle"
    }

    fn pass(&mut self, rows: usize) -> Result<f64> {
        let cpu = candle_core::Device::Cpu;
        let tokens = synthetic_tokens(CANDLE_CONTEXT + rows, self.n_vocab);
        self.model.forward(&tokens[..CANDLE_CONTEXT], 0, &cpu)?;
        seconds_of(|| self.model.forward(&tokens[CANDLE_CONTEXT..], CANDLE_CONTEXT, &cpu).map(drop))
    }

    fn prefill(&mut self, tokens: usize) -> Result<f64> {
        let prompt = synthetic_tokens(tokens, self.n_vocab);
        seconds_of(|| self.model.forward(&prompt, 0, &candle_core::Device::Cpu).map(drop))
    }
}
