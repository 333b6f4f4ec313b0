//! Short gated convolutions on a GPU, and the layout of their plan. The order of steps in a layer belongs to the
//! executor.

use hunch_error::Result;

use super::activations::ActivationOutput;
use super::constants::constants;
use super::gpu::{Argument, Buffer, Grid};
use super::kernels::{Kernel, Kernels};

/// Threads of a threadgroup: 8 simdgroups, each with 32 channels.
const THREADS: u32 = 256;

/// Rows of a pass, and the rows before them that they read.
#[derive(Clone, Copy, Debug)]
pub struct GpuConvolution<'a> {
    /// Projections B, C and x of each row, `[rows, 3 * width]`.
    pub x: &'a Buffer,
    /// Weights, `[width, reach + 1]`, the earliest position first.
    pub weights: &'a Buffer,
    /// For each row the `reach` rows that it reads, the earliest first, and two places where its own goes,
    /// `[rows, reach + 2]`. A number below `rows` is a row of this pass, a greater one a place plus `rows`, and the
    /// greatest none. The places that are read must differ from those that are written.
    pub plan: &'a Buffer,
    /// Rows B * x at their places, `[places, width]`.
    pub state: &'a Buffer,
    /// Rows.
    pub rows: usize,
    /// Channels.
    pub width: usize,
    /// Earlier rows that a row reads.
    pub reach: usize,
}

impl Kernels {
    /// Computes C * conv(B * x) of each row, as the activations of a product, and writes B * x to the state.
    ///
    /// # Errors
    /// If the device fails.
    pub fn convolve(&self, input: GpuConvolution<'_>, out: ActivationOutput<'_>) -> Result<()> {
        let GpuConvolution { x, weights, plan, state, rows, width, reach } = input;
        let constants = ConvolutionConstants {
            width: width as u32,
            outputs: out.forms.bits(),
            rows: rows as u32,
            reach: reach as u32,
        };
        let constants = constants.words();
        let mut arguments =
            vec![Argument::Constants(&constants), x.input(), weights.input(), plan.input(), state.output()];
        arguments.extend(out.arguments());
        let grid = Grid::new([(width / 32).div_ceil(THREADS as usize / 32), rows, 1], THREADS);
        self.run(Kernel::Convolve, &arguments, grid)
    }
}

constants! {
    /// Short convolution.
    ConvolutionConstants { width: u32, outputs: u32, rows: u32, reach: u32 }
}
