//! Block formats whose 4-bit codes select one of 16 values: ggml's i-quants, MXFP4 and NVFP4.
//!
//! Every type of this kind has at most 16 signed values, so all keep 4 bits per weight in memory. Where the
//! file is denser, `repack` converts its blocks at load, without changing a weight. Layouts and unpacking
//! for kernels live here. Layouts of the file belong to `repack`.

use super::blocks::{BlockFormat, UnpackedStep, chunk, lone_half, nibbles, word};
use super::isa::Isa;
use super::packed::BlockShape;

/// Values that the codes of a type stand for.
pub(super) trait Values {
    /// Value of each code.
    const TABLE: [i8; 16];
    /// Factor of every scale. A power of two, so that it never rounds.
    const FACTOR: f32;
}

/// Defines the values of a type: 8 magnitudes, then the same ones negated.
macro_rules! signed_values {
    ($(#[$doc:meta])* $name:ident, [$($value:literal),*], $factor:expr) => {
        $(#[$doc])*
        pub(super) struct $name;
        impl Values for $name {
            const TABLE: [i8; 16] = [$($value,)* $(-$value),*];
            const FACTOR: f32 = $factor;
        }
    };
}

signed_values!(
    /// IQ2_XXS, IQ2_XS and IQ2_S. Scales are odd multiples of an eighth. Codes 3 to 7 do not occur.
    Iq2, [8, 25, 43, 0, 0, 0, 0, 0], 0.125
);
signed_values!(
    /// IQ3_XXS. Scales are odd multiples of a quarter.
    Iq3Xxs, [4, 12, 20, 28, 36, 44, 52, 62], 0.25
);
signed_values!(
    /// IQ3_S.
    Iq3S, [1, 3, 5, 7, 9, 11, 13, 15], 1.0
);
signed_values!(
    /// MXFP4 and NVFP4: numbers of 4 bits with 2 bits of exponent (E2M1), doubled.
    Fp4, [0, 1, 2, 3, 4, 6, 8, 12], 1.0
);

/// IQ1_S and IQ1_M: -1, 0 or 1, plus or minus an eighth, in eighths.
pub(super) struct Iq1;
impl Values for Iq1 {
    const TABLE: [i8; 16] = [-7, 1, 9, 0, 0, 0, 0, 0, -9, -1, 7, 0, 0, 0, 0, 0];
    const FACTOR: f32 = 0.125;
}

/// IQ4_NL and IQ4_XS.
pub(super) struct Iq4;
impl Values for Iq4 {
    const TABLE: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    const FACTOR: f32 = 1.0;
}

/// Q3_K. Codes 8 to 15 do not occur.
pub(super) struct Q3;
impl Values for Q3 {
    const TABLE: [i8; 16] = [-4, -3, -2, -1, 0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0];
    const FACTOR: f32 = 1.0;
}

/// Returns the base-2 logarithm of the offset that makes all values positive and below 128.
///
/// `None` if there is no such offset, and kernels need signed bytes.
const fn offset(table: &[i8; 16]) -> Option<u32> {
    let (mut largest, mut i) = (0, 0);
    while i < 16 {
        largest = if table[i].unsigned_abs() > largest { table[i].unsigned_abs() } else { largest };
        i += 1;
    }
    match largest {
        0..16 => Some(4),
        16..64 => Some(6),
        _ => None,
    }
}

/// Returns the table as kernels need it: with the offset, or as codes of [`Isa::byte_codes`].
const fn codes(table: &[i8; 16], biased_bytes: bool) -> [u8; 16] {
    let bias = match offset(table) {
        Some(shift) => 1 << shift,
        None if biased_bytes => 128,
        None => 0,
    };
    let (mut out, mut i) = ([0; 16], 0);
    while i < 16 {
        out[i] = (table[i] as u8).wrapping_add(bias);
        i += 1;
    }
    out
}

/// Looks up the codes of 16 bytes: low nibbles, then high nibbles.
#[inline(always)]
unsafe fn looked_up<V: Values, I: Isa>(packed: [I::Bytes; 4], out: &mut [I::Bytes]) {
    // SAFETY: guaranteed by the caller. Nibbles are below 16.
    unsafe {
        let table = const { codes(&V::TABLE, I::BIASED_BYTES) };
        let (low, high) = nibbles::<I>(packed);
        for i in 0..4 {
            out[i] = I::lookup(low[i], &table);
            out[4 + i] = I::lookup(high[i], &table);
        }
    }
}

/// A format in memory that scalar code can read too.
pub(super) trait TableFormat: BlockFormat {
    /// Computes the weights of one block. `out` has [`BlockFormat::BLOCK`] values.
    fn dequantise(block: &[u8], out: &mut [f32]);
}

/// Computes 32 weights from 16 bytes of nibbles and the scale of each half.
fn dequantise_32<V: Values>(nibbles: &[u8], scale: [f32; 2], out: &mut [f32]) {
    let (low, high) = out.split_at_mut(16);
    for ((byte, low), high) in nibbles.iter().zip(low).zip(high) {
        *low = scale[0] * f32::from(V::TABLE[usize::from(byte & 15)]);
        *high = scale[1] * f32::from(V::TABLE[usize::from(byte >> 4)]);
    }
}

/// Reads a half-precision number.
fn half_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// 32 weights with one scale: half precision, or the upper half of a float.
///
/// The scale, then nibbles: the low ones are weights 0 to 15, the high ones 16 to 31.
pub(super) struct Table32<V, const HALF: bool>(V);

impl<V: Values, const HALF: bool> BlockFormat for Table32<V, HALF> {
    const BLOCK: usize = 32;
    const SHAPE: BlockShape = BlockShape { bytes: 18, lone_half: Some(0) };
    const STEPS: usize = 1;
    const RUNS: usize = 1;
    const CHUNKS: usize = 2;
    const OFFSET: Option<u32> = offset(&V::TABLE);
    const MINIMA: bool = false;
    const FULL_BYTES: bool = Self::OFFSET.is_none();
    type Header<I: Isa> = ();

    #[inline(always)]
    fn first(_step: usize, _run: usize) -> usize {
        0
    }
    #[inline(always)]
    unsafe fn header<I: Isa>(_block: *const u8) {}
    #[inline(always)]
    unsafe fn step<I: Isa>(_: &(), block: *const u8, _step: usize) -> UnpackedStep<I> {
        // SAFETY: guaranteed by the caller. The scales follow the four words.
        unsafe {
            let packed = chunk::<I>(block, 0);
            let mut codes = [packed[0]; 16];
            looked_up::<V, I>(packed, &mut codes[..8]);
            let scale = if HALF {
                lone_half::<I>(block, 4)
            } else {
                I::upper_halves(block.wrapping_add(4 * I::ROWS * 4))
            };
            UnpackedStep { codes, scale: [scale; 4], min: [scale; 4] }
        }
    }
}

impl<V: Values, const HALF: bool> TableFormat for Table32<V, HALF> {
    fn dequantise(block: &[u8], out: &mut [f32]) {
        let scale = if HALF {
            half_at(block, 0)
        } else {
            f32::from_bits(u32::from(u16::from_le_bytes([block[0], block[1]])) << 16)
        };
        dequantise_32::<V>(&block[2..], [scale; 2], out);
    }
}

/// 32 weights with two scales in half precision, one for each 16 weights. Nibbles as in [`Table32`].
pub(super) struct Table16<V>(V);

impl<V: Values> BlockFormat for Table16<V> {
    const BLOCK: usize = 32;
    const SHAPE: BlockShape = BlockShape { bytes: 20, lone_half: None };
    const STEPS: usize = 1;
    const RUNS: usize = 2;
    const CHUNKS: usize = 1;
    const OFFSET: Option<u32> = offset(&V::TABLE);
    const MINIMA: bool = false;
    const FULL_BYTES: bool = Self::OFFSET.is_none();
    type Header<I: Isa> = ();

    #[inline(always)]
    fn first(_step: usize, run: usize) -> usize {
        16 * run
    }
    #[inline(always)]
    unsafe fn header<I: Isa>(_block: *const u8) {}
    #[inline(always)]
    unsafe fn step<I: Isa>(_: &(), block: *const u8, _step: usize) -> UnpackedStep<I> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let halves = word::<I>(block, 0);
            let packed = chunk::<I>(block, 1);
            let mut codes = [packed[0]; 16];
            looked_up::<V, I>(packed, &mut codes[..8]);
            let (first, second) = (I::low_half(halves), I::high_half(halves));
            let scale = [first, second, first, second];
            UnpackedStep { codes, scale, min: scale }
        }
    }
}

impl<V: Values> TableFormat for Table16<V> {
    fn dequantise(block: &[u8], out: &mut [f32]) {
        dequantise_32::<V>(&block[4..], [half_at(block, 0), half_at(block, 2)], out);
    }
}

/// 256 weights with a signed byte as scale for each `RUN` weights, 16 or 32, and a factor in half precision.
///
/// 16 bytes of nibbles for each 32 weights as in [`Table32`], then the scales, then the factor.
pub(super) struct Table256<V, const RUN: usize>(V);

impl<V: Values, const RUN: usize> BlockFormat for Table256<V, RUN> {
    const BLOCK: usize = 256;
    const SHAPE: BlockShape = BlockShape { bytes: 130 + 256 / RUN, lone_half: Some(128 + 256 / RUN) };
    const STEPS: usize = 4;
    const RUNS: usize = 64 / RUN;
    const CHUNKS: usize = RUN / 16;
    const OFFSET: Option<u32> = offset(&V::TABLE);
    const MINIMA: bool = false;
    const FULL_BYTES: bool = Self::OFFSET.is_none();
    type Header<I: Isa> = [I::Floats; 16];

    #[inline(always)]
    fn first(step: usize, run: usize) -> usize {
        64 * step + RUN * run
    }
    #[inline(always)]
    unsafe fn header<I: Isa>(block: *const u8) -> [I::Floats; 16] {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let d = I::mul(lone_half::<I>(block, 32 + 64 / RUN), I::splat(V::FACTOR));
            let mut out = [d; 16];
            for (i, scale) in out.iter_mut().enumerate().take(256 / RUN) {
                *scale = I::mul(d, I::signed_byte(word::<I>(block, 32 + i / 4), i as u32 % 4));
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn step<I: Isa>(header: &[I::Floats; 16], block: *const u8, step: usize) -> UnpackedStep<I> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (first, second) = (chunk::<I>(block, 8 * step), chunk::<I>(block, 8 * step + 4));
            let mut codes = [first[0]; 16];
            looked_up::<V, I>(first, &mut codes[..8]);
            looked_up::<V, I>(second, &mut codes[8..]);
            let of = Self::RUNS * step;
            let mut scale = [header[of]; 4];
            scale[..Self::RUNS].copy_from_slice(&header[of..of + Self::RUNS]);
            UnpackedStep { codes, scale, min: scale }
        }
    }
}

impl<V: Values, const RUN: usize> TableFormat for Table256<V, RUN> {
    fn dequantise(block: &[u8], out: &mut [f32]) {
        let d = half_at(block, 128 + 256 / RUN) * V::FACTOR;
        let scale = |weight: usize| d * f32::from(block[128 + weight / RUN] as i8);
        for (i, out) in out.chunks_exact_mut(32).enumerate() {
            dequantise_32::<V>(&block[16 * i..][..16], [scale(32 * i), scale(32 * i + 16)], out);
        }
    }
}
