//! Parameters of tree growth.

use crate::depth::DepthConfig;

/// Acceptance of a later sampled child by its share of the remaining q.
///
/// After a rejection, p keeps its mass where q was too low. So a large share is accepted less often than it suggests, and
/// a small one more often. Fitted to prose, where the rate rises linearly from 0.16 to 0.56.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LaterSampled {
    /// Acceptance of a child of no share, 0 to 1.
    pub(super) least: f64,
    /// Rise up to a full share.
    pub(super) rise: f64,
}

/// Parameters of tree growth: all numbers that are tuned. Numbers that chains have too come from [`DepthConfig`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TreeConfig {
    /// Number of tests that an acceptance rate remembers.
    pub(super) memory: f64,
    /// Number of tests that the share of a child in q counts for in its acceptance. The best of many slots is
    /// chosen, so few would favour slots that were lucky in few tests.
    pub(super) share_tests: f64,
    /// Acceptance of a first child of unknown share before any test, 0 to 1.
    pub(super) first_child: f64,
    /// Number of tests that `first_child` counts for.
    pub(super) first_child_tests: f64,
    /// Acceptance of a later sampled child before any test.
    pub(super) later_sampled: LaterSampled,
    /// Number of most likely tokens that may become children of a node of a dynamic tree without sampling. It bounds
    /// the time of ranking a vocabulary.
    pub(super) candidates: usize,
    /// Most leaves read in one pass of the draft model, in rows. It bounds the rows that are read and get no child.
    pub(super) batch_rows: usize,
    /// Best share (0 to 1) of a tree's free slots: leaves whose first child ranks there are read in this pass.
    /// One more row in a pass is cheaper than another pass later, but not free.
    pub(super) batch_slots: f64,
    /// Least probability (0 to 1) of reaching a token of the chain that a device runs before a tree grows.
    /// It ends the chains of plans with a fixed number of tokens, which nothing else ends.
    pub(super) chain_reach: f64,
}

impl Default for TreeConfig {
    fn default() -> Self {
        let depth = DepthConfig::default();
        Self {
            memory: depth.memory,
            share_tests: depth.confidence_tests,
            first_child: 0.6,
            first_child_tests: 2.0,
            later_sampled: LaterSampled { least: 0.15, rise: 0.45 },
            candidates: 8,
            batch_rows: 8,
            batch_slots: 0.5,
            chain_reach: 0.05,
        }
    }
}
