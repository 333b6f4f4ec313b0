//! Trees from a draft model (SpecInfer, Miao et al., arXiv 2305.09781): several continuations, verified in
//! one target pass. A tree grows by joint probability (as EAGLE-2, Li et al., arXiv 2406.16858, chooses
//! its nodes) or with a fixed number of children for each level.
//!
//! Children are sampled without replacement from q, or are the likeliest tokens where there is no chance
//! (greedy, coupled). Every decision to draw is made before the draw, from what is known by then, and
//! nothing that was drawn is dropped: so each child comes from q without its elder siblings, whatever made
//! us draw it, and that is what the verifier is told.
//!
//! The draft model reads a whole front of nodes in one pass, behind the rows that earlier passes of the
//! same tree left in its cache; the rows of the accepted path are kept.

use std::sync::Arc;

use super::chain::GUESSES;
use super::{ProposeContext, RoundOutcome};
use crate::depth::{CONFIDENCE_BINS, DraftPlan, SuccessRate, bin_of, bin_prior};
use crate::draft::{DraftProb, DraftTree};
use crate::error::{Error, Result};
use crate::limits::MAX_DRAFT;
use crate::model::{LogitRows, RowLayout, Rows, Step};
use crate::rule::PositionNoise;
use crate::sample::{Sampler, draw, likeliest_of, unit};
use crate::token::{TokenId, TokenProb};

/// How a tree branches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TreeShape {
    /// Where a second guess promises more than going deeper.
    #[default]
    Dynamic,
    /// So many children for every node of each level.
    Static(Vec<usize>),
}

impl TreeShape {
    /// Children that a node may have which come at `depth`.
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

    /// `dynamic`, or children by level, such as `3x2x1`.
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

/// Most nodes read in one pass.
const FRONT: usize = 8;
/// Children of a node that are looked at where they are chosen without chance, if its level names no number.
const CANDIDATES: usize = 8;

/// How many tests the draft's own opinion counts: the best of many slots is taken, and with fewer that would be one
/// which was lucky.
const OPINION: f64 = 4.0;
/// Acceptance of an eldest child before any test, and how many tests that counts.
const USUAL: (f64, f64) = (0.6, 2.0);
/// Tests that a rate remembers.
const MEMORY: f64 = 32.0;

/// How often a child was accepted when it was tested, by its share of what its elder siblings left: what
/// the draft's opinion is worth. Kept from tree to tree.
#[derive(Clone, Debug, Default)]
pub(super) struct Calibration {
    kinds: [[SuccessRate; CONFIDENCE_BINS]; 4],
    /// Eldest children of late, whatever their share.
    of_late: SuccessRate,
}

/// Children whose shares are worth the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The eldest, where it is the likeliest.
    Likeliest,
    /// The eldest, where chance drew it.
    Drawn,
    /// The likeliest but for its elder siblings, which were rejected.
    NextLikeliest,
    /// Drawn without its elder siblings, which were rejected.
    NextDrawn,
}

impl Kind {
    fn of(eldest: bool, by_chance: bool) -> Self {
        match (eldest, by_chance) {
            (true, false) => Self::Likeliest,
            (true, true) => Self::Drawn,
            (false, false) => Self::NextLikeliest,
            (false, true) => Self::NextDrawn,
        }
    }

    fn is_eldest(self) -> bool {
        matches!(self, Self::Likeliest | Self::Drawn)
    }

    /// The probability that one of a class is accepted, before anything is known of the draft.
    fn prior(self, class: usize) -> f64 {
        match self {
            Self::Likeliest | Self::NextLikeliest => bin_prior(class, false),
            Self::Drawn => bin_prior(class, true),
            // What rejections leave of p is where q was too low, so a large share of what they leave of q is worth
            // less, and a small one more. Measured on prose: 0.16 to 0.56, in a straight line.
            Self::NextDrawn => 0.15 + 0.45 * bin_prior(class, false),
        }
    }
}

impl Calibration {
    /// The probability that a child is accepted when it is tested.
    fn acceptance(&self, kind: Kind, share: f64) -> f64 {
        let class = bin_of(share as f32);
        self.kinds[kind as usize][class].mean(kind.prior(class), OPINION)
    }

    /// The acceptance of an eldest child of which nothing is known yet.
    fn usual(&self) -> f64 {
        self.of_late.mean(USUAL.0, USUAL.1)
    }

    fn add(&mut self, node: &GrownNode, passed: bool) {
        self.kinds[node.kind as usize][bin_of(node.share)].add(passed, MEMORY);
        if node.kind.is_eldest() {
            self.of_late.add(passed, MEMORY);
        }
    }
}

/// What is remembered of a tree until the target has spoken.
#[derive(Clone, Debug, Default)]
pub(super) struct Grown {
    /// Rows of the draft model's cache before those of the tree.
    base: usize,
    nodes: Vec<GrownNode>,
}

#[derive(Clone, Copy, Debug)]
struct GrownNode {
    parent: Option<usize>,
    token: TokenId,
    kind: Kind,
    /// Its probability among what its elder siblings left.
    share: f32,
    /// Its row in the draft model's cache after `base`, once it was read.
    row: Option<usize>,
}

impl Grown {
    /// Learns which children were accepted, and gives the cache rows of the kept path and their tokens.
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

/// A node that was read: what its children come from.
struct Branch {
    node: Option<usize>,
    children: Children,
    /// What the draft thinks likeliest here.
    guesses: Arc<[TokenProb]>,
    /// Children drawn.
    drawn: usize,
    /// The probability that the target comes here and rejects all children drawn so far.
    open: f64,
    /// How many more it may have.
    room: usize,
}

enum Children {
    /// Sampled from q without replacement.
    Sampled {
        q: Arc<[f32]>,
        /// The eldest child, and q without those drawn, once there is to be a second.
        eldest: Option<TokenId>,
        rest: Option<Vec<f32>>,
        /// Sum and sum of squares of what is left, about.
        mass: f64,
        squares: f64,
    },
    /// Chosen, in this order, with their probabilities.
    Ranked(Vec<TokenProb>),
}

impl Branch {
    /// The kind of its next child.
    fn next_kind(&self, by_chance: bool) -> Kind {
        Kind::of(self.drawn == 0, by_chance)
    }

    /// The share that the next child is expected to have of what is left; `None` when there is none.
    fn next_share(&self) -> Option<f64> {
        if self.room == 0 {
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

/// A node that was not read yet.
#[derive(Clone, Copy)]
struct Leaf {
    node: usize,
    reach: f64,
}

/// The draft model as a growing tree uses it.
pub(super) struct TreeDraft<'a> {
    /// Rows in the model's cache.
    pub(super) cached: usize,
    /// Longest sequence of the model, in tokens.
    pub(super) context_length: usize,
    /// Acceptance by confidence, observed so far.
    pub(super) calibration: &'a Calibration,
    /// Runs a pass of the model; its rows stay unsettled in the cache.
    pub(super) read: &'a mut dyn FnMut(Step<'_>) -> Result<Rows>,
}

/// A tree while it grows.
struct Growth<'a, 'd> {
    draft: TreeDraft<'d>,
    committed: &'a [TokenId],
    sampler: &'a Sampler,
    noise: Option<PositionNoise>,
    plan: DraftPlan,
    end_tokens: &'a [TokenId],
    n_vocab: usize,
    tree: DraftTree,
    grown: Grown,
    /// For each node the rows it sees, its own not among them.
    seen: Vec<u64>,
    /// Rows read so far.
    rows: usize,
    branches: Vec<Branch>,
    leaves: Vec<Leaf>,
}

/// Grows a tree from the logits after the last committed token. A tree that a failing pass cut short is returned
/// with the error: dropping nodes that were drawn would bias the answer.
pub(super) fn grow(
    draft: TreeDraft<'_>,
    cx: ProposeContext<'_>,
    logits: &[f32],
    shape: &TreeShape,
) -> Result<(DraftTree, Grown, Option<Error>)> {
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
        grown: Grown { base, nodes: Vec::new() },
        seen: Vec::new(),
        rows: 0,
        branches: Vec::new(),
        leaves: Vec::new(),
    };
    growth.branch(None, 1.0, logits.to_vec(), 0, shape)?;
    let mut draw = |growth: &mut Growth<'_, '_>, branch: usize| growth.draw_child(branch, rng);
    let grown = match shape {
        TreeShape::Static(_) => growth.by_level(shape, &mut draw),
        TreeShape::Dynamic => growth.by_probability(shape, &mut draw),
    };
    Ok((growth.tree, growth.grown, grown.err()))
}

type Draw<'d> = dyn FnMut(&mut Growth<'_, '_>, usize) + 'd;

impl Growth<'_, '_> {
    /// Always the child or the front that promises most next.
    fn by_probability(&mut self, shape: &TreeShape, draw: &mut Draw<'_>) -> Result<()> {
        while self.tree.len() < self.plan.max_draft {
            let slot = self.best_slot();
            let usual = self.draft.calibration.usual();
            let front = self.leaves.iter().map(|leaf| leaf.reach * usual).fold(0.0, f64::max);
            match slot {
                Some((branch, value)) if value >= front => {
                    if !self.plan.row_pays(value, self.tree.len()) {
                        break;
                    }
                    draw(self, branch);
                }
                _ if front > 0.0 => {
                    let batch = self.front(usual);
                    let value: f64 = batch.iter().map(|leaf| leaf.reach * usual).sum();
                    if batch.is_empty() || !self.plan.pass_pays(value, self.tree.len(), batch.len()) {
                        self.leaves.clear();
                        continue;
                    }
                    self.read(&batch, shape)?;
                }
                _ => break,
            }
        }
        Ok(())
    }

    /// Every node of a level gets the level's number of children, as long as they pay.
    fn by_level(&mut self, shape: &TreeShape, draw: &mut Draw<'_>) -> Result<()> {
        let usual = self.draft.calibration.usual();
        let mut begun = 0;
        loop {
            for branch in begun..self.branches.len() {
                while let Some(value) = self.value_of(branch) {
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
            begun = self.branches.len();
            let mut front = std::mem::take(&mut self.leaves);
            front.truncate(self.room());
            front.retain(|leaf| shape.children_at(self.tree.depth(leaf.node) + 1) > 0);
            if front.is_empty() {
                return Ok(());
            }
            for batch in front.chunks(FRONT) {
                let value: f64 = batch.iter().map(|leaf| leaf.reach * usual).sum();
                if !self.plan.pass_pays(value, self.tree.len(), batch.len()) {
                    break;
                }
                self.read(batch, shape)?;
            }
        }
    }

    /// How likely the next child of a branch is to be accepted; `None` where it may have none.
    fn value_of(&self, branch: usize) -> Option<f64> {
        let branch = &self.branches[branch];
        let kind = branch.next_kind(!self.sampler.is_greedy());
        let acceptance = self.draft.calibration.acceptance(kind, branch.next_share()?);
        Some(branch.open * acceptance)
    }

    /// Branches that may have another child, and how likely it is to be accepted.
    fn slots(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        (0..self.branches.len()).filter_map(|branch| Some((branch, self.value_of(branch)?)))
    }

    fn best_slot(&self) -> Option<(usize, f64)> {
        self.slots().max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Rows of the draft model's context that are left.
    fn room(&self) -> usize {
        self.draft.context_length.saturating_sub(self.grown.base + self.rows).min(64 - self.rows)
    }

    /// The leaves to read in one pass: those whose first child may still find a place in the tree.
    fn front(&mut self, usual: f64) -> Vec<Leaf> {
        let places = self.plan.max_draft - self.tree.len();
        let mut leaves = std::mem::take(&mut self.leaves);
        leaves.sort_by(|a, b| b.reach.total_cmp(&a.reach));
        // A row more in this pass is cheaper than a pass of its own later.
        let mut values: Vec<f64> = leaves
            .iter()
            .map(|leaf| leaf.reach * usual)
            .chain(self.slots().map(|(_, value)| value))
            .collect();
        values.sort_by(|a, b| b.total_cmp(a));
        let bar = values.get(places / 2).copied().unwrap_or(0.0);
        let most = FRONT.min(places).min(self.room());
        let worth = leaves.iter().take(most).take_while(|leaf| leaf.reach * usual >= bar).count();
        self.leaves = leaves.split_off(worth);
        leaves
    }

    /// Reads leaves in one pass and makes branches of them.
    fn read(&mut self, batch: &[Leaf], shape: &TreeShape) -> Result<()> {
        let tokens: Vec<TokenId> = batch.iter().map(|leaf| self.tree.tokens()[leaf.node]).collect();
        let depths: Vec<usize> = batch.iter().map(|leaf| self.tree.depth(leaf.node)).collect();
        for (i, leaf) in batch.iter().enumerate() {
            self.grown.nodes[leaf.node].row = Some(self.rows + i);
        }
        let own = |leaf: &Leaf| self.seen[leaf.node] | 1 << self.grown.nodes[leaf.node].row.unwrap_or(0);
        let visible: Vec<u64> = batch.iter().map(own).collect();
        let layout = RowLayout::Custom { since: self.grown.base, depths: &depths, visible: &visible };
        let logits = (self.draft.read)(Step { layout, ..Step::chain(&tokens, LogitRows::All) })?;
        self.rows += batch.len();
        for (i, leaf) in batch.iter().enumerate() {
            self.branch(Some(leaf.node), leaf.reach, logits.row(i).to_vec(), depths[i] + 1, shape)?;
        }
        Ok(())
    }

    /// A branch of a node from the logits after it; its children are at `depth`.
    fn branch(
        &mut self,
        node: Option<usize>,
        reach: f64,
        mut logits: Vec<f32>,
        depth: usize,
        shape: &TreeShape,
    ) -> Result<()> {
        // q lives on the target's vocabulary: what only one of the two has is impossible.
        logits.resize(self.n_vocab, f32::NEG_INFINITY);
        let window = self.sampler.window();
        let mut recent = self.committed[self.committed.len().saturating_sub(window)..].to_vec();
        recent.extend(self.tree.path(node));
        let room = shape.children_at(depth);
        let candidates = match shape {
            TreeShape::Dynamic => CANDIDATES,
            TreeShape::Static(_) => room.max(GUESSES),
        };
        let (children, guesses) = if self.sampler.is_greedy() {
            let ranking = self.sampler.ranking(&logits, &recent, candidates)?;
            let guesses = ranking.iter().copied().take(GUESSES).collect();
            (Children::Ranked(ranking), guesses)
        } else {
            let q = self.sampler.distribution(&logits, &recent)?;
            let guesses = likeliest_of(&q, GUESSES);
            let children = match self.noise {
                Some(noise) => {
                    let ranking = noise.ranking(&q, self.committed.len() + depth, candidates);
                    Children::Ranked(ranking.into_iter().map(|token| (token, q[token as usize])).collect())
                }
                None => {
                    let squares = q.iter().map(|&q| f64::from(q) * f64::from(q)).sum();
                    Children::Sampled { q: q.into(), eldest: None, rest: None, mass: 1.0, squares }
                }
            };
            (children, guesses)
        };
        self.branches.push(Branch { node, children, guesses: guesses.into(), drawn: 0, open: reach, room });
        Ok(())
    }

    /// Draws the next child of a branch into the tree.
    fn draw_child(&mut self, branch: usize, rng: &mut dyn rand::RngCore) {
        let branch = &mut self.branches[branch];
        // What is chosen has the share that was expected; what is drawn is known after the draw.
        let expected = branch.next_share().unwrap_or(0.0) as f32;
        let (token, share, prob) = match &mut branch.children {
            Children::Ranked(ranked) => (ranked[branch.drawn].0, expected, DraftProb::Certain),
            Children::Sampled { q, eldest, rest, mass, squares } => {
                if let (Some(eldest), None) = (*eldest, &rest) {
                    let mut without = q.to_vec();
                    without[eldest as usize] = 0.0;
                    *rest = Some(without);
                }
                if rest.as_ref().is_some_and(|rest| rest.iter().all(|&q| q == 0.0)) {
                    branch.room = 0;
                    return;
                }
                let token = draw(rest.as_deref().unwrap_or(q), unit(rng));
                let weight = f64::from(q[token as usize]);
                let share = weight / *mass;
                (*mass, *squares) = ((*mass - weight).max(0.0), (*squares - weight * weight).max(0.0));
                match rest {
                    Some(rest) => rest[token as usize] = 0.0,
                    None => *eldest = Some(token),
                }
                (token, share as f32, DraftProb::Sampled(q.clone()))
            }
        };
        let share = share.clamp(0.0, 1.0);
        let kind = branch.next_kind(!self.sampler.is_greedy());
        let passes = self.draft.calibration.acceptance(kind, f64::from(share));
        let reach = branch.open * passes;
        branch.open -= reach;
        branch.drawn += 1;
        branch.room -= 1;
        let (parent, guesses) = (branch.node, branch.guesses.clone());
        let node = match prob {
            DraftProb::Certain => self.tree.push_certain(parent, token, share),
            sampled => self.tree.push(parent, token, sampled),
        };
        self.tree.set_guesses(node, guesses);
        let seen = parent.map_or(0, |p| self.seen[p] | 1 << self.grown.nodes[p].row.unwrap_or(0));
        self.seen.push(seen);
        self.grown.nodes.push(GrownNode { parent, token, kind, share, row: None });
        if self.tree.depth(node) + 1 < self.plan.deepest && !self.end_tokens.contains(&token) {
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
    fn every_node_comes_from_the_distribution_of_its_own_path() {
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
    fn without_chance_the_likeliest_come_first() {
        let mut draft = draft(TreeShape::Static(vec![3, 2]));
        let tree = propose(&mut draft, &[1, 2, 3], SamplingParams::greedy(), 9);
        assert!(tree.is_certain());
        // The committed tokens, then the first level in one pass.
        assert_eq!((tree.children(None).count(), tree.len(), draft.take_pass_log()), (3, 9, vec![3, 3]));
        let mut order: Vec<TokenId> = (0..16).collect();
        let logits = table(64).logits_after(&[1, 2, 3]);
        order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
        assert_eq!(tree.children(None).map(|node| tree.tokens()[node]).collect::<Vec<_>>(), order[..3]);
    }

    #[test]
    fn the_accepted_path_is_not_read_again() {
        let mut draft = draft(TreeShape::Static(vec![2, 2, 1]));
        let tree = propose(&mut draft, &[1, 2, 3], SamplingParams::unfiltered(), 10);
        // The second child of the root, and its second child.
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
                side: 0,
            })
            .unwrap();
        assert_eq!((draft.model().cache_len(), draft.pending_len(&committed)), (5, 0));
        let next = propose(&mut draft, &committed, SamplingParams::unfiltered(), 10);
        let DraftProb::Sampled(q) = next.prob(0) else { panic!("sampled") };
        let sampler = Sampler::new(SamplingParams::unfiltered()).unwrap();
        assert_eq!(q[..], sampler.distribution(&table(64).logits_after(&committed), &[]).unwrap()[..]);
    }

    /// Of a tree that nobody settled nothing stays but what was committed.
    #[test]
    fn an_unsettled_tree_is_forgotten() {
        let mut draft = draft(TreeShape::Dynamic);
        propose(&mut draft, &[1, 2, 3], SamplingParams::unfiltered(), 8);
        let tree = propose(&mut draft, &[1, 2, 3, 4], SamplingParams::greedy(), 1);
        assert_eq!(tree.tokens(), [crate::sample::argmax(&table(64).logits_after(&[1, 2, 3, 4]))]);
    }

    #[test]
    fn it_stays_inside_the_context_of_the_draft() {
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
    fn what_the_draft_is_worth_is_learnt() {
        let mut calibration = Calibration::default();
        let unlikely = |kind| calibration.acceptance(kind, 0.05);
        assert!(
            unlikely(Kind::Drawn) > 0.5 && unlikely(Kind::Likeliest) < 0.1 && unlikely(Kind::NextDrawn) < 0.2
        );
        let nodes = [(Kind::Likeliest, 0.95), (Kind::NextDrawn, 0.35)].map(|(kind, share)| GrownNode {
            parent: None,
            token: 1,
            kind,
            share,
            row: None,
        });
        let grown = Grown { base: 0, nodes: nodes.to_vec() };
        // The path ends with the text: it is tested, and no row of it stays.
        let outcome = RoundOutcome {
            accepted: &[1],
            kept: &[],
            committed: &[],
            target: &StepOutput::default(),
            side: 0,
        };
        for _ in 0..60 {
            assert!(grown.settle(&outcome, &mut calibration).1.is_empty());
        }
        let acceptance = |kind, share| calibration.acceptance(kind, share);
        assert!(acceptance(Kind::Likeliest, 0.95) < 0.15 && acceptance(Kind::NextDrawn, 0.35) > 0.85);
        assert!(acceptance(Kind::Drawn, 0.95) > 0.9, "of another kind");
        assert!(calibration.usual() < 0.1);
    }

    /// Else a seed would not repeat an answer.
    #[test]
    fn trees_do_not_depend_on_what_was_unlearned() {
        let mut draft = draft(TreeShape::Dynamic);
        let (committed, target) = (&[1, 2, 3], &StepOutput::default());
        let answer = |draft: &mut DraftModel| {
            draft.reset_stats();
            draft.begin(committed);
            std::iter::repeat_with(|| {
                let tree = propose(draft, committed, SamplingParams::unfiltered(), 12);
                draft.accept(&RoundOutcome { accepted: &[], kept: &[], committed, target, side: 0 }).unwrap();
                (tree.tokens().to_vec(), tree.parents().to_vec())
            })
            .take(6)
            .collect::<Vec<_>>()
        };
        let first = answer(&mut draft);
        assert!(draft.calibration().usual() < 0.5, "nothing was accepted");
        assert_eq!(answer(&mut draft), first);
    }

    #[test]
    fn shapes_are_read_and_written() {
        for shape in ["dynamic", "3x2x1", "15"] {
            assert_eq!(shape.parse::<TreeShape>().unwrap().to_string(), shape);
        }
        for wrong in ["", "x", "0", "3x0", "16", "wide", "3,2"] {
            assert!(wrong.parse::<TreeShape>().is_err(), "{wrong}");
        }
    }
}
