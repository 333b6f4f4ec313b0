//! Limits shared across the crate.

/// Maximum rows of a target pass. Row invariance is tested up to this number.
pub const MAX_ROWS: usize = 16;
/// Maximum depth of a draft: [`MAX_ROWS`] less the row of the root.
pub const MAX_DRAFT: usize = MAX_ROWS - 1;
/// Largest seed of sampling: 2^53 - 1, the largest integer that JSON keeps exactly everywhere.
pub const MAX_SEED: u64 = (1 << 53) - 1;
