//! Acceptance of the children of a tree, learned from the outcomes of earlier trees.

use super::config::{LaterSampled, TreeConfig};
use crate::depth::{CONFIDENCE_BINS, SuccessRate, bin_of, bin_prior};
use crate::propose::RoundOutcome;
use crate::token::TokenId;

/// Acceptance rate of children by kind and by their share of the remaining q. Kept across trees.
#[derive(Clone, Debug, Default)]
pub(in crate::propose) struct Calibration {
    pub(super) config: TreeConfig,
    kinds: [[SuccessRate; CONFIDENCE_BINS]; 4],
    /// Recent first children, regardless of share.
    recent_first: SuccessRate,
}

/// Kind of a child. Children of one kind with equal share are accepted about equally often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChildKind {
    /// First child, the most likely token.
    Top,
    /// First child, sampled.
    Sampled,
    /// Later child, the most likely token after its rejected siblings.
    NextTop,
    /// Later child, sampled without its rejected siblings.
    NextSampled,
}

impl ChildKind {
    pub(super) fn of(first: bool, sampled: bool) -> Self {
        match (first, sampled) {
            (true, false) => Self::Top,
            (true, true) => Self::Sampled,
            (false, false) => Self::NextTop,
            (false, true) => Self::NextSampled,
        }
    }

    fn is_first(self) -> bool {
        matches!(self, Self::Top | Self::Sampled)
    }

    /// Returns the acceptance prior of a confidence bin.
    fn prior(self, bin: usize, config: &TreeConfig) -> f64 {
        match self {
            Self::Top | Self::NextTop => bin_prior(bin, false),
            Self::Sampled => bin_prior(bin, true),
            Self::NextSampled => {
                let LaterSampled { least, rise } = config.later_sampled;
                least + rise * bin_prior(bin, false)
            }
        }
    }
}

impl Calibration {
    /// Returns the estimated acceptance probability of a child that is tested.
    pub(super) fn acceptance(&self, kind: ChildKind, share: f64) -> f64 {
        let bin = bin_of(share as f32);
        self.kinds[kind as usize][bin].mean(kind.prior(bin, &self.config), self.config.share_tests)
    }

    /// Returns the estimated acceptance of a first child whose share is not yet known.
    pub(super) fn first_child_acceptance(&self) -> f64 {
        self.recent_first.mean(self.config.first_child, self.config.first_child_tests)
    }

    fn add(&mut self, node: &PendingNode, passed: bool) {
        self.kinds[node.kind as usize][bin_of(node.share)].add(passed, self.config.memory);
        if node.kind.is_first() {
            self.recent_first.add(passed, self.config.memory);
        }
    }
}

/// A tree waiting for the verdict of the target.
#[derive(Clone, Debug, Default)]
pub(in crate::propose) struct PendingTree {
    /// Draft cache rows before the tree's rows.
    pub(super) base: usize,
    pub(super) nodes: Vec<PendingNode>,
}

/// A node of a pending tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingNode {
    pub(super) parent: Option<usize>,
    pub(super) token: TokenId,
    pub(super) kind: ChildKind,
    /// Its share of q after the removal of earlier siblings.
    pub(super) share: f32,
    /// Its row in the draft cache after `base`; `None` if it was not read.
    pub(super) row: Option<usize>,
}

/// Rows of a draft cache that stay after a tree was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::propose) struct KeptRows {
    /// Rows before those of the tree.
    pub(in crate::propose) base: usize,
    /// Rows of the kept path, after `base`.
    pub(in crate::propose) rows: Vec<usize>,
    /// Tokens of these rows.
    pub(in crate::propose) tokens: Vec<TokenId>,
}

impl PendingTree {
    /// Updates the calibration with the outcome. Returns the rows of the kept path.
    pub(in crate::propose) fn settle(
        &self,
        outcome: &RoundOutcome<'_>,
        calibration: &mut Calibration,
    ) -> KeptRows {
        let mut path = outcome.accepted.iter().copied();
        let mut parent = None;
        loop {
            let winner = path.next();
            for node in self.nodes.iter().enumerate().filter(|(_, node)| node.parent == parent) {
                calibration.add(node.1, winner == Some(node.0));
                if winner == Some(node.0) {
                    break;
                }
            }
            if winner.is_none() {
                break;
            }
            parent = winner;
        }
        let row = |&node: &usize| self.nodes.get(node).and_then(|node| node.row.map(|row| (row, node.token)));
        let (rows, tokens) = outcome.kept.iter().map_while(row).unzip();
        KeptRows { base: self.base, rows, tokens }
    }
}
