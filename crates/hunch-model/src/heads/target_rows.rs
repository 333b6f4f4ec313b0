//! The parts of a target that a head reads while it is trained: output norm, and rows of the embedding and of the
//! output head. All are f32.

use std::sync::Arc;

use candle_core::Device;
use hunch_core::token::TokenId;
use hunch_error::Result;

use crate::decoder::Decoder;
use crate::dequantise::dequantise;
use crate::device::Compute;
use crate::spec::{LogitScaling, ModelSpec};
use crate::tensor_names::output_norm;
use crate::weights::{Embedding, WeightFile};

/// Output norm, embedding and output head of a target.
pub struct TargetWeights {
    file: WeightFile,
    spec: ModelSpec,
    embedding: Arc<Embedding>,
    /// Weights of the output norm, `[n_embd]`.
    pub output_norm: Vec<f32>,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Number of layers.
    pub n_layer: usize,
    /// Tokens in the vocabulary.
    pub n_vocab: usize,
    /// Display name of the target.
    pub name: String,
}

impl TargetWeights {
    /// Opens the parts of a target. Shares the embedding of its decoder where it is in host memory.
    ///
    /// # Errors
    /// If the target's file cannot be read.
    pub fn new(target: &WeightFile, decoder: &Decoder, compute: &Compute) -> Result<Self> {
        let spec = ModelSpec::from_gguf(target.gguf())?;
        let embedding = match decoder.host_embedding() {
            Some(shared) => shared,
            None => Arc::new(target.host_embedding((spec.n_vocab, spec.n_embd), None, compute.threads())?),
        };
        Ok(Self {
            output_norm: target.vector(output_norm(target), spec.n_embd, &Device::Cpu)?.to_vec1::<f32>()?,
            n_embd: spec.n_embd,
            n_layer: spec.n_layer,
            n_vocab: spec.n_vocab,
            name: spec.name.clone(),
            file: target.clone(),
            embedding,
            spec,
        })
    }

    /// Returns rows of the embedding, `[tokens, n_embd]`.
    ///
    /// # Errors
    /// If candle cannot dequantise the type of the table.
    pub fn embeddings(&self, tokens: &[TokenId]) -> Result<Vec<f32>> {
        self.embedding.host_rows(tokens)
    }

    /// Returns what turns products with rows of the output head into logits.
    pub fn logit_scaling(&self) -> LogitScaling {
        self.spec.logit_scaling()
    }

    /// Returns rows of the output head, `[tokens, n_embd]`.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn head_rows(&self, tokens: &[TokenId]) -> Result<Vec<f32>> {
        let (dtype, rows) = self.file.head_rows((self.spec.n_vocab, self.n_embd), tokens)?;
        dequantise(dtype, rows)
    }
}
