//! Dispatch of the kernel for heads of attention: their norms, their rotation, and the append to the cache.

use hunch_error::Result;

use super::constants::constants;
use super::gpu::{Argument, Buffer, Grid};
use super::kernels::{Kernel, Kernels, LANES};

/// Heads of the rows of a pass: their norms, their rotation, and where keys and values go.
#[derive(Clone, Copy, Debug)]
pub struct HeadsInput<'a> {
    /// Rows of queries, keys and values. Queries are changed in place.
    pub x: &'a Buffer,
    /// Rows.
    pub rows: usize,
    /// Heads of queries.
    pub queries: usize,
    /// Heads of keys.
    pub keys: usize,
    /// Width of a head.
    pub width: usize,
    /// Norm of query heads.
    pub query_norm: Option<&'a Buffer>,
    /// Norm of key heads.
    pub key_norm: Option<&'a Buffer>,
    /// Cosines and sines `[rows, rotated / 2]`, or `None` for no rotation.
    pub angles: Option<(&'a Buffer, &'a Buffer)>,
    /// Pairs neighbours instead of halves.
    pub neighbours: bool,
    /// Cache of the layer: keys, then values, `[capacity, keys * width]` each.
    pub cache: &'a Buffer,
    /// Capacity of the cache in rows.
    pub capacity: usize,
    /// Slot of the first row.
    pub slot: usize,
    /// Epsilon of the norms.
    pub eps: f32,
    /// Steps that few models have.
    pub special: SpecialHeads<'a>,
}

/// Steps on heads that few models have.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpecialHeads<'a> {
    /// Rotated elements of a head, from the first on. `None` for all.
    pub rotated: Option<usize>,
    /// One norm over all heads of queries of a row and one over those of keys. Holds the queries, in rows like those
    /// of the input.
    pub joint: Option<&'a Buffer>,
    /// Factor of the queries of each row.
    pub factors: Option<&'a Buffer>,
    /// Values of a row of the input after its heads, which stay as they are.
    pub rest: usize,
    /// Norms the heads of values, without weights.
    pub norms_values: bool,
    /// The keys before their norm and rotation are the values too. The input has no others.
    pub values_are_keys: bool,
}

impl Kernels {
    /// Applies head norms and rotation, and appends keys and values to the cache.
    ///
    /// # Errors
    /// If the device fails.
    pub fn heads(&self, input: HeadsInput<'_>) -> Result<()> {
        let HeadsInput { x, queries, keys, width, cache, special, .. } = input;
        let flags = u32::from(input.angles.is_some())
            | u32::from(input.neighbours) << 1
            | u32::from(input.query_norm.is_some()) << 2
            | u32::from(input.key_norm.is_some()) << 3
            | u32::from(special.joint.is_some()) << 4
            | u32::from(special.factors.is_some()) << 5
            | u32::from(special.norms_values) << 6
            | u32::from(special.values_are_keys) << 7;
        let values = if special.values_are_keys { 0 } else { keys };
        let constants = HeadsConstants {
            queries: queries as u32,
            keys: keys as u32,
            width: width as u32,
            stride: ((queries + keys + values) * width + special.rest) as u32,
            slot: input.slot as u32,
            values: (input.capacity * keys * width) as u32,
            flags,
            eps: input.eps,
            rotated: special.rotated.unwrap_or(width) as u32,
        };
        let constants = constants.words();
        let (cosines, sines) = input.angles.unwrap_or((x, x));
        let arguments = [
            Argument::Constants(&constants),
            x.output(),
            special.joint.unwrap_or(x).output(),
            input.query_norm.unwrap_or(x).input(),
            input.key_norm.unwrap_or(x).input(),
            cosines.input(),
            sines.input(),
            special.factors.unwrap_or(x).input(),
            cache.output(),
        ];
        self.run(Kernel::Heads, &arguments, Grid::new([queries + 2 * keys, input.rows, 1], LANES))
    }
}

constants! {
    /// Head norms, rotation and cache append.
    HeadsConstants {
        queries: u32, keys: u32, width: u32, stride: u32, slot: u32, values: u32, flags: u32, eps: f32, rotated: u32,
    }
}
