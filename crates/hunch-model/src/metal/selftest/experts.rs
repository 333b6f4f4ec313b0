//! Check of mixtures of experts: their choice, their products, and the sum of their outputs.

use hunch_error::Result;
use hunch_kernels::WeightType;

use super::super::experts::{ExpertInput, ExpertMatrix, ExpertProduct, Routing};
use super::super::gpu::Buffer;
use super::super::kernels::{GpuProduct, Scaling};
use super::super::matrix::Matrix;
use super::super::workspace::Activations;
use super::checks::{CheckOutcome, Tester};
use super::reference::{Codes, SUM_BOUND, near, noise, random_matrix, same_bits};
use crate::spec::{Experts, Weighting};

/// Rows of the larger pass. Some experts have more of its entries than a block.
const ROWS: usize = 7;
/// Rows of an expert, two tiles and an incomplete group of tiles.
const N: usize = 24;

/// 3 of 8 experts.
const EXPERTS: Experts = Experts {
    count: 8,
    used: 3,
    n_ff: N,
    shared: None,
    weighting: Weighting::Softmax,
    normalised: true,
    scale: 1.5,
    clamped: false,
    dense_layers: 0,
    dense_ff: 0,
};

/// Results of a pass over some rows.
struct Mixed {
    chosen: Vec<usize>,
    weights: Vec<f32>,
    /// Products, `[rows, used, N]`.
    products: Vec<f32>,
    /// Sums of the rows.
    sums: Vec<f32>,
}

impl Tester<'_> {
    /// Mixes experts whose weights have a type. Products have the bits of products of one matrix.
    pub(super) fn experts(&self, dtype: WeightType) -> Result<CheckOutcome> {
        let k = if dtype.block_size() == 256 { 256 } else { 320 };
        let (file, _) = random_matrix(dtype, EXPERTS.count * N, k)?;
        let bias = noise(EXPERTS.count * N, 21);
        let shape = (EXPERTS.count, N, k);
        let matrix = ExpertMatrix::new(self.gpu, dtype, shape, &file, Some(&bias))?;
        let input = Codes::random(ROWS * k);
        let scores: Vec<f32> = noise(ROWS * EXPERTS.count, 22).iter().map(|score| score * 3.0).collect();
        for weighting in [Weighting::Softmax, Weighting::SoftmaxOfChosen, Weighting::Sigmoid] {
            // With a bias of the choice in one of the cases.
            let of_choice = (weighting == Weighting::Sigmoid).then(|| noise(EXPERTS.count, 23));
            let experts = Experts { weighting, ..EXPERTS };
            let mix = |rows: std::ops::Range<usize>| {
                let scores = &scores[rows.start * EXPERTS.count..rows.end * EXPERTS.count];
                self.mix(&matrix, &input.rows(rows, k), (scores, of_choice.as_deref()), &experts)
            };
            let all = mix(0..ROWS)?;
            let (mut chosen, mut weights) = (Vec::new(), Vec::new());
            for scores in scores.chunks_exact(EXPERTS.count) {
                experts.choose(scores, of_choice.as_deref(), &mut chosen, &mut weights);
            }
            let expected = weights.iter().map(|weight| f64::from(*weight));
            if all.chosen != chosen || !near(&all.weights, expected, SUM_BOUND) {
                return Ok(CheckOutcome::Differs);
            }
            if !same_bits(&all.products, &self.separately(dtype, &file, &bias, &input, &chosen)?) {
                return Ok(CheckOutcome::Differs);
            }
            let rows = all.products.chunks_exact(EXPERTS.used * N).zip(weights.chunks_exact(EXPERTS.used));
            let sums = rows.flat_map(|(products, weights)| {
                let sum = |i: usize| -> f64 {
                    let of_expert = products.chunks_exact(N).zip(weights);
                    of_expert.map(|(product, weight)| f64::from(product[i]) * f64::from(*weight)).sum()
                };
                (0..N).map(sum).collect::<Vec<_>>()
            });
            if !near(&all.sums, sums, SUM_BOUND) {
                return Ok(CheckOutcome::Differs);
            }
            for rows in [0..1, 0..2, 3..6] {
                let few = mix(rows.clone())?;
                if !same_bits(&few.sums, &all.sums[rows.start * N..rows.end * N]) {
                    return Ok(CheckOutcome::DependsOnRows);
                }
            }
        }
        Ok(CheckOutcome::Passed)
    }

    fn mix(
        &self,
        matrix: &ExpertMatrix,
        input: &Codes,
        (scores, bias): (&[f32], Option<&[f32]>),
        experts: &Experts,
    ) -> Result<Mixed> {
        let (rows, entries) = (scores.len() / EXPERTS.count, scores.len() / EXPERTS.count * EXPERTS.used);
        let x = Activations::new(self.gpu, rows, matrix.k())?;
        input.write(&x)?;
        let routing = Routing::new(self.gpu, rows, experts)?;
        let (scores, distinct) = (self.floats(scores)?, Buffer::new(self.gpu, 4)?);
        let bias = bias.map(|bias| self.floats(bias)).transpose()?;
        self.kernels.route(&scores, bias.as_ref(), (rows, experts), &routing, (&distinct, 0))?;
        let (products, sums) =
            (self.floats(&vec![f32::NAN; entries * N])?, self.floats(&vec![1.0; rows * N])?);
        let product = ExpertProduct { experts: matrix, out: &products, offset: 0, stride: N };
        self.kernels.multiply_experts(&[product], (&x, ExpertInput::Rows), (rows, experts), &routing)?;
        let weights = (&routing.weights, experts.used);
        self.kernels.join_experts(&products, weights, None, (rows, N), (&sums, None))?;
        let chosen = routing.chosen.read(0, 4 * entries)?;
        Ok(Mixed {
            chosen: chosen.as_chunks::<4>().0.iter().map(|id| u32::from_le_bytes(*id) as usize).collect(),
            weights: routing.weights.read_floats(0, entries)?,
            products: products.read_floats(0, entries * N)?,
            sums: sums.read_floats(0, rows * N)?,
        })
    }

    /// Returns the products of each row with each of its experts, from a matrix and a dispatch for each.
    fn separately(
        &self,
        dtype: WeightType,
        file: &[u8],
        bias: &[f32],
        input: &Codes,
        chosen: &[usize],
    ) -> Result<Vec<f32>> {
        let each = file.len() / EXPERTS.count;
        let k = input.values().len() / ROWS;
        let x = Activations::new(self.gpu, ROWS, k)?;
        input.write(&x)?;
        let mut of_experts = Vec::new();
        for (expert, bytes) in file.chunks_exact(each).enumerate() {
            let matrix = Matrix::new(self.gpu, dtype, (N, k), bytes)?;
            let bias = self.floats(&bias[expert * N..][..N])?;
            let out = Buffer::new(self.gpu, 4 * ROWS * N)?;
            let product = GpuProduct {
                matrix: &matrix,
                bias: Some(&bias),
                out: &out,
                offset: 0,
                stride: N,
                add: false,
                scaling: Scaling::NONE,
            };
            self.kernels.multiply(product, &x, ROWS)?;
            of_experts.push(out.read_floats(0, ROWS * N)?);
        }
        let entries = chosen.iter().enumerate();
        Ok(entries
            .flat_map(|(entry, expert)| of_experts[*expert][entry / EXPERTS.used * N..][..N].to_vec())
            .collect())
    }
}
