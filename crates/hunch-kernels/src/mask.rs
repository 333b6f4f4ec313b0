//! Attention masks: the cache slots visible to each row of a pass. No tensors and no model here.

use std::ops::Range;

use crate::error::{Error, Result};

/// Positions that a row sees: the first ones, and the last ones up to its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Number of first positions (attention sinks; Xiao et al., arXiv 2309.17453). 0 for none.
    pub leading: usize,
    /// Number of last positions, the row's own included. At least 1.
    pub recent: usize,
}

impl Window {
    /// Returns the positions that a window hides from a row whose last position is `len - 1`. Without a window, or if
    /// the row sees all positions, the range is empty.
    pub fn hidden(window: Option<Self>, len: usize) -> Range<usize> {
        let Some(Self { leading, recent }) = window else { return 0..0 };
        let start = len.saturating_sub(recent);
        leading.min(start)..start
    }

    /// Returns the window of a layer in a pass, for a row whose last position is `len - 1`.
    ///
    /// `own` is the window of the layer in every pass. Such a layer was trained without the first positions. So they are
    /// hidden, and the shorter of both windows counts. A row in the first chunk of a layer sees them.
    pub fn of_layer(pass: Option<Self>, own: Option<LayerWindow>, len: usize) -> Option<Self> {
        let own = match own {
            None => return pass,
            Some(LayerWindow::Chunk(size)) if len <= size => return pass,
            Some(LayerWindow::Chunk(size)) => (len - 1) % size + 1,
            Some(LayerWindow::Last(positions)) => positions,
        };
        Some(Self { leading: 0, recent: pass.map_or(own, |pass| pass.recent.min(own)) })
    }
}

/// Positions that a row of a layer sees in every pass, up to its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerWindow {
    /// The last ones, so many with the row's own. At least 1.
    Last(usize),
    /// Its own chunk. Chunks have so many positions, the first from position 0 on (Llama 4). At least 1.
    Chunk(usize),
}

/// Visible cache slots of the rows of one pass.
///
/// The first `base` slots are visible to all rows. After them come slots of earlier passes that only
/// some rows see, then one slot for each row of this pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowMask {
    base: usize,
    /// Slots of earlier passes that only some rows see, after the first `base` slots.
    unsettled: usize,
    rows: usize,
    /// `None` for a causal mask without unsettled slots. Otherwise row i sees slot `base + j` if bit j
    /// of `bits[i]` is set. Its own bit is always set, and a later one only in a block.
    bits: Option<Vec<u64>>,
    depths: Vec<usize>,
    /// Positions that the rows see, whatever the window of a layer. `None` for all.
    window: Option<Window>,
}

impl RowMask {
    /// Creates a causal mask: row i sees the first `base` slots and rows `0..=i`.
    pub fn causal(base: usize, rows: usize) -> Self {
        Self { base, unsettled: 0, rows, bits: None, depths: (0..rows).collect(), window: None }
    }

    /// Creates the mask of a block: each row sees the cache, the rows before it, itself and `ahead` rows after it. All
    /// rows see each other if `ahead` is large. The position of a row is `cached` plus its number.
    ///
    /// # Errors
    /// If there are more than 64 rows.
    pub fn block(cached: usize, rows: usize, ahead: usize) -> Result<Self> {
        if rows > 64 {
            return Err(Error::Layout(format!("a block has {rows} rows, but the limit is 64")));
        }
        if ahead == 0 {
            return Ok(Self::causal(cached, rows));
        }
        let seen = |row: usize| rows.min((row + 1).saturating_add(ahead)) as u32;
        let bits = (0..rows).map(|row| u64::MAX >> (64 - seen(row))).collect();
        Ok(Self {
            base: cached,
            unsettled: 0,
            rows,
            bits: Some(bits),
            depths: (0..rows).collect(),
            window: None,
        })
    }

    /// Creates a tree mask: each row sees the cache, its ancestors and itself.
    ///
    /// `parents[i]` is below `i`, or `None` for a row that directly follows the cache. The position of a
    /// row is `cached` plus its depth.
    ///
    /// # Errors
    /// If there are more than 64 rows, or a parent is not an earlier row.
    pub fn tree(cached: usize, parents: &[Option<usize>]) -> Result<Self> {
        let (bits, depths) = tree_bits(parents)?;
        Self::from_bits(cached, cached, bits, depths)
    }

    /// Creates a mask from one bit set per row.
    ///
    /// All rows see the slots before `since`. The slots from `since` on are those left by earlier passes,
    /// then one for each row. Row i sees slot `since + j` if bit j of `visible[i]` is set. The highest set
    /// bit must be the row's own. The position of row i is `since + depths[i]`.
    ///
    /// # Errors
    /// If `depths` and `visible` differ in length, or `since` is greater than `cached`. Also if more than 64
    /// slots follow `since`, or the highest bit of a row is not its own.
    pub fn custom(cached: usize, since: usize, depths: &[usize], visible: &[u64]) -> Result<Self> {
        Self::from_bits(cached, since, visible.to_vec(), depths.to_vec())
    }

    fn from_bits(cached: usize, base: usize, bits: Vec<u64>, depths: Vec<usize>) -> Result<Self> {
        let rows = bits.len();
        let unsettled = cached.checked_sub(base).filter(|unsettled| unsettled + rows <= 64);
        let sees_itself_last =
            |unsettled: usize| bits.iter().enumerate().all(|(i, b)| b >> (unsettled + i) == 1);
        let Some(unsettled) =
            unsettled.filter(|&unsettled| depths.len() == rows && sees_itself_last(unsettled))
        else {
            return Err(Error::Layout(format!("the mask does not match its {rows} rows")));
        };
        // A chain takes the faster causal path, with the same result.
        let chain = bits.iter().enumerate().all(|(i, b)| b.count_ones() as usize == unsettled + i + 1)
            && depths.iter().enumerate().all(|(i, d)| unsettled + i == *d);
        if chain {
            return Ok(Self::causal(cached, rows));
        }
        Ok(Self { base, unsettled, rows, bits: Some(bits), depths, window: None })
    }

    /// Limits the positions that the rows see.
    #[must_use]
    pub fn with_window(self, window: Option<Window>) -> Self {
        Self { window, ..self }
    }

    /// Returns the positions that the rows see. `None` for all.
    pub fn window(&self) -> Option<Window> {
        self.window
    }

    /// Returns the number of leading slots visible to all rows.
    pub fn base(&self) -> usize {
        self.base
    }

    /// Returns the number of slots: those before the pass plus one for each row.
    pub fn slots(&self) -> usize {
        self.base + self.unsettled + self.rows
    }

    /// Returns the number of rows in the pass.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the absolute position of each row.
    pub fn positions(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        self.depths.iter().map(|d| self.base + d)
    }

    /// Returns `true` if each row sees all slots up to its own.
    pub fn is_causal(&self) -> bool {
        self.bits.is_none()
    }

    /// Returns the slots visible to `row` without a window, in order of position.
    pub fn visible(&self, row: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.base).chain(self.visible_tail(row))
    }

    /// Returns the slots visible to `row` from [`base`](Self::base) on without a window, in order of position.
    pub fn visible_tail(&self, row: usize) -> impl Iterator<Item = usize> + '_ {
        // A causal mask has no bits, because it may have more than 64 rows.
        let (chain, mut rest) = match &self.bits {
            None => (row + 1, 0),
            Some(bits) => (0, bits[row]),
        };
        let base = self.base;
        let branch = std::iter::from_fn(move || {
            let row = rest.trailing_zeros() as usize;
            (rest != 0).then(|| {
                rest &= rest - 1;
                base + row
            })
        });
        (base..base + chain).chain(branch)
    }

    /// Returns the number of slots that `row` sees up to its own, which is included. Windows end there.
    pub fn path_len(&self, row: usize) -> usize {
        let seen = match &self.bits {
            None => row + 1,
            Some(bits) => (bits[row] & u64::MAX >> (63 - self.unsettled - row)).count_ones() as usize,
        };
        self.base + seen
    }

    /// Returns the additive mask `[rows, slots]`: 0 where visible, negative infinity elsewhere.
    ///
    /// `own` is the window of the layer in every pass ([`Window::of_layer`]).
    pub fn additive(&self, own: Option<LayerWindow>) -> Vec<f32> {
        let width = self.slots();
        let mut mask = vec![f32::NEG_INFINITY; self.rows * width];
        for row in 0..self.rows {
            let len = self.path_len(row);
            let hidden = Window::hidden(Window::of_layer(self.window, own, len), len);
            for (_, slot) in self.visible(row).enumerate().filter(|(position, _)| !hidden.contains(position))
            {
                mask[row * width + slot] = 0.0;
            }
        }
        mask
    }
}

fn tree_bits(parents: &[Option<usize>]) -> Result<(Vec<u64>, Vec<usize>)> {
    let rows = parents.len();
    if rows > 64 {
        return Err(Error::Layout(format!("a draft tree has {rows} rows, but the limit is 64")));
    }
    let (mut bits, mut depths) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
    for (i, &parent) in parents.iter().enumerate() {
        let (seen, depth) = match parent {
            None => (0, 0),
            Some(p) if p < i => (bits[p], depths[p] + 1),
            Some(p) => {
                return Err(Error::Layout(format!("row {i} has parent {p}, which is not an earlier row")));
            }
        };
        bits.push(seen | 1 << i);
        depths.push(depth);
    }
    Ok((bits, depths))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tree_row_sees_only_its_ancestors() {
        let parents = [None, Some(0), Some(0), Some(1)];
        let mask = RowMask::tree(2, &parents).unwrap();
        assert_eq!(mask.visible(3).collect::<Vec<_>>(), [0, 1, 2, 3, 5]);
        assert_eq!(mask.visible(2).collect::<Vec<_>>(), [0, 1, 2, 4]);
        assert_eq!(mask.positions().collect::<Vec<_>>(), [2, 3, 3, 4]);
    }

    #[test]
    fn rows_of_a_block_see_each_other() {
        let mask = RowMask::block(2, 3, usize::MAX).unwrap();
        for row in 0..3 {
            assert_eq!(mask.visible(row).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        }
        assert_eq!(mask.positions().collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(RowMask::block(0, 64, usize::MAX).unwrap().visible(0).count(), 64);
        assert_eq!(RowMask::block(7, 0, 1).unwrap().slots(), 7);
        assert!(RowMask::block(0, 65, 0).is_err() && RowMask::block(0, 65, 1).is_err());
        assert_eq!(RowMask::block(5, 4, 0).unwrap(), RowMask::causal(5, 4));
    }

    #[test]
    fn window_hides_earlier_positions_of_a_path() {
        let mask = RowMask::tree(2, &[None, Some(0), Some(0)]).unwrap();
        let seen = |row: usize| -> Vec<usize> {
            let additive = mask.additive(Some(LayerWindow::Last(2)));
            (0..5).filter(|slot| additive[row * 5 + slot] == 0.0).collect()
        };
        assert_eq!((seen(0), seen(1), seen(2)), (vec![1, 2], vec![2, 3], vec![2, 4]));
    }

    #[test]
    fn chunk_hides_positions_of_earlier_chunks_of_a_path() {
        // Positions 2, 3, 3, 4, 5 and 4. Chunks are 0 to 3 and 4 to 7.
        let mask = RowMask::tree(2, &[None, Some(0), Some(0), Some(1), Some(3), Some(2)]).unwrap();
        let seen = |mask: &RowMask, row: usize| -> Vec<usize> {
            let additive = mask.additive(Some(LayerWindow::Chunk(4)));
            (0..mask.slots()).filter(|slot| additive[row * mask.slots() + slot] == 0.0).collect()
        };
        assert_eq!((seen(&mask, 0), seen(&mask, 1)), (vec![0, 1, 2], vec![0, 1, 2, 3]));
        assert_eq!(seen(&mask, 2), [0, 1, 2, 4]);
        assert_eq!((seen(&mask, 3), seen(&mask, 4), seen(&mask, 5)), (vec![5], vec![5, 6], vec![7]));
        // First positions are in the first chunk only, and the shorter window counts.
        let mask = RowMask::causal(3, 6).with_window(Some(Window { leading: 1, recent: 2 }));
        assert_eq!((seen(&mask, 0), seen(&mask, 1)), (vec![0, 2, 3], vec![4]));
        assert_eq!((seen(&mask, 4), seen(&mask, 5)), (vec![6, 7], vec![8]));
    }

    #[test]
    fn window_of_a_pass_keeps_first_and_last_positions() {
        let window = Some(Window { leading: 2, recent: 3 });
        let seen = |mask: &RowMask, row: usize, own: Option<usize>| -> Vec<usize> {
            let additive = mask.additive(own.map(LayerWindow::Last));
            (0..mask.slots()).filter(|slot| additive[row * mask.slots() + slot] == 0.0).collect()
        };
        let chain = RowMask::causal(3, 5).with_window(window);
        // Rows see everything until the window leaves a gap.
        assert_eq!(seen(&chain, 0, None), [0, 1, 2, 3]);
        assert_eq!(seen(&chain, 1, None), [0, 1, 2, 3, 4]);
        assert_eq!(seen(&chain, 4, None), [0, 1, 5, 6, 7]);
        // A layer with a window sees no first positions.
        assert_eq!(seen(&chain, 4, Some(2)), [6, 7]);
        assert_eq!(seen(&chain, 4, Some(100)), [5, 6, 7]);
        let tree = RowMask::tree(6, &[None, Some(0), Some(0)]).unwrap().with_window(window);
        assert_eq!(seen(&tree, 2, None), [0, 1, 5, 6, 8]);
        assert_eq!(Window::hidden(Some(Window { leading: 0, recent: usize::MAX }), 9), 0..0);
        assert_eq!(Window::hidden(Some(Window { leading: 9, recent: 1 }), 5), 4..4);
    }

    #[test]
    fn rejects_invalid_layouts() {
        let forward = [Some(1), None];
        assert!(RowMask::tree(0, &forward).is_err());
        assert!(RowMask::custom(0, 0, &[0, 1], &[1]).is_err());
        let blind = RowMask::custom(0, 0, &[0], &[0]);
        let sees_later_row = RowMask::custom(0, 0, &[0, 1], &[0b11, 0b11]);
        let since_past_cache = RowMask::custom(4, 5, &[0], &[1]);
        let too_many_slots = RowMask::custom(64, 0, &[64], &[1]);
        for mask in [blind, sees_later_row, since_past_cache, too_many_slots] {
            assert!(mask.is_err());
        }
    }

    #[test]
    fn rows_can_follow_branches_of_an_earlier_pass() {
        // Slots 3 and 4 are siblings from an earlier pass. One row follows each.
        let mask = RowMask::custom(5, 3, &[1, 1], &[0b101, 0b1010]).unwrap();
        assert_eq!(mask.visible(0).collect::<Vec<_>>(), [0, 1, 2, 3, 5]);
        assert_eq!(mask.visible(1).collect::<Vec<_>>(), [0, 1, 2, 4, 6]);
        assert_eq!(mask.positions().collect::<Vec<_>>(), [4, 4]);
        assert_eq!((mask.base(), mask.slots(), mask.additive(None).len()), (3, 7, 14));
        let chain = RowMask::custom(5, 3, &[2, 3], &[0b111, 0b1111]).unwrap();
        assert_eq!(chain, RowMask::causal(5, 2));
    }

    proptest! {
        #[test]
        fn chain_tree_equals_causal_mask(base in 0usize..50, rows in 1usize..40) {
            let parents: Vec<_> = (0..rows).map(|i: usize| i.checked_sub(1)).collect();
            let tree = RowMask::tree(base, &parents).unwrap();
            prop_assert_eq!(tree, RowMask::causal(base, rows));
        }

        /// A row of a block sees the positions at most `ahead` after its own, and with a window those less than the
        /// window before it.
        #[test]
        fn windows_of_a_block_end_at_its_rows(
            base in 0usize..30, rows in 1usize..20, ahead in 0usize..24, window in 1usize..40,
        ) {
            let mask = RowMask::block(base, rows, ahead).unwrap();
            let additive = mask.additive(Some(LayerWindow::Last(window)));
            for row in 0..rows {
                let own = base + row;
                prop_assert_eq!(mask.path_len(row), own + 1);
                for slot in 0..base + rows {
                    let seen = slot <= own + ahead && own < slot + window;
                    prop_assert_eq!(additive[row * (base + rows) + slot] == 0.0, seen, "row {}, slot {}", row, slot);
                }
            }
        }

        #[test]
        fn visible_slots_match_depth_of_row(seeds in proptest::collection::vec(any::<u32>(), 1..60)) {
            let parents: Vec<_> = seeds.iter().enumerate()
                .map(|(i, s)| (*s as usize % (i + 1)).checked_sub(1)).collect();
            let mask = RowMask::tree(7, &parents).unwrap();
            for (row, position) in mask.positions().enumerate() {
                prop_assert_eq!(mask.visible(row).count(), position + 1);
                prop_assert_eq!(mask.visible(row).last(), Some(7 + row));
                prop_assert_eq!(mask.path_len(row), position + 1);
            }
        }
    }
}
