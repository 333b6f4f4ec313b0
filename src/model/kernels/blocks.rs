//! The block formats of GGUF, unpacked. Every quantised type becomes the same thing, a [`Panel`]:
//! 256 unsigned codes with one scale and one minimum per 16 of them, so that one dot product serves
//! all types. Formats as ggml defines them (ggml-common.h, ggml-quants.c of ggml-org/llama.cpp).

use candle_core::quantized::GgmlDType;

use super::isa::Isa;

/// Weights in a panel.
pub(super) const PANEL: usize = 256;
/// Weights that share a scale in a panel.
pub(super) const GROUP: usize = 16;
/// Scales in a panel.
pub(super) const GROUPS: usize = PANEL / GROUP;

/// Up to 256 weights of one row: weight i is `scale[i / 16] * codes[i] - min[i / 16]`.
#[repr(C, align(64))]
#[derive(Clone)]
pub(super) struct Panel {
    pub(super) codes: [u8; PANEL],
    pub(super) scale: [f32; GROUPS],
    pub(super) min: [f32; GROUPS],
}

impl Panel {
    pub(super) const ZERO: Panel = Panel { codes: [0; PANEL], scale: [0.0; GROUPS], min: [0.0; GROUPS] };
}

/// A block format that unpacks into a panel.
pub(super) trait Format {
    /// Weights in a block.
    const BLOCK: usize;
    /// Bytes in a block.
    const BYTES: usize;
    /// Unpacks the block `bytes` into weights `at .. at + BLOCK` of the panel.
    ///
    /// # Safety
    /// The CPU has the instructions of `I`, and the caller is a function that enables them.
    unsafe fn unpack<I: Isa>(bytes: &[u8], at: usize, panel: &mut Panel);
}

/// The bytes of a block as an array, which lets the compiler drop the bounds checks.
#[inline(always)]
fn array<const N: usize>(bytes: &[u8], from: usize) -> &[u8; N] {
    bytes[from..from + N].try_into().expect("the slice has N bytes")
}

#[inline(always)]
fn half_at(bytes: &[u8], from: usize) -> u16 {
    u16::from_le_bytes(*array::<2>(bytes, from))
}

/// Both groups of a 32-weight block get one scale and one minimum.
#[inline(always)]
fn set_pair(panel: &mut Panel, at: usize, scale: f32, min: f32) {
    let group = at / GROUP;
    panel.scale[group] = scale;
    panel.scale[group + 1] = scale;
    panel.min[group] = min;
    panel.min[group + 1] = min;
}

#[inline(always)]
fn codes_32(panel: &mut Panel, at: usize) -> &mut [u8; 32] {
    (&mut panel.codes[at..at + 32]).try_into().expect("the slice has 32 codes")
}

pub(super) struct Q4_0;
impl Format for Q4_0 {
    const BLOCK: usize = 32;
    const BYTES: usize = 18;
    #[inline(always)]
    unsafe fn unpack<I: Isa>(bytes: &[u8], at: usize, panel: &mut Panel) {
        // SAFETY: the caller's contract.
        let d = unsafe { I::f16(half_at(bytes, 0)) };
        // SAFETY: the caller's contract.
        unsafe { I::nibbles(array(bytes, 2), codes_32(panel, at)) };
        set_pair(panel, at, d, 8.0 * d);
    }
}

pub(super) struct Q4_1;
impl Format for Q4_1 {
    const BLOCK: usize = 32;
    const BYTES: usize = 20;
    #[inline(always)]
    unsafe fn unpack<I: Isa>(bytes: &[u8], at: usize, panel: &mut Panel) {
        // SAFETY: the caller's contract.
        let d = unsafe { I::f16(half_at(bytes, 0)) };
        // SAFETY: the caller's contract.
        let m = unsafe { I::f16(half_at(bytes, 2)) };
        // SAFETY: the caller's contract.
        unsafe { I::nibbles(array(bytes, 4), codes_32(panel, at)) };
        set_pair(panel, at, d, -m);
    }
}

pub(super) struct Q5_0;
impl Format for Q5_0 {
    const BLOCK: usize = 32;
    const BYTES: usize = 22;
    #[inline(always)]
    unsafe fn unpack<I: Isa>(bytes: &[u8], at: usize, panel: &mut Panel) {
        // SAFETY: the caller's contract.
        let d = unsafe { I::f16(half_at(bytes, 0)) };
        let out = codes_32(panel, at);
        let fifth = u32::from_le_bytes(*array(bytes, 2));
        // SAFETY: the caller's contract.
        unsafe { I::five_bits(array(bytes, 6), fifth, out) };
        set_pair(panel, at, d, 16.0 * d);
    }
}

pub(super) struct Q5_1;
impl Format for Q5_1 {
    const BLOCK: usize = 32;
    const BYTES: usize = 24;
    #[inline(always)]
    unsafe fn unpack<I: Isa>(bytes: &[u8], at: usize, panel: &mut Panel) {
        // SAFETY: the caller's contract.
        let d = unsafe { I::f16(half_at(bytes, 0)) };
        // SAFETY: the caller's contract.
        let m = unsafe { I::f16(half_at(bytes, 2)) };
        let out = codes_32(panel, at);
        let fifth = u32::from_le_bytes(*array(bytes, 4));
        // SAFETY: the caller's contract.
        unsafe { I::five_bits(array(bytes, 8), fifth, out) };
        set_pair(panel, at, d, -m);
    }
}

pub(super) struct Q8_0;
impl Format for Q8_0 {
    const BLOCK: usize = 32;
    const BYTES: usize = 34;
    #[inline(always)]
    unsafe fn unpack<I: Isa>(bytes: &[u8], at: usize, panel: &mut Panel) {
        // SAFETY: the caller's contract.
        let d = unsafe { I::f16(half_at(bytes, 0)) };
        let qs: &[u8; 32] = array(bytes, 2);
        let out = codes_32(panel, at);
        for i in 0..32 {
            out[i] = qs[i] ^ 0x80; // i8 -> u8: adds 128
        }
        set_pair(panel, at, d, 128.0 * d);
    }
}

/// The eight 6-bit scales and minima of Q4_K and Q5_K, from their 12 packed bytes.
#[inline(always)]
fn k_scales(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let word = |i: usize| u32::from_le_bytes([packed[i], packed[i + 1], packed[i + 2], packed[i + 3]]);
    let (a, b, c) = (word(0), word(4), word(8));
    let low = 0x3f3f_3f3f_u32;
    let (nibble, top) = (0x0f0f_0f0f_u32, 0x0303_0303_u32);
    let scales = [a & low, (c & nibble) | (((a >> 6) & top) << 4)];
    let mins = [b & low, ((c >> 4) & nibble) | (((b >> 6) & top) << 4)];
    let bytes = |w: [u32; 2]| {
        let (x, y) = (w[0].to_le_bytes(), w[1].to_le_bytes());
        [x[0], x[1], x[2], x[3], y[0], y[1], y[2], y[3]]
    };
    (bytes(scales), bytes(mins))
}

#[inline(always)]
fn set_k_scales(panel: &mut Panel, d: f32, dmin: f32, packed: &[u8; 12]) {
    let (scales, mins) = k_scales(packed);
    for i in 0..8 {
        let (s, m) = (d * f32::from(scales[i]), dmin * f32::from(mins[i]));
        panel.scale[2 * i] = s;
        panel.scale[2 * i + 1] = s;
        panel.min[2 * i] = m;
        panel.min[2 * i + 1] = m;
    }
}

pub(super) struct Q4K;
impl Format for Q4K {
    const BLOCK: usize = 256;
    const BYTES: usize = 144;
    #[inline(always)]
    unsafe fn unpack<I: Isa>(bytes: &[u8], _at: usize, panel: &mut Panel) {
        // SAFETY: the caller's contract.
        let (d, dmin) = unsafe { (I::f16(half_at(bytes, 0)), I::f16(half_at(bytes, 2))) };
        set_k_scales(panel, d, dmin, array(bytes, 4));
        let qs: &[u8; 128] = array(bytes, 16);
        for pair in 0..4 {
            for i in 0..32 {
                let q = qs[32 * pair + i];
                panel.codes[64 * pair + i] = q & 0xf;
                panel.codes[64 * pair + 32 + i] = q >> 4;
            }
        }
    }
}

pub(super) struct Q5K;
impl Format for Q5K {
    const BLOCK: usize = 256;
    const BYTES: usize = 176;
    #[inline(always)]
    unsafe fn unpack<I: Isa>(bytes: &[u8], _at: usize, panel: &mut Panel) {
        // SAFETY: the caller's contract.
        let (d, dmin) = unsafe { (I::f16(half_at(bytes, 0)), I::f16(half_at(bytes, 2))) };
        set_k_scales(panel, d, dmin, array(bytes, 4));
        let qh: &[u8; 32] = array(bytes, 16);
        let qs: &[u8; 128] = array(bytes, 48);
        for pair in 0..4 {
            for i in 0..32 {
                let (q, h) = (qs[32 * pair + i], qh[i] >> (2 * pair));
                panel.codes[64 * pair + i] = (q & 0xf) | ((h & 1) << 4);
                panel.codes[64 * pair + 32 + i] = (q >> 4) | ((h & 2) << 3);
            }
        }
    }
}

pub(super) struct Q6K;
impl Format for Q6K {
    const BLOCK: usize = 256;
    const BYTES: usize = 210;
    #[inline(always)]
    unsafe fn unpack<I: Isa>(bytes: &[u8], _at: usize, panel: &mut Panel) {
        for side in 0..2 {
            let out =
                (&mut panel.codes[128 * side..128 * side + 128]).try_into().expect("the slice has 128 codes");
            // SAFETY: the caller's contract.
            unsafe { I::six_bits(array(bytes, 64 * side), array(bytes, 128 + 32 * side), out) };
        }
        let scales: &[u8; 16] = array(bytes, 192);
        // SAFETY: the caller's contract.
        let d = unsafe { I::f16(half_at(bytes, 208)) };
        for (group, &scale) in scales.iter().enumerate() {
            let scale = d * f32::from(scale as i8);
            panel.scale[group] = scale;
            panel.min[group] = 32.0 * scale;
        }
    }
}

/// Whether a type unpacks into panels.
pub(super) fn has_panels(dtype: GgmlDType) -> bool {
    use GgmlDType as T;
    matches!(dtype, T::Q4_0 | T::Q4_1 | T::Q5_0 | T::Q5_1 | T::Q8_0 | T::Q4K | T::Q5K | T::Q6K)
}
