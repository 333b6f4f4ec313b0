//! Limits shared across the crate.

/// Maximum rows of a target pass. Row invariance is tested up to this number.
pub const MAX_ROWS: usize = 16;
/// Maximum depth of a draft: [`MAX_ROWS`] less the row of the root.
pub const MAX_DRAFT: usize = MAX_ROWS - 1;
