//! Steps of a forward pass, and the trait for executing them on a device.
//!
//! [`decoder`](crate::decoder) loops over the steps. Device code and weights belong to the executors.

use std::sync::Arc;

use crate::cache::KvCache;
use crate::weights::Embedding;
use hunch_core::model::{LogitRows, PassOutput, Rows, VocabSubset};
use hunch_core::sample::DrawSettings;
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use hunch_kernels::{RowMask, WeightMatrix};

/// Fused step of a layer.
///
/// Operations are fused if they share an input or follow each other elementwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayerStep {
    /// Norm and projections of the mixer. Attention projects queries, keys and values, with biases, head norms and
    /// rotation, and writes keys and values to the cache.
    Project,
    /// Attention over the KV cache, or the mixer in its place over its state.
    Mix,
    /// Output product of the mixer, added to the residual stream.
    MixerOutput,
    /// Norm, gate and up products, and silu(gate) * up.
    GateUp,
    /// Down product, added to the residual stream.
    Down,
    /// Gated embedding of the layer's own, added to the residual stream, and the factor of the layer's output. Nothing
    /// for layers without both.
    LayerEmbedding,
}

/// Steps of a layer, in order.
pub(crate) const LAYER: [LayerStep; 6] = [
    LayerStep::Project,
    LayerStep::Mix,
    LayerStep::MixerOutput,
    LayerStep::GateUp,
    LayerStep::Down,
    LayerStep::LayerEmbedding,
];

/// Results of a pass that its caller wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedResults {
    /// Rows whose logits are computed.
    pub(crate) logits: LogitRows,
    /// Number of residual streams.
    pub(crate) taps: usize,
}

/// Random draw of a token on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw {
    /// Settings of the draw.
    pub(crate) settings: DrawSettings,
    /// Number of tokens drawn from.
    pub(crate) n_vocab: usize,
    /// Random number in `[0, 1)`.
    pub(crate) unit: f64,
}

/// Weights, working memory and KV cache of a model on one device.
pub(crate) trait Executor: Send {
    /// Starts a pass: reserves cache rows and sets the residual stream to the embeddings of `tokens`.
    ///
    /// # Errors
    /// If the cache is full or the device fails.
    fn begin(&mut self, tokens: &[TokenId], mask: &RowMask) -> Result<()>;
    /// Runs one step of layer `layer`.
    ///
    /// # Errors
    /// If the device fails.
    fn step(&mut self, layer: usize, step: LayerStep) -> Result<()>;
    /// Keeps the residual stream, `[rows, n_embd]`, as tap number `at`. The taps of a pass are kept in order.
    ///
    /// # Errors
    /// If the device fails.
    fn tap(&mut self, at: usize, wanted: WantedResults) -> Result<()>;
    /// Computes logits `[rows, n_vocab]` for the selected rows, and returns them with the residual streams that were
    /// kept. Waits once, if the device queues its work and something is wanted.
    ///
    /// An executor may compute only the tokens of `vocab_subset`. See [`PassInput`](hunch_core::model::PassInput).
    ///
    /// # Errors
    /// If the device fails.
    fn results(&mut self, wanted: WantedResults, vocab_subset: Option<&VocabSubset>) -> Result<PassOutput>;
    /// Returns `true` if the device can choose tokens and continue with them, without the host.
    fn can_choose(&self) -> bool {
        false
    }
    /// Returns the settings closest to these with which the device can draw tokens. `None` if it draws none.
    fn device_draw(&self, _settings: &DrawSettings) -> Option<DrawSettings> {
        None
    }
    /// Computes the logits of the last row, and chooses token number `at` of `count`: the most likely one, or a draw.
    ///
    /// # Errors
    /// If the device fails or [cannot choose](Self::can_choose).
    fn choose(&mut self, _at: usize, _count: usize, _draw: Option<Draw>) -> Result<()> {
        Err(Error::Internal("this device cannot choose tokens".into()))
    }
    /// Starts a pass of one row, whose token was chosen as number `at`.
    ///
    /// # Errors
    /// As [`begin`](Self::begin), and if the device [cannot choose](Self::can_choose).
    fn begin_chosen(&mut self, _at: usize, _mask: &RowMask) -> Result<()> {
        Err(Error::Internal("this device cannot choose tokens".into()))
    }
    /// Waits, and returns the `count` chosen tokens and the logits that they were chosen from.
    ///
    /// # Errors
    /// If the device fails or [cannot choose](Self::can_choose).
    fn chosen(&mut self, _count: usize) -> Result<(Vec<TokenId>, Rows)> {
        Err(Error::Internal("this device cannot choose tokens".into()))
    }
    /// Waits until all queued work of the pass is done.
    ///
    /// # Errors
    /// If the queued work failed.
    fn finish(&self) -> Result<()> {
        Ok(())
    }
    /// Returns an executor that shares the weights and has its own empty cache.
    fn fork(&self) -> Box<dyn Executor>;
    /// Returns `count` empty sequences that share passes. `None` if the device has no such passes.
    fn sequences(&self, _count: usize) -> Option<Box<dyn SequenceExecutor>> {
        None
    }
    /// Returns the embedding table, if it is in host memory.
    fn host_embedding(&self) -> Option<Arc<Embedding>> {
        None
    }
    /// Returns the number of different experts that the last pass read, as a mean over layers. `None` if it is unknown
    /// or the model has none.
    fn distinct_experts(&self) -> Option<f64> {
        None
    }
    /// Returns the output head, if it is in host memory and has a kernel.
    fn host_head(&self) -> Option<WeightMatrix> {
        None
    }
    /// Returns the KV cache.
    fn cache(&self) -> &KvCache;
    /// Returns the KV cache for changes.
    fn cache_mut(&mut self) -> &mut KvCache;
}

/// Several sequences over the weights of an executor, one row of each in a pass.
pub(crate) trait SequenceExecutor: Send {
    /// Returns the number of sequences.
    fn count(&self) -> usize;
    /// Returns the cache of a sequence.
    fn cache_mut(&mut self, sequence: usize) -> &mut KvCache;
    /// Appends tokens to one sequence.
    ///
    /// # Errors
    /// If the sequence's cache is full. It is then unchanged.
    fn prefill(&mut self, sequence: usize, tokens: &[TokenId]) -> Result<()>;
    /// Appends one token to each of the listed sequences, which must differ. Returns logits and taps in the same order.
    ///
    /// # Errors
    /// If a sequence's cache is full. All sequences are then unchanged.
    fn step(&mut self, rows: &[(usize, TokenId)], taps: &[usize]) -> Result<PassOutput>;
}
