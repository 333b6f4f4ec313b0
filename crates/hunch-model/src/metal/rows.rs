//! Dispatch of kernels that work on rows: rows of a table, norms, gates, and copies.

use std::sync::Arc;

use hunch_error::Result;
use hunch_kernels::activation::Activation;

use super::activations::ActivationOutput;
use super::constants::constants;
use super::gpu::{Argument, Buffer, BufferAt, Gpu, Grid};
use super::kernels::{Kernel, Kernels, LANES};
use super::matrix::Matrix;
use super::multiply::{ProductConstants, ResultScaling};

/// Norm of rows, which an update may join first.
#[derive(Clone, Copy, Debug)]
pub struct NormInput<'a> {
    /// Rows `[.., width]`.
    pub x: &'a Buffer,
    /// Weight of the norm `[width]`, or `None` to leave rows as they are.
    pub weight: Option<&'a Buffer>,
    /// Update of the rows.
    pub update: Option<NormedUpdate<'a>>,
    /// First row.
    pub first: usize,
    /// Rows.
    pub rows: usize,
    /// Values of a row.
    pub width: usize,
    /// Epsilon of the norms.
    pub eps: f32,
}

/// Output of attention or of the feed-forward network. Its norm is added to rows.
#[derive(Clone, Copy, Debug)]
pub struct NormedUpdate<'a> {
    /// Rows, as those of the norm's input.
    pub rows: &'a Buffer,
    /// Weight of the norm.
    pub weight: &'a Buffer,
    /// Factor of the norm.
    pub scale: f32,
    /// Factor of the sum.
    pub factor: f32,
    /// Writes the updated rows back.
    pub store: bool,
}

/// Gates and ups of a gated feed-forward network, which may be in one buffer.
#[derive(Clone, Copy, Debug)]
pub struct GateInput<'a> {
    /// First of the gates.
    pub gates: BufferAt<'a>,
    /// Values from a row of gates to the next.
    pub gate_stride: usize,
    /// First of the ups.
    pub ups: BufferAt<'a>,
    /// Values from a row of ups to the next.
    pub up_stride: usize,
    /// Rows.
    pub rows: usize,
    /// Gates and ups of a row.
    pub width: usize,
    /// Activation of the gates.
    pub activation: Activation,
    /// Factor of the gates and ups of each row.
    pub factors: Option<&'a Buffer>,
}

impl<'a> GateInput<'a> {
    /// Returns the input whose rows, `[rows, 2 * width]`, have gates and then ups.
    pub fn joined(x: &'a Buffer, rows: usize, width: usize, activation: Activation) -> Self {
        let (gates, ups, stride) = (x.at_value(0), x.at_value(width), 2 * width);
        Self { gates, gate_stride: stride, ups, up_stride: stride, rows, width, activation, factors: None }
    }
}

/// Moves of rows, in their order.
#[derive(Debug)]
pub struct RowMoves {
    /// Pairs of from and to.
    pairs: Buffer,
    count: usize,
}

impl RowMoves {
    /// Writes the numbers of the rows to a GPU, as pairs of from and to.
    ///
    /// # Errors
    /// If the GPU has not enough memory or fails.
    pub fn new(gpu: &Arc<dyn Gpu>, moves: &[(usize, usize)]) -> Result<Self> {
        let words: Vec<u32> = moves.iter().flat_map(|&(from, to)| [from as u32, to as u32]).collect();
        Ok(Self { pairs: Buffer::with_words(gpu, &words)?, count: moves.len() })
    }
}

impl Kernels {
    /// Writes the rows of a table that belong to `rows` tokens, times `scale`, `[rows, k]`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn take_rows(
        &self,
        table: &Matrix,
        tokens: BufferAt<'_>,
        rows: usize,
        scale: f32,
        out: &Buffer,
    ) -> Result<()> {
        let constants = ProductConstants::of(table, rows, ResultScaling { scale, cap: None }).words();
        let (constants, tokens) = (Argument::Constants(&constants), tokens.input());
        match table {
            Matrix::Packed { format, k, .. } => {
                let [low, high, scales, supers] = table.streams();
                let arguments = [constants, low, high, scales, supers, tokens, out.output()];
                let grid = Grid::new([(k / 32).div_ceil(8), rows, 1], 8 * LANES);
                self.run(Kernel::TakeRows(format.kernel()), &arguments, grid)
            }
            Matrix::Float { format, buffer, k, .. } => {
                let arguments = [constants, buffer.input(), tokens, out.output()];
                let grid = Grid::new([(k / 4).div_ceil(LANES as usize), rows, 1], LANES);
                self.run(Kernel::TakeFloatRows(*format), &arguments, grid)
            }
        }
    }

    /// Adds the norm of an update to rows, if there is one, and computes their RMS norm as the activations of a product.
    ///
    /// # Errors
    /// If the device fails.
    pub fn norm(&self, input: NormInput<'_>, out: ActivationOutput<'_>) -> Result<()> {
        let NormInput { x, weight, update, first, rows, width, eps } = input;
        let stores = update.is_some_and(|update| update.store);
        let flags = u32::from(weight.is_some()) | u32::from(update.is_some()) << 1 | u32::from(stores) << 2;
        let constants = NormConstants {
            width: width as u32,
            outputs: out.forms.bits(),
            eps,
            first: first as u32,
            flags,
            scale: update.map_or(0.0, |update| update.scale),
            factor: update.map_or(1.0, |update| update.factor),
        };
        let constants = constants.words();
        let mut arguments = vec![
            Argument::Constants(&constants),
            if stores { x.output() } else { x.input() },
            weight.unwrap_or(x).input(),
            update.map_or(x, |update| update.rows).input(),
            update.map_or(x, |update| update.weight).input(),
        ];
        arguments.extend(out.arguments());
        self.run(Kernel::Norm, &arguments, Grid::new([rows, 1, 1], 8 * LANES).with_scratch(64))
    }

    /// Computes activation(gate) * up, as the activations of a product.
    ///
    /// # Errors
    /// If the device fails.
    pub fn gate(&self, input: GateInput<'_>, out: ActivationOutput<'_>) -> Result<()> {
        let GateInput { gates, gate_stride, ups, up_stride, rows, width, activation, factors } = input;
        let constants = GateConstants {
            width: width as u32,
            outputs: out.forms.bits(),
            kind: activation_number(activation),
            stride: gate_stride as u32,
            up_stride: up_stride as u32,
            scaled: u32::from(factors.is_some()),
        };
        let constants = constants.words();
        let mut arguments = vec![Argument::Constants(&constants), gates.input(), ups.input()];
        arguments.extend(out.arguments());
        arguments.push(factors.map_or(gates.input(), Buffer::input));
        self.run(Kernel::Gate, &arguments, Grid::new([(width / 32).div_ceil(8), rows, 1], 8 * LANES))
    }

    /// Moves rows of `halves` halves, which are numbered from `first` on.
    ///
    /// # Errors
    /// If the device fails.
    pub fn move_rows(&self, first: BufferAt<'_>, moves: &RowMoves, halves: usize) -> Result<()> {
        let chunks = halves / 4;
        let constants = CopyConstants { chunks: chunks as u32, count: moves.count as u32 }.words();
        let arguments = [Argument::Constants(&constants), moves.pairs.input(), first.output()];
        let grid = Grid::new([chunks.div_ceil(LANES as usize), 1, 1], LANES);
        self.run(Kernel::CopyRows, &arguments, grid)
    }

    /// Copies `bytes` bytes, a multiple of 8, between buffers.
    ///
    /// # Errors
    /// If the device fails.
    pub fn copy(&self, from: BufferAt<'_>, to: BufferAt<'_>, bytes: usize) -> Result<()> {
        let constants = CopyConstants { chunks: 0, count: (bytes / 8) as u32 }.words();
        let arguments = [Argument::Constants(&constants), from.input(), to.output()];
        let grid = Grid::new([(bytes / 8).div_ceil(8 * LANES as usize), 1, 1], 8 * LANES);
        self.run(Kernel::Copy, &arguments, grid)
    }
}

/// Returns the number of an activation in `rows.metal`.
fn activation_number(activation: Activation) -> u32 {
    match activation {
        Activation::Silu => 0,
        Activation::Gelu => 1,
        Activation::Clamped => 2,
    }
}

constants! {
    /// RMS norm, after an update.
    NormConstants {
        width: u32, outputs: u32, eps: f32, first: u32, flags: u32, scale: f32, factor: f32,
    }
}

constants! {
    /// activation(gate) * up.
    GateConstants {
        width: u32, outputs: u32, kind: u32, stride: u32, up_stride: u32, scaled: u32,
    }
}

constants! {
    /// Copies of rows and of memory.
    CopyConstants { chunks: u32, count: u32 }
}
