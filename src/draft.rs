//! What a proposer hands to the verifier: a tree of drafted tokens. Pure data, no candle.

use std::sync::Arc;

use crate::token::TokenId;

/// How a drafted token was chosen, which is what the acceptance rule needs to know.
#[derive(Clone, Debug)]
pub enum DraftProb {
    /// Chosen without chance (greedy draft, n-gram): a point mass.
    Certain,
    /// Sampled from this law over the whole vocabulary. Siblings sampled without replacement
    /// carry the same, original law; the verifier removes the ones already tested.
    Sampled(Arc<[f32]>),
}

/// Drafted tokens as a tree, flat, parents before children. The root is the last committed token
/// and is not a node. A chain is the tree where `parent(i) == i - 1`.
#[derive(Clone, Debug, Default)]
pub struct DraftTree {
    tokens: Vec<TokenId>,
    parents: Vec<Option<usize>>,
    probs: Vec<DraftProb>,
    depths: Vec<usize>,
}

impl DraftTree {
    /// A tree with no node: nothing is proposed.
    pub fn new() -> Self {
        Self::default()
    }

    /// A chain of certain tokens.
    pub fn certain_chain(tokens: impl IntoIterator<Item = TokenId>) -> Self {
        let mut tree = Self::new();
        let mut parent = None;
        for token in tokens {
            parent = Some(tree.push(parent, token, DraftProb::Certain));
        }
        tree
    }

    /// Adds a node under `parent` (`None` = under the root) and returns its index. Siblings are
    /// tested in the order they were pushed.
    ///
    /// # Panics
    /// If `parent` is not a node of this tree.
    pub fn push(&mut self, parent: Option<usize>, token: TokenId, prob: DraftProb) -> usize {
        let depth = parent.map_or(0, |p| self.depths[p] + 1);
        self.tokens.push(token);
        self.parents.push(parent);
        self.probs.push(prob);
        self.depths.push(depth);
        self.tokens.len() - 1
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether nothing is proposed.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The drafted tokens, by node.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// The parent of each node; `None` is the root.
    pub fn parents(&self) -> &[Option<usize>] {
        &self.parents
    }

    /// How each node was chosen.
    pub fn prob(&self, node: usize) -> &DraftProb {
        &self.probs[node]
    }

    /// Distance of a node from the first drafted position: 0 for children of the root.
    pub fn depth(&self, node: usize) -> usize {
        self.depths[node]
    }

    /// The children of a node (`None` = of the root), in the order they are to be tested.
    pub fn children(&self, parent: Option<usize>) -> impl Iterator<Item = usize> + '_ {
        let first = parent.map_or(0, |p| p + 1);
        (first..self.len()).filter(move |&i| self.parents[i] == parent)
    }

    /// Whether every node has at most one child and follows its parent directly.
    pub fn is_chain(&self) -> bool {
        self.parents.iter().enumerate().all(|(i, &parent)| parent == i.checked_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_a_tree_with_one_child_per_node() {
        let chain = DraftTree::certain_chain([5, 6, 7]);
        assert!(chain.is_chain());
        assert_eq!(chain.parents(), &[None, Some(0), Some(1)]);
        assert_eq!(chain.children(Some(1)).collect::<Vec<_>>(), vec![2]);
        assert_eq!(chain.depth(2), 2);
    }

    #[test]
    fn siblings_come_in_the_order_they_were_pushed() {
        let mut tree = DraftTree::new();
        let a = tree.push(None, 1, DraftProb::Certain);
        let b = tree.push(None, 2, DraftProb::Certain);
        let c = tree.push(Some(a), 3, DraftProb::Certain);
        assert_eq!(tree.children(None).collect::<Vec<_>>(), vec![a, b]);
        assert_eq!(tree.children(Some(a)).collect::<Vec<_>>(), vec![c]);
        assert!(!tree.is_chain());
    }
}
