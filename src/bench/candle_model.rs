//! candle-transformers' own quantised models: the reference of the decoder's tests and the baseline of benchmarks.

use std::fs::File;
use std::path::Path;

use candle_core::quantized::gguf_file::Content;
use candle_core::{Device, Tensor};
use candle_transformers::models::{quantized_llama, quantized_qwen2, quantized_qwen3};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};

/// A model of candle-transformers. It hides its cache and computes logits of the last row only.
pub enum CandleModel {
    /// Llama and compatible models.
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
