//! Products with the matrices of experts, of which each row uses a few (Shazeer et al., arXiv 1701.06538).
//!
//! The matrices of all experts are one stack. Rows of a pass are grouped by expert, so the weights of a chosen
//! expert are read once a pass. The weights of others are not read. The output of a row and an expert does not depend
//! on the other rows. The choice of experts does not belong here.

use super::isa::{Level, MAX_GROUP};
use super::matmul::{ActivationRows, MatrixSource, ProductInput, WeightMatrix, split};
use super::product::stack_kernel;
use super::quantise::QuantisedRows;
use super::repack::Kept;
use super::threads::{SharedSlice, Threads};
use super::tile::Tile;
use super::types::WeightType;
use crate::error::Result;

/// The rows of an expert's matrix must be a multiple of this.
pub const EXPERT_ROWS: usize = MAX_GROUP;

/// Matrices `[n, k]` of all experts, one after the other.
#[derive(Clone, Debug)]
pub struct ExpertStack {
    /// All rows, `[experts * n, k]`.
    matrix: WeightMatrix,
    n: usize,
    /// Bias of each row, `[experts * n]`.
    bias: Option<Vec<f32>>,
}

impl ExpertStack {
    /// Copies a stack of `experts` matrices into memory, packed for this CPU. `source` describes all their rows.
    ///
    /// Returns `None` if the rows of an expert are not a multiple of [`EXPERT_ROWS`], or the sizes do not match.
    ///
    /// # Errors
    /// As for [`WeightMatrix::new`].
    pub fn new(
        source: MatrixSource<'_>,
        experts: usize,
        bias: Option<Vec<f32>>,
        threads: &Threads,
    ) -> Result<Option<Self>> {
        Self::at_level(source, experts, bias, threads, Level::current())
    }

    fn at_level(
        source: MatrixSource<'_>,
        experts: usize,
        bias: Option<Vec<f32>>,
        threads: &Threads,
        level: Level,
    ) -> Result<Option<Self>> {
        let n = source.n.checked_div(experts).unwrap_or(0);
        if n * experts != source.n
            || !n.is_multiple_of(EXPERT_ROWS)
            || bias.as_ref().is_some_and(|bias| bias.len() != source.n)
        {
            return Ok(None);
        }
        let kernel = stack_kernel(source.dtype, level);
        let kernel = kernel.map(|kernel| (kernel, Kept::of_stack(source.dtype)));
        let matrix = WeightMatrix::kept_as(source, kernel, threads, level)?;
        Ok(matrix.map(|matrix| Self { matrix, n, bias }))
    }

    /// Returns the bytes of `weights` weights of a type once loaded, for whole blocks.
    pub fn bytes_in_memory(dtype: WeightType, weights: usize) -> usize {
        match Kept::of_stack(dtype) {
            Some(kept) => kept.bytes(weights),
            None => weights / dtype.block_size() * dtype.type_size(),
        }
    }

    /// Returns the number of rows of an expert's matrix.
    pub fn rows(&self) -> usize {
        self.n
    }

    /// Returns `true` if the product needs quantised activations.
    pub fn wants_quantised(&self) -> bool {
        self.matrix.wants_quantised()
    }

    fn groups(&self) -> usize {
        self.n / self.matrix.group
    }

    /// Computes the outputs of one group of an expert's rows, with biases. Calls `take(entry, first, outputs)`.
    fn group(
        &self,
        (expert, index): (usize, usize),
        input: ActivationRows<'_>,
        tile: &mut Tile,
        mut take: impl FnMut(usize, usize, &[f32]),
    ) {
        let before = expert * self.n;
        self.matrix.group(expert * self.groups() + index, input, tile, |entry, first, values| {
            let Some(bias) = &self.bias else { return take(entry, first - before, values) };
            let mut biased = [0.0; MAX_GROUP];
            let biased = &mut biased[..values.len()];
            for (out, (value, bias)) in biased.iter_mut().zip(values.iter().zip(&bias[first..])) {
                *out = value + bias;
            }
            take(entry, first - before, biased);
        });
    }
}

/// Rows of a pass, once for each expert that they chose, in the order of experts.
#[derive(Clone, Debug, Default)]
pub struct ExpertEntries {
    /// Chosen experts in ascending order, each with the end of its entries.
    experts: Vec<(usize, usize)>,
    /// Number of the choice that each entry is for: `row * used + rank`.
    choices: Vec<usize>,
    /// Entry of each choice.
    entries: Vec<usize>,
}

impl ExpertEntries {
    /// Groups the choices of all rows, `[rows, used]`, by expert.
    pub fn fill(&mut self, chosen: &[usize]) {
        self.choices.clear();
        self.choices.extend(0..chosen.len());
        self.choices.sort_by_key(|&choice| chosen[choice]);
        self.entries.resize(chosen.len(), 0);
        self.experts.clear();
        for (entry, &choice) in self.choices.iter().enumerate() {
            self.entries[choice] = entry;
            let expert = chosen[choice];
            match self.experts.last_mut() {
                Some((last, end)) if *last == expert => *end = entry + 1,
                _ => self.experts.push((expert, entry + 1)),
            }
        }
    }

    /// Returns the number of entries: rows times experts of a row.
    pub fn len(&self) -> usize {
        self.choices.len()
    }

    /// Returns `true` if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.choices.is_empty()
    }

    /// Returns the number of different experts.
    pub fn distinct(&self) -> usize {
        self.experts.len()
    }

    /// Returns the entry of a choice, `row * used + rank`.
    pub fn entry(&self, choice: usize) -> usize {
        self.entries[choice]
    }
}

/// Input of products with experts: a row for each entry, as f32 and quantised.
#[derive(Clone, Debug, Default)]
pub struct ExpertInput {
    /// Activations, `[entries, k]`. Empty if no stack reads floats.
    pub x: Vec<f32>,
    /// Quantised rows. Empty if no stack reads them.
    pub quantised: QuantisedRows,
}

impl ExpertInput {
    /// Takes the rows of the entries from the rows of a pass, each of which has `used` entries. The rows are taken in
    /// the forms that the stacks read.
    ///
    /// # Panics
    /// If the stacks differ in width, or the sizes do not match.
    pub fn gather(
        &mut self,
        entries: &ExpertEntries,
        used: usize,
        from: ProductInput<'_>,
        stacks: (&ExpertStack, &ExpertStack),
    ) {
        let k = stacks.0.matrix.k;
        assert_eq!(k, stacks.1.matrix.k, "the stacks must have one width");
        let rows = || entries.choices.iter().map(|choice| choice / used);
        let quantised = [stacks.0, stacks.1].map(ExpertStack::wants_quantised);
        self.x.clear();
        if quantised != [true; 2] {
            rows().for_each(|row| self.x.extend_from_slice(&from.x[row * k..][..k]));
        }
        if quantised != [false; 2] {
            self.quantised.gather(from.quantised, k, rows());
        }
    }

    /// Takes the rows of the entries from the rows of a pass, `[rows, k]`, each times the weight of its choice,
    /// `[rows, used]`. The rows are taken in the forms that the stacks read.
    ///
    /// # Panics
    /// If the stacks differ in width, or the sizes do not match.
    pub fn gather_scaled(
        &mut self,
        threads: &Threads,
        entries: &ExpertEntries,
        used: usize,
        (x, weights): (&[f32], &[f32]),
        stacks: (&ExpertStack, &ExpertStack),
    ) {
        let k = stacks.0.matrix.k;
        assert_eq!(k, stacks.1.matrix.k, "the stacks must have one width");
        self.x.clear();
        for &choice in &entries.choices {
            let row = &x[choice / used * k..][..k];
            self.x.extend(row.iter().map(|value| value * weights[choice]));
        }
        if stacks.0.wants_quantised() || stacks.1.wants_quantised() {
            self.quantised.fill(threads, &self.x);
        }
    }
}

/// Entries and their input rows.
#[derive(Clone, Copy)]
pub struct ExpertRows<'a> {
    /// The entries.
    pub entries: &'a ExpertEntries,
    /// Activations, `[entries, k]`. May be empty if no stack reads floats.
    pub x: &'a [f32],
    /// Quantised rows of `x`. May be empty if no stack [needs them](ExpertStack::wants_quantised).
    pub quantised: &'a QuantisedRows,
}

impl<'a> ExpertRows<'a> {
    /// Returns the first entry and the input rows of a chosen expert.
    fn of(&self, index: usize, stack: &ExpertStack) -> (usize, ActivationRows<'a>) {
        let end = self.entries.experts[index].1;
        let first = index.checked_sub(1).map_or(0, |before| self.entries.experts[before].1);
        let k = stack.matrix.k;
        let per_row = k / super::quantise::BLOCK;
        let (x, blocks) = if stack.wants_quantised() {
            (&[][..], &self.quantised.blocks()[first * per_row..end * per_row])
        } else {
            (&self.x[first * k..end * k], &[][..])
        };
        (first, ActivationRows { x, blocks, count: end - first })
    }

    fn check(&self, stack: &ExpertStack, out: usize) {
        let (entries, k) = (self.entries.len(), stack.matrix.k);
        let given = if stack.wants_quantised() {
            self.quantised.blocks().len() * super::quantise::BLOCK
        } else {
            self.x.len()
        };
        assert_eq!(given, entries * k, "there must be a row of k values for each entry");
        assert_eq!(out, entries * stack.n, "the output must have n values for each entry");
        let last = self.entries.experts.last().map_or(0, |(expert, _)| expert + 1);
        assert!(last * stack.n <= stack.matrix.n, "the experts must be inside the stack");
    }
}

/// Computes `out = x W^T + bias` with the expert of each entry, `[entries, n]`.
///
/// # Panics
/// If the sizes do not match.
pub fn multiply_experts(threads: &Threads, rows: ExpertRows<'_>, stack: &ExpertStack, out: &mut [f32]) {
    rows.check(stack, out.len());
    let (groups, n) = (stack.groups(), stack.n);
    let out = SharedSlice::new(out);
    split(threads, rows.entries.distinct() * groups, &|task, tile| {
        let (index, group) = (task / groups, task % groups);
        let (before, input) = rows.of(index, stack);
        let expert = rows.entries.experts[index].0;
        stack.group((expert, group), input, tile, |entry, first, values| {
            // SAFETY: `out` stays borrowed until all tasks are done, and no other task writes these
            // columns of this expert's entries.
            let out = unsafe { out.part((before + entry) * n + first, values.len()) };
            out.copy_from_slice(values);
        });
    });
}

/// Computes `out = x Wg^T + bg` and `x Wu^T + bu` with the experts of each entry, `[entries, n]`, and combines both.
///
/// `combine` gets parts of a row of both and changes the first in place, each element by itself.
///
/// # Panics
/// If the sizes do not match.
pub fn multiply_gated_experts(
    threads: &Threads,
    rows: ExpertRows<'_>,
    (gate, up): (&ExpertStack, &ExpertStack),
    combine: fn(&mut [f32], &[f32]),
    out: &mut [f32],
) {
    assert!((gate.n, gate.matrix.k) == (up.n, up.matrix.k), "gate and up must have the same shape");
    rows.check(gate, out.len());
    rows.check(up, out.len());
    let (groups, n) = (gate.groups(), gate.n);
    let out = SharedSlice::new(out);
    split(threads, rows.entries.distinct() * groups, &|task, tile| {
        let (index, group) = (task / groups, task % groups);
        let expert = rows.entries.experts[index].0;
        let (before, input) = rows.of(index, gate);
        let out_part = |entry: usize, first: usize, len: usize| {
            // SAFETY: `out` stays borrowed until all tasks are done, and no other task writes these
            // columns of this expert's entries. Each returned slice is dropped before the next call.
            unsafe { out.part((before + entry) * n + first, len) }
        };
        gate.group((expert, group), input, tile, |entry, first, values| {
            out_part(entry, first, values.len()).copy_from_slice(values);
        });
        up.group((expert, group), rows.of(index, up).1, tile, |entry, first, values| {
            combine(out_part(entry, first, values.len()), values);
        });
    });
}

#[cfg(test)]
mod tests {
    use candle_core::quantized::{QStorage, QTensor};
    use candle_core::{Device, Tensor};

    use super::*;
    use crate::activation::gated_silu;
    use crate::candle_type::candle_type;
    use crate::matmul::{Product, multiply};
    use crate::repack::dequantise_kept;
    use crate::repack::samples::random_blocks;

    const EXPERTS: usize = 5;
    const USED: usize = 2;
    const N: usize = 2 * EXPERT_ROWS;

    fn noise(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let next = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..count).map(next).collect()
    }

    fn bytes_of(dtype: WeightType, n: usize, k: usize) -> Vec<u8> {
        let Some(candle) = candle_type(dtype) else {
            return random_blocks(dtype, n * k / dtype.block_size(), 0.01, 7);
        };
        let weights = Tensor::from_vec(noise(n * k, 7), (n, k), &Device::Cpu).unwrap();
        QTensor::quantize(&weights, candle).unwrap().data().unwrap().into_owned()
    }

    fn with_source<T>(
        bytes: &[u8],
        dtype: WeightType,
        n: usize,
        k: usize,
        f: impl FnOnce(MatrixSource<'_>) -> T,
    ) -> T {
        let read = |at: usize, out: &mut [u8]| {
            out.copy_from_slice(&bytes[at..at + out.len()]);
            Ok(())
        };
        f(MatrixSource { read: &read, len: bytes.len(), dtype, n, k })
    }

    /// Computes the outputs of all choices, `[rows, used, n]`.
    fn forward(threads: &Threads, stack: &ExpertStack, x: &[f32], chosen: &[usize]) -> Vec<f32> {
        let mut all = QuantisedRows::default();
        all.fill(threads, x);
        let (mut entries, mut input) = (ExpertEntries::default(), ExpertInput::default());
        entries.fill(chosen);
        input.gather(&entries, USED, ProductInput { x, quantised: &all }, (stack, stack));
        let rows = ExpertRows { entries: &entries, x: &input.x, quantised: &input.quantised };
        let mut out = vec![0.0; entries.len() * stack.rows()];
        multiply_experts(threads, rows, stack, &mut out);
        (0..chosen.len()).flat_map(|choice| out[entries.entry(choice) * N..][..N].to_vec()).collect()
    }

    #[test]
    fn outputs_equal_those_of_single_matrices_whatever_other_rows_chose() {
        let threads = Threads::new(3).unwrap();
        let chosen = [0, 3, 3, 1, 4, 3, 0, 4, 3, 0];
        let bias = noise(EXPERTS * N, 9);
        for &dtype in WeightType::ALL.iter().filter(|dtype| **dtype != WeightType::Q3K) {
            let k = if dtype.block_size() == 256 { 512 } else { 384 };
            let bytes = bytes_of(dtype, EXPERTS * N, k);
            let x = noise(chosen.len() / USED * k, 3);
            let per_expert = bytes.len() / EXPERTS;
            for level in Level::ALL.iter().copied().filter(|level| level.available()) {
                let stack = with_source(&bytes, dtype, EXPERTS * N, k, |source| {
                    ExpertStack::at_level(source, EXPERTS, Some(bias.clone()), &threads, level)
                });
                let stack = stack.unwrap().unwrap();
                let together = forward(&threads, &stack, &x, &chosen);
                for (choice, &expert) in chosen.iter().enumerate() {
                    let own = &bytes[expert * per_expert..][..per_expert];
                    let single = with_source(own, dtype, N, k, |source| {
                        let kernel = stack_kernel(dtype, level).map(|kernel| (kernel, Kept::of(dtype)));
                        WeightMatrix::kept_as(source, kernel, &threads, level)
                    });
                    let (row, mut quantised) = (&x[choice / USED * k..][..k], QuantisedRows::default());
                    quantised.fill(&threads, row);
                    let mut out = vec![0.0; N];
                    let product = Product {
                        matrix: &single.unwrap().unwrap(),
                        bias: Some(&bias[expert * N..][..N]),
                        out: &mut out,
                        add: false,
                    };
                    multiply(&threads, ProductInput { x: row, quantised: &quantised }, &mut [product]);
                    assert_eq!(together[choice * N..][..N], out, "{dtype:?} {level:?} choice {choice}");
                }
            }
        }
    }

    #[test]
    fn gated_products_are_the_activation_of_both() {
        let (threads, k, chosen) = (Threads::new(2).unwrap(), 64, [1, 2, 4, 1]);
        let stack = |seed| {
            let data = noise(EXPERTS * N * k, seed);
            let bytes: Vec<u8> = data.into_iter().flat_map(f32::to_le_bytes).collect();
            let bias = Some(noise(EXPERTS * N, seed + 1));
            with_source(&bytes, WeightType::F32, EXPERTS * N, k, |source| {
                ExpertStack::new(source, EXPERTS, bias, &threads)
            })
        };
        let (gate, up) = (stack(1).unwrap().unwrap(), stack(2).unwrap().unwrap());
        let x = noise(2 * k, 3);
        let mut expected = forward(&threads, &gate, &x, &chosen);
        gated_silu(&mut expected, &forward(&threads, &up, &x, &chosen));
        let mut entries = ExpertEntries::default();
        entries.fill(&chosen);
        assert_eq!((entries.len(), entries.distinct()), (4, 3));
        let quantised = QuantisedRows::default();
        let mut input = ExpertInput::default();
        input.gather(&entries, USED, ProductInput { x: &x, quantised: &quantised }, (&gate, &up));
        let rows = ExpertRows { entries: &entries, x: &input.x, quantised: &input.quantised };
        let mut out = vec![0.0; 4 * N];
        multiply_gated_experts(&threads, rows, (&gate, &up), gated_silu, &mut out);
        for choice in 0..4 {
            assert_eq!(out[entries.entry(choice) * N..][..N], expected[choice * N..][..N], "choice {choice}");
        }
    }

    #[test]
    fn scaled_entries_are_rows_times_weights_of_their_choices() {
        let (threads, k, chosen) = (Threads::new(2).unwrap(), 64, [1, 2, 4, 1]);
        let stack = |dtype| {
            let bytes = bytes_of(dtype, EXPERTS * N, k);
            let stack = |source: MatrixSource<'_>| ExpertStack::new(source, EXPERTS, None, &threads);
            with_source(&bytes, dtype, EXPERTS * N, k, stack).unwrap().unwrap()
        };
        let stacks = (stack(WeightType::F32), stack(WeightType::Q8_0));
        let (x, weights) = (noise(2 * k, 3), [0.5, 2.0, -0.25, 3.0]);
        let mut entries = ExpertEntries::default();
        entries.fill(&chosen);
        let mut input = ExpertInput::default();
        input.gather_scaled(&threads, &entries, USED, (&x, &weights), (&stacks.0, &stacks.1));
        for (choice, weight) in weights.into_iter().enumerate() {
            let own = &input.x[entries.entry(choice) * k..][..k];
            let expected = x[choice / USED * k..][..k].iter().map(|value| value * weight);
            assert!(own.iter().copied().eq(expected), "choice {choice}");
        }
        let mut quantised = QuantisedRows::default();
        quantised.fill(&threads, &input.x);
        assert!(!stacks.1.wants_quantised() || input.quantised.blocks() == quantised.blocks());
    }

    #[test]
    fn q3_k_keeps_its_weights() {
        let bytes = bytes_of(WeightType::Q3K, 4, 512);
        let kept = Kept::of_stack(WeightType::Q3K).unwrap();
        let mut packed = vec![0; kept.bytes(4 * 512)];
        crate::repack::repack_rows(WeightType::Q3K, &kept, &bytes, &mut packed);
        let mut ours = Vec::new();
        dequantise_kept(&kept, &packed, &mut ours);
        let candle = candle_type(WeightType::Q3K).unwrap();
        let storage = QStorage::from_data(bytes.into(), &Device::Cpu, candle).unwrap();
        let expected: Vec<f32> =
            QTensor::new(storage, 4 * 512).unwrap().dequantize(&Device::Cpu).unwrap().to_vec1().unwrap();
        assert_eq!(ours, expected);
        assert_eq!(ExpertStack::bytes_in_memory(WeightType::Q3K, 256), 146);
    }

    #[test]
    fn rejects_incomplete_groups_and_wrong_sizes() {
        let threads = Threads::new(1).unwrap();
        for (n, experts, bias) in [(24, 1, None), (32, 3, None), (32, 0, None), (32, 2, Some(vec![0.0; 31]))]
        {
            let stack = with_source(&vec![0; n * 128], WeightType::F32, n, 32, |source| {
                ExpertStack::new(source, experts, bias, &threads)
            });
            assert!(stack.unwrap().is_none(), "{n} rows of {experts} experts");
        }
    }
}
