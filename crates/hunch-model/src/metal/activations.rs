//! Activations: the input of products, and the forms in which kernels write it.

use std::ops::BitOr;
use std::sync::Arc;

use hunch_error::Result;

use super::gpu::{Argument, Buffer, Gpu};
use super::products::TileRows;

/// Rows are allocated in multiples of this number.
pub(super) const ROW_STEP: usize = 16;

/// Forms of activations that a kernel writes, as the bits of `rows.metal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forms(u32);

impl Forms {
    /// None.
    pub const NONE: Self = Self(0);
    /// 8-bit codes, for products of one row.
    pub const CODES: Self = Self(1);
    /// 8-bit codes as halves, for products of tiles.
    pub const HALVES: Self = Self(2);
    /// Floats, for products of float weights.
    pub const FLOATS: Self = Self(4);
    /// All of them.
    pub const ALL: Self = Self(7);

    /// Returns what products of `rows` rows read: of quantised weights, of float weights, or of both.
    pub fn read_by(quantised: bool, floats: bool, rows: usize) -> Self {
        let codes = if rows == 1 { Self::CODES } else { Self::HALVES };
        let of = |wanted, form| if wanted { form } else { Self::NONE };
        of(quantised, codes) | of(floats, Self::FLOATS)
    }

    /// Returns the bits that kernels read.
    pub(super) fn bits(self) -> u32 {
        self.0
    }
}

impl BitOr for Forms {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Input of the next product, `[rows, width]`.
#[derive(Debug)]
pub struct Activations {
    /// 8-bit codes.
    pub codes: Buffer,
    /// The codes as halves.
    pub halves: Buffer,
    /// Scales of units of 32.
    pub scales: Buffer,
    /// Sums of the codes of each half of a unit.
    pub sums: Buffer,
    /// Unquantised values.
    pub floats: Buffer,
}

impl Activations {
    /// Allocates activations for `rows` rows of at most `width` values.
    ///
    /// # Errors
    /// If the GPU has not enough memory.
    pub fn new(gpu: &Arc<dyn Gpu>, rows: usize, width: usize) -> Result<Self> {
        // The matrix unit reads tiles of rows as a whole.
        let rows = rows.next_multiple_of(TileRows::of(rows).rows().max(ROW_STEP));
        let buffer = |bytes: usize| Buffer::new(gpu, rows * bytes);
        Ok(Self {
            codes: buffer(width)?,
            halves: buffer(2 * width)?,
            scales: buffer(width / 8)?,
            sums: buffer(width / 8)?,
            floats: buffer(4 * width)?,
        })
    }

    /// Returns the output of a kernel that writes these forms.
    pub fn written_as(&self, forms: Forms) -> ActivationOutput<'_> {
        ActivationOutput { activations: self, forms }
    }
}

/// Activations that a kernel writes.
#[derive(Clone, Copy, Debug)]
pub struct ActivationOutput<'a> {
    activations: &'a Activations,
    /// Forms that it writes.
    pub(super) forms: Forms,
}

impl ActivationOutput<'_> {
    /// Returns the arguments of the kernel.
    pub(super) fn arguments(self) -> [Argument<'static>; 5] {
        let Activations { codes, halves, scales, sums, floats } = self.activations;
        [codes, halves, scales, sums, floats].map(Buffer::output)
    }
}
