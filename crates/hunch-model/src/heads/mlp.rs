//! A head without attention: one feed-forward block over the target's hidden states and the last token's embedding.
//!
//! It reads the row before token t. f is the target's final state after the output norm, and s_i its residual stream
//! after the tapped layers. e is the embedding of t, and n the RMS norm without weights.
//!
//! ```text
//! x = fc [f; n(s_1); n(s_2); n(s_3); n(e)]
//! x = x + down (silu(gate y) * up y),   y = RMS norm of x
//! logits = rows of the target's output head * (x * out_scale + out_shift)
//! ```
//!
//! The embedding and the rows of the output head are the target's own. Only the tokens of a shortlist are scored.

use std::sync::Arc;

use candle_core::Device;
use hunch_core::propose::head::DraftHead;
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use hunch_kernels::WeightMatrix;
use hunch_kernels::activation::{Activation, rms_norm};
use hunch_kernels::matmul::{Input, multiply_gated};
use hunch_kernels::quantise::QuantisedRows;

use super::linear::{head_rows, product};
use crate::decoder::Decoder;
use crate::device::Compute;
use crate::gguf::Gguf;
use crate::spec::ModelSpec;
use crate::weights::{Embedding, MatrixRows, WeightFile};

/// Epsilon of the norms without weights.
const EPS: f32 = 1e-5;

/// A head of this architecture on the CPU.
pub(super) struct MlpHead {
    weights: Arc<Weights>,
    compute: Compute,
    workspace: Workspace,
}

struct Weights {
    /// Layers of the target that it reads. The last one is the target's last layer, for f.
    taps: Vec<usize>,
    fc: WeightMatrix,
    fc_bias: Vec<f32>,
    norm: Vec<f32>,
    gate: WeightMatrix,
    up: WeightMatrix,
    down: WeightMatrix,
    out_scale: Vec<f32>,
    out_shift: Vec<f32>,
    /// Tokens that are scored, one for each row of `scored`.
    vocabulary: Vec<TokenId>,
    /// Rows of the target's output head.
    scored: WeightMatrix,
    output_norm: Vec<f32>,
    output_eps: f32,
    ones: Vec<f32>,
    embedding: Arc<Embedding>,
    n_vocab: usize,
    /// Bytes that one draft reads.
    bytes: usize,
}

/// Buffers that are reused from draft to draft.
#[derive(Default)]
struct Workspace {
    input: Vec<f32>,
    quantised: QuantisedRows,
    x: Vec<f32>,
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
        let spec = ModelSpec::from_gguf(target.gguf())?;
        let (gguf, threads) = (head.gguf(), compute.threads());
        let invalid = |reason: String| Error::InvalidModelFile { path: gguf.path.clone(), reason };
        let (n, ff) = (spec.n_embd, size(gguf, "hunch-head.feed_forward_length")?);
        if size(gguf, "hunch-head.embedding_length")? != n {
            return Err(invalid(format!("it does not fit a target with states of {n} numbers")));
        }
        let mut taps = numbers(gguf, "hunch-head.layers", spec.n_layer)?;
        let inputs = taps.len() + 2;
        taps.push(spec.n_layer - 1);
        if !taps.is_sorted_by(|a, b| a < b) {
            return Err(invalid("its layers are not in ascending order below the last one".into()));
        }
        let vocabulary = numbers(gguf, "hunch-head.vocabulary", spec.n_vocab)?;
        if vocabulary.is_empty() || !vocabulary.is_sorted_by(|a, b| a < b) {
            return Err(invalid("its vocabulary is not in ascending order".into()));
        }
        let vocabulary: Vec<TokenId> = vocabulary.into_iter().map(|token| token as TokenId).collect();
        let matrix = |name: &str, n, k| {
            let unsupported = || invalid(format!("the type of {name} has no kernel"));
            head.matrix(&MatrixRows::whole(name, n, k), threads)?.ok_or_else(unsupported)
        };
        let vector = |file: &WeightFile, name: &str, len| -> Result<Vec<f32>> {
            let values = file.vector(name, len, &Device::Cpu)?.to_vec1::<f32>()?;
            if let Some(value) = values.iter().find(|value| !value.is_finite()) {
                let path = file.gguf().path.clone();
                return Err(Error::InvalidModelFile { path, reason: format!("{name} contains {value}") });
            }
            Ok(values)
        };
        let scored = head_rows(target, &spec, &vocabulary, threads)?;
        let row_bytes = target.head_bytes() / spec.n_vocab;
        let embedding = match decoder.host_embedding() {
            Some(shared) => shared,
            None => Arc::new(target.host_embedding((spec.n_vocab, n), None, threads)?),
        };
        let weights = Weights {
            fc: matrix("fc", n, inputs * n)?,
            fc_bias: vector(head, "fc.bias", n)?,
            norm: vector(head, "ffn_norm.weight", n)?,
            gate: matrix("ffn_gate", ff, n)?,
            up: matrix("ffn_up", ff, n)?,
            down: matrix("ffn_down", n, ff)?,
            out_scale: vector(head, "out_scale", n)?,
            out_shift: vector(head, "out_shift", n)?,
            bytes: head.weight_bytes() + row_bytes * vocabulary.len(),
            taps,
            vocabulary,
            scored,
            output_norm: vector(target, "output_norm.weight", n)?,
            output_eps: spec.rms_eps as f32,
            ones: vec![1.0; n],
            embedding,
            n_vocab: spec.n_vocab,
        };
        Ok(Self { weights: Arc::new(weights), compute: compute.clone(), workspace: Workspace::default() })
    }

    /// Computes the logits `[n_vocab]`.
    fn run(&mut self, features: &[Vec<f32>], token: TokenId) -> Result<Vec<f32>> {
        let (w, threads) = (&*self.weights, self.compute.threads());
        let Workspace { input, quantised, x, y, gated, scores } = &mut self.workspace;
        let n = w.ones.len();
        let (last, tapped) =
            features.split_last().ok_or_else(|| Error::Internal("no hidden states".into()))?;
        let embedding = w.embedding.host_rows(&[token])?;
        input.resize(w.fc_bias.len() * (tapped.len() + 2), 0.0);
        let mut parts = input.chunks_exact_mut(n);
        let mut put = |x: &[f32], weight: &[f32], eps| {
            if let Some(part) = parts.next() {
                rms_norm(x, weight, eps, part);
            }
        };
        put(last, &w.output_norm, w.output_eps);
        tapped.iter().for_each(|state| put(state, &w.ones, EPS));
        put(&embedding, &w.ones, EPS);

        x.resize(n, 0.0);
        product(threads, input, quantised, &w.fc, Some(&w.fc_bias), x, false);
        y.resize(n, 0.0);
        rms_norm(x, &w.norm, EPS, y);
        gated.resize(w.down_inputs(), 0.0);
        quantised.fill(threads, y);
        multiply_gated(threads, Input { x: y, quantised }, &w.gate, &w.up, Activation::Silu, gated);
        product(threads, gated, quantised, &w.down, None, x, true);
        for (x, (scale, shift)) in x.iter_mut().zip(w.out_scale.iter().zip(&w.out_shift)) {
            *x = *x * scale + shift;
        }
        scores.resize(w.vocabulary.len(), 0.0);
        product(threads, x, quantised, &w.scored, None, scores, false);
        let mut logits = vec![f32::NEG_INFINITY; w.n_vocab];
        for (&token, &score) in w.vocabulary.iter().zip(scores.iter()) {
            logits[token as usize] = score;
        }
        Ok(logits)
    }
}

impl Weights {
    fn down_inputs(&self) -> usize {
        self.up.rows()
    }
}

impl DraftHead for MlpHead {
    fn taps(&self) -> &[usize] {
        &self.weights.taps
    }

    fn logits(&mut self, features: &[Vec<f32>], tokens: &[TokenId]) -> hunch_core::error::Result<Vec<f32>> {
        let token = *tokens.last().ok_or_else(|| Error::Internal("no token".into()))?;
        Ok(self.run(features, token)?)
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

/// Reads numbers below `limit` from the header.
fn numbers(gguf: &Gguf, key: &str, limit: usize) -> Result<Vec<usize>> {
    let outside = |value: &i32| {
        let reason = format!("{key} contains {value}, but the target has {limit}");
        Error::InvalidModelFile { path: gguf.path.clone(), reason }
    };
    let number = |value: &i32| {
        usize::try_from(*value).ok().filter(|number| *number < limit).ok_or_else(|| outside(value))
    };
    gguf.require_i32s(key)?.iter().map(number).collect()
}
