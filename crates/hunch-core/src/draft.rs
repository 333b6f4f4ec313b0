//! What a proposer hands to the verifier: a tree of drafted tokens. Pure data, no candle.

use std::sync::Arc;

use crate::token::{TokenId, TokenProb};

/// How a drafted token was chosen, which is what the acceptance rule needs to know.
#[derive(Clone, Debug)]
pub enum DraftProb {
    /// Chosen without chance (greedy draft, n-gram): a point mass.
    Certain,
    /// Sampled from this distribution over the whole vocabulary. Siblings sampled without replacement
    /// carry the same, original distribution; the verifier removes the ones already tested.
    Sampled(Arc<[f32]>),
}

/// Drafted tokens as a tree, flat, parents before children. The root is the last committed token
/// and is not a node. A chain is the tree where `parent(i) == i - 1`.
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
    /// tested in the order they were pushed. The draft's confidence in a sampled token is its q.
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

    /// As [`push`](Self::push), for a certain token in which the draft has some confidence, from 0 to 1.
    ///
    /// # Panics
    /// If `parent` is not a node of this tree.
    pub fn push_certain(&mut self, parent: Option<usize>, token: TokenId, confidence: f32) -> usize {
        self.push_node(parent, token, DraftProb::Certain, Some(confidence))
    }

    /// A chain of certain tokens, each with the draft's confidence in it.
    pub fn confident_chain(tokens: impl IntoIterator<Item = (TokenId, f32)>) -> Self {
        let mut tree = Self::new();
        let mut parent = None;
        for (token, confidence) in tokens {
            parent = Some(tree.push_certain(parent, token, confidence));
        }
        tree
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

    /// How sure the draft is of each node, where it has an opinion. Not a distribution: it decides how deep to
    /// draft, never what is accepted.
    pub fn confidence(&self) -> &[Option<f32>] {
        &self.confidence
    }

    /// Says what the draft thought likeliest where a node stands, likeliest first.
    pub fn set_guesses(&mut self, node: usize, guesses: Arc<[TokenProb]>) {
        self.guesses[node] = guesses;
    }

    /// What the draft thought likeliest where a node stands; nothing where no model drafted.
    pub fn guesses(&self, node: usize) -> &[TokenProb] {
        &self.guesses[node]
    }

    /// Whether no node was drawn by chance. Such a draft may be cut anywhere: what is left is as certain.
    pub fn is_certain(&self) -> bool {
        self.probs.iter().all(|prob| matches!(prob, DraftProb::Certain))
    }

    /// Positions drafted: the length of the longest path.
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

    /// Distance of a node from the first drafted position: 0 for children of the root.
    pub fn depth(&self, node: usize) -> usize {
        self.depths[node]
    }

    /// The children of a node (`None` = of the root), in the order they are to be tested.
    pub fn children(&self, parent: Option<usize>) -> impl Iterator<Item = usize> + '_ {
        let first = parent.map_or(0, |p| p + 1);
        (first..self.len()).filter(move |&i| self.parents[i] == parent)
    }

    /// The tokens from the root to a node, its own the last; none for the root.
    pub fn path(&self, node: Option<usize>) -> Vec<TokenId> {
        let mut path: Vec<TokenId> =
            std::iter::successors(node, |&node| self.parents[node]).map(|node| self.tokens[node]).collect();
        path.reverse();
        path
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
    fn what_is_certain_can_be_cut_and_knows_its_confidence() {
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
    fn siblings_come_in_the_order_they_were_pushed() {
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
