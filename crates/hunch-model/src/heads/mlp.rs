//! A head without attention: one feed-forward block over the target's hidden states and the last token's embedding.
//!
//! It reads the row before token t. f is the target's final state after the output norm, and s_i its residual stream
//! after the tapped layers. e is the embedding of t, and n the RMS norm without weights.
//!
//! ```text
//! x = fc [f; n(s_1); n(s_2); n(s_3); n(e)]
//! x = x + down (silu(gate y) * up y),   y = RMS norm of x
//! logits = rows of the target's output head * (x * out_scale + out_shift), scaled and bounded as the target's
//! ```
//!
//! A head that drafts several tokens has a second step, which it repeats. x' is the x of the step before, and e the
//! embedding of the token that it drafted. The context is computed once a draft.
//!
//! ```text
//! context = context [f; n(s_1); n(s_2); n(s_3)]
//! x = context + next.fc [n(x'); n(e)]
//! ```
//!
//! The rest of the step is the same, with a feed-forward block of its own. The embedding and the rows of the output head are the target's own. Only the tokens of a shortlist are scored.

use std::sync::Arc;

use hunch_core::model::Rows;
use hunch_core::propose::head::{DraftHead, TreeRows};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use hunch_kernels::activation::{Activation, rms_norm};
use hunch_kernels::matmul::{ProductInput, multiply_gated};
use hunch_kernels::quantise::QuantisedRows;
use hunch_kernels::{Threads, WeightMatrix};

use super::linear::{head_rows, product, vector};
use super::memory::{bytes_of_a_draft, depth};
use super::vocabulary::{numbers, own_vocabulary};
use crate::decoder::Decoder;
use crate::device::Compute;
use crate::gguf::Gguf;
use crate::spec::{LogitScaling, ModelSpec};
use crate::tensor_names::output_norm;
use crate::weights::{Embedding, MatrixRows, WeightFile};

/// Epsilon of the norms without weights.
const EPS: f32 = 1e-5;

/// A head of this architecture on the CPU.
pub(super) struct MlpHead {
    weights: Arc<LoadedMlp>,
    compute: Compute,
    workspace: Workspace,
}

struct LoadedMlp {
    /// Layers of the target that it reads. The last one is the target's last layer, for f.
    taps: Vec<usize>,
    first: FirstStep,
    next: Option<NextStep>,
    out_scale: Vec<f32>,
    out_shift: Vec<f32>,
    /// Tokens that are scored, one for each row of `scored`.
    vocabulary: Vec<TokenId>,
    /// Rows of the target's output head.
    scored: WeightMatrix,
    scaling: LogitScaling,
    output_norm: Vec<f32>,
    output_eps: f32,
    ones: Vec<f32>,
    embedding: Arc<Embedding>,
    n_vocab: usize,
    /// Most tokens of a draft.
    depth: usize,
    /// Bytes that a drafted token reads, on average over a draft of `depth` tokens.
    bytes: usize,
}

/// Weights of the first token of a draft.
struct FirstStep {
    fc: WeightMatrix,
    bias: Vec<f32>,
    block: FeedForwardBlock,
}

/// Weights of each further token of a draft.
struct NextStep {
    context: WeightMatrix,
    bias: Vec<f32>,
    fc: WeightMatrix,
    block: FeedForwardBlock,
}

/// Feed-forward block.
struct FeedForwardBlock {
    norm: Vec<f32>,
    gate: WeightMatrix,
    up: WeightMatrix,
    down: WeightMatrix,
}

/// Buffers that are reused from draft to draft.
#[derive(Default)]
struct Workspace {
    /// States and embedding of the current row, normed.
    input: Vec<f32>,
    /// Context of the further tokens of the current row. Empty until one is drafted.
    context: Vec<f32>,
    /// x of the last step.
    x: Vec<f32>,
    /// x after each row of the current tree.
    tree: Vec<Vec<f32>>,
    quantised: QuantisedRows,
    pair: Vec<f32>,
    y: Vec<f32>,
    gated: Vec<f32>,
    scores: Vec<f32>,
}

impl MlpHead {
    /// Loads a head, and what it needs of the target.
    ///
    /// # Errors
    /// [`Error::InvalidModelFile`] if a tensor or entry is missing, has the wrong shape or does not fit the target.
    pub(super) fn load(
        head: &WeightFile,
        target: &WeightFile,
        decoder: &Decoder,
        compute: &Compute,
    ) -> Result<Self> {
        head.check_finite()?;
        let spec = ModelSpec::from_gguf(target.gguf())?;
        let (gguf, threads) = (head.gguf(), compute.threads());
        let invalid = |reason: String| Error::InvalidModelFile { path: gguf.path.clone(), reason };
        let (n, ff) = (spec.n_embd, size(gguf, "hunch-head.feed_forward_length")?);
        if size(gguf, "hunch-head.embedding_length")? != n {
            return Err(invalid(format!("it does not fit a target with states of {n} numbers")));
        }
        let mut taps = numbers(gguf, "hunch-head.layers", spec.n_layer)?;
        let states = taps.len() + 1;
        taps.push(spec.n_layer - 1);
        if !taps.is_sorted_by(|a, b| a < b) {
            return Err(invalid("its layers are not in ascending order below the last one".into()));
        }
        let vocabulary = own_vocabulary(gguf, spec.n_vocab)?;
        let depth = depth(gguf)?;
        let matrix = |name: &str, n, k| {
            let unsupported = || invalid(format!("the type of {name} has no kernel"));
            head.matrix(&MatrixRows::whole(name, n, k), threads)?.ok_or_else(unsupported)
        };
        let block = |prefix: &str| -> Result<FeedForwardBlock> {
            Ok(FeedForwardBlock {
                norm: vector(head, &format!("{prefix}ffn_norm.weight"), n)?,
                gate: matrix(&format!("{prefix}ffn_gate"), ff, n)?,
                up: matrix(&format!("{prefix}ffn_up"), ff, n)?,
                down: matrix(&format!("{prefix}ffn_down"), n, ff)?,
            })
        };
        let next_step = || -> Result<NextStep> {
            Ok(NextStep {
                context: matrix("context", n, states * n)?,
                bias: vector(head, "context.bias", n)?,
                fc: matrix("next.fc", n, 2 * n)?,
                block: block("next.")?,
            })
        };
        let scored = head_rows(target, &spec, &vocabulary, threads)?;
        let embedding = match decoder.host_embedding() {
            Some(shared) => shared,
            None => Arc::new(target.host_embedding((spec.n_vocab, n), None, threads)?),
        };
        let scored_bytes = target.head_bytes() / spec.n_vocab * vocabulary.len();
        let weights = LoadedMlp {
            first: FirstStep {
                fc: matrix("fc", n, (states + 1) * n)?,
                bias: vector(head, "fc.bias", n)?,
                block: block("")?,
            },
            next: if depth > 1 { Some(next_step()?) } else { None },
            out_scale: vector(head, "out_scale", n)?,
            out_shift: vector(head, "out_shift", n)?,
            depth,
            bytes: bytes_of_a_draft(gguf, depth, scored_bytes as u64) as usize,
            taps,
            vocabulary,
            scored,
            scaling: spec.logit_scaling(),
            output_norm: vector(target, output_norm(target), n)?,
            output_eps: spec.rms_eps as f32,
            ones: vec![1.0; n],
            embedding,
            n_vocab: spec.n_vocab,
        };
        Ok(Self { weights: Arc::new(weights), compute: compute.clone(), workspace: Workspace::default() })
    }

    /// Computes the logits `[n_vocab]` of the first token of a draft.
    fn run(&mut self, features: &[Vec<f32>], token: TokenId) -> Result<Vec<f32>> {
        let (w, threads, work) = (&*self.weights, self.compute.threads(), &mut self.workspace);
        let n = w.ones.len();
        let (last, tapped) =
            features.split_last().ok_or_else(|| Error::Internal("no hidden states".into()))?;
        let embedding = w.embedding.host_rows(&[token])?;
        work.input.resize(n * (tapped.len() + 2), 0.0);
        let mut parts = work.input.chunks_exact_mut(n);
        let mut put = |x: &[f32], weight: &[f32], eps| {
            if let Some(part) = parts.next() {
                rms_norm(x, weight, eps, part);
            }
        };
        put(last, &w.output_norm, w.output_eps);
        tapped.iter().for_each(|state| put(state, &w.ones, EPS));
        put(&embedding, &w.ones, EPS);
        work.context.clear();
        work.tree.clear();
        work.x.resize(n, 0.0);
        let Workspace { input, quantised, x, .. } = work;
        product(threads, input, quantised, &w.first.fc, Some(&w.first.bias), x, false);
        Ok(work.finish(w, &w.first.block, threads))
    }

    /// Computes the logits of a further token. The step before left x, and drafted `token`.
    fn run_next(&mut self, token: TokenId) -> Result<Vec<f32>> {
        let (w, threads, work) = (&*self.weights, self.compute.threads(), &mut self.workspace);
        let Some(next) = &w.next else {
            return Err(Error::Internal("the head drafts one token".into()));
        };
        let n = w.ones.len();
        let Workspace { input, context, x, quantised, pair, .. } = work;
        if context.is_empty() {
            context.resize(n, 0.0);
            product(
                threads,
                &input[..input.len() - n],
                quantised,
                &next.context,
                Some(&next.bias),
                context,
                false,
            );
        }
        pair.resize(2 * n, 0.0);
        let (before, embedding) = pair.split_at_mut(n);
        rms_norm(x, &w.ones, EPS, before);
        rms_norm(&w.embedding.host_rows(&[token])?, &w.ones, EPS, embedding);
        x.copy_from_slice(context);
        product(threads, pair, quantised, &next.fc, None, x, true);
        Ok(work.finish(w, &next.block, threads))
    }
}

impl Workspace {
    /// Applies a feed-forward block to x, and returns the logits `[n_vocab]`.
    fn finish(&mut self, w: &LoadedMlp, block: &FeedForwardBlock, threads: &Threads) -> Vec<f32> {
        let Self { quantised, x, y, gated, scores, .. } = self;
        y.resize(x.len(), 0.0);
        rms_norm(x, &block.norm, EPS, y);
        gated.resize(block.up.rows(), 0.0);
        quantised.fill(threads, y);
        multiply_gated(
            threads,
            ProductInput { x: y, quantised },
            &block.gate,
            &block.up,
            Activation::Silu,
            gated,
        );
        product(threads, gated, quantised, &block.down, None, x, true);
        for ((y, x), (scale, shift)) in y.iter_mut().zip(&*x).zip(w.out_scale.iter().zip(&w.out_shift)) {
            *y = *x * scale + shift;
        }
        scores.resize(w.vocabulary.len(), 0.0);
        product(threads, y, quantised, &w.scored, None, scores, false);
        w.scaling.apply(scores);
        let mut logits = vec![f32::NEG_INFINITY; w.n_vocab];
        for (&token, &score) in w.vocabulary.iter().zip(scores.iter()) {
            logits[token as usize] = score;
        }
        logits
    }
}

impl DraftHead for MlpHead {
    fn taps(&self) -> &[usize] {
        &self.weights.taps
    }

    fn max_depth(&self) -> usize {
        self.weights.depth
    }

    fn logits(&mut self, features: &[Vec<f32>], tokens: &[TokenId]) -> hunch_core::error::Result<Vec<f32>> {
        let token = *tokens.last().ok_or_else(|| Error::Internal("no token".into()))?;
        Ok(self.run(features, token)?)
    }

    fn next_logits(&mut self, token: TokenId) -> hunch_core::error::Result<Vec<f32>> {
        Ok(self.run_next(token)?)
    }

    fn tree_logits(&mut self, rows: TreeRows<'_>) -> hunch_core::error::Result<Rows> {
        let mut values = Vec::with_capacity(rows.tokens.len() * self.weights.n_vocab);
        let root = self.workspace.x.clone();
        for (row, &token) in rows.tokens.iter().enumerate() {
            let Workspace { x, tree, .. } = &mut self.workspace;
            x.clone_from(rows.parent(row).map_or(&root, |parent| &tree[parent]));
            values.extend(self.run_next(token)?);
            self.workspace.tree.push(self.workspace.x.clone());
        }
        // The next rows of the tree may follow the root.
        self.workspace.x = root;
        Ok(Rows::new(self.weights.n_vocab, values))
    }

    fn fork(&self) -> Box<dyn DraftHead> {
        let (weights, compute) = (self.weights.clone(), self.compute.clone());
        Box::new(Self { weights, compute, workspace: Workspace::default() })
    }

    fn read_by_a_pass(&self) -> usize {
        self.weights.bytes
    }
}

/// Reads a size from the header.
fn size(gguf: &Gguf, key: &str) -> Result<usize> {
    let missing = || Error::InvalidModelFile { path: gguf.path.clone(), reason: format!("{key} is missing") };
    gguf.u32(key).map(|size| size as usize).ok_or_else(missing)
}
