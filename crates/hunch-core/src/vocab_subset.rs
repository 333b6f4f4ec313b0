//! The tokens of a vocabulary whose logits a pass computes. Pure.

/// A set of tokens in blocks of [`VocabSubset::WIDTH`] neighbours: the head's weight rows are read in
/// blocks too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VocabSubset {
    /// Numbers of the blocks, ascending.
    blocks: Vec<u32>,
}

impl VocabSubset {
    /// Tokens in a block.
    pub const WIDTH: usize = 16;

    /// The first `count` tokens, to a whole block.
    pub fn first(count: usize) -> Self {
        Self { blocks: (0..count.div_ceil(Self::WIDTH) as u32).collect() }
    }

    /// Adds the block of a token.
    pub fn insert(&mut self, token: u32) {
        let block = token / Self::WIDTH as u32;
        if let Err(at) = self.blocks.binary_search(&block) {
            self.blocks.insert(at, block);
        }
    }

    /// With the blocks of another set.
    pub fn with(mut self, other: &Self) -> Self {
        self.blocks.extend_from_slice(&other.blocks);
        self.blocks.sort_unstable();
        self.blocks.dedup();
        self
    }

    /// Whether a token is in it.
    pub fn contains(&self, token: u32) -> bool {
        self.blocks.binary_search(&(token / Self::WIDTH as u32)).is_ok()
    }

    /// The share of a vocabulary that they cover, as their rows are scored.
    pub fn share_of(&self, n_vocab: usize) -> f64 {
        ((self.blocks().len() * Self::WIDTH) as f64 / n_vocab as f64).min(1.0)
    }

    /// The numbers of its blocks, ascending.
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_hold_their_tokens_once_and_in_order() {
        let mut tokens = VocabSubset::first(17);
        for token in [100, 40, 101, 3] {
            tokens.insert(token);
        }
        assert_eq!(tokens.blocks(), [0, 1, 2, 6]);
        assert!(tokens.contains(31) && tokens.contains(47) && tokens.contains(96));
        assert!(!tokens.contains(48) && !tokens.contains(95) && !tokens.contains(112));
        assert!(!VocabSubset::default().contains(0));
        assert_eq!(VocabSubset::first(40).with(&tokens).blocks(), [0, 1, 2, 6]);
    }
}
