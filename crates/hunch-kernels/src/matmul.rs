//! The matrix product y = x W^T of f32 rows with a weight matrix of a GGUF file: the heart of every
//! linear layer on the CPU. Any number of rows, one result per row whatever their number.
//!
//! Each row of activations is quantised once to 8 bits with a scale per 32 values (float weights
//! keep float activations). The weights are taken in groups of rows, as many as the instruction set
//! has lanes, and packed side by side: 32 or 64 weights of each row of the group are unpacked into
//! registers, where they serve all activation rows before the next are touched.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::quantized::GgmlDType;

use super::activation::gated_silu;
use super::blocks::{self, Format};
use super::float::{self, FloatJob, FloatKernel};
use super::isa::{Isa, Level, MAX_GROUP, Scalar};
use super::memory::{CopiedBytes, ReadAt};
use super::packed::{BlockShape, PackedRows};
use super::quantise::{ActivationBlock, BLOCK, QuantisedRows};
use super::threads::{SharedSlice, Threads};
use super::tile::{TILE, Tile};
use crate::error::Result;

/// How far ahead of what is multiplied the memory is asked for weights, in bytes.
const AHEAD: usize = 8192;
/// Bytes that memory gives at once.
const LINE: usize = 64;

/// A weight matrix `[n, k]`.
#[derive(Clone, Debug)]
pub struct WeightMatrix {
    weights: Weights,
    n: usize,
    k: usize,
    /// Rows of a group.
    group: usize,
}

/// The rows, and how one group of them is multiplied.
#[derive(Clone, Debug)]
enum Weights {
    Quantised {
        rows: PackedRows,
        kernel: QuantisedKernel,
    },
    /// Floats, as they lie in the file.
    Float {
        rows: CopiedBytes,
        kernel: FloatKernel,
    },
}

/// # Safety
/// The CPU has the instructions the kernel was made for; every row of the job has all its blocks,
/// and there are at most [`TILE`] rows of activations.
type QuantisedKernel = unsafe fn(&Job<'_>, &mut Tile);

/// One group of weight rows against up to [`TILE`] rows of activations.
struct Job<'a> {
    /// A packed group.
    weights: *const u8,
    /// `[m, per_row]`
    activations: &'a [ActivationBlock],
    per_row: usize,
}

impl WeightMatrix {
    /// A matrix of `n` rows of `k` weights, copied into memory. Quantised rows are packed for this CPU.
    /// `None` when the CPU kernels have no path for the type (Q3_K) or the source has another size.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) when there is no room, and as the source.
    pub fn new(source: MatrixSource<'_>, threads: &Threads) -> Result<Option<Self>> {
        Self::at_level(source, threads, Level::best())
    }

    fn at_level(source: MatrixSource<'_>, threads: &Threads, level: Level) -> Result<Option<Self>> {
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
        let weights = if let Some((kernel, shape)) = quantised_kernel(dtype, level) {
            let rows = PackedRows::new(read, (n, len / n), group, shape, threads)?;
            Weights::Quantised { rows, kernel }
        } else if let Some(kernel) = float::kernel(dtype, level) {
            Weights::Float { rows: CopiedBytes::new(len, read, threads)?, kernel }
        } else {
            return Ok(None);
        };
        Ok(Some(Self { weights, n, k, group }))
    }

    /// Appends the bytes of a row, as the file has them.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn copy_row(&self, row: usize, out: &mut Vec<u8>) {
        assert!(row < self.n, "the matrix has the row");
        match &self.weights {
            Weights::Quantised { rows, .. } => rows.unpack_row(row, out),
            Weights::Float { rows, .. } => {
                let row_bytes = rows.bytes().len() / self.n;
                out.extend_from_slice(&rows.bytes()[row * row_bytes..][..row_bytes]);
            }
        }
    }

    /// Bytes that a matrix of this type and shape takes once it is loaded;
    /// `None` when the CPU kernels have no path for it.
    pub fn bytes_in_memory(dtype: GgmlDType, n: usize, k: usize) -> Option<usize> {
        let level = Level::best();
        let row_bytes = k / dtype.block_size() * dtype.type_size();
        if quantised_kernel(dtype, level).is_some() {
            return Some(n.next_multiple_of(level.rows()) * row_bytes);
        }
        float::kernel(dtype, level).map(|_| n * row_bytes)
    }

    /// Whether the product takes its activations quantised.
    pub fn wants_quantised(&self) -> bool {
        matches!(self.weights, Weights::Quantised { .. })
    }

    fn groups(&self) -> usize {
        self.n.div_ceil(self.group)
    }

    /// Computes the outputs of one group of weight rows and hands them over: `take(row, first,
    /// outputs)` for each activation row, where output `first` of the row is the first of `outputs`.
    fn group(
        &self,
        index: usize,
        input: Input<'_>,
        tile: &mut Tile,
        mut take: impl FnMut(usize, usize, &[f32]),
    ) {
        let first = index * self.group;
        let valid = self.group.min(self.n - first);
        let m = input.x.len() / self.k;
        for from in (0..m).step_by(TILE) {
            let height = TILE.min(m - from);
            match &self.weights {
                Weights::Quantised { rows, kernel } => {
                    let per_row = self.k / BLOCK;
                    let job = Job {
                        weights: rows.group(index).as_ptr(),
                        activations: &input.quantised.blocks()[from * per_row..(from + height) * per_row],
                        per_row,
                    };
                    // SAFETY: `quantised_kernel` chose it for this CPU, packed groups are whole, and a
                    // tile holds `height` rows.
                    unsafe { kernel(&job, tile) };
                }
                Weights::Float { rows, kernel } => {
                    let weights = rows.bytes();
                    let row_bytes = weights.len() / self.n;
                    let job = FloatJob {
                        weights: &weights[first * row_bytes..(first + valid) * row_bytes],
                        x: &input.x[from * self.k..(from + height) * self.k],
                        k: self.k,
                    };
                    // SAFETY: `float::kernel` chose it for this CPU.
                    unsafe { kernel(&job, tile) };
                }
            }
            for (row, values) in tile[..height].iter().enumerate() {
                take(from + row, first, &values[..valid]);
            }
        }
    }

    fn check(&self, input: Input<'_>, out: usize) {
        assert!(input.x.len().is_multiple_of(self.k), "x is made of rows of k");
        let quantised = input.quantised.blocks().len() * BLOCK;
        assert!(!self.wants_quantised() || quantised == input.x.len(), "the quantised rows are those of x");
        assert_eq!(out, input.x.len() / self.k * self.n, "there is an output for each row and weight row");
    }
}

/// Where a weight matrix comes from.
#[derive(Clone, Copy)]
pub struct MatrixSource<'a> {
    /// Reads its bytes, as the file has them.
    pub read: &'a ReadAt<'a>,
    /// How many they are.
    pub len: usize,
    /// Type of the weights.
    pub dtype: GgmlDType,
    /// Rows: outputs.
    pub n: usize,
    /// Weights of a row: inputs.
    pub k: usize,
}

/// What products take: rows of f32, and the same quantised for the matrices that
/// [want them](WeightMatrix::wants_quantised).
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// `[m, k]`
    pub x: &'a [f32],
    /// Made of `x`, or empty where no matrix wants it.
    pub quantised: &'a QuantisedRows,
}

/// One product of several with the same input.
pub struct Product<'a> {
    /// The matrix, `[n, k]`.
    pub matrix: &'a WeightMatrix,
    /// Added to every row, `[n]`.
    pub bias: Option<&'a [f32]>,
    /// `[m, n]`
    pub out: &'a mut [f32],
    /// Whether the product is added to what `out` holds, or replaces it.
    pub add: bool,
}

/// Computes products with one input in one go: `out = x W^T + bias`, or `out += x W^T + bias`.
///
/// # Panics
/// If a size does not fit.
pub fn multiply(threads: &Threads, input: Input<'_>, products: &mut [Product<'_>]) {
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
            matrix.group(index - before, input, tile, |row, first, values| {
                // SAFETY: `out` is borrowed until all tasks are done, and only this task has these
                // columns.
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

/// Weight rows in a block of [`multiply_blocks`].
pub const BLOCK_ROWS: usize = 16;

/// The outputs of some blocks of [`BLOCK_ROWS`] weight rows, each as [`multiply`] gives it. The other
/// columns of `out`, `[m, n]`, stay as they are. `blocks` holds block numbers in strictly ascending order.
///
/// # Panics
/// If a size does not fit or `blocks` is not strictly ascending.
pub fn multiply_blocks(
    threads: &Threads,
    input: Input<'_>,
    matrix: &WeightMatrix,
    blocks: &[u32],
    out: &mut [f32],
) {
    matrix.check(input, out.len());
    assert!(blocks.is_sorted_by(|a, b| a < b), "blocks ascend, each once");
    let out = SharedSlice::new(out);
    let groups_of_block = BLOCK_ROWS / matrix.group;
    split(threads, blocks.len() * groups_of_block, &|index, tile| {
        let block = blocks[index / groups_of_block] as usize;
        let group = block * groups_of_block + index % groups_of_block;
        if group >= matrix.groups() {
            return;
        }
        matrix.group(group, input, tile, |row, first, values| {
            // SAFETY: `out` is borrowed until all tasks are done, and only this task has these columns:
            // `blocks` has each block once.
            let out = unsafe { out.part(row * matrix.n + first, values.len()) };
            out.copy_from_slice(values);
        });
    });
}

/// The gated half of a feed-forward layer: `out = silu(x Wg^T) * (x Wu^T)` with matrices of one shape.
///
/// # Panics
/// If a size does not fit.
pub fn multiply_gated(
    threads: &Threads,
    input: Input<'_>,
    gate: &WeightMatrix,
    up: &WeightMatrix,
    out: &mut [f32],
) {
    assert!((gate.n, gate.k) == (up.n, up.k), "gate and up have one shape");
    gate.check(input, out.len());
    up.check(input, out.len());
    let out = SharedSlice::new(out);
    split(threads, gate.groups(), &|index, tile| {
        let place = |row: usize, first: usize, len: usize| {
            // SAFETY: `out` is borrowed until all tasks are done, and only this task has these columns.
            unsafe { out.part(row * gate.n + first, len) }
        };
        gate.group(index, input, tile, |row, first, values| {
            place(row, first, values.len()).copy_from_slice(values)
        });
        up.group(index, input, tile, |row, first, values| {
            gated_silu(place(row, first, values.len()), values);
        });
    });
}

/// Spreads `groups` over the threads. Each walks through a stretch of its own, because the weights of
/// the next group are on their way while one is multiplied; who is done takes from the others. A few
/// groups are taken at once: taking is an atomic operation, which waits for every load before it.
fn split(threads: &Threads, groups: usize, group: &(dyn Fn(usize, &mut Tile) + Sync)) {
    let count = threads.count().min(groups);
    if count == 0 {
        return;
    }
    let begin = |stretch: usize| stretch * groups / count;
    let at_once = (groups / count / 12).clamp(1, 8);
    let next: Vec<AtomicUsize> = (0..count).map(|stretch| AtomicUsize::new(begin(stretch))).collect();
    threads.run(count, &|mine| {
        let mut tile: Tile = [[0.0; MAX_GROUP]; TILE];
        for stretch in (mine..count).chain(0..mine) {
            loop {
                let from = next[stretch].fetch_add(at_once, Ordering::Relaxed);
                let end = begin(stretch + 1);
                if from >= end {
                    break;
                }
                (from..end.min(from + at_once)).for_each(|index| group(index, &mut tile));
            }
        }
    });
}

/// The kernel of a quantised type on an instruction set that this CPU has, and how its blocks lie.
fn quantised_kernel(dtype: GgmlDType, level: Level) -> Option<(QuantisedKernel, BlockShape)> {
    use GgmlDType as T;
    assert!(level.available(), "a level is used where it is available");
    Some(match dtype {
        T::Q4_0 => kernel::<blocks::Q4_0>(level),
        T::Q4_1 => kernel::<blocks::Q4_1>(level),
        T::Q5_0 => kernel::<blocks::Q5_0>(level),
        T::Q5_1 => kernel::<blocks::Q5_1>(level),
        T::Q8_0 => kernel::<blocks::Q8_0>(level),
        T::Q2K => kernel::<blocks::Q2K>(level),
        T::Q4K => kernel::<blocks::Q4K>(level),
        T::Q5K => kernel::<blocks::Q5K>(level),
        T::Q6K => kernel::<blocks::Q6K>(level),
        _ => return None,
    })
}

fn kernel<F: Format>(level: Level) -> (QuantisedKernel, BlockShape) {
    let kernel: QuantisedKernel = match level {
        Level::Scalar => multiply_group::<F, Scalar>,
        #[cfg(target_arch = "aarch64")]
        Level::Neon => arm::neon::<F>,
        #[cfg(target_arch = "aarch64")]
        Level::NeonI8mm => arm::neon_i8mm::<F>,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => x86::avx2::<F>,
        #[cfg(target_arch = "x86_64")]
        Level::AvxVnni => x86::avx_vnni::<F>,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => x86::avx512::<F>,
    };
    (kernel, F::SHAPE)
}

#[cfg(target_arch = "aarch64")]
mod arm {
    //! The generic kernel compiled once per ARM extension.

    use super::super::isa::neon::{Neon, NeonI8mm};
    use super::{Format, Job, Tile, multiply_group};

    #[target_feature(enable = "neon,dotprod")]
    pub(super) unsafe fn neon<F: Format>(job: &Job<'_>, out: &mut Tile) {
        // SAFETY: the caller's contract.
        unsafe { multiply_group::<F, Neon>(job, out) }
    }

    #[target_feature(enable = "neon,dotprod,i8mm")]
    pub(super) unsafe fn neon_i8mm<F: Format>(job: &Job<'_>, out: &mut Tile) {
        // SAFETY: the caller's contract.
        unsafe { multiply_group::<F, NeonI8mm>(job, out) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The generic kernel compiled once per x86 extension.

    use super::super::isa::x86::{Avx2, Avx512, AvxVnni};
    use super::{Format, Job, Tile, multiply_group};

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn avx2<F: Format>(job: &Job<'_>, out: &mut Tile) {
        // SAFETY: the caller's contract.
        unsafe { multiply_group::<F, Avx2>(job, out) }
    }

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    pub(super) unsafe fn avx_vnni<F: Format>(job: &Job<'_>, out: &mut Tile) {
        // SAFETY: the caller's contract.
        unsafe { multiply_group::<F, AvxVnni>(job, out) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    pub(super) unsafe fn avx512<F: Format>(job: &Job<'_>, out: &mut Tile) {
        // SAFETY: the caller's contract.
        unsafe { multiply_group::<F, Avx512>(job, out) }
    }
}

/// One group of weight rows against the rows of activations. Each activation row takes part in the
/// same instructions in the same order whatever the number of rows.
///
/// # Safety
/// As [`QuantisedKernel`].
#[inline(always)]
unsafe fn multiply_group<F: Format, I: Isa>(job: &Job<'_>, out: &mut Tile) {
    let blocks = job.per_row * BLOCK / F::BLOCK;
    let m = job.activations.len() / job.per_row;
    assert!(m <= TILE, "a tile holds {TILE} rows");
    // SAFETY: the caller's contract: rows and instructions are there. Activations are addressed
    // inside `[m, per_row]`: `k / BLOCK` is below the format's block length, and a block has 32
    // codes, of which 16 are read from 0 or 16. The `m` sums are written before they are read.
    unsafe {
        let mut sums = [MaybeUninit::<I::Floats>::uninit(); TILE];
        let sums = &mut sums[..m];
        for sum in sums.iter_mut() {
            sum.write(I::splat(0.0));
        }
        let mut ahead = job.weights.wrapping_add(AHEAD);
        for index in 0..blocks {
            let block = job.weights.wrapping_add(index * F::SHAPE.bytes * I::ROWS);
            let first = index * (F::BLOCK / BLOCK);
            let header = F::header::<I>(block);
            for step in 0..F::STEPS {
                let weights = F::step::<I>(&header, block, step);
                for _ in 0..(F::SHAPE.bytes * I::ROWS / F::STEPS).div_ceil(LINE) {
                    I::prefetch(ahead);
                    ahead = ahead.wrapping_add(LINE);
                }
                let mut row = job.activations.as_ptr().wrapping_add(first);
                let (pairs, singles) =
                    if I::PAIRS { sums.as_chunks_mut::<2>() } else { (&mut [][..], &mut *sums) };
                for pair in pairs {
                    let rows = [row, row.wrapping_add(job.per_row)];
                    let before = [pair[0].assume_init(), pair[1].assume_init()];
                    let after = multiply_step_pair::<F, I>(&weights, rows, step, before);
                    pair[0].write(after[0]);
                    pair[1].write(after[1]);
                    row = row.wrapping_add(2 * job.per_row);
                }
                for sum in singles {
                    sum.write(multiply_step::<F, I>(&weights, row, step, sum.assume_init()));
                    row = row.wrapping_add(job.per_row);
                }
            }
        }
        for (sum, out) in sums.iter().zip(out) {
            I::store(sum.assume_init(), out);
        }
    }
}

/// The weights of one step against one row of activations, whose blocks begin at `row`.
///
/// # Safety
/// As [`QuantisedKernel`]; `row` points to the activations of the whole weight block.
#[inline(always)]
unsafe fn multiply_step<F: Format, I: Isa>(
    weights: &blocks::Step<I>,
    row: *const ActivationBlock,
    step: usize,
    mut sum: I::Floats,
) -> I::Floats {
    for run in 0..F::RUNS {
        let k = F::first(step, run);
        // SAFETY: the caller's contract; k is inside the weight block.
        unsafe {
            let a = &*row.wrapping_add(k / BLOCK);
            let mut dot = offset::<F, I>(a, k);
            for chunk in 0..F::CHUNKS {
                let codes = &weights.codes[4 * (F::CHUNKS * run + chunk)..][..4];
                let sixteen = sixteen(a, k % BLOCK + 16 * chunk);
                dot = if F::FULL_BYTES {
                    I::dot_bytes(dot, codes, sixteen)
                } else {
                    I::dot(dot, codes, sixteen)
                };
            }
            sum = finish_run::<F, I>(weights, run, (a, k), dot, sum);
        }
    }
    sum
}

/// [`multiply_step`] for two rows of activations, for instruction sets with [`Isa::PAIRS`].
///
/// # Safety
/// As [`multiply_step`].
#[inline(always)]
unsafe fn multiply_step_pair<F: Format, I: Isa>(
    weights: &blocks::Step<I>,
    rows: [*const ActivationBlock; 2],
    step: usize,
    mut sums: [I::Floats; 2],
) -> [I::Floats; 2] {
    for run in 0..F::RUNS {
        let k = F::first(step, run);
        // SAFETY: the caller's contract; k is inside the weight block.
        unsafe {
            let (a, b) = (&*rows[0].wrapping_add(k / BLOCK), &*rows[1].wrapping_add(k / BLOCK));
            let mut dots = [offset::<F, I>(a, k), offset::<F, I>(b, k)];
            for chunk in 0..F::CHUNKS {
                let codes = &weights.codes[4 * (F::CHUNKS * run + chunk)..][..4];
                let at = k % BLOCK + 16 * chunk;
                dots = I::dot_pair(dots, codes, [sixteen(a, at), sixteen(b, at)]);
            }
            sums[0] = finish_run::<F, I>(weights, run, (a, k), dots[0], sums[0]);
            sums[1] = finish_run::<F, I>(weights, run, (b, k), dots[1], sums[1]);
        }
    }
    sums
}

/// Where a dot product begins: codes are stored with an offset added, and what that will add to the
/// sum is taken away first.
///
/// # Safety
/// As [`Isa`].
#[inline(always)]
unsafe fn offset<F: Format, I: Isa>(a: &ActivationBlock, k: usize) -> I::Ints {
    // SAFETY: the caller's contract.
    unsafe {
        match F::OFFSET {
            Some(shift) if F::CHUNKS == 1 => I::splat_shifted(a.negative_halves[k % BLOCK / 16], shift),
            Some(shift) => I::splat_shifted(a.negative_sum, shift),
            None if F::FULL_BYTES && I::BIASED_BYTES => I::splat_shifted(a.negative_sum, 7),
            None => I::splat_shifted(0, 0),
        }
    }
}

/// Activations `at .. at + 16` of a block; `at` is 0 or 16.
#[inline(always)]
fn sixteen(a: &ActivationBlock, at: usize) -> &[i8; 16] {
    a.codes[at..at + 16].try_into().expect("the part has 16 codes")
}

/// Adds a run's dot product, scaled, and its minimum. The run begins at weight `k` of its block.
///
/// # Safety
/// As [`Isa`].
#[inline(always)]
unsafe fn finish_run<F: Format, I: Isa>(
    weights: &blocks::Step<I>,
    run: usize,
    (a, k): (&ActivationBlock, usize),
    dot: I::Ints,
    sum: I::Floats,
) -> I::Floats {
    // SAFETY: the caller's contract.
    unsafe {
        let value = I::mul(I::floats(dot), weights.scale[run]);
        let sum = I::mul_add(value, I::splat(a.scale), sum);
        if !F::MINIMA {
            return sum;
        }
        let part =
            if F::CHUNKS == 1 { -a.scale * a.negative_halves[k % BLOCK / 16] as f32 } else { a.scaled_sum };
        I::mul_add(weights.min[run], I::splat(part), sum)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::quantized::QTensor;
    use candle_core::{Device, Tensor};

    use super::*;

    const TYPES: [GgmlDType; 12] = [
        GgmlDType::F32,
        GgmlDType::F16,
        GgmlDType::BF16,
        GgmlDType::Q4_0,
        GgmlDType::Q4_1,
        GgmlDType::Q5_0,
        GgmlDType::Q5_1,
        GgmlDType::Q8_0,
        GgmlDType::Q2K,
        GgmlDType::Q4K,
        GgmlDType::Q5K,
        GgmlDType::Q6K,
    ];

    fn levels() -> Vec<Level> {
        Level::ALL.iter().copied().filter(|level| level.available()).collect()
    }

    fn is_quantised(dtype: GgmlDType) -> bool {
        !matches!(dtype, GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16)
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

    /// The bytes of a matrix.
    struct Source {
        bytes: Vec<u8>,
        dtype: GgmlDType,
        n: usize,
        k: usize,
    }

    /// A quantised random matrix, and what it stands for.
    fn matrix(dtype: GgmlDType, n: usize, k: usize) -> (Source, Vec<f32>) {
        let weights = Tensor::from_vec(noise(n * k, 7), (n, k), &Device::Cpu).unwrap();
        let quantised = QTensor::quantize(&weights, dtype).unwrap();
        let bytes = quantised.data().unwrap().into_owned();
        let values = quantised.dequantize(&Device::Cpu).unwrap();
        (Source { bytes, dtype, n, k }, values.flatten_all().unwrap().to_vec1().unwrap())
    }

    /// The matrix for an instruction set, if there is a path for it.
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
        multiply(&threads, Input { x, quantised: &quantised }, &mut [product]);
        out
    }

    fn width(dtype: GgmlDType) -> usize {
        // Not a multiple of 256 where the block size allows it.
        if dtype.block_size() == 256 { 768 } else { 608 }
    }

    /// Against the product in f64 of the weights with the activations as the kernel sees them.
    #[test]
    fn every_type_on_every_instruction_set_matches_f64() {
        for dtype in TYPES {
            // Rows that fill groups, tiles and pairs or do not.
            for (n, k, m) in
                [(37, width(dtype), 3), (1, width(dtype), 1), (16, 2 * width(dtype), 33), (50, 256, 16)]
            {
                let (matrix, weights) = matrix(dtype, n, k);
                let mut x = noise(m * k, 99);
                if is_quantised(dtype) {
                    // Round the inputs to 8 bits a block first, so that only the arithmetic is tested.
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
    fn a_row_has_the_same_bits_alone_and_among_others_on_any_number_of_threads() {
        for dtype in TYPES {
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
    fn the_extremes_of_scales_and_codes_do_not_saturate() {
        for dtype in TYPES.into_iter().filter(|t| is_quantised(*t)) {
            let k = width(dtype);
            let bytes_per_row = k / dtype.block_size() * dtype.type_size();
            // All bits set is a NaN scale in f16, so the halves that hold scales are put back to 1.
            let mut row = vec![0xffu8; bytes_per_row];
            let halves: &[usize] = match dtype {
                GgmlDType::Q2K => &[80, 82],
                GgmlDType::Q6K => &[208],
                GgmlDType::Q4_1 | GgmlDType::Q5_1 | GgmlDType::Q4K | GgmlDType::Q5K => &[0, 2],
                _ => &[0],
            };
            for block in row.chunks_exact_mut(dtype.type_size()) {
                for &at in halves {
                    block[at..at + 2].copy_from_slice(&half::f16::ONE.to_bits().to_le_bytes());
                }
            }
            let matrix = Source { bytes: row.clone(), dtype, n: 1, k };
            let storage =
                candle_core::quantized::QStorage::from_data(row.into(), &Device::Cpu, dtype).unwrap();
            let weights = QTensor::new(storage, (1, k)).unwrap().dequantize(&Device::Cpu).unwrap();
            let weights = weights.flatten_all().unwrap().to_vec1::<f32>().unwrap();
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
    fn products_that_share_an_input_are_those_alone_with_bias_sum_and_gate() {
        let k = 64;
        let (a, _) = matrix(GgmlDType::Q4_0, 37, k);
        let (b, _) = matrix(GgmlDType::F16, 20, k);
        let (a, b) = (at(&a, Level::best()), at(&b, Level::best()));
        let x = noise(3 * k, 5);
        let (alone_a, alone_b) = (forward(&a, &x, 1), forward(&b, &x, 1));
        let (mut out_a, mut out_b) = (vec![0.0; 3 * 37], vec![1.0; 3 * 20]);
        let bias = noise(37, 8);
        let threads = Threads::new(3).unwrap();
        let quantised = quantise(&threads, &x);
        let input = Input { x: &x, quantised: &quantised };
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
        multiply_gated(&threads, input, &a, &a, &mut gated);
        for (g, u) in gated.iter().zip(&alone_a) {
            assert!((g - u / (1.0 + (-u).exp()) * u).abs() <= 1e-5 * u.abs(), "{g} {u}");
        }
    }

    #[test]
    fn some_blocks_of_rows_are_those_of_all() {
        let (source, _) = matrix(GgmlDType::Q8_0, 70, 64);
        let x = noise(3 * 64, 5);
        for level in levels() {
            let matrix = at(&source, level);
            let all = forward(&matrix, &x, 2);
            let threads = Threads::new(2).unwrap();
            let quantised = quantise(&threads, &x);
            let mut some = vec![f32::NEG_INFINITY; all.len()];
            multiply_blocks(&threads, Input { x: &x, quantised: &quantised }, &matrix, &[1, 4], &mut some);
            for (i, (some, all)) in some.iter().zip(&all).enumerate() {
                let asked = (16..32).contains(&(i % 70)) || i % 70 >= 64;
                assert_eq!(*some, if asked { *all } else { f32::NEG_INFINITY }, "{level:?} {i}");
            }
        }
    }

    #[test]
    fn what_the_kernels_have_no_path_for_is_refused() {
        for (bytes, dtype, n, k) in
            [(110, GgmlDType::Q3K, 1, 256), (72, GgmlDType::Q4_0, 2, 65), (72, GgmlDType::Q4_0, 200, 64)]
        {
            let source = Source { bytes: vec![0; bytes], dtype, n, k };
            assert!(try_at(&source, Level::best()).is_none(), "{dtype:?}");
        }
    }

    #[test]
    fn gives_back_the_rows_of_the_file() {
        for dtype in TYPES {
            let (source, _) = matrix(dtype, 37, width(dtype));
            let row_bytes = source.bytes.len() / 37;
            for level in levels() {
                let matrix = at(&source, level);
                for row in 0..37 {
                    let mut bytes = vec![7];
                    matrix.copy_row(row, &mut bytes);
                    let expected = &source.bytes[row * row_bytes..][..row_bytes];
                    assert!(bytes[0] == 7 && bytes[1..] == *expected, "{dtype:?} {level:?} row {row}");
                }
            }
        }
    }
}
