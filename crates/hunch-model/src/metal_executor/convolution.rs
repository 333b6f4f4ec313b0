//! Layers with a short convolution on a GPU. Their projections are products like those of attention.

use crate::cache::states::{StatePlan, state_pairs};
use crate::metal::convolution::GpuConvolution;
use crate::metal::gpu::Buffer;
use crate::metal::kernels::Kernels;
use crate::metal::workspace::Activations;
use hunch_error::Result;

/// [`StatePlan`] on the GPU.
pub(super) struct GpuPlan {
    words: Buffer,
    rows: usize,
    reach: usize,
    /// Pairs of places, and their number.
    moves: Option<(Buffer, usize)>,
}

impl GpuPlan {
    pub(super) fn new(kernels: &Kernels, plan: &StatePlan) -> Result<Self> {
        let moves = match plan.moves.len() {
            0 => None,
            count => Some((state_pairs(kernels, &plan.moves)?, count)),
        };
        let words = Buffer::with_words(kernels.gpu(), &plan.words)?;
        Ok(Self { words, rows: plan.rows, reach: plan.reach, moves })
    }

    /// Convolves the projections `x` of a layer, as the activations of the output product.
    pub(super) fn convolve(
        &self,
        kernels: &Kernels,
        (x, weights, state): (&Buffer, &Buffer, &Buffer),
        width: usize,
        (out, forms): (&Activations, u32),
    ) -> Result<()> {
        if let Some((pairs, count)) = &self.moves {
            // Twice as many halves as floats.
            kernels.copy_rows(state, 0, pairs, (*count, 2 * width))?;
        }
        let (rows, reach) = (self.rows, self.reach);
        let input = GpuConvolution { x, weights, plan: &self.words, state, rows, width, reach };
        kernels.convolve(input, out, forms)
    }
}
