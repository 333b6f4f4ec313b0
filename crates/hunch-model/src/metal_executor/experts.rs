//! Feed-forward networks of experts on a GPU: the router, and the products of the chosen experts.
//!
//! The dispatches themselves are in `metal::experts`. All dispatches of a pass are queued at once, so the CPU does not
//! know the chosen experts.

use std::sync::Arc;

use super::Joined;
use crate::metal::activations::{Activations, Forms};
use crate::metal::experts::{
    ExpertInputRows, ExpertMatrix, ExpertPass, ExpertProduct, ExpertShape, JoinInput, RouteInput, Routing,
    SharedOutput,
};
use crate::metal::gpu::{Buffer, Gpu};
use crate::metal::kernels::Kernels;
use crate::metal::matrix::{FloatFormat, Matrix};
use crate::metal::multiply::{GpuProduct, ResultScaling, ResultUse};
use crate::metal::rows::{GateInput, NormInput};
use crate::spec::{Experts, ModelSpec};
use crate::tensor_names::{self, Dense, Parallel};
use crate::weights::{ExpertMatrices, MatrixRows, WeightFile};
use hunch_error::Result;
use hunch_kernels::activation::Activation;

/// Weights of the experts of a layer.
pub(super) struct GpuMixture {
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
    shared: Option<SharedExpert>,
}

/// Expert that all rows use.
struct SharedExpert {
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

impl<'a> MixturePass<'a> {
    /// Returns the input of products of experts with the rows of `x`.
    fn experts_of(self, x: &'a Activations, input: ExpertInputRows) -> ExpertPass<'a> {
        let Self { space, experts, rows, .. } = self;
        ExpertPass { x, input, rows, experts, routing: &space.routing }
    }
}

impl GpuMixture {
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
        let shared = |Dense { gate, up, down }: Dense<MatrixRows>| -> Result<SharedExpert> {
            Ok(SharedExpert {
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
    pub(super) fn forms(&self, rows: usize) -> Forms {
        match &self.parallel {
            Some(parallel) => parallel.gate_up.forms(rows),
            None => self.router.forms(rows) | self.forms_of_experts(rows),
        }
    }

    fn forms_of_experts(&self, rows: usize) -> Forms {
        let of_experts = [&self.gate, &self.up]
            .map(|part| Forms::read_by(part.wants_quantised(), !part.wants_quantised(), rows));
        let of_shared = self.shared.as_ref().map_or(Forms::NONE, |shared| {
            shared.gate_up.forms(rows) | Forms::read_by(false, shared.score.is_some(), rows)
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
        gate_up.multiply(kernels, x, rows, gates, ResultUse::Replace)?;
        let normed = |weight| NormInput { weight: Some(weight), update: None, ..stream };
        kernels.norm(normed(router_norm), x.written_as(self.router.forms(rows)))?;
        self.route(pass, x)?;
        kernels.norm(normed(experts_norm), x.written_as(self.forms_of_experts(rows)))?;
        self.gate_up(pass, x)
    }

    /// Scores the experts for each row of `x`, and chooses among them.
    fn route(&self, pass: MixturePass<'_>, x: &Activations) -> Result<()> {
        let MixturePass { kernels, space, experts, layer, rows } = pass;
        let scaled = ResultUse::ReplaceScaled(experts.router_scale);
        self.router.multiply(kernels, x, rows, &space.scores, scaled)?;
        let input = RouteInput {
            scores: &space.scores,
            bias: self.bias.as_ref(),
            factors: self.factors.as_ref(),
            rows,
            experts,
            distinct: space.distinct.at_value(layer),
        };
        kernels.route(input, &space.routing)
    }

    /// Computes gates and ups of the chosen experts of each row of `x`.
    fn gate_up(&self, pass: MixturePass<'_>, x: &Activations) -> Result<()> {
        let MixturePass { kernels, space, experts, rows, .. } = pass;
        let stride = 2 * experts.n_ff;
        let product = |experts, first| ExpertProduct { experts, out: space.gates.at_value(first), stride };
        let products = [product(&self.gate, 0), product(&self.up, experts.n_ff)];
        kernels.multiply_experts(&products, pass.experts_of(x, ExpertInputRows::Rows))?;
        if let (Some(SharedExpert { gate_up, score, .. }), Some(shared)) = (&self.shared, &space.shared) {
            gate_up.multiply(kernels, x, rows, &shared.gates, ResultUse::Replace)?;
            if let Some(matrix) = score {
                let (out, scaling) = (shared.scores.at_value(0), ResultScaling::NONE);
                let product = GpuProduct { matrix, bias: None, out, stride: 1, add: false, scaling };
                kernels.multiply(product, x, rows)?;
            }
        }
        Ok(())
    }

    /// Computes the sum of the outputs of each row's experts.
    ///
    /// The input of their last products is written to `x` before.
    pub(super) fn down(
        &self,
        pass: MixturePass<'_>,
        x: &Activations,
        n_embd: usize,
        out: &Buffer,
        store: ResultUse,
    ) -> Result<()> {
        let MixturePass { kernels, space, experts, rows, .. } = pass;
        let forms = Forms::read_by(self.down.wants_quantised(), !self.down.wants_quantised(), rows);
        let weights = &space.routing.weights;
        let entries = rows * experts.used;
        let gate = GateInput {
            factors: experts.scales_input.then_some(weights),
            ..GateInput::joined(&space.gates, entries, experts.n_ff, experts.activation())
        };
        kernels.gate(gate, x.written_as(forms))?;
        let outputs = &space.outputs;
        let product = ExpertProduct { experts: &self.down, out: outputs.at_value(0), stride: n_embd };
        kernels.multiply_experts(&[product], pass.experts_of(x, ExpertInputRows::Entries))?;
        let mut of_shared = None;
        if let (Some(SharedExpert { gate_up, down, score }), Some(shared)) = (&self.shared, &space.shared) {
            let gate = GateInput::joined(&shared.gates, rows, gate_up.width / 2, Activation::Silu);
            kernels.gate(gate, x.written_as(down.forms(rows)))?;
            down.multiply(kernels, x, rows, &shared.out, ResultUse::Replace)?;
            let scores = score.as_ref().map(|_| &shared.scores);
            of_shared = Some(SharedOutput { rows: &shared.out, scores });
        }
        let input = JoinInput {
            outputs,
            weights: (!experts.scales_input).then_some(weights),
            used: experts.used,
            shared: of_shared,
            rows,
            width: n_embd,
        };
        kernels.join_experts(input, out, store)
    }
}
