//! Random mutations of files: bits, bytes, truncation, wrong lengths and moved parts.

use std::hash::{BuildHasher, Hasher, RandomState};

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use hunch_testing::gguf_writer::Field;

/// Mutation of a file.
#[derive(Clone, Debug)]
pub(crate) enum Mutation {
    /// Flips one bit.
    Flip(Index, u8),
    /// Writes one byte.
    Byte(Index, u8),
    /// Writes one byte of content, outside of lengths, counts, types and offsets.
    Content(Index, u8),
    /// Truncates the file.
    Truncate(Index),
    /// Writes a length, count, type or offset.
    Field(Index, u64),
    /// Adds to a length, count, type or offset.
    Nudge(Index, i8),
    /// Copies a part over another place.
    Splice(Index, Index, usize),
    /// Inserts bytes.
    Insert(Index, Vec<u8>),
    /// Removes bytes.
    Remove(Index, usize),
}

/// Numbers that tend to break readers.
pub(crate) const BOMBS: [u64; 14] = [
    0,
    1,
    64,
    1 << 12,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 40,
    (1 << 61) - 1,
    1 << 62,
    i64::MAX as u64,
    u64::MAX - 7,
    u64::MAX,
];

/// Generates one to three mutations.
pub(crate) fn mutations() -> impl Strategy<Value = Vec<Mutation>> {
    let at = any::<Index>;
    let number = prop_oneof![prop::sample::select(BOMBS.to_vec()), any::<u64>(), 0u64..64];
    let one = prop_oneof![
        1 => (at(), 0u8..8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        1 => (at(), any::<u8>()).prop_map(|(at, byte)| Mutation::Byte(at, byte)),
        2 => (at(), any::<u8>()).prop_map(|(at, byte)| Mutation::Content(at, byte)),
        1 => at().prop_map(Mutation::Truncate),
        1 => (at(), number).prop_map(|(at, number)| Mutation::Field(at, number)),
        1 => (at(), -9i8..=9).prop_map(|(at, by)| Mutation::Nudge(at, by)),
        1 => (at(), at(), 1usize..64).prop_map(|(from, to, len)| Mutation::Splice(from, to, len)),
        1 => (at(), prop::collection::vec(any::<u8>(), 1..16)).prop_map(|(at, b)| Mutation::Insert(at, b)),
        1 => (at(), 1usize..32).prop_map(|(at, len)| Mutation::Remove(at, len)),
    ];
    prop::collection::vec(one, 1..4)
}

/// Generates one to five content mutations, which keep the structure of the header.
pub(crate) fn content_mutations() -> impl Strategy<Value = Vec<Mutation>> {
    let one = (any::<Index>(), 0u8..0x80).prop_map(|(at, byte)| Mutation::Content(at, byte));
    prop::collection::vec(one, 1..6)
}

/// Applies a mutation. Random positions are in the first `header` bytes.
pub(crate) fn apply(bytes: &mut Vec<u8>, fields: &[Field], header: usize, mutation: &Mutation) {
    if bytes.is_empty() {
        return;
    }
    let place = |index: &Index| index.index(bytes.len().min(header.max(1)));
    match mutation {
        Mutation::Flip(at, bit) => {
            let at = place(at);
            bytes[at] ^= 1 << bit;
        }
        Mutation::Byte(at, byte) => {
            let at = place(at);
            bytes[at] = *byte;
        }
        Mutation::Content(at, byte) => {
            let from = place(at);
            let structural = |at: usize| fields.iter().any(|f| (f.at..f.at + f.width).contains(&at));
            if let Some(at) = (from..bytes.len()).find(|&at| at >= 4 && !structural(at)) {
                bytes[at] = *byte;
            }
        }
        Mutation::Truncate(at) => bytes.truncate(at.index(bytes.len())),
        Mutation::Field(at, number) => set(bytes, fields[at.index(fields.len())], *number),
        Mutation::Nudge(at, by) => {
            let field = fields[at.index(fields.len())];
            let number = get(bytes, field).wrapping_add_signed(i64::from(*by));
            set(bytes, field, number);
        }
        Mutation::Splice(from, to, len) => {
            let (from, to) = (place(from), place(to));
            let len = (*len).min(bytes.len() - from).min(bytes.len() - to);
            bytes.copy_within(from..from + len, to);
        }
        Mutation::Insert(at, inserted) => {
            let at = place(at);
            bytes.splice(at..at, inserted.iter().copied());
        }
        Mutation::Remove(at, len) => {
            let at = place(at);
            let end = (at + len).min(bytes.len());
            bytes.drain(at..end);
        }
    }
}

fn get(bytes: &[u8], field: Field) -> u64 {
    let mut number = [0; 8];
    if let Some(read) = bytes.get(field.at..field.at + field.width) {
        number[..field.width].copy_from_slice(read);
    }
    u64::from_le_bytes(number)
}

/// Writes a header number if the file is still long enough.
pub(crate) fn set(bytes: &mut [u8], field: Field, number: u64) {
    if let Some(place) = bytes.get_mut(field.at..field.at + field.width) {
        place.copy_from_slice(&number.to_le_bytes()[..field.width]);
    }
}

/// Environment variable with the seed of [`runner`], as printed by tests.
const SEED: &str = "HUNCH_TEST_SEED";

/// Creates a runner for `cases` cases with a fresh seed, which is printed to reproduce failures.
pub(crate) fn runner(cases: u32) -> TestRunner {
    let seed: u64 = match std::env::var(SEED) {
        Ok(text) => text.parse().expect("HUNCH_TEST_SEED must be a number"),
        // The standard library seeds its hash maps from the system's randomness.
        Err(_) => RandomState::new().build_hasher().finish(),
    };
    println!("To repeat these cases: {SEED}={seed}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}
