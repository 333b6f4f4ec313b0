//! The cache slots that each row of a pass sees. Pure: no tensors, no model.

use crate::error::{Error, Result};

/// The rows of one pass: `base` slots seen by all, then slots that some may see and a slot per row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowMask {
    base: usize,
    /// Slots between those that all see and those of the rows.
    unsettled: usize,
    rows: usize,
    /// `None` = causal, with nothing unsettled. Else bit j of `bits[i]`: row i sees slot `base + j`; its
    /// own bit is set.
    bits: Option<Vec<u64>>,
    depths: Vec<usize>,
}

impl RowMask {
    /// Row i sees rows 0..=i.
    pub fn causal(base: usize, rows: usize) -> Self {
        Self { base, unsettled: 0, rows, bits: None, depths: (0..rows).collect() }
    }

    /// Every row sees the cache, its ancestors and itself. `parents[i] < i`, or `None` for a row that follows
    /// the cache directly; the position of a row is `cached` plus its depth.
    ///
    /// # Errors
    /// When there are more than 64 rows, or a parent is not an earlier row.
    pub fn tree(cached: usize, parents: &[Option<usize>]) -> Result<Self> {
        let (bits, depths) = tree_bits(parents)?;
        Self::from_bits(cached, cached, bits, depths)
    }

    /// Every row sees the slots before `since`. Of the slots from there on, which are those that earlier passes
    /// left unsettled and then one for each row, row i sees slot `since + j` where bit j of `visible[i]` is set:
    /// its own bit is set, none after it. The position of row i is `since + depths[i]`.
    ///
    /// # Errors
    /// When `depths` and `visible` differ in length, `since` is past `cached`, more than 64 slots follow `since`,
    /// or a row sees a later one or not itself.
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
            return Err(Error::Layout(format!("a layout does not describe its {rows} rows")));
        };
        // A tree that is a chain takes the shorter path; the result is the same.
        let chain = bits.iter().enumerate().all(|(i, b)| b.count_ones() as usize == unsettled + i + 1)
            && depths.iter().enumerate().all(|(i, d)| unsettled + i == *d);
        if chain {
            return Ok(Self::causal(cached, rows));
        }
        Ok(Self { base, unsettled, rows, bits: Some(bits), depths })
    }

    /// Slots that every row sees.
    pub fn base(&self) -> usize {
        self.base
    }

    /// All slots: those before the pass and one a row.
    pub fn slots(&self) -> usize {
        self.base + self.unsettled + self.rows
    }

    /// Rows of the pass.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The absolute position of each row.
    pub fn positions(&self) -> impl Iterator<Item = usize> + '_ {
        self.depths.iter().map(|d| self.base + d)
    }

    /// Whether row i simply sees every slot up to its own.
    pub fn is_causal(&self) -> bool {
        self.bits.is_none()
    }

    /// The slots row `row` sees, in the order of their positions.
    pub fn visible(&self, row: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.base).chain(self.visible_tail(row))
    }

    /// Those of them that not every row sees.
    pub fn visible_tail(&self, row: usize) -> impl Iterator<Item = usize> + '_ {
        // Without bits every row up to its own is seen; then there may be more than 64 of them.
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

    /// The additive mask `[rows, slots]`: 0 where seen, minus infinity elsewhere.
    pub fn additive(&self) -> Vec<f32> {
        let width = self.slots();
        let mut mask = vec![f32::NEG_INFINITY; self.rows * width];
        for row in 0..self.rows {
            for slot in self.visible(row) {
                mask[row * width + slot] = 0.0;
            }
        }
        mask
    }
}

fn tree_bits(parents: &[Option<usize>]) -> Result<(Vec<u64>, Vec<usize>)> {
    let rows = parents.len();
    if rows > 64 {
        return Err(Error::Layout(format!("a tree of {rows} rows; at most 64 fit")));
    }
    let (mut bits, mut depths) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
    for (i, &parent) in parents.iter().enumerate() {
        let (seen, depth) = match parent {
            None => (0, 0),
            Some(p) if p < i => (bits[p], depths[p] + 1),
            Some(p) => return Err(Error::Layout(format!("row {i} has the later row {p} as parent"))),
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
    fn a_row_of_a_tree_sees_its_ancestors_only() {
        let parents = [None, Some(0), Some(0), Some(1)];
        let mask = RowMask::tree(2, &parents).unwrap();
        assert_eq!(mask.visible(3).collect::<Vec<_>>(), [0, 1, 2, 3, 5]);
        assert_eq!(mask.visible(2).collect::<Vec<_>>(), [0, 1, 2, 4]);
        assert_eq!(mask.positions().collect::<Vec<_>>(), [2, 3, 3, 4]);
    }

    #[test]
    fn impossible_layouts_are_refused() {
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
    fn rows_may_hang_on_what_an_earlier_pass_left() {
        // Slots 3 and 4 are siblings of an earlier pass; a row follows each.
        let mask = RowMask::custom(5, 3, &[1, 1], &[0b101, 0b1010]).unwrap();
        assert_eq!(mask.visible(0).collect::<Vec<_>>(), [0, 1, 2, 3, 5]);
        assert_eq!(mask.visible(1).collect::<Vec<_>>(), [0, 1, 2, 4, 6]);
        assert_eq!(mask.positions().collect::<Vec<_>>(), [4, 4]);
        assert_eq!((mask.base(), mask.slots(), mask.additive().len()), (3, 7, 14));
        let chain = RowMask::custom(5, 3, &[2, 3], &[0b111, 0b1111]).unwrap();
        assert_eq!(chain, RowMask::causal(5, 2));
    }

    proptest! {
        #[test]
        fn a_chain_written_as_a_tree_is_causal(base in 0usize..50, rows in 1usize..40) {
            let parents: Vec<_> = (0..rows).map(|i: usize| i.checked_sub(1)).collect();
            let tree = RowMask::tree(base, &parents).unwrap();
            prop_assert_eq!(tree, RowMask::causal(base, rows));
        }

        #[test]
        fn a_row_sees_as_many_rows_as_it_is_deep(seeds in proptest::collection::vec(any::<u32>(), 1..60)) {
            let parents: Vec<_> = seeds.iter().enumerate()
                .map(|(i, s)| (*s as usize % (i + 1)).checked_sub(1)).collect();
            let mask = RowMask::tree(7, &parents).unwrap();
            for (row, position) in mask.positions().enumerate() {
                prop_assert_eq!(mask.visible(row).count(), position + 1);
                prop_assert_eq!(mask.visible(row).last(), Some(7 + row));
            }
        }
    }
}
