//! Instruction sets: the vector operations that kernels are generic over, and the choice at run time.
//! No kernels here.
//!
//! A vector has one lane for each weight row of a *group*. Dot products therefore need no sum across
//! lanes, and scales are vectors. Products are added in order of the weights, for any number of
//! activation rows.
//!
//! [`Scalar`] is the readable reference implementation.

use std::sync::OnceLock;

#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
#[cfg(target_arch = "x86_64")]
pub(super) mod x86;

/// Maximum number of weight rows in a group for any instruction set.
pub(super) const MAX_GROUP: usize = 16;

/// Vector operations of one instruction set.
///
/// # Safety
/// Methods may only be called on a CPU that supports the instruction set, from a function that enables
/// its target features. They are inlined into that function. Pointers must be valid for the memory
/// that the method reads or writes.
pub(super) trait Isa {
    /// Weight rows per group, at most [`MAX_GROUP`].
    const ROWS: usize;
    /// `true` if two activation rows are multiplied at once. See [`Isa::dot_pair`].
    const PAIRS: bool = false;
    /// `true` if [`Isa::byte_codes`] adds 128 to each code.
    const BIASED_BYTES: bool;
    /// Four bytes for each row.
    type Bytes: Copy;
    /// One i32 for each row.
    type Ints: Copy;
    /// One f32 for each row.
    type Floats: Copy;

    /// Loads four bytes for each row, stored row after row.
    unsafe fn words(at: *const u8) -> Self::Bytes;
    /// Loads one half-precision number for each row, stored row after row.
    unsafe fn halves(at: *const u8) -> Self::Floats;
    /// Loads the upper 16 bits of one float for each row, stored row after row. The lower bits become 0.
    unsafe fn upper_halves(at: *const u8) -> Self::Floats;
    /// Prefetches the cache line at `address`, which may be invalid.
    unsafe fn prefetch(address: *const u8);

    /// Bitwise AND of each byte with `mask`.
    unsafe fn and(a: Self::Bytes, mask: u8) -> Self::Bytes;
    /// Bitwise OR.
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Shifts each byte right. The upper bits of the result are undefined, so mask them.
    unsafe fn shr(a: Self::Bytes, by: u32) -> Self::Bytes;
    /// Shifts each byte left. The lower bits may come from the neighbouring byte, so mask before.
    unsafe fn shl(a: Self::Bytes, by: u32) -> Self::Bytes;
    /// Returns 16 in byte b of a row if bit `4 * nibble + b` of its word is set, 0 otherwise.
    unsafe fn fifth_bits(word: Self::Bytes, nibble: usize) -> Self::Bytes;
    /// Converts signed bytes to codes. Adds 128 if [`Isa::BIASED_BYTES`].
    unsafe fn byte_codes(a: Self::Bytes) -> Self::Bytes;

    /// Replaces each byte, which must be below 16, by the entry of a table.
    unsafe fn lookup(a: Self::Bytes, table: &[u8; 16]) -> Self::Bytes;

    /// Converts the low half of each word from half precision.
    unsafe fn low_half(word: Self::Bytes) -> Self::Floats;
    /// Converts the high half of each word from half precision.
    unsafe fn high_half(word: Self::Bytes) -> Self::Floats;
    /// Converts byte `i` of each word from unsigned.
    unsafe fn unsigned_byte(word: Self::Bytes, i: u32) -> Self::Floats;
    /// Converts byte `i` of each word from signed.
    unsafe fn signed_byte(word: Self::Bytes, i: u32) -> Self::Floats;

    /// Returns `value << shift` in every lane.
    unsafe fn splat_shifted(value: i32, shift: u32) -> Self::Ints;
    /// Adds the dot product of 16 codes of each row with 16 activations. Codes must be below 128.
    unsafe fn dot(acc: Self::Ints, codes: &[Self::Bytes], activations: &[i8; 16]) -> Self::Ints;
    /// Adds the dot product for codes of [`Isa::byte_codes`].
    unsafe fn dot_bytes(acc: Self::Ints, codes: &[Self::Bytes], activations: &[i8; 16]) -> Self::Ints;
    /// Computes either kind of dot product for two activation rows, with the same sums as one by one.
    #[inline(always)]
    unsafe fn dot_pair(
        acc: [Self::Ints; 2],
        codes: &[Self::Bytes],
        activations: [&[i8; 16]; 2],
    ) -> [Self::Ints; 2] {
        // SAFETY: guaranteed by the caller.
        unsafe { [Self::dot(acc[0], codes, activations[0]), Self::dot(acc[1], codes, activations[1])] }
    }
    /// Converts to f32.
    unsafe fn floats(a: Self::Ints) -> Self::Floats;

    /// Returns `value` in every lane.
    unsafe fn splat(value: f32) -> Self::Floats;
    /// Returns a * b.
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Returns a * b + c, rounded once.
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Stores lane r in `to[r]`.
    unsafe fn store(a: Self::Floats, to: &mut [f32; MAX_GROUP]);

    /// Loads [`Isa::ROWS`] floats from `from`.
    unsafe fn load(from: *const f32) -> Self::Floats;
    /// Stores [`Isa::ROWS`] floats at `to`.
    unsafe fn store_at(a: Self::Floats, to: *mut f32);
    /// Returns the sum over the lanes of each of four vectors, added in the same order.
    unsafe fn sums(a: [Self::Floats; 4]) -> [f32; 4];
}

/// Level of this process, fixed at its first use.
static CURRENT: OnceLock<Level> = OnceLock::new();

/// Returns the names of the levels available on this CPU, slowest first.
fn level_names() -> Vec<&'static str> {
    Level::ALL.iter().filter(|level| level.available()).map(|level| level.name()).collect()
}

/// Returns the name of the level that the kernels of this process use, such as `neon-i8mm`.
pub fn level_in_use() -> &'static str {
    Level::current().name()
}

/// Restricts all kernels of the process to a level by name, to measure slower CPUs on this one.
///
/// Call it before any kernel runs.
///
/// # Errors
/// If this CPU has no level of that name, or another level is already in use.
pub fn use_level(name: &str) -> Result<(), String> {
    let level = Level::ALL.iter().copied().find(|level| level.name() == name && level.available());
    let level = level.ok_or_else(|| format!("choose one of {}", level_names().join(", ")))?;
    if *CURRENT.get_or_init(|| level) == level {
        Ok(())
    } else {
        Err(format!("{} is already in use", Level::current().name()))
    }
}

/// Set of CPU features that kernels are compiled for.
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
    /// All levels of this architecture, fastest last.
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

    /// Returns the level in use: the fastest available one unless [`use_level`] chose another.
    ///
    /// The level is fixed by the first call.
    pub(super) fn current() -> Self {
        *CURRENT.get_or_init(|| {
            Self::ALL.iter().rev().copied().find(|level| level.available()).unwrap_or(Self::Scalar)
        })
    }

    /// Returns the name of the level on the command line.
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

    /// Returns `true` if this CPU supports the level.
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

    /// Returns the number of weight rows per group.
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

/// Portable reference implementation that the others are tested against.
pub(super) struct Scalar;

const LANES: usize = 4;

#[inline(always)]
fn zip_with<A: Copy, B: Copy, C: Default + Copy>(
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
        // SAFETY: guaranteed by the caller.
        unsafe { at.cast::<Self::Bytes>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn halves(at: *const u8) -> Self::Floats {
        // SAFETY: guaranteed by the caller.
        let halves = unsafe { at.cast::<[[u8; 2]; LANES]>().read_unaligned() };
        halves.map(|half| half::f16::from_le_bytes(half).to_f32())
    }
    #[inline(always)]
    unsafe fn upper_halves(at: *const u8) -> Self::Floats {
        // SAFETY: guaranteed by the caller.
        let halves = unsafe { at.cast::<[[u8; 2]; LANES]>().read_unaligned() };
        halves.map(|half| f32::from_bits(u32::from(u16::from_le_bytes(half)) << 16))
    }
    #[inline(always)]
    unsafe fn prefetch(_address: *const u8) {}
    #[inline(always)]
    unsafe fn and(a: Self::Bytes, mask: u8) -> Self::Bytes {
        a.map(|a| a.map(|a| a & mask))
    }
    #[inline(always)]
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        zip_with(a, b, |a, b| [a[0] | b[0], a[1] | b[1], a[2] | b[2], a[3] | b[3]])
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
    unsafe fn lookup(a: Self::Bytes, table: &[u8; 16]) -> Self::Bytes {
        a.map(|a| a.map(|a| table[usize::from(a)]))
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
        zip_with(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        let ab = zip_with(a, b, |a, b| (a, b));
        zip_with(ab, c, |(a, b), c| a.mul_add(b, c))
    }
    #[inline(always)]
    unsafe fn store(a: Self::Floats, to: &mut [f32; MAX_GROUP]) {
        to[..LANES].copy_from_slice(&a);
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::Floats {
        // SAFETY: guaranteed by the caller.
        unsafe { from.cast::<[f32; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_at(a: Self::Floats, to: *mut f32) {
        // SAFETY: guaranteed by the caller.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(a) }
    }
    #[inline(always)]
    unsafe fn sums(a: [Self::Floats; 4]) -> [f32; 4] {
        a.map(|[a, b, c, d]| (a + c) + (b + d))
    }
}
