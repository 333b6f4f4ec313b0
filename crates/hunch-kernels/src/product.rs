//! The product of one group of packed weight rows with activation rows, and the choice of its kernel.
//!
//! 32 or 64 weights of each row of the group are unpacked into registers. They are multiplied with all
//! activation rows before the next weights are unpacked. Block formats belong to `blocks` and `tables`, vector operations
//! to `isa`, matrices and threads to `matmul`.

use std::mem::MaybeUninit;

use super::blocks::{self, BlockFormat};
use super::isa::{Isa, Level, Scalar};
use super::packed::BlockShape;
use super::quantise::{ActivationBlock, BLOCK};
use super::tables::{Fp4, Iq1, Iq2, Iq3S, Iq3Xxs, Iq4, Q3, Table16, Table32, Table256};
use super::tile::{TILE, Tile};
use super::types::WeightType;

/// Prefetch distance in bytes of weights.
const PREFETCH_DISTANCE: usize = 8192;
/// Size of a cache line in bytes.
const CACHE_LINE: usize = 64;

/// Kernel for one quantised type on one instruction set.
///
/// # Safety
/// The CPU must support the instruction set the kernel was compiled for. Every row of the job must be
/// complete.
pub(super) type QuantisedKernel = unsafe fn(&Job<'_>, &mut Tile);

/// One group of weight rows times up to [`TILE`] activation rows.
pub(super) struct Job<'a> {
    /// A packed group.
    pub(super) weights: *const u8,
    /// Quantised activations, `[m, per_row]`.
    pub(super) activations: &'a [ActivationBlock],
    pub(super) per_row: usize,
}

/// Returns the kernel of a quantised type for an available instruction set, and the layout of its blocks in memory.
pub(super) fn quantised_kernel(dtype: WeightType, level: Level) -> Option<(QuantisedKernel, BlockShape)> {
    use WeightType as T;
    assert!(level.available(), "the instruction set must be available");
    Some(match dtype {
        T::Q4_0 => kernel::<blocks::Q4_0>(level),
        T::Q4_1 => kernel::<blocks::Q4_1>(level),
        T::Q5_0 => kernel::<blocks::Q5_0>(level),
        T::Q5_1 => kernel::<blocks::Q5_1>(level),
        T::Q8_0 => kernel::<blocks::Q8_0>(level),
        T::Affine8 => kernel::<blocks::Affine8>(level),
        T::Q2K => kernel::<blocks::Q2K>(level),
        T::Q4K => kernel::<blocks::Q4K>(level),
        T::Q5K => kernel::<blocks::Q5K>(level),
        T::Q6K => kernel::<blocks::Q6K>(level),
        T::Iq4Nl => kernel::<Table32<Iq4, true>>(level),
        T::Mxfp4 => kernel::<Table32<Fp4, false>>(level),
        T::Nvfp4 => kernel::<Table16<Fp4>>(level),
        T::Iq4Xs => kernel::<Table256<Iq4, 32>>(level),
        T::Iq3S => kernel::<Table256<Iq3S, 32>>(level),
        T::Iq3Xxs => kernel::<Table256<Iq3Xxs, 32>>(level),
        T::Iq2Xxs => kernel::<Table256<Iq2, 32>>(level),
        T::Iq2Xs | T::Iq2S => kernel::<Table256<Iq2, 16>>(level),
        T::Iq1S => kernel::<Table256<Iq1, 32>>(level),
        T::Iq1M => kernel::<Table256<Iq1, 16>>(level),
        // Kept as Q2_K.
        T::Tq1_0 | T::Tq2_0 => kernel::<blocks::Q2K>(level),
        // Kept as Q4_0.
        T::Q1_0 | T::Q2_0 => kernel::<blocks::Q4_0>(level),
        _ => return None,
    })
}

/// Returns the kernel of a type as [`quantised_kernel`] does, for stacks of experts. They have one for Q3_K too.
pub(super) fn stack_kernel(dtype: WeightType, level: Level) -> Option<(QuantisedKernel, BlockShape)> {
    match dtype {
        WeightType::Q3K => Some(kernel::<Table256<Q3, 16>>(level)),
        _ => quantised_kernel(dtype, level),
    }
}

fn kernel<F: BlockFormat>(level: Level) -> (QuantisedKernel, BlockShape) {
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
    //! The generic kernel, compiled once per ARM extension.

    use super::super::isa::neon::{Neon, NeonI8mm};
    use super::{BlockFormat, Job, Tile, multiply_group};

    #[target_feature(enable = "neon,dotprod")]
    pub(super) unsafe fn neon<F: BlockFormat>(job: &Job<'_>, out: &mut Tile) {
        // SAFETY: guaranteed by the caller.
        unsafe { multiply_group::<F, Neon>(job, out) }
    }

    #[target_feature(enable = "neon,dotprod,i8mm")]
    pub(super) unsafe fn neon_i8mm<F: BlockFormat>(job: &Job<'_>, out: &mut Tile) {
        // SAFETY: guaranteed by the caller.
        unsafe { multiply_group::<F, NeonI8mm>(job, out) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The generic kernel, compiled once per x86 extension.

    use super::super::isa::x86::{Avx2, Avx512, AvxVnni};
    use super::{BlockFormat, Job, Tile, multiply_group};

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn avx2<F: BlockFormat>(job: &Job<'_>, out: &mut Tile) {
        // SAFETY: guaranteed by the caller.
        unsafe { multiply_group::<F, Avx2>(job, out) }
    }

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    pub(super) unsafe fn avx_vnni<F: BlockFormat>(job: &Job<'_>, out: &mut Tile) {
        // SAFETY: guaranteed by the caller.
        unsafe { multiply_group::<F, AvxVnni>(job, out) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    pub(super) unsafe fn avx512<F: BlockFormat>(job: &Job<'_>, out: &mut Tile) {
        // SAFETY: guaranteed by the caller.
        unsafe { multiply_group::<F, Avx512>(job, out) }
    }
}

/// Multiplies one group of weight rows with the activation rows.
///
/// Row-invariant: the instructions of a row and their order do not depend on the number of rows.
///
/// # Safety
/// See [`QuantisedKernel`].
#[inline(always)]
unsafe fn multiply_group<F: BlockFormat, I: Isa>(job: &Job<'_>, out: &mut Tile) {
    let blocks = job.per_row * BLOCK / F::BLOCK;
    let m = job.activations.len() / job.per_row;
    assert!(m <= TILE, "a job must have at most {TILE} activation rows");
    // SAFETY: the caller guarantees complete rows and the instruction set. Activations are read inside
    // `[m, per_row]`, since `k / BLOCK` is below the number of activation blocks per weight block. 16 of the
    // 32 codes of a block are read, from 0 or 16. The `m` sums are written before they are read.
    unsafe {
        let mut sums = [MaybeUninit::<I::Floats>::uninit(); TILE];
        let sums = &mut sums[..m];
        for sum in sums.iter_mut() {
            sum.write(I::splat(0.0));
        }
        let mut ahead = job.weights.wrapping_add(PREFETCH_DISTANCE);
        for index in 0..blocks {
            let block = job.weights.wrapping_add(index * F::SHAPE.bytes * I::ROWS);
            let first = index * (F::BLOCK / BLOCK);
            let header = F::header::<I>(block);
            for step in 0..F::STEPS {
                let weights = F::step::<I>(&header, block, step);
                for _ in 0..(F::SHAPE.bytes * I::ROWS / F::STEPS).div_ceil(CACHE_LINE) {
                    I::prefetch(ahead);
                    ahead = ahead.wrapping_add(CACHE_LINE);
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

/// Multiplies the weights of one step with one activation row, whose blocks begin at `row`.
///
/// # Safety
/// See [`QuantisedKernel`]. `row` must point to the activations of a whole weight block.
#[inline(always)]
unsafe fn multiply_step<F: BlockFormat, I: Isa>(
    weights: &blocks::UnpackedStep<I>,
    row: *const ActivationBlock,
    step: usize,
    mut sum: I::Floats,
) -> I::Floats {
    for run in 0..F::RUNS {
        let k = F::first(step, run);
        // SAFETY: guaranteed by the caller. `k` is inside the weight block.
        unsafe {
            let a = &*row.wrapping_add(k / BLOCK);
            let mut dot = offset::<F, I>(a, k);
            for chunk in 0..F::CHUNKS {
                let codes = &weights.codes[4 * (F::CHUNKS * run + chunk)..][..4];
                let activations = half_of_codes(a, k % BLOCK + 16 * chunk);
                dot = if F::FULL_BYTES {
                    I::dot_bytes(dot, codes, activations)
                } else {
                    I::dot(dot, codes, activations)
                };
            }
            sum = finish_run::<F, I>(weights, run, (a, k), dot, sum);
        }
    }
    sum
}

/// Multiplies like [`multiply_step`], but two activation rows at once. Requires [`Isa::PAIRS`].
///
/// # Safety
/// See [`multiply_step`].
#[inline(always)]
unsafe fn multiply_step_pair<F: BlockFormat, I: Isa>(
    weights: &blocks::UnpackedStep<I>,
    rows: [*const ActivationBlock; 2],
    step: usize,
    mut sums: [I::Floats; 2],
) -> [I::Floats; 2] {
    for run in 0..F::RUNS {
        let k = F::first(step, run);
        // SAFETY: guaranteed by the caller. `k` is inside the weight block.
        unsafe {
            let (a, b) = (&*rows[0].wrapping_add(k / BLOCK), &*rows[1].wrapping_add(k / BLOCK));
            let mut dots = [offset::<F, I>(a, k), offset::<F, I>(b, k)];
            for chunk in 0..F::CHUNKS {
                let codes = &weights.codes[4 * (F::CHUNKS * run + chunk)..][..4];
                let at = k % BLOCK + 16 * chunk;
                dots = I::dot_pair(dots, codes, [half_of_codes(a, at), half_of_codes(b, at)]);
            }
            sums[0] = finish_run::<F, I>(weights, run, (a, k), dots[0], sums[0]);
            sums[1] = finish_run::<F, I>(weights, run, (b, k), dots[1], sums[1]);
        }
    }
    sums
}

/// Returns the initial value of a dot product, which cancels the offset of the stored codes.
///
/// # Safety
/// See [`Isa`].
#[inline(always)]
unsafe fn offset<F: BlockFormat, I: Isa>(a: &ActivationBlock, k: usize) -> I::Ints {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match F::OFFSET {
            Some(shift) if F::CHUNKS == 1 => I::splat_shifted(a.negative_halves[k % BLOCK / 16], shift),
            Some(shift) => I::splat_shifted(a.negative_sum, shift),
            // Codes are either 128 too large or, for unsigned ones, 128 too small.
            None if F::FULL_BYTES && I::BIASED_BYTES && !F::UNSIGNED => I::splat_shifted(a.negative_sum, 7),
            None if F::UNSIGNED && !I::BIASED_BYTES => I::splat_shifted(-a.negative_sum, 7),
            None => I::splat_shifted(0, 0),
        }
    }
}

/// Returns the activation codes `at .. at + 16` of a block. `at` must be 0 or 16.
#[inline(always)]
fn half_of_codes(a: &ActivationBlock, at: usize) -> &[i8; 16] {
    a.codes[at..at + 16].try_into().expect("the range has 16 codes")
}

/// Adds the scaled dot product of a run and its minimum. The run begins at weight `k` of its block.
///
/// # Safety
/// See [`Isa`].
#[inline(always)]
unsafe fn finish_run<F: BlockFormat, I: Isa>(
    weights: &blocks::UnpackedStep<I>,
    run: usize,
    (a, k): (&ActivationBlock, usize),
    dot: I::Ints,
    sum: I::Floats,
) -> I::Floats {
    // SAFETY: guaranteed by the caller.
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
