//! Instruction sets. Each works on a *group* of weight rows abreast: a vector has one lane per
//! weight row, so a dot product needs no sum across lanes, scales are vectors, and the order of
//! additions of an output is the order of its weights, however many activation rows there are.
//!
//! The formats of `blocks.rs` are written once over these operations. [`Scalar`] is the readable
//! reference; the others are chosen at run time.

use std::sync::OnceLock;

#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
#[cfg(target_arch = "x86_64")]
pub(super) mod x86;

/// Most weight rows abreast in any instruction set.
pub(super) const MAX_GROUP: usize = 16;

/// One instruction set.
///
/// # Safety
/// The methods may only run on a CPU that has the set's instructions, inside a function that enables
/// them; they are inlined into it. Where a method reads from an address, what it reads is there.
pub(super) trait Isa {
    /// Weight rows in a group; at most [`MAX_GROUP`].
    const ROWS: usize;
    /// Whether two rows of activations are multiplied at once, [`Isa::dot_pair`].
    const PAIRS: bool = false;
    /// Whether codes of the full eight bits are stored with 128 added.
    const BIASED_BYTES: bool;
    /// Four bytes of each row.
    type Bytes: Copy;
    /// An i32 for each row.
    type Ints: Copy;
    /// An f32 for each row.
    type Floats: Copy;

    /// Four bytes of each row, which lie one row after the other.
    unsafe fn words(at: *const u8) -> Self::Bytes;
    /// IEEE half precision, one of each row, one row after the other.
    unsafe fn halves(at: *const u8) -> Self::Floats;
    /// Asks for the line at `address` to be brought near; any address is sound.
    unsafe fn prefetch(address: *const u8);

    /// Each byte with `mask`.
    unsafe fn and(a: Self::Bytes, mask: u8) -> Self::Bytes;
    /// Each byte with the other's.
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Each byte shifted right; what comes in from above is anything, so mask it.
    unsafe fn shr(a: Self::Bytes, by: u32) -> Self::Bytes;
    /// Each byte shifted left; what comes in from below is anything, so mask before.
    unsafe fn shl(a: Self::Bytes, by: u32) -> Self::Bytes;
    /// 16 in byte b of a row where bit `4 * nibble + b` of its word is set, else 0.
    unsafe fn fifth_bits(word: Self::Bytes, nibble: usize) -> Self::Bytes;
    /// Signed bytes as codes: 128 added where [`Isa::BIASED_BYTES`].
    unsafe fn byte_codes(a: Self::Bytes) -> Self::Bytes;

    /// The low half of each word as IEEE half precision.
    unsafe fn low_half(word: Self::Bytes) -> Self::Floats;
    /// The high half of each word as IEEE half precision.
    unsafe fn high_half(word: Self::Bytes) -> Self::Floats;
    /// Byte `i` of each word, unsigned.
    unsafe fn unsigned_byte(word: Self::Bytes, i: u32) -> Self::Floats;
    /// Byte `i` of each word, signed.
    unsafe fn signed_byte(word: Self::Bytes, i: u32) -> Self::Floats;

    /// `value << shift` in every lane.
    unsafe fn splat_shifted(value: i32, shift: u32) -> Self::Ints;
    /// Adds the products of 16 codes below 64 of each row with 16 activations.
    unsafe fn dot(acc: Self::Ints, codes: &[Self::Bytes], activations: &[i8; 16]) -> Self::Ints;
    /// As [`Isa::dot`] for the codes of [`Isa::byte_codes`].
    unsafe fn dot_bytes(acc: Self::Ints, codes: &[Self::Bytes], activations: &[i8; 16]) -> Self::Ints;
    /// Both kinds of dot product for two rows of activations; the sums are those of each row alone.
    #[inline(always)]
    unsafe fn dot_pair(
        acc: [Self::Ints; 2],
        codes: &[Self::Bytes],
        activations: [&[i8; 16]; 2],
    ) -> [Self::Ints; 2] {
        // SAFETY: the caller's contract.
        unsafe { [Self::dot(acc[0], codes, activations[0]), Self::dot(acc[1], codes, activations[1])] }
    }
    /// To f32.
    unsafe fn floats(a: Self::Ints) -> Self::Floats;

    /// `value` in every lane.
    unsafe fn splat(value: f32) -> Self::Floats;
    /// a * b.
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// a * b + c, rounded once.
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Lane r to `to[r]`.
    unsafe fn store(a: Self::Floats, to: &mut [f32; MAX_GROUP]);

    /// [`Isa::ROWS`] floats from `from` on, a lane each. They must be there.
    unsafe fn load(from: *const f32) -> Self::Floats;
    /// A lane each to `to` and what follows. There must be room.
    unsafe fn store_at(a: Self::Floats, to: *mut f32);
    /// The sum over the lanes of each of four vectors, all added in one and the same order.
    unsafe fn sums(a: [Self::Floats; 4]) -> [f32; 4];
}

static CHOSEN: OnceLock<Level> = OnceLock::new();

/// Names of the levels that this CPU has, the slowest first.
pub fn level_names() -> Vec<&'static str> {
    Level::ALL.iter().filter(|level| level.available()).map(|level| level.name()).collect()
}

/// Holds all kernels of the process to a level, so that one machine can measure as several do. To be called before
/// any kernel runs.
///
/// # Errors
/// With the reason, when this CPU has no level of that name, or another one is in use already.
pub fn use_level(name: &str) -> Result<(), String> {
    let known = Level::ALL.iter().copied().find(|level| level.name() == name && level.available());
    let level = known.ok_or_else(|| format!("choose one of {}", level_names().join(", ")))?;
    if *CHOSEN.get_or_init(|| level) == level {
        Ok(())
    } else {
        Err(format!("{} is in use already", Level::best().name()))
    }
}

/// The instruction set in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Scalar,
    #[cfg(target_arch = "aarch64")]
    Neon,
    #[cfg(target_arch = "aarch64")]
    NeonI8mm,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// All there are, the best last.
    pub(super) const ALL: &[Level] = &[
        Level::Scalar,
        #[cfg(target_arch = "aarch64")]
        Level::Neon,
        #[cfg(target_arch = "aarch64")]
        Level::NeonI8mm,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2,
        #[cfg(target_arch = "x86_64")]
        Level::AvxVnni,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512,
    ];

    /// The level in use: the best this CPU has, unless [`use_level`] chose another. Decided once.
    pub(super) fn best() -> Self {
        *CHOSEN.get_or_init(|| {
            Self::ALL.iter().rev().copied().find(|level| level.available()).unwrap_or(Self::Scalar)
        })
    }

    /// Name of the level on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            #[cfg(target_arch = "aarch64")]
            Self::Neon => "neon",
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm => "neon-i8mm",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => "avx-vnni",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
        }
    }

    /// Whether this CPU has it.
    pub(super) fn available(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm => Self::Neon.available() && std::arch::is_aarch64_feature_detected!("i8mm"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => Self::Avx2.available() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
        }
    }

    /// Weight rows in a group.
    pub(super) fn rows(self) -> usize {
        match self {
            Self::Scalar => Scalar::ROWS,
            #[cfg(target_arch = "aarch64")]
            Self::Neon | Self::NeonI8mm => neon::Neon::ROWS,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => x86::Avx2::ROWS,
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => x86::AvxVnni::ROWS,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => x86::Avx512::ROWS,
        }
    }
}

/// Plain Rust, for every CPU: the reference the others are tested against.
pub(super) struct Scalar;

const LANES: usize = 4;

#[inline(always)]
fn both<A: Copy, B: Copy, C: Default + Copy>(
    a: [A; LANES],
    b: [B; LANES],
    f: impl Fn(A, B) -> C,
) -> [C; LANES] {
    let mut out = [C::default(); LANES];
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
    }
    out
}

impl Isa for Scalar {
    const ROWS: usize = LANES;
    const BIASED_BYTES: bool = false;
    type Bytes = [[u8; 4]; LANES];
    type Ints = [i32; LANES];
    type Floats = [f32; LANES];

    #[inline(always)]
    unsafe fn words(at: *const u8) -> Self::Bytes {
        // SAFETY: the caller's contract.
        unsafe { at.cast::<Self::Bytes>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn halves(at: *const u8) -> Self::Floats {
        // SAFETY: the caller's contract.
        let halves = unsafe { at.cast::<[[u8; 2]; LANES]>().read_unaligned() };
        halves.map(|half| half::f16::from_le_bytes(half).to_f32())
    }
    #[inline(always)]
    unsafe fn prefetch(_address: *const u8) {}
    #[inline(always)]
    unsafe fn and(a: Self::Bytes, mask: u8) -> Self::Bytes {
        a.map(|a| a.map(|a| a & mask))
    }
    #[inline(always)]
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        both(a, b, |a, b| [a[0] | b[0], a[1] | b[1], a[2] | b[2], a[3] | b[3]])
    }
    #[inline(always)]
    unsafe fn shr(a: Self::Bytes, by: u32) -> Self::Bytes {
        a.map(|a| a.map(|a| a >> by))
    }
    #[inline(always)]
    unsafe fn shl(a: Self::Bytes, by: u32) -> Self::Bytes {
        a.map(|a| a.map(|a| a << by))
    }
    #[inline(always)]
    unsafe fn fifth_bits(word: Self::Bytes, nibble: usize) -> Self::Bytes {
        word.map(|word| {
            let bits = u32::from_le_bytes(word) >> (4 * nibble);
            [0, 1, 2, 3].map(|b| (((bits >> b) & 1) << 4) as u8)
        })
    }
    #[inline(always)]
    unsafe fn byte_codes(a: Self::Bytes) -> Self::Bytes {
        a
    }
    #[inline(always)]
    unsafe fn low_half(word: Self::Bytes) -> Self::Floats {
        word.map(|w| half::f16::from_le_bytes([w[0], w[1]]).to_f32())
    }
    #[inline(always)]
    unsafe fn high_half(word: Self::Bytes) -> Self::Floats {
        word.map(|w| half::f16::from_le_bytes([w[2], w[3]]).to_f32())
    }
    #[inline(always)]
    unsafe fn unsigned_byte(word: Self::Bytes, i: u32) -> Self::Floats {
        word.map(|w| f32::from(w[i as usize]))
    }
    #[inline(always)]
    unsafe fn signed_byte(word: Self::Bytes, i: u32) -> Self::Floats {
        word.map(|w| f32::from(w[i as usize] as i8))
    }
    #[inline(always)]
    unsafe fn splat_shifted(value: i32, shift: u32) -> Self::Ints {
        [value << shift; LANES]
    }
    #[inline(always)]
    unsafe fn dot(acc: Self::Ints, codes: &[Self::Bytes], activations: &[i8; 16]) -> Self::Ints {
        let mut acc = acc;
        for (word, a) in codes.iter().zip(activations.chunks_exact(4)) {
            for (acc, codes) in acc.iter_mut().zip(word) {
                *acc += codes.iter().zip(a).map(|(&c, &a)| i32::from(c) * i32::from(a)).sum::<i32>();
            }
        }
        acc
    }
    #[inline(always)]
    unsafe fn dot_bytes(acc: Self::Ints, codes: &[Self::Bytes], activations: &[i8; 16]) -> Self::Ints {
        let mut acc = acc;
        for (word, a) in codes.iter().zip(activations.chunks_exact(4)) {
            for (acc, codes) in acc.iter_mut().zip(word) {
                *acc += codes.iter().zip(a).map(|(&c, &a)| i32::from(c as i8) * i32::from(a)).sum::<i32>();
            }
        }
        acc
    }
    #[inline(always)]
    unsafe fn floats(a: Self::Ints) -> Self::Floats {
        a.map(|a| a as f32)
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::Floats {
        [value; LANES]
    }
    #[inline(always)]
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        both(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        let ab = both(a, b, |a, b| (a, b));
        both(ab, c, |(a, b), c| a.mul_add(b, c))
    }
    #[inline(always)]
    unsafe fn store(a: Self::Floats, to: &mut [f32; MAX_GROUP]) {
        to[..LANES].copy_from_slice(&a);
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::Floats {
        // SAFETY: the caller's contract.
        unsafe { from.cast::<[f32; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_at(a: Self::Floats, to: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(a) }
    }
    #[inline(always)]
    unsafe fn sums(a: [Self::Floats; 4]) -> [f32; 4] {
        a.map(|[a, b, c, d]| (a + c) + (b + d))
    }
}
