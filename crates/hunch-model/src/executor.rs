//! What a forward pass consists of: the fused steps every device runs, in their order. An executor
//! brings them to a device; [`decoder`](crate::decoder) is the loop over them. Nothing here
//! knows a device or a weight.

use crate::cache::KvCache;
use hunch_core::model::{LogitRows, Rows, VocabSubset};
use hunch_core::token::TokenId;
use hunch_error::Result;
use hunch_kernels::RowMask;

/// A step of a layer: what is done in one go, because its parts share an input or because the next
/// follows element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerStep {
    /// Norm; queries, keys and values with their biases; head norms; rotation; keys and values into
    /// the cache.
    QueryKeyValue,
    /// Attention over the cache.
    Attention,
    /// The output product, added to the residual stream.
    AttentionOutput,
    /// Norm; gate and up; silu(gate) * up.
    GateUp,
    /// The down product, added to the residual stream.
    Down,
}

/// The steps of every layer.
pub const LAYER: [LayerStep; 5] = [
    LayerStep::QueryKeyValue,
    LayerStep::Attention,
    LayerStep::AttentionOutput,
    LayerStep::GateUp,
    LayerStep::Down,
];

/// The weights of a model on a device, the memory of a pass, and the cache.
pub trait Executor: Send {
    /// Starts a pass: the residual stream is the embedding of `tokens`, a row each, and the cache has
    /// room for them.
    ///
    /// # Errors
    /// When the cache cannot hold them or the device fails.
    fn begin(&mut self, tokens: &[TokenId], mask: &RowMask) -> Result<()>;
    /// Runs one step of layer `layer`.
    ///
    /// # Errors
    /// When the device fails.
    fn step(&mut self, layer: usize, step: LayerStep) -> Result<()>;
    /// The residual stream, `[rows, n_embd]`.
    ///
    /// # Errors
    /// When the device fails.
    fn residual(&self) -> Result<Rows>;
    /// Output norm and head for the rows and tokens asked for, as [`Step`](hunch_core::model::Step) says.
    ///
    /// # Errors
    /// When the device fails.
    fn logits(&mut self, rows: LogitRows, vocab_subset: Option<&VocabSubset>) -> Result<Rows>;
    /// The same weights, with an empty cache of its own.
    fn fork(&self) -> Box<dyn Executor>;
    /// The cache.
    fn cache(&self) -> &KvCache;
    /// The cache.
    fn cache_mut(&mut self) -> &mut KvCache;
}
