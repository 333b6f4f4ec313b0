//! The matrix product y = x W^T of f32 rows with a GGUF weight matrix, used by every linear layer.
//!
//! Each activation row is quantised once to 8 bits, with one scale per 32 values. Float weights keep
//! float activations. Quantised weights are packed in groups of as many rows as the instruction set
//! has lanes.
//!
//! The module owns weight matrices and splits products over threads. The product of a group belongs to
//! `product`.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::activation::Activation;
use super::float::{self, FloatJob, FloatKernel};
use super::isa::{Level, MAX_GROUP};
use super::memory::{CopiedBytes, ReadAt};
use super::packed::{BlockShape, PackedRows};
use super::product::{Job, QuantisedKernel, quantised_kernel};
use super::quantise::{ActivationBlock, BLOCK, QuantisedRows};
use super::repack::{Kept, bytes_read, dequantise_kept, repack_rows};
use super::threads::{SharedSlice, Threads};
use super::tile::{TILE, Tile};
use super::types::WeightType;
use crate::error::Result;

/// Weight matrix `[n, k]` in memory.
#[derive(Clone, Debug)]
pub struct WeightMatrix {
    weights: RowsWithKernel,
    pub(super) n: usize,
    pub(super) k: usize,
    /// Rows per group.
    pub(super) group: usize,
}

/// Kernel with the layout of its blocks, and the conversion to it, if it is not the one of the file.
pub(super) type KernelAndLayout = ((QuantisedKernel, BlockShape), Option<Kept>);

/// Weight rows and the kernel that multiplies a group of them.
#[derive(Clone, Debug)]
enum RowsWithKernel {
    Quantised {
        rows: PackedRows,
        kernel: QuantisedKernel,
        /// Layout in memory, if it is not the one of the file.
        kept: Option<Kept>,
    },
    /// Floats in file layout.
    Float { rows: CopiedBytes, kernel: FloatKernel },
}

impl WeightMatrix {
    /// Copies a matrix into memory. Quantised rows are packed for this CPU.
    ///
    /// Returns `None` if there is no CPU kernel for the type (Q3_K), or the size of the source does not
    /// match.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) if there is not enough memory, and any error
    /// of the source.
    pub fn new(source: MatrixSource<'_>, threads: &Threads) -> Result<Option<Self>> {
        Self::at_level(source, threads, Level::current())
    }

    fn at_level(source: MatrixSource<'_>, threads: &Threads, level: Level) -> Result<Option<Self>> {
        let kernel = quantised_kernel(source.dtype, level);
        Self::kept_as(source, kernel.map(|kernel| (kernel, Kept::of(source.dtype))), threads, level)
    }

    /// Copies a matrix into memory for a kernel. Its rows are converted if the kernel reads another layout.
    pub(super) fn kept_as(
        source: MatrixSource<'_>,
        kernel: Option<KernelAndLayout>,
        threads: &Threads,
        level: Level,
    ) -> Result<Option<Self>> {
        let MatrixSource { read, len, dtype, n, k } = source;
        if n == 0 || k == 0 || !k.is_multiple_of(dtype.block_size()) {
            return Ok(None);
        }
        let row_bytes = (k / dtype.block_size()).checked_mul(dtype.type_size());
        let bytes = row_bytes.and_then(|row| row.checked_mul(n));
        if bytes != Some(len) {
            return Ok(None);
        }
        let group = level.rows();
        let weights = if let Some(((kernel, shape), kept)) = kernel {
            let rows = match &kept {
                None => PackedRows::new(read, (n, len / n), group, shape, threads)?,
                Some(kept) => {
                    let repack = |file: &[u8], out: &mut [u8]| repack_rows(dtype, kept, file, out);
                    let row_bytes = (len / n, kept.bytes(k));
                    PackedRows::repacked(read, (n, row_bytes), group, (shape, &repack), threads)?
                }
            };
            RowsWithKernel::Quantised { rows, kernel, kept }
        } else if let Some(kernel) = float::kernel(dtype, level) {
            RowsWithKernel::Float { rows: CopiedBytes::new(len, read, threads)?, kernel }
        } else {
            return Ok(None);
        };
        Ok(Some(Self { weights, n, k, group }))
    }

    /// Appends the weights of a row to `out`, if candle cannot read the type. Returns `false` otherwise.
    ///
    /// # Panics
    /// If `row` is out of bounds.
    pub fn dequantise_row(&self, row: usize, out: &mut Vec<f32>) -> bool {
        assert!(row < self.n, "the row must be inside the matrix");
        let RowsWithKernel::Quantised { rows, kept: Some(kept), .. } = &self.weights else { return false };
        let mut bytes = Vec::with_capacity(kept.bytes(self.k));
        rows.unpack_row(row, &mut bytes);
        dequantise_kept(kept, &bytes, out);
        true
    }

    /// Appends the bytes of a row to `out` in file layout.
    ///
    /// # Panics
    /// If `row` is out of bounds, or the type is one of [`WeightMatrix::dequantise_row`].
    pub fn copy_row(&self, row: usize, out: &mut Vec<u8>) {
        assert!(row < self.n, "the row must be inside the matrix");
        match &self.weights {
            RowsWithKernel::Quantised { kept: Some(_), .. } => panic!("the rows are not in file layout"),
            RowsWithKernel::Quantised { rows, .. } => rows.unpack_row(row, out),
            RowsWithKernel::Float { rows, .. } => {
                let row_bytes = rows.bytes().len() / self.n;
                out.extend_from_slice(&rows.bytes()[row * row_bytes..][..row_bytes]);
            }
        }
    }

    /// Returns the size in bytes of a loaded matrix of this type and shape.
    ///
    /// `None` if there is no CPU kernel for the type.
    pub fn bytes_in_memory(dtype: WeightType, n: usize, k: usize) -> Option<usize> {
        let level = Level::current();
        let row_bytes = bytes_read(dtype, k);
        if quantised_kernel(dtype, level).is_some() {
            return Some(n.next_multiple_of(level.rows()) * row_bytes);
        }
        float::kernel(dtype, level).map(|_| n * row_bytes)
    }

    /// Returns the number of rows: the outputs of a product.
    pub fn rows(&self) -> usize {
        self.n
    }

    /// Returns `true` if the product needs quantised activations.
    pub fn wants_quantised(&self) -> bool {
        matches!(self.weights, RowsWithKernel::Quantised { .. })
    }

    fn groups(&self) -> usize {
        self.n.div_ceil(self.group)
    }

    /// Computes the outputs of one group of weight rows.
    ///
    /// Calls `take(row, first, outputs)` for each activation row, where `first` is the column of the
    /// first element of `outputs`.
    pub(super) fn group(
        &self,
        index: usize,
        input: ActivationRows<'_>,
        tile: &mut Tile,
        mut take: impl FnMut(usize, usize, &[f32]),
    ) {
        let first = index * self.group;
        let valid = self.group.min(self.n - first);
        let m = input.count;
        for from in (0..m).step_by(TILE) {
            let height = TILE.min(m - from);
            match &self.weights {
                RowsWithKernel::Quantised { rows, kernel, .. } => {
                    let per_row = self.k / BLOCK;
                    let job = Job {
                        weights: rows.group(index).as_ptr(),
                        activations: &input.blocks[from * per_row..(from + height) * per_row],
                        per_row,
                    };
                    // SAFETY: `quantised_kernel` chose the kernel for this CPU. Packed groups and
                    // quantised rows are complete.
                    unsafe { kernel(&job, tile) };
                }
                RowsWithKernel::Float { rows, kernel } => {
                    let weights = rows.bytes();
                    let row_bytes = weights.len() / self.n;
                    let job = FloatJob {
                        weights: &weights[first * row_bytes..(first + valid) * row_bytes],
                        x: &input.x[from * self.k..(from + height) * self.k],
                        k: self.k,
                    };
                    // SAFETY: `float::kernel` chose the kernel for this CPU.
                    unsafe { kernel(&job, tile) };
                }
            }
            for (row, values) in tile[..height].iter().enumerate() {
                take(from + row, first, &values[..valid]);
            }
        }
    }

    fn check(&self, input: ProductInput<'_>, out: usize) {
        assert!(input.x.len().is_multiple_of(self.k), "x must consist of rows of k values");
        let quantised = input.quantised.blocks().len() * BLOCK;
        assert!(!self.wants_quantised() || quantised == input.x.len(), "the quantised rows must match x");
        assert_eq!(out, input.x.len() / self.k * self.n, "the output must have m * n values");
    }
}

/// Source of a weight matrix.
#[derive(Clone, Copy)]
pub struct MatrixSource<'a> {
    /// Reads bytes of the matrix in file layout.
    pub read: &'a ReadAt<'a>,
    /// Size of the matrix in bytes.
    pub len: usize,
    /// Type of the weights.
    pub dtype: WeightType,
    /// Number of rows (outputs).
    pub n: usize,
    /// Number of weights per row (inputs).
    pub k: usize,
}

/// Input rows of a product, as f32 and quantised.
#[derive(Clone, Copy)]
pub struct ProductInput<'a> {
    /// Activations, `[m, k]`.
    pub x: &'a [f32],
    /// Quantised rows of `x`. May be empty if no matrix [needs them](WeightMatrix::wants_quantised).
    pub quantised: &'a QuantisedRows,
}

impl<'a> ProductInput<'a> {
    /// Returns the rows for a matrix of width `k`.
    fn rows(self, k: usize) -> ActivationRows<'a> {
        ActivationRows { x: self.x, blocks: self.quantised.blocks(), count: self.x.len() / k }
    }
}

/// Rows that a group of weight rows is multiplied with. Kernels read one of the two forms.
#[derive(Clone, Copy)]
pub(super) struct ActivationRows<'a> {
    /// Activations, `[count, k]`, for float weights.
    pub(super) x: &'a [f32],
    /// Quantised activations, `[count, k / BLOCK]`, for quantised weights.
    pub(super) blocks: &'a [ActivationBlock],
    /// Number of rows.
    pub(super) count: usize,
}

/// One of several products with the same input.
pub struct Product<'a> {
    /// Weight matrix, `[n, k]`.
    pub matrix: &'a WeightMatrix,
    /// Bias added to every row, `[n]`.
    pub bias: Option<&'a [f32]>,
    /// Output, `[m, n]`.
    pub out: &'a mut [f32],
    /// `true` to add the product to `out`, `false` to overwrite `out`.
    pub add: bool,
}

/// Computes several products with one input: `out = x W^T + bias`, or `out += x W^T + bias`.
///
/// # Panics
/// If the sizes do not match.
pub fn multiply(threads: &Threads, input: ProductInput<'_>, products: &mut [Product<'_>]) {
    let mut parts = Vec::with_capacity(products.len());
    let mut groups = 0;
    for product in products {
        product.matrix.check(input, product.out.len());
        assert!(product.bias.is_none_or(|bias| bias.len() == product.matrix.n));
        groups += product.matrix.groups();
        parts.push((groups, product.matrix, product.bias, SharedSlice::new(product.out), product.add));
    }
    split(threads, groups, &|index, tile| {
        let mut before = 0;
        for &(end, matrix, bias, out, add) in &parts {
            if index >= end {
                before = end;
                continue;
            }
            matrix.group(index - before, input.rows(matrix.k), tile, |row, first, values| {
                // SAFETY: `out` stays borrowed until all tasks are done, and no other task writes
                // these columns.
                let out = unsafe { out.part(row * matrix.n + first, values.len()) };
                for (i, (out, &value)) in out.iter_mut().zip(values).enumerate() {
                    let value = bias.map_or(value, |bias| value + bias[first + i]);
                    *out = if add { *out + value } else { value };
                }
            });
            return;
        }
    });
}

/// Weight rows per block of [`multiply_blocks`].
pub const BLOCK_ROWS: usize = 16;

/// Computes the outputs of selected blocks of [`BLOCK_ROWS`] weight rows.
///
/// Outputs equal those of [`multiply`]. Other columns of `out`, `[m, n]`, stay unchanged. `blocks`
/// holds block indices in strictly ascending order.
///
/// # Panics
/// If the sizes do not match or `blocks` is not strictly ascending.
pub fn multiply_blocks(
    threads: &Threads,
    input: ProductInput<'_>,
    matrix: &WeightMatrix,
    blocks: &[u32],
    out: &mut [f32],
) {
    matrix.check(input, out.len());
    assert!(blocks.is_sorted_by(|a, b| a < b), "blocks must be strictly ascending");
    let out = SharedSlice::new(out);
    let groups_of_block = BLOCK_ROWS / matrix.group;
    split(threads, blocks.len() * groups_of_block, &|index, tile| {
        let block = blocks[index / groups_of_block] as usize;
        let group = block * groups_of_block + index % groups_of_block;
        if group >= matrix.groups() {
            return;
        }
        matrix.group(group, input.rows(matrix.k), tile, |row, first, values| {
            // SAFETY: `out` stays borrowed until all tasks are done. `blocks` has each block once, so no
            // other task writes these columns.
            let out = unsafe { out.part(row * matrix.n + first, values.len()) };
            out.copy_from_slice(values);
        });
    });
}

/// Computes the gated part of a feed-forward layer: `out = silu(x Wg^T) * (x Wu^T)`.
///
/// Both matrices must have the same shape.
///
/// # Panics
/// If the sizes do not match.
pub fn multiply_gated(
    threads: &Threads,
    input: ProductInput<'_>,
    gate: &WeightMatrix,
    up: &WeightMatrix,
    activation: Activation,
    out: &mut [f32],
) {
    assert!((gate.n, gate.k) == (up.n, up.k), "gate and up must have the same shape");
    gate.check(input, out.len());
    up.check(input, out.len());
    let out = SharedSlice::new(out);
    split(threads, gate.groups(), &|index, tile| {
        let out_part = |row: usize, first: usize, len: usize| {
            // SAFETY: `out` stays borrowed until all tasks are done, and no other task writes these
            // columns. Each returned slice is dropped before the next call.
            unsafe { out.part(row * gate.n + first, len) }
        };
        gate.group(index, input.rows(gate.k), tile, |row, first, values| {
            out_part(row, first, values.len()).copy_from_slice(values)
        });
        up.group(index, input.rows(up.k), tile, |row, first, values| {
            activation.gate(out_part(row, first, values.len()), values);
        });
    });
}

/// Splits `groups` over the threads.
///
/// Each thread works through its own range, because the weights of the next group are prefetched
/// during the current one. A thread that is done takes groups from the other ranges. Several groups
/// are taken at once, because the atomic operation waits for all earlier loads.
pub(super) fn split(threads: &Threads, groups: usize, group: &(dyn Fn(usize, &mut Tile) + Sync)) {
    let count = threads.count().min(groups);
    if count == 0 {
        return;
    }
    let range_start = |range: usize| range * groups / count;
    let at_once = (groups / count / 12).clamp(1, 8);
    let next: Vec<AtomicUsize> = (0..count).map(|range| AtomicUsize::new(range_start(range))).collect();
    threads.run(count, &|mine| {
        let mut tile: Tile = [[0.0; MAX_GROUP]; TILE];
        for range in (mine..count).chain(0..mine) {
            loop {
                let from = next[range].fetch_add(at_once, Ordering::Relaxed);
                let end = range_start(range + 1);
                if from >= end {
                    break;
                }
                (from..end.min(from + at_once)).for_each(|index| group(index, &mut tile));
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use candle_core::quantized::{QStorage, QTensor};
    use candle_core::{Device, Tensor};

    use super::*;
    use crate::candle_type::candle_type;
    use crate::repack::dequantise;
    use crate::repack::samples::{random_blocks, set_scale};

    /// Returns all types with a kernel.
    fn types() -> impl Iterator<Item = WeightType> {
        WeightType::ALL.iter().copied().filter(|dtype| *dtype != WeightType::Q3K)
    }

    fn levels() -> Vec<Level> {
        Level::ALL.iter().copied().filter(|level| level.available()).collect()
    }

    fn is_quantised(dtype: WeightType) -> bool {
        !matches!(dtype, WeightType::F32 | WeightType::F16 | WeightType::BF16)
    }

    fn noise(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        (0..count)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
            })
            .collect()
    }

    /// Matrix in file layout.
    struct Source {
        bytes: Vec<u8>,
        dtype: WeightType,
        n: usize,
        k: usize,
    }

    /// Returns a quantised random matrix and its dequantised values.
    fn matrix(dtype: WeightType, n: usize, k: usize) -> (Source, Vec<f32>) {
        let Some(candle) = candle_type(dtype) else {
            let bytes = random_blocks(dtype, n * k / dtype.block_size(), 0.01, 7);
            let values = values_of(dtype, bytes.clone());
            return (Source { bytes, dtype, n, k }, values);
        };
        let weights = Tensor::from_vec(noise(n * k, 7), (n, k), &Device::Cpu).unwrap();
        let quantised = QTensor::quantize(&weights, candle).unwrap();
        let bytes = quantised.data().unwrap().into_owned();
        let values = quantised.dequantize(&Device::Cpu).unwrap();
        (Source { bytes, dtype, n, k }, values.flatten_all().unwrap().to_vec1().unwrap())
    }

    /// Returns the weights of whole blocks.
    fn values_of(dtype: WeightType, bytes: Vec<u8>) -> Vec<f32> {
        let mut values = Vec::new();
        let Some(candle) = candle_type(dtype) else {
            assert!(dequantise(dtype, &bytes, &mut values));
            return values;
        };
        let count = bytes.len() / dtype.type_size() * dtype.block_size();
        let storage = QStorage::from_data(bytes.into(), &Device::Cpu, candle).unwrap();
        QTensor::new(storage, count).unwrap().dequantize(&Device::Cpu).unwrap().to_vec1().unwrap()
    }

    /// Loads the matrix for an instruction set, if there is a kernel for its type.
    fn try_at(source: &Source, level: Level) -> Option<WeightMatrix> {
        let Source { bytes, dtype, n, k } = source;
        let read = |at: usize, out: &mut [u8]| {
            out.copy_from_slice(&bytes[at..at + out.len()]);
            Ok(())
        };
        let source = MatrixSource { read: &read, len: bytes.len(), dtype: *dtype, n: *n, k: *k };
        WeightMatrix::at_level(source, &Threads::new(2).unwrap(), level).unwrap()
    }

    fn at(source: &Source, level: Level) -> WeightMatrix {
        try_at(source, level).unwrap()
    }

    fn quantise(threads: &Threads, x: &[f32]) -> QuantisedRows {
        let mut rows = QuantisedRows::default();
        rows.fill(threads, x);
        rows
    }

    fn forward(matrix: &WeightMatrix, x: &[f32], threads: usize) -> Vec<f32> {
        let threads = Threads::new(threads).unwrap();
        let quantised = quantise(&threads, x);
        let mut out = vec![0.0; x.len() / matrix.k * matrix.n];
        let product = Product { matrix, bias: None, out: &mut out, add: false };
        multiply(&threads, ProductInput { x, quantised: &quantised }, &mut [product]);
        out
    }

    fn width(dtype: WeightType) -> usize {
        // Not a multiple of 256 where the block size allows it.
        if dtype.block_size() == 256 { 768 } else { 640 }
    }

    /// Compares with the f64 product of the weights and the activations after quantisation.
    #[test]
    fn every_type_on_every_instruction_set_matches_f64() {
        for dtype in types() {
            // Sizes with complete and incomplete groups, tiles and pairs.
            for (n, k, m) in
                [(37, width(dtype), 3), (1, width(dtype), 1), (16, 2 * width(dtype), 33), (50, 256, 16)]
            {
                let (matrix, weights) = matrix(dtype, n, k);
                let mut x = noise(m * k, 99);
                if is_quantised(dtype) {
                    // Round the inputs to 8 bits first, so that only the arithmetic is tested.
                    for block in x.chunks_mut(32) {
                        let top = block.iter().fold(0f32, |a, v| a.max(v.abs()));
                        for v in block {
                            *v = (*v * (1.0 / (top / 127.0))).round_ties_even() * (top / 127.0);
                        }
                    }
                }
                for level in levels() {
                    let y = forward(&at(&matrix, level), &x, 2);
                    for row in 0..m {
                        for col in 0..n {
                            let (a, b) = (&x[row * k..(row + 1) * k], &weights[col * k..(col + 1) * k]);
                            let exact: f64 =
                                a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                            let size: f64 =
                                a.iter().zip(b).map(|(a, b)| (f64::from(*a) * f64::from(*b)).abs()).sum();
                            let error = (f64::from(y[row * n + col]) - exact).abs();
                            assert!(error < 4e-5 * size, "{dtype:?} {level:?}: {error} of {size}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn row_has_same_bits_for_any_batch_size_and_thread_count() {
        for dtype in types() {
            let (n, k, m) = (70, width(dtype), 40);
            let (matrix, _) = matrix(dtype, n, k);
            let x = noise(m * k, 3);
            for level in levels() {
                let matrix = at(&matrix, level);
                let alone: Vec<u32> =
                    x.chunks_exact(k).flat_map(|row| forward(&matrix, row, 1)).map(f32::to_bits).collect();
                for rows in (2..=17).chain([31, 32, 33, 40]) {
                    for threads in [1, 3] {
                        let y = forward(&matrix, &x[..rows * k], threads);
                        let together: Vec<u32> = y.into_iter().map(f32::to_bits).collect();
                        assert_eq!(together, alone[..rows * n], "{dtype:?} {level:?} {rows} rows");
                    }
                }
            }
        }
    }

    #[test]
    fn extreme_codes_do_not_saturate() {
        for dtype in types().filter(|t| is_quantised(*t)) {
            let k = width(dtype);
            let bytes_per_row = k / dtype.block_size() * dtype.type_size();
            // A scale with all bits set is NaN, so set the scales to 1.
            let mut row = vec![0xffu8; bytes_per_row];
            let halves: &[usize] = match dtype {
                WeightType::Q2K => &[80, 82],
                WeightType::Q6K => &[208],
                WeightType::Q4_1 | WeightType::Q5_1 | WeightType::Q4K | WeightType::Q5K => &[0, 2],
                _ if candle_type(dtype).is_none() => &[],
                _ => &[0],
            };
            for block in row.chunks_exact_mut(dtype.type_size()) {
                for &at in halves {
                    block[at..at + 2].copy_from_slice(&half::f16::ONE.to_bits().to_le_bytes());
                }
                if candle_type(dtype).is_none() {
                    set_scale(dtype, block, 1.0);
                }
            }
            let matrix = Source { bytes: row.clone(), dtype, n: 1, k };
            let weights = values_of(dtype, row);
            for sign in [1.0f32, -1.0] {
                let exact: f64 = weights.iter().map(|w| f64::from(sign) * f64::from(*w)).sum();
                for level in levels() {
                    let y = forward(&at(&matrix, level), &vec![sign; k], 1)[0];
                    let error = (f64::from(y) - exact).abs() / exact.abs();
                    assert!(error < 1e-4, "{dtype:?} {level:?}: {y}, not {exact}");
                }
            }
        }
    }

    #[test]
    fn shared_input_products_match_single_products() {
        let k = 64;
        let (a, _) = matrix(WeightType::Q4_0, 37, k);
        let (b, _) = matrix(WeightType::F16, 20, k);
        let (a, b) = (at(&a, Level::current()), at(&b, Level::current()));
        let x = noise(3 * k, 5);
        let (alone_a, alone_b) = (forward(&a, &x, 1), forward(&b, &x, 1));
        let (mut out_a, mut out_b) = (vec![0.0; 3 * 37], vec![1.0; 3 * 20]);
        let bias = noise(37, 8);
        let threads = Threads::new(3).unwrap();
        let quantised = quantise(&threads, &x);
        let input = ProductInput { x: &x, quantised: &quantised };
        multiply(
            &threads,
            input,
            &mut [
                Product { matrix: &a, bias: Some(&bias), out: &mut out_a, add: false },
                Product { matrix: &b, bias: None, out: &mut out_b, add: true },
            ],
        );
        for (i, value) in out_a.iter().enumerate() {
            assert_eq!(*value, alone_a[i] + bias[i % 37]);
        }
        for (i, value) in out_b.iter().enumerate() {
            assert_eq!(*value, 1.0 + alone_b[i]);
        }
        let mut gated = vec![0.0; 3 * 37];
        multiply_gated(&threads, input, &a, &a, Activation::Silu, &mut gated);
        for (g, u) in gated.iter().zip(&alone_a) {
            assert!((g - u / (1.0 + (-u).exp()) * u).abs() <= 1e-5 * u.abs(), "{g} {u}");
        }
    }

    #[test]
    fn selected_blocks_match_full_product() {
        let (source, _) = matrix(WeightType::Q8_0, 70, 64);
        let x = noise(3 * 64, 5);
        for level in levels() {
            let matrix = at(&source, level);
            let all = forward(&matrix, &x, 2);
            let threads = Threads::new(2).unwrap();
            let quantised = quantise(&threads, &x);
            let mut some = vec![f32::NEG_INFINITY; all.len()];
            multiply_blocks(
                &threads,
                ProductInput { x: &x, quantised: &quantised },
                &matrix,
                &[1, 4],
                &mut some,
            );
            for (i, (some, all)) in some.iter().zip(&all).enumerate() {
                let selected = (16..32).contains(&(i % 70)) || i % 70 >= 64;
                assert_eq!(*some, if selected { *all } else { f32::NEG_INFINITY }, "{level:?} {i}");
            }
        }
    }

    #[test]
    fn rejects_unsupported_types_and_sizes() {
        for (bytes, dtype, n, k) in [
            (110, WeightType::Q3K, 1, 256),
            (72, WeightType::Q4_0, 2, 65),
            (72, WeightType::Q4_0, 200, 64),
            (135, WeightType::Iq4Xs, 1, 256),
            (36, WeightType::Nvfp4, 1, 32),
        ] {
            let source = Source { bytes: vec![0; bytes], dtype, n, k };
            assert!(try_at(&source, Level::current()).is_none(), "{dtype:?}");
        }
    }

    #[test]
    fn rows_can_be_read_back() {
        for dtype in types() {
            let (source, values) = matrix(dtype, 37, width(dtype));
            let row_bytes = source.bytes.len() / 37;
            for level in levels() {
                let matrix = at(&source, level);
                for row in 0..37 {
                    let mut row_values = Vec::new();
                    if matrix.dequantise_row(row, &mut row_values) {
                        let k = source.k;
                        assert!(candle_type(dtype).is_none() && row_values == values[row * k..(row + 1) * k]);
                        continue;
                    }
                    let mut bytes = vec![7];
                    matrix.copy_row(row, &mut bytes);
                    let expected = &source.bytes[row * row_bytes..][..row_bytes];
                    assert!(bytes[0] == 7 && bytes[1..] == *expected, "{dtype:?} {level:?} row {row}");
                }
            }
        }
    }
}
