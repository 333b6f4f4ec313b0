//! State of layers without attention: which rows of it are held, where they are, and to which length it can go back.
//!
//! Keys and values of all positions are kept, so their cache goes back to any length by forgetting rows. A layer
//! with a state needs only the state before its next row. Keeping all of them would take more memory than keys and
//! values. Held are those of the last [`HELD_ROWS`] rows, for drafts and trees, and one in [`RESTORE_STEP`] positions
//! of the whole text. To go back elsewhere, [the decoder](crate::decoder) takes the nearest
//! [restorable](StateRows::restorable) length before it, and runs the tokens from there. The rows that run again have
//! the same bits.
//!
//! The state of a short convolution is its input at the last few positions. A row of state is what one position adds to
//! it. A recurrence whose state sums up all positions would hold whole states in such rows. All values are f32.

use std::sync::Arc;

use hunch_error::{Error, Result, megabytes};
use hunch_kernels::RowMask;

use crate::metal::gpu::Buffer;
use crate::metal::kernels::Kernels;
use crate::metal::rows::RowMoves;
use crate::spec::state::{HELD_ROWS_OF_PASS, RESTORE_STEP, RING_PLACES, places};

/// Places of the rows of state of all layers with one.
///
/// A row belongs to a slot of the cache, as its key would. The memory of a layer begins with the places of the last
/// rows. `reach` places for rows that a pass reads and overwrites follow, then the rows before every [`RESTORE_STEP`]
/// slots.
#[derive(Clone, Debug)]
pub(crate) struct StateRows {
    /// Earlier rows that a row reads.
    reach: usize,
    /// Slot in each place of the last rows.
    ring: [Option<usize>; RING_PLACES],
}

/// Rows that a pass reads and writes. The same for all layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConvolutionPlan {
    /// Rows of the pass.
    pub(crate) rows: usize,
    /// Earlier rows that a row reads.
    pub(crate) reach: usize,
    /// Pairs of places: rows that are moved before the pass.
    pub(crate) moves: Vec<(usize, usize)>,
    /// For each row the earlier rows that it reads, the earliest first, and two places where its own goes,
    /// `[rows, reach + 2]`. A number below `rows` is a row of this pass, a greater one a place plus `rows`.
    pub(crate) words: Vec<u32>,
}

impl ConvolutionPlan {
    /// Number of no row and no place.
    pub(crate) const NONE: u32 = u32::MAX;

    /// Returns what row `row` reads.
    pub(crate) fn reads(&self, row: usize) -> impl Iterator<Item = StateSource> + '_ {
        self.of(row)[..self.reach].iter().map(|&word| match word as usize {
            _ if word == Self::NONE => StateSource::None,
            row if row < self.rows => StateSource::Row(row),
            place => StateSource::Place(place - self.rows),
        })
    }

    /// Returns the places that row `row` is written to.
    pub(crate) fn writes(&self, row: usize) -> impl Iterator<Item = usize> + '_ {
        let places = &self.of(row)[self.reach..];
        places.iter().filter(|&&word| word != Self::NONE).map(|&word| word as usize - self.rows)
    }

    fn of(&self, row: usize) -> &[u32] {
        &self.words[row * (self.reach + 2)..][..self.reach + 2]
    }
}

/// Earlier row that a row reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateSource {
    /// None: the text begins after it.
    None,
    /// Row of the same pass.
    Row(usize),
    /// Place in the memory of the layer.
    Place(usize),
}

impl StateRows {
    fn new(reach: usize) -> Self {
        Self { reach, ring: [None; RING_PLACES] }
    }

    /// Returns the place of a slot among those before every [`RESTORE_STEP`] slots, if it has one.
    fn step_place(&self, slot: usize) -> Option<usize> {
        let at = (slot % RESTORE_STEP).checked_sub(RESTORE_STEP - self.reach)?;
        Some(RING_PLACES + self.reach + slot / RESTORE_STEP * self.reach + at)
    }

    /// Returns the place of a slot, if it is held.
    fn place(&self, slot: usize) -> Option<usize> {
        if self.ring[slot % RING_PLACES] == Some(slot) {
            Some(slot % RING_PLACES)
        } else {
            self.step_place(slot)
        }
    }

    /// Returns the greatest length up to `len` whose next row finds all that it reads. `len` is at most the current one.
    pub(crate) fn restorable(&self, len: usize) -> usize {
        let is_held =
            |len: &usize| (len.saturating_sub(self.reach)..*len).all(|slot| self.place(slot).is_some());
        (0..=len).rev().find(is_held).unwrap_or(0)
    }

    /// Plans a pass after `cached` slots. Rows that it does not hold afterwards are forgotten.
    ///
    /// # Errors
    /// [`Error::Internal`] if a row that the pass reads is not held.
    pub(crate) fn plan(&mut self, mask: &RowMask) -> Result<ConvolutionPlan> {
        let (rows, reach) = (mask.rows(), self.reach);
        let cached = mask.slots() - rows;
        let first_kept = cached + rows.saturating_sub(HELD_ROWS_OF_PASS);
        // Rows of passes that were rolled back.
        self.ring
            .iter_mut()
            .filter(|held| held.is_some_and(|slot| slot >= cached))
            .for_each(|held| *held = None);
        let is_overwritten = |place: usize| {
            place < RING_PLACES && (first_kept..cached + rows).any(|slot| slot % RING_PLACES == place)
        };
        let mut plan =
            ConvolutionPlan { rows, reach, moves: Vec::new(), words: Vec::with_capacity(rows * (reach + 2)) };
        for row in 0..rows {
            // A causal mask needs only the last slots, not all of a long pass.
            let own = cached + row;
            let mut earlier: Vec<usize> = if mask.is_causal() {
                (own.saturating_sub(reach)..own).collect()
            } else {
                let before = mask.base().saturating_sub(reach)..mask.base();
                before.chain(mask.visible_tail(row).filter(|&slot| slot != own)).collect()
            };
            earlier.drain(..earlier.len().saturating_sub(reach));
            plan.words.extend(std::iter::repeat_n(ConvolutionPlan::NONE, reach - earlier.len()));
            for slot in earlier {
                if slot >= cached {
                    plan.words.push((slot - cached) as u32);
                    continue;
                }
                let lost = || Error::Internal(format!("the state of row {slot} of {cached} is not held"));
                let mut place = self.place(slot).ok_or_else(lost)?;
                if is_overwritten(place) {
                    // Such passes are long and causal, so these are the last `reach` slots.
                    let moved = RING_PLACES + (cached - 1 - slot);
                    if !plan.moves.contains(&(place, moved)) {
                        plan.moves.push((place, moved));
                    }
                    place = moved;
                }
                plan.words.push((rows + place) as u32);
            }
            let ring = (own >= first_kept).then_some(own % RING_PLACES);
            let word =
                |place: Option<usize>| place.map_or(ConvolutionPlan::NONE, |place| (rows + place) as u32);
            plan.words.extend([word(ring), word(self.step_place(own))]);
        }
        (first_kept..cached + rows).for_each(|slot| self.ring[slot % RING_PLACES] = Some(slot));
        Ok(plan)
    }

    /// Moves slots `base + rows[i]` to `base + i`. Returns pairs of places.
    ///
    /// # Errors
    /// [`Error::Internal`] if a row is not held.
    fn keep(&mut self, base: usize, rows: &[usize]) -> Result<Vec<(usize, usize)>> {
        let mut moves = Vec::new();
        for (to, &from) in rows.iter().enumerate().filter(|(to, from)| to != *from) {
            let (from, to) = (base + from, base + to);
            let held = self.ring[from % RING_PLACES] == Some(from);
            if !held {
                return Err(Error::Internal(format!("the state of row {from} is not held")));
            }
            let places = [Some(to % RING_PLACES), self.step_place(to)];
            moves.extend(places.into_iter().flatten().map(|place| (from % RING_PLACES, place)));
            self.ring[to % RING_PLACES] = Some(to);
        }
        Ok(moves)
    }
}

/// State of all layers with one.
pub(crate) struct ConvolutionStates {
    rows: StateRows,
    /// Values of a row.
    width: usize,
    /// Memory of each layer of the model. `None` for layers with attention.
    layers: Vec<Option<StateMemory>>,
}

/// Rows of state of a layer, `[places, width]`.
enum StateMemory {
    Host(Vec<f32>),
    Gpu(Buffer),
}

impl ConvolutionStates {
    /// Creates states without memory. `has_state` says which layers have one.
    pub(super) fn new(reach: usize, width: usize, has_state: impl Iterator<Item = bool>) -> Self {
        let memory = |has_state: bool| has_state.then(|| StateMemory::Host(Vec::new()));
        Self { rows: StateRows::new(reach), width, layers: has_state.map(memory).collect() }
    }

    /// Returns the allocated memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        let of_layer = |memory: &StateMemory| match memory {
            StateMemory::Host(values) => size_of_val(values.as_slice()),
            StateMemory::Gpu(buffer) => buffer.bytes(),
        };
        self.layers.iter().flatten().map(of_layer).sum()
    }

    /// Ensures places for `capacity` slots, in the memory of `kernels` or of the host. Contents stay.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]. The contents stay unchanged.
    pub(super) fn reserve(&mut self, capacity: usize, kernels: Option<&Arc<Kernels>>) -> Result<()> {
        let values = places(self.rows.reach, capacity) * self.width;
        for memory in self.layers.iter_mut().flatten() {
            match (memory, kernels) {
                (StateMemory::Host(old), None) => {
                    let more = values.saturating_sub(old.len());
                    old.try_reserve_exact(more).map_err(|_| {
                        let needed = megabytes((values * size_of::<f32>()) as u64);
                        Error::OutOfMemory(format!("a layer's state needs {needed} for {capacity} tokens"))
                    })?;
                    old.resize(values.max(old.len()), 0.0);
                }
                (StateMemory::Gpu(old), Some(_)) if old.bytes() >= values * size_of::<f32>() => {}
                (memory, Some(kernels)) => {
                    let new = Buffer::with_floats(kernels.gpu(), &vec![0.0; values])?;
                    if let StateMemory::Gpu(old) = &*memory {
                        kernels.copy(old.at_byte(0), new.at_byte(0), old.bytes())?;
                    }
                    *memory = StateMemory::Gpu(new);
                }
                (StateMemory::Gpu(_), None) => return Err(wrong_memory()),
            }
        }
        Ok(())
    }

    /// See [`StateRows::restorable`].
    pub(super) fn restorable(&self, len: usize) -> usize {
        self.rows.restorable(len)
    }

    /// See [`StateRows::plan`].
    pub(super) fn plan(&mut self, mask: &RowMask) -> Result<ConvolutionPlan> {
        self.rows.plan(mask)
    }

    /// Returns the memory of a layer on the host, `[places, width]`.
    ///
    /// # Errors
    /// [`Error::Internal`] if the layer has no state there.
    pub(super) fn host(&mut self, layer: usize) -> Result<&mut [f32]> {
        match self.layers.get_mut(layer) {
            Some(Some(StateMemory::Host(values))) => Ok(values),
            _ => Err(wrong_memory()),
        }
    }

    /// Returns the memory of a layer on the GPU, `[places, width]`.
    ///
    /// # Errors
    /// [`Error::Internal`] if the layer has no state there.
    pub(super) fn gpu(&self, layer: usize) -> Result<&Buffer> {
        match self.layers.get(layer) {
            Some(Some(StateMemory::Gpu(buffer))) => Ok(buffer),
            _ => Err(wrong_memory()),
        }
    }

    /// Moves slots `base + rows[i]` to `base + i` in all layers.
    ///
    /// # Errors
    /// [`Error::Internal`] if a row is not held, or if the device fails.
    pub(super) fn keep(&mut self, base: usize, rows: &[usize], kernels: Option<&Arc<Kernels>>) -> Result<()> {
        let moves = self.rows.keep(base, rows)?;
        let on_gpu = kernels.filter(|_| !moves.is_empty());
        let gpu_moves = on_gpu.map(|kernels| RowMoves::new(kernels.gpu(), &moves)).transpose()?;
        for memory in self.layers.iter_mut().flatten() {
            match (memory, kernels, &gpu_moves) {
                (StateMemory::Host(values), ..) => move_rows(values, &moves, self.width),
                (StateMemory::Gpu(buffer), Some(kernels), Some(gpu_moves)) => {
                    // Twice as many halves as floats.
                    kernels.move_rows(buffer.at_byte(0), gpu_moves, 2 * self.width)?;
                }
                (StateMemory::Gpu(_), ..) => {}
            }
        }
        Ok(())
    }
}

/// Moves rows of `width` values, in order.
pub(crate) fn move_rows(values: &mut [f32], moves: &[(usize, usize)], width: usize) {
    for &(from, to) in moves {
        values.copy_within(from * width..(from + 1) * width, to * width);
    }
}

fn wrong_memory() -> Error {
    Error::Internal("the layer has no state in this memory".into())
}
