//! States of gated delta nets: whole states at some lengths of the text, and the inputs of the last rows.
//!
//! A state sums up all positions before it and is large, so few are held: the [`DELTA_CHECKPOINTS`] of a layer. Each
//! has the inputs that the convolution of the next rows sees as well. To continue elsewhere, a pass begins with the
//! nearest checkpoint before its rows, and reads the held [inputs](DELTA_INPUTS) from there again. They are the same
//! updates in the same order, so the state has the same bits. Where inputs are missing,
//! [the decoder](crate::decoder) runs tokens again.
//!
//! A pass keeps the state at its first row, if it had to read inputs to get there. It keeps that at its end, unless it is
//! a tree. So plain decoding and prefill read no input twice. After a rejected draft, those of the accepted rows are read
//! again. Checkpoints thin out with the distance from the end. Within the held inputs, gaps between them are at
//! most [`GAP`]. States and inputs are f32.

use std::sync::Arc;

use hunch_error::{Error, Result, megabytes};
use hunch_kernels::RowMask;
use hunch_kernels::delta_net::{DeltaNode, DeltaShape};

use super::convolution_states::move_rows;
use crate::metal::gpu::Buffer;
use crate::metal::kernels::Kernels;
use crate::metal::rows::RowMoves;
use crate::spec::state::{DELTA_CHECKPOINTS, DELTA_INPUTS};

/// Most rows of a pass and of the passes before it that only some rows see.
const UNSETTLED: usize = 64;
/// Largest gap between checkpoints within the held inputs. A pass with [`UNSETTLED`] rows can begin anywhere between.
const GAP: usize = DELTA_INPUTS - UNSETTLED;
/// Distance from the end from which on gaps grow with it.
const NEAR: usize = 64;

/// Lengths of the text whose states are held, and rows whose inputs are. The same for all layers.
#[derive(Clone, Debug)]
struct Held {
    /// Length of each checkpoint.
    checkpoints: [Option<usize>; DELTA_CHECKPOINTS],
    /// Slot of each held input.
    inputs: [Option<usize>; DELTA_INPUTS],
}

/// State that a pass begins with, and what it computes from there. The same for all layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeltaPlan {
    /// Rows of the pass.
    rows: usize,
    /// Slots before the pass.
    cached: usize,
    /// Earlier inputs that a convolution sees.
    reach: usize,
    /// Inputs before those of the rows: those of the checkpoint and those that are read again.
    inputs_before_rows: usize,
    /// Checkpoint before the nodes. `None` for the beginning of the text.
    pub(crate) from: Option<usize>,
    /// Places of held inputs that are read again.
    pub(crate) again: Vec<usize>,
    /// Positions that are computed, in depth-first order.
    pub(crate) nodes: Vec<DeltaNode>,
    /// `true` if several nodes follow the checkpoint.
    pub(crate) is_forked: bool,
    /// Inputs that each node's convolution sees, `[nodes, reach + 1]`: first those before the checkpoint, then those of
    /// `again`, then those of the pass.
    pub(crate) seen: Vec<usize>,
    /// States that are kept: node, checkpoint.
    pub(crate) saves: Vec<(usize, usize)>,
    /// Checkpoints that are kept, each with its length.
    pending: Vec<(usize, usize)>,
}

impl DeltaPlan {
    /// Returns the earlier inputs that the convolution of a node's successor sees.
    pub(crate) fn seen_after(&self, node: usize) -> &[usize] {
        &self.seen[node * (self.reach + 1) + 1..(node + 1) * (self.reach + 1)]
    }

    /// Returns the rows of the pass whose inputs are held after it, each with its place.
    pub(crate) fn held_rows(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        (self.rows.saturating_sub(DELTA_INPUTS)..self.rows)
            .map(|row| (row, (self.cached + row) % DELTA_INPUTS))
    }

    /// Returns the number of rows of the pass.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the inputs that each node's convolution sees, `[nodes, reach + 1]`, by where the GPU has them. A number
    /// below the rows is a row of the pass, and the greatest one is none. Others are places plus the rows: held inputs,
    /// and from `first_checkpoint` on those before each checkpoint.
    pub(crate) fn seen_words(&self, first_checkpoint: usize) -> Vec<u32> {
        let word = |&seen: &usize| {
            let place = match seen.checked_sub(self.inputs_before_rows) {
                Some(row) => return row as u32,
                None if seen >= self.reach => self.again[seen - self.reach],
                None => match self.from {
                    Some(from) => first_checkpoint + from * self.reach + seen,
                    // Nothing is before the text.
                    None => return u32::MAX,
                },
            };
            (self.rows + place) as u32
        };
        self.seen.iter().map(word).collect()
    }

    /// Returns the first node with an input.
    fn node_of(&self, input: NodeInput) -> usize {
        let own = match input {
            NodeInput::Again(index) => self.reach + index,
            NodeInput::Row(row) => self.inputs_before_rows + row,
        };
        let is_own = |seen: &[usize]| seen[self.reach] == own;
        self.seen.chunks_exact(self.reach + 1).position(is_own).unwrap_or(0)
    }
}

impl Held {
    fn new() -> Self {
        Self { checkpoints: [None; DELTA_CHECKPOINTS], inputs: [None; DELTA_INPUTS] }
    }

    fn has_input(&self, slot: usize) -> bool {
        self.inputs[slot % DELTA_INPUTS] == Some(slot)
    }

    /// Returns the greatest length up to `len` from which a pass can continue.
    fn restorable(&self, len: usize) -> usize {
        let lengths = self.checkpoints.iter().flatten().copied().chain([0]);
        let reached = |from: usize| (from..len).find(|&slot| !self.has_input(slot)).unwrap_or(len);
        lengths.filter(|&from| from <= len).map(reached).max().unwrap_or(0)
    }

    /// Forgets the states and inputs of rows that were rolled back.
    fn truncate(&mut self, len: usize) {
        self.truncate_checkpoints(len);
        let inputs = self.inputs.iter_mut().filter(|slot| slot.is_some_and(|slot| slot >= len));
        inputs.for_each(|slot| *slot = None);
    }

    fn truncate_checkpoints(&mut self, len: usize) {
        let lost = self.checkpoints.iter_mut().filter(|at| at.is_some_and(|at| at > len));
        lost.for_each(|at| *at = None);
    }

    /// Forgets the states and inputs from `len` on, and a state of exactly `len` tokens, which a failed pass may have
    /// begun to write.
    fn forget_unfinished(&mut self, len: usize) {
        self.truncate(len);
        self.checkpoints.iter_mut().filter(|at| **at == Some(len)).for_each(|at| *at = None);
    }

    /// Plans a pass of a net whose convolution sees `reach` earlier positions.
    ///
    /// # Errors
    /// [`Error::Internal`] if no checkpoint is held from which the pass can continue.
    fn plan(&mut self, mask: &RowMask, reach: usize) -> Result<DeltaPlan> {
        let (rows, base) = (mask.rows(), mask.base());
        let cached = mask.slots() - rows;
        self.truncate(cached);
        let lost = || Error::Internal(format!("no state before row {base} of {cached} is held"));
        let can_continue = |from: usize| from <= base && (from..base).all(|slot| self.has_input(slot));
        let held =
            self.checkpoints.iter().enumerate().filter_map(|(place, at)| at.map(|at| (at, Some(place))));
        let nearest = held.chain([(0, None)]).filter(|&(at, _)| can_continue(at)).max();
        let (start, from) = nearest.ok_or_else(lost)?;
        let mut again: Vec<usize> = (start..base).collect();
        let mut paths = Paths::default();
        let mut before = None;
        for index in 0..again.len() {
            before = Some(paths.follow(before, NodeInput::Again(index)));
        }
        for row in 0..rows {
            // Rows of a chain follow each other.
            if mask.is_causal() {
                before = Some(paths.follow(before, NodeInput::Row(row)));
                continue;
            }
            let mut node = before;
            for slot in mask.visible_tail(row) {
                let input = match slot.checked_sub(cached) {
                    Some(row) => NodeInput::Row(row),
                    // A row of an earlier pass that only some rows see.
                    None if self.has_input(slot) => {
                        let index = again.iter().position(|&other| other == slot).unwrap_or(again.len());
                        if index == again.len() {
                            again.push(slot);
                        }
                        NodeInput::Again(index)
                    }
                    None => return Err(lost()),
                };
                node = Some(paths.follow(node, input));
            }
        }
        let mut saved = Vec::new();
        if start < base {
            saved.push((NodeInput::Again(base - start - 1), base));
        }
        if mask.is_causal() {
            // Drafts may go back to a row within a long pass.
            let lens = [rows.checked_sub(GAP).filter(|&len| len > 0), Some(rows)];
            saved.extend(lens.into_iter().flatten().map(|len| (NodeInput::Row(len - 1), base + len)));
        }
        let mut pending: Vec<(usize, usize)> = Vec::new();
        for &(_, len) in &saved {
            let place = self.free_place(len, from, &pending);
            pending.push((place, len));
        }
        let saved: Vec<NodeInput> = saved.into_iter().map(|(input, _)| input).collect();
        let mut plan = paths.into_plan(again.len(), reach);
        plan.saves =
            saved.iter().zip(&pending).map(|(input, &(place, _))| (plan.node_of(*input), place)).collect();
        plan.again = again.iter().map(|slot| slot % DELTA_INPUTS).collect();
        let plan = DeltaPlan { rows, from, pending, cached, ..plan };
        // The pass overwrites these places, also if it fails later.
        plan.held_rows().for_each(|(_, place)| self.inputs[place] = None);
        Ok(plan)
    }

    /// Returns the place for a checkpoint of `len` tokens, which is then empty. `from` stays, and so do those of
    /// `pending`, which a pass is about to fill.
    fn free_place(&mut self, len: usize, from: Option<usize>, pending: &[(usize, usize)]) -> usize {
        let is_pending = |place: usize| pending.iter().any(|&(other, _)| other == place);
        let is_free = |place: &usize| self.checkpoints[*place].is_none() && !is_pending(*place);
        if let Some(place) = (0..DELTA_CHECKPOINTS).find(is_free) {
            return place;
        }
        let own = self.checkpoints.iter().flatten().copied();
        let mut lens: Vec<usize> = own.chain(pending.iter().map(|&(_, len)| len)).chain([0, len]).collect();
        lens.sort_unstable();
        lens.dedup();
        // Distance of the checkpoint before it from the end, relative to that of the one after it. Last come gaps that are
        // too wide, and the first checkpoint after a rollback by more than the held inputs: no earlier one leads there.
        let cost = |at: usize| {
            let prev = lens.iter().rev().find(|&&other| other < at).copied().unwrap_or(0);
            let next = lens.iter().find(|&&other| other > at).copied().unwrap_or(at);
            let is_only = (prev..at).any(|slot| !self.has_input(slot)) && self.has_input(at);
            let is_needed = next + DELTA_INPUTS > len && (next - prev > GAP || is_only);
            let distance = |of: usize| (NEAR + len.saturating_sub(of)) as f64;
            (is_needed, distance(prev) / distance(next))
        };
        let candidates = (0..DELTA_CHECKPOINTS).filter(|&place| Some(place) != from && !is_pending(place));
        let costs = candidates.filter_map(|place| self.checkpoints[place].map(|at| (cost(at), place)));
        let cheapest = costs.min_by(|(a, _), (b, _)| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let place = cheapest.map_or(0, |(_, place)| place);
        self.checkpoints[place] = None;
        place
    }

    /// Moves slots `base + rows[i]` to `base + i`. Returns pairs of places.
    ///
    /// # Errors
    /// [`Error::Internal`] if an input is not held.
    fn keep(&mut self, base: usize, rows: &[usize]) -> Result<Vec<(usize, usize)>> {
        let mut moves = Vec::new();
        for (to, &from) in rows.iter().enumerate().filter(|(to, from)| to != *from) {
            if moves.is_empty() {
                self.truncate_checkpoints(base + to);
            }
            let (from, to) = (base + from, base + to);
            if !self.has_input(from) {
                return Err(Error::Internal(format!("the input of row {from} is not held")));
            }
            moves.push((from % DELTA_INPUTS, to % DELTA_INPUTS));
            self.inputs[to % DELTA_INPUTS] = Some(to);
        }
        Ok(moves)
    }
}

/// Input of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeInput {
    /// Held input, by its index among those that are read again.
    Again(usize),
    /// Row of the pass.
    Row(usize),
}

/// Paths of rows as a tree of nodes: paths share what they begin with.
#[derive(Default)]
struct Paths {
    /// Parent and input of each node.
    nodes: Vec<(Option<usize>, NodeInput)>,
    /// Nodes after each node.
    children: Vec<Vec<usize>>,
    /// Nodes without a parent.
    first: Vec<usize>,
}

impl Paths {
    /// Returns the node of an input after `parent`. Creates it if there is none.
    fn follow(&mut self, parent: Option<usize>, input: NodeInput) -> usize {
        let children = match parent {
            Some(parent) => &mut self.children[parent],
            None => &mut self.first,
        };
        if let Some(&node) = children.iter().find(|&&node| self.nodes[node].1 == input) {
            return node;
        }
        let node = self.nodes.len();
        children.push(node);
        self.nodes.push((parent, input));
        self.children.push(Vec::new());
        node
    }

    /// Puts the nodes in depth-first order. `again` inputs are read again, and a convolution sees `reach` inputs before
    /// its own.
    fn into_plan(self, again: usize, reach: usize) -> DeltaPlan {
        let mut plan = DeltaPlan {
            is_forked: self.first.len() > 1,
            inputs_before_rows: reach + again,
            ..DeltaPlan::default()
        };
        // Nodes to visit, each with its parent in the new order.
        let mut open: Vec<(usize, Option<usize>)> =
            self.first.iter().rev().map(|&node| (node, None)).collect();
        while let Some((node, parent)) = open.pop() {
            let index = plan.nodes.len();
            let (row, own) = match self.nodes[node].1 {
                NodeInput::Again(at) => (None, reach + at),
                NodeInput::Row(row) => (Some(row), reach + again + row),
            };
            match parent {
                Some(parent) => {
                    plan.seen.extend_from_within(parent * (reach + 1) + 1..(parent + 1) * (reach + 1))
                }
                None => plan.seen.extend(0..reach),
            }
            plan.seen.push(own);
            let is_branch = self.children[node].len() > 1;
            plan.nodes.push(DeltaNode { parent, row, is_branch });
            open.extend(self.children[node].iter().rev().map(|&child| (child, Some(index))));
        }
        plan.reach = reach;
        plan
    }
}

/// States of all gated delta nets of a model.
pub(crate) struct Checkpoints {
    held: Held,
    shape: DeltaShape,
    /// Memory of each layer of the model. `None` for layers with attention.
    layers: Vec<Option<LayerMemory>>,
    /// Lengths of the checkpoints that the pass keeps, with their places, and the layers that have kept theirs.
    pending: (Vec<(usize, usize)>, usize),
}

/// Memory of a layer.
enum LayerMemory {
    Host(DeltaMemory),
    Metal(GpuDeltaMemory),
}

/// States and inputs of a layer on the GPU.
pub(crate) struct GpuDeltaMemory {
    /// States, `[`[`DELTA_CHECKPOINTS`]`, state]`, with columns where [`DeltaMemory`] has rows.
    pub(crate) states: Buffer,
    /// Last inputs, `[`[`DELTA_INPUTS`]`, row]`, then those that the convolution sees after each checkpoint,
    /// `[`[`DELTA_CHECKPOINTS`]`, reach, row]`.
    pub(crate) held: Buffer,
}

/// States and inputs of a layer in host memory.
#[derive(Default)]
pub(crate) struct DeltaMemory {
    /// States, `[`[`DELTA_CHECKPOINTS`]`, state]`.
    pub(crate) states: Vec<f32>,
    /// Inputs that the convolution sees after each checkpoint, `[`[`DELTA_CHECKPOINTS`]`, reach, row]`.
    pub(crate) before: Vec<f32>,
    /// Last inputs, `[`[`DELTA_INPUTS`]`, row]`.
    pub(crate) inputs: Vec<f32>,
}

impl Checkpoints {
    /// Creates states without memory. `has_state` says which layers have one.
    pub(super) fn new(shape: DeltaShape, has_state: impl Iterator<Item = bool>) -> Self {
        let memory = |has_state: bool| has_state.then(|| LayerMemory::Host(DeltaMemory::default()));
        let layers = has_state.map(memory).collect();
        Self { held: Held::new(), shape, layers, pending: (Vec::new(), 0) }
    }

    fn reach(&self) -> usize {
        self.shape.positions - 1
    }

    /// Returns the allocated memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        let of_layer = |of: &LayerMemory| match of {
            LayerMemory::Host(of) => size_of::<f32>() * (of.states.len() + of.before.len() + of.inputs.len()),
            LayerMemory::Metal(of) => of.states.bytes() + of.held.bytes(),
        };
        self.layers.iter().flatten().map(of_layer).sum()
    }

    /// Ensures memory on the GPU of `kernels` or of the host, which has the same size for any text.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(super) fn reserve(&mut self, kernels: Option<&Arc<Kernels>>) -> Result<()> {
        let (shape, reach) = (self.shape, self.reach());
        for layer in self.layers.iter_mut().flatten() {
            let memory = match (&mut *layer, kernels) {
                (LayerMemory::Host(memory), None) => memory,
                (LayerMemory::Host(_), Some(kernels)) => {
                    let floats = |count: usize| Buffer::new(kernels.gpu(), size_of::<f32>() * count);
                    // Nothing is read before it is written.
                    *layer = LayerMemory::Metal(GpuDeltaMemory {
                        states: floats(DELTA_CHECKPOINTS * shape.state())?,
                        held: floats((DELTA_INPUTS + DELTA_CHECKPOINTS * reach) * shape.row())?,
                    });
                    continue;
                }
                (LayerMemory::Metal(_), _) => continue,
            };
            let parts = [
                (&mut memory.states, DELTA_CHECKPOINTS * shape.state()),
                (&mut memory.before, DELTA_CHECKPOINTS * reach * shape.row()),
                (&mut memory.inputs, DELTA_INPUTS * shape.row()),
            ];
            for (values, len) in parts.into_iter().filter(|(values, _)| values.is_empty()) {
                values.try_reserve_exact(len).map_err(|_| {
                    let needed = megabytes((len * size_of::<f32>()) as u64);
                    Error::OutOfMemory(format!("a layer's state needs {needed}"))
                })?;
                values.resize(len, 0.0);
            }
        }
        Ok(())
    }

    /// See [`Held::restorable`].
    pub(super) fn restorable(&self, len: usize) -> usize {
        self.held.restorable(len)
    }

    /// Forgets what passes after `len` slots may have written, because they did not run to the end.
    pub(super) fn forget_unfinished(&mut self, len: usize) {
        self.held.forget_unfinished(len);
    }

    /// Plans a pass. Its states count as held after [`advance`](Self::advance).
    ///
    /// # Errors
    /// [`Error::Internal`] if no state is held from which the pass can continue.
    pub(super) fn plan(&mut self, mask: &RowMask) -> Result<DeltaPlan> {
        let reach = self.reach();
        let plan = self.held.plan(mask, reach)?;
        self.pending = (plan.pending.clone(), 0);
        Ok(plan)
    }

    /// Returns the memory of a layer on the host, to which the caller writes what the plan says.
    ///
    /// # Errors
    /// [`Error::Internal`] if the layer has none there.
    pub(super) fn host(&mut self, layer: usize) -> Result<&mut DeltaMemory> {
        match self.written_layer(layer) {
            Some(LayerMemory::Host(memory)) => Ok(memory),
            _ => Err(no_state()),
        }
    }

    /// Returns the memory of a layer on the GPU, to which the caller writes what the plan says.
    ///
    /// # Errors
    /// [`Error::Internal`] if the layer has none there.
    pub(super) fn gpu(&mut self, layer: usize) -> Result<&GpuDeltaMemory> {
        match self.written_layer(layer) {
            Some(LayerMemory::Metal(memory)) => Ok(memory),
            _ => Err(no_state()),
        }
    }

    /// Returns the memory of a layer, and counts the layer as written.
    fn written_layer(&mut self, layer: usize) -> Option<&mut LayerMemory> {
        self.pending.1 += 1;
        self.layers.get_mut(layer).and_then(Option::as_mut)
    }

    /// Counts what a pass of `rows` rows after `cached` slots has written as held. States do not count if the pass
    /// left out layers, as drafts of the first layers do.
    pub(super) fn advance(&mut self, cached: usize, rows: usize) {
        let (pending, written) = std::mem::take(&mut self.pending);
        if written == self.layers.iter().flatten().count() {
            pending.into_iter().for_each(|(place, len)| self.held.checkpoints[place] = Some(len));
        }
        for slot in cached + rows.saturating_sub(DELTA_INPUTS)..cached + rows {
            self.held.inputs[slot % DELTA_INPUTS] = Some(slot);
        }
    }

    /// Moves slots `base + rows[i]` to `base + i` in all layers.
    ///
    /// # Errors
    /// [`Error::Internal`] if an input is not held, or if the device fails.
    pub(super) fn keep(&mut self, base: usize, rows: &[usize], kernels: Option<&Arc<Kernels>>) -> Result<()> {
        let moves = self.held.keep(base, rows)?;
        let width = self.shape.row();
        let on_gpu = kernels.filter(|_| !moves.is_empty());
        let gpu_moves = on_gpu.map(|kernels| RowMoves::new(kernels.gpu(), &moves)).transpose()?;
        for memory in self.layers.iter_mut().flatten() {
            match (memory, kernels, &gpu_moves) {
                (LayerMemory::Host(memory), ..) => move_rows(&mut memory.inputs, &moves, width),
                (LayerMemory::Metal(memory), Some(kernels), Some(gpu_moves)) => {
                    // Twice as many halves as floats.
                    kernels.move_rows(memory.held.at_byte(0), gpu_moves, 2 * width)?;
                }
                (LayerMemory::Metal(_), ..) => {}
            }
        }
        Ok(())
    }
}

fn no_state() -> Error {
    Error::Internal("the layer has no states in this memory".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a pass over `rows` rows after `cached` slots. Returns the checkpoint that it began with.
    fn run(checkpoints: &mut Checkpoints, cached: usize, rows: usize) -> Option<usize> {
        let plan = checkpoints.plan(&RowMask::causal(cached, rows)).unwrap();
        checkpoints.host(0).unwrap();
        checkpoints.advance(cached, rows);
        plan.from
    }

    #[test]
    fn states_of_a_failed_chain_are_not_used() {
        let shape = DeltaShape { key_heads: 2, value_heads: 4, head_dim: 32, positions: 4, is_tiled: false };
        let mut checkpoints = Checkpoints::new(shape, [true].into_iter());
        assert_eq!(run(&mut checkpoints, 0, 10), None);
        // After a rollback, a pass computes the state before it again and keeps it.
        assert_eq!(run(&mut checkpoints, 8, 1), None);
        let kept = checkpoints.plan(&RowMask::causal(8, 1)).unwrap().from;
        assert!(kept.is_some());
        run(&mut checkpoints, 8, 1);
        checkpoints.forget_unfinished(8);
        assert_eq!(checkpoints.restorable(8), 8);
        assert_eq!(checkpoints.plan(&RowMask::causal(8, 1)).unwrap().from, None);
    }
}
