//! Mixtures of experts on a GPU: the choice of experts, products of the chosen ones, and the sum of their outputs.
//!
//! The GPU lists the rows of each chosen expert itself, so no step waits for the CPU, and no other expert is read. The
//! order of steps in a layer belongs to the executor.

use std::sync::Arc;

use hunch_error::{Error, Result};
use hunch_kernels::WeightType;

use super::activations::Activations;
use super::constants::constants;
use super::gpu::{Argument, Buffer, BufferAt, Gpu, Grid};
use super::kernels::{Kernel, Kernels};
use super::matrix::Matrix;
use super::multiply::{ProductConstants, ResultScaling, ResultUse};
use super::products::{MAX_PARTS, PartKernels, TileRows, WeightKernel, parts};
use crate::spec::{Experts, Weighting};

/// Most experts of a layer: threads of the kernel that lists them.
pub const MAX_EXPERTS: usize = 256;
/// Most experts of a row: lanes of the simdgroup that chooses them.
pub const MAX_USED: usize = 32;
/// Most groups of experts: lanes of the simdgroup that chooses them.
pub const MAX_GROUPS: usize = 32;
/// Rows of an expert that share each load of a weight.
const MAX_BLOCK: usize = 4;
/// Words of the list of blocks before its first block, and of each block.
const BLOCK_WORDS: usize = 4;

/// Number and size of the matrices of experts.
#[derive(Clone, Copy, Debug)]
pub struct ExpertShape {
    /// Number of experts.
    pub experts: usize,
    /// Rows of an expert.
    pub n: usize,
    /// Columns.
    pub k: usize,
}

/// Matrices `[n, k]` of the experts of a layer, one after the other.
#[derive(Debug)]
pub struct ExpertMatrix {
    matrix: Matrix,
    experts: usize,
    /// Bias of all experts, `[experts, n]`.
    bias: Option<Buffer>,
}

impl ExpertMatrix {
    /// Copies the matrices of experts in file layout to a GPU.
    ///
    /// # Errors
    /// [`Error::Internal`] if there is no kernel for the type or the shape, [`Error::OutOfMemory`] if the GPU has not
    /// enough memory.
    pub fn new(
        gpu: &Arc<dyn Gpu>,
        dtype: WeightType,
        ExpertShape { experts, n, k }: ExpertShape,
        file: &[u8],
        bias: Option<&[f32]>,
    ) -> Result<Self> {
        if !Matrix::can_join(dtype, &[n]) {
            return Err(Error::Internal(format!("there is no Metal kernel for experts of {n} {dtype} rows")));
        }
        let matrix = Matrix::new(gpu, dtype, (experts * n, k), file)?;
        let bias = bias.map(|bias| Buffer::with_floats(gpu, bias)).transpose()?;
        Ok(Self { matrix, experts, bias })
    }

    /// Returns the columns.
    pub fn k(&self) -> usize {
        self.matrix.k()
    }

    /// Returns the rows of an expert.
    pub fn n(&self) -> usize {
        self.matrix.n() / self.experts
    }

    /// Returns `true` if the product needs quantised activations.
    pub fn wants_quantised(&self) -> bool {
        self.matrix.wants_quantised()
    }
}

/// Product of experts with the rows that chose them.
#[derive(Clone, Copy, Debug)]
pub struct ExpertProduct<'a> {
    /// Weights.
    pub experts: &'a ExpertMatrix,
    /// First value of the first output row. There is a row for each entry.
    pub out: BufferAt<'a>,
    /// Values of an output row.
    pub stride: usize,
}

/// Scores by which rows choose their experts.
#[derive(Clone, Copy, Debug)]
pub struct RouteInput<'a> {
    /// Scores of the router, `[rows, experts]`.
    pub scores: &'a Buffer,
    /// Added to the weights for the choice alone, `[experts]`.
    pub bias: Option<&'a Buffer>,
    /// Factors of the weights, `[experts]`.
    pub factors: Option<&'a Buffer>,
    /// Rows.
    pub rows: usize,
    /// Numbers of experts, and their weighting.
    pub experts: &'a Experts,
    /// Place of the number of different experts.
    pub distinct: BufferAt<'a>,
}

/// Input of the products of experts.
#[derive(Clone, Copy, Debug)]
pub struct ExpertPass<'a> {
    /// Rows that are multiplied.
    pub x: &'a Activations,
    /// Rows of the entries.
    pub input: ExpertInputRows,
    /// Rows of the pass.
    pub rows: usize,
    /// Numbers of experts.
    pub experts: &'a Experts,
    /// Their choice.
    pub routing: &'a Routing,
}

/// Outputs of experts, which are summed.
#[derive(Clone, Copy, Debug)]
pub struct JoinInput<'a> {
    /// Outputs, `[rows, used, width]`.
    pub outputs: &'a Buffer,
    /// Their weights, `[rows, used]`. All are 1 without them.
    pub weights: Option<&'a Buffer>,
    /// Experts of a row.
    pub used: usize,
    /// Output of an expert that all rows use.
    pub shared: Option<SharedOutput<'a>>,
    /// Rows.
    pub rows: usize,
    /// Values of a row.
    pub width: usize,
}

/// Output of an expert that all rows use.
#[derive(Clone, Copy, Debug)]
pub struct SharedOutput<'a> {
    /// Rows, `[rows, width]`.
    pub rows: &'a Buffer,
    /// Scores, `[rows]`, whose sigmoid is the weight. All weights are 1 without them.
    pub scores: Option<&'a Buffer>,
}

/// Input rows of the products of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertInputRows {
    /// Rows of the pass. All entries of a row read it.
    Rows,
    /// A row for each entry.
    Entries,
}

/// Experts that the rows of a pass chose.
///
/// A row has an entry for each of its experts, highest score first.
#[derive(Debug)]
pub struct Routing {
    /// Experts of the entries, `[rows, used]`.
    pub chosen: Buffer,
    /// Weights of the entries, `[rows, used]`.
    pub weights: Buffer,
    /// Entries, by expert.
    order: Buffer,
    /// Number of blocks, then the blocks of entries.
    pub blocks: Buffer,
}

impl Routing {
    /// Allocates space for `rows` rows.
    ///
    /// # Errors
    /// If the GPU has not enough memory.
    pub fn new(gpu: &Arc<dyn Gpu>, rows: usize, experts: &Experts) -> Result<Self> {
        let entries = || Buffer::new(gpu, 4 * rows * experts.used);
        // Passes of fewer rows may have smaller blocks, but never more than their entries.
        let blocks = rows * experts.used;
        Ok(Self {
            chosen: entries()?,
            weights: entries()?,
            order: entries()?,
            blocks: Buffer::new(gpu, 4 * BLOCK_WORDS * (1 + blocks))?,
        })
    }
}

/// Returns the rows of an expert that a pass of `rows` rows multiplies at once.
pub(super) fn block(rows: usize) -> TileRows {
    TileRows::of(if rows == 1 { 1 } else { MAX_BLOCK })
}

/// Returns the most blocks that the entries of a pass can be in.
fn most_blocks(rows: usize, experts: &Experts) -> usize {
    let entries = rows * experts.used;
    let distinct = experts.count.min(entries);
    distinct + (entries - distinct) / block(rows).rows()
}

/// Returns the types of the matrices of products.
fn parts_of(products: &[ExpertProduct<'_>]) -> PartKernels {
    parts(products.iter().map(|product| &product.experts.matrix))
}

impl ExpertProduct<'_> {
    /// Reads the bytes from its first result to its last.
    fn read(&self, entries: usize) -> Result<Vec<u8>> {
        self.out.read_rows(entries, self.stride, self.experts.n())
    }
}

impl Kernels {
    /// Chooses the experts of each row by their scores, and lists their entries.
    ///
    /// # Errors
    /// If the device fails.
    pub fn route(&self, input: RouteInput<'_>, routing: &Routing) -> Result<()> {
        let RouteInput { scores, bias, factors, rows, experts, distinct } = input;
        let weighting = match experts.weighting {
            Weighting::Softmax => 0,
            Weighting::SoftmaxOfChosen => 1,
            Weighting::Sigmoid => 2,
        };
        let flags = u32::from(bias.is_some())
            | u32::from(experts.normalised) << 1
            | u32::from(factors.is_some()) << 2;
        let constants = RouteConstants {
            rows: rows as u32,
            experts: experts.count as u32,
            used: experts.used as u32,
            block: block(rows).rows() as u32,
            weighting,
            flags,
            scale: experts.scale,
            groups: experts.groups.map_or(1, |groups| groups.count as u32),
            groups_used: experts.groups.map_or(1, |groups| groups.used as u32),
        };
        let constants = constants.words();
        let arguments = [
            Argument::Constants(&constants),
            scores.input(),
            bias.unwrap_or(scores).input(),
            factors.unwrap_or(scores).input(),
            routing.chosen.output(),
            routing.weights.output(),
            routing.order.output(),
            routing.blocks.output(),
            distinct.output(),
        ];
        let grid = Grid::new([1, 1, 1], MAX_EXPERTS as u32).with_scratch(4 * MAX_EXPERTS);
        self.run(Kernel::Route, &arguments, grid)
    }

    /// Multiplies up to three matrices of experts with the rows that chose them, in one dispatch. As in
    /// [`Kernels::multiply_all`], each matrix has a dispatch of its own if that kernel is refused or differs.
    ///
    /// # Errors
    /// If the device fails. [`Error::Internal`] for no or too many matrices.
    pub fn multiply_experts(&self, products: &[ExpertProduct<'_>], pass: ExpertPass<'_>) -> Result<()> {
        if products.is_empty() || products.len() > MAX_PARTS {
            return Err(Error::Internal(format!("{} products of experts in a dispatch", products.len())));
        }
        let dispatch = |products: &[ExpertProduct<'_>]| self.dispatch_experts(products, pass);
        let each = || products.iter().try_for_each(|product| dispatch(&[*product]));
        let can_join = products.len() == 1 || {
            let kernel = Kernel::MultiplyExperts(block(pass.rows), parts_of(products));
            let entries = pass.rows * pass.experts.used;
            let read = || products.iter().map(|product| product.read(entries)).collect();
            self.can_join_by(kernel, || dispatch(products), each, read)?
        };
        if can_join { dispatch(products) } else { each() }
    }

    /// Multiplies matrices of experts in one dispatch.
    fn dispatch_experts(&self, products: &[ExpertProduct<'_>], pass: ExpertPass<'_>) -> Result<()> {
        let ExpertPass { x, input, rows, experts, routing } = pass;
        let tile = block(rows);
        let divide = match input {
            ExpertInputRows::Rows => experts.used,
            ExpertInputRows::Entries => 1,
        };
        let (mut groups, mut constants) = (0, vec![divide as u32]);
        // A pass of one row has codes, as in other products.
        let codes = if rows == 1 { &x.codes } else { &x.halves };
        let mut arguments = vec![codes.input(), x.scales.input(), x.sums.input(), x.floats.input()];
        arguments.extend([routing.order.input(), routing.blocks.input()]);
        for ExpertProduct { experts, out, stride } in products {
            let (matrix, n) = (&experts.matrix, experts.n());
            let of_part = n.div_ceil(WeightKernel::of(matrix).columns(tile));
            let flags = u32::from(experts.bias.is_some()) << 1;
            let of_expert = ProductConstants {
                n: n as u32,
                stride: *stride as u32,
                flags,
                groups: of_part as u32,
                ..ProductConstants::of(matrix, rows, ResultScaling::NONE)
            };
            constants.extend(of_expert.words());
            constants.extend(matrix.stream_bytes(n).map(|bytes| bytes as u32));
            groups += of_part;
            let streams = matrix.streams();
            arguments.extend(streams);
            arguments.push(experts.bias.as_ref().map_or(streams[0], Buffer::input));
            arguments.push(out.output());
        }
        arguments.insert(0, Argument::Constants(&constants));
        let grid = Grid::new([groups, most_blocks(rows, experts), 1], tile.threads());
        let kernel = Kernel::MultiplyExperts(tile, parts_of(products));
        self.run(kernel, &arguments, grid.with_scratch(tile.scratch()))
    }

    /// Sums the weighted outputs of the experts of each row, in the order of its choice.
    ///
    /// # Errors
    /// If the device fails.
    pub fn join_experts(&self, input: JoinInput<'_>, out: &Buffer, store: ResultUse) -> Result<()> {
        let JoinInput { outputs, weights, used, shared, rows, width } = input;
        let scores = shared.and_then(|shared| shared.scores);
        let flags = u32::from(store.adds())
            | u32::from(shared.is_some()) << 1
            | u32::from(scores.is_some()) << 2
            | u32::from(weights.is_none()) << 3;
        let constants =
            JoinConstants { width: width as u32, used: used as u32, flags, scale: store.factor() }.words();
        let arguments = [
            Argument::Constants(&constants),
            outputs.input(),
            weights.unwrap_or(outputs).input(),
            shared.map_or(outputs, |shared| shared.rows).input(),
            scores.unwrap_or(outputs).input(),
            out.output(),
        ];
        self.run(Kernel::JoinExperts, &arguments, Grid::new([width.div_ceil(256), rows, 1], 256))
    }
}

constants! {
    /// Choice of experts.
    RouteConstants {
        rows: u32, experts: u32, used: u32, block: u32, weighting: u32, flags: u32, scale: f32, groups: u32,
        groups_used: u32,
    }
}

constants! {
    /// Sum of the outputs of experts.
    JoinConstants { width: u32, used: u32, flags: u32, scale: f32 }
}
