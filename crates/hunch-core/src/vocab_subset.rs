//! Subsets of the vocabulary: the tokens whose logits a pass computes.

/// A set of tokens, stored as blocks of [`VocabSubset::WIDTH`] consecutive token IDs.
///
/// The head's weights are read in blocks of the same width.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VocabSubset {
    /// Block numbers, ascending.
    blocks: Vec<u32>,
}

impl VocabSubset {
    /// Tokens per block.
    pub const WIDTH: usize = 16;

    /// Creates the set of the first `count` tokens, rounded up to whole blocks.
    pub fn first(count: usize) -> Self {
        Self { blocks: (0..count.div_ceil(Self::WIDTH) as u32).collect() }
    }

    /// Adds the block that contains `token`.
    pub fn insert(&mut self, token: u32) {
        let block = token / Self::WIDTH as u32;
        if let Err(at) = self.blocks.binary_search(&block) {
            self.blocks.insert(at, block);
        }
    }

    /// Returns the union with another set.
    pub fn union(mut self, other: &Self) -> Self {
        self.blocks.extend_from_slice(&other.blocks);
        self.blocks.sort_unstable();
        self.blocks.dedup();
        self
    }

    /// Returns whether the set contains `token`.
    pub fn contains(&self, token: u32) -> bool {
        self.blocks.binary_search(&(token / Self::WIDTH as u32)).is_ok()
    }

    /// Returns the fraction of a vocabulary of `n_vocab` tokens that is scored, at most 1.
    pub fn share_of(&self, n_vocab: usize) -> f64 {
        ((self.blocks().len() * Self::WIDTH) as f64 / n_vocab as f64).min(1.0)
    }

    /// Returns the block numbers, ascending.
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_each_block_once_in_ascending_order() {
        let mut tokens = VocabSubset::first(17);
        for token in [100, 40, 101, 3] {
            tokens.insert(token);
        }
        assert_eq!(tokens.blocks(), [0, 1, 2, 6]);
        assert!(tokens.contains(31) && tokens.contains(47) && tokens.contains(96));
        assert!(!tokens.contains(48) && !tokens.contains(95) && !tokens.contains(112));
        assert!(!VocabSubset::default().contains(0));
        assert_eq!(VocabSubset::first(40).union(&tokens).blocks(), [0, 1, 2, 6]);
    }
}
