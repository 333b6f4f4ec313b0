//! Draft trees (SpecInfer, Miao et al., arXiv 2305.09781): several continuations, verified in one
//! target pass.
//!
//! A tree grows by joint probability, as EAGLE-2 selects its nodes (Li et al., arXiv 2406.16858), or
//! with a fixed number of children per level.
//!
//! Children are sampled without replacement from q. Under greedy sampling or the coupled rule they are
//! the top-ranked tokens instead. The decision to draw a child uses only what is known before the draw,
//! and no drawn child is discarded. Each child is therefore distributed as q without its earlier
//! siblings, which is what the verifier assumes.
//!
//! Heads draft trees too ([`head`](super::head)). The logits of a Medusa head depend on the depth alone, so its tree
//! is part of the Cartesian product of each position's tokens. The acceptance measured so far chooses the nodes.
//!
//! The draft model reads a batch of leaves per pass, on top of the provisional rows of earlier passes
//! of the same tree. The rows of the accepted path are kept.
//!
//! A device that chooses tokens runs a chain before the tree grows, which waits once. Nodes of that chain can have
//! children, others cannot: reading them would wait for each batch. A shape with a fixed number of children by level is
//! what the user asked for, so it grows in batches there too.

use std::sync::Arc;

use super::chain::{GUESSES, after_guess, possible};
use super::{ProposeContext, RoundOutcome};
use crate::depth::{CONFIDENCE_BINS, DraftPlan, SuccessRate, bin_of, bin_prior};
use crate::draft::{DraftProb, DraftTree};
use crate::error::{Error, Result};
use crate::limits::MAX_DRAFT;
use crate::model::{DeviceChain, LogitRows, RowLayout, Rows, Step};
use crate::rule::PositionNoise;
use crate::sample::{Sampler, draw, top_tokens, unit};
use crate::token::{TokenId, TokenProb};

/// Shape of a draft tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TreeShape {
    /// Branches where a second child is more likely to be accepted than a deeper token.
    #[default]
    Dynamic,
    /// A fixed number of children per node, by level.
    Static(Vec<usize>),
}

impl TreeShape {
    /// Returns the maximum number of children at `depth`.
    fn children_at(&self, depth: usize) -> usize {
        match self {
            Self::Dynamic => usize::MAX,
            Self::Static(levels) => levels.get(depth).copied().unwrap_or(0),
        }
    }
}

impl std::fmt::Display for TreeShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dynamic => f.write_str("dynamic"),
            Self::Static(levels) => {
                let levels: Vec<String> = levels.iter().map(usize::to_string).collect();
                f.write_str(&levels.join("x"))
            }
        }
    }
}

impl std::str::FromStr for TreeShape {
    type Err = String;

    /// Parses `dynamic`, or children per level such as `3x2x1`.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text == "dynamic" {
            return Ok(Self::Dynamic);
        }
        let level = |part: &str| match part.parse() {
            Ok(children) if (1..=MAX_DRAFT).contains(&children) => Ok(children),
            _ => Err(format!("choose dynamic, or children by level such as 3x2x1, each 1 to {MAX_DRAFT}")),
        };
        text.split('x').map(level).collect::<std::result::Result<_, _>>().map(Self::Static)
    }
}

/// Maximum leaves read in one pass.
const MAX_BATCH: usize = 8;
/// Children considered per node of a dynamic tree without sampling.
const CANDIDATES: usize = 8;

/// Weight of the acceptance prior, in tests. The best of many slots is chosen, so a low weight would
/// favour slots that were lucky in few tests.
const PRIOR_WEIGHT: f64 = 4.0;
/// Prior acceptance of a first child, and its weight in tests.
const FIRST_CHILD_PRIOR: (f64, f64) = (0.6, 2.0);
/// Memory of an acceptance rate, in tests.
const MEMORY_TESTS: f64 = 32.0;

/// Acceptance rate of children by kind and by their share of the remaining q. Kept across trees.
#[derive(Clone, Debug, Default)]
pub(super) struct Calibration {
    kinds: [[SuccessRate; CONFIDENCE_BINS]; 4],
    /// Recent first children, regardless of share.
    recent_first: SuccessRate,
}

/// Kind of a child. Children of one kind with equal share are accepted about equally often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChildKind {
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
    fn of(first: bool, sampled: bool) -> Self {
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
    fn prior(self, bin: usize) -> f64 {
        match self {
            Self::Top | Self::NextTop => bin_prior(bin, false),
            Self::Sampled => bin_prior(bin, true),
            // After a rejection, p keeps its mass where q was too low. A large share of the remaining q
            // is therefore accepted less often than the share suggests, and a small one more often.
            // Fitted to prose, where the rate rises linearly from 0.16 to 0.56.
            Self::NextSampled => 0.15 + 0.45 * bin_prior(bin, false),
        }
    }
}

impl Calibration {
    /// Returns the estimated acceptance probability of a child that is tested.
    fn acceptance(&self, kind: ChildKind, share: f64) -> f64 {
        let bin = bin_of(share as f32);
        self.kinds[kind as usize][bin].mean(kind.prior(bin), PRIOR_WEIGHT)
    }

    /// Returns the estimated acceptance of a first child whose share is not yet known.
    fn first_child_acceptance(&self) -> f64 {
        self.recent_first.mean(FIRST_CHILD_PRIOR.0, FIRST_CHILD_PRIOR.1)
    }

    fn add(&mut self, node: &PendingNode, passed: bool) {
        self.kinds[node.kind as usize][bin_of(node.share)].add(passed, MEMORY_TESTS);
        if node.kind.is_first() {
            self.recent_first.add(passed, MEMORY_TESTS);
        }
    }
}

/// A tree waiting for the verdict of the target.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingTree {
    /// Draft cache rows before the tree's rows.
    base: usize,
    nodes: Vec<PendingNode>,
}

#[derive(Clone, Copy, Debug)]
struct PendingNode {
    parent: Option<usize>,
    token: TokenId,
    kind: ChildKind,
    /// Its share of q after the removal of earlier siblings.
    share: f32,
    /// Its row in the draft cache after `base`; `None` if it was not read.
    row: Option<usize>,
}

impl PendingTree {
    /// Updates the calibration with the outcome. Returns the base row, the cache rows of the kept path
    /// and their tokens.
    pub(super) fn settle(
        &self,
        outcome: &RoundOutcome<'_>,
        calibration: &mut Calibration,
    ) -> (usize, Vec<usize>, Vec<TokenId>) {
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
        (self.base, rows, tokens)
    }
}

/// A node that the draft model has read: the source of its children.
struct Branch {
    node: Option<usize>,
    children: Children,
    /// Most likely tokens at this position.
    guesses: Arc<[TokenProb]>,
    /// Number of children drawn.
    drawn: usize,
    /// Probability that the walk reaches this node and rejects all children drawn so far.
    residual_reach: f64,
    /// Number of children it may still get.
    children_left: usize,
}

enum Children {
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
    fn next_kind(&self, sampled: bool) -> ChildKind {
        ChildKind::of(self.drawn == 0, sampled)
    }

    /// Returns the expected share of the next child in the remaining q; `None` if there is none.
    fn next_share(&self) -> Option<f64> {
        if self.children_left == 0 {
            return None;
        }
        match &self.children {
            Children::Sampled { mass, squares, .. } => {
                (*mass > 1e-6).then(|| (squares / (mass * mass)).clamp(0.0, 1.0))
            }
            Children::Ranked(ranked) => {
                let before: f64 =
                    ranked[..self.drawn.min(ranked.len())].iter().map(|(_, q)| f64::from(*q)).sum();
                ranked
                    .get(self.drawn)
                    .map(|(_, q)| (f64::from(*q) / (1.0 - before).max(1e-6)).clamp(0.0, 1.0))
            }
        }
    }
}

/// A node that the draft model has not read yet.
#[derive(Clone, Copy)]
struct Leaf {
    node: usize,
    reach: f64,
}

/// The draft model, as tree growth needs it.
pub(super) struct TreeDraft<'a> {
    /// Rows in its cache.
    pub(super) cached: usize,
    /// Maximum sequence length, in tokens.
    pub(super) context_length: usize,
    /// Acceptance rates observed so far.
    pub(super) calibration: &'a Calibration,
    /// Leaves of equal depth have equal logits: one row of a pass serves all of them, whenever they are read.
    pub(super) by_depth: bool,
    /// Chain that its device ran after the committed tokens, with the random numbers of the draws.
    pub(super) chain: Option<(DeviceChain, Vec<f64>)>,
    /// Runs a pass of the model. Its rows stay provisional in the cache.
    pub(super) forward: &'a mut dyn FnMut(Step<'_>) -> Result<Rows>,
}

/// Least probability of reaching a token of a chain that a device runs for a tree.
const LEAST_REACH: f64 = 0.05;

/// Returns the length of the chain that a device runs before a tree grows; 0 if the tree grows in batches.
pub(super) fn chain_depth(shape: &TreeShape, plan: &DraftPlan, calibration: &Calibration) -> usize {
    if *shape != TreeShape::Dynamic {
        return 0;
    }
    let acceptance = calibration.first_child_acceptance();
    let reach = |depth: usize| acceptance.powi(depth as i32);
    let pays = |&depth: &usize| {
        depth == 0 || (reach(depth) >= LEAST_REACH && plan.pass_pays(reach(depth + 1), depth, 1))
    };
    (0..plan.max_draft.min(plan.max_depth)).take_while(pays).count()
}

/// State of a growing tree.
struct Growth<'a, 'd> {
    draft: TreeDraft<'d>,
    committed: &'a [TokenId],
    sampler: &'a Sampler,
    noise: Option<PositionNoise>,
    plan: DraftPlan,
    end_tokens: &'a [TokenId],
    n_vocab: usize,
    tree: DraftTree,
    pending: PendingTree,
    /// Per node, a bit mask of the tree rows it sees, without its own.
    visible: Vec<u64>,
    /// Tree rows read so far.
    rows: usize,
    /// Levels of the tree that were read so far.
    levels: usize,
    branches: Vec<Branch>,
    leaves: Vec<Leaf>,
}

/// Grows a tree from the logits after the last committed token.
///
/// If a pass fails, the partial tree is returned with the error: discarding sampled nodes would bias
/// the output.
pub(super) fn grow(
    draft: TreeDraft<'_>,
    cx: ProposeContext<'_>,
    logits: &[f32],
    shape: &TreeShape,
) -> Result<(DraftTree, PendingTree, Option<Error>)> {
    let ProposeContext { committed, plan, end_tokens, sampler, noise, rng, target } = cx;
    let base = draft.cached;
    let n_vocab = target.info().n_vocab;
    let mut growth = Growth {
        draft,
        committed,
        sampler,
        noise,
        plan,
        end_tokens,
        n_vocab,
        tree: DraftTree::new(),
        pending: PendingTree { base, nodes: Vec::new() },
        visible: Vec::new(),
        rows: 0,
        levels: 0,
        branches: Vec::new(),
        leaves: Vec::new(),
    };
    growth.add_branch(None, 1.0, logits.to_vec(), 0, shape)?;
    let mut draw = |growth: &mut Growth<'_, '_>, branch: usize| growth.draw_child(branch, rng);
    let outcome = match shape {
        TreeShape::Static(_) => growth.by_level(shape, &mut draw),
        TreeShape::Dynamic => growth.by_probability(shape, &mut draw),
    };
    Ok((growth.tree, growth.pending, outcome.err()))
}

type Draw<'d> = dyn FnMut(&mut Growth<'_, '_>, usize) + 'd;

impl Growth<'_, '_> {
    /// Repeatedly takes the step with the highest expected acceptance: draw a child, or read a batch of
    /// leaves.
    fn by_probability(&mut self, shape: &TreeShape, draw: &mut Draw<'_>) -> Result<()> {
        while self.tree.len() < self.plan.max_draft {
            let slot = self.best_slot();
            let first_acceptance = self.draft.calibration.first_child_acceptance();
            let front = self.leaves.iter().map(|leaf| leaf.reach * first_acceptance).fold(0.0, f64::max);
            match slot {
                Some((branch, value)) if value >= front => {
                    if !self.plan.row_pays(value, self.tree.len()) {
                        break;
                    }
                    draw(self, branch);
                }
                _ if front > 0.0 => {
                    if self.draft.chain.is_some() {
                        self.follow_chain(shape)?;
                        continue;
                    }
                    let batch = self.take_batch(first_acceptance);
                    let value: f64 = batch.iter().map(|leaf| leaf.reach * first_acceptance).sum();
                    if batch.is_empty() || !self.batch_pays(&batch, value) {
                        self.leaves.clear();
                        continue;
                    }
                    self.read_batch(&batch, shape)?;
                }
                _ => break,
            }
        }
        Ok(())
    }

    /// Gives every node of a level its number of children, as long as they pay off.
    fn by_level(&mut self, shape: &TreeShape, draw: &mut Draw<'_>) -> Result<()> {
        let first_acceptance = self.draft.calibration.first_child_acceptance();
        let mut start = 0;
        loop {
            for branch in start..self.branches.len() {
                while let Some(value) = self.next_acceptance(branch) {
                    if self.tree.len() == self.plan.max_draft {
                        return Ok(());
                    }
                    if !self.plan.row_pays(value, self.tree.len()) {
                        break;
                    }
                    draw(self, branch);
                }
            }
            if self.tree.len() == self.plan.max_draft {
                return Ok(());
            }
            start = self.branches.len();
            let mut front = std::mem::take(&mut self.leaves);
            front.truncate(self.rows_left());
            front.retain(|leaf| shape.children_at(self.tree.depth(leaf.node) + 1) > 0);
            if front.is_empty() {
                return Ok(());
            }
            for batch in front.chunks(MAX_BATCH) {
                let value: f64 = batch.iter().map(|leaf| leaf.reach * first_acceptance).sum();
                if !self.batch_pays(batch, value) {
                    break;
                }
                self.read_batch(batch, shape)?;
            }
        }
    }

    /// Returns whether leaves are worth reading whose first children are accepted `value` times in all.
    fn batch_pays(&self, batch: &[Leaf], value: f64) -> bool {
        let is_read = |leaf: &Leaf| self.tree.depth(leaf.node) < self.levels;
        let free = self.draft.by_depth && batch.iter().all(is_read);
        free || self.plan.pass_pays(value, self.tree.len(), batch.len())
    }

    /// Returns the probability that a branch's next child is accepted; `None` if it may have none.
    fn next_acceptance(&self, branch: usize) -> Option<f64> {
        let branch = &self.branches[branch];
        let kind = branch.next_kind(!self.sampler.is_greedy());
        let acceptance = self.draft.calibration.acceptance(kind, branch.next_share()?);
        Some(branch.residual_reach * acceptance)
    }

    /// Iterates over branches with a possible next child, and its acceptance probability.
    fn slots(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        (0..self.branches.len()).filter_map(|branch| Some((branch, self.next_acceptance(branch)?)))
    }

    fn best_slot(&self) -> Option<(usize, f64)> {
        self.slots().max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Returns the rows left in the draft model's context and in the 64-bit mask.
    fn rows_left(&self) -> usize {
        self.draft.context_length.saturating_sub(self.pending.base + self.rows).min(64 - self.rows)
    }

    /// Takes the leaves to read in one pass: those whose first child may still make it into the tree.
    fn take_batch(&mut self, first_acceptance: f64) -> Vec<Leaf> {
        let slots_left = self.plan.max_draft - self.tree.len();
        let mut leaves = std::mem::take(&mut self.leaves);
        leaves.sort_by(|a, b| b.reach.total_cmp(&a.reach));
        // One more row in this pass is cheaper than another pass later.
        let mut values: Vec<f64> = leaves
            .iter()
            .map(|leaf| leaf.reach * first_acceptance)
            .chain(self.slots().map(|(_, value)| value))
            .collect();
        values.sort_by(|a, b| b.total_cmp(a));
        let threshold = values.get(slots_left / 2).copied().unwrap_or(0.0);
        let max_batch = MAX_BATCH.min(slots_left).min(self.rows_left());
        let n_selected = leaves
            .iter()
            .take(max_batch)
            .take_while(|leaf| leaf.reach * first_acceptance >= threshold)
            .count();
        self.leaves = leaves.split_off(n_selected);
        leaves
    }

    /// Turns the leaves on the device's chain into branches, and drops the others.
    fn follow_chain(&mut self, shape: &TreeShape) -> Result<()> {
        for leaf in std::mem::take(&mut self.leaves) {
            let (depth, token) = (self.tree.depth(leaf.node), self.tree.tokens()[leaf.node]);
            let Some((chain, _)) = &self.draft.chain else { continue };
            if let Some(logits) = after_guess(chain, depth, token) {
                self.pending.nodes[leaf.node].row = Some(depth);
                self.add_branch(Some(leaf.node), leaf.reach, logits, depth + 1, shape)?;
            }
        }
        Ok(())
    }

    /// Reads leaves in one pass and turns them into branches.
    fn read_batch(&mut self, batch: &[Leaf], shape: &TreeShape) -> Result<()> {
        let tokens: Vec<TokenId> = batch.iter().map(|leaf| self.tree.tokens()[leaf.node]).collect();
        let depths: Vec<usize> = batch.iter().map(|leaf| self.tree.depth(leaf.node)).collect();
        for (i, leaf) in batch.iter().enumerate() {
            self.pending.nodes[leaf.node].row = Some(self.rows + i);
        }
        let own = |leaf: &Leaf| self.visible[leaf.node] | 1 << self.pending.nodes[leaf.node].row.unwrap_or(0);
        let visible: Vec<u64> = batch.iter().map(own).collect();
        let layout = RowLayout::Custom { since: self.pending.base, depths: &depths, visible: &visible };
        let logits = (self.draft.forward)(Step { layout, ..Step::chain(&tokens, LogitRows::All) })?;
        self.rows += batch.len();
        self.levels = self.levels.max(depths.iter().map(|depth| depth + 1).max().unwrap_or(0));
        for (i, leaf) in batch.iter().enumerate() {
            self.add_branch(Some(leaf.node), leaf.reach, logits.row(i).to_vec(), depths[i] + 1, shape)?;
        }
        Ok(())
    }

    /// Creates a node's branch from the logits after it. Its children are at `depth`.
    fn add_branch(
        &mut self,
        node: Option<usize>,
        reach: f64,
        mut logits: Vec<f32>,
        depth: usize,
        shape: &TreeShape,
    ) -> Result<()> {
        // q is defined on the target's vocabulary. Tokens that only one model has are impossible.
        logits.resize(self.n_vocab, f32::NEG_INFINITY);
        let window = self.sampler.window();
        let mut recent = self.committed[self.committed.len().saturating_sub(window)..].to_vec();
        recent.extend(self.tree.path(node));
        let children_left = shape.children_at(depth);
        let candidates = match shape {
            TreeShape::Dynamic => CANDIDATES,
            TreeShape::Static(_) => children_left.max(GUESSES),
        };
        let (children, guesses) = if self.sampler.is_greedy() {
            let Some(ranking) = possible(self.sampler.ranking(&logits, &recent, candidates))? else {
                return Ok(());
            };
            let guesses = ranking.iter().copied().take(GUESSES).collect();
            (Children::Ranked(ranking), guesses)
        } else {
            let Some(q) = possible(self.sampler.distribution(&logits, &recent))? else { return Ok(()) };
            let guesses = top_tokens(&q, GUESSES);
            let children = match self.noise {
                Some(noise) => {
                    let ranking = noise.ranking(&q, self.committed.len() + depth, candidates);
                    Children::Ranked(ranking.into_iter().map(|token| (token, q[token as usize])).collect())
                }
                None => {
                    let squares = q.iter().map(|&q| f64::from(q) * f64::from(q)).sum();
                    Children::Sampled { q: q.into(), first: None, rest: None, mass: 1.0, squares }
                }
            };
            (children, guesses)
        };
        self.branches.push(Branch {
            node,
            children,
            guesses: guesses.into(),
            drawn: 0,
            residual_reach: reach,
            children_left,
        });
        Ok(())
    }

    /// Draws the next child of a branch into the tree.
    fn draw_child(&mut self, branch: usize, rng: &mut dyn rand::RngCore) {
        let branch = &mut self.branches[branch];
        // The device drew the first children with these numbers.
        let depth = branch.node.map_or(0, |node| self.tree.depth(node) + 1);
        let drawn = self.draft.chain.as_ref().filter(|_| branch.drawn == 0);
        let drawn = drawn.and_then(|(_, units)| units.get(depth).copied());
        // A ranked child has exactly the expected share. The share of a sampled child is known only
        // after the draw.
        let expected = branch.next_share().unwrap_or(0.0) as f32;
        let (token, share, prob) = match &mut branch.children {
            Children::Ranked(ranked) => (ranked[branch.drawn].0, expected, DraftProb::Certain),
            Children::Sampled { q, first, rest, mass, squares } => {
                if let (Some(first), None) = (*first, &rest) {
                    let mut without = q.to_vec();
                    without[first as usize] = 0.0;
                    *rest = Some(without);
                }
                if rest.as_ref().is_some_and(|rest| rest.iter().all(|&q| q == 0.0)) {
                    branch.children_left = 0;
                    return;
                }
                let token = draw(rest.as_deref().unwrap_or(q), drawn.unwrap_or_else(|| unit(rng)));
                let weight = f64::from(q[token as usize]);
                let share = weight / *mass;
                (*mass, *squares) = ((*mass - weight).max(0.0), (*squares - weight * weight).max(0.0));
                match rest {
                    Some(rest) => rest[token as usize] = 0.0,
                    None => *first = Some(token),
                }
                (token, share as f32, DraftProb::Sampled(q.clone()))
            }
        };
        let share = share.clamp(0.0, 1.0);
        let kind = branch.next_kind(!self.sampler.is_greedy());
        let acceptance = self.draft.calibration.acceptance(kind, f64::from(share));
        let reach = branch.residual_reach * acceptance;
        branch.residual_reach -= reach;
        branch.drawn += 1;
        branch.children_left -= 1;
        let (parent, guesses) = (branch.node, branch.guesses.clone());
        let node = match prob {
            DraftProb::Certain => self.tree.push_certain(parent, token, share),
            sampled => self.tree.push(parent, token, sampled),
        };
        self.tree.set_guesses(node, guesses);
        let visible = parent.map_or(0, |p| self.visible[p] | 1 << self.pending.nodes[p].row.unwrap_or(0));
        self.visible.push(visible);
        self.pending.nodes.push(PendingNode { parent, token, kind, share, row: None });
        if self.tree.depth(node) + 1 < self.plan.max_depth && !self.end_tokens.contains(&token) {
            self.leaves.push(Leaf { node, reach });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::model::StepOutput;
    use crate::propose::Proposer;
    use crate::propose::draft_model::DraftModel;
    use crate::sample::SamplingParams;
    use crate::table::{TableConfig, TableModel};

    fn table(context_length: usize) -> TableModel {
        TableModel::new(TableConfig { context_length, ..TableConfig::default() })
    }

    fn draft(shape: TreeShape) -> DraftModel {
        let mut draft = DraftModel::new(Box::new(table(64))).unwrap();
        draft.set_tree(Some(shape));
        draft
    }

    fn propose(
        draft: &mut DraftModel,
        committed: &[TokenId],
        params: SamplingParams,
        budget: usize,
    ) -> DraftTree {
        let sampler = Sampler::new(params).unwrap();
        let cx = ProposeContext {
            committed,
            plan: DraftPlan::fixed(budget),
            end_tokens: &[],
            noise: None,
            sampler: &sampler,
            rng: &mut ChaCha8Rng::seed_from_u64(3),
            target: &mut table(64),
        };
        draft.propose(cx).unwrap()
    }

    fn path(tree: &DraftTree, node: usize) -> Vec<TokenId> {
        let up = std::iter::successors(Some(node), |&node| tree.parents()[node]);
        let mut path: Vec<_> = up.map(|node| tree.tokens()[node]).collect();
        path.reverse();
        path
    }

    #[test]
    fn nodes_carry_exact_q_of_their_path() {
        for shape in [TreeShape::Dynamic, TreeShape::Static(vec![3, 2, 1])] {
            let mut draft = draft(shape);
            let tree = propose(&mut draft, &[1, 2, 3], SamplingParams::unfiltered(), 12);
            assert_eq!(tree.len(), 12);
            assert!(!tree.is_chain() && draft.take_pass_log().len() < tree.len());
            for node in 0..tree.len() {
                let DraftProb::Sampled(q) = tree.prob(node) else { panic!("sampled") };
                let before = [&[1, 2, 3], &path(&tree, node)[..tree.depth(node)]].concat();
                let sampler = Sampler::new(SamplingParams::unfiltered()).unwrap();
                let exact = sampler.distribution(&table(64).logits_after(&before), &before).unwrap();
                assert_eq!(q[..], exact[..], "node {node}");
                let siblings = tree.children(tree.parents()[node]).map(|node| tree.tokens()[node]);
                let all: Vec<_> = siblings.collect();
                assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "siblings differ");
            }
        }
    }

    #[test]
    fn greedy_children_are_most_likely_tokens_in_order() {
        let mut draft = draft(TreeShape::Static(vec![3, 2]));
        let tree = propose(&mut draft, &[1, 2, 3], SamplingParams::greedy(), 9);
        assert!(tree.is_certain());
        // One pass for the committed tokens, then one for the first level.
        assert_eq!((tree.children(None).count(), tree.len(), draft.take_pass_log()), (3, 9, vec![3, 3]));
        let mut order: Vec<TokenId> = (0..16).collect();
        let logits = table(64).logits_after(&[1, 2, 3]);
        order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
        assert_eq!(tree.children(None).map(|node| tree.tokens()[node]).collect::<Vec<_>>(), order[..3]);
    }

    #[test]
    fn keeps_cache_rows_of_accepted_path() {
        let mut draft = draft(TreeShape::Static(vec![2, 2, 1]));
        let tree = propose(&mut draft, &[1, 2, 3], SamplingParams::unfiltered(), 10);
        // Accept the second child of the root and its second child.
        let first = tree.children(None).nth(1).unwrap();
        let second = tree.children(Some(first)).nth(1).unwrap();
        let committed = [&[1, 2, 3][..], &path(&tree, second), &[9]].concat();
        let target = StepOutput::default();
        draft
            .accept(&RoundOutcome {
                accepted: &[first, second],
                kept: &[first, second],
                committed: &committed,
                target: &target,
                tap_layers: &[],
                path: &[],
                aux_start: 0,
            })
            .unwrap();
        assert_eq!((draft.model().cache_len(), draft.pending_len(&committed)), (5, 0));
        let next = propose(&mut draft, &committed, SamplingParams::unfiltered(), 10);
        let DraftProb::Sampled(q) = next.prob(0) else { panic!("sampled") };
        let sampler = Sampler::new(SamplingParams::unfiltered()).unwrap();
        assert_eq!(q[..], sampler.distribution(&table(64).logits_after(&committed), &[]).unwrap()[..]);
    }

    /// A tree without an outcome leaves only committed tokens in the cache.
    #[test]
    fn discards_rows_of_tree_without_outcome() {
        let mut draft = draft(TreeShape::Dynamic);
        propose(&mut draft, &[1, 2, 3], SamplingParams::unfiltered(), 8);
        let tree = propose(&mut draft, &[1, 2, 3, 4], SamplingParams::greedy(), 1);
        assert_eq!(tree.tokens(), [crate::sample::argmax(&table(64).logits_after(&[1, 2, 3, 4]))]);
    }

    #[test]
    fn stays_within_draft_context() {
        for length in 3..12 {
            let mut draft = DraftModel::new(Box::new(table(length))).unwrap();
            for shape in [TreeShape::Dynamic, TreeShape::Static(vec![2, 2, 2])] {
                draft.set_tree(Some(shape));
                let tree = propose(&mut draft, &[1, 2, 3], SamplingParams::unfiltered(), 14);
                assert!(!tree.is_empty());
            }
        }
    }

    #[test]
    fn calibration_learns_acceptance_by_kind() {
        let mut calibration = Calibration::default();
        let unlikely = |kind| calibration.acceptance(kind, 0.05);
        assert!(
            unlikely(ChildKind::Sampled) > 0.5
                && unlikely(ChildKind::Top) < 0.1
                && unlikely(ChildKind::NextSampled) < 0.2
        );
        let nodes = [(ChildKind::Top, 0.95), (ChildKind::NextSampled, 0.35)]
            .map(|(kind, share)| PendingNode { parent: None, token: 1, kind, share, row: None });
        let tree = PendingTree { base: 0, nodes: nodes.to_vec() };
        // The path is tested but not committed, so no row is kept.
        let outcome = RoundOutcome {
            accepted: &[1],
            kept: &[],
            committed: &[],
            target: &StepOutput::default(),
            tap_layers: &[],
            path: &[],
            aux_start: 0,
        };
        for _ in 0..60 {
            assert!(tree.settle(&outcome, &mut calibration).1.is_empty());
        }
        let acceptance = |kind, share| calibration.acceptance(kind, share);
        assert!(acceptance(ChildKind::Top, 0.95) < 0.15 && acceptance(ChildKind::NextSampled, 0.35) > 0.85);
        assert!(acceptance(ChildKind::Sampled, 0.95) > 0.9, "other kinds are unaffected");
        assert!(calibration.first_child_acceptance() < 0.1);
    }

    /// A seed must repeat an answer.
    #[test]
    fn trees_repeat_after_reset_stats() {
        let mut draft = draft(TreeShape::Dynamic);
        let (committed, target) = (&[1, 2, 3], &StepOutput::default());
        let answer = |draft: &mut DraftModel| {
            draft.reset_stats();
            draft.begin(committed);
            std::iter::repeat_with(|| {
                let tree = propose(draft, committed, SamplingParams::unfiltered(), 12);
                draft
                    .accept(&RoundOutcome {
                        accepted: &[],
                        kept: &[],
                        committed,
                        target,
                        tap_layers: &[],
                        path: &[],
                        aux_start: 0,
                    })
                    .unwrap();
                (tree.tokens().to_vec(), tree.parents().to_vec())
            })
            .take(6)
            .collect::<Vec<_>>()
        };
        let first = answer(&mut draft);
        assert!(draft.calibration().first_child_acceptance() < 0.5, "nothing was accepted");
        assert_eq!(answer(&mut draft), first);
    }

    #[test]
    fn shapes_parse_and_print() {
        for shape in ["dynamic", "3x2x1", "15"] {
            assert_eq!(shape.parse::<TreeShape>().unwrap().to_string(), shape);
        }
        for wrong in ["", "x", "0", "3x0", "16", "wide", "3,2"] {
            assert!(wrong.parse::<TreeShape>().is_err(), "{wrong}");
        }
    }
}
