//! Converts blocks of the file to the blocks that kernels read, for types without a kernel for their own
//! layout. No weight changes. No products here.
//!
//! The layouts of the file are defined by ggml (ggml-common.h and ggml-quants.c of ggml-org/llama.cpp).

use super::blocks::{Affine8, BlockFormat, Q2K, Q4_0};
use super::grids;
use super::packed::BlockShape;
use super::tables::{Fp4, Iq1, Iq2, Iq3S, Iq3Xxs, Iq4, Q3, Table16, Table32, Table256, TableFormat, Values};
use super::types::WeightType;

/// Layout in which a type is kept in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    /// Converts one block of the file to one or more blocks of `shape`.
    pub(super) repack: fn(&[u8], &mut [u8]),
    /// Layout of a block in memory.
    pub(super) shape: BlockShape,
    /// Weights of a block in memory.
    pub(super) block: usize,
    /// Computes the weights of a block in memory.
    pub(super) dequantise: fn(&[u8], &mut [f32]),
}

impl Kept {
    /// Returns the layout of a type in memory. `None` if kernels read its layout in the file, or there is no kernel.
    pub(super) fn of(dtype: WeightType) -> Option<Self> {
        use WeightType as T;
        Some(match dtype {
            T::Iq4Nl => table::<Table32<Iq4, true>>(|file, out| out.copy_from_slice(file)),
            T::Mxfp4 => table::<Table32<Fp4, false>>(mxfp4),
            T::Nvfp4 => table::<Table16<Fp4>>(nvfp4),
            T::Iq4Xs => table::<Table256<Iq4, 32>>(iq4_xs),
            T::Iq3S => table::<Table256<Iq3S, 32>>(iq3_s),
            T::Iq3Xxs => table::<Table256<Iq3Xxs, 32>>(iq3_xxs),
            T::Iq2Xxs => table::<Table256<Iq2, 32>>(iq2_xxs),
            T::Iq2Xs => table::<Table256<Iq2, 16>>(iq2_xs),
            T::Iq2S => table::<Table256<Iq2, 16>>(iq2_s),
            T::Iq1S => table::<Table256<Iq1, 32>>(iq1_s),
            T::Iq1M => table::<Table256<Iq1, 16>>(iq1_m),
            T::Affine8 => Self {
                repack: |file, out| out.copy_from_slice(file),
                shape: Affine8::SHAPE,
                block: Affine8::BLOCK,
                dequantise: affine8,
            },
            T::Tq1_0 => Self { repack: tq1_0, shape: Q2K::SHAPE, block: Q2K::BLOCK, dequantise: ternary },
            T::Tq2_0 => Self { repack: tq2_0, shape: Q2K::SHAPE, block: Q2K::BLOCK, dequantise: ternary },
            T::Q1_0 => Self { repack: q1_0, shape: Q4_0::SHAPE, block: Q4_0::BLOCK, dequantise: q4_0 },
            T::Q2_0 => Self { repack: q2_0, shape: Q4_0::SHAPE, block: Q4_0::BLOCK, dequantise: q4_0 },
            _ => return None,
        })
    }

    /// Returns the layout of a type in a stack of experts. Q3_K is converted there, because it has no kernel of its own.
    pub(super) fn of_stack(dtype: WeightType) -> Option<Self> {
        match dtype {
            WeightType::Q3K => Some(table::<Table256<Q3, 16>>(q3_k)),
            _ => Self::of(dtype),
        }
    }

    /// Returns the bytes in memory of `weights` weights, which must be whole blocks.
    pub(super) fn bytes(&self, weights: usize) -> usize {
        weights / self.block * self.shape.bytes
    }
}

fn table<F: TableFormat>(repack: fn(&[u8], &mut [u8])) -> Kept {
    Kept { repack, shape: F::SHAPE, block: F::BLOCK, dequantise: F::dequantise }
}

/// Converts whole rows of the file. `out` has [`Kept::bytes`] of their weights.
pub(super) fn repack_rows(dtype: WeightType, kept: &Kept, file: &[u8], out: &mut [u8]) {
    let bytes = kept.bytes(dtype.block_size());
    for (block, out) in file.chunks_exact(dtype.type_size()).zip(out.chunks_exact_mut(bytes)) {
        (kept.repack)(block, out);
    }
}

/// Returns the bytes of `weights` weights as the CPU kernels read them, for whole blocks.
pub fn bytes_read(dtype: WeightType, weights: usize) -> usize {
    match Kept::of(dtype) {
        Some(kept) => kept.bytes(weights),
        None => weights / dtype.block_size() * dtype.type_size(),
    }
}

/// Returns whole blocks of the file as the CPU kernels keep them. `None` for types that they keep as they are.
///
/// Types with a [`CodeTable`] have 4 bits for a weight, in 16 bytes for 32 weights. The low nibbles are weights 0 to 15.
/// Scales are around them. IQ4_NL has a half-precision number in front, MXFP4 the upper half of a float. NVFP4 has two
/// half-precision numbers, for 16 weights each. The others have 128 bytes of codes, signed bytes that scale 32 or 16
/// weights each, and a factor in half precision. Ternary types become Q2_K. Q1_0 and Q2_0 become Q4_0. AFFINE8 stays as
/// it is.
///
/// # Panics
/// If `file` does not consist of whole blocks.
pub fn kept_blocks(dtype: WeightType, file: &[u8]) -> Option<Vec<u8>> {
    let kept = Kept::of(dtype)?;
    assert!(file.len().is_multiple_of(dtype.type_size()), "blocks must be complete");
    let mut out = vec![0; kept.bytes(file.len() / dtype.type_size() * dtype.block_size())];
    repack_rows(dtype, &kept, file, &mut out);
    Some(out)
}

/// Values of the 4-bit codes of [`kept_blocks`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CodeTable {
    /// Value of each code.
    pub values: [i8; 16],
    /// Factor of every scale, a power of two.
    pub factor: f32,
}

impl CodeTable {
    /// Returns the table of a type, or `None` if its weights are not kept as such codes.
    pub fn of(dtype: WeightType) -> Option<Self> {
        use WeightType as T;
        fn table<V: Values>() -> Option<CodeTable> {
            Some(CodeTable { values: V::TABLE, factor: V::FACTOR })
        }
        match dtype {
            T::Iq4Nl | T::Iq4Xs => table::<Iq4>(),
            T::Mxfp4 | T::Nvfp4 => table::<Fp4>(),
            T::Iq3S => table::<Iq3S>(),
            T::Iq3Xxs => table::<Iq3Xxs>(),
            T::Iq2Xxs | T::Iq2Xs | T::Iq2S => table::<Iq2>(),
            T::Iq1S | T::Iq1M => table::<Iq1>(),
            _ => None,
        }
    }
}

/// Appends the weights of whole blocks in the layout of the file to `out`.
///
/// Returns `false` and appends nothing for types that candle can read.
///
/// # Panics
/// If `file` does not consist of whole blocks.
pub fn dequantise(dtype: WeightType, file: &[u8], out: &mut Vec<f32>) -> bool {
    let Some(kept) = Kept::of(dtype) else { return false };
    assert!(file.len().is_multiple_of(dtype.type_size()), "blocks must be complete");
    let mut block = vec![0; kept.bytes(dtype.block_size())];
    for file in file.chunks_exact(dtype.type_size()) {
        block.fill(0);
        (kept.repack)(file, &mut block);
        dequantise_kept(&kept, &block, out);
    }
    true
}

/// Appends the weights of blocks in memory to `out`.
pub(super) fn dequantise_kept(kept: &Kept, blocks: &[u8], out: &mut Vec<f32>) {
    for block in blocks.chunks_exact(kept.shape.bytes) {
        let start = out.len();
        out.resize(start + kept.block, 0.0);
        (kept.dequantise)(block, &mut out[start..]);
    }
}

/// Reads an unsigned 16-bit number.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Reads an unsigned 32-bit number.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Stores the code of weight `i` in the nibbles of a block in memory, which must be zero before.
fn put(out: &mut [u8], i: usize, code: u8) {
    out[16 * (i / 32) + i % 16] |= code << (4 * (i % 32 / 16));
}

/// Stores codes of consecutive weights: magnitudes from a grid, and a bit for each sign.
fn put_point(out: &mut [u8], first: usize, magnitudes: impl Iterator<Item = u8>, signs: u8) {
    for (i, magnitude) in magnitudes.enumerate() {
        put(out, first + i, magnitude | (signs >> i & 1) << 3);
    }
}

/// Returns the 8 magnitudes of a point with 2 bits each.
fn eight(grid: &[u8], index: usize) -> impl Iterator<Item = u8> {
    let point = u16_at(grid, 2 * index);
    (0..8).map(move |i| (point >> (2 * i) & 3) as u8)
}

/// Returns the 4 magnitudes of a point with 4 bits each.
fn four(grid: &[u8], index: usize) -> impl Iterator<Item = u8> {
    let point = u16_at(grid, 2 * index);
    (0..4).map(move |i| (point >> (4 * i) & 7) as u8)
}

/// Completes 7 signs by an eighth that makes the number of negative ones even.
fn eight_signs(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | ((seven.count_ones() as u8 & 1) << 7)
}

/// Returns the odd scale of a number of 3 or 4 bits.
fn odd(bits: u32) -> u8 {
    2 * bits as u8 + 1
}

/// 16 scales of 6 bits, 64 bytes with 2 bits of each weight and 32 bytes with the third.
fn q3_k(file: &[u8], out: &mut [u8]) {
    let (high, low, scales) = (&file[..32], &file[32..96], &file[96..108]);
    for i in 0..256 {
        let part = i / 32;
        let code = low[32 * (part / 4) + i % 32] >> (2 * (part % 4)) & 3;
        put(out, i, code | (high[i % 32] >> part & 1) << 2);
    }
    for run in 0..16 {
        let four = scales[run % 8] >> (4 * (run / 8)) & 15;
        let scale = four | (scales[8 + run % 4] >> (2 * (run / 4)) & 3) << 4;
        out[128 + run] = scale.wrapping_sub(32);
    }
    out[144..].copy_from_slice(&file[108..]);
}

/// The scale of 2^(e - 128) becomes the upper half of that float.
fn mxfp4(file: &[u8], out: &mut [u8]) {
    let exponent = u16::from(file[0]);
    // The two smallest powers are subnormal.
    let upper: u16 = if exponent < 2 { 0x20 << exponent } else { (exponent - 1) << 7 };
    out[..2].copy_from_slice(&upper.to_le_bytes());
    out[2..].copy_from_slice(&file[1..]);
}

/// Four scales of 8 bits, and 8 bytes of nibbles for each 16 weights.
fn nvfp4(file: &[u8], out: &mut [u8]) {
    for (pair, out) in out.chunks_exact_mut(20).enumerate() {
        for half in 0..2 {
            let run = 2 * pair + half;
            out[2 * half..2 * half + 2].copy_from_slice(&half::f16::to_le_bytes(half_of_e4m3(file[run])));
            for (i, byte) in file[4 + 8 * run..][..8].iter().enumerate() {
                put(&mut out[4..], 16 * half + i, byte & 15);
                put(&mut out[4..], 16 * half + 8 + i, byte >> 4);
            }
        }
    }
}

/// Converts half of an unsigned number with 4 bits of exponent and 3 of mantissa. NaN becomes 0, as in ggml.
fn half_of_e4m3(bits: u8) -> half::f16 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let value = match bits {
        0x7f => 0.0,
        _ if exponent == 0 => mantissa * 2f32.powi(-10),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 8),
    };
    half::f16::from_f32(value)
}

fn iq4_xs(file: &[u8], out: &mut [u8]) {
    out[..128].copy_from_slice(&file[8..]);
    let high = u16_at(file, 2);
    for run in 0..8 {
        let low = file[4 + run / 2] >> (4 * (run % 2)) & 15;
        let scale = low | ((high >> (2 * run)) as u8 & 3) << 4;
        out[128 + run] = scale.wrapping_sub(32);
    }
    out[136..].copy_from_slice(&file[..2]);
}

fn iq3_s(file: &[u8], out: &mut [u8]) {
    let (low, high, signs, scales) = (&file[2..66], &file[66..74], &file[74..106], &file[106..110]);
    for i in 0..64 {
        let index = usize::from(low[i]) | usize::from(high[i / 8] >> (i % 8) & 1) << 8;
        put_point(out, 4 * i, four(&grids::IQ3_S, index), signs[i / 2] >> (4 * (i % 2)));
    }
    for run in 0..8 {
        out[128 + run] = odd(u32::from(scales[run / 2] >> (4 * (run % 2)) & 15));
    }
    out[136..].copy_from_slice(&file[..2]);
}

fn iq3_xxs(file: &[u8], out: &mut [u8]) {
    for run in 0..8 {
        let word = u32_at(file, 66 + 4 * run);
        for i in 0..8 {
            let signs = eight_signs(word >> (7 * (i / 2))) >> (4 * (i % 2));
            let index = usize::from(file[2 + 8 * run + i]);
            put_point(out, 32 * run + 4 * i, four(&grids::IQ3_XXS, index), signs);
        }
        out[128 + run] = odd(word >> 28);
    }
    out[136..].copy_from_slice(&file[..2]);
}

fn iq2_xxs(file: &[u8], out: &mut [u8]) {
    for run in 0..8 {
        let (indices, word) = (&file[2 + 8 * run..][..4], u32_at(file, 6 + 8 * run));
        for (i, &index) in indices.iter().enumerate() {
            let point = eight(&grids::IQ2_XXS, index.into());
            put_point(out, 32 * run + 8 * i, point, eight_signs(word >> (7 * i)));
        }
        out[128 + run] = odd(word >> 28);
    }
    out[136..].copy_from_slice(&file[..2]);
}

/// Stores the 16 scales of IQ2_XS and IQ2_S.
fn iq2_scales(file: &[u8], scales: &[u8], out: &mut [u8]) {
    for run in 0..16 {
        out[128 + run] = odd(u32::from(scales[run / 2] >> (4 * (run % 2)) & 15));
    }
    out[144..].copy_from_slice(&file[..2]);
}

fn iq2_xs(file: &[u8], out: &mut [u8]) {
    for i in 0..32 {
        let word = u16_at(file, 2 + 2 * i);
        let point = eight(&grids::IQ2_XS, usize::from(word & 511));
        put_point(out, 8 * i, point, eight_signs(u32::from(word >> 9)));
    }
    iq2_scales(file, &file[66..74], out);
}

fn iq2_s(file: &[u8], out: &mut [u8]) {
    let (low, signs, high) = (&file[2..34], &file[34..66], &file[66..74]);
    for i in 0..32 {
        let index = usize::from(low[i]) | usize::from(high[i / 4] >> (2 * (i % 4)) & 3) << 8;
        put_point(out, 8 * i, eight(&grids::IQ2_S, index), signs[i]);
    }
    iq2_scales(file, &file[74..82], out);
}

/// Returns eight equal signs, for the shift by an eighth.
fn shift(negative: bool) -> u8 {
    if negative { 0xff } else { 0 }
}

fn iq1_s(file: &[u8], out: &mut [u8]) {
    for run in 0..8 {
        let word = u16_at(file, 34 + 2 * run);
        for i in 0..4 {
            let index = usize::from(file[2 + 4 * run + i]) | usize::from(word >> (3 * i) & 7) << 8;
            put_point(out, 32 * run + 8 * i, eight(&grids::IQ1, index), shift(word >> 15 == 1));
        }
        out[128 + run] = odd(u32::from(word >> 12 & 7));
    }
    out[136..].copy_from_slice(&file[..2]);
}

/// The factor is spread over the upper 4 bits of the four words of scales.
fn iq1_m(file: &[u8], out: &mut [u8]) {
    for i in 0..32 {
        let high = file[32 + i / 2] >> (4 * (i % 2));
        let index = usize::from(file[i]) | usize::from(high & 7) << 8;
        put_point(out, 8 * i, eight(&grids::IQ1, index), shift(high & 8 != 0));
    }
    let mut factor = 0;
    for run in 0..16 {
        let word = u16_at(file, 48 + 2 * (run / 4));
        out[128 + run] = odd(u32::from(word >> (3 * (run % 4)) & 7));
        factor |= (word >> 12) << (4 * (run / 4));
    }
    out[144..].copy_from_slice(&factor.to_le_bytes());
}

/// Completes a block of Q2_K whose codes are stored: all scales and minima are 1, so a weight is `d * code - d`.
fn complete_ternary(d: &[u8], out: &mut [u8]) {
    out[..16].fill(0x11);
    out[80..82].copy_from_slice(d);
    out[82..84].copy_from_slice(d);
}

fn tq2_0(file: &[u8], out: &mut [u8]) {
    out[16..80].copy_from_slice(&file[..64]);
    complete_ternary(&file[64..66], out);
}

/// Five weights in a byte, whose ternary digits are those of a fraction of 256.
fn tq1_0(file: &[u8], out: &mut [u8]) {
    let powers = [1u8, 3, 9, 27, 81];
    let mut put = |i: usize, byte: u8, digit: usize| {
        let code = ((u16::from(byte.wrapping_mul(powers[digit])) * 3) >> 8) as u8;
        out[16 + 32 * (i / 128) + i % 32] |= code << (2 * (i % 128 / 32));
    };
    for digit in 0..5 {
        (0..32).for_each(|i| put(32 * digit + i, file[i], digit));
        (0..16).for_each(|i| put(160 + 16 * digit + i, file[32 + i], digit));
    }
    for digit in 0..4 {
        (0..4).for_each(|i| put(240 + 4 * digit + i, file[48 + i], digit));
    }
    complete_ternary(&file[52..54], out);
}

/// Computes the weights of a block of Q2_K whose scales and minima are 1.
fn ternary(block: &[u8], out: &mut [f32]) {
    let d = half::f16::from_le_bytes([block[80], block[81]]).to_f32();
    for (i, out) in out.iter_mut().enumerate() {
        let code = block[16 + 32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3;
        *out = d * (f32::from(code) - 1.0);
    }
}

/// Stores blocks of Q4_0 with the scale of the file and the value of each weight, -8 to 7.
fn put_q4_0(file: &[u8], out: &mut [u8], value: impl Fn(usize) -> i8) {
    for (block, out) in out.chunks_exact_mut(Q4_0::SHAPE.bytes).enumerate() {
        out[..2].copy_from_slice(&file[..2]);
        (0..Q4_0::BLOCK).for_each(|i| put(&mut out[2..], i, (value(Q4_0::BLOCK * block + i) + 8) as u8));
    }
}

/// One bit for each weight, which stands for -1 or 1.
fn q1_0(file: &[u8], out: &mut [u8]) {
    put_q4_0(file, out, |i| if file[2 + i / 8] >> (i % 8) & 1 == 1 { 1 } else { -1 });
}

/// Two bits for each weight, which stand for -1, 0, 1 or 2.
fn q2_0(file: &[u8], out: &mut [u8]) {
    put_q4_0(file, out, |i| (file[2 + i / 4] >> (2 * (i % 4)) & 3) as i8 - 1);
}

/// Computes the weights of a block of Q4_0.
fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
    let (low, high) = out.split_at_mut(16);
    for ((byte, low), high) in block[2..].iter().zip(low).zip(high) {
        *low = d * (f32::from(byte & 15) - 8.0);
        *high = d * (f32::from(byte >> 4) - 8.0);
    }
}

/// Computes the weights of a block of 8-bit codes with a scale and a minimum.
fn affine8(block: &[u8], out: &mut [f32]) {
    let half = |at: usize| half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    let (scale, min) = (half(0), half(2));
    for (out, code) in out.iter_mut().zip(&block[4..]) {
        *out = scale * f32::from(code ^ 0x80) + min;
    }
}

/// Random blocks for tests and self-tests.
pub(crate) mod samples {
    use super::WeightType;

    /// Sets the scale of a block of a type that candle cannot read to about `scale`.
    pub(crate) fn set_scale(dtype: WeightType, block: &mut [u8], scale: f32) {
        let bits = half::f16::from_f32(scale).to_bits();
        let at = match dtype {
            WeightType::Mxfp4 => {
                block[0] = (scale.log2().round() as i32 + 128) as u8;
                return;
            }
            WeightType::Nvfp4 => {
                let exponent = (scale.log2().round() as i32 + 8).clamp(0, 15);
                block[..4].fill((exponent as u8) << 3);
                return;
            }
            WeightType::Iq1M => {
                for i in 0..4 {
                    let upper = block[49 + 2 * i] & 0x0f | ((bits >> (4 * i)) as u8 & 15) << 4;
                    block[49 + 2 * i] = upper;
                }
                return;
            }
            WeightType::Affine8 => {
                let min = half::f16::from_f32(-128.0 * scale).to_bits();
                block[2..4].copy_from_slice(&min.to_le_bytes());
                0
            }
            WeightType::Tq1_0 => 52,
            WeightType::Tq2_0 => 64,
            _ => 0,
        };
        block[at..at + 2].copy_from_slice(&bits.to_le_bytes());
    }

    /// Returns random blocks of a type that candle cannot read, in the layout of the file, with scales of about
    /// `scale`. A seed always gives the same blocks.
    pub fn random_blocks(dtype: WeightType, count: usize, scale: f32, seed: u64) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as u8
        };
        let mut blocks: Vec<u8> = (0..count * dtype.type_size()).map(|_| next()).collect();
        for block in blocks.chunks_exact_mut(dtype.type_size()) {
            set_scale(dtype, block, scale * (1.0 + f32::from(next()) / 256.0));
        }
        blocks
    }
}
