//! The table of kernels: file, settings, arguments, threads and scratch of each, and their dispatch.
//!
//! Shader text is in `shaders/`. The order of steps in a layer belongs to the executor.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::gpu::{Argument, Buffer, Gpu, Grid, KernelId, KernelSource};
use super::matrix::{FloatFormat, Matrix};
use super::packed::Format;
use super::workspace::{Activations, AttentionSpace};
use hunch_error::Result;

/// Keys of a span of attention.
pub const SPAN: usize = 128;
/// Slots in the list of a row of attention.
pub const TAIL: usize = 64;
/// Threads of a simdgroup.
const LANES: u32 = 32;

/// Kernel with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Product of packed weights and one row.
    MultiplyOne(Format),
    /// Product of packed weights and tiles of 8 rows, 1 or 2 of them a threadgroup.
    MultiplyTiles(Format, u32),
    /// Rows of a packed table.
    TakeRows(Format),
    /// Product of float weights.
    MultiplyFloats(FloatFormat),
    /// Rows of a float table.
    TakeFloatRows(FloatFormat),
    /// RMS norm.
    Norm,
    /// silu(gate) * up.
    Gate,
    /// Head norms, rotation and cache append.
    Heads,
    /// Moves rows of the cache.
    CopyRows,
    /// Copies memory.
    Copy,
    /// Attention over spans of the context, for a width of heads.
    Attend(u32),
    /// Puts spans together, for a width of heads.
    Combine(u32),
    /// The most likely token of a row.
    Choose,
}

impl Kernel {
    /// Returns the text of the library.
    pub fn source(self) -> KernelSource {
        const BLOCKS: &str = include_str!("shaders/blocks.metal");
        const PRODUCT: &str = include_str!("shaders/product.metal");
        const FLOATS: &str = include_str!("shaders/float_product.metal");
        const ROWS: &str = include_str!("shaders/rows.metal");
        const ATTENTION: &str = include_str!("shaders/attention.metal");
        const CHOOSE: &str = include_str!("shaders/choose.metal");
        let (function, settings, files): (_, Vec<(&str, i64)>, &[&str]) = match self {
            Self::MultiplyOne(format) => ("multiply_one", type_settings(format, 1), &[BLOCKS, PRODUCT]),
            Self::MultiplyTiles(format, tiles) => {
                ("multiply_tiles", type_settings(format, tiles), &[BLOCKS, PRODUCT])
            }
            Self::TakeRows(format) => ("take_rows", type_settings(format, 1), &[BLOCKS, PRODUCT]),
            Self::MultiplyFloats(format) => {
                ("multiply_floats", vec![("WEIGHTS", format.setting())], &[FLOATS])
            }
            Self::TakeFloatRows(format) => {
                ("take_float_rows", vec![("WEIGHTS", format.setting())], &[FLOATS])
            }
            Self::Norm => ("norm", Vec::new(), &[ROWS]),
            Self::Gate => ("gate", Vec::new(), &[ROWS]),
            Self::Heads => ("heads", Vec::new(), &[ROWS]),
            Self::CopyRows => ("copy_rows", Vec::new(), &[ROWS]),
            Self::Copy => ("copy", Vec::new(), &[ROWS]),
            Self::Attend(width) => ("attend", vec![("HEAD", width.into())], &[ROWS, ATTENTION]),
            Self::Choose => ("choose", Vec::new(), &[CHOOSE]),
            Self::Combine(width) => ("combine", vec![("HEAD", width.into())], &[ROWS, ATTENTION]),
        };
        let mut text: String =
            settings.iter().map(|(name, value)| format!("#define {name} {value}\n")).collect();
        text.extend(files.iter().copied());
        let words: Vec<String> = settings.iter().map(|(_, value)| value.to_string()).collect();
        KernelSource { name: format!("{function}-{}", words.join("-")), text, function: function.into() }
    }
}

fn type_settings(format: Format, tiles: u32) -> Vec<(&'static str, i64)> {
    vec![
        ("BITS", format.bits().into()),
        ("OFFSET", format.offset().into()),
        ("SCALES", format.scales() as i64),
        ("TILES", tiles.into()),
    ]
}

/// Product of a matrix with the rows of a pass, and where it goes.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    /// Weights.
    pub matrix: &'a Matrix,
    /// Bias `[n]`, added to every row.
    pub bias: Option<&'a Buffer>,
    /// Output rows.
    pub out: &'a Buffer,
    /// Values from the start of an output row to the first of this product.
    pub offset: usize,
    /// Values of an output row.
    pub stride: usize,
    /// Adds to the output.
    pub add: bool,
}

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
    /// Cosines and sines `[rows, width / 2]`, or `None` for no rotation.
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
}

/// Shape of attention over a layer's cache.
#[derive(Clone, Copy, Debug)]
pub struct AttentionInput<'a> {
    /// Rows that begin with the queries.
    pub q: &'a Buffer,
    /// Values of a row of `q`.
    pub stride: usize,
    /// Cache of the layer, as in [`HeadsInput`].
    pub cache: &'a Buffer,
    /// Capacity of the cache in rows.
    pub capacity: usize,
    /// Rows.
    pub rows: usize,
    /// Heads of queries.
    pub queries: usize,
    /// Heads of keys.
    pub keys: usize,
    /// Width of a head.
    pub width: usize,
}

/// Compiled kernels of one GPU. Each is compiled when it is first used.
pub struct Kernels {
    gpu: Arc<dyn Gpu>,
    compiled: Mutex<HashMap<Kernel, KernelId>>,
}

impl Kernels {
    /// Creates the table for a GPU.
    pub fn new(gpu: Arc<dyn Gpu>) -> Self {
        Self { gpu, compiled: Mutex::default() }
    }

    /// Returns the GPU.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        &self.gpu
    }

    /// Compiles a kernel unless that was done before.
    ///
    /// # Errors
    /// If the text is refused.
    pub fn get(&self, kernel: Kernel) -> Result<KernelId> {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = compiled.get(&kernel) {
            return Ok(*id);
        }
        let id = self.gpu.compile(&kernel.source())?;
        compiled.insert(kernel, id);
        Ok(id)
    }

    fn run(
        &self,
        kernel: Kernel,
        arguments: &[Argument<'_>],
        groups: [usize; 3],
        threads: u32,
        scratch: usize,
    ) -> Result<()> {
        let groups = groups.map(|n| n as u32);
        self.gpu.dispatch(self.get(kernel)?, arguments, Grid { groups, threads, scratch })
    }

    /// Multiplies a matrix with the first `rows` rows of `x`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn multiply(&self, product: Product<'_>, x: &Activations, rows: usize) -> Result<()> {
        let Product { matrix, bias, out, offset, stride, add } = product;
        let flags = u32::from(add) | u32::from(bias.is_some()) << 1;
        let constants = [matrix.n() as u32, matrix.k() as u32, rows as u32, stride as u32, flags];
        let constants = Argument::Constants(&constants);
        // A bias that is not there is bound to the weights, which no kernel writes.
        let bias = bias.map_or_else(|| matrix.streams()[0], Buffer::input);
        let to = Argument::Output(out.id(), offset * size_of::<f32>());
        match matrix {
            Matrix::Packed { format, n, .. } => {
                let [low, high, scales, supers] = matrix.streams();
                let tiles = n.div_ceil(8);
                let (kernel, codes) = if rows == 1 {
                    (Kernel::MultiplyOne(*format), x.codes.input())
                } else {
                    (Kernel::MultiplyTiles(*format, if rows <= 8 { 1 } else { 2 }), x.halves.input())
                };
                let arguments =
                    [constants, low, high, scales, supers, codes, x.scales.input(), x.sums.input(), bias, to];
                match kernel {
                    Kernel::MultiplyTiles(_, columns) => {
                        let groups = [tiles, rows.div_ceil(8 * columns as usize), 1];
                        // Weights of 8 simdgroups, later the sums of 8 partitions.
                        let scratch = 8 * (512.max(columns as usize * 256));
                        self.run(kernel, &arguments, groups, 256, scratch)
                    }
                    _ => self.run(kernel, &arguments, [tiles.div_ceil(2), 1, 1], 64, 0),
                }
            }
            Matrix::Float { format, buffer, n, .. } => {
                let arguments = [constants, buffer.input(), x.floats.input(), bias, to];
                let groups = [n.div_ceil(4), rows.div_ceil(4), 1];
                self.run(Kernel::MultiplyFloats(*format), &arguments, groups, 4 * LANES, 0)
            }
        }
    }

    /// Writes the rows of a table that belong to `tokens`, `[rows, k]`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn take_rows(&self, table: &Matrix, tokens: Argument<'_>, rows: usize, out: &Buffer) -> Result<()> {
        let constants = [table.n() as u32, table.k() as u32, rows as u32, table.k() as u32, 0];
        let constants = Argument::Constants(&constants);
        match table {
            Matrix::Packed { format, k, .. } => {
                let [low, high, scales, supers] = table.streams();
                let arguments = [constants, low, high, scales, supers, tokens, out.output()];
                let groups = [(k / 32).div_ceil(8), rows, 1];
                self.run(Kernel::TakeRows(*format), &arguments, groups, 8 * LANES, 0)
            }
            Matrix::Float { format, buffer, k, .. } => {
                let arguments = [constants, buffer.input(), tokens, out.output()];
                let groups = [(k / 4).div_ceil(LANES as usize), rows, 1];
                self.run(Kernel::TakeFloatRows(*format), &arguments, groups, LANES, 0)
            }
        }
    }

    /// Computes the RMS norm of `rows` rows of `x` from row `first` on, as the activations of a product.
    ///
    /// # Errors
    /// If the device fails.
    pub fn norm(
        &self,
        x: &Buffer,
        weight: &Buffer,
        (first, rows, width): (usize, usize, usize),
        eps: f32,
        out: &Activations,
        outputs: u32,
    ) -> Result<()> {
        let constants = [width as u32, outputs, eps.to_bits(), first as u32];
        let mut arguments = vec![Argument::Constants(&constants), x.input(), weight.input()];
        arguments.extend(out.outputs());
        self.run(Kernel::Norm, &arguments, [rows, 1, 1], 8 * LANES, 32)
    }

    /// Computes silu(gate) * up of rows `[rows, 2 * width]`, as the activations of a product.
    ///
    /// # Errors
    /// If the device fails.
    pub fn gate(
        &self,
        x: &Buffer,
        (rows, width): (usize, usize),
        out: &Activations,
        outputs: u32,
    ) -> Result<()> {
        let constants = [width as u32, outputs, 0, 0];
        let mut arguments = vec![Argument::Constants(&constants), x.input()];
        arguments.extend(out.outputs());
        self.run(Kernel::Gate, &arguments, [(width / 32).div_ceil(8), rows, 1], 8 * LANES, 0)
    }

    /// Applies head norms and rotation, and appends keys and values to the cache.
    ///
    /// # Errors
    /// If the device fails.
    pub fn heads(&self, input: HeadsInput<'_>) -> Result<()> {
        let HeadsInput { x, queries, keys, width, cache, .. } = input;
        let flags = u32::from(input.angles.is_some())
            | u32::from(input.neighbours) << 1
            | u32::from(input.query_norm.is_some()) << 2
            | u32::from(input.key_norm.is_some()) << 3;
        let constants = [
            queries as u32,
            keys as u32,
            width as u32,
            ((queries + 2 * keys) * width) as u32,
            input.slot as u32,
            (input.capacity * keys * width) as u32,
            flags,
            input.eps.to_bits(),
        ];
        let (cosines, sines) = input.angles.unwrap_or((x, x));
        let arguments = [
            Argument::Constants(&constants),
            x.output(),
            input.query_norm.unwrap_or(x).input(),
            input.key_norm.unwrap_or(x).input(),
            cosines.input(),
            sines.input(),
            cache.output(),
        ];
        self.run(Kernel::Heads, &arguments, [queries + 2 * keys, input.rows, 1], LANES, 0)
    }

    /// Computes attention, as the activations of a product.
    ///
    /// # Errors
    /// If the device fails.
    pub fn attention(
        &self,
        input: AttentionInput<'_>,
        space: &AttentionSpace,
        out: &Activations,
        outputs: u32,
    ) -> Result<()> {
        let AttentionInput { q, cache, rows, queries, keys, width, .. } = input;
        let constants = [
            queries as u32,
            (queries / keys) as u32,
            input.stride as u32,
            space.base as u32,
            (input.capacity * keys * width) as u32,
            space.spans as u32,
            (1.0 / (width as f32).sqrt()).to_bits(),
            outputs,
        ];
        let constants = Argument::Constants(&constants);
        let arguments = [
            constants,
            q.input(),
            cache.input(),
            space.lengths.input(),
            space.tails.input(),
            space.stats.output(),
            space.partial.output(),
        ];
        let group = queries / keys;
        let threads = LANES * group as u32;
        self.run(
            Kernel::Attend(width as u32),
            &arguments,
            [space.spans, keys, rows],
            threads,
            group * SPAN * 4,
        )?;
        let mut arguments =
            vec![constants, space.lengths.input(), space.stats.input(), space.partial.input()];
        arguments.extend(out.outputs());
        self.run(Kernel::Combine(width as u32), &arguments, [queries, rows, 1], LANES, 0)
    }

    /// Writes the index of the largest of `count` values, and of equal ones the lowest.
    ///
    /// Values and index are at byte offsets of their buffers.
    ///
    /// # Errors
    /// If the device fails.
    pub fn choose(&self, values: (&Buffer, usize), count: usize, chosen: (&Buffer, usize)) -> Result<()> {
        let constants = [count as u32];
        let arguments = [
            Argument::Constants(&constants),
            Argument::Input(values.0.id(), values.1),
            Argument::Output(chosen.0.id(), chosen.1),
        ];
        self.run(Kernel::Choose, &arguments, [1, 1, 1], 8 * LANES, 64)
    }

    /// Moves rows of `width` halves, in order. `rows` holds pairs of from and to.
    ///
    /// # Errors
    /// If the device fails.
    pub fn copy_rows(
        &self,
        memory: &Buffer,
        offset: usize,
        rows: &Buffer,
        (count, width): (usize, usize),
    ) -> Result<()> {
        let chunks = width / 4;
        let constants = [chunks as u32, count as u32];
        let arguments = [
            Argument::Constants(&constants),
            rows.input(),
            Argument::Input(memory.id(), offset),
            Argument::Output(memory.id(), offset),
        ];
        self.run(Kernel::CopyRows, &arguments, [chunks.div_ceil(LANES as usize), 1, 1], LANES, 0)
    }

    /// Copies `bytes` bytes, a multiple of 8, between buffers.
    ///
    /// # Errors
    /// If the device fails.
    pub fn copy(&self, from: (&Buffer, usize), to: (&Buffer, usize), bytes: usize) -> Result<()> {
        let constants = [0, (bytes / 8) as u32];
        let arguments = [
            Argument::Constants(&constants),
            Argument::Input(from.0.id(), from.1),
            Argument::Output(to.0.id(), to.1),
        ];
        self.run(Kernel::Copy, &arguments, [(bytes / 8).div_ceil(8 * LANES as usize), 1, 1], 8 * LANES, 0)
    }
}
