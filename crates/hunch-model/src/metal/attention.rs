//! Dispatch of attention over a layer's cache, in two kernels: over spans of the context, and over the results of spans.

use hunch_error::Result;
use hunch_kernels::{LayerWindow, Window};

use super::activations::ActivationOutput;
use super::constants::constants;
use super::gpu::{Argument, Buffer, BufferAt, Grid};
use super::kernels::{Kernel, Kernels, LANES};
use super::workspace::{ATTENTION_ROWS, AttentionSpace, SPAN};

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
    /// First of the gates of the output, which is multiplied by their sigmoid. Rows are as wide as those of `q`.
    pub gates: Option<BufferAt<'a>>,
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

impl Kernels {
    /// Computes attention, as the activations of a product. Takes a dispatch of each kernel for as many rows as the space
    /// has room for.
    ///
    /// # Errors
    /// If the device fails.
    pub fn attention(
        &self,
        input: GpuAttention<'_>,
        space: &AttentionSpace,
        out: ActivationOutput<'_>,
    ) -> Result<()> {
        (0..input.rows).step_by(space.rows_at_once).try_for_each(|first| {
            let rows = space.rows_at_once.min(input.rows - first);
            self.attend_rows(GpuAttention { rows, ..input }, first, space, out)
        })
    }

    /// Computes attention of the rows of a pass from `first` on.
    fn attend_rows(
        &self,
        input: GpuAttention<'_>,
        first_row: usize,
        space: &AttentionSpace,
        out: ActivationOutput<'_>,
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
            outputs: out.forms.bits(),
            cap: scoring.cap.unwrap_or(0.0),
            window: u32::try_from(recent).unwrap_or(u32::MAX),
            leading: leading as u32,
            firsts: first as u32,
            lasts: last as u32,
            rows: rows as u32,
            first: first_row as u32,
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
        let groups = [space.spans - (last - first), keys, rows.div_ceil(layout.rows)];
        let grid = Grid::new(groups, LANES * layout.simdgroups as u32).with_scratch(layout.scratch(width));
        self.run(Kernel::Attend(width as u32, layout.pairs as u32), &arguments, grid)?;
        let mut arguments =
            vec![constants, space.lengths.input(), space.stats.input(), space.partial.input()];
        arguments.extend(out.arguments());
        arguments.push(input.sinks.unwrap_or(&space.stats).input());
        arguments.push(input.gates.unwrap_or(space.stats.at_byte(0)).input());
        self.run(Kernel::Combine(width as u32), &arguments, Grid::new([queries, rows, 1], LANES))
    }
}

constants! {
    /// Attention over spans, and their combination.
    AttentionConstants {
        heads: u32, group: u32, stride: u32, base: u32, values: u32, spans: u32, scale: f32, outputs: u32, cap: f32,
        window: u32, leading: u32, firsts: u32, lasts: u32, rows: u32, first: u32, block: u32, threads: u32, sinks: u32,
        gated: u32, chunk: u32,
    }
}
