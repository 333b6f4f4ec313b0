//! Heads that read the target's last state alone: the steps that Medusa and the MLP speculator share.
//!
//! They have no cache and no attention. A network computes the logits of each position of a draft. It reads
//! the target's final state after the output norm, and some read the drafted tokens.

use std::sync::Arc;

use hunch_core::model::Rows;
use hunch_core::propose::head::{DraftHead, TreeRows};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use hunch_kernels::Threads;
use hunch_kernels::activation::rms_norm;
use hunch_kernels::quantise::QuantisedRows;

use super::linear::vector;
use super::target_parts::TargetParts;
use crate::device::Compute;
use crate::tensor_names::output_norm;

/// Part of an architecture after the target's state.
pub(super) trait LastStateNetwork: Send + Sync + 'static {
    /// Returns whether it reads the drafted tokens. Otherwise the state does not change.
    fn reads_drafts(&self) -> bool;
    /// Returns the most tokens of a draft.
    fn depth(&self) -> usize;
    /// Computes the logits `[n_vocab]` of position `at` of a draft from the state, which it may change. `token` is the
    /// one before the position.
    ///
    /// # Errors
    /// If the device fails.
    fn step(
        &self,
        space: &mut ProductSpace<'_>,
        at: usize,
        state: &mut Vec<f32>,
        token: TokenId,
    ) -> Result<Vec<f32>>;
    /// Returns the bytes of weights that a drafted token reads.
    fn bytes(&self) -> usize;
}

/// Threads and memory for products.
pub(super) struct ProductSpace<'a> {
    pub(super) threads: &'a Threads,
    pub(super) quantised: &'a mut QuantisedRows,
}

/// A head of an architecture on the CPU.
pub(super) struct LastStateHead<N> {
    shared: Arc<SharedWeights<N>>,
    compute: Compute,
    quantised: QuantisedRows,
    state: Vec<f32>,
    /// State after each row of the current tree.
    tree: Vec<Vec<f32>>,
    /// Positions of the draft that were computed.
    at: usize,
}

struct SharedWeights<N> {
    network: N,
    /// The target's last layer.
    taps: [usize; 1],
    output_norm: Vec<f32>,
    output_eps: f32,
}

impl<N: LastStateNetwork> LastStateHead<N> {
    /// Joins a network with the target's output norm.
    ///
    /// # Errors
    /// If the target's file cannot be read.
    pub(super) fn new(network: N, target: &TargetParts<'_>) -> Result<Self> {
        let spec = &target.spec;
        let shared = SharedWeights {
            network,
            taps: [spec.n_layer - 1],
            output_norm: vector(target.file, output_norm(target.file), spec.n_embd)?,
            output_eps: spec.rms_eps as f32,
        };
        Ok(Self::of(Arc::new(shared), target.compute))
    }

    fn of(shared: Arc<SharedWeights<N>>, compute: &Compute) -> Self {
        let (quantised, compute) = (QuantisedRows::default(), compute.clone());
        Self { shared, compute, quantised, state: Vec::new(), tree: Vec::new(), at: 0 }
    }

    fn step(&mut self, token: TokenId) -> Result<Vec<f32>> {
        let mut state = std::mem::take(&mut self.state);
        let logits = self.position(self.at, &mut state, token);
        self.state = state;
        self.at += 1;
        logits
    }

    /// Computes the logits of a position of a draft from the state before it, which becomes the one after it.
    fn position(&mut self, at: usize, state: &mut Vec<f32>, token: TokenId) -> Result<Vec<f32>> {
        let network = &self.shared.network;
        if at >= network.depth() {
            return Err(Error::Internal(format!("the head drafts {} tokens", network.depth())));
        }
        let mut space = ProductSpace { threads: self.compute.threads(), quantised: &mut self.quantised };
        network.step(&mut space, at, state, token)
    }
}

impl<N: LastStateNetwork> DraftHead for LastStateHead<N> {
    fn taps(&self) -> &[usize] {
        &self.shared.taps
    }

    fn max_depth(&self) -> usize {
        self.shared.network.depth()
    }

    fn logits(&mut self, features: &[Vec<f32>], tokens: &[TokenId]) -> hunch_core::error::Result<Vec<f32>> {
        let (Some(states), Some(token)) = (features.first(), tokens.last()) else {
            return Err(hunch_core::error::Error::Internal("a head without a row".into()));
        };
        let SharedWeights { output_norm, output_eps, .. } = &*self.shared;
        self.state.resize(output_norm.len(), 0.0);
        rms_norm(&states[states.len() - output_norm.len()..], output_norm, *output_eps, &mut self.state);
        self.at = 0;
        self.tree.clear();
        Ok(self.step(*token)?)
    }

    fn next_logits(&mut self, token: TokenId) -> hunch_core::error::Result<Vec<f32>> {
        Ok(self.step(token)?)
    }

    fn reads_drafts(&self) -> bool {
        self.shared.network.reads_drafts()
    }

    fn tree_logits(&mut self, rows: TreeRows<'_>) -> hunch_core::error::Result<Rows> {
        let (mut values, mut width) = (Vec::new(), 1);
        for (row, (&token, &depth)) in rows.tokens.iter().zip(rows.depths).enumerate() {
            let mut state = rows.parent(row).map_or(&self.state, |parent| &self.tree[parent]).clone();
            let logits = self.position(depth + 1, &mut state, token)?;
            self.tree.push(state);
            width = logits.len();
            values.extend(logits);
        }
        Ok(Rows::new(width, values))
    }

    fn fork(&self) -> Box<dyn DraftHead> {
        Box::new(Self::of(self.shared.clone(), &self.compute))
    }

    fn read_by_a_pass(&self) -> usize {
        self.shared.network.bytes()
    }
}
