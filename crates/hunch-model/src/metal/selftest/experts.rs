//! Check of mixtures of experts: their choice, their products, and the sum of their outputs.

use hunch_error::Result;
use hunch_kernels::WeightType;

use super::super::activations::Activations;
use super::super::experts::{
    ExpertInputRows, ExpertMatrix, ExpertPass, ExpertProduct, ExpertShape, JoinInput, RouteInput, Routing,
};
use super::super::gpu::Buffer;
use super::super::matrix::Matrix;
use super::super::multiply::{GpuProduct, ResultScaling, ResultUse};
use super::checks::{CheckOutcome, Tester};
use super::reference::{Codes, SUM_BOUND, near, noise, random_matrix, same_bits};
use crate::spec::{ExpertGroups, Experts, Weighting};

/// Rows of the larger pass. Some experts have more of its entries than a block.
const ROWS: usize = 7;
/// Rows of an expert, two tiles and an incomplete group of tiles.
const N: usize = 24;

/// 3 of 8 experts.
const EXPERTS: Experts = Experts {
    count: 8,
    used: 3,
    groups: None,
    n_ff: N,
    shared: None,
    weighting: Weighting::Softmax,
    normalised: true,
    scale: 1.5,
    clamped: false,
    scales_input: false,
    dense_layers: 0,
    step: 1,
    dense_ff: 0,
    parallel: None,
    gelu: false,
    router_scale: 1.0,
};

/// Results of a pass over some rows.
struct Mixed {
    chosen: Vec<usize>,
    weights: Vec<f32>,
    /// Products of the first matrix, `[rows, used, N]`.
    products: Vec<f32>,
    /// Products of both matrices in one dispatch, as gates and ups are, `[rows, used, 2 * N]`.
    gates: Vec<f32>,
    /// Sums of the rows.
    sums: Vec<f32>,
}

/// Matrices of all experts in file layout, with their bias.
struct Stack {
    dtype: WeightType,
    file: Vec<u8>,
    bias: Vec<f32>,
}

impl Stack {
    /// Returns the first or the second stack of a random matrix of twice as many rows.
    fn new(dtype: WeightType, k: usize, at: usize) -> Result<Self> {
        let (file, _) = random_matrix(dtype, 2 * EXPERTS.count * N, k)?;
        let half = file.len() / 2;
        let bias = noise(2 * EXPERTS.count * N, 21)[at * EXPERTS.count * N..][..EXPERTS.count * N].to_vec();
        Ok(Self { dtype, file: file[at * half..][..half].to_vec(), bias })
    }
}

impl Tester<'_> {
    /// Mixes experts whose weights have a type.
    pub(super) fn experts(&self, dtype: WeightType) -> Result<CheckOutcome> {
        self.experts_of([dtype, dtype])
    }

    /// Mixes experts whose gates and ups have these types. Products have the bits of products of one matrix.
    pub(super) fn experts_of(&self, types: [WeightType; 2]) -> Result<CheckOutcome> {
        let k = if types.iter().any(|dtype| dtype.block_size() == 256) { 256 } else { 320 };
        let stacks = [Stack::new(types[0], k, 0)?, Stack::new(types[1], k, 1)?];
        let matrix = |stack: &Stack| {
            ExpertMatrix::new(
                self.gpu,
                stack.dtype,
                ExpertShape { experts: EXPERTS.count, n: N, k },
                &stack.file,
                Some(&stack.bias),
            )
        };
        let matrices = [matrix(&stacks[0])?, matrix(&stacks[1])?];
        let input = Codes::random(ROWS * k);
        let scores: Vec<f32> = noise(ROWS * EXPERTS.count, 22).iter().map(|score| score * 3.0).collect();
        for weighting in [Weighting::Softmax, Weighting::SoftmaxOfChosen, Weighting::Sigmoid] {
            // With a bias of the choice in one of the cases.
            let of_choice = (weighting == Weighting::Sigmoid).then(|| noise(EXPERTS.count, 23));
            // Without weights of the outputs in another case.
            let scales_input = weighting == Weighting::SoftmaxOfChosen;
            // From the best groups in the other two, with a bias and without.
            let groups = (!scales_input).then_some(ExpertGroups { count: 4, used: 2 });
            // Factors in another.
            let factors = (weighting == Weighting::Softmax).then(|| noise(EXPERTS.count, 24));
            let experts = Experts { weighting, groups, scales_input, ..EXPERTS };
            let mix = |rows: std::ops::Range<usize>| {
                let scores = &scores[rows.start * EXPERTS.count..rows.end * EXPERTS.count];
                self.mix(
                    &matrices,
                    &input.rows(rows, k),
                    (scores, of_choice.as_deref(), factors.as_deref()),
                    &experts,
                )
            };
            let all = mix(0..ROWS)?;
            let (mut chosen, mut weights) = (Vec::new(), Vec::new());
            for scores in scores.chunks_exact(EXPERTS.count) {
                experts.choose(scores, (of_choice.as_deref(), factors.as_deref()), &mut chosen, &mut weights);
            }
            let expected = weights.iter().map(|weight| f64::from(*weight));
            if all.chosen != chosen || !near(&all.weights, expected, SUM_BOUND) {
                return Ok(CheckOutcome::Differs);
            }
            let gates = self.separately(&stacks[0], &input, &chosen)?;
            let ups = self.separately(&stacks[1], &input, &chosen)?;
            let pairs = gates.chunks_exact(N).zip(ups.chunks_exact(N));
            let both: Vec<f32> = pairs.flat_map(|(gate, up)| [gate, up].concat()).collect();
            if !same_bits(&all.products, &gates) || !same_bits(&all.gates, &both) {
                return Ok(CheckOutcome::Differs);
            }
            let rows = all.products.chunks_exact(EXPERTS.used * N).zip(weights.chunks_exact(EXPERTS.used));
            let sums = rows.flat_map(|(products, weights)| {
                let sum = |i: usize| -> f64 {
                    let of_expert = products.chunks_exact(N).zip(weights);
                    let weight = |weight: &f32| if scales_input { 1.0 } else { f64::from(*weight) };
                    of_expert.map(|(product, own)| f64::from(product[i]) * weight(own)).sum()
                };
                (0..N).map(sum).collect::<Vec<_>>()
            });
            if !near(&all.sums, sums, SUM_BOUND) {
                return Ok(CheckOutcome::Differs);
            }
            for rows in [0..1, 0..2, 3..6] {
                let few = mix(rows.clone())?;
                let entries = rows.start * EXPERTS.used..rows.end * EXPERTS.used;
                if !same_bits(&few.sums, &all.sums[rows.start * N..rows.end * N])
                    || !same_bits(&few.gates, &all.gates[entries.start * 2 * N..entries.end * 2 * N])
                {
                    return Ok(CheckOutcome::DependsOnRows);
                }
            }
        }
        Ok(CheckOutcome::Passed)
    }

    fn mix(
        &self,
        matrices: &[ExpertMatrix; 2],
        input: &Codes,
        (scores, bias, factors): (&[f32], Option<&[f32]>, Option<&[f32]>),
        experts: &Experts,
    ) -> Result<Mixed> {
        let (rows, entries) = (scores.len() / EXPERTS.count, scores.len() / EXPERTS.count * EXPERTS.used);
        let x = Activations::new(self.gpu, rows, matrices[0].k())?;
        input.write(&x)?;
        let routing = Routing::new(self.gpu, rows, experts)?;
        let (scores, distinct) = (self.floats(scores)?, Buffer::new(self.gpu, 4)?);
        let bias = bias.map(|bias| self.floats(bias)).transpose()?;
        let factors = factors.map(|factors| self.floats(factors)).transpose()?;
        let choice = RouteInput {
            scores: &scores,
            bias: bias.as_ref(),
            factors: factors.as_ref(),
            rows,
            experts,
            distinct: distinct.at_value(0),
        };
        self.kernels.route(choice, &routing)?;
        let (products, sums) =
            (self.floats(&vec![f32::NAN; entries * N])?, self.floats(&vec![1.0; rows * N])?);
        let gates = self.floats(&vec![f32::NAN; entries * 2 * N])?;
        let alone = ExpertProduct { experts: &matrices[0], out: products.at_value(0), stride: N };
        let half =
            |i: usize| ExpertProduct { experts: &matrices[i], out: gates.at_value(i * N), stride: 2 * N };
        for products in [&[alone][..], &[half(0), half(1)]] {
            let pass = ExpertPass { x: &x, input: ExpertInputRows::Rows, rows, experts, routing: &routing };
            self.kernels.multiply_experts(products, pass)?;
        }
        let outputs = JoinInput {
            outputs: &products,
            weights: (!experts.scales_input).then_some(&routing.weights),
            used: experts.used,
            shared: None,
            rows,
            width: N,
        };
        self.kernels.join_experts(outputs, &sums, ResultUse::Replace)?;
        let chosen = routing.chosen.read(0, 4 * entries)?;
        Ok(Mixed {
            chosen: chosen.as_chunks::<4>().0.iter().map(|id| u32::from_le_bytes(*id) as usize).collect(),
            weights: routing.weights.read_floats(0, entries)?,
            products: products.read_floats(0, entries * N)?,
            gates: gates.read_floats(0, entries * 2 * N)?,
            sums: sums.read_floats(0, rows * N)?,
        })
    }

    /// Returns the products of each row with each of its experts, from a matrix and a dispatch for each.
    fn separately(&self, stack: &Stack, input: &Codes, chosen: &[usize]) -> Result<Vec<f32>> {
        let Stack { dtype, file, bias } = stack;
        let each = file.len() / EXPERTS.count;
        let k = input.values().len() / ROWS;
        let x = Activations::new(self.gpu, ROWS, k)?;
        input.write(&x)?;
        let mut of_experts = Vec::new();
        for (expert, bytes) in file.chunks_exact(each).enumerate() {
            let matrix = Matrix::new(self.gpu, *dtype, (N, k), bytes)?;
            let bias = self.floats(&bias[expert * N..][..N])?;
            let out = Buffer::new(self.gpu, 4 * ROWS * N)?;
            let product = GpuProduct {
                matrix: &matrix,
                bias: Some(&bias),
                out: out.at_value(0),
                stride: N,
                add: false,
                scaling: ResultScaling::NONE,
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
