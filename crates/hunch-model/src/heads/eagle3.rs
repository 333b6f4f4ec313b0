//! EAGLE-3 (Li et al., arXiv 2503.01840): a decoder layer with an output head of its own. It reads three residual
//! streams of the target and the embedding of the token after them.
//!
//! ```text
//! g = fc [s_1; s_2; s_3]
//! y = [input norm of e; hidden norm of g]
//! x = g, or the hidden norm of g with norm_before_residual
//! logits = lm_head * norm of x after the layer
//! ```
//!
//! x after the layer is the g of the next row (its norm with `norm_output`). The output head scores a part of the
//! vocabulary, which `d2t` names. Variants norm s_i before fc: `input_norm` all of them together, `fc_norm.i` each.

use hunch_error::{Error, Result};
use hunch_kernels::Threads;
use hunch_kernels::activation::{rms_norm, rms_norm_in_place};
use hunch_kernels::quantise::QuantisedRows;

use super::config::LayerConfig;
use super::eagle::{Fused, Fusion, States};
use super::linear::{Linear, vector};
use super::output_head::{self, OutputHead};
use super::target_parts::{TargetParts, taps};
use crate::tensor_files::TensorFiles;

/// Streams of the target that are read.
pub(super) const TAPS: usize = 3;

/// Fusion and scores of EAGLE-3.
pub(super) struct Eagle3 {
    taps: Vec<usize>,
    fc: Linear,
    input_norm: Vec<f32>,
    hidden_norm: Vec<f32>,
    /// Norm of all streams of a row, `[3 n]`, or of each, `[n]`. Empty for none.
    stream_norms: Vec<Vec<f32>>,
    norm: Vec<f32>,
    eps: f32,
    head: OutputHead,
    norm_before_residual: bool,
    norm_output: bool,
    bytes: usize,
}

impl Eagle3 {
    /// Norms of the layer's inputs.
    pub(super) const NORMS: [&str; 2] = ["input_layernorm", "hidden_norm"];

    /// Returns whether a tensor belongs to it, apart from the layer.
    pub(super) fn has(name: &str) -> bool {
        let own = ["fc.weight", "fc.bias", "norm.weight", "input_norm.weight"];
        let norm = name.strip_prefix("fc_norm.").and_then(|name| name.strip_suffix(".weight"));
        own.contains(&name)
            || output_head::TENSORS.contains(&name)
            || norm.is_some_and(|i| ["0", "1", "2"].contains(&i))
    }

    /// Loads everything but the layer, whose tensors begin with `prefix`.
    ///
    /// # Errors
    /// If a tensor is missing, has the wrong shape or is not finite, or the vocabulary does not fit the target's.
    pub(super) fn load(
        file: &TensorFiles,
        prefix: &str,
        config: &LayerConfig,
        target: &TargetParts<'_>,
    ) -> Result<Self> {
        let (n, threads) = (config.n_embd, target.compute.threads());
        let weights = &file.weights;
        let invalid = |reason: String| Error::InvalidModelFile { path: weights.gguf().path.clone(), reason };
        let fc = Linear::load(weights, "fc", (n, TAPS * n), threads)?;
        let head = OutputHead::load(file, n, config.n_draft_vocab, target)?;
        let layer = |part: &str| vector(weights, &format!("{prefix}.{part}.weight"), n);
        Ok(Self {
            taps: taps(target.spec.n_layer, config.taps.as_deref(), TAPS).map_err(invalid)?,
            bytes: fc.bytes(TAPS * n) + head.bytes(),
            fc,
            input_norm: layer("input_layernorm")?,
            hidden_norm: layer("hidden_norm")?,
            stream_norms: stream_norms(file, n)?,
            norm: vector(weights, "norm.weight", n)?,
            eps: config.eps as f32,
            head,
            norm_before_residual: config.norm_before_residual,
            norm_output: config.norm_output,
        })
    }

    /// Fuses the target's streams into `g`.
    fn streams(&self, threads: &Threads, taps: &[Vec<f32>], quantised: &mut QuantisedRows, g: &mut [f32]) {
        let n = self.norm.len();
        let mut joined = vec![0.0; TAPS * g.len()];
        for (row, joined) in joined.chunks_exact_mut(TAPS * n).enumerate() {
            for (part, tap) in joined.chunks_exact_mut(n).zip(taps) {
                part.copy_from_slice(&tap[row * n..(row + 1) * n]);
            }
            let width = self.stream_norms.first().map_or(n, Vec::len);
            for (part, norm) in joined.chunks_exact_mut(width).zip(&self.stream_norms) {
                rms_norm_in_place(part, norm, self.eps);
            }
        }
        self.fc.apply(threads, &joined, quantised, g, false);
    }
}

/// Loads the norms before fc.
fn stream_norms(file: &TensorFiles, n: usize) -> Result<Vec<Vec<f32>>> {
    if file.shape("input_norm.weight").is_some() {
        return Ok(vec![vector(&file.weights, "input_norm.weight", TAPS * n)?]);
    }
    if file.shape("fc_norm.0.weight").is_none() {
        return Ok(Vec::new());
    }
    (0..TAPS).map(|i| vector(&file.weights, &format!("fc_norm.{i}.weight"), n)).collect()
}

impl Fusion for Eagle3 {
    fn taps(&self) -> &[usize] {
        &self.taps
    }

    fn norms_states(&self) -> bool {
        // `input_norm` of all streams together keeps their relative lengths.
        self.stream_norms.len() == TAPS
    }

    fn fuse(&self, threads: &Threads, states: States<'_>, embeddings: &[f32], out: &mut Fused) {
        let n = self.norm.len();
        let Fused { y, x, quantised } = out;
        x.resize(embeddings.len(), 0.0);
        match states {
            States::Target(taps) => self.streams(threads, taps, quantised, x),
            States::Own(own) => x.copy_from_slice(own),
        }
        y.resize(2 * embeddings.len(), 0.0);
        let rows = x.chunks_exact_mut(n).zip(embeddings.chunks_exact(n));
        for (y, (x, e)) in y.chunks_exact_mut(2 * n).zip(rows) {
            let (first, second) = y.split_at_mut(n);
            rms_norm(e, &self.input_norm, self.eps, first);
            rms_norm(x, &self.hidden_norm, self.eps, second);
            if self.norm_before_residual {
                x.copy_from_slice(second);
            }
        }
    }

    fn score(&self, threads: &Threads, x: &[f32], quantised: &mut QuantisedRows) -> (Vec<f32>, Vec<f32>) {
        let mut normed = x.to_vec();
        let n = self.norm.len();
        normed.chunks_exact_mut(n).for_each(|row| rms_norm_in_place(row, &self.norm, self.eps));
        let logits = self.head.logits(threads, &normed, quantised);
        (logits, if self.norm_output { normed } else { x.to_vec() })
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}
