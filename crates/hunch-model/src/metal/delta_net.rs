//! Gated delta nets on a GPU: the dispatches of a layer, the plan of a pass, and buffers between the dispatches. Which
//! states a pass reads and keeps is up to the cache.

use std::sync::Arc;

use hunch_error::{Error, Result};
use hunch_kernels::delta_net::{DeltaNode, DeltaShape};

use super::activations::ActivationOutput;
use super::constants::constants;
use super::gpu::{Argument, Buffer, Gpu, Grid};
use super::kernels::{Kernel, Kernels};
use super::workspace::at_least;

/// Widths of heads with a kernel.
pub const DELTA_WIDTHS: [usize; 4] = [32, 64, 96, 128];
/// Threads of a threadgroup: 8 simdgroups, each with a head or a column of a state.
const THREADS: u32 = 256;
/// Simdgroups of a threadgroup.
const SIMDGROUPS: usize = 8;
/// No row, place or slot.
const NONE: u32 = u32::MAX;

/// Positions of a pass and the places that they read and write. See [`GpuDeltaPlan`].
#[derive(Clone, Copy, Debug)]
pub struct DeltaSteps<'a> {
    /// Rows of the pass.
    pub rows: usize,
    /// Positions that are computed, in depth-first order.
    pub nodes: &'a [DeltaNode],
    /// `true` if several nodes follow the first state.
    pub is_forked: bool,
    /// For each node the inputs that its convolution sees, the earliest first, its own last, `[nodes, positions]`. A
    /// number below `rows` is a row of the pass, a greater one a held row plus `rows`, and the greatest none.
    pub seen: &'a [u32],
    /// Place of the state before the nodes. `None` for zeros.
    pub from: Option<usize>,
    /// States that are held after the pass: node, place. None of the places is `from`, and a node has one at most.
    pub saves: &'a [(usize, usize)],
    /// Inputs that are held after the pass: row, held row.
    pub held: &'a [(usize, usize)],
    /// Held rows before those of the checkpoints, which have `positions - 1` each.
    pub first_checkpoint: usize,
}

/// Plan of a pass on the GPU. The same for all layers.
#[derive(Debug)]
pub struct GpuDeltaPlan {
    /// Seen inputs and four words of each node, as `delta_net.metal` lists them.
    words: Buffer,
    /// Node and held row of each row of the pass.
    rows: Buffer,
    counts: [usize; 2],
    from: u32,
    root: u32,
    first_checkpoint: usize,
    /// States of nodes that are kept for later nodes at the same time.
    slots: usize,
}

impl GpuDeltaPlan {
    /// Writes a plan to the GPU.
    ///
    /// # Errors
    /// If the GPU has not enough memory. [`Error::Internal`] if a node follows none that is kept, a row has no node, or the
    /// places of saved states are wrong.
    pub fn new(gpu: &Arc<dyn Gpu>, steps: DeltaSteps<'_>) -> Result<Self> {
        let DeltaSteps { rows, nodes, is_forked, seen, from, saves, held, first_checkpoint } = steps;
        let wrong = |what: &str| Error::Internal(format!("a plan of delta nets {what}"));
        let has_two = |node: usize| saves.iter().filter(|(of, _)| *of == node).count() > 1;
        if saves.iter().any(|(node, place)| has_two(*node) || from == Some(*place)) {
            return Err(wrong("has a state without a place of its own"));
        }
        let positions = seen.len() / nodes.len().max(1);
        // Nodes whose states are kept, in the order of their slots.
        let mut kept: Vec<Option<usize>> = if is_forked { vec![None] } else { Vec::new() };
        let (mut slots, mut words) = (kept.len(), Vec::with_capacity(seen.len() + 4 * nodes.len()));
        let mut of_rows = vec![[NONE; 2]; rows];
        for (index, (node, seen)) in nodes.iter().zip(seen.chunks_exact(positions.max(1))).enumerate() {
            let mut load = NONE;
            if node.parent != index.checked_sub(1) {
                let at = kept.iter().rposition(|of| *of == node.parent);
                let at = at.ok_or_else(|| wrong("has a branch without a state"))?;
                kept.truncate(at + 1);
                load = at as u32;
            }
            let mut keep = NONE;
            if node.is_branch {
                keep = kept.len() as u32;
                kept.push(Some(index));
                slots = slots.max(kept.len());
            }
            let save = saves.iter().find(|(of, _)| *of == index).map_or(NONE, |(_, place)| *place as u32);
            if let Some(row) = node.row {
                of_rows.get_mut(row).ok_or_else(|| wrong("has a node without a row"))?[0] = index as u32;
            }
            words.extend_from_slice(seen);
            words.extend([load, keep, save, node.row.map_or(NONE, |row| row as u32)]);
        }
        if of_rows.iter().any(|[node, _]| *node == NONE) {
            return Err(wrong("has a row without a node"));
        }
        for &(row, place) in held {
            of_rows.get_mut(row).ok_or_else(|| wrong("holds a row that is not there"))?[1] = place as u32;
        }
        Ok(Self {
            words: Buffer::with_words(gpu, &words)?,
            rows: Buffer::with_words(gpu, of_rows.as_flattened())?,
            counts: [rows, nodes.len()],
            from: from.map_or(NONE, |place| place as u32),
            root: if is_forked { 0 } else { NONE },
            first_checkpoint,
            slots,
        })
    }
}

/// Buffers between the dispatches of a layer, kept from layer to layer and from pass to pass.
#[derive(Debug)]
pub struct DeltaSpace {
    /// Queries, keys and values after the convolution, `[nodes, channels]`.
    mixed: Buffer,
    /// Decays and strengths, `[nodes, 2 * value heads]`.
    gates: Buffer,
    /// States of branches, `[slots, state]`.
    slots: Buffer,
    /// Outputs before their norm, `[rows, width]`.
    outputs: Buffer,
}

impl DeltaSpace {
    /// Returns space for a pass. Buffers of `old` that are large enough are used again.
    ///
    /// # Errors
    /// If the GPU has not enough memory.
    pub fn for_pass(
        gpu: &Arc<dyn Gpu>,
        old: Option<Self>,
        shape: DeltaShape,
        plan: &GpuDeltaPlan,
    ) -> Result<Self> {
        let old = old.map(|Self { mixed, gates, slots, outputs }| [mixed, gates, slots, outputs].map(Some));
        let [mixed, gates, slots, outputs] = old.unwrap_or_default();
        let [rows, nodes] = plan.counts;
        let floats = |old, count: usize| at_least(gpu, old, size_of::<f32>() * count);
        Ok(Self {
            mixed: floats(mixed, nodes * shape.channels())?,
            gates: floats(gates, nodes * 2 * shape.value_heads)?,
            slots: floats(slots, plan.slots * shape.state())?,
            outputs: floats(outputs, rows * shape.width())?,
        })
    }
}

/// Weights of a layer without its projections.
#[derive(Clone, Copy, Debug)]
pub struct DeltaVectors<'a> {
    /// Weights of the convolution, `[channels, positions]`, the earliest position first.
    pub convolution: &'a Buffer,
    /// Rates of the decays, `[value heads]`.
    pub rates: &'a Buffer,
    /// Biases of the decays, `[value heads]`.
    pub bias: &'a Buffer,
    /// Norm of the output of a head, `[head_dim]`.
    pub norm: &'a Buffer,
}

/// Gated delta net of a layer over the rows of a pass.
#[derive(Clone, Copy, Debug)]
pub struct GpuDeltaNet<'a> {
    /// Sizes.
    pub shape: DeltaShape,
    /// Projections, `[rows, channels + width + 2 * value heads]`: channels, gates of the output, and strengths and
    /// decays in the order of the file.
    pub x: &'a Buffer,
    /// Weights.
    pub weights: DeltaVectors<'a>,
    /// Epsilon of the norms.
    pub eps: f32,
    /// States, `[places, state]`, with the columns of a head one after the other.
    pub states: &'a Buffer,
    /// Held input rows, `[places, `[`DeltaShape::row`]`]`. Decays and strengths are not written for
    /// the rows of checkpoints.
    pub held: &'a Buffer,
}

impl Kernels {
    /// Runs the nodes of a plan, writes the states and rows that it holds, and `silu(gate) * norm(output)` of each row as
    /// the activations of a product.
    ///
    /// # Errors
    /// If the device fails.
    pub fn delta_net(
        &self,
        net: GpuDeltaNet<'_>,
        plan: &GpuDeltaPlan,
        space: &DeltaSpace,
        out: ActivationOutput<'_>,
    ) -> Result<()> {
        let GpuDeltaNet { shape, x, weights, eps, states, held } = net;
        let DeltaShape { key_heads, value_heads, head_dim, positions, is_tiled } = shape;
        let [rows, nodes] = plan.counts;
        let constants = DeltaNetConstants {
            key_heads: key_heads as u32,
            value_heads: value_heads as u32,
            positions: positions as u32,
            flags: u32::from(is_tiled),
            rows: rows as u32,
            nodes: nodes as u32,
            held: plan.first_checkpoint as u32,
            from: plan.from,
            root: plan.root,
            outputs: out.forms.bits(),
            eps,
        };
        let constants = constants.words();
        let constants = Argument::Constants(&constants);
        let run = |kernel: Kernel, arguments: &[Argument<'_>], groups: [usize; 2]| {
            self.run(kernel, arguments, Grid::new([groups[0], groups[1], 1], THREADS))
        };
        // Decays and strengths take a simdgroup for 32 heads.
        let of_node = 2 * key_heads + value_heads + value_heads.div_ceil(32);
        let width = head_dim as u32;
        let arguments = [
            constants,
            x.input(),
            weights.convolution.input(),
            weights.rates.input(),
            weights.bias.input(),
            plan.words.input(),
            held.output(),
            space.mixed.output(),
            space.gates.output(),
        ];
        run(Kernel::DeltaConvolve(width), &arguments, [of_node.div_ceil(SIMDGROUPS), nodes])?;
        let arguments = [
            constants,
            space.mixed.input(),
            space.gates.input(),
            plan.words.input(),
            states.output(),
            space.slots.output(),
            space.outputs.output(),
        ];
        run(Kernel::DeltaStates(width), &arguments, [head_dim / SIMDGROUPS, value_heads])?;
        let mut arguments = vec![
            constants,
            x.input(),
            space.outputs.input(),
            space.gates.input(),
            weights.norm.input(),
            plan.rows.input(),
            held.output(),
        ];
        arguments.extend(out.arguments());
        run(Kernel::DeltaOutput(width), &arguments, [value_heads.div_ceil(SIMDGROUPS), rows])
    }
}

constants! {
    /// Gated delta nets of a pass.
    DeltaNetConstants {
        key_heads: u32, value_heads: u32, positions: u32, flags: u32, rows: u32, nodes: u32, held: u32, from: u32,
        root: u32, outputs: u32, eps: f32,
    }
}
