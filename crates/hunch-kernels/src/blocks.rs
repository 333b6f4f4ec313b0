//! GGUF block formats, unpacked for a group of weight rows in parallel. No products here.
//!
//! The formats are defined by ggml (ggml-common.h and ggml-quants.c of ggml-org/llama.cpp). They are
//! written once, generic over [`Isa`].
//!
//! A block is unpacked in *steps*. A step yields up to four *runs* of 16 or 32 weights. The weights of
//! a run share a scale and a minimum: `weight = scale * (code - offset) + min`.

use super::isa::Isa;
use super::packed::BlockShape;

/// Unpacked weights of one step.
///
/// The codes of run `r` begin at index `4 * CHUNKS * r`, with four vectors for each 16 weights.
pub(super) struct UnpackedStep<I: Isa> {
    pub(super) codes: [I::Bytes; 16],
    pub(super) scale: [I::Floats; 4],
    pub(super) min: [I::Floats; 4],
}

/// Quantised block format.
pub(super) trait BlockFormat {
    /// Weights per block.
    const BLOCK: usize;
    /// Layout of a block in the file.
    const SHAPE: BlockShape;
    /// Steps per block.
    const STEPS: usize;
    /// Runs per step: 1, 2 or 4.
    const RUNS: usize;
    /// Groups of 16 weights per run: 1 or 2.
    const CHUNKS: usize;
    /// Base-2 logarithm of the code offset, or `None` if codes have no offset.
    const OFFSET: Option<u32>;
    /// `true` if runs have a minimum.
    const MINIMA: bool;
    /// `true` if codes are signed bytes. See [`Isa::byte_codes`].
    const FULL_BYTES: bool;
    /// `true` if a code of signed bytes stands for a number that is 128 larger.
    const UNSIGNED: bool = false;
    /// Values shared by all steps of a block.
    type Header<I: Isa>;

    /// Returns the index of the first weight of a run within its block.
    fn first(step: usize, run: usize) -> usize;
    /// Reads the values shared by all steps of a block.
    ///
    /// # Safety
    /// See [`Isa`]. `block` must point to a packed block of a group.
    unsafe fn header<I: Isa>(block: *const u8) -> Self::Header<I>;
    /// Unpacks one step of a block.
    ///
    /// # Safety
    /// See [`Isa`]. `block` must be the packed block that `header` was read from.
    unsafe fn step<I: Isa>(header: &Self::Header<I>, block: *const u8, step: usize) -> UnpackedStep<I>;
}

/// Loads word `index` of each row of a packed block.
#[inline(always)]
pub(super) unsafe fn word<I: Isa>(block: *const u8, index: usize) -> I::Bytes {
    // SAFETY: guaranteed by the caller.
    unsafe { I::words(block.wrapping_add(4 * I::ROWS * index)) }
}

/// Loads words `first .. first + 4` of each row of a packed block.
#[inline(always)]
pub(super) unsafe fn chunk<I: Isa>(block: *const u8, first: usize) -> [I::Bytes; 4] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        [
            word::<I>(block, first),
            word::<I>(block, first + 1),
            word::<I>(block, first + 2),
            word::<I>(block, first + 3),
        ]
    }
}

/// Loads the lone half of each row of a packed block with `words` words.
#[inline(always)]
pub(super) unsafe fn lone_half<I: Isa>(block: *const u8, words: usize) -> I::Floats {
    // SAFETY: guaranteed by the caller.
    unsafe { I::halves(block.wrapping_add(4 * I::ROWS * words)) }
}

/// Splits the bytes of a chunk into low nibbles and high nibbles.
#[inline(always)]
pub(super) unsafe fn nibbles<I: Isa>(chunk: [I::Bytes; 4]) -> ([I::Bytes; 4], [I::Bytes; 4]) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let [a, b, c, d] = chunk;
        // No closure here: it would not be inlined into a function with other target features.
        let low = [I::and(a, 0xf), I::and(b, 0xf), I::and(c, 0xf), I::and(d, 0xf)];
        let [a, b, c, d] = [I::shr(a, 4), I::shr(b, 4), I::shr(c, 4), I::shr(d, 4)];
        (low, [I::and(a, 0xf), I::and(b, 0xf), I::and(c, 0xf), I::and(d, 0xf)])
    }
}

/// Builds a step of one run of 32 weights.
#[inline(always)]
unsafe fn one_run<I: Isa>(
    low: [I::Bytes; 4],
    high: [I::Bytes; 4],
    scale: I::Floats,
    min: I::Floats,
) -> UnpackedStep<I> {
    let mut codes = [low[0]; 16];
    codes[..4].copy_from_slice(&low);
    codes[4..8].copy_from_slice(&high);
    UnpackedStep { codes, scale: [scale; 4], min: [min; 4] }
}

/// Reads scale and minimum from the two halves of the first word of a block.
#[inline(always)]
unsafe fn scale_and_min<I: Isa>(block: *const u8) -> (I::Floats, I::Floats) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let halves = word::<I>(block, 0);
        (I::low_half(halves), I::high_half(halves))
    }
}

/// Reads the scale from the lone half after `words` words. The minimum is unused.
#[inline(always)]
unsafe fn scale_only<I: Isa>(block: *const u8, words: usize) -> (I::Floats, I::Floats) {
    // SAFETY: guaranteed by the caller.
    let scale = unsafe { lone_half::<I>(block, words) };
    (scale, scale)
}

/// Defines a format with a half-precision scale, and optionally a minimum, for each 32 weights.
macro_rules! block_of_32 {
    ($name:ident, $bytes:literal bytes, half $half:expr, offset $offset:expr, minima $minima:literal,
     full $full:literal, $(unsigned $unsigned:literal,)? |$isa:ident, $block:ident| $codes:expr, $scale:expr) => {
        pub(super) struct $name;
        impl BlockFormat for $name {
            const BLOCK: usize = 32;
            const SHAPE: BlockShape = BlockShape { bytes: $bytes, lone_half: $half };
            const STEPS: usize = 1;
            const RUNS: usize = 1;
            const CHUNKS: usize = 2;
            const OFFSET: Option<u32> = $offset;
            const MINIMA: bool = $minima;
            const FULL_BYTES: bool = $full;
            $(const UNSIGNED: bool = $unsigned;)?
            type Header<I: Isa> = ();

            #[inline(always)]
            fn first(_step: usize, _run: usize) -> usize {
                0
            }
            #[inline(always)]
            unsafe fn header<I: Isa>(_block: *const u8) {}
            #[inline(always)]
            unsafe fn step<$isa: Isa>(_: &(), $block: *const u8, _step: usize) -> UnpackedStep<$isa> {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    let (low, high) = $codes;
                    let (scale, min) = $scale;
                    one_run::<$isa>(low, high, scale, min)
                }
            }
        }
    };
}

block_of_32!(
    Q4_0, 18 bytes, half Some(0), offset Some(3), minima false, full false,
    |I, block| nibbles::<I>(chunk::<I>(block, 0)), scale_only::<I>(block, 4)
);
block_of_32!(
    Q4_1, 20 bytes, half None, offset None, minima true, full false,
    |I, block| nibbles::<I>(chunk::<I>(block, 1)), scale_and_min::<I>(block)
);
block_of_32!(
    Q5_0, 22 bytes, half Some(0), offset Some(4), minima false, full false,
    |I, block| five_bits::<I>(chunk::<I>(block, 1), word::<I>(block, 0)), scale_only::<I>(block, 5)
);
block_of_32!(
    Q5_1, 24 bytes, half None, offset None, minima true, full false,
    |I, block| five_bits::<I>(chunk::<I>(block, 2), word::<I>(block, 1)), scale_and_min::<I>(block)
);
block_of_32!(
    Q8_0, 34 bytes, half Some(0), offset None, minima false, full true,
    |I, block| byte_codes::<I>(chunk::<I>(block, 0), chunk::<I>(block, 4)), scale_only::<I>(block, 8)
);
block_of_32!(
    Affine8, 36 bytes, half None, offset None, minima true, full true, unsigned true,
    |I, block| byte_codes::<I>(chunk::<I>(block, 1), chunk::<I>(block, 5)), scale_and_min::<I>(block)
);

/// Converts signed bytes to codes.
#[inline(always)]
unsafe fn byte_codes<I: Isa>(
    mut low: [I::Bytes; 4],
    mut high: [I::Bytes; 4],
) -> ([I::Bytes; 4], [I::Bytes; 4]) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        for i in 0..4 {
            low[i] = I::byte_codes(low[i]);
            high[i] = I::byte_codes(high[i]);
        }
    }
    (low, high)
}

/// Unpacks nibbles and adds 16 to code i if bit i of the word of its row is set.
#[inline(always)]
unsafe fn five_bits<I: Isa>(chunk: [I::Bytes; 4], fifth: I::Bytes) -> ([I::Bytes; 4], [I::Bytes; 4]) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let (mut low, mut high) = nibbles::<I>(chunk);
        for i in 0..4 {
            low[i] = I::or(low[i], I::fifth_bits(fifth, i));
            high[i] = I::or(high[i], I::fifth_bits(fifth, 4 + i));
        }
        (low, high)
    }
}

/// Scales and minima of the eight runs of a Q4_K or Q5_K block.
pub(super) struct KScales<I: Isa> {
    scale: [I::Floats; 8],
    min: [I::Floats; 8],
}

/// Reads the first 16 bytes of a Q4_K or Q5_K block: two halves and 12 bytes of packed 6-bit numbers.
#[inline(always)]
unsafe fn k_scales<I: Isa>(block: *const u8) -> KScales<I> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let [halves, a, b, c] = chunk::<I>(block, 0);
        let d = I::low_half(halves);
        let d_min = I::mul(I::high_half(halves), I::splat(-1.0));
        let top_of_a = I::shl(I::and(I::shr(a, 6), 0x3), 4);
        let top_of_b = I::shl(I::and(I::shr(b, 6), 0x3), 4);
        let scales = [I::and(a, 0x3f), I::or(I::and(c, 0xf), top_of_a)];
        let mins = [I::and(b, 0x3f), I::or(I::and(I::shr(c, 4), 0xf), top_of_b)];
        let mut out = KScales { scale: [d; 8], min: [d; 8] };
        for i in 0..8 {
            out.scale[i] = I::mul(d, I::unsigned_byte(scales[i / 4], i as u32 % 4));
            out.min[i] = I::mul(d_min, I::unsigned_byte(mins[i / 4], i as u32 % 4));
        }
        out
    }
}

/// Builds a Q4_K or Q5_K step: one run of 32 low nibbles and one of 32 high nibbles.
#[inline(always)]
unsafe fn k_step<I: Isa>(
    header: &KScales<I>,
    step: usize,
    first: ([I::Bytes; 4], [I::Bytes; 4]),
    second: ([I::Bytes; 4], [I::Bytes; 4]),
) -> UnpackedStep<I> {
    let mut codes = [first.0[0]; 16];
    codes[..4].copy_from_slice(&first.0);
    codes[4..8].copy_from_slice(&second.0);
    codes[8..12].copy_from_slice(&first.1);
    codes[12..].copy_from_slice(&second.1);
    let (scale, min) = (&header.scale, &header.min);
    UnpackedStep {
        codes,
        scale: [scale[2 * step], scale[2 * step + 1], scale[0], scale[0]],
        min: [min[2 * step], min[2 * step + 1], min[0], min[0]],
    }
}

/// Defines a format of 256 weights in eight runs of 32, with 6-bit scales and minima.
macro_rules! k_block {
    ($name:ident, $bytes:literal bytes, $sixteens:ident) => {
        pub(super) struct $name;
        impl BlockFormat for $name {
            const BLOCK: usize = 256;
            const SHAPE: BlockShape = BlockShape { bytes: $bytes, lone_half: None };
            const STEPS: usize = 4;
            const RUNS: usize = 2;
            const CHUNKS: usize = 2;
            const OFFSET: Option<u32> = None;
            const MINIMA: bool = true;
            const FULL_BYTES: bool = false;
            type Header<I: Isa> = KScales<I>;

            #[inline(always)]
            fn first(step: usize, run: usize) -> usize {
                64 * step + 32 * run
            }
            #[inline(always)]
            unsafe fn header<I: Isa>(block: *const u8) -> KScales<I> {
                // SAFETY: guaranteed by the caller.
                unsafe { k_scales::<I>(block) }
            }
            #[inline(always)]
            unsafe fn step<I: Isa>(header: &KScales<I>, block: *const u8, step: usize) -> UnpackedStep<I> {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    let first = $sixteens::<I>(block, step, 0);
                    let second = $sixteens::<I>(block, step, 1);
                    k_step::<I>(header, step, first, second)
                }
            }
        }
    };
}

k_block!(Q4K, 144 bytes, q4k_sixteens);
k_block!(Q5K, 176 bytes, q5k_sixteens);

/// Unpacks codes `16 * half ..` of both runs of a Q4_K step.
#[inline(always)]
unsafe fn q4k_sixteens<I: Isa>(block: *const u8, step: usize, half: usize) -> ([I::Bytes; 4], [I::Bytes; 4]) {
    // SAFETY: guaranteed by the caller.
    unsafe { nibbles::<I>(chunk::<I>(block, 4 + 8 * step + 4 * half)) }
}

/// Unpacks codes `16 * half ..` of both runs of a Q5_K step.
#[inline(always)]
unsafe fn q5k_sixteens<I: Isa>(block: *const u8, step: usize, half: usize) -> ([I::Bytes; 4], [I::Bytes; 4]) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let (mut low, mut high) = nibbles::<I>(chunk::<I>(block, 12 + 8 * step + 4 * half));
        let fifth = chunk::<I>(block, 4 + 4 * half);
        for i in 0..4 {
            let bits = I::shr(fifth[i], 2 * step as u32);
            low[i] = I::or(low[i], I::shl(I::and(bits, 1), 4));
            high[i] = I::or(high[i], I::shl(I::and(bits, 2), 3));
        }
        (low, high)
    }
}

pub(super) struct Q6K;
impl BlockFormat for Q6K {
    const BLOCK: usize = 256;
    const SHAPE: BlockShape = BlockShape { bytes: 210, lone_half: Some(208) };
    const STEPS: usize = 4;
    const RUNS: usize = 4;
    const CHUNKS: usize = 1;
    const OFFSET: Option<u32> = Some(5);
    const MINIMA: bool = false;
    const FULL_BYTES: bool = false;
    type Header<I: Isa> = [I::Floats; 16];

    #[inline(always)]
    fn first(step: usize, run: usize) -> usize {
        128 * (step / 2) + 32 * run + 16 * (step % 2)
    }
    #[inline(always)]
    unsafe fn header<I: Isa>(block: *const u8) -> [I::Floats; 16] {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let d = lone_half::<I>(block, 52);
            let scales = chunk::<I>(block, 48);
            let mut out = [d; 16];
            for (i, scale) in out.iter_mut().enumerate() {
                *scale = I::mul(d, I::signed_byte(scales[i / 4], i as u32 % 4));
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn step<I: Isa>(header: &[I::Floats; 16], block: *const u8, step: usize) -> UnpackedStep<I> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (side, half) = (step / 2, step % 2);
            let a = chunk::<I>(block, 16 * side + 4 * half);
            let b = chunk::<I>(block, 16 * side + 8 + 4 * half);
            let high = chunk::<I>(block, 32 + 8 * side + 4 * half);
            let mut codes = [a[0]; 16];
            for i in 0..4 {
                let (a, b, h) = (a[i], b[i], high[i]);
                codes[i] = I::or(I::and(a, 0xf), I::shl(I::and(h, 0x03), 4));
                codes[4 + i] = I::or(I::and(b, 0xf), I::shl(I::and(h, 0x0c), 2));
                codes[8 + i] = I::or(I::and(I::shr(a, 4), 0xf), I::and(h, 0x30));
                codes[12 + i] = I::or(I::and(I::shr(b, 4), 0xf), I::and(I::shr(h, 2), 0x30));
            }
            let of = 8 * side + half;
            let scale = [header[of], header[of + 2], header[of + 4], header[of + 6]];
            UnpackedStep { codes, scale, min: scale }
        }
    }
}

/// Scales and minima of the 16 runs of a Q2_K block.
pub(super) struct Q2KHeader<I: Isa> {
    scale: [I::Floats; 16],
    min: [I::Floats; 16],
}

pub(super) struct Q2K;
impl BlockFormat for Q2K {
    const BLOCK: usize = 256;
    const SHAPE: BlockShape = BlockShape { bytes: 84, lone_half: None };
    const STEPS: usize = 4;
    const RUNS: usize = 4;
    const CHUNKS: usize = 1;
    const OFFSET: Option<u32> = None;
    const MINIMA: bool = true;
    const FULL_BYTES: bool = false;
    type Header<I: Isa> = Q2KHeader<I>;

    #[inline(always)]
    fn first(step: usize, run: usize) -> usize {
        Q6K::first(step, run)
    }
    #[inline(always)]
    unsafe fn header<I: Isa>(block: *const u8) -> Q2KHeader<I> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let halves = word::<I>(block, 20);
            let d = I::low_half(halves);
            let d_min = I::mul(I::high_half(halves), I::splat(-1.0));
            let (scales, mins) = nibbles::<I>(chunk::<I>(block, 0));
            let mut out = Q2KHeader { scale: [d; 16], min: [d; 16] };
            for i in 0..16 {
                out.scale[i] = I::mul(d, I::unsigned_byte(scales[i / 4], i as u32 % 4));
                out.min[i] = I::mul(d_min, I::unsigned_byte(mins[i / 4], i as u32 % 4));
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn step<I: Isa>(header: &Q2KHeader<I>, block: *const u8, step: usize) -> UnpackedStep<I> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (side, half) = (step / 2, step % 2);
            let packed = chunk::<I>(block, 4 + 8 * side + 4 * half);
            let mut codes = [packed[0]; 16];
            for i in 0..4 {
                let p = packed[i];
                codes[i] = I::and(p, 0x3);
                codes[4 + i] = I::and(I::shr(p, 2), 0x3);
                codes[8 + i] = I::and(I::shr(p, 4), 0x3);
                codes[12 + i] = I::and(I::shr(p, 6), 0x3);
            }
            let of = 8 * side + half;
            let (scale, min) = (&header.scale, &header.min);
            UnpackedStep {
                codes,
                scale: [scale[of], scale[of + 2], scale[of + 4], scale[of + 6]],
                min: [min[of], min[of + 2], min[of + 4], min[of + 6]],
            }
        }
    }
}
