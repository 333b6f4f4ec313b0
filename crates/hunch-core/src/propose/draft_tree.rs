//! Draft trees (SpecInfer, Miao et al., arXiv 2305.09781): several continuations, verified in one
//! target pass.
//!
//! A tree grows by joint probability, as EAGLE-2 selects its nodes (Li et al., arXiv 2406.16858), or
//! with a fixed number of children per node.
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
//! children, others cannot: reading them would wait for each batch. A fixed shape is what the user asked for, so it
//! grows in batches there too.

mod branch;
mod calibration;
mod config;
mod shape;

use rand::RngCore;

use super::ProposeContext;
use super::chain::{GUESSES, after_guess, possible};
use crate::depth::DraftPlan;
use crate::draft::{DraftProb, DraftTree};
use crate::error::{Error, Result};
use crate::model::{DeviceChain, LogitRows, PassInput, RowLayout, Rows};
use crate::rule::PositionNoise;
use crate::sample::{Sampler, draw, top_tokens, unit};
use crate::token::TokenId;
use branch::{Branch, Children, Leaf};
use calibration::PendingNode;
pub(super) use calibration::{Calibration, KeptRows, PendingTree};
pub use shape::{LevelShape, TreeShape};

/// The draft model, as tree growth needs it.
pub(super) struct TreeDraft<'a> {
    /// Rows in its cache.
    pub(super) cached: usize,
    /// Maximum sequence length, in tokens, if each further one takes a row.
    pub(super) context_length: usize,
    /// Acceptance rates observed so far.
    pub(super) calibration: &'a Calibration,
    /// Leaves of equal depth have equal logits: one row of a pass serves all of them, whenever they are read.
    pub(super) by_depth: bool,
    /// Chain that its device ran after the committed tokens, with the random numbers of the draws.
    pub(super) chain: Option<(DeviceChain, Vec<f64>)>,
    /// Runs a pass of the model. Its rows stay provisional in the cache.
    pub(super) forward: &'a mut dyn FnMut(PassInput<'_>) -> Result<Rows>,
}

/// Returns the length of the chain that a device runs before a tree grows; 0 if the tree grows in batches.
pub(super) fn chain_depth(shape: &TreeShape, plan: &DraftPlan, calibration: &Calibration) -> usize {
    if *shape != TreeShape::Dynamic {
        return 0;
    }
    let acceptance = calibration.first_child_acceptance();
    let reach = |depth: usize| acceptance.powi(depth as i32);
    let pays = |&depth: &usize| {
        depth == 0
            || (reach(depth) >= calibration.config.chain_reach && plan.pass_pays(reach(depth + 1), depth, 1))
    };
    (0..plan.max_draft.min(plan.max_depth)).take_while(pays).count()
}

/// State of a growing tree.
struct Growth<'a, 'd> {
    draft: TreeDraft<'d>,
    shape: &'a TreeShape,
    rng: &'a mut dyn RngCore,
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
        shape,
        rng,
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
    growth.add_branch(None, 1.0, logits.to_vec())?;
    let outcome = match shape {
        TreeShape::Static(_) => growth.by_level(),
        TreeShape::Dynamic => growth.by_probability(),
    };
    Ok((growth.tree, growth.pending, outcome.err()))
}

impl Growth<'_, '_> {
    /// Repeatedly takes the step with the highest expected acceptance: draw a child, or read a batch of
    /// leaves.
    fn by_probability(&mut self) -> Result<()> {
        while self.tree.len() < self.plan.max_draft {
            let slot = self.best_slot();
            let first_acceptance = self.draft.calibration.first_child_acceptance();
            let front = self.leaves.iter().map(|leaf| leaf.reach * first_acceptance).fold(0.0, f64::max);
            match slot {
                Some((branch, value)) if value >= front => {
                    if !self.plan.row_pays(value, self.tree.len()) {
                        break;
                    }
                    self.draw_child(branch);
                }
                _ if front > 0.0 => {
                    if self.draft.chain.is_some() {
                        self.follow_chain()?;
                        continue;
                    }
                    let batch = self.take_batch(first_acceptance);
                    let value: f64 = batch.iter().map(|leaf| leaf.reach * first_acceptance).sum();
                    if batch.is_empty() || !self.batch_pays(&batch, value) {
                        self.leaves.clear();
                        continue;
                    }
                    self.read_batch(&batch)?;
                }
                _ => break,
            }
        }
        Ok(())
    }

    /// Gives every node of a level its number of children, as long as they pay off.
    fn by_level(&mut self) -> Result<()> {
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
                    self.draw_child(branch);
                }
            }
            if self.tree.len() == self.plan.max_draft {
                return Ok(());
            }
            start = self.branches.len();
            let mut front = std::mem::take(&mut self.leaves);
            front.retain(|leaf| self.shape.children_of(&self.ranks(Some(leaf.node))) > 0);
            front.truncate(self.rows_left());
            if front.is_empty() {
                return Ok(());
            }
            for batch in front.chunks(self.draft.calibration.config.batch_rows) {
                let value: f64 = batch.iter().map(|leaf| leaf.reach * first_acceptance).sum();
                if !self.batch_pays(batch, value) {
                    break;
                }
                self.read_batch(batch)?;
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
        self.draft
            .context_length
            .saturating_sub(self.pending.base + self.rows)
            .min(u64::BITS as usize - self.rows)
    }

    /// Takes the leaves to read in one pass: those whose first child may still make it into the tree.
    fn take_batch(&mut self, first_acceptance: f64) -> Vec<Leaf> {
        let config = self.draft.calibration.config;
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
        let threshold = values.get((slots_left as f64 * config.batch_slots) as usize).copied().unwrap_or(0.0);
        let max_batch = config.batch_rows.min(slots_left).min(self.rows_left());
        let n_selected = leaves
            .iter()
            .take(max_batch)
            .take_while(|leaf| leaf.reach * first_acceptance >= threshold)
            .count();
        self.leaves = leaves.split_off(n_selected);
        leaves
    }

    /// Turns the leaves on the device's chain into branches, and drops the others.
    fn follow_chain(&mut self) -> Result<()> {
        for leaf in std::mem::take(&mut self.leaves) {
            let (depth, token) = (self.tree.depth(leaf.node), self.tree.tokens()[leaf.node]);
            let Some((chain, _)) = &self.draft.chain else { continue };
            if let Some(logits) = after_guess(chain, depth, token) {
                self.pending.nodes[leaf.node].row = Some(depth);
                self.add_branch(Some(leaf.node), leaf.reach, logits)?;
            }
        }
        Ok(())
    }

    /// Reads leaves in one pass and turns them into branches.
    fn read_batch(&mut self, batch: &[Leaf]) -> Result<()> {
        let tokens: Vec<TokenId> = batch.iter().map(|leaf| self.tree.tokens()[leaf.node]).collect();
        let depths: Vec<usize> = batch.iter().map(|leaf| self.tree.depth(leaf.node)).collect();
        for (i, leaf) in batch.iter().enumerate() {
            self.pending.nodes[leaf.node].row = Some(self.rows + i);
        }
        let own = |leaf: &Leaf| self.visible[leaf.node] | 1 << self.pending.nodes[leaf.node].row.unwrap_or(0);
        let visible: Vec<u64> = batch.iter().map(own).collect();
        let layout = RowLayout::Custom { since: self.pending.base, depths: &depths, visible: &visible };
        let logits = (self.draft.forward)(PassInput { layout, ..PassInput::chain(&tokens, LogitRows::All) })?;
        self.rows += batch.len();
        self.levels = self.levels.max(depths.iter().map(|depth| depth + 1).max().unwrap_or(0));
        for (i, leaf) in batch.iter().enumerate() {
            self.add_branch(Some(leaf.node), leaf.reach, logits.row(i).to_vec())?;
        }
        Ok(())
    }

    /// Creates the branch of a node, or of the root, from the logits after it.
    fn add_branch(&mut self, node: Option<usize>, reach: f64, mut logits: Vec<f32>) -> Result<()> {
        // The depth of its children.
        let depth = node.map_or(0, |node| self.tree.depth(node) + 1);
        // q is defined on the target's vocabulary. Tokens that only one model has are impossible.
        logits.resize(self.n_vocab, f32::NEG_INFINITY);
        let window = self.sampler.window();
        let mut recent = self.committed[self.committed.len().saturating_sub(window)..].to_vec();
        recent.extend(self.tree.path(node));
        let children_left = self.shape.children_of(&self.ranks(node));
        let candidates = match self.shape {
            TreeShape::Dynamic => self.draft.calibration.config.candidates,
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

    /// Returns the number of siblings before each node on the path from the root.
    fn ranks(&self, node: Option<usize>) -> Vec<usize> {
        let up = std::iter::successors(node, |&node| self.tree.parents()[node]);
        let mut ranks: Vec<usize> = up.map(|node| self.tree.rank(node)).collect();
        ranks.reverse();
        ranks
    }

    /// Draws the next child of a branch into the tree.
    fn draw_child(&mut self, branch: usize) {
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
                let token = draw(rest.as_deref().unwrap_or(q), drawn.unwrap_or_else(|| unit(&mut *self.rng)));
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
mod tests;
