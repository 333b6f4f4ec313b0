//! The block formats of GGUF, unpacked for a group of weight rows abreast. Formats as ggml defines
//! them (ggml-common.h, ggml-quants.c of ggml-org/llama.cpp), written once over [`Isa`].
//!
//! A block is taken in *steps*. A step yields up to four *runs* of 16 or 32 weights; the weights of a
//! run share a scale and a minimum: `weight = scale * (code - offset) + min`.

use super::isa::{Isa, WeightRows};

/// What one step unpacks: the codes of run `r` begin at `4 * CHUNKS * r`, four vectors for each 16
/// weights.
pub(super) struct Step<I: Isa> {
    pub(super) codes: [I::Bytes; 16],
    pub(super) scale: [I::Floats; 4],
    pub(super) min: [I::Floats; 4],
}

/// A block format.
pub(super) trait Format {
    /// Weights in a block.
    const BLOCK: usize;
    /// Bytes in a block.
    const BYTES: usize;
    /// Steps that unpack a block.
    const STEPS: usize;
    /// Runs of a step, 1, 2 or 4.
    const RUNS: usize;
    /// Sixteens of weights in a run, 1 or 2.
    const CHUNKS: usize;
    /// The offset is 2 to this power; none when the codes mean what they say.
    const OFFSET: Option<u32>;
    /// Whether runs have a minimum.
    const MINIMA: bool;
    /// Whether the codes are signed bytes, [`Isa::byte_codes`].
    const FULL_BYTES: bool;
    /// What all steps of a block share.
    type Header<I: Isa>;

    /// The first weight of a run in its block.
    fn first(step: usize, run: usize) -> usize;
    /// Reads what the steps of the block `at` bytes into the rows share.
    ///
    /// # Safety
    /// As [`Isa`]; the rows have a block there.
    unsafe fn header<I: Isa>(rows: WeightRows, at: usize) -> Self::Header<I>;
    /// Unpacks one step of that block.
    ///
    /// # Safety
    /// As [`Isa`]; the rows have a block there.
    unsafe fn step<I: Isa>(header: &Self::Header<I>, rows: WeightRows, at: usize, step: usize) -> Step<I>;
}

/// Low halves of a chunk's bytes, then the high ones.
#[inline(always)]
unsafe fn nibbles<I: Isa>(chunk: [I::Bytes; 4]) -> ([I::Bytes; 4], [I::Bytes; 4]) {
    // SAFETY: the caller's contract.
    unsafe {
        let [a, b, c, d] = chunk;
        // Written out: a closure would not be inlined into code with other instructions enabled.
        let low = [I::and(a, 0xf), I::and(b, 0xf), I::and(c, 0xf), I::and(d, 0xf)];
        let [a, b, c, d] = [I::shr(a, 4), I::shr(b, 4), I::shr(c, 4), I::shr(d, 4)];
        (low, [I::and(a, 0xf), I::and(b, 0xf), I::and(c, 0xf), I::and(d, 0xf)])
    }
}

/// A step of one run of 32 weights.
#[inline(always)]
unsafe fn one_run<I: Isa>(
    low: [I::Bytes; 4],
    high: [I::Bytes; 4],
    scale: I::Floats,
    min: I::Floats,
) -> Step<I> {
    let mut codes = [low[0]; 16];
    codes[..4].copy_from_slice(&low);
    codes[4..8].copy_from_slice(&high);
    Step { codes, scale: [scale; 4], min: [min; 4] }
}

/// The formats with a scale (and perhaps a minimum) in half precision for each 32 weights.
macro_rules! block_of_32 {
    ($name:ident, $bytes:literal bytes, offset $offset:expr, minima $minima:literal, full $full:literal,
     |$isa:ident, $rows:ident, $at:ident, $word:ident| $codes:block) => {
        pub(super) struct $name;
        impl Format for $name {
            const BLOCK: usize = 32;
            const BYTES: usize = $bytes;
            const STEPS: usize = 1;
            const RUNS: usize = 1;
            const CHUNKS: usize = 2;
            const OFFSET: Option<u32> = $offset;
            const MINIMA: bool = $minima;
            const FULL_BYTES: bool = $full;
            type Header<I: Isa> = ();

            #[inline(always)]
            fn first(_step: usize, _run: usize) -> usize {
                0
            }
            #[inline(always)]
            unsafe fn header<I: Isa>(_rows: WeightRows, _at: usize) {}
            #[inline(always)]
            unsafe fn step<$isa: Isa>(_: &(), $rows: WeightRows, $at: usize, _step: usize) -> Step<$isa> {
                // SAFETY: the caller's contract.
                unsafe {
                    let $word = $isa::word($rows, $at);
                    let (low, high) = $codes;
                    let scale = $isa::low_half($word);
                    let min = if $minima { $isa::high_half($word) } else { scale };
                    one_run::<$isa>(low, high, scale, min)
                }
            }
        }
    };
}

block_of_32!(Q4_0, 18 bytes, offset Some(3), minima false, full false, |I, rows, at, _word| {
    nibbles::<I>(I::chunk(rows, at + 2))
});
block_of_32!(Q4_1, 20 bytes, offset None, minima true, full false, |I, rows, at, _word| {
    nibbles::<I>(I::chunk(rows, at + 4))
});
block_of_32!(Q5_0, 22 bytes, offset Some(4), minima false, full false, |I, rows, at, _word| {
    five_bits::<I>(I::chunk(rows, at + 6), I::word(rows, at + 2))
});
block_of_32!(Q5_1, 24 bytes, offset None, minima true, full false, |I, rows, at, _word| {
    five_bits::<I>(I::chunk(rows, at + 8), I::word(rows, at + 4))
});
block_of_32!(Q8_0, 34 bytes, offset None, minima false, full true, |I, rows, at, _word| {
    let (mut low, mut high) = (I::chunk(rows, at + 2), I::chunk(rows, at + 18));
    for i in 0..4 {
        low[i] = I::byte_codes(low[i]);
        high[i] = I::byte_codes(high[i]);
    }
    (low, high)
});

/// As [`nibbles`], with 16 added to code i where bit i of its row's word is set.
#[inline(always)]
unsafe fn five_bits<I: Isa>(chunk: [I::Bytes; 4], fifth: I::Bytes) -> ([I::Bytes; 4], [I::Bytes; 4]) {
    // SAFETY: the caller's contract.
    unsafe {
        let (mut low, mut high) = nibbles::<I>(chunk);
        for i in 0..4 {
            low[i] = I::or(low[i], I::fifth_bits(fifth, i));
            high[i] = I::or(high[i], I::fifth_bits(fifth, 4 + i));
        }
        (low, high)
    }
}

/// Scales and minima of the eight runs of a block of Q4_K or Q5_K.
pub(super) struct KScales<I: Isa> {
    scale: [I::Floats; 8],
    min: [I::Floats; 8],
}

/// From the 16 bytes both formats begin with: two halves and 12 bytes of packed 6-bit numbers.
#[inline(always)]
unsafe fn k_scales<I: Isa>(rows: WeightRows, at: usize) -> KScales<I> {
    // SAFETY: the caller's contract.
    unsafe {
        let [halves, a, b, c] = I::chunk(rows, at);
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

/// A step of Q4_K or Q5_K: two runs of 32, low nibbles and high ones.
#[inline(always)]
unsafe fn k_step<I: Isa>(
    header: &KScales<I>,
    step: usize,
    first: ([I::Bytes; 4], [I::Bytes; 4]),
    second: ([I::Bytes; 4], [I::Bytes; 4]),
) -> Step<I> {
    let mut codes = [first.0[0]; 16];
    codes[..4].copy_from_slice(&first.0);
    codes[4..8].copy_from_slice(&second.0);
    codes[8..12].copy_from_slice(&first.1);
    codes[12..].copy_from_slice(&second.1);
    let (scale, min) = (&header.scale, &header.min);
    Step {
        codes,
        scale: [scale[2 * step], scale[2 * step + 1], scale[0], scale[0]],
        min: [min[2 * step], min[2 * step + 1], min[0], min[0]],
    }
}

/// The formats of 256 weights in eight runs of 32, with scales and minima of six bits.
macro_rules! k_block {
    ($name:ident, $bytes:literal bytes, $sixteens:ident) => {
        pub(super) struct $name;
        impl Format for $name {
            const BLOCK: usize = 256;
            const BYTES: usize = $bytes;
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
            unsafe fn header<I: Isa>(rows: WeightRows, at: usize) -> KScales<I> {
                // SAFETY: the caller's contract.
                unsafe { k_scales::<I>(rows, at) }
            }
            #[inline(always)]
            unsafe fn step<I: Isa>(header: &KScales<I>, rows: WeightRows, at: usize, step: usize) -> Step<I> {
                // SAFETY: the caller's contract.
                unsafe {
                    let first = $sixteens::<I>(rows, at, step, 0);
                    let second = $sixteens::<I>(rows, at, step, 1);
                    k_step::<I>(header, step, first, second)
                }
            }
        }
    };
}

k_block!(Q4K, 144 bytes, q4k_sixteens);
k_block!(Q5K, 176 bytes, q5k_sixteens);

/// Codes `16 * half ..` of both runs of a step of Q4_K.
#[inline(always)]
unsafe fn q4k_sixteens<I: Isa>(
    rows: WeightRows,
    at: usize,
    step: usize,
    half: usize,
) -> ([I::Bytes; 4], [I::Bytes; 4]) {
    // SAFETY: the caller's contract.
    unsafe { nibbles::<I>(I::chunk(rows, at + 16 + 32 * step + 16 * half)) }
}

/// Codes `16 * half ..` of both runs of a step of Q5_K.
#[inline(always)]
unsafe fn q5k_sixteens<I: Isa>(
    rows: WeightRows,
    at: usize,
    step: usize,
    half: usize,
) -> ([I::Bytes; 4], [I::Bytes; 4]) {
    // SAFETY: the caller's contract.
    unsafe {
        let (mut low, mut high) = nibbles::<I>(I::chunk(rows, at + 48 + 32 * step + 16 * half));
        let fifth = I::chunk(rows, at + 16 + 16 * half);
        for i in 0..4 {
            let bits = I::shr(fifth[i], 2 * step as u32);
            low[i] = I::or(low[i], I::shl(I::and(bits, 1), 4));
            high[i] = I::or(high[i], I::shl(I::and(bits, 2), 3));
        }
        (low, high)
    }
}

pub(super) struct Q6K;
impl Format for Q6K {
    const BLOCK: usize = 256;
    const BYTES: usize = 210;
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
    unsafe fn header<I: Isa>(rows: WeightRows, at: usize) -> [I::Floats; 16] {
        // SAFETY: the caller's contract. The half is read with the two bytes before it, which are
        // the block's own.
        unsafe {
            let d = I::high_half(I::word(rows, at + 206));
            let scales = I::chunk(rows, at + 192);
            let mut out = [d; 16];
            for (i, scale) in out.iter_mut().enumerate() {
                *scale = I::mul(d, I::signed_byte(scales[i / 4], i as u32 % 4));
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn step<I: Isa>(header: &[I::Floats; 16], rows: WeightRows, at: usize, step: usize) -> Step<I> {
        // SAFETY: the caller's contract.
        unsafe {
            let (side, half) = (step / 2, step % 2);
            let a = I::chunk(rows, at + 64 * side + 16 * half);
            let b = I::chunk(rows, at + 64 * side + 32 + 16 * half);
            let high = I::chunk(rows, at + 128 + 32 * side + 16 * half);
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
            Step { codes, scale, min: scale }
        }
    }
}
