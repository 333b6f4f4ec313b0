//! Vector operations for x86: AVX-512 VNNI (16 rows per group), AVX2 with and without VNNI (8 rows).
//!
//! Only implementations of [`Isa`] live here.

use std::arch::x86_64::*;

use super::{Isa, MAX_GROUP};

/// Packs four activations into one i32, to be broadcast to all lanes.
#[inline(always)]
fn word_of(four: &[i8; 4]) -> i32 {
    i32::from_le_bytes([four[0] as u8, four[1] as u8, four[2] as u8, four[3] as u8])
}

/// Adds the upper half of a vector to the lower half.
///
/// A macro, because a closure does not inherit the target features of the enclosing function and may
/// not be inlined.
macro_rules! fold {
    ($a:expr) => {
        _mm256_add_ps(_mm512_castps512_ps256($a), _mm512_extractf32x8_ps::<1>($a))
    };
}

/// Implements [`Isa::sums`] for 256-bit vectors.
///
/// # Safety
/// AVX2 must be enabled.
#[inline(always)]
unsafe fn sums_256(a: [__m256; 4]) -> [f32; 4] {
    // SAFETY: guaranteed by the caller. The array has four lanes.
    unsafe {
        let pairs = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
        let sums = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps::<1>(pairs));
        let mut to = [0.0; 4];
        _mm_storeu_ps(to.as_mut_ptr(), sums);
        to
    }
}

/// AVX-512 with VNNI: Ice Lake, Zen 4 and later.
pub(in super::super) struct Avx512;

impl Isa for Avx512 {
    const ROWS: usize = 16;
    const BIASED_BYTES: bool = true;
    type Bytes = __m512i;
    type Ints = __m512i;
    type Floats = __m512;

    #[inline(always)]
    unsafe fn words(at: *const u8) -> __m512i {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm512_loadu_si512(at.cast()) }
    }
    #[inline(always)]
    unsafe fn halves(at: *const u8) -> __m512 {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
    }
    #[inline(always)]
    unsafe fn upper_halves(at: *const u8) -> __m512 {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
        }
    }
    #[inline(always)]
    unsafe fn prefetch(address: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[inline(always)]
    unsafe fn and(a: __m512i, mask: u8) -> __m512i {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm512_and_si512(a, _mm512_set1_epi8(mask as i8)) }
    }
    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn shr(a: __m512i, by: u32) -> __m512i {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm512_srl_epi16(a, _mm_cvtsi32_si128(by as i32)) }
    }
    #[inline(always)]
    unsafe fn shl(a: __m512i, by: u32) -> __m512i {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm512_sll_epi16(a, _mm_cvtsi32_si128(by as i32)) }
    }
    #[inline(always)]
    unsafe fn fifth_bits(word: __m512i, nibble: usize) -> __m512i {
        // SAFETY: guaranteed by the caller.
        unsafe {
            // Copy the byte with the four bits to all bytes of its word.
            let byte = (nibble / 2) as i32 * 0x0101_0101;
            let spread = _mm512_add_epi32(
                _mm512_set1_epi32(byte),
                _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c)),
            );
            let bits = _mm512_shuffle_epi8(word, spread);
            let tested = _mm512_set1_epi32(0x0804_0201 << (4 * (nibble % 2)));
            let set = _mm512_test_epi8_mask(bits, tested);
            _mm512_maskz_mov_epi8(set, _mm512_set1_epi8(16))
        }
    }
    #[inline(always)]
    unsafe fn byte_codes(a: __m512i) -> __m512i {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm512_xor_si512(a, _mm512_set1_epi8(-128)) }
    }
    #[inline(always)]
    unsafe fn lookup(a: __m512i, table: &[u8; 16]) -> __m512i {
        // SAFETY: guaranteed by the caller. The load matches the size of the table.
        unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), a) }
    }
    #[inline(always)]
    unsafe fn low_half(word: __m512i) -> __m512 {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm512_cvtph_ps(_mm512_cvtepi32_epi16(word)) }
    }
    #[inline(always)]
    unsafe fn high_half(word: __m512i) -> __m512 {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(word))) }
    }
    #[inline(always)]
    unsafe fn unsigned_byte(word: __m512i, i: u32) -> __m512 {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let shifted = _mm512_srl_epi32(word, _mm_cvtsi32_si128(8 * i as i32));
            _mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(0xff)))
        }
    }
    #[inline(always)]
    unsafe fn signed_byte(word: __m512i, i: u32) -> __m512 {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let top = _mm512_sll_epi32(word, _mm_cvtsi32_si128(24 - 8 * i as i32));
            _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(top))
        }
    }
    #[inline(always)]
    unsafe fn splat_shifted(value: i32, shift: u32) -> __m512i {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm512_sll_epi32(_mm512_set1_epi32(value), _mm_cvtsi32_si128(shift as i32)) }
    }
    #[inline(always)]
    unsafe fn dot(acc: __m512i, codes: &[__m512i], activations: &[i8; 16]) -> __m512i {
        let mut acc = acc;
        for (&codes, four) in codes.iter().zip(activations.as_chunks().0) {
            // SAFETY: guaranteed by the caller. The instruction multiplies unsigned codes with signed
            // activations and adds four products per lane without saturation.
            acc = unsafe { _mm512_dpbusd_epi32(acc, codes, _mm512_set1_epi32(word_of(four))) };
        }
        acc
    }
    #[inline(always)]
    unsafe fn dot_bytes(acc: __m512i, codes: &[__m512i], activations: &[i8; 16]) -> __m512i {
        // SAFETY: guaranteed by the caller. The codes are unsigned, because `BIASED_BYTES` is set.
        unsafe { Self::dot(acc, codes, activations) }
    }
    #[inline(always)]
    unsafe fn floats(a: __m512i) -> __m512 {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm512_cvtepi32_ps(a) }
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn store(a: __m512, to: &mut [f32; MAX_GROUP]) {
        // SAFETY: guaranteed by the caller. The array has 16 lanes.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), a) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store_at(a: __m512, to: *mut f32) {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm512_storeu_ps(to, a) }
    }
    #[inline(always)]
    unsafe fn sums(a: [__m512; 4]) -> [f32; 4] {
        // SAFETY: guaranteed by the caller.
        unsafe { sums_256([fold!(a[0]), fold!(a[1]), fold!(a[2]), fold!(a[3])]) }
    }
}

/// 256-bit vectors with FMA and F16C. `VNNI` enables the byte dot product instruction.
pub(in super::super) struct Vec256<const VNNI: bool>;
/// AVX2 without VNNI: x86 CPUs since 2013.
pub(in super::super) type Avx2 = Vec256<false>;
/// AVX2 with AVX-VNNI: Alder Lake and later CPUs without AVX-512.
pub(in super::super) type AvxVnni = Vec256<true>;

/// Adds the products of four unsigned and four signed bytes per lane to `acc`.
///
/// The sum of two neighbouring products must fit in 16 bits.
///
/// # Safety
/// AVX2 must be enabled, and AVX-VNNI if `VNNI`.
#[inline(always)]
unsafe fn dot_256<const VNNI: bool>(acc: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if VNNI {
            return _mm256_dpbusd_avx_epi32(acc, unsigned, signed);
        }
        let pairs = _mm256_maddubs_epi16(unsigned, signed);
        _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
    }
}

impl<const VNNI: bool> Isa for Vec256<VNNI> {
    const ROWS: usize = 8;
    const BIASED_BYTES: bool = false;
    type Bytes = __m256i;
    type Ints = __m256i;
    type Floats = __m256;

    #[inline(always)]
    unsafe fn words(at: *const u8) -> __m256i {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm256_loadu_si256(at.cast()) }
    }
    #[inline(always)]
    unsafe fn halves(at: *const u8) -> __m256 {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
    }
    #[inline(always)]
    unsafe fn upper_halves(at: *const u8) -> __m256 {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
        }
    }
    #[inline(always)]
    unsafe fn prefetch(address: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[inline(always)]
    unsafe fn and(a: __m256i, mask: u8) -> __m256i {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm256_and_si256(a, _mm256_set1_epi8(mask as i8)) }
    }
    #[inline(always)]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm256_or_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn shr(a: __m256i, by: u32) -> __m256i {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm256_srl_epi16(a, _mm_cvtsi32_si128(by as i32)) }
    }
    #[inline(always)]
    unsafe fn shl(a: __m256i, by: u32) -> __m256i {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm256_sll_epi16(a, _mm_cvtsi32_si128(by as i32)) }
    }
    #[inline(always)]
    unsafe fn fifth_bits(word: __m256i, nibble: usize) -> __m256i {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let byte = (nibble / 2) as i32 * 0x0101_0101;
            let spread = _mm256_add_epi32(
                _mm256_set1_epi32(byte),
                _mm256_broadcastsi128_si256(_mm_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c)),
            );
            let tested = _mm256_set1_epi32(0x0804_0201 << (4 * (nibble % 2)));
            let bits = _mm256_and_si256(_mm256_shuffle_epi8(word, spread), tested);
            _mm256_and_si256(_mm256_cmpeq_epi8(bits, tested), _mm256_set1_epi8(16))
        }
    }
    #[inline(always)]
    unsafe fn byte_codes(a: __m256i) -> __m256i {
        a
    }
    #[inline(always)]
    unsafe fn lookup(a: __m256i, table: &[u8; 16]) -> __m256i {
        // SAFETY: guaranteed by the caller. The load matches the size of the table.
        unsafe { _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())), a) }
    }
    #[inline(always)]
    unsafe fn low_half(word: __m256i) -> __m256 {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let low = _mm256_and_si256(word, _mm256_set1_epi32(0xffff));
            let packed = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256::<1>(low));
            _mm256_cvtph_ps(packed)
        }
    }
    #[inline(always)]
    unsafe fn high_half(word: __m256i) -> __m256 {
        // SAFETY: guaranteed by the caller.
        unsafe { Self::low_half(_mm256_srli_epi32::<16>(word)) }
    }
    #[inline(always)]
    unsafe fn unsigned_byte(word: __m256i, i: u32) -> __m256 {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let shifted = _mm256_srl_epi32(word, _mm_cvtsi32_si128(8 * i as i32));
            _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(0xff)))
        }
    }
    #[inline(always)]
    unsafe fn signed_byte(word: __m256i, i: u32) -> __m256 {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let top = _mm256_sll_epi32(word, _mm_cvtsi32_si128(24 - 8 * i as i32));
            _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(top))
        }
    }
    #[inline(always)]
    unsafe fn splat_shifted(value: i32, shift: u32) -> __m256i {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm256_sll_epi32(_mm256_set1_epi32(value), _mm_cvtsi32_si128(shift as i32)) }
    }
    #[inline(always)]
    unsafe fn dot(acc: __m256i, codes: &[__m256i], activations: &[i8; 16]) -> __m256i {
        let mut acc = acc;
        for (&codes, four) in codes.iter().zip(activations.as_chunks().0) {
            // SAFETY: guaranteed by the caller. Codes are below 128, so two products fit in 16 bits.
            acc = unsafe { dot_256::<VNNI>(acc, codes, _mm256_set1_epi32(word_of(four))) };
        }
        acc
    }
    #[inline(always)]
    unsafe fn dot_bytes(acc: __m256i, codes: &[__m256i], activations: &[i8; 16]) -> __m256i {
        let mut acc = acc;
        for (&codes, four) in codes.iter().zip(activations.as_chunks().0) {
            // SAFETY: guaranteed by the caller. |code| <= 128 and |activation| <= 127, so two products
            // fit in 16 bits.
            unsafe {
                let a = _mm256_sign_epi8(_mm256_set1_epi32(word_of(four)), codes);
                acc = dot_256::<VNNI>(acc, _mm256_abs_epi8(codes), a);
            }
        }
        acc
    }
    #[inline(always)]
    unsafe fn floats(a: __m256i) -> __m256 {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm256_cvtepi32_ps(a) }
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> __m256 {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm256_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn store(a: __m256, to: &mut [f32; MAX_GROUP]) {
        // SAFETY: guaranteed by the caller. The array has more than 8 lanes.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), a) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m256 {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store_at(a: __m256, to: *mut f32) {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm256_storeu_ps(to, a) }
    }
    #[inline(always)]
    unsafe fn sums(a: [__m256; 4]) -> [f32; 4] {
        // SAFETY: guaranteed by the caller.
        unsafe { sums_256(a) }
    }
}
