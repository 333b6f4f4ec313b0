//! Feed-forward networks of experts on a GPU: the router, and the products of the chosen experts.
//!
//! The dispatches themselves are in `metal::experts`. All dispatches of a pass are queued at once, so the CPU does not
//! know the chosen experts.

use std::sync::Arc;

use super::Joined;
use crate::metal::experts::{ExpertInput, ExpertMatrix, ExpertProduct, Routing};
use crate::metal::gpu::{Buffer, Gpu};
use crate::metal::kernels::{GpuProduct, Kernels, Scaling};
use crate::metal::matrix::{FloatFormat, Matrix};
use crate::metal::workspace::Activations;
use crate::spec::{Experts, ModelSpec};
use crate::tensor_names::{self, Dense};
use crate::weights::{ExpertMatrices, MatrixRows, WeightFile};
use hunch_error::Result;
use hunch_kernels::activation::Activation;

/// Weights of the experts of a layer.
pub(super) struct Mixture {
    router: Joined,
    /// Bias of the choice.
    bias: Option<Buffer>,
    gate: ExpertMatrix,
    up: ExpertMatrix,
    down: ExpertMatrix,
    shared: Option<Shared>,
}

/// Expert that all rows use.
struct Shared {
    gate_up: Joined,
    down: Joined,
    /// Projection of a row to the score of the expert.
    score: Option<Matrix>,
}

/// Buffers of the experts of a layer, kept from layer to layer and from pass to pass.
pub(super) struct MixtureSpace {
    rows: usize,
    /// Scores of the router, `[rows, experts]`.
    scores: Buffer,
    routing: Routing,
    /// Different experts of each layer in the last pass.
    distinct: Buffer,
    /// Gates and ups, `[rows, used, 2 * n_ff]`.
    gates: Buffer,
    /// Outputs of the experts, `[rows, used, n_embd]`.
    outputs: Buffer,
    shared: Option<SharedSpace>,
}

struct SharedSpace {
    gates: Buffer,
    out: Buffer,
    scores: Buffer,
}

impl MixtureSpace {
    /// Returns space for `rows` rows: `old`, if it has as many. `None` for a dense model.
    pub(super) fn for_rows(
        gpu: &Arc<dyn Gpu>,
        old: Option<Self>,
        rows: usize,
        spec: &ModelSpec,
    ) -> Result<Option<Self>> {
        let Some(experts) = &spec.experts else { return Ok(None) };
        if old.as_ref().is_some_and(|old| old.rows >= rows) {
            return Ok(old);
        }
        let floats = |width: usize| Buffer::new(gpu, 4 * rows * width);
        let shared = |width: usize| -> Result<SharedSpace> {
            Ok(SharedSpace { gates: floats(2 * width)?, out: floats(spec.n_embd)?, scores: floats(1)? })
        };
        Ok(Some(Self {
            rows,
            scores: floats(experts.count)?,
            routing: Routing::new(gpu, rows, experts)?,
            distinct: Buffer::with_words(gpu, &vec![0; spec.n_layer])?,
            gates: floats(2 * experts.used * experts.n_ff)?,
            outputs: floats(experts.used * spec.n_embd)?,
            shared: experts.shared.map(shared).transpose()?,
        }))
    }

    /// Returns the mean number of different experts of a layer with experts in the last pass. Waits for queued work.
    pub(super) fn distinct(&self, experts: &Experts) -> Option<f64> {
        let words = self.distinct.read(0, self.distinct.bytes()).ok()?;
        let counts = words.as_chunks::<4>().0.iter().enumerate().filter(|(layer, _)| experts.are_in(*layer));
        let layers = counts.clone().count();
        let all: u64 = counts.map(|(_, word)| u64::from(u32::from_le_bytes(*word))).sum();
        (layers > 0 && all > 0).then(|| all as f64 / layers as f64)
    }
}

/// State of a pass that the experts of a layer need.
#[derive(Clone, Copy)]
pub(super) struct MixturePass<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) space: &'a MixtureSpace,
    pub(super) experts: &'a Experts,
    pub(super) layer: usize,
    pub(super) rows: usize,
}

impl Mixture {
    /// Loads the matrices of one projection of all experts.
    pub(super) fn matrices(
        file: &WeightFile,
        gpu: &Arc<dyn Gpu>,
        of: &ExpertMatrices,
    ) -> Result<ExpertMatrix> {
        let (dtype, bytes, bias) = file.expert_bytes_of(of)?;
        ExpertMatrix::new(gpu, dtype, (of.experts, of.n, of.k), &bytes, bias.as_deref())
    }

    /// Loads the other weights of a layer.
    pub(super) fn load(
        file: &WeightFile,
        gpu: &Arc<dyn Gpu>,
        n_embd: usize,
        layer: tensor_names::Mixture<MatrixRows, Buffer, ExpertMatrix>,
    ) -> Result<Self> {
        let score = |buffer| Matrix::Float { format: FloatFormat::F32, buffer, n: 1, k: n_embd };
        let shared = |Dense { gate, up, down }: Dense<MatrixRows>| -> Result<Shared> {
            Ok(Shared {
                gate_up: Joined::load(file, gpu, &[gate, up])?,
                down: Joined::load(file, gpu, &[down])?,
                score: layer.shared_weight.map(score),
            })
        };
        Ok(Self {
            router: Joined::load(file, gpu, &[layer.router])?,
            bias: layer.bias,
            gate: layer.gate,
            up: layer.up,
            down: layer.down,
            shared: layer.shared.map(shared).transpose()?,
        })
    }

    /// Returns which forms of activations the first products of `rows` rows read.
    pub(super) fn forms(&self, rows: usize) -> u32 {
        let of_experts = [&self.gate, &self.up]
            .map(|part| Activations::forms(part.wants_quantised(), !part.wants_quantised(), rows));
        let of_shared = self.shared.as_ref().map_or(0, |shared| {
            let score = if shared.score.is_some() { Activations::forms(false, true, rows) } else { 0 };
            shared.gate_up.forms(rows) | score
        });
        self.router.forms(rows) | of_experts[0] | of_experts[1] | of_shared
    }

    /// Chooses the experts of each row of `x`, and writes the input of their last products to `x`.
    pub(super) fn gate_up(&self, pass: MixturePass<'_>, x: &Activations) -> Result<()> {
        let MixturePass { kernels, space, experts, layer, rows } = pass;
        self.router.multiply(kernels, x, rows, &space.scores, None)?;
        let distinct = (&space.distinct, layer);
        kernels.route(&space.scores, self.bias.as_ref(), (rows, experts), &space.routing, distinct)?;
        let product = |experts, offset, stride| ExpertProduct { experts, out: &space.gates, offset, stride };
        let (n_ff, stride) = (experts.n_ff, 2 * experts.n_ff);
        let products = [product(&self.gate, 0, stride), product(&self.up, n_ff, stride)];
        kernels.multiply_experts(&products, (x, ExpertInput::Rows), (rows, experts), &space.routing)?;
        if let (Some(Shared { gate_up, score, .. }), Some(shared)) = (&self.shared, &space.shared) {
            gate_up.multiply(kernels, x, rows, &shared.gates, None)?;
            if let Some(matrix) = score {
                let (out, scaling) = (&shared.scores, Scaling::NONE);
                let product =
                    GpuProduct { matrix, bias: None, out, offset: 0, stride: 1, add: false, scaling };
                kernels.multiply(product, x, rows)?;
            }
        }
        let forms = Activations::forms(self.down.wants_quantised(), !self.down.wants_quantised(), rows);
        let factors = experts.scales_input.then_some(&space.routing.weights);
        let activation = (experts.activation(), factors);
        kernels.gate(&space.gates, (rows * experts.used, n_ff), activation, x, forms)
    }

    /// Computes the sum of the outputs of each row's experts. `add` is the factor of sums that are added to `out`.
    pub(super) fn down(
        &self,
        pass: MixturePass<'_>,
        x: &Activations,
        n_embd: usize,
        (out, add): (&Buffer, Option<f32>),
    ) -> Result<()> {
        let MixturePass { kernels, space, experts, rows, .. } = pass;
        let outputs = &space.outputs;
        let product = ExpertProduct { experts: &self.down, out: outputs, offset: 0, stride: n_embd };
        kernels.multiply_experts(&[product], (x, ExpertInput::Entries), (rows, experts), &space.routing)?;
        let mut of_shared = None;
        if let (Some(Shared { gate_up, down, score }), Some(shared)) = (&self.shared, &space.shared) {
            let width = gate_up.width / 2;
            kernels.gate(&shared.gates, (rows, width), (Activation::Silu, None), x, down.forms(rows))?;
            down.multiply(kernels, x, rows, &shared.out, None)?;
            of_shared = Some((&shared.out, score.as_ref().map(|_| &shared.scores)));
        }
        let weights = (!experts.scales_input).then_some(&space.routing.weights);
        kernels.join_experts(outputs, (weights, experts.used), of_shared, (rows, n_embd), (out, add))
    }
}
