//! Which rows of state a layer without attention holds, as far as its memory depends on it. The rows themselves belong to
//! the cache.

/// Last rows that are held when a pass of any size begins.
pub(crate) const HELD: usize = 128;
/// Most rows of a pass that are held after it, apart from those of every [`STEP`]. Trees have no more.
pub(crate) const OF_PASS: usize = 64;
/// Places for the last rows. Slot s has place s mod `RING`.
pub(crate) const RING: usize = HELD + OF_PASS;
/// Distance of the positions that stay restorable, in tokens.
pub const STEP: usize = 64;

/// Returns the number of places of a layer for `capacity` slots.
pub(crate) fn places(reach: usize, capacity: usize) -> usize {
    RING + reach + reach * capacity.div_ceil(STEP)
}

/// Last inputs of a gated delta net that are held. Input s has place s mod `INPUTS`.
pub(crate) const INPUTS: usize = 192;
/// Whole states of a gated delta net that are held.
pub(crate) const CHECKPOINTS: usize = 8;
