//! Heads with one decoder layer whose output feeds the next step: the code shared by EAGLE-1, EAGLE-3 and MTP.
//!
//! Row i starts from the target's states at token i and the embedding of the token after it.
//! For a drafted token, the head's output at the row before it replaces the target's states.
//! An architecture defines the inputs of a row and its scores ([`Fusion`]).

use std::sync::Arc;

use hunch_core::limits::MAX_DRAFT;
use hunch_core::model::{RowLayout, Rows};
use hunch_core::propose::head::{DraftHead, TreeRows};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use hunch_kernels::Threads;
use hunch_kernels::quantise::QuantisedRows;

use super::layer::{CachedLayer, DecoderLayer};
use crate::device::Compute;
use crate::weights::Embedding;

/// Hidden states that rows are computed from.
#[derive(Clone, Copy)]
pub(super) enum States<'a> {
    /// The target's residual streams by tap, `[rows, n_embd]` each.
    Target(&'a [Vec<f32>]),
    /// The head's outputs at the previous rows, `[rows, n_embd]`.
    Own(&'a [f32]),
}

/// Inputs of the layer, `[rows, width]` each.
#[derive(Default)]
pub(super) struct Fused {
    /// Input of attention.
    pub(super) y: Vec<f32>,
    /// Residual stream.
    pub(super) x: Vec<f32>,
    /// Memory for products.
    pub(super) quantised: QuantisedRows,
}

/// Computation before and after the decoder layer, which differs between architectures.
pub(super) trait Fusion: Send + Sync + 'static {
    /// Returns the target's layers that the head reads, ascending.
    fn taps(&self) -> &[usize];
    /// Returns whether the target's states are normed first.
    fn norms_states(&self) -> bool {
        true
    }
    /// Computes the inputs of the layer from hidden states and token embeddings, `[rows, n_embd]` each.
    fn fuse(&self, threads: &Threads, states: States<'_>, embeddings: &[f32], out: &mut Fused);
    /// Computes logits `[rows, n_vocab]` from the layer's output `[rows, n_embd]`, and the hidden states for the next
    /// rows.
    fn score(&self, threads: &Threads, x: &[f32], quantised: &mut QuantisedRows) -> (Vec<f32>, Vec<f32>);
    /// Returns the bytes of weights that a drafted token reads, without the layer.
    fn bytes(&self) -> usize;
}

/// A head of an architecture on the CPU.
pub(super) struct LayerHead<F, L = DecoderLayer> {
    fusion: Arc<F>,
    layer: L,
    embedding: Arc<Embedding>,
    compute: Compute,
    fused: Fused,
    /// Hidden states for the row after the last, `[n_embd]`.
    last: Vec<f32>,
    /// Hidden states for the children of each row of the current tree, `[rows, n_embd]`.
    tree: Vec<f32>,
}

impl<F: Fusion, L: CachedLayer> LayerHead<F, L> {
    /// Joins the parts of a head.
    pub(super) fn new(fusion: F, layer: L, embedding: Arc<Embedding>, compute: &Compute) -> Self {
        Self::of(Arc::new(fusion), layer, embedding, compute.clone())
    }

    fn of(fusion: Arc<F>, layer: L, embedding: Arc<Embedding>, compute: Compute) -> Self {
        let (fused, last, tree) = (Fused::default(), Vec::new(), Vec::new());
        Self { fusion, layer, embedding, compute, fused, last, tree }
    }

    /// Appends rows.
    fn run(&mut self, states: States<'_>, tokens: &[TokenId], layout: RowLayout<'_>) -> Result<()> {
        let embeddings = self.embedding.host_rows(tokens)?;
        self.fusion.fuse(self.compute.threads(), states, &embeddings, &mut self.fused);
        self.layer.run(&self.fused.y, &mut self.fused.x, layout)
    }

    /// Scores the last row.
    fn score(&mut self) -> Result<Vec<f32>> {
        let Fused { x, quantised, .. } = &mut self.fused;
        let last = x.len().checked_sub(self.layer.width()).map(|from| &x[from..]);
        let last = last.ok_or_else(|| Error::Internal("a head was scored without a row".into()))?;
        let (logits, states) = self.fusion.score(self.compute.threads(), last, quantised);
        self.last = states;
        Ok(logits)
    }
}

impl<F: Fusion, L: CachedLayer> DraftHead for LayerHead<F, L> {
    fn taps(&self) -> &[usize] {
        self.fusion.taps()
    }

    fn max_depth(&self) -> usize {
        MAX_DRAFT
    }

    fn has_cache(&self) -> bool {
        true
    }

    fn norms_states(&self) -> bool {
        self.fusion.norms_states()
    }

    fn logits(&mut self, features: &[Vec<f32>], tokens: &[TokenId]) -> hunch_core::error::Result<Vec<f32>> {
        self.tree.clear();
        self.run(States::Target(features), tokens, RowLayout::Chain)?;
        Ok(self.score()?)
    }

    fn next_logits(&mut self, token: TokenId) -> hunch_core::error::Result<Vec<f32>> {
        let last = std::mem::take(&mut self.last);
        self.run(States::Own(&last), &[token], RowLayout::Chain)?;
        Ok(self.score()?)
    }

    fn tree_logits(&mut self, rows: TreeRows<'_>) -> hunch_core::error::Result<Rows> {
        let n = self.layer.width();
        let since = self.layer.len().saturating_sub(self.tree.len() / n);
        let parents = (0..rows.tokens.len()).map(|row| match rows.parent(row) {
            None => &self.last[..],
            Some(parent) => &self.tree[parent * n..(parent + 1) * n],
        });
        let states = parents.collect::<Vec<_>>().concat();
        let layout = RowLayout::Custom { since, depths: rows.depths, visible: rows.visible };
        self.run(States::Own(&states), rows.tokens, layout)?;
        let Fused { x, quantised, .. } = &mut self.fused;
        let (logits, states) = self.fusion.score(self.compute.threads(), x, quantised);
        self.tree.extend_from_slice(&states);
        Ok(Rows::new(logits.len() / rows.tokens.len(), logits))
    }

    fn read(&mut self, features: &[Vec<f32>], tokens: &[TokenId]) -> hunch_core::error::Result<()> {
        Ok(self.run(States::Target(features), tokens, RowLayout::Chain)?)
    }

    fn truncate(&mut self, len: usize) {
        self.layer.truncate(len);
        self.tree.clear();
    }

    fn fork(&self) -> Box<dyn DraftHead> {
        let (fusion, embedding) = (self.fusion.clone(), self.embedding.clone());
        Box::new(Self::of(fusion, self.layer.fork(), embedding, self.compute.clone()))
    }

    fn read_by_a_pass(&self) -> usize {
        self.layer.bytes() + self.fusion.bytes()
    }

    fn cache_bytes(&self) -> usize {
        self.layer.cache_bytes()
    }

    fn cache_per_token(&self) -> usize {
        self.layer.cache_per_token()
    }
}
