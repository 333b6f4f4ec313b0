//! Instruction sets: the inner dot product of a panel with one row of activations, once in plain
//! Rust (the readable reference) and once for each x86 extension worth having. Chosen at run time.

use super::blocks::{GROUP, GROUPS, PANEL, Panel};

/// 256 activations of one row, quantised: activation i is `scale[i / 16] * codes[i]`. Scales are
/// made per 32 values and stored per 16 to match [`Panel`].
#[repr(C, align(64))]
#[derive(Clone)]
pub(super) struct ActivationPanel {
    pub(super) codes: [i8; PANEL],
    pub(super) scale: [f32; GROUPS],
    /// `scale * sum(codes)` of each group: what the weights' minima are multiplied with.
    pub(super) sums: [f32; GROUPS],
}

impl ActivationPanel {
    pub(super) const ZERO: ActivationPanel =
        ActivationPanel { codes: [0; PANEL], scale: [0.0; GROUPS], sums: [0.0; GROUPS] };

    /// Quantises `values` (at most 256, a multiple of 32) to 8 bits, one scale per 32.
    #[inline(always)]
    pub(super) fn quantise(&mut self, values: &[f32]) {
        for (block, chunk) in values.chunks_exact(32).enumerate() {
            let chunk: &[f32; 32] = chunk.try_into().expect("the chunk has 32 values");
            let mut top = [0f32; 8];
            for part in chunk.chunks_exact(8) {
                for (t, v) in top.iter_mut().zip(part) {
                    *t = t.max(v.abs());
                }
            }
            let top = top.iter().fold(0f32, |a, &b| a.max(b));
            let scale = top / 127.0;
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            let codes: &mut [i8; 32] =
                (&mut self.codes[32 * block..32 * block + 32]).try_into().expect("the slice has 32 codes");
            for i in 0..32 {
                codes[i] = (chunk[i] * inverse).round_ties_even() as i8;
            }
            for side in 0..2 {
                let sum: i32 = codes[16 * side..16 * side + 16].iter().map(|&c| i32::from(c)).sum();
                self.scale[2 * block + side] = scale;
                self.sums[2 * block + side] = scale * sum as f32;
            }
        }
    }
}

/// One instruction set.
///
/// # Safety
/// The methods may only run on a CPU that has the set's instructions, inside a function that
/// enables them.
pub(super) trait Isa {
    /// Partial sums of one output.
    type Acc: Copy;
    /// No sum yet.
    unsafe fn zero() -> Self::Acc;
    /// IEEE half to single.
    unsafe fn f16(bits: u16) -> f32;
    /// Splits 16 bytes: low halves into codes 0..16, high halves into codes 16..32.
    #[inline(always)]
    unsafe fn nibbles(qs: &[u8; 16], out: &mut [u8; 32]) {
        for i in 0..16 {
            out[i] = qs[i] & 0xf;
            out[i + 16] = qs[i] >> 4;
        }
    }
    /// As `nibbles`, with 16 added to code i where bit i of `fifth` is set.
    #[inline(always)]
    unsafe fn five_bits(qs: &[u8; 16], fifth: u32, out: &mut [u8; 32]) {
        for i in 0..16 {
            out[i] = (qs[i] & 0xf) | (((fifth >> i) & 1) << 4) as u8;
            out[i + 16] = (qs[i] >> 4) | (((fifth >> (i + 16)) & 1) << 4) as u8;
        }
    }
    /// Half a block of Q6_K: low four bits from `low`, two more from `high`.
    #[inline(always)]
    unsafe fn six_bits(low: &[u8; 64], high: &[u8; 32], out: &mut [u8; 128]) {
        for i in 0..32 {
            let (a, b, h) = (low[i], low[32 + i], high[i]);
            out[i] = (a & 0xf) | ((h & 0x03) << 4);
            out[32 + i] = (b & 0xf) | ((h & 0x0c) << 2);
            out[64 + i] = (a >> 4) | (h & 0x30);
            out[96 + i] = (b >> 4) | ((h & 0xc0) >> 2);
        }
    }
    /// Adds the product of the first `quads * 64` weights of a panel with as many activations.
    unsafe fn dot(panel: &Panel, activations: &ActivationPanel, quads: usize, acc: Self::Acc) -> Self::Acc;
    /// The sum of the partial sums, always in the same order.
    unsafe fn sum(acc: Self::Acc) -> f32;
}

/// Plain Rust, for every CPU: the reference the others are tested against.
pub(super) struct Scalar;

impl Isa for Scalar {
    type Acc = f32;

    #[inline(always)]
    unsafe fn zero() -> f32 {
        0.0
    }

    #[inline(always)]
    unsafe fn f16(bits: u16) -> f32 {
        half::f16::from_bits(bits).to_f32()
    }

    #[inline(always)]
    unsafe fn dot(panel: &Panel, activations: &ActivationPanel, quads: usize, acc: f32) -> f32 {
        let mut acc = acc;
        for group in 0..quads * 4 {
            let from = group * GROUP;
            let weights = &panel.codes[from..from + GROUP];
            let codes = &activations.codes[from..from + GROUP];
            let dot: i32 = weights.iter().zip(codes).map(|(&w, &a)| i32::from(w) * i32::from(a)).sum();
            acc += panel.scale[group] * activations.scale[group] * dot as f32;
            acc -= panel.min[group] * activations.sums[group];
        }
        acc
    }

    #[inline(always)]
    unsafe fn sum(acc: f32) -> f32 {
        acc
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    //! AVX2 and AVX-512 VNNI.

    use std::arch::x86_64::*;

    use super::{ActivationPanel, GROUP, Isa, Panel};

    /// Low halves of 16 bytes, then their high halves.
    ///
    /// # Safety
    /// The caller enabled AVX2.
    #[inline(always)]
    unsafe fn halves(qs: &[u8; 16]) -> __m256i {
        // SAFETY: the caller's contract; the load has the array's size.
        unsafe {
            let bytes = _mm_loadu_si128(qs.as_ptr().cast());
            let both = _mm256_set_m128i(_mm_srli_epi16::<4>(bytes), bytes);
            _mm256_and_si256(both, _mm256_set1_epi8(0xf))
        }
    }

    /// AVX2 with FMA and F16C: any x86 Mac or PC since 2013.
    pub(in super::super) struct Avx2;

    impl Isa for Avx2 {
        type Acc = __m256;

        #[inline(always)]
        unsafe fn zero() -> __m256 {
            // SAFETY: the caller enabled AVX2 (contract of Isa).
            unsafe { _mm256_setzero_ps() }
        }

        #[inline(always)]
        unsafe fn f16(bits: u16) -> f32 {
            // SAFETY: the caller enabled F16C (contract of Isa).
            unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
        }

        #[inline(always)]
        unsafe fn nibbles(qs: &[u8; 16], out: &mut [u8; 32]) {
            // SAFETY: the caller enabled AVX2; the store has the array's size.
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), halves(qs)) }
        }

        #[inline(always)]
        unsafe fn five_bits(qs: &[u8; 16], fifth: u32, out: &mut [u8; 32]) {
            // SAFETY: the caller enabled AVX2; the store has the array's size.
            unsafe {
                // Byte i of the vector gets byte i / 8 of the bits, then bit i % 8 of it is tested.
                let spread = _mm256_setr_epi64x(
                    0,
                    0x0101_0101_0101_0101,
                    0x0202_0202_0202_0202,
                    0x0303_0303_0303_0303,
                );
                let bits = _mm256_shuffle_epi8(_mm256_set1_epi32(fifth as i32), spread);
                let tested = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
                let set = _mm256_cmpeq_epi8(_mm256_and_si256(bits, tested), tested);
                let sixteen = _mm256_and_si256(set, _mm256_set1_epi8(16));
                _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm256_or_si256(halves(qs), sixteen));
            }
        }

        #[inline(always)]
        unsafe fn six_bits(low: &[u8; 64], high: &[u8; 32], out: &mut [u8; 128]) {
            // SAFETY: the caller enabled AVX2; loads and stores are inside the arrays.
            unsafe {
                let a = _mm256_loadu_si256(low.as_ptr().cast());
                let b = _mm256_loadu_si256(low.as_ptr().add(32).cast());
                let h = _mm256_loadu_si256(high.as_ptr().cast());
                let mask = |bits: u8| _mm256_set1_epi8(bits as i8);
                let nibble = mask(0xf);
                // Shifts are of 16 bits; the masks take away what crosses into the other byte.
                let codes = [
                    _mm256_or_si256(
                        _mm256_and_si256(a, nibble),
                        _mm256_slli_epi16::<4>(_mm256_and_si256(h, mask(0x03))),
                    ),
                    _mm256_or_si256(
                        _mm256_and_si256(b, nibble),
                        _mm256_slli_epi16::<2>(_mm256_and_si256(h, mask(0x0c))),
                    ),
                    _mm256_or_si256(
                        _mm256_and_si256(_mm256_srli_epi16::<4>(a), nibble),
                        _mm256_and_si256(h, mask(0x30)),
                    ),
                    _mm256_or_si256(
                        _mm256_and_si256(_mm256_srli_epi16::<4>(b), nibble),
                        _mm256_srli_epi16::<2>(_mm256_and_si256(h, mask(0xc0))),
                    ),
                ];
                for (i, part) in codes.into_iter().enumerate() {
                    _mm256_storeu_si256(out.as_mut_ptr().add(32 * i).cast(), part);
                }
            }
        }

        #[inline(always)]
        unsafe fn dot(panel: &Panel, activations: &ActivationPanel, quads: usize, acc: __m256) -> __m256 {
            let mut acc = acc;
            // SAFETY: the caller enabled AVX2 and FMA; every load is inside the arrays, because
            // `quads` is at most 4 and a group is 16 codes long.
            unsafe {
                for group in 0..quads * 4 {
                    // Widened to 16 bits: u8 * i8 pairs would overflow the saturating 8-bit product.
                    let w =
                        _mm256_cvtepu8_epi16(_mm_load_si128(panel.codes.as_ptr().add(group * GROUP).cast()));
                    let a = _mm256_cvtepi8_epi16(_mm_load_si128(
                        activations.codes.as_ptr().add(group * GROUP).cast(),
                    ));
                    let dot = _mm256_cvtepi32_ps(_mm256_madd_epi16(w, a));
                    let scale = _mm256_set1_ps(panel.scale[group] * activations.scale[group]);
                    acc = _mm256_fmadd_ps(dot, scale, acc);
                }
                for half in 0..quads.div_ceil(2) {
                    let min = _mm256_load_ps(panel.min.as_ptr().add(8 * half));
                    let sums = _mm256_load_ps(activations.sums.as_ptr().add(8 * half));
                    acc = _mm256_fnmadd_ps(min, sums, acc);
                }
            }
            acc
        }

        #[inline(always)]
        unsafe fn sum(acc: __m256) -> f32 {
            // SAFETY: the caller enabled AVX2 (contract of Isa).
            unsafe {
                let four = _mm_add_ps(_mm256_castps256_ps128(acc), _mm256_extractf128_ps::<1>(acc));
                let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
            }
        }
    }

    /// AVX-512 with VNNI: Ice Lake and Zen 4 onwards.
    pub(in super::super) struct Avx512;

    impl Isa for Avx512 {
        type Acc = __m512;

        #[inline(always)]
        unsafe fn zero() -> __m512 {
            // SAFETY: the caller enabled AVX-512 (contract of Isa).
            unsafe { _mm512_setzero_ps() }
        }

        #[inline(always)]
        unsafe fn f16(bits: u16) -> f32 {
            // SAFETY: the caller enabled F16C (contract of Isa).
            unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
        }

        #[inline(always)]
        unsafe fn nibbles(qs: &[u8; 16], out: &mut [u8; 32]) {
            // SAFETY: AVX-512 comes with AVX2; the rest is the caller's contract.
            unsafe { Avx2::nibbles(qs, out) }
        }

        #[inline(always)]
        unsafe fn five_bits(qs: &[u8; 16], fifth: u32, out: &mut [u8; 32]) {
            // SAFETY: the caller enabled AVX-512 BW and VL; the store has the array's size.
            unsafe {
                let sixteen = _mm256_maskz_mov_epi8(fifth, _mm256_set1_epi8(16));
                _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm256_or_si256(halves(qs), sixteen));
            }
        }

        #[inline(always)]
        unsafe fn six_bits(low: &[u8; 64], high: &[u8; 32], out: &mut [u8; 128]) {
            // SAFETY: AVX-512 comes with AVX2; the rest is the caller's contract.
            unsafe { Avx2::six_bits(low, high, out) }
        }

        #[inline(always)]
        unsafe fn dot(panel: &Panel, activations: &ActivationPanel, quads: usize, acc: __m512) -> __m512 {
            let mut acc = acc;
            // SAFETY: the caller enabled AVX-512 F and VNNI; every load is inside the arrays,
            // because `quads` is at most 4 and a quad is 64 codes long.
            unsafe {
                let scales = _mm512_mul_ps(
                    _mm512_load_ps(panel.scale.as_ptr()),
                    _mm512_load_ps(activations.scale.as_ptr()),
                );
                // Lane i of quad q holds codes 4i.. of the quad: its scale is number 4q + i / 4.
                let mut lane = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
                let next = _mm512_set1_epi32(4);
                for quad in 0..quads {
                    let w = _mm512_load_si512(panel.codes.as_ptr().add(64 * quad).cast());
                    let a = _mm512_load_si512(activations.codes.as_ptr().add(64 * quad).cast());
                    let dot = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_setzero_si512(), w, a));
                    acc = _mm512_fmadd_ps(dot, _mm512_permutexvar_ps(lane, scales), acc);
                    lane = _mm512_add_epi32(lane, next);
                }
                let min = _mm512_load_ps(panel.min.as_ptr());
                let sums = _mm512_load_ps(activations.sums.as_ptr());
                acc = _mm512_fnmadd_ps(min, sums, acc);
            }
            acc
        }

        #[inline(always)]
        unsafe fn sum(acc: __m512) -> f32 {
            // SAFETY: the caller enabled AVX-512 (contract of Isa).
            unsafe {
                let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(acc)));
                Avx2::sum(_mm256_add_ps(_mm512_castps512_ps256(acc), high))
            }
        }
    }
}
