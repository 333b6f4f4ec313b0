//! The accumulator tile that all matrix kernels fill.

use crate::isa::MAX_GROUP;

/// Activation rows that share one unpacking of the weights.
pub(crate) const TILE: usize = 32;

/// Outputs of up to [`TILE`] activation rows for one group of weight rows.
pub(crate) type Tile = [[f32; MAX_GROUP]; TILE];
