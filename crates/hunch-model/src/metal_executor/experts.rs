//! Feed-forward networks of experts on a GPU: the router, and the products of the chosen experts.
//!
//! The dispatches themselves are in `metal::experts`. All dispatches of a pass are queued at once, so the CPU does not
//! know the chosen experts.

use std::sync::Arc;

use super::Joined;
use crate::metal::experts::{ExpertInput, ExpertMatrix, ExpertProduct, ExpertShape, Routing};
use crate::metal::gpu::{Buffer, Gpu};
use crate::metal::kernels::{GpuProduct, Kernels, NormInput, Scaling};
use crate::metal::matrix::{FloatFormat, Matrix};
use crate::metal::workspace::Activations;
use crate::spec::{Experts, ModelSpec};
use crate::tensor_names::{self, Dense, Parallel};
use crate::weights::{ExpertMatrices, MatrixRows, WeightFile};
use hunch_error::Result;
use hunch_kernels::activation::Activation;

/// Weights of the experts of a layer.
pub(super) struct Mixture {
    router: Joined,
    /// Bias of the choice.
    bias: Option<Buffer>,
    /// Factors of the experts' weights.
    factors: Option<Buffer>,
    /// Network next to the experts.
    pub(super) parallel: Option<GpuParallel>,
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

/// Dense network next to the experts of a layer, and its norms.
pub(super) struct GpuParallel {
    pub(super) gate_up: Joined,
    pub(super) down: Joined,
    pub(super) post_norm: Buffer,
    experts_norm: Buffer,
    pub(super) experts_post_norm: Buffer,
    router_norm: Buffer,
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
    /// Sums of the experts, or outputs of the network next to them, `[rows, n_embd]`.
    pub(super) parallel: Option<Buffer>,
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
            parallel: experts.parallel.map(|_| floats(spec.n_embd)).transpose()?,
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
        ExpertMatrix::new(
            gpu,
            dtype,
            ExpertShape { experts: of.experts, n: of.n, k: of.k },
            &bytes,
            bias.as_deref(),
        )
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
        let parallel = |of: Parallel<MatrixRows, Buffer>| -> Result<GpuParallel> {
            let Dense { gate, up, down } = of.dense;
            Ok(GpuParallel {
                gate_up: Joined::load(file, gpu, &[gate, up])?,
                down: Joined::load(file, gpu, &[down])?,
                post_norm: of.post_norm,
                experts_norm: of.experts_norm,
                experts_post_norm: of.experts_post_norm,
                router_norm: of.router_norm,
            })
        };
        Ok(Self {
            router: Joined::load(file, gpu, &[layer.router])?,
            factors: layer.factors,
            parallel: layer.parallel.map(parallel).transpose()?,
            bias: layer.bias,
            gate: layer.gate,
            up: layer.up,
            down: layer.down,
            shared: layer.shared.map(shared).transpose()?,
        })
    }

    /// Returns which forms of activations the first products of `rows` rows read: those of the network next to the experts,
    /// if there is one.
    pub(super) fn forms(&self, rows: usize) -> u32 {
        match &self.parallel {
            Some(parallel) => parallel.gate_up.forms(rows),
            None => self.router.forms(rows) | self.forms_of_experts(rows),
        }
    }

    fn forms_of_experts(&self, rows: usize) -> u32 {
        let of_experts = [&self.gate, &self.up]
            .map(|part| Activations::forms(part.wants_quantised(), !part.wants_quantised(), rows));
        let of_shared = self.shared.as_ref().map_or(0, |shared| {
            let score = if shared.score.is_some() { Activations::forms(false, true, rows) } else { 0 };
            shared.gate_up.forms(rows) | score
        });
        of_experts[0] | of_experts[1] | of_shared
    }

    /// Chooses the experts of each row of `x`, and computes their gates and ups.
    ///
    /// A network next to the experts reads `x`, and its gates and ups go to `gates`. Router and experts then read norms of
    /// the residual stream instead.
    pub(super) fn gate_up_of_all(
        &self,
        pass: MixturePass<'_>,
        x: &Activations,
        stream: NormInput<'_>,
        gates: &Buffer,
    ) -> Result<()> {
        let MixturePass { kernels, rows, .. } = pass;
        let Some(GpuParallel { gate_up, experts_norm, router_norm, .. }) = &self.parallel else {
            self.route(pass, x)?;
            return self.gate_up(pass, x);
        };
        gate_up.multiply(kernels, x, rows, gates, None)?;
        let normed = |weight| NormInput { weight: Some(weight), update: None, ..stream };
        kernels.update_and_norm(normed(router_norm), x, self.router.forms(rows))?;
        self.route(pass, x)?;
        kernels.update_and_norm(normed(experts_norm), x, self.forms_of_experts(rows))?;
        self.gate_up(pass, x)
    }

    /// Scores the experts for each row of `x`, and chooses among them.
    fn route(&self, pass: MixturePass<'_>, x: &Activations) -> Result<()> {
        let MixturePass { kernels, space, experts, layer, rows } = pass;
        let scale = (experts.router_scale != 1.0).then_some(experts.router_scale);
        self.router.multiply_scaled(kernels, x, rows, &space.scores, scale)?;
        let of_choice = (self.bias.as_ref(), self.factors.as_ref());
        let distinct = (&space.distinct, layer);
        kernels.route(&space.scores, of_choice, (rows, experts), &space.routing, distinct)
    }

    /// Computes gates and ups of the chosen experts of each row of `x`.
    fn gate_up(&self, pass: MixturePass<'_>, x: &Activations) -> Result<()> {
        let MixturePass { kernels, space, experts, rows, .. } = pass;
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
        Ok(())
    }

    /// Computes the sum of the outputs of each row's experts. `add` is the factor of sums that are added to `out`.
    ///
    /// The input of their last products is written to `x` before.
    pub(super) fn down(
        &self,
        pass: MixturePass<'_>,
        x: &Activations,
        n_embd: usize,
        (out, add): (&Buffer, Option<f32>),
    ) -> Result<()> {
        let MixturePass { kernels, space, experts, rows, .. } = pass;
        let forms = Activations::forms(self.down.wants_quantised(), !self.down.wants_quantised(), rows);
        let factors = experts.scales_input.then_some(&space.routing.weights);
        let activation = (experts.activation(), factors);
        kernels.gate(&space.gates, (rows * experts.used, experts.n_ff), activation, x, forms)?;
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
