//! The table of kernels: file, settings, arguments, threads and scratch of each, and their dispatch.
//!
//! Shader text is in `shaders/`. The order of steps in a layer belongs to the executor.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::constants::constants;
use super::gpu::{Argument, Buffer, Gpu, Grid, KernelId, KernelSource};
use super::matrix::{FloatFormat, Matrix};
use super::packed::Format;
use super::products::{self, Parts, TileRows, packed_settings};
use super::workspace::{Activations, AttentionSpace, SPAN};
use hunch_core::sample::DrawSettings;
use hunch_error::{Error, Result};
use hunch_kernels::activation::Activation;
use hunch_kernels::{LayerWindow, Window};

/// Most rows that read the cache together. Passes that verify a draft have no more.
pub const ATTENTION_ROWS: usize = 16;
/// Threads of a simdgroup.
const LANES: u32 = 32;
/// Largest top-k of a draw.
pub const MAX_TOP_K: usize = 128;
/// Threadgroup memory of a draw: maxima and counts of 256 threads, 512 tokens twice, and 32 numbers.
const DRAW_SCRATCH: usize = 4 * (2 * 256 + 2 * 2 * 512 + 32);

/// Kernel with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Products of one to three matrices with the same rows.
    Multiply(TileRows, Parts),
    /// Products of one to three matrices of experts with the rows that chose them.
    MultiplyExperts(TileRows, Parts),
    /// Choice of experts.
    Route,
    /// Sum of the outputs of experts.
    JoinExperts,
    /// Rows of a packed table.
    TakeRows(Format),
    /// Rows of a float table.
    TakeFloatRows(FloatFormat),
    /// RMS norm, after adding what a part of a layer computed.
    Norm,
    /// activation(gate) * up.
    Gate,
    /// Head norms, rotation and cache append.
    Heads,
    /// Short convolution over the state of a layer.
    Convolve,
    /// Convolutions, decays and strengths of gated delta nets, for a width of heads.
    DeltaConvolve(u32),
    /// States and outputs of gated delta nets, for a width of heads.
    DeltaStates(u32),
    /// Norm and gate of the outputs of gated delta nets, for a width of heads.
    DeltaOutput(u32),
    /// Moves rows of the cache.
    CopyRows,
    /// Copies memory.
    Copy,
    /// Attention over spans of the context, for a width of heads. A simdgroup has 1, 2, 4 or 8 pairs of a row and a
    /// head.
    Attend(u32, u32),
    /// Puts spans together, for a width of heads.
    Combine(u32),
    /// The most likely token of a row.
    Choose,
    /// A token of a row, drawn with a random number.
    Draw,
}

impl Kernel {
    /// Returns the text of the library.
    pub fn source(self) -> KernelSource {
        const CAP: &str = include_str!("shaders/cap.metal");
        const BLOCKS: &str = include_str!("shaders/blocks.metal");
        const OUTPUT: &str = include_str!("shaders/output.metal");
        const FLOATS: &str = include_str!("shaders/floats.metal");
        const TAKE: &str = include_str!("shaders/take_rows.metal");
        const ROWS: &str = include_str!("shaders/rows.metal");
        const ATTENTION: &str = include_str!("shaders/attention.metal");
        const CONVOLUTION: &str = include_str!("shaders/convolution.metal");
        const DELTA_NET: &str = include_str!("shaders/delta_net.metal");
        const EXPERTS: &str = include_str!("shaders/experts.metal");
        const CHOOSE: &str = include_str!("shaders/choose.metal");
        const ATTEND: &[&str] = &[ROWS, CAP, ATTENTION];
        const DELTA: &[&str] = &[ROWS, DELTA_NET];
        let (function, settings, files): (_, Vec<(&str, i64)>, &[&str]) = match self {
            Self::Multiply(tile, parts) => {
                let (name, text) = products::source(tile, parts);
                return KernelSource { name, text, function: "multiply".into() };
            }
            Self::MultiplyExperts(tile, parts) => {
                let (name, text) = products::expert_source(tile, parts);
                return KernelSource { name, text, function: "multiply_experts".into() };
            }
            Self::Route => ("route", Vec::new(), &[ROWS, EXPERTS]),
            Self::JoinExperts => ("join_experts", Vec::new(), &[ROWS, EXPERTS]),
            Self::TakeRows(format) => {
                let text = packed_settings(format) + &[CAP, BLOCKS, OUTPUT, TAKE].concat();
                let name = format!("take_rows-{}", format.dtype());
                return KernelSource { name, text, function: "take_rows".into() };
            }
            Self::TakeFloatRows(format) => {
                ("take_float_rows", vec![("WEIGHTS", format.setting())], &[CAP, FLOATS, OUTPUT, TAKE])
            }
            Self::Norm => ("norm", Vec::new(), &[ROWS]),
            Self::Gate => ("gate", Vec::new(), &[ROWS]),
            Self::Heads => ("heads", Vec::new(), &[ROWS]),
            Self::Convolve => ("convolve", Vec::new(), &[ROWS, CONVOLUTION]),
            Self::DeltaConvolve(width) => ("delta_convolve", vec![("HEAD", width.into())], DELTA),
            Self::DeltaStates(width) => ("delta_states", vec![("HEAD", width.into())], DELTA),
            Self::DeltaOutput(width) => ("delta_output", vec![("HEAD", width.into())], DELTA),
            Self::CopyRows => ("copy_rows", Vec::new(), &[ROWS]),
            Self::Copy => ("copy", Vec::new(), &[ROWS]),
            Self::Attend(width, pairs) => {
                ("attend", vec![("HEAD", width.into()), ("PAIRS", pairs.into())], ATTEND)
            }
            Self::Choose => ("choose", Vec::new(), &[CHOOSE]),
            Self::Draw => ("draw", Vec::new(), &[CHOOSE]),
            Self::Combine(width) => ("combine", vec![("HEAD", width.into())], ATTEND),
        };
        let mut text: String =
            settings.iter().map(|(name, value)| format!("#define {name} {value}\n")).collect();
        text.extend(files.iter().copied());
        let words: Vec<String> = settings.iter().map(|(_, value)| value.to_string()).collect();
        KernelSource { name: format!("{function}-{}", words.join("-")), text, function: function.into() }
    }
}

/// Product of a matrix with the rows of a pass, and where it goes.
#[derive(Clone, Copy, Debug)]
pub struct GpuProduct<'a> {
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
    /// Scale and bound of the results.
    pub scaling: Scaling,
}

impl GpuProduct<'_> {
    /// Returns the constants of the kernel for a number of threadgroups.
    pub(super) fn constants(&self, rows: usize, groups: usize) -> ProductConstants {
        let flags = u32::from(self.add) | u32::from(self.bias.is_some()) << 1;
        let of_matrix = product_constants(self.matrix, (rows, self.stride), flags, self.scaling);
        ProductConstants { groups: groups as u32, ..of_matrix }
    }
}

/// Scale and bound of the results of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// Factor.
    pub scale: f32,
    /// Bound of scaled results that are not added: y becomes `cap * tanh(y / cap)`.
    pub cap: Option<f32>,
}

impl Scaling {
    /// Leaves results as they are.
    pub const NONE: Self = Self { scale: 1.0, cap: None };
}

/// Rows that are normed.
#[derive(Clone, Copy, Debug)]
pub struct NormedRows {
    /// First row.
    pub first: usize,
    /// Rows.
    pub rows: usize,
    /// Values of a row.
    pub width: usize,
}

/// Gates and ups of a gated feed-forward network, which may be in one buffer.
#[derive(Clone, Copy, Debug)]
pub struct GateInput<'a> {
    /// Buffer of the gates.
    pub gates: &'a Buffer,
    /// Values from a row of gates to the next.
    pub gate_stride: usize,
    /// Buffer of the ups.
    pub ups: &'a Buffer,
    /// Values before the first of the ups.
    pub ups_before: usize,
    /// Values from a row of ups to the next.
    pub up_stride: usize,
}

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

/// Shape of attention over a layer's cache.
#[derive(Clone, Copy, Debug)]
pub struct GpuAttention<'a> {
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
    /// Scale, bound and window of the scores.
    pub scoring: Scoring,
    /// Score of each head of queries that takes part in the softmax and has no value, `[queries]`.
    pub sinks: Option<&'a Buffer>,
    /// Gates of the output, which is multiplied by their sigmoid. Rows are as wide as those of `q`, and the number is that
    /// of the values before the gates.
    pub gates: Option<(&'a Buffer, usize)>,
}

/// Scores of attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scoring {
    /// Factor.
    pub scale: f32,
    /// Bound: s becomes `cap * tanh(s / cap)`.
    pub cap: Option<f32>,
    /// Keys that a row of the layer sees. The mask of a pass may hide more of them.
    pub window: Option<LayerWindow>,
}

impl Scoring {
    /// Returns scores of heads of a width: scaled by 1 / sqrt(width), without bound and window.
    pub fn of_width(width: usize) -> Self {
        Self { scale: 1.0 / (width as f32).sqrt(), cap: None, window: None }
    }
}

/// Rows and heads of a threadgroup of attention, which takes one span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionLayout {
    /// Rows of a threadgroup. It reads keys and values once for all of them.
    pub rows: usize,
    /// Pairs of a row and a head in a simdgroup.
    pub pairs: usize,
    /// Simdgroups of a threadgroup.
    pub simdgroups: usize,
}

impl AttentionLayout {
    /// Most simdgroups of a threadgroup, as `attention.metal` declares it.
    const MAX_SIMDGROUPS: usize = 16;

    /// Returns the layout of a pass over heads of a width, of which `group` share a head of keys.
    pub fn new(width: usize, group: usize, rows: usize) -> Self {
        // A lane keeps a part of the query and of the output of its pairs in registers.
        let most_pairs = match width {
            257.. => 2,
            // Heads of 96 have only 8 lanes for the columns of a pair.
            96 | 129.. => 4,
            _ => 8,
        };
        let block = (most_pairs * Self::MAX_SIMDGROUPS / group.max(1)).clamp(1, ATTENTION_ROWS);
        let all = rows.min(block) * group;
        let pairs = all.div_ceil(8).next_power_of_two().min(most_pairs);
        Self { rows: block, pairs, simdgroups: all.div_ceil(pairs) }
    }

    /// Returns the bytes of threadgroup memory: a section of keys and values, and a score for each pair and key.
    pub fn scratch(self, width: usize) -> usize {
        let section = match width {
            257.. => 8,
            129.. => 16,
            _ => 32,
        };
        // Keys are 32 bytes apart, unless all lanes read the same one.
        let gap = if self.pairs < 8 { 32 } else { 0 };
        section * (2 * 2 * width + gap) + 4 * section * self.pairs * self.simdgroups
    }
}

/// Compiled kernels of one GPU. Each is compiled when it is first used.
pub struct Kernels {
    gpu: Arc<dyn Gpu>,
    /// Compiled kernels, and the reasons for which others were refused. Compiling is slow, so each is tried once.
    compiled: Mutex<HashMap<Kernel, Result<KernelId, String>>>,
    /// Joined products that were compared with separate ones, and the problems of those that are not used.
    pub(super) joins: Mutex<HashMap<Kernel, Result<(), String>>>,
}

impl Kernels {
    /// Creates the table for a GPU.
    pub fn new(gpu: Arc<dyn Gpu>) -> Self {
        Self { gpu, compiled: Mutex::default(), joins: Mutex::default() }
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
        let known = self.compiled().get(&kernel).cloned();
        // Without the lock, so that several threads can compile. Two that want the same kernel may both compile it.
        let tried = known.unwrap_or_else(|| {
            let tried = self.gpu.compile(&kernel.source()).map_err(|error| match error {
                Error::Device { reason, .. } => reason,
                other => other.to_string(),
            });
            self.compiled().entry(kernel).or_insert(tried).clone()
        });
        tried.map_err(|reason| Error::Device { device: "metal", reason })
    }

    fn compiled(&self) -> MutexGuard<'_, HashMap<Kernel, Result<KernelId, String>>> {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Writes the rows of a table that belong to `tokens`, times `scale`, `[rows, k]`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn take_rows(
        &self,
        table: &Matrix,
        (tokens, rows): (Argument<'_>, usize),
        scale: f32,
        out: &Buffer,
    ) -> Result<()> {
        let constants = product_constants(table, (rows, table.k()), 0, Scaling { scale, cap: None }).words();
        let constants = Argument::Constants(&constants);
        match table {
            Matrix::Packed { format, k, .. } => {
                let [low, high, scales, supers] = table.streams();
                let arguments = [constants, low, high, scales, supers, tokens, out.output()];
                let groups = [(k / 32).div_ceil(8), rows, 1];
                self.run(Kernel::TakeRows(format.kernel()), &arguments, groups, 8 * LANES, 0)
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
        NormedRows { first, rows, width }: NormedRows,
        eps: f32,
        out: &Activations,
        outputs: u32,
    ) -> Result<()> {
        let input = NormInput { x, weight: Some(weight), update: None, first, rows, width, eps };
        self.update_and_norm(input, out, outputs)
    }

    /// Adds the norm of an update to rows, and computes their RMS norm as the activations of a product.
    ///
    /// # Errors
    /// If the device fails.
    pub fn update_and_norm(&self, input: NormInput<'_>, out: &Activations, outputs: u32) -> Result<()> {
        let NormInput { x, weight, update, first, rows, width, eps } = input;
        let stores = update.is_some_and(|update| update.store);
        let flags = u32::from(weight.is_some()) | u32::from(update.is_some()) << 1 | u32::from(stores) << 2;
        let scale = update.map_or(0.0, |update| update.scale);
        let factor = update.map_or(1.0, |update| update.factor);
        let (width, first) = (width as u32, first as u32);
        let constants = NormConstants { width, outputs, eps, first, flags, scale, factor }.words();
        let mut arguments = vec![
            Argument::Constants(&constants),
            if stores { x.output() } else { x.input() },
            weight.unwrap_or(x).input(),
            update.map_or(x, |update| update.rows).input(),
            update.map_or(x, |update| update.weight).input(),
        ];
        arguments.extend(out.outputs());
        self.run(Kernel::Norm, &arguments, [rows, 1, 1], 8 * LANES, 64)
    }

    /// Computes activation(gate) * up of rows `[rows, 2 * width]`, as the activations of a product.
    ///
    /// `factors` multiply the gates and ups of each row first.
    ///
    /// # Errors
    /// If the device fails.
    pub fn gate(
        &self,
        x: &Buffer,
        (rows, width): (usize, usize),
        (activation, factors): (Activation, Option<&Buffer>),
        out: &Activations,
        outputs: u32,
    ) -> Result<()> {
        let stride = 2 * width;
        let input = GateInput { gates: x, gate_stride: stride, ups: x, ups_before: width, up_stride: stride };
        self.gate_by(input, (rows, width), (activation, factors), (out, outputs))
    }

    /// Computes activation(gate) * up, as the activations of a product. Factors are as in [`gate`](Self::gate).
    ///
    /// # Errors
    /// If the device fails.
    pub fn gate_by(
        &self,
        input: GateInput<'_>,
        (rows, width): (usize, usize),
        (activation, factors): (Activation, Option<&Buffer>),
        (out, outputs): (&Activations, u32),
    ) -> Result<()> {
        let GateInput { gates, gate_stride, ups, ups_before, up_stride } = input;
        let constants = GateConstants {
            width: width as u32,
            outputs,
            kind: activation_number(activation),
            stride: gate_stride as u32,
            up_stride: up_stride as u32,
            scaled: u32::from(factors.is_some()),
        };
        let constants = constants.words();
        let ups = Argument::Input(ups.id(), ups_before * size_of::<f32>());
        let mut arguments = vec![Argument::Constants(&constants), gates.input(), ups];
        arguments.extend(out.outputs());
        arguments.push(factors.unwrap_or(gates).input());
        self.run(Kernel::Gate, &arguments, [(width / 32).div_ceil(8), rows, 1], 8 * LANES, 0)
    }

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
        self.run(Kernel::Heads, &arguments, [queries + 2 * keys, input.rows, 1], LANES, 0)
    }

    /// Computes attention, as the activations of a product.
    ///
    /// # Errors
    /// If the device fails.
    pub fn attention(
        &self,
        input: GpuAttention<'_>,
        space: &AttentionSpace,
        out: &Activations,
        outputs: u32,
    ) -> Result<()> {
        let GpuAttention { q, cache, rows, queries, keys, width, scoring, .. } = input;
        let (own, chunk) = match scoring.window {
            Some(LayerWindow::Chunk(keys)) => (None, keys),
            own => (own, 0),
        };
        let window = Window::of_layer(space.window, own, space.shortest);
        let (leading, recent) = window.map_or((0, usize::MAX), |window| (window.leading, window.recent));
        // No row sees a span between the first ones and those of the last keys.
        let of_shortest =
            Window::hidden(Window::of_layer(space.window, scoring.window, space.shortest), space.shortest);
        let last = of_shortest.end / SPAN;
        let first = leading.div_ceil(SPAN).min(last);
        let group = queries / keys;
        let layout = AttentionLayout::new(width, group, rows);
        let constants = AttentionConstants {
            heads: queries as u32,
            group: group as u32,
            stride: input.stride as u32,
            base: space.base as u32,
            values: (input.capacity * keys * width) as u32,
            spans: space.spans as u32,
            scale: scoring.scale,
            outputs,
            cap: scoring.cap.unwrap_or(0.0),
            window: u32::try_from(recent).unwrap_or(u32::MAX),
            leading: leading as u32,
            firsts: first as u32,
            lasts: last as u32,
            rows: rows as u32,
            block: layout.rows as u32,
            threads: LANES * layout.simdgroups as u32,
            sinks: u32::from(input.sinks.is_some()),
            gated: u32::from(input.gates.is_some()),
            chunk: chunk as u32,
        };
        let constants = constants.words();
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
        self.run(
            Kernel::Attend(width as u32, layout.pairs as u32),
            &arguments,
            [space.spans - (last - first), keys, rows.div_ceil(layout.rows)],
            LANES * layout.simdgroups as u32,
            layout.scratch(width),
        )?;
        let mut arguments =
            vec![constants, space.lengths.input(), space.stats.input(), space.partial.input()];
        arguments.extend(out.outputs());
        arguments.push(input.sinks.unwrap_or(&space.stats).input());
        let (gates, before) = input.gates.unwrap_or((&space.stats, 0));
        arguments.push(Argument::Input(gates.id(), before * size_of::<f32>()));
        self.run(Kernel::Combine(width as u32), &arguments, [queries, rows, 1], LANES, 0)
    }

    /// Writes the index of the largest of `count` values, and of equal ones the lowest.
    ///
    /// Values and index are at byte offsets of their buffers.
    ///
    /// # Errors
    /// If the device fails.
    pub fn choose(&self, values: (&Buffer, usize), count: usize, chosen: (&Buffer, usize)) -> Result<()> {
        let constants = ChoiceConstants { count: count as u32 }.words();
        let arguments = [
            Argument::Constants(&constants),
            Argument::Input(values.0.id(), values.1),
            Argument::Output(chosen.0.id(), chosen.1),
        ];
        self.run(Kernel::Choose, &arguments, [1, 1, 1], 8 * LANES, 64)
    }

    /// Returns `true` if [`draw`](Self::draw) follows these settings: its kernel compiles, and few enough tokens can
    /// be left by the filters.
    pub fn can_draw(&self, settings: &DrawSettings) -> bool {
        let DrawSettings { top_k, top_p, min_p, .. } = *settings;
        let bounded = if top_k > 0 { top_k <= MAX_TOP_K } else { min_p > 0.0 || top_p >= 1.0 };
        bounded && self.get(Kernel::Draw).is_ok()
    }

    /// Draws one of the first `count` tokens with a random number, by inverting the cumulative sum of probabilities.
    ///
    /// Sums are in f32, so the token may differ from that of a draw in f64 if the number is close to a boundary. If the
    /// filters leave more tokens than fit in threadgroup memory, the token is the most likely one. Logits and token are
    /// at byte offsets of their buffers.
    ///
    /// # Errors
    /// If the device fails.
    pub fn draw(
        &self,
        logits: (&Buffer, usize),
        count: usize,
        (settings, unit): (DrawSettings, f64),
        chosen: (&Buffer, usize),
    ) -> Result<()> {
        // A top-k of all tokens is none.
        let top_k = if settings.top_k < count { settings.top_k as u32 } else { 0 };
        let DrawSettings { sharpness, top_p, min_p, .. } = settings;
        let (count, unit) = (count as u32, unit as f32);
        let constants = DrawConstants { count, unit, sharpness, top_k, top_p, min_p }.words();
        let arguments = [
            Argument::Constants(&constants),
            Argument::Input(logits.0.id(), logits.1),
            Argument::Output(chosen.0.id(), chosen.1),
        ];
        self.run(Kernel::Draw, &arguments, [1, 1, 1], 8 * LANES, DRAW_SCRATCH)
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
        let constants = CopyConstants { chunks: chunks as u32, count: count as u32 }.words();
        let arguments =
            [Argument::Constants(&constants), rows.input(), Argument::Output(memory.id(), offset)];
        self.run(Kernel::CopyRows, &arguments, [chunks.div_ceil(LANES as usize), 1, 1], LANES, 0)
    }

    /// Copies `bytes` bytes, a multiple of 8, between buffers.
    ///
    /// # Errors
    /// If the device fails.
    pub fn copy(&self, from: (&Buffer, usize), to: (&Buffer, usize), bytes: usize) -> Result<()> {
        let constants = CopyConstants { chunks: 0, count: (bytes / 8) as u32 }.words();
        let arguments = [
            Argument::Constants(&constants),
            Argument::Input(from.0.id(), from.1),
            Argument::Output(to.0.id(), to.1),
        ];
        self.run(Kernel::Copy, &arguments, [(bytes / 8).div_ceil(8 * LANES as usize), 1, 1], 8 * LANES, 0)
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

/// Returns the constants of kernels that read a matrix, without threadgroups.
pub(super) fn product_constants(
    matrix: &Matrix,
    (rows, stride): (usize, usize),
    flags: u32,
    scaling: Scaling,
) -> ProductConstants {
    ProductConstants {
        n: matrix.n() as u32,
        k: matrix.k() as u32,
        rows: rows as u32,
        stride: stride as u32,
        flags,
        scale: scaling.scale,
        cap: scaling.cap.unwrap_or(0.0),
        groups: 0,
    }
}

constants! {
    /// A product, or rows of a table.
    ProductConstants {
        n: u32, k: u32, rows: u32, stride: u32, flags: u32, scale: f32, cap: f32, groups: u32,
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
    /// Head norms, rotation and cache append.
    HeadsConstants {
        queries: u32, keys: u32, width: u32, stride: u32, slot: u32, values: u32, flags: u32, eps: f32, rotated: u32,
    }
}

constants! {
    /// Copies of rows and of memory.
    CopyConstants { chunks: u32, count: u32 }
}

constants! {
    /// Attention over spans, and their combination.
    AttentionConstants {
        heads: u32, group: u32, stride: u32, base: u32, values: u32, spans: u32, scale: f32, outputs: u32, cap: f32,
        window: u32, leading: u32, firsts: u32, lasts: u32, rows: u32, block: u32, threads: u32, sinks: u32,
        gated: u32, chunk: u32,
    }
}

constants! {
    /// Choice of the most likely token.
    ChoiceConstants { count: u32 }
}

constants! {
    /// Draw of a token.
    DrawConstants { count: u32, unit: f32, sharpness: f32, top_k: u32, top_p: f32, min_p: f32 }
}
