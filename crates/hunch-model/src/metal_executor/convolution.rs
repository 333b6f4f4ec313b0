//! Layers with a short convolution on a GPU. Their projections are products like those of attention.

use crate::cache::convolution_states::ConvolutionPlan;
use crate::metal::activations::ActivationOutput;
use crate::metal::convolution::GpuConvolution;
use crate::metal::gpu::Buffer;
use crate::metal::kernels::Kernels;
use crate::metal::rows::RowMoves;
use hunch_error::Result;

/// [`ConvolutionPlan`] on the GPU.
pub(super) struct GpuConvolutionPlan {
    words: Buffer,
    rows: usize,
    reach: usize,
    moves: Option<RowMoves>,
}

/// Convolution of a layer.
pub(super) struct LayerConvolution<'a> {
    /// Projections.
    pub(super) x: &'a Buffer,
    /// Weights.
    pub(super) kernel: &'a Buffer,
    /// Rows of state.
    pub(super) state: &'a Buffer,
    /// Channels.
    pub(super) width: usize,
}

impl GpuConvolutionPlan {
    pub(super) fn new(kernels: &Kernels, plan: &ConvolutionPlan) -> Result<Self> {
        let moves = match &plan.moves[..] {
            [] => None,
            moves => Some(RowMoves::new(kernels.gpu(), moves)?),
        };
        let words = Buffer::with_words(kernels.gpu(), &plan.words)?;
        Ok(Self { words, rows: plan.rows, reach: plan.reach, moves })
    }

    /// Convolves the projections of a layer, as the activations of the output product.
    pub(super) fn convolve(
        &self,
        kernels: &Kernels,
        layer: LayerConvolution<'_>,
        out: ActivationOutput<'_>,
    ) -> Result<()> {
        let LayerConvolution { x, kernel, state, width } = layer;
        if let Some(moves) = &self.moves {
            // Twice as many halves as floats.
            kernels.move_rows(state.at_byte(0), moves, 2 * width)?;
        }
        let (rows, reach) = (self.rows, self.reach);
        let input = GpuConvolution { x, weights: kernel, plan: &self.words, state, rows, width, reach };
        kernels.convolve(input, out)
    }
}
