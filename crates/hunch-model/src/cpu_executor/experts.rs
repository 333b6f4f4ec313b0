//! Feed-forward networks of experts: the router, and the products of the chosen experts.
//!
//! Each expert's weights are read once a pass. The outputs of a row are added in the order of its own scores,
//! so its bits do not depend on the other rows.

use super::{Linear, products};
use crate::spec::Experts;
use crate::tensor_names::{Dense, Mixture};
use hunch_error::{Error, Result};
use hunch_kernels::Threads;
use hunch_kernels::activation::{Activation, add_scaled, clamped_silu, gated_gelu, gated_silu, scale};
use hunch_kernels::experts::{
    ExpertEntries, ExpertInput, ExpertRows, ExpertStack, multiply_experts, multiply_gated_experts,
};
use hunch_kernels::matmul::ProductInput;
use hunch_kernels::quantise::QuantisedRows;

/// Weights of the experts of a layer.
type CpuMixture = Mixture<Linear, Vec<f32>, ExpertStack>;

/// Choices and buffers of the experts of a layer, reused between passes.
#[derive(Default)]
pub(super) struct ExpertSpace {
    /// Scores of the router, `[rows, experts]`.
    scores: Vec<f32>,
    /// Chosen experts, `[rows, used]`, highest score first.
    chosen: Vec<usize>,
    /// Factors of the outputs of the chosen experts, `[rows, used]`.
    weights: Vec<f32>,
    entries: ExpertEntries,
    input: ExpertInput,
    /// Input of the last product, `[entries, width of an expert]`.
    gated: Vec<f32>,
    quantised: QuantisedRows,
    /// Output of the last product, `[entries, n_embd]`.
    out: Vec<f32>,
    /// Input of the last product of the shared expert, `[rows, width]`.
    shared: Vec<f32>,
    /// Ups of the shared expert, and then its output.
    shared_up: Vec<f32>,
    /// Weight of the shared expert for each row. Empty if it has none.
    shared_weights: Vec<f32>,
    /// Different experts of the pass, added up over its layers, and these layers.
    read: (usize, usize),
}

impl ExpertSpace {
    /// Starts a pass.
    pub(super) fn begin(&mut self) {
        self.read = (0, 0);
    }

    /// Returns the mean number of different experts of a layer in this pass. `None` without experts.
    pub(super) fn distinct(&self) -> Option<f64> {
        let (experts, layers) = self.read;
        (layers > 0).then(|| experts as f64 / layers as f64)
    }

    /// Chooses the experts of each row of `h`, and computes the input of their last products. `of_router` are the rows
    /// that the router reads.
    ///
    /// # Errors
    /// If candle fails to multiply with the router. [`Error::Internal`] without experts.
    pub(super) fn gate_up(
        &mut self,
        threads: &Threads,
        (layer, experts): (&CpuMixture, Option<&Experts>),
        (h, of_router): (&[f32], &[f32]),
        quantised: &mut QuantisedRows,
    ) -> Result<()> {
        let (gate, up, experts) = (&layer.gate, &layer.up, required(experts)?);
        let rows = h.len() / layer.down.rows();
        self.scores.resize(rows * experts.count, 0.0);
        products(threads, of_router, quantised, [(&layer.router, &mut self.scores[..])], false)?;
        if experts.router_scale != 1.0 {
            scale(&mut self.scores, experts.router_scale);
        }
        self.chosen.clear();
        self.weights.clear();
        for scores in self.scores.chunks_exact(experts.count) {
            let of_choice = (layer.bias.as_deref(), layer.factors.as_deref());
            experts.choose(scores, of_choice, &mut self.chosen, &mut self.weights);
        }
        self.entries.fill(&self.chosen);
        self.read = (self.read.0 + self.entries.distinct(), self.read.1 + 1);
        if experts.scales_input {
            self.input.gather_scaled(threads, &self.entries, experts.used, (h, &self.weights), (gate, up));
            self.weights.fill(1.0);
        } else {
            if gate.wants_quantised() || up.wants_quantised() {
                quantised.fill(threads, h);
            }
            self.input.gather(&self.entries, experts.used, ProductInput { x: h, quantised }, (gate, up));
        }
        let ExpertInput { x, quantised: of_entries } = &self.input;
        let input = ExpertRows { entries: &self.entries, x, quantised: of_entries };
        self.gated.resize(self.entries.len() * gate.rows(), 0.0);
        let combine = match experts.activation() {
            Activation::Silu => gated_silu,
            Activation::Gelu => gated_gelu,
            Activation::Clamped => clamped_silu,
        };
        multiply_gated_experts(threads, input, (gate, up), combine, &mut self.gated);
        let Some(Dense { gate, up, .. }) = &layer.shared else { return Ok(()) };
        self.shared.resize(rows * gate.n, 0.0);
        self.shared_up.resize(rows * gate.n, 0.0);
        let both = [(gate, &mut self.shared[..]), (up, &mut self.shared_up[..])];
        products(threads, h, quantised, both, false)?;
        gated_silu(&mut self.shared, &self.shared_up);
        self.shared_weights.clear();
        if let Some(weight) = &layer.shared_weight {
            let score = |row: &[f32]| row.iter().zip(weight).map(|(x, w)| x * w).sum::<f32>();
            let weights = h.chunks_exact(weight.len()).map(|row| 1.0 / (1.0 + (-score(row)).exp()));
            self.shared_weights.extend(weights);
        }
        Ok(())
    }

    /// Computes the sum of the outputs of each row's experts, `[rows, n_embd]`.
    ///
    /// # Errors
    /// If candle fails to multiply with the shared expert. [`Error::Internal`] without experts.
    pub(super) fn down(
        &mut self,
        threads: &Threads,
        (layer, experts): (&CpuMixture, Option<&Experts>),
        out: &mut [f32],
    ) -> Result<()> {
        let (down, width, used) = (&layer.down, layer.down.rows(), required(experts)?.used);
        if down.wants_quantised() {
            self.quantised.fill(threads, &self.gated);
        }
        let input = ExpertRows { entries: &self.entries, x: &self.gated, quantised: &self.quantised };
        self.out.resize(self.entries.len() * width, 0.0);
        multiply_experts(threads, input, down, &mut self.out);
        out.fill(0.0);
        for (row, out) in out.chunks_exact_mut(width).enumerate() {
            for choice in row * used..(row + 1) * used {
                let of_expert = &self.out[self.entries.entry(choice) * width..][..width];
                add_scaled(out, of_expert, self.weights[choice]);
            }
        }
        let Some(Dense { down, .. }) = &layer.shared else { return Ok(()) };
        self.shared_up.resize(out.len(), 0.0);
        let of_shared = [(down, &mut self.shared_up[..])];
        products(threads, &self.shared, &mut self.quantised, of_shared, false)?;
        let rows = out.chunks_exact_mut(width).zip(self.shared_up.chunks_exact(width));
        for (row, (out, of_shared)) in rows.enumerate() {
            add_scaled(out, of_shared, self.shared_weights.get(row).copied().unwrap_or(1.0));
        }
        Ok(())
    }
}

fn required(experts: Option<&Experts>) -> Result<&Experts> {
    experts.ok_or_else(|| Error::Internal("this model has no experts".into()))
}
