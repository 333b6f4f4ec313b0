//! candle-transformers' own quantised models: the baseline that plain decoding is measured against,
//! and the in-process reference of the golden tests. Nothing else uses them.

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use candle_core::quantized::gguf_file::Content;
use candle_core::{Device, Tensor};
use candle_transformers::models::{quantized_llama, quantized_qwen2, quantized_qwen3};

use crate::bench::figures::median;
use crate::error::{Error, Result};
use hunch_core::model::{LanguageModel, LogitRows, Step};
use hunch_core::token::TokenId;

/// One of candle-transformers' models. It keeps its cache to itself and gives the last row only.
pub enum CandleModel {
    /// Llama and kin.
    Llama(quantized_llama::ModelWeights),
    /// Qwen2.
    Qwen2(quantized_qwen2::ModelWeights),
    /// Qwen3.
    Qwen3(quantized_qwen3::ModelWeights),
}

impl CandleModel {
    /// Loads a model file the way candle-transformers does.
    ///
    /// # Errors
    /// When candle-transformers has no model for the architecture, or the file does not load.
    pub fn open(path: &Path, architecture: &str, device: &Device) -> Result<Self> {
        let mut file = File::open(path).map_err(|source| Error::Io {
            action: "read",
            path: path.to_path_buf(),
            source,
        })?;
        let content = Content::read(&mut file)?;
        match architecture {
            "llama" => Ok(Self::Llama(quantized_llama::ModelWeights::from_gguf(content, &mut file, device)?)),
            "qwen2" => Ok(Self::Qwen2(quantized_qwen2::ModelWeights::from_gguf(content, &mut file, device)?)),
            "qwen3" => Ok(Self::Qwen3(quantized_qwen3::ModelWeights::from_gguf(content, &mut file, device)?)),
            other => {
                Err(Error::invalid(format!("candle-transformers has no quantised model for \"{other}\".")))
            }
        }
    }

    /// Logits of the last of `tokens`, which follow `position` tokens seen before.
    ///
    /// # Errors
    /// When candle fails.
    pub fn forward(&mut self, tokens: &[TokenId], position: usize, device: &Device) -> Result<Vec<f32>> {
        let input = Tensor::new(tokens, device)?.unsqueeze(0)?;
        let logits = match self {
            Self::Llama(model) => model.forward(&input, position)?,
            Self::Qwen2(model) => model.forward(&input, position)?,
            Self::Qwen3(model) => model.forward(&input, position)?,
        };
        Ok(logits.flatten_all()?.to_vec1::<f32>()?)
    }
}

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
