//! The front of a growing tree: nodes that were read and may get children, and nodes that may be read.

use std::sync::Arc;

use super::calibration::ChildKind;
use crate::token::{TokenId, TokenProb};

/// Least mass of a distribution that another child is drawn from.
const LEAST_MASS: f64 = 1e-6;

/// A node that the draft model has read: the source of its children.
pub(super) struct Branch {
    pub(super) node: Option<usize>,
    pub(super) children: Children,
    /// Most likely tokens at this position.
    pub(super) guesses: Arc<[TokenProb]>,
    /// Number of children drawn.
    pub(super) drawn: usize,
    /// Probability that the walk reaches this node and rejects all children drawn so far.
    pub(super) residual_reach: f64,
    /// Number of children it may still get.
    pub(super) children_left: usize,
}

/// Source of the children of a branch.
pub(super) enum Children {
    /// Sampled from q without replacement.
    Sampled {
        q: Arc<[f32]>,
        /// First child, and q without all drawn children once a second is needed.
        first: Option<TokenId>,
        rest: Option<Vec<f32>>,
        /// Approximate sum and sum of squares of the remaining q.
        mass: f64,
        squares: f64,
    },
    /// Taken in this order, with their probabilities.
    Ranked(Vec<TokenProb>),
}

impl Branch {
    /// Returns the kind of its next child.
    pub(super) fn next_kind(&self, sampled: bool) -> ChildKind {
        ChildKind::of(self.drawn == 0, sampled)
    }

    /// Returns the expected share of the next child in the remaining q; `None` if there is none.
    pub(super) fn next_share(&self) -> Option<f64> {
        if self.children_left == 0 {
            return None;
        }
        match &self.children {
            Children::Sampled { mass, squares, .. } => {
                (*mass > LEAST_MASS).then(|| (squares / (mass * mass)).clamp(0.0, 1.0))
            }
            Children::Ranked(ranked) => {
                let before: f64 =
                    ranked[..self.drawn.min(ranked.len())].iter().map(|(_, q)| f64::from(*q)).sum();
                ranked
                    .get(self.drawn)
                    .map(|(_, q)| (f64::from(*q) / (1.0 - before).max(LEAST_MASS)).clamp(0.0, 1.0))
            }
        }
    }
}

/// A node that the draft model has not read yet.
#[derive(Clone, Copy)]
pub(super) struct Leaf {
    pub(super) node: usize,
    /// Probability that the walk reaches it.
    pub(super) reach: f64,
}
