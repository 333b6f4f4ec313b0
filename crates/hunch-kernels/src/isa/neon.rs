//! Vector operations for ARM: NEON with the byte dot product (dotprod) or the byte matrix product
//! (i8mm), 4 rows per group. Covers Apple CPUs and most ARM servers.
//!
//! Both variants add integer products, so their results are bit-identical. Only implementations of
//! [`Isa`] live here.

use std::arch::aarch64::*;
use std::arch::asm;

use super::{Isa, MAX_GROUP};

/// NEON with dotprod. `I8MM` enables products of two activation rows at once.
pub(in super::super) struct Arm<const I8MM: bool>;
/// ARMv8.2 with dotprod: Apple M1.
pub(in super::super) type Neon = Arm<false>;
/// ARMv8.6 with i8mm: Apple M2 and later.
pub(in super::super) type NeonI8mm = Arm<true>;

/// Adds the products of four signed codes per lane with activations `4 * $lane ..` to `$acc`.
///
/// Inline assembly, because the intrinsic is not yet stable in Rust.
macro_rules! dot_lane {
    ($acc:ident, $codes:expr, $activations:ident, $lane:literal) => {
        asm!(
            ".arch_extension dotprod",
            concat!("sdot {acc:v}.4s, {codes:v}.16b, {activations:v}.4b[", $lane, "]"),
            acc = inout(vreg) $acc,
            codes = in(vreg) $codes,
            activations = in(vreg) $activations,
            options(pure, nomem, nostack, preserves_flags)
        )
    };
}

/// Adds `$codes` (2 x 8) times `$activations` transposed (8 x 2) to `$acc` (2 x 2).
macro_rules! multiply_2x2 {
    ($acc:ident, $codes:expr, $activations:expr) => {
        asm!(
            ".arch_extension i8mm",
            "smmla {acc:v}.4s, {codes:v}.16b, {activations:v}.16b",
            acc = inout(vreg) $acc,
            codes = in(vreg) $codes,
            activations = in(vreg) $activations,
            options(pure, nomem, nostack, preserves_flags)
        )
    };
}

impl<const I8MM: bool> Isa for Arm<I8MM> {
    const ROWS: usize = 4;
    const PAIRS: bool = I8MM;
    const BIASED_BYTES: bool = false;
    type Bytes = uint8x16_t;
    type Ints = int32x4_t;
    type Floats = float32x4_t;

    #[inline(always)]
    unsafe fn words(at: *const u8) -> uint8x16_t {
        // SAFETY: guaranteed by the caller.
        unsafe { vld1q_u8(at) }
    }
    #[inline(always)]
    unsafe fn halves(at: *const u8) -> float32x4_t {
        // SAFETY: guaranteed by the caller.
        unsafe { Self::low_half(vreinterpretq_u8_u32(vmovl_u16(vreinterpret_u16_u8(vld1_u8(at))))) }
    }
    #[inline(always)]
    unsafe fn upper_halves(at: *const u8) -> float32x4_t {
        // SAFETY: guaranteed by the caller.
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(at)))) }
    }
    #[inline(always)]
    unsafe fn prefetch(address: *const u8) {
        // SAFETY: a prefetch never faults and has no visible effect.
        unsafe {
            asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, preserves_flags, readonly));
        }
    }
    #[inline(always)]
    unsafe fn and(a: uint8x16_t, mask: u8) -> uint8x16_t {
        // SAFETY: guaranteed by the caller.
        unsafe { vandq_u8(a, vdupq_n_u8(mask)) }
    }
    #[inline(always)]
    unsafe fn or(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        // SAFETY: guaranteed by the caller.
        unsafe { vorrq_u8(a, b) }
    }
    #[inline(always)]
    unsafe fn shr(a: uint8x16_t, by: u32) -> uint8x16_t {
        // SAFETY: guaranteed by the caller. A negative count shifts right.
        unsafe { vshlq_u8(a, vdupq_n_s8(-(by as i8))) }
    }
    #[inline(always)]
    unsafe fn shl(a: uint8x16_t, by: u32) -> uint8x16_t {
        // SAFETY: guaranteed by the caller.
        unsafe { vshlq_u8(a, vdupq_n_s8(by as i8)) }
    }
    #[inline(always)]
    unsafe fn fifth_bits(word: uint8x16_t, nibble: usize) -> uint8x16_t {
        // SAFETY: guaranteed by the caller.
        unsafe {
            // Copy the byte with the four bits to all bytes of its word.
            let first = vreinterpretq_u8_u32(vdupq_n_u32(0x0101_0101 * (nibble as u32 / 2)));
            let words = [0x0000_0000u32, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c];
            let spread = vaddq_u8(first, vreinterpretq_u8_u32(vld1q_u32(words.as_ptr())));
            let tested = vdupq_n_u32(0x0804_0201 << (4 * (nibble % 2)));
            let set = vtstq_u8(vqtbl1q_u8(word, spread), vreinterpretq_u8_u32(tested));
            vandq_u8(set, vdupq_n_u8(16))
        }
    }
    #[inline(always)]
    unsafe fn byte_codes(a: uint8x16_t) -> uint8x16_t {
        a
    }
    #[inline(always)]
    unsafe fn lookup(a: uint8x16_t, table: &[u8; 16]) -> uint8x16_t {
        // SAFETY: guaranteed by the caller. The load matches the size of the table.
        unsafe { vqtbl1q_u8(vld1q_u8(table.as_ptr()), a) }
    }
    #[inline(always)]
    unsafe fn low_half(word: uint8x16_t) -> float32x4_t {
        // SAFETY: guaranteed by the caller.
        unsafe {
            // Stable Rust has no half-precision intrinsics yet. Integer shifts and a multiplication
            // that corrects the exponent are exact for every finite half.
            let bits = vreinterpretq_u32_u8(word);
            let magnitude = vshlq_n_u32::<13>(vandq_u32(bits, vdupq_n_u32(0x7fff)));
            let power = vreinterpretq_f32_u32(vdupq_n_u32((127 + 112) << 23));
            let magnitude = vmulq_f32(vreinterpretq_f32_u32(magnitude), power);
            let sign = vshlq_n_u32::<16>(vandq_u32(bits, vdupq_n_u32(0x8000)));
            vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(magnitude), sign))
        }
    }
    #[inline(always)]
    unsafe fn high_half(word: uint8x16_t) -> float32x4_t {
        // SAFETY: guaranteed by the caller.
        unsafe { Self::low_half(vreinterpretq_u8_u32(vshrq_n_u32::<16>(vreinterpretq_u32_u8(word)))) }
    }
    #[inline(always)]
    unsafe fn unsigned_byte(word: uint8x16_t, i: u32) -> float32x4_t {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let shifted = vshlq_u32(vreinterpretq_u32_u8(word), vdupq_n_s32(-(8 * i as i32)));
            vcvtq_f32_u32(vandq_u32(shifted, vdupq_n_u32(0xff)))
        }
    }
    #[inline(always)]
    unsafe fn signed_byte(word: uint8x16_t, i: u32) -> float32x4_t {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let top = vshlq_s32(vreinterpretq_s32_u8(word), vdupq_n_s32(24 - 8 * i as i32));
            vcvtq_f32_s32(vshrq_n_s32::<24>(top))
        }
    }
    #[inline(always)]
    unsafe fn splat_shifted(value: i32, shift: u32) -> int32x4_t {
        // SAFETY: guaranteed by the caller.
        unsafe { vdupq_n_s32(value << shift) }
    }
    #[inline(always)]
    unsafe fn dot(acc: int32x4_t, codes: &[uint8x16_t], activations: &[i8; 16]) -> int32x4_t {
        let mut acc = acc;
        // SAFETY: guaranteed by the caller. The load matches the size of the array.
        unsafe {
            let activations = vld1q_s8(activations.as_ptr());
            dot_lane!(acc, codes[0], activations, "0");
            dot_lane!(acc, codes[1], activations, "1");
            dot_lane!(acc, codes[2], activations, "2");
            dot_lane!(acc, codes[3], activations, "3");
        }
        acc
    }
    #[inline(always)]
    unsafe fn dot_bytes(acc: int32x4_t, codes: &[uint8x16_t], activations: &[i8; 16]) -> int32x4_t {
        // SAFETY: guaranteed by the caller. The instruction multiplies signed codes.
        unsafe { Self::dot(acc, codes, activations) }
    }
    #[inline(always)]
    unsafe fn dot_pair(
        acc: [int32x4_t; 2],
        codes: &[uint8x16_t],
        activations: [&[i8; 16]; 2],
    ) -> [int32x4_t; 2] {
        // SAFETY: guaranteed by the caller. The loads match the size of the arrays.
        unsafe {
            let a = vreinterpretq_s64_s8(vld1q_s8(activations[0].as_ptr()));
            let b = vreinterpretq_s64_s8(vld1q_s8(activations[1].as_ptr()));
            let (first, second) = (vzip1q_s64(a, b), vzip2q_s64(a, b));
            let words = [
                vreinterpretq_u32_u8(codes[0]),
                vreinterpretq_u32_u8(codes[1]),
                vreinterpretq_u32_u8(codes[2]),
                vreinterpretq_u32_u8(codes[3]),
            ];
            // Weight rows 0 and 1, then 2 and 3. In each 2 x 2 result, a row holds both activation rows.
            let mut low = vzip1q_s32(acc[0], acc[1]);
            let mut high = vzip2q_s32(acc[0], acc[1]);
            multiply_2x2!(low, vzip1q_u32(words[0], words[1]), first);
            multiply_2x2!(high, vzip2q_u32(words[0], words[1]), first);
            multiply_2x2!(low, vzip1q_u32(words[2], words[3]), second);
            multiply_2x2!(high, vzip2q_u32(words[2], words[3]), second);
            [vuzp1q_s32(low, high), vuzp2q_s32(low, high)]
        }
    }
    #[inline(always)]
    unsafe fn floats(a: int32x4_t) -> float32x4_t {
        // SAFETY: guaranteed by the caller.
        unsafe { vcvtq_f32_s32(a) }
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> float32x4_t {
        // SAFETY: guaranteed by the caller.
        unsafe { vdupq_n_f32(value) }
    }
    #[inline(always)]
    unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: guaranteed by the caller.
        unsafe { vmulq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_add(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: guaranteed by the caller.
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    unsafe fn store(a: float32x4_t, to: &mut [f32; MAX_GROUP]) {
        // SAFETY: guaranteed by the caller. The array has more than 4 lanes.
        unsafe { vst1q_f32(to.as_mut_ptr(), a) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> float32x4_t {
        // SAFETY: guaranteed by the caller.
        unsafe { vld1q_f32(from) }
    }
    #[inline(always)]
    unsafe fn store_at(a: float32x4_t, to: *mut f32) {
        // SAFETY: guaranteed by the caller.
        unsafe { vst1q_f32(to, a) }
    }
    #[inline(always)]
    unsafe fn sums(a: [float32x4_t; 4]) -> [f32; 4] {
        // SAFETY: guaranteed by the caller. The array has four lanes.
        unsafe {
            let sums = vpaddq_f32(vpaddq_f32(a[0], a[1]), vpaddq_f32(a[2], a[3]));
            let mut to = [0.0; 4];
            vst1q_f32(to.as_mut_ptr(), sums);
            to
        }
    }
}
