//! Expected tokens and passes of draft trees whose acceptance is known by depth and by rank among siblings.
//!
//! Siblings are tested in order, the next one after a rejection (SpecInfer, Miao et al., arXiv 2305.09781). A chain is
//! the tree without second siblings.

use std::cmp::Ordering;

/// A draft tree with the probability that each of its nodes is accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpectedTree {
    nodes: Vec<Node>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Node {
    parent: Option<usize>,
    depth: usize,
    /// Number of siblings that are tested before it.
    rank: usize,
    /// Probability that it is accepted, with all its ancestors.
    reach: f64,
    /// Probability that it is rejected after all siblings before it, given that its parent is accepted.
    missed: f64,
}

impl Node {
    /// Returns whether this node is added before another: the one more likely accepted. Ties go to the one with
    /// fewer siblings before it, then to the deeper one.
    fn goes_before(&self, other: &Self) -> bool {
        let by_place = || other.rank.cmp(&self.rank).then(self.depth.cmp(&other.depth));
        self.reach.total_cmp(&other.reach).then_with(by_place).is_gt()
    }
}

impl ExpectedTree {
    /// Returns the tree of `nodes` tokens with the most expected tokens.
    ///
    /// `acceptance` is the probability that a sibling is accepted, by depth and rank, which begin at zero. Its parent
    /// was accepted and the siblings before it were rejected. It must not increase with the rank.
    ///
    /// Each step adds the node that is most likely accepted, so the tree is best for every number of nodes. It is chosen
    /// by the same acceptance as in Sequoia (Chen et al., arXiv 2402.12374).
    pub fn best(nodes: usize, acceptance: impl Fn(usize, usize) -> f64) -> Self {
        let first = |parent: Option<usize>, depth: usize, reached: f64| {
            let accepted = acceptance(depth, 0);
            Node { parent, depth, rank: 0, reach: reached * accepted, missed: 1.0 - accepted }
        };
        let mut tree = Self { nodes: Vec::with_capacity(nodes) };
        let mut open = vec![first(None, 0, 1.0)];
        while tree.nodes.len() < nodes {
            let chosen = (1..open.len()).fold(0, |a, b| if open[b].goes_before(&open[a]) { b } else { a });
            let node = open.remove(chosen);
            let reached = node.parent.map_or(1.0, |parent| tree.nodes[parent].reach);
            let accepted = acceptance(node.depth, node.rank + 1);
            debug_assert!(
                accepted.partial_cmp(&acceptance(node.depth, node.rank)) != Some(Ordering::Greater),
                "acceptance increases after rank {} at depth {}",
                node.rank,
                node.depth
            );
            open.push(first(Some(tree.nodes.len()), node.depth + 1, node.reach));
            open.push(Node {
                rank: node.rank + 1,
                reach: reached * node.missed * accepted,
                missed: node.missed * (1.0 - accepted),
                ..node
            });
            tree.nodes.push(node);
        }
        tree
    }

    /// Returns the tree of the same shape with another acceptance, as in [`best`](Self::best).
    #[must_use]
    pub fn with_acceptance(&self, acceptance: impl Fn(usize, usize) -> f64) -> Self {
        let mut nodes: Vec<Node> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let reached = node.parent.map_or(1.0, |parent| nodes[parent].reach);
            // The sibling before it was added earlier.
            let before =
                nodes.iter().find(|other| other.parent == node.parent && other.rank + 1 == node.rank);
            let left = before.map_or(1.0, |before| before.missed);
            let accepted = acceptance(node.depth, node.rank);
            nodes.push(Node { reach: reached * left * accepted, missed: left * (1.0 - accepted), ..*node });
        }
        Self { nodes }
    }

    /// Returns whether both trees have the same nodes in the same order, whatever their acceptance.
    pub fn has_shape_of(&self, other: &Self) -> bool {
        let shape = |tree: &Self| tree.nodes.iter().map(|node| (node.parent, node.rank)).collect::<Vec<_>>();
        shape(self) == shape(other)
    }

    /// Returns the expected tokens of a round: 1 + the sum over nodes of the probability that they are accepted.
    pub fn tokens(&self) -> f64 {
        1.0 + self.nodes.iter().map(|node| node.reach).sum::<f64>()
    }

    /// Returns the expected number of positions where a drafted token is tested.
    pub fn tests(&self) -> f64 {
        let first = self.nodes.iter().filter(|node| node.rank == 0);
        first.map(|node| node.parent.map_or(1.0, |parent| self.nodes[parent].reach)).sum()
    }

    /// Returns the rows of each pass of a draft model, one pass a level: the nodes with children, after the last token
    /// of the text. A chain takes a pass of one row for each token.
    pub fn draft_rows(&self) -> Vec<usize> {
        let mut rows = Vec::new();
        for node in self.nodes.iter().filter(|node| node.rank == 0) {
            if rows.len() <= node.depth {
                rows.resize(node.depth + 1, 0);
            }
            rows[node.depth] += 1;
        }
        rows
    }

    /// Returns the number of children of every node, by level. The first level is the root. Nodes are ordered by their
    /// parents, then by rank.
    pub fn children(&self) -> Vec<Vec<usize>> {
        let mut counts = Vec::new();
        let mut level = vec![None];
        while !level.is_empty() {
            // Earlier siblings were added earlier.
            let children_of = |&parent: &Option<usize>| -> Vec<usize> {
                (0..self.len()).filter(|&node| self.nodes[node].parent == parent).collect()
            };
            let children: Vec<Vec<usize>> = level.iter().map(children_of).collect();
            counts.push(children.iter().map(Vec::len).collect());
            level = children.concat().into_iter().map(Some).collect();
        }
        counts
    }

    /// Returns the length of the longest path, in tokens.
    pub fn height(&self) -> usize {
        self.nodes.iter().map(|node| node.depth + 1).max().unwrap_or(0)
    }

    /// Returns the number of drafted tokens.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns whether nothing is drafted.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theory::{expected_tokens, expected_tokens_by_position};

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    /// Acceptance of a sibling, a geometric series over ranks.
    fn geometric(alpha: f64, siblings: f64) -> impl Fn(usize, usize) -> f64 + Copy {
        move |_, rank| alpha * siblings.powi(rank as i32)
    }

    #[test]
    fn tree_without_siblings_is_the_chain() {
        for (alpha, nodes) in [(0.0, 3), (0.6, 1), (0.8, 5), (1.0, 4), (0.5, 0)] {
            let tree = ExpectedTree::best(nodes, geometric(alpha, 0.0));
            assert!(close(tree.tokens(), expected_tokens(alpha, nodes)), "{alpha} {nodes}");
            assert_eq!((tree.height(), tree.draft_rows()), (nodes, vec![1; nodes]));
        }
        let by_position = [0.9, 0.5, 0.7];
        let tree = ExpectedTree::best(3, |depth, rank| match rank {
            0 => by_position.get(depth).copied().unwrap_or(0.0),
            _ => 0.0,
        });
        assert!(close(tree.tokens(), expected_tokens_by_position(&by_position)));
        assert!(close(tree.tests(), expected_tokens_by_position(&by_position[..2])));
    }

    #[test]
    fn best_tree_of_three_matches_a_hand_computed_example() {
        // The second sibling, 0.4 * 0.3, is less likely than each token of the chain.
        let tree = ExpectedTree::best(4, geometric(0.6, 0.5));
        assert!(close(tree.tokens(), 1.0 + 0.6 + 0.36 + 0.216 + 0.1296));
        let tree = ExpectedTree::best(3, |_, rank| [0.4, 0.35, 0.0][rank.min(2)]);
        // 0.4, the sibling 0.6 * 0.35 = 0.21, and the child 0.16.
        assert!(close(tree.tokens(), 1.0 + 0.4 + 0.21 + 0.16));
        assert_eq!((tree.draft_rows(), tree.height(), tree.len()), (vec![1, 1], 2, 3));
        assert_eq!(tree.children(), [vec![2], vec![1, 0], vec![0]]);
        // The positions: the first always, the second after the first of the siblings.
        assert!(close(tree.tests(), 1.0 + 0.4));
    }

    #[test]
    fn shape_keeps_its_nodes_under_another_acceptance() {
        let wide = ExpectedTree::best(9, geometric(0.2, 0.9));
        let same = wide.with_acceptance(geometric(0.2, 0.9));
        assert_eq!(same, wide);
        let higher = wide.with_acceptance(geometric(0.8, 0.9));
        assert!(higher.has_shape_of(&wide) && higher.tokens() > wide.tokens());
        let best = ExpectedTree::best(9, geometric(0.8, 0.9));
        assert!(!best.has_shape_of(&wide) && best.tokens() > higher.tokens());
    }

    /// All trees of `nodes` nodes as lists of parents, each parent before its children.
    fn all_trees(nodes: usize) -> Vec<Vec<Option<usize>>> {
        let mut trees = vec![Vec::new()];
        for node in 0..nodes {
            let parents: Vec<Option<usize>> = std::iter::once(None).chain((0..node).map(Some)).collect();
            trees = trees
                .into_iter()
                .flat_map(|tree: Vec<Option<usize>>| {
                    parents.iter().map(move |&parent| [&tree[..], &[parent]].concat()).collect::<Vec<_>>()
                })
                .collect();
        }
        trees
    }

    /// Expected tokens of a tree by walking through it, without the greedy choice.
    fn walked(
        tree: &[Option<usize>],
        at: Option<usize>,
        depth: usize,
        a: &dyn Fn(usize, usize) -> f64,
    ) -> f64 {
        let children = (0..tree.len()).filter(|&node| tree[node] == at);
        let (mut tokens, mut left) = (1.0, 1.0);
        for (rank, child) in children.enumerate() {
            let accepted = a(depth, rank);
            tokens += left * accepted * walked(tree, Some(child), depth + 1, a);
            left *= 1.0 - accepted;
        }
        tokens
    }

    #[test]
    fn best_tree_beats_every_other_of_its_size() {
        let uneven =
            |depth: usize, rank: usize| 0.9f64.powi(depth as i32) * [0.5, 0.45, 0.2, 0.1][rank.min(3)];
        let rules: [&dyn Fn(usize, usize) -> f64; 3] = [&geometric(0.7, 0.6), &geometric(0.3, 0.9), &uneven];
        for acceptance in rules {
            for nodes in 1..=6 {
                let trees = all_trees(nodes);
                let most = trees.iter().map(|tree| walked(tree, None, 0, acceptance)).fold(0.0, f64::max);
                let best = ExpectedTree::best(nodes, acceptance).tokens();
                assert!(close(best, most), "{nodes}: {best} {most}");
            }
        }
    }

    #[test]
    fn expected_tokens_match_simulation() {
        let acceptance = geometric(0.55, 0.7);
        let tree = ExpectedTree::best(9, acceptance);
        assert!(tree.draft_rows().iter().any(|rows| *rows > 1), "it branches");
        let mut state = 3u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let rounds = 200_000;
        let (mut tokens, mut tests) = (0u32, 0u32);
        for _ in 0..rounds {
            let mut at = None;
            loop {
                tokens += 1;
                let children = (0..tree.len()).filter(|&node| tree.nodes[node].parent == at);
                let children: Vec<usize> = children.collect();
                tests += u32::from(!children.is_empty());
                let depth = at.map_or(0, |node: usize| tree.nodes[node].depth + 1);
                let Some(next) =
                    children.iter().find(|&&c| uniform() < acceptance(depth, tree.nodes[c].rank))
                else {
                    break;
                };
                at = Some(*next);
            }
        }
        let mean = |sum: u32| f64::from(sum) / f64::from(rounds);
        assert!((mean(tokens) - tree.tokens()).abs() < 0.01, "{} {}", mean(tokens), tree.tokens());
        assert!((mean(tests) - tree.tests()).abs() < 0.01);
    }
}
