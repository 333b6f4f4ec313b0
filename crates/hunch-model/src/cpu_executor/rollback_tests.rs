//! Property of layers with a state: after any changes of a text, the next row has the bits of a text without rollback.
//!
//! A layer stands for a model, whose decoder runs tokens again where their state is not held.

use hunch_kernels::RowMask;
use proptest::prelude::*;

use crate::cache::KvCache;

/// A layer with a state, over tokens as its input.
pub(super) trait StateLayer: Sized {
    fn cache(&mut self) -> &mut KvCache;
    /// Runs a pass whose cache is reserved, and returns the bits of its output, `[rows, width]`.
    fn pass(&mut self, tokens: &[u32], mask: &RowMask) -> Vec<u32>;
}

/// A layer with a text: its tokens, and the rows of the last pass.
pub(super) struct Text<L> {
    pub(super) layer: L,
    tokens: Vec<u32>,
}

impl<L: StateLayer> Text<L> {
    pub(super) fn new(layer: L) -> Self {
        Self { layer, tokens: Vec::new() }
    }

    fn run(&mut self, tokens: &[u32], mask: &RowMask) -> Vec<u32> {
        self.layer.cache().reserve(tokens.len()).unwrap();
        let rows = self.layer.pass(tokens, mask);
        self.layer.cache().advance(tokens.len());
        self.tokens.extend(tokens);
        rows
    }

    pub(super) fn chain(&mut self, tokens: &[u32]) -> Vec<u32> {
        let mask = RowMask::causal(self.layer.cache().len(), tokens.len());
        self.run(tokens, &mask)
    }

    /// As the decoder does it. Returns the number of tokens that run again.
    pub(super) fn truncate(&mut self, len: usize) -> usize {
        let (held, again) = (self.layer.cache().restorable(len), self.tokens.clone());
        assert!(held <= len, "{held} of {len}");
        self.layer.cache().truncate(held);
        self.tokens.truncate(held);
        if held < len {
            self.chain(&again[held..len]);
        }
        len - held
    }

    /// Checks the next row against a text that was never rolled back.
    pub(super) fn assert_continues(&mut self, fresh: impl Fn() -> L) {
        assert_eq!(self.tokens.len(), self.layer.cache().len());
        let mut fresh = Self::new(fresh());
        let tokens = self.tokens.clone();
        if !tokens.is_empty() {
            fresh.chain(&tokens);
        }
        assert_eq!(self.chain(&[5]), fresh.chain(&[5]), "after {} tokens", tokens.len());
        self.truncate(tokens.len());
    }
}

/// Change of a text.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Chain(usize),
    Tree {
        seeds: Vec<u32>,
        kept: usize,
    },
    /// A draft of some rows that is dropped.
    Draft(usize),
    /// A draft row by row, of which some rows are kept.
    Rows {
        count: usize,
        kept: usize,
    },
    /// Rollback by a share of the text, in thousandths.
    Truncate(usize),
    /// A pass of some rows that fails at its end, on a device for example.
    Failed(usize),
}

pub(super) fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (1usize..300).prop_map(Change::Chain),
        (1usize..5).prop_map(Change::Chain),
        (proptest::collection::vec(any::<u32>(), 1..64), any::<usize>())
            .prop_map(|(seeds, kept)| Change::Tree { seeds, kept }),
        (1usize..40).prop_map(Change::Draft),
        (1usize..40, any::<usize>()).prop_map(|(count, kept)| Change::Rows { count, kept }),
        (0usize..1001).prop_map(Change::Truncate),
        (1usize..300).prop_map(Change::Failed),
    ]
}

/// Checks the property. `most_again` is the number of tokens that a rejected draft may run again.
pub(super) fn check<L: StateLayer>(changes: Vec<Change>, fresh: impl Fn() -> L, most_again: usize) {
    let mut text = Text::new(fresh());
    let mut next = 0;
    let mut tokens = |count: usize| -> Vec<u32> {
        next += count as u32;
        (0..count as u32).map(|i| (next * 17 + i * 29) % 1009).collect()
    };
    for change in changes {
        let base = text.layer.cache().len();
        match change {
            Change::Chain(count) => drop(text.chain(&tokens(count))),
            Change::Failed(count) => {
                text.layer.cache().reserve(count).unwrap();
                text.layer.pass(&tokens(count), &RowMask::causal(base, count));
                text.truncate(base);
            }
            Change::Draft(count) => {
                text.chain(&tokens(count));
                assert!(text.truncate(base) <= most_again);
            }
            Change::Rows { count, kept } => {
                for token in tokens(count) {
                    text.chain(&[token]);
                }
                assert!(text.truncate(base + kept % (count + 1)) <= most_again);
            }
            Change::Truncate(share) => drop(text.truncate(base * share / 1000)),
            Change::Tree { seeds, kept } => {
                let parents: Vec<Option<usize>> = seeds
                    .iter()
                    .enumerate()
                    .map(|(i, seed)| (*seed as usize % (i + 1)).checked_sub(1))
                    .collect();
                let nodes = tokens(parents.len());
                let mask = RowMask::tree(base, &parents).unwrap();
                let rows = text.run(&nodes, &mask);
                let node = kept % nodes.len();
                let path: Vec<usize> = mask.visible_tail(node).map(|slot| slot - base).collect();
                text.layer.cache().keep_rows(base, &path).unwrap();
                text.tokens.truncate(base);
                text.tokens.extend(path.iter().map(|&row| nodes[row]));
                // The node's row is that of its path alone.
                let alone = Text::new(fresh()).chain(&text.tokens.clone());
                let width = rows.len() / nodes.len();
                assert_eq!(rows[node * width..][..width], alone[alone.len() - width..]);
            }
        }
        text.assert_continues(&fresh);
    }
}
