//! Matrix kernels for F32, F16 and BF16 weights. Activations stay f32.
//!
//! Quantised weights belong to `matmul` and `blocks`.

use super::isa::Level;
use super::tile::{TILE, Tile};
use super::types::WeightType;

/// One group of weight rows times up to [`TILE`] activation rows.
pub(super) struct FloatJob<'a> {
    /// Weight rows of `k` weights each, in file layout.
    pub(super) weights: &'a [u8],
    /// Activations, `[m, k]`.
    pub(super) x: &'a [f32],
    pub(super) k: usize,
}

/// Kernel for one float type on one instruction set.
///
/// # Safety
/// The CPU must support the instruction set the kernel was compiled for.
pub(super) type FloatKernel = unsafe fn(&FloatJob<'_>, &mut Tile);

/// Returns the kernel for a float type on an available instruction set, `None` for other types.
pub(super) fn kernel(dtype: WeightType, level: Level) -> Option<FloatKernel> {
    match dtype {
        WeightType::F32 => Some(kernel_for::<F32>(level)),
        WeightType::F16 => Some(kernel_for::<F16>(level)),
        WeightType::BF16 => Some(kernel_for::<Bf16>(level)),
        _ => None,
    }
}

fn kernel_for<W: FloatWeight>(level: Level) -> FloatKernel {
    match level {
        Level::Scalar => multiply_rows::<W>,
        // NEON is part of the base target, so plain Rust uses it already.
        #[cfg(target_arch = "aarch64")]
        Level::Neon | Level::NeonI8mm => multiply_rows::<W>,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::AvxVnni => x86::avx2::<W>,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => x86::avx512::<W>,
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The generic kernel, compiled once per x86 extension.

    use super::{FloatJob, FloatWeight, Tile, multiply_rows};

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn avx2<W: FloatWeight>(job: &FloatJob<'_>, out: &mut Tile) {
        multiply_rows::<W>(job, out);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub(super) unsafe fn avx512<W: FloatWeight>(job: &FloatJob<'_>, out: &mut Tile) {
        multiply_rows::<W>(job, out);
    }
}

/// Float type that can be converted to f32.
trait FloatWeight {
    const BYTES: usize;
    fn decode(bytes: &[u8]) -> f32;
}

struct F32;
impl FloatWeight for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    fn decode(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

struct F16;
impl FloatWeight for F16 {
    const BYTES: usize = 2;
    /// Exact for every finite half, including subnormals: a multiplication corrects the exponent.
    /// Plain arithmetic, so that it vectorises.
    #[inline(always)]
    fn decode(bytes: &[u8]) -> f32 {
        let bits = u32::from(u16::from_le_bytes([bytes[0], bytes[1]]));
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
        f32::from_bits(magnitude.to_bits() | (bits & 0x8000) << 16)
    }
}

struct Bf16;
impl FloatWeight for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    fn decode(bytes: &[u8]) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16)
    }
}

/// Lanes of partial sums. Element i of a row is added to lane i % 16.
const LANES: usize = 16;
/// Number of weights decoded at a time.
const PIECE: usize = 256;

/// Multiplies the weight rows by the activation rows.
///
/// Row-invariant: the operations of a row and their order do not depend on the number of rows.
#[inline(always)]
fn multiply_rows<W: FloatWeight>(job: &FloatJob<'_>, out: &mut Tile) {
    let mut piece = [0f32; PIECE];
    let mut sums = [[0f32; LANES]; TILE];
    let sums = &mut sums[..job.x.len() / job.k];
    for (n, weights) in job.weights.chunks_exact(job.k * W::BYTES).enumerate() {
        sums.fill([0.0; LANES]);
        for (index, bytes) in weights.chunks(PIECE * W::BYTES).enumerate() {
            let used = bytes.len() / W::BYTES;
            for (w, b) in piece.iter_mut().zip(bytes.chunks_exact(W::BYTES)) {
                *w = W::decode(b);
            }
            let (w, w_rest) = piece[..used].as_chunks::<LANES>();
            for (x, sums) in job.x.chunks_exact(job.k).zip(&mut *sums) {
                let (x, x_rest) = x[index * PIECE..index * PIECE + used].as_chunks::<LANES>();
                // A copy, which stays in registers.
                let mut lanes = *sums;
                for (w, x) in w.iter().zip(x) {
                    add_products(&mut lanes, w, x);
                }
                add_products(&mut lanes, w_rest, x_rest);
                *sums = lanes;
            }
        }
        for (sums, out) in sums.iter().zip(out.iter_mut()) {
            out[n] = sums.iter().sum();
        }
    }
}

/// Adds the products of up to [`LANES`] weights and activations to the lanes.
#[inline(always)]
fn add_products(lanes: &mut [f32; LANES], w: &[f32], x: &[f32]) {
    for (lane, (w, x)) in lanes.iter_mut().zip(w.iter().zip(x)) {
        *lane += w * x;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_every_finite_half_exactly() {
        for bits in (0..=u16::MAX).step_by(if cfg!(miri) { 61 } else { 1 }) {
            let half = half::f16::from_bits(bits);
            if half.is_finite() {
                assert_eq!(F16::decode(&bits.to_le_bytes()).to_bits(), half.to_f32().to_bits());
            }
        }
    }
}
