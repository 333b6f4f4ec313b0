//! Limits that several parts of the round loop share.

/// Most rows of a target pass. Row-invariance is tested up to here.
pub const MAX_ROWS: usize = 16;
/// Most tokens that a round drafts along one path: the root takes a row too.
pub const MAX_DRAFT: usize = MAX_ROWS - 1;
