//! Which rows of state a layer without attention holds, as far as its memory depends on it. The rows themselves belong to
//! the cache.

/// Last rows that are held when a pass of any size begins.
pub(crate) const HELD_ROWS: usize = 128;
/// Most rows of a pass that are held after it, apart from those of every [`RESTORE_STEP`]. Trees have no more.
pub(crate) const HELD_ROWS_OF_PASS: usize = 64;
/// Places for the last rows. Slot s has place s mod `RING_PLACES`.
pub(crate) const RING_PLACES: usize = HELD_ROWS + HELD_ROWS_OF_PASS;
/// Distance of the positions that stay restorable, in tokens.
pub const RESTORE_STEP: usize = 64;

/// Returns the number of places of a layer for `capacity` slots.
pub(crate) fn places(reach: usize, capacity: usize) -> usize {
    RING_PLACES + reach + reach * capacity.div_ceil(RESTORE_STEP)
}

/// Last inputs of a gated delta net that are held. Input s has place s mod `DELTA_INPUTS`.
pub(crate) const DELTA_INPUTS: usize = 192;
/// Whole states of a gated delta net that are held.
pub(crate) const DELTA_CHECKPOINTS: usize = 8;
