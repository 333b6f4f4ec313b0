//! DFlash (arXiv 2602.06036): a small decoder that drafts a block of tokens in one pass.
//!
//! ```text
//! c = hidden norm of fc [s_1; ...; s_T]     a row of the text, from T residual streams of the target
//! x = [e(last token); e(mask); ...]         the block
//! x = layer(x)                              keys and values of c and of the normed x, for every layer
//! logits = head * norm of x                 row i scores the token at place i of the block
//! ```
//!
//! The rows of a block see the text and each other, by layer within a window or without later rows ([`BlockAttention`]).
//! The block has no drafted tokens, so these do not depend on each other: their probabilities follow from the text and
//! their place alone. The text has keys and values in the cache, a block leaves nothing there.
//!
//! DSpark is a DFlash head with a [`Markov`] head, by which the drafted token before a place changes its logits. Some
//! heads are trained to score the first token in the row of the last one, and so on.

use std::sync::Arc;

use hunch_core::model::Rows;
use hunch_core::propose::head::{DraftHead, TreeRows};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use hunch_kernels::activation::{rms_norm, rms_norm_in_place};
use hunch_kernels::quantise::QuantisedRows;

use super::block_config::{BlockConfig, MOST};
use super::config::LayerConfig;
use super::layer::{BlockAttention, CachedLayer, DecoderLayer, HEAD_NORMS, is_of_layer};
use super::linear::{Linear, vector};
use super::markov::Markov;
use super::output_head::{self, OutputHead};
use super::target_parts::TargetParts;
use crate::device::Compute;
use crate::spec::ModelSpec;
use crate::tensor_files::TensorFiles;
use crate::weights::Embedding;

/// Rows of a block that are scored at once. Most drafts are no longer.
const SCORED_ROWS: usize = 4;
/// Norm before attention.
const INPUT_NORM: &str = "input_layernorm";

/// Returns whether a tensor belongs to a head of `layers` layers.
pub(super) fn has(name: &str, layers: usize) -> bool {
    let norms = [INPUT_NORM, HEAD_NORMS[0], HEAD_NORMS[1]];
    ["fc.weight", "hidden_norm.weight", "norm.weight"].contains(&name)
        || output_head::TENSORS.contains(&name)
        || (0..layers.min(MOST)).any(|layer| is_of_layer(name, &prefix(layer), &norms))
}

fn prefix(layer: usize) -> String {
    format!("layers.{layer}")
}

/// A DFlash head on the CPU.
pub(super) struct DFlash {
    weights: Arc<OuterWeights>,
    layers: Vec<DecoderLayer>,
    compute: Compute,
    quantised: QuantisedRows,
    /// Normed states of the current block that are not scored yet, `[rows, n]`.
    unscored: Vec<f32>,
    /// Logits of the first places of the current block, `[n_vocab]` each, without what the Markov head adds.
    scored: Vec<Vec<f32>>,
    /// Places of the current chain.
    drafted: usize,
}

/// Weights outside of the layers.
struct OuterWeights {
    taps: Vec<usize>,
    depth: usize,
    rows: usize,
    /// Row of the block that scores the first token.
    first: usize,
    fc: Linear,
    hidden_norm: Vec<f32>,
    input_norms: Vec<Vec<f32>>,
    /// Positions that a block sees, by layer.
    attention: Vec<BlockAttention>,
    norm: Vec<f32>,
    eps: f32,
    embedding: Arc<Embedding>,
    mask: TokenId,
    head: OutputHead,
    markov: Option<Markov>,
    n_vocab: usize,
}

impl DFlash {
    /// Loads a head.
    ///
    /// # Errors
    /// If a tensor is missing, has the wrong shape or is not finite, or the head does not fit the target.
    pub(super) fn load(
        file: &TensorFiles,
        (config, block): (&LayerConfig, &BlockConfig),
        embedding: Arc<Embedding>,
        target: &TargetParts<'_>,
    ) -> Result<Self> {
        let (n, n_vocab, compute) = (config.n_embd, target.spec.n_vocab, target.compute);
        let weights = &file.weights;
        let invalid = |reason: String| Error::InvalidModelFile { path: weights.gguf().path.clone(), reason };
        if config.layers > MOST {
            return Err(invalid(format!("it has {} layers, and at most {MOST} are possible", config.layers)));
        }
        if block.mask as usize >= n_vocab {
            return Err(invalid(format!("its mask is token {}, outside of the vocabulary", block.mask)));
        }
        let norms = (0..config.layers)
            .flat_map(|layer| HEAD_NORMS.map(|norm| format!("{}.{norm}.weight", prefix(layer))));
        for name in norms {
            if file.shape(&name).is_none() {
                return Err(invalid(format!("the tensor {name} is missing")));
            }
        }
        let taps = block.taps(config, target.spec.n_layer).map_err(invalid)?;
        let (rows, first) = (block.depth() + block.first_row(), block.first_row());
        // A block follows the last token of the context.
        let context_length = target.spec.context_length + rows;
        let spec = ModelSpec { context_length, ..target.spec.clone() };
        let layer = |layer| DecoderLayer::load(weights, &prefix(layer), (config, n), &spec, compute);
        let input_norm = |layer| vector(weights, &format!("{}.{INPUT_NORM}.weight", prefix(layer)), n);
        let head = OutputHead::load(file, n, config.n_draft_vocab, target)?;
        let weights = OuterWeights {
            depth: block.depth(),
            rows,
            first,
            fc: Linear::load(weights, "fc", (n, taps.len() * n), compute.threads())?,
            hidden_norm: vector(weights, "hidden_norm.weight", n)?,
            input_norms: (0..config.layers).map(input_norm).collect::<Result<_>>()?,
            attention: block.attention.clone(),
            norm: vector(weights, "norm.weight", n)?,
            eps: config.eps as f32,
            embedding,
            mask: block.mask,
            markov: Markov::load(file, (n_vocab, head.scored()), compute.threads())?,
            head,
            n_vocab,
            taps,
        };
        let layers = (0..config.layers).map(layer).collect::<Result<_>>()?;
        Ok(Self::of(Arc::new(weights), layers, compute.clone()))
    }

    fn of(weights: Arc<OuterWeights>, layers: Vec<DecoderLayer>, compute: Compute) -> Self {
        let (quantised, unscored, scored) = (QuantisedRows::default(), Vec::new(), Vec::new());
        Self { weights, layers, compute, quantised, unscored, scored, drafted: 0 }
    }

    /// Appends rows of the text to the cache of every layer.
    fn append(&mut self, features: &[Vec<f32>]) -> Result<()> {
        let Self { weights: w, layers, compute, quantised, .. } = self;
        let n = w.norm.len();
        let (count, rows) = (features.len(), features.first().map_or(0, |stream| stream.len() / n));
        let mut joined = vec![0.0; count * rows * n];
        for (row, joined) in joined.chunks_exact_mut(count * n).enumerate() {
            for (part, stream) in joined.chunks_exact_mut(n).zip(features) {
                part.copy_from_slice(&stream[row * n..(row + 1) * n]);
            }
        }
        let mut context = vec![0.0; rows * n];
        w.fc.apply(compute.threads(), &joined, quantised, &mut context, false);
        context.chunks_exact_mut(n).for_each(|row| rms_norm_in_place(row, &w.hidden_norm, w.eps));
        let before = layers.first().map_or(0, DecoderLayer::len);
        let appended = layers.iter_mut().try_for_each(|layer| layer.append(&context));
        if appended.is_err() {
            layers.iter_mut().for_each(|layer| layer.truncate(before));
        }
        appended
    }

    /// Runs a block after the text, which ends with `last`.
    fn run_block(&mut self, last: TokenId) -> Result<()> {
        let Self { weights: w, layers, .. } = self;
        let n = w.norm.len();
        let mut tokens = vec![w.mask; w.rows];
        tokens[0] = last;
        let mut x = w.embedding.host_rows(&tokens)?;
        let mut y = vec![0.0; x.len()];
        let text = layers.first().map_or(0, DecoderLayer::len);
        let parts = w.input_norms.iter().zip(&w.attention);
        let ran = layers.iter_mut().zip(parts).try_for_each(|(layer, (norm, attention))| {
            for (x, y) in x.chunks_exact(n).zip(y.chunks_exact_mut(n)) {
                rms_norm(x, norm, w.eps, y);
            }
            layer.run_block(&y, &mut x, *attention)
        });
        layers.iter_mut().for_each(|layer| layer.truncate(text));
        ran?;
        self.unscored = x.split_off(w.first * n);
        self.unscored.chunks_exact_mut(n).for_each(|row| rms_norm_in_place(row, &w.norm, w.eps));
        self.scored.clear();
        Ok(())
    }

    /// Returns the logits of a place of the block after a token.
    fn logits_at(&mut self, place: usize, before: TokenId) -> Result<Vec<f32>> {
        let Self { weights: w, compute, quantised, unscored, scored, .. } = self;
        while scored.len() <= place && !unscored.is_empty() {
            let rest = unscored.split_off(unscored.len().min(SCORED_ROWS * w.norm.len()));
            let logits = w.head.logits(compute.threads(), unscored, quantised);
            scored.extend(logits.chunks_exact(w.n_vocab).map(<[f32]>::to_vec));
            *unscored = rest;
        }
        let too_far = || Error::Internal(format!("a block drafts {} tokens", w.depth));
        let mut logits = scored.get(place).ok_or_else(too_far)?.clone();
        if let Some(markov) = &w.markov {
            w.head.add(&mut logits, &markov.bias(compute.threads(), before, quantised)?);
        }
        Ok(logits)
    }

    /// Returns the logits of the next place of a chain after a token.
    fn next_place(&mut self, before: TokenId) -> Result<Vec<f32>> {
        self.drafted += 1;
        self.logits_at(self.drafted - 1, before)
    }
}

impl DraftHead for DFlash {
    fn taps(&self) -> &[usize] {
        &self.weights.taps
    }

    fn max_depth(&self) -> usize {
        self.weights.depth
    }

    fn has_cache(&self) -> bool {
        true
    }

    fn logits(&mut self, features: &[Vec<f32>], tokens: &[TokenId]) -> hunch_core::error::Result<Vec<f32>> {
        let last =
            *tokens.last().ok_or_else(|| Error::Internal("a block without a token before it".into()))?;
        self.append(features)?;
        self.run_block(last)?;
        self.drafted = 0;
        Ok(self.next_place(last)?)
    }

    fn next_logits(&mut self, token: TokenId) -> hunch_core::error::Result<Vec<f32>> {
        Ok(self.next_place(token)?)
    }

    fn tree_logits(&mut self, rows: TreeRows<'_>) -> hunch_core::error::Result<Rows> {
        let mut values = Vec::with_capacity(rows.tokens.len() * self.weights.n_vocab);
        for (&token, depth) in rows.tokens.iter().zip(rows.depths) {
            values.extend(self.logits_at(depth + 1, token)?);
        }
        Ok(Rows::new(self.weights.n_vocab, values))
    }

    fn reads_drafts(&self) -> bool {
        self.weights.markov.is_some()
    }

    fn drafts_in_one_pass(&self) -> bool {
        true
    }

    fn read(&mut self, features: &[Vec<f32>], _: &[TokenId]) -> hunch_core::error::Result<()> {
        Ok(self.append(features)?)
    }

    fn truncate(&mut self, len: usize) {
        self.layers.iter_mut().for_each(|layer| layer.truncate(len));
    }

    fn fork(&self) -> Box<dyn DraftHead> {
        let layers = self.layers.iter().map(DecoderLayer::fork).collect();
        Box::new(Self::of(self.weights.clone(), layers, self.compute.clone()))
    }

    fn read_by_a_pass(&self) -> usize {
        let w = &self.weights;
        let fc = w.fc.bytes(w.taps.len() * w.norm.len());
        let markov = w.markov.as_ref().map_or(0, Markov::bytes);
        fc + self.layers.iter().map(DecoderLayer::bytes).sum::<usize>() + w.head.bytes() + markov
    }

    fn cache_bytes(&self) -> usize {
        self.layers.iter().map(DecoderLayer::cache_bytes).sum()
    }

    fn cache_per_token(&self) -> usize {
        self.layers.iter().map(DecoderLayer::cache_per_token).sum()
    }
}
