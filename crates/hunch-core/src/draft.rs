//! The draft: a tree of proposed tokens, passed from a proposer to the verifier. Data only.

use std::sync::Arc;

use crate::token::{TokenId, TokenProb};

/// The way a drafted token was chosen, which the acceptance rule depends on.
#[derive(Clone, Debug)]
pub enum DraftProb {
    /// Chosen deterministically (greedy draft, n-gram): q is a point mass.
    Certain,
    /// Sampled from this distribution q, `[n_vocab]`.
    ///
    /// Siblings sampled without replacement share the original q. The verifier removes tokens that it
    /// has already tested.
    Sampled(Arc<[f32]>),
}

/// A tree of drafted tokens in flat storage, parents before children.
///
/// The root is the last committed token and not a node. A chain is a tree where node i's parent is
/// i - 1.
#[derive(Clone, Debug, Default)]
pub struct DraftTree {
    tokens: Vec<TokenId>,
    parents: Vec<Option<usize>>,
    probs: Vec<DraftProb>,
    confidence: Vec<Option<f32>>,
    guesses: Vec<Arc<[TokenProb]>>,
    depths: Vec<usize>,
}

impl DraftTree {
    /// Creates an empty tree.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a chain of certain tokens.
    pub fn certain_chain(tokens: impl IntoIterator<Item = TokenId>) -> Self {
        let mut tree = Self::new();
        let mut parent = None;
        for token in tokens {
            parent = Some(tree.push(parent, token, DraftProb::Certain));
        }
        tree
    }

    /// Adds a node under `parent` (`None` is the root) and returns its index.
    ///
    /// Siblings are tested in the order they were pushed. The confidence of a sampled token is its q.
    ///
    /// # Panics
    /// If `parent` is not a node of this tree.
    pub fn push(&mut self, parent: Option<usize>, token: TokenId, prob: DraftProb) -> usize {
        let confidence = match &prob {
            DraftProb::Certain => None,
            DraftProb::Sampled(q) => q.get(token as usize).copied(),
        };
        self.push_node(parent, token, prob, confidence)
    }

    /// Adds a certain token with the draft's confidence in it, from 0 to 1. See [`push`](Self::push).
    ///
    /// # Panics
    /// If `parent` is not a node of this tree.
    pub fn push_certain(&mut self, parent: Option<usize>, token: TokenId, confidence: f32) -> usize {
        self.push_node(parent, token, DraftProb::Certain, Some(confidence))
    }

    /// Creates a chain of certain tokens, each with the draft's confidence in it.
    pub fn confident_chain(tokens: impl IntoIterator<Item = (TokenId, f32)>) -> Self {
        let mut tree = Self::new();
        let mut parent = None;
        for (token, confidence) in tokens {
            parent = Some(tree.push_certain(parent, token, confidence));
        }
        tree
    }

    /// Adds a copy of another tree's node under `parent` and returns its index. A child of `parent` that is certain of
    /// the same token takes the place of a certain node.
    ///
    /// # Panics
    /// If `parent` is not a node of this tree, or `node` not one of `other`.
    pub(crate) fn graft(&mut self, parent: Option<usize>, other: &Self, node: usize) -> usize {
        let (token, prob) = (other.tokens[node], other.prob(node));
        if let DraftProb::Certain = prob {
            let same = |&child: &usize| {
                self.tokens[child] == token && matches!(self.probs[child], DraftProb::Certain)
            };
            if let Some(child) = self.children(parent).find(same) {
                return child;
            }
        }
        let added = self.push_node(parent, token, prob.clone(), other.confidence[node]);
        self.set_guesses(added, other.guesses[node].clone());
        added
    }

    fn push_node(
        &mut self,
        parent: Option<usize>,
        token: TokenId,
        prob: DraftProb,
        confidence: Option<f32>,
    ) -> usize {
        let depth = parent.map_or(0, |p| self.depths[p] + 1);
        self.tokens.push(token);
        self.parents.push(parent);
        self.probs.push(prob);
        self.confidence.push(confidence);
        self.guesses.push(Arc::default());
        self.depths.push(depth);
        self.tokens.len() - 1
    }

    /// Returns the number of nodes.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns whether the tree has no nodes.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns the tokens by node.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Returns the parent of each node; `None` is the root.
    pub fn parents(&self) -> &[Option<usize>] {
        &self.parents
    }

    /// Returns how a node's token was chosen.
    pub fn prob(&self, node: usize) -> &DraftProb {
        &self.probs[node]
    }

    /// Returns the draft's confidence in each node, from 0 to 1; `None` if the proposer states none.
    ///
    /// It guides the draft depth and never the acceptance.
    pub fn confidence(&self) -> &[Option<f32>] {
        &self.confidence
    }

    /// Stores the draft's most likely tokens at a node's position, most likely first.
    pub fn set_guesses(&mut self, node: usize, guesses: Arc<[TokenProb]>) {
        self.guesses[node] = guesses;
    }

    /// Returns the draft's most likely tokens at a node's position; empty if no model drafted.
    pub fn guesses(&self, node: usize) -> &[TokenProb] {
        &self.guesses[node]
    }

    /// Returns whether no token was sampled. Truncating such a draft leaves the output unbiased.
    pub fn is_certain(&self) -> bool {
        self.probs.iter().all(|prob| matches!(prob, DraftProb::Certain))
    }

    /// Returns the length of the longest path.
    pub fn height(&self) -> usize {
        self.depths.iter().map(|depth| depth + 1).max().unwrap_or(0)
    }

    /// Keeps the first `len` nodes.
    pub fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.parents.truncate(len);
        self.probs.truncate(len);
        self.confidence.truncate(len);
        self.guesses.truncate(len);
        self.depths.truncate(len);
    }

    /// Returns the depth of a node; 0 for children of the root.
    pub fn depth(&self, node: usize) -> usize {
        self.depths[node]
    }

    /// Returns the children of a node (`None` is the root) in test order.
    pub fn children(&self, parent: Option<usize>) -> impl Iterator<Item = usize> + '_ {
        let first = parent.map_or(0, |p| p + 1);
        (first..self.len()).filter(move |&i| self.parents[i] == parent)
    }

    /// Returns the number of siblings that are tested before a node.
    pub fn rank(&self, node: usize) -> usize {
        self.children(self.parents[node]).take_while(|&sibling| sibling != node).count()
    }

    /// Returns the tokens from the root to a node, inclusive; empty for the root.
    pub fn path(&self, node: Option<usize>) -> Vec<TokenId> {
        let mut path: Vec<TokenId> =
            std::iter::successors(node, |&node| self.parents[node]).map(|node| self.tokens[node]).collect();
        path.reverse();
        path
    }

    /// Returns whether each node is the only child of the node before it.
    pub fn is_chain(&self) -> bool {
        self.parents.iter().enumerate().all(|(i, &parent)| parent == i.checked_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_nodes_have_one_child_each() {
        let chain = DraftTree::certain_chain([5, 6, 7]);
        assert!(chain.is_chain());
        assert_eq!(chain.parents(), &[None, Some(0), Some(1)]);
        assert_eq!(chain.children(Some(1)).collect::<Vec<_>>(), vec![2]);
        assert_eq!(chain.depth(2), 2);
    }

    #[test]
    fn certain_tree_truncates_and_reports_confidence() {
        let mut tree = DraftTree::certain_chain([5]);
        tree.push_certain(Some(0), 6, 0.75);
        assert_eq!(tree.confidence(), [None, Some(0.75)]);
        assert!(tree.is_certain());
        tree.push(Some(1), 1, DraftProb::Sampled(vec![0.5, 0.5].into()));
        assert!(!tree.is_certain());
        assert_eq!(tree.confidence()[2], Some(0.5));
        tree.truncate(1);
        assert_eq!((tree.tokens(), tree.len(), tree.confidence()), (&[5][..], 1, &[None][..]));
    }

    #[test]
    fn children_come_in_push_order() {
        let mut tree = DraftTree::new();
        let a = tree.push(None, 1, DraftProb::Certain);
        let b = tree.push(None, 2, DraftProb::Certain);
        let c = tree.push(Some(a), 3, DraftProb::Certain);
        assert_eq!(tree.children(None).collect::<Vec<_>>(), vec![a, b]);
        assert_eq!(tree.children(Some(a)).collect::<Vec<_>>(), vec![c]);
        assert_eq!((tree.path(Some(c)), tree.path(None)), (vec![1, 3], vec![]));
        assert!(!tree.is_chain());
    }
}
