//! The proposers of a session and what decides how deep they draft. There may be several: they are run
//! in turn, and the first whose draft is worth its rows is taken, so a lookup that costs nothing goes
//! before a model that does. A proposer that fails is left out for the rest of the answer. No commit happens here.

use std::ops::ControlFlow;
use std::time::Duration;

use rand::RngCore;

use super::MAX_DRAFT;
use crate::depth::{DepthController, DepthState, DraftPlan, FREE_READ, Observation};
use crate::draft::{DraftProb, DraftTree};
use crate::error::{Error, Result};
use crate::method::Method;
use crate::model::{LanguageModel, LogitRows, Step};
use crate::propose::{ProposeContext, Proposer, RoundOutcome, TargetDemand};
use crate::rule::PositionNoise;
use crate::sample::Sampler;
use crate::stats::{RoundTiming, Stopwatch, millis};
use crate::token::{TokenId, TokenOrigin};
use crate::verify::Verdict;

/// A proposer, and its controller where the depth is chosen as it goes.
struct Stage<'a> {
    proposer: &'a mut dyn Proposer,
    depth: Option<&'a mut DepthController>,
    run: StageRun,
    /// Whether it failed in this answer and is left out.
    dropped: bool,
}

/// A proposer that failed and is left out for the rest of the answer.
#[derive(Debug)]
pub struct DroppedDraft {
    /// Its method.
    pub method: Method,
    /// Why it failed.
    pub error: Error,
}

/// What a stage did in this round.
#[derive(Clone, Debug, Default)]
struct StageRun {
    /// Tokens drafted, before some were cut off.
    drafted: usize,
    /// Steps in which they were drafted: passes of a model, else positions.
    passes: usize,
    /// Rows of the passes that its model ran.
    pass_rows: Vec<usize>,
    /// Tokens a model of the proposer had to read.
    read: usize,
    took: Duration,
}

/// What goes into the target pass behind the last committed token.
pub(super) struct Proposal {
    /// The draft.
    pub(super) tree: DraftTree,
    /// What the proposer wants of the pass.
    pub(super) demand: TargetDemand,
    /// Which stage it is from; `None` when nothing is proposed.
    pub(super) stage: Option<usize>,
}

impl Proposal {
    /// A round without a draft.
    pub(super) fn empty() -> Self {
        Self { tree: DraftTree::new(), demand: TargetDemand::default(), stage: None }
    }

    /// Rows of the target pass over it.
    pub(super) fn rows(&self) -> usize {
        1 + self.tree.len() + self.demand.aux.len()
    }
}

/// What a draft is made from.
pub(super) struct DraftContext<'c> {
    pub(super) committed: &'c [TokenId],
    /// Whether nothing was generated yet.
    pub(super) first_round: bool,
    /// Most tokens of a draft.
    pub(super) max_draft: usize,
    /// Most that the answer still has room for, besides the one that every round gives: none of a path is
    /// deeper.
    pub(super) tokens_left: usize,
    /// Rows of the target's context that are left behind the root.
    pub(super) rows_left: usize,
    pub(super) end_tokens: &'c [TokenId],
    pub(super) sampler: &'c Sampler,
    pub(super) noise: Option<PositionNoise>,
    pub(super) rng: &'c mut dyn RngCore,
    pub(super) target: &'c mut dyn LanguageModel,
    pub(super) clock: &'c dyn Stopwatch,
    pub(super) cancelled: &'c dyn Fn() -> bool,
}

/// The stages, in turn.
#[derive(Default)]
pub(super) struct Stages<'a> {
    stages: Vec<Stage<'a>>,
    /// Proposers that failed since [`take_dropped`](Self::take_dropped) was called last.
    dropped: Vec<DroppedDraft>,
}

impl<'a> Stages<'a> {
    /// Another one, to be run after those before it.
    pub(super) fn add(&mut self, proposer: &'a mut dyn Proposer, depth: Option<&'a mut DepthController>) {
        self.stages.push(Stage { proposer, depth, run: StageRun::default(), dropped: false });
    }

    /// Leaves a stage out for the rest of the answer.
    pub(super) fn disable(&mut self, stage: usize, error: Error) {
        let Some(stage) = self.stages.get_mut(stage).filter(|stage| !stage.dropped) else { return };
        stage.dropped = true;
        stage.proposer.reset();
        self.dropped.push(DroppedDraft { method: stage.proposer.method(), error });
    }

    /// Takes the proposers that failed since the last call.
    pub(super) fn take_dropped(&mut self) -> Vec<DroppedDraft> {
        std::mem::take(&mut self.dropped)
    }

    /// A generation begins. Where the text depends on the drafts, those of a fixed depth do not depend on earlier
    /// answers, so that a seed repeats it.
    pub(super) fn begin(&mut self, prompt: &[TokenId], sampler: &Sampler, text_depends_on_drafts: bool) {
        for stage in &mut self.stages {
            match &mut stage.depth {
                // What is looked up is not drawn.
                Some(depth) => {
                    let has_model = stage.proposer.method().drafter().is_some();
                    depth.begin(has_model, has_model && !sampler.is_greedy());
                }
                None if text_depends_on_drafts => stage.proposer.reset_stats(),
                None => {}
            }
            stage.proposer.begin(prompt);
        }
    }

    /// Lets models of proposers read the prompt, unless it is chosen as it goes whether that pays.
    pub(super) fn prefill(
        &mut self,
        prompt: &[TokenId],
        should_continue: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for i in 0..self.stages.len() {
            let stage = &mut self.stages[i];
            if stage.depth.is_some() {
                continue;
            }
            let read = stage.proposer.prefill(prompt, should_continue);
            // That was prefill, no round's.
            stage.proposer.take_pass_log();
            match read {
                Ok(ControlFlow::Continue(())) => {}
                Ok(stopped) => return stopped,
                Err(error) => self.disable(i, error),
            }
        }
        ControlFlow::Continue(())
    }

    /// The draft of the first stage that has one which is worth it.
    ///
    /// # Errors
    /// When the target fails; a proposer that fails is left out instead.
    pub(super) fn draft(&mut self, mut cx: DraftContext<'_>) -> Result<Proposal> {
        self.stages.iter_mut().for_each(|stage| stage.run = StageRun::default());
        if cx.max_draft.min(cx.tokens_left) == 0 {
            return Ok(Proposal::empty());
        }
        let base = cx.target.cache_len();
        let plans: Vec<DraftPlan> = self.stages.iter_mut().map(|stage| stage.plan(&cx)).collect();
        for (i, plan) in plans.iter().enumerate() {
            if plan.max_draft == 0 {
                continue;
            }
            let stage = &mut self.stages[i];
            let begun = cx.clock.elapsed();
            let run = stage.draft(plan.clone(), &mut cx);
            stage.run.pass_rows.extend(stage.proposer.take_pass_log());
            let failure = stage.proposer.take_failure();
            let mut tree = match run {
                Ok(Some(tree)) => tree,
                Ok(None) => return Ok(Proposal::empty()),
                Err(error) => {
                    restore(cx.target, cx.committed, base)?;
                    self.disable(i, error);
                    continue;
                }
            };
            if let Some(depth) = &mut stage.depth
                && tree.is_chain()
                && tree.is_certain()
                && !stage.proposer.is_tree()
                && stage.proposer.extra_rows() == 0
            {
                // What comes after may promise more.
                let rival = plans[i + 1..].iter().filter_map(DraftPlan::expected);
                let rival = rival.max_by(|a, b| a.rate().total_cmp(&b.rate()));
                tree.truncate(depth.keep(tree.confidence(), rival));
            }
            stage.run.took = cx.clock.elapsed().saturating_sub(begun);
            let demand = stage.proposer.demand();
            let (rows, room) = (tree.len() + demand.aux.len(), MAX_DRAFT.min(cx.rows_left));
            if rows > room {
                let error = stage.contract_error(&format!("wants {rows} rows where there is room for {room}"));
                self.disable(i, error);
                continue;
            }
            if let Some(error) = failure {
                self.disable(i, error);
            }
            if !tree.is_empty() || !demand.aux.is_empty() {
                return Ok(Proposal { tree, demand, stage: Some(i) });
            }
        }
        Ok(Proposal::empty())
    }

    /// Rows of the passes that drafting took in this round.
    pub(super) fn pass_rows(&self) -> Vec<usize> {
        self.stages.iter().flat_map(|stage| stage.run.pass_rows.iter().copied()).collect()
    }

    /// Tells every stage what became of the round.
    pub(super) fn accept(&mut self, proposal: &Proposal, outcome: &RoundOutcome<'_>) {
        for i in 0..self.stages.len() {
            let stage = &mut self.stages[i];
            if stage.dropped {
                continue;
            }
            let own = proposal.stage == Some(i);
            let (accepted, kept) = if own { (outcome.accepted, outcome.kept) } else { Default::default() };
            if let Err(error) = stage.proposer.accept(&RoundOutcome { accepted, kept, ..*outcome }) {
                self.disable(i, error);
            }
        }
    }

    /// Lets the controllers learn from a round, and gives the state of the depth where one is chosen.
    pub(super) fn observe(
        &mut self,
        proposal: &Proposal,
        verdict: &Verdict,
        timing: &RoundTiming,
    ) -> Option<DepthState> {
        let rows = proposal.rows();
        let mut state: Option<DepthState> = None;
        let mut parked = true;
        for (i, stage) in self.stages.iter_mut().enumerate().filter(|(_, stage)| !stage.dropped) {
            let drafted_here = proposal.stage == Some(i);
            let StageRun { drafted, passes, read, took, .. } = stage.run;
            let Some(depth) = &mut stage.depth else { continue };
            let mut seen = Observation {
                drafted,
                passes,
                read,
                propose_ms: millis(took),
                rows,
                target_ms: timing.target_ms,
                emitted: 1 + verdict.accepted.len(),
                acted: drafted_here,
                ..Observation::default()
            };
            if drafted_here {
                seen.height = proposal.tree.height();
                (seen.tested, seen.confidence) = tested(proposal, verdict);
            }
            depth.observe(&seen);
            let mut current = depth.state();
            current.gains.truncate(stage.proposer.max_depth());
            parked &= current.parked;
            if drafted_here || state.is_none() || proposal.stage.is_none() {
                state = Some(current);
            }
        }
        state.map(|state| DepthState { parked, ..state })
    }
}

/// Whether each depth that was tested was accepted, and how sure the draft had been.
fn tested(proposal: &Proposal, verdict: &Verdict) -> (Vec<bool>, Vec<Option<f32>>) {
    let tree = &proposal.tree;
    let mut tested = vec![true; verdict.accepted.len()];
    if verdict.last_origin == TokenOrigin::Resampled {
        tested.push(false);
    }
    // In a chain the node after the accepted ones is the one that failed. In a tree several failed there, and what
    // passed alone would speak too well of the draft.
    let sure = |depth: usize| tree.confidence()[depth].filter(|_| tree.is_chain());
    let mut confidence: Vec<_> = (0..tested.len()).map(sure).collect();
    if tree.is_empty() && !proposal.demand.aux.is_empty() {
        // Rows rode along and there was no draft: what they cost bought nothing this time.
        (tested, confidence) = (vec![false], vec![None]);
    }
    (tested, confidence)
}

/// Leaves `base` rows in the target's cache, whatever a proposer that failed has done to it.
///
/// # Errors
/// When the target fails.
pub(super) fn restore(target: &mut dyn LanguageModel, committed: &[TokenId], base: usize) -> Result<()> {
    target.truncate(base)?;
    let rows = target.prefill_rows().max(1);
    for chunk in committed[target.cache_len()..base].chunks(rows) {
        target.forward(Step::chain(chunk, LogitRows::None))?;
    }
    Ok(())
}

impl Stage<'_> {
    /// How far to draft now.
    fn plan(&mut self, cx: &DraftContext<'_>) -> DraftPlan {
        if self.dropped {
            return DraftPlan::fixed(0);
        }
        let limit = if self.proposer.is_tree() { cx.max_draft } else { cx.max_draft.min(cx.tokens_left) };
        let plan = match &mut self.depth {
            None => DraftPlan::fixed(limit),
            Some(depth) => {
                self.run.read = self.proposer.pending_len(cx.committed);
                let limit = limit.min(self.proposer.max_depth());
                let plan = depth.plan(limit, self.run.read, self.proposer.extra_rows(), cx.tokens_left);
                // The first token should not wait until a second model has read the prompt.
                if cx.first_round && self.run.read > FREE_READ { DraftPlan::fixed(0) } else { plan }
            }
        };
        plan.with_max_depth(cx.tokens_left)
    }

    /// Asks for a draft, and checks that the proposer kept its contract.
    /// `None` when it was cancelled while its model read.
    fn draft(&mut self, plan: DraftPlan, cx: &mut DraftContext<'_>) -> Result<Option<DraftTree>> {
        if self.depth.is_some() && self.run.read > FREE_READ {
            let cancelled = cx.cancelled;
            let mut should_continue = || if cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
            let read = self.proposer.prefill(cx.committed, &mut should_continue)?;
            self.run.pass_rows = self.proposer.take_pass_log();
            if read.is_break() {
                return Ok(None);
            }
        }
        let (base, deepest) = (cx.target.cache_len(), plan.max_draft.min(plan.deepest));
        let tree = self.proposer.propose(ProposeContext {
            committed: cx.committed,
            plan,
            end_tokens: cx.end_tokens,
            sampler: cx.sampler,
            noise: cx.noise,
            rng: &mut *cx.rng,
            target: &mut *cx.target,
        })?;
        if (0..tree.len()).any(|node| tree.depth(node) >= deepest) {
            return Err(
                self.contract_error(&format!("drafted {} tokens where depth {deepest} was allowed", tree.len()))
            );
        }
        let n_vocab = cx.target.info().n_vocab;
        if let Some(node) = (0..tree.len()).find(|&node| !is_possible(&tree, node, n_vocab)) {
            return Err(self.contract_error(&format!("drafted the impossible token {}", tree.tokens()[node])));
        }
        if cx.target.cache_len() != base {
            let left = cx.target.cache_len();
            return Err(self.contract_error(&format!("left {left} rows in the target's cache and found {base}")));
        }
        let pass_rows = self.proposer.take_pass_log();
        let passes = if pass_rows.is_empty() { tree.height() } else { pass_rows.len() };
        (self.run.drafted, self.run.passes) = (tree.len(), passes);
        self.run.pass_rows.extend(pass_rows);
        Ok(Some(tree))
    }

    /// The error of a proposer that broke its contract.
    fn contract_error(&self, how: &str) -> Error {
        Error::Internal(format!("the method {} {how}", self.proposer.method()))
    }
}

/// Whether the token of a node exists and could have been drawn as the draft says.
fn is_possible(tree: &DraftTree, node: usize, n_vocab: usize) -> bool {
    let token = tree.tokens()[node] as usize;
    let drawn = |q: &[f32]| q.len() == n_vocab && q.get(token).is_some_and(|&q| q > 0.0 && q.is_finite());
    token < n_vocab
        && match tree.prob(node) {
            DraftProb::Certain => true,
            DraftProb::Sampled(q) => drawn(q),
        }
}
