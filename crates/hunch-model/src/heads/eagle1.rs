//! EAGLE (Li et al., arXiv 2401.15077): a decoder layer over the target's final state and the embedding of the token
//! after it. HASS (Zhang et al., arXiv 2408.15766) has the same tensors.
//!
//! ```text
//! x = fc [e; f] + bias,   f = the target's final state after the output norm
//! y = x,   the layer has no norm before attention
//! logits = the target's output head * x after the layer
//! ```
//!
//! x after the layer is the f of the next row.

use hunch_error::Result;
use hunch_kernels::activation::rms_norm;
use hunch_kernels::quantise::QuantisedRows;
use hunch_kernels::{Threads, WeightMatrix};

use super::config::LayerConfig;
use super::eagle::{Fused, Fusion, States};
use super::linear::{Linear, product, target_head, vector};
use super::target_parts::TargetParts;
use crate::spec::LogitScaling;
use crate::tensor_names::output_norm;

/// Fusion and scores of EAGLE-1.
pub(super) struct Eagle1 {
    /// The target's last layer.
    taps: [usize; 1],
    fc: Linear,
    output_norm: Vec<f32>,
    output_eps: f32,
    head: WeightMatrix,
    /// Scaling of the target's logits.
    scaling: LogitScaling,
    bytes: usize,
}

impl Eagle1 {
    /// Returns whether a tensor belongs to it, apart from the layer.
    pub(super) fn has(name: &str) -> bool {
        ["fc.weight", "fc.bias"].contains(&name)
    }

    /// Loads everything but the layer.
    ///
    /// # Errors
    /// If a tensor is missing, has the wrong shape or is not finite.
    pub(super) fn load(
        file: &crate::weights::WeightFile,
        config: &LayerConfig,
        target: &TargetParts<'_>,
    ) -> Result<Self> {
        let (n, spec, threads) = (config.n_embd, &target.spec, target.compute.threads());
        let fc = Linear::load(file, "fc", (n, 2 * n), threads)?;
        let bytes = fc.bytes(2 * n) + target.file.head_bytes();
        Ok(Self {
            taps: [spec.n_layer - 1],
            fc,
            output_norm: vector(target.file, output_norm(target.file), n)?,
            output_eps: spec.rms_eps as f32,
            head: target_head(target.file, target.decoder, spec, threads)?,
            scaling: spec.logit_scaling(),
            bytes,
        })
    }
}

impl Fusion for Eagle1 {
    fn taps(&self) -> &[usize] {
        &self.taps
    }

    fn fuse(&self, threads: &Threads, states: States<'_>, embeddings: &[f32], out: &mut Fused) {
        let n = self.output_norm.len();
        let Fused { y, x, quantised } = out;
        y.resize(2 * embeddings.len(), 0.0);
        for (row, (y, e)) in y.chunks_exact_mut(2 * n).zip(embeddings.chunks_exact(n)).enumerate() {
            let (first, second) = y.split_at_mut(n);
            first.copy_from_slice(e);
            match states {
                States::Own(own) => second.copy_from_slice(&own[row * n..(row + 1) * n]),
                States::Target(taps) => {
                    rms_norm(&taps[0][row * n..(row + 1) * n], &self.output_norm, self.output_eps, second);
                }
            }
        }
        x.resize(embeddings.len(), 0.0);
        self.fc.apply(threads, y, quantised, x, false);
        y.clone_from(x);
    }

    fn score(&self, threads: &Threads, x: &[f32], quantised: &mut QuantisedRows) -> (Vec<f32>, Vec<f32>) {
        let mut logits = vec![0.0; x.len() / self.output_norm.len() * self.head.rows()];
        product(threads, x, quantised, &self.head, None, &mut logits, false);
        self.scaling.apply(&mut logits);
        (logits, x.to_vec())
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}
