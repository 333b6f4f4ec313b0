//! Output tile filled by all matrix kernels. Types only.

use crate::isa::MAX_GROUP;

/// Maximum number of activation rows that share one unpacking of the weights.
pub(crate) const TILE: usize = 32;

/// Outputs of up to [`TILE`] activation rows for one group of weight rows, `[TILE, MAX_GROUP]`.
pub(crate) type Tile = [[f32; MAX_GROUP]; TILE];
