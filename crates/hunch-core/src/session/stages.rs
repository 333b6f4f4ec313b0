//! The proposers of a session and their depth controller. The registry's
//! [`Stage`](crate::propose::Stage) declares one; an [`ActiveStage`] is one at work.
//!
//! Proposers are tried in order, and the first worthwhile draft is used. A cheap lookup therefore goes
//! before a draft model. If there are two models, the one that expects the larger speedup drafts. A proposer that
//! fails is dropped for the rest of the generation. Nothing is committed here.

use std::ops::{ControlFlow, Deref, DerefMut};
use std::time::Duration;

use rand::RngCore;

use super::MAX_DRAFT;
use crate::depth::{
    DepthController, DepthState, DraftPlan, DraftRequest, DraftTraits, DraftWork, FREE_READ, Observation,
};
use crate::draft::{DraftProb, DraftTree};
use crate::error::{Error, Result};
use crate::method::Method;
use crate::model::{LanguageModel, LogitRows, PassInput, PassOutput, Rows};
use crate::propose::merged_tree::MergedTree;
use crate::propose::{AuxRows, ProposeContext, Proposer, RoundOutcome, taps_of};
use crate::rule::PositionNoise;
use crate::sample::Sampler;
use crate::stats::{RoundTiming, Stopwatch, millis};
use crate::token::{EmittedToken, TokenId, TokenOrigin};
use crate::verify::Verdict;

/// The proposer of a stage.
enum StageProposer<'a> {
    One(&'a mut dyn Proposer),
    Merged(Box<MergedTree<'a>>),
}

impl<'a> Deref for StageProposer<'a> {
    type Target = dyn Proposer + 'a;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::One(proposer) => *proposer,
            Self::Merged(merged) => &**merged,
        }
    }
}

impl DerefMut for StageProposer<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::One(proposer) => *proposer,
            Self::Merged(merged) => &mut **merged,
        }
    }
}

/// A proposer at work.
struct ActiveStage<'a> {
    proposer: StageProposer<'a>,
    run: StageRun,
    /// Set after a failure: not used again in this generation.
    dropped: bool,
}

/// A proposer that failed and was dropped for the rest of the generation.
#[derive(Debug)]
pub struct DroppedDraft {
    /// Method of the proposer.
    pub method: Method,
    /// The error.
    pub error: Error,
}

/// Work of a stage in the current round.
#[derive(Clone, Debug, Default)]
struct StageRun {
    /// Tokens drafted, before truncation.
    drafted: usize,
    /// Passes or tokens of the draft, as [`DraftWork::steps`].
    steps: usize,
    /// Rows of each pass of its model.
    pass_rows: Vec<usize>,
    /// Committed tokens that its model had to read first.
    unread: usize,
    took: Duration,
}

impl StageRun {
    /// Returns what the depth controller learns from it.
    fn work(&self) -> DraftWork {
        let Self { drafted, steps, unread, took, .. } = *self;
        DraftWork { drafted, steps, read: unread, ms: millis(took) }
    }
}

/// Rows of the next target pass after the root.
pub(super) struct Proposal {
    pub(super) tree: DraftTree,
    /// Auxiliary rows for the proposer.
    pub(super) aux: AuxRows,
    /// Index of the stage that drafted; `None` without a draft.
    pub(super) stage: Option<usize>,
}

impl Proposal {
    /// Creates the proposal of a plain round.
    pub(super) fn empty() -> Self {
        Self { tree: DraftTree::new(), aux: AuxRows::default(), stage: None }
    }

    /// Returns the rows of the target pass, the root included.
    pub(super) fn rows(&self) -> usize {
        1 + self.tree.len() + self.aux.len()
    }
}

/// Inputs of drafting.
pub(super) struct DraftContext<'c> {
    pub(super) committed: &'c [TokenId],
    /// True before the first generated token.
    pub(super) first_round: bool,
    /// Maximum tokens of a draft.
    pub(super) max_draft: usize,
    /// Maximum depth that can still be emitted. Each round emits one more token than it accepts.
    pub(super) tokens_left: usize,
    /// Context rows left after the root.
    pub(super) rows_left: usize,
    pub(super) end_tokens: &'c [TokenId],
    pub(super) sampler: &'c Sampler,
    pub(super) noise: Option<PositionNoise>,
    pub(super) rng: &'c mut dyn RngCore,
    pub(super) target: &'c mut dyn LanguageModel,
    pub(super) clock: &'c dyn Stopwatch,
    pub(super) cancelled: &'c dyn Fn() -> bool,
}

/// The stages in the order they are tried.
#[derive(Default)]
pub(super) struct Stages<'a> {
    stages: Vec<ActiveStage<'a>>,
    /// Without it, the depth is fixed.
    depth: Option<&'a mut DepthController>,
    /// Proposers dropped since the last [`take_dropped`](Self::take_dropped).
    dropped: Vec<DroppedDraft>,
}

impl<'a> Stages<'a> {
    /// Adds a stage after the existing ones.
    pub(super) fn add(&mut self, proposer: &'a mut dyn Proposer) {
        self.push(StageProposer::One(proposer));
    }

    /// Adds a stage that merges the drafts of some proposers.
    pub(super) fn add_merged(&mut self, proposers: Vec<&'a mut dyn Proposer>) {
        self.push(StageProposer::Merged(Box::new(MergedTree::new(proposers))));
    }

    fn push(&mut self, proposer: StageProposer<'a>) {
        self.stages.push(ActiveStage { proposer, run: StageRun::default(), dropped: false });
    }

    /// Adapts the depth of all stages.
    pub(super) fn set_depth(&mut self, depth: &'a mut DepthController) {
        self.depth = Some(depth);
    }

    /// Drops a stage for the rest of the generation.
    pub(super) fn drop_stage(&mut self, stage: usize, error: Error) {
        let Some(stage) = self.stages.get_mut(stage).filter(|stage| !stage.dropped) else { return };
        stage.dropped = true;
        stage.proposer.reset();
        self.dropped.push(DroppedDraft { method: stage.proposer.method(), error });
    }

    /// Returns the method of a stage's proposer.
    pub(super) fn method(&self, stage: usize) -> Method {
        self.stages[stage].proposer.method()
    }

    /// Takes the proposers dropped since the last call.
    pub(super) fn take_dropped(&mut self) -> Vec<DroppedDraft> {
        std::mem::take(&mut self.dropped)
    }

    /// Starts a generation.
    ///
    /// A seed must repeat the text. If the text depends on the drafts, proposers of fixed depth
    /// therefore forget statistics of earlier answers.
    pub(super) fn begin(&mut self, prompt: &[TokenId], sampler: &Sampler, text_depends_on_drafts: bool) {
        if let Some(depth) = &mut self.depth {
            depth.pause();
        }
        for (i, stage) in self.stages.iter_mut().enumerate() {
            match &mut self.depth {
                Some(depth) => {
                    let has_model = stage.proposer.drafts_with_model();
                    let traits = DraftTraits {
                        has_model,
                        // Only a model's drafts are sampled.
                        sampled: has_model && !sampler.is_greedy(),
                        in_one_pass: stage.proposer.drafts_in_one_pass(),
                    };
                    depth.begin(i, traits);
                }
                None if text_depends_on_drafts => stage.proposer.reset_stats(),
                None => {}
            }
            stage.proposer.begin(prompt);
        }
    }

    /// Prefills the models of the proposers if the depth is fixed. A controller decides later whether that pays.
    pub(super) fn prefill(
        &mut self,
        prompt: &[TokenId],
        should_continue: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if self.depth.is_some() {
            return ControlFlow::Continue(());
        }
        for i in 0..self.stages.len() {
            let stage = &mut self.stages[i];
            let flow = stage.proposer.prefill(prompt, should_continue);
            // These passes belong to prefill, not to a round.
            stage.proposer.take_pass_log();
            match flow {
                Ok(ControlFlow::Continue(())) => {}
                Ok(stopped) => return stopped,
                Err(error) => self.drop_stage(i, error),
            }
        }
        ControlFlow::Continue(())
    }

    /// Drafts with the first stage that has a worthwhile draft. A model drafts only if no later stage expects a larger
    /// speedup.
    ///
    /// # Errors
    /// Any error of the target. A proposer that fails is dropped instead.
    pub(super) fn draft(&mut self, mut cx: DraftContext<'_>) -> Result<Proposal> {
        self.stages.iter_mut().for_each(|stage| stage.run = StageRun::default());
        if cx.max_draft.min(cx.tokens_left) == 0 {
            return Ok(Proposal::empty());
        }
        let base = cx.target.cache_len();
        let plans: Vec<DraftPlan> = (0..self.stages.len()).map(|i| self.plan(i, &cx)).collect();
        for (i, plan) in plans.iter().enumerate() {
            // A model drafts whenever it is asked to. A lookup may find nothing, which is known only then.
            let models =
                (i + 1..plans.len()).filter(|&later| self.stages[later].proposer.drafts_with_model());
            let rival = DraftPlan::fastest(models.map(|later| &plans[later]));
            let stage = &mut self.stages[i];
            let leaves_it_to_rival =
                stage.proposer.drafts_with_model() && rival.is_some_and(|rival| plan.is_slower_than(rival));
            if plan.max_draft == 0 || leaves_it_to_rival {
                continue;
            }
            let start = cx.clock.elapsed();
            let run = stage.draft(plan.clone(), self.depth.is_some(), &mut cx);
            stage.run.pass_rows.extend(stage.proposer.take_pass_log());
            let failure = stage.proposer.take_failure();
            let mut tree = match run {
                Ok(Some(tree)) => tree,
                Ok(None) => return Ok(Proposal::empty()),
                Err(error) => {
                    restore(cx.target, cx.committed, base)?;
                    self.drop_stage(i, error);
                    continue;
                }
            };
            if let Some(depth) = &mut self.depth
                && tree.is_chain()
                && tree.is_certain()
                && !stage.proposer.limits_nodes()
                && stage.proposer.extra_rows() == 0
            {
                // Truncate the draft unless it beats what the model of a later stage is expected to yield.
                tree.truncate(depth.keep(i, tree.confidence(), rival));
            }
            stage.run.took = cx.clock.elapsed().saturating_sub(start);
            let aux = stage.proposer.aux_rows();
            let (rows, room) = (tree.len() + aux.len(), MAX_DRAFT.min(cx.rows_left));
            if rows > room {
                let error = stage.contract_error(&format!("requests {rows} rows but {room} are left"));
                self.drop_stage(i, error);
                continue;
            }
            if let Some(error) = failure {
                self.drop_stage(i, error);
            }
            if !tree.is_empty() || !aux.is_empty() {
                return Ok(Proposal { tree, aux, stage: Some(i) });
            }
        }
        Ok(Proposal::empty())
    }

    /// Returns the limits of a stage's next draft.
    fn plan(&mut self, i: usize, cx: &DraftContext<'_>) -> DraftPlan {
        let stage = &mut self.stages[i];
        if stage.dropped {
            return DraftPlan::fixed(0);
        }
        let limit =
            if stage.proposer.limits_nodes() { cx.max_draft } else { cx.max_draft.min(cx.tokens_left) };
        let plan = match &mut self.depth {
            None => DraftPlan::fixed(limit),
            Some(depth) => {
                stage.run.unread = stage.proposer.unread_len(cx.committed);
                let request = DraftRequest {
                    limit: limit.min(stage.proposer.max_depth()).min(stage.proposer.room(cx.committed)),
                    unread: stage.run.unread,
                    extra_rows: stage.proposer.extra_rows(),
                    remaining: cx.tokens_left,
                };
                let plan = depth.plan(i, request);
                // Do not delay the first token by prefilling a second model.
                if cx.first_round && request.unread > FREE_READ { DraftPlan::fixed(0) } else { plan }
            }
        };
        plan.with_max_depth(cx.tokens_left)
    }

    /// Returns the layers that any proposer reads, ascending.
    pub(super) fn taps(&self) -> Vec<usize> {
        taps_of(self.stages.iter().filter(|stage| !stage.dropped).map(|stage| &*stage.proposer))
    }

    /// Returns the rows of all draft passes of this round.
    pub(super) fn pass_rows(&self) -> Vec<usize> {
        self.stages.iter().flat_map(|stage| stage.run.pass_rows.iter().copied()).collect()
    }

    /// Reports the outcome of the round to every proposer.
    pub(super) fn report(&mut self, proposal: &Proposal, outcome: &RoundOutcome<'_>) {
        for i in 0..self.stages.len() {
            let stage = &mut self.stages[i];
            if stage.dropped {
                continue;
            }
            let own = proposal.stage == Some(i);
            let (accepted, kept) = if own { (outcome.accepted, outcome.kept) } else { Default::default() };
            if let Err(error) = stage.proposer.observe(&RoundOutcome { accepted, kept, ..*outcome }) {
                self.drop_stage(i, error);
            }
        }
    }

    /// Returns how many of the first `rows` cached rows no proposer has to see again.
    pub(super) fn reusable_rows(&self, prompt: &[TokenId], rows: usize) -> usize {
        self.stages.iter().fold(rows, |rows, stage| stage.proposer.reusable_rows(prompt, rows).min(rows))
    }

    /// Returns the layers that proposers read over the prompt, ascending.
    pub(super) fn prompt_taps(&self) -> Vec<usize> {
        if self.stages.iter().any(|stage| stage.proposer.reads_prompt()) { self.taps() } else { Vec::new() }
    }

    /// Reports a pass over a part of the prompt, which ends before the last token of `committed`, to the proposers that
    /// read the prompt.
    pub(super) fn report_prompt_pass(&mut self, committed: &[TokenId], output: &PassOutput, taps: &[usize]) {
        self.report_undrafted(committed, output, taps, |proposer| proposer.reads_prompt());
    }

    /// Reports a pass without a draft, which ends before the last token of `committed`, to the proposers that read hidden
    /// states.
    pub(super) fn report_pass(&mut self, committed: &[TokenId], output: &PassOutput, taps: &[usize]) {
        self.report_undrafted(committed, output, taps, |_| true);
    }

    fn report_undrafted(
        &mut self,
        committed: &[TokenId],
        output: &PassOutput,
        taps: &[usize],
        reads: impl Fn(&dyn Proposer) -> bool,
    ) {
        let rows = output.taps.first().map_or(0, Rows::len);
        let path: Vec<usize> = (0..rows).collect();
        let outcome = RoundOutcome {
            accepted: &[],
            kept: &[],
            committed,
            target: output,
            tap_layers: taps,
            path: &path,
            aux_start: rows,
        };
        for i in 0..self.stages.len() {
            let stage = &mut self.stages[i];
            if stage.dropped || stage.proposer.taps().is_empty() || !reads(&*stage.proposer) {
                continue;
            }
            let read = stage.proposer.observe(&outcome);
            // These passes belong to no round.
            stage.proposer.take_pass_log();
            if let Err(error) = read {
                self.drop_stage(i, error);
            }
        }
    }

    /// Updates the controller with a round. Returns its state.
    pub(super) fn observe(
        &mut self,
        proposal: &Proposal,
        verdict: &Verdict,
        emitted: &[EmittedToken],
        timing: &RoundTiming,
    ) -> Option<DepthState> {
        let depth = self.depth.as_mut()?;
        let (tested, confidence) = tested(proposal, verdict);
        depth.observe(&Observation {
            work: self.stages.iter().map(|stage| stage.run.work()).collect(),
            drafted_by: proposal.stage,
            height: proposal.tree.height(),
            rows: proposal.rows(),
            target_ms: timing.target_ms,
            emitted: 1 + verdict.accepted.len(),
            certainty: emitted.iter().filter_map(|token| token.top.first()).map(|&(_, p)| p).collect(),
            tested,
            confidence,
        });
        let state_of = |i: usize| {
            let mut state = depth.state(i);
            state.gains.truncate(self.stages[i].proposer.max_depth());
            state
        };
        let used: Vec<usize> = (0..self.stages.len()).filter(|&i| !self.stages[i].dropped).collect();
        let parked = used.iter().all(|&i| state_of(i).parked);
        let shown = proposal.stage.filter(|i| used.contains(i)).or(used.last().copied())?;
        Some(DepthState { parked, ..state_of(shown) })
    }
}

/// Returns, per tested depth, whether it was accepted and the draft's confidence there.
fn tested(proposal: &Proposal, verdict: &Verdict) -> (Vec<bool>, Vec<Option<f32>>) {
    let tree = &proposal.tree;
    let mut tested = vec![true; verdict.accepted.len()];
    if verdict.last_origin == TokenOrigin::Resampled {
        tested.push(false);
    }
    // In a chain the tested node after the accepted ones is the rejected one. In a tree several
    // siblings were rejected there, and counting only accepted nodes would bias the confidence
    // statistics upwards.
    let confidence_at = |depth: usize| tree.confidence()[depth].filter(|_| tree.is_chain());
    let mut confidence: Vec<_> = (0..tested.len()).map(confidence_at).collect();
    if tree.is_empty() && !proposal.aux.is_empty() {
        // Auxiliary rows were paid for without a draft. Count that as a rejection.
        (tested, confidence) = (vec![false], vec![None]);
    }
    (tested, confidence)
}

/// Restores the target's cache to `base` rows after a proposer failed.
///
/// # Errors
/// Any error of the target.
pub(super) fn restore(target: &mut dyn LanguageModel, committed: &[TokenId], base: usize) -> Result<()> {
    target.truncate(base)?;
    let rows = target.prefill_rows().max(1);
    for chunk in committed[target.cache_len()..base].chunks(rows) {
        target.forward(PassInput::chain(chunk, LogitRows::None))?;
    }
    Ok(())
}

impl ActiveStage<'_> {
    /// Drafts and checks the proposer's contract. `None` if prefill of its model was cancelled.
    fn draft(
        &mut self,
        plan: DraftPlan,
        is_adaptive: bool,
        cx: &mut DraftContext<'_>,
    ) -> Result<Option<DraftTree>> {
        // A text that fits in one pass is read with the first pass of the draft. On a GPU that is one wait less.
        if is_adaptive && self.run.unread >= self.proposer.prefill_rows().max(FREE_READ) {
            let cancelled = cx.cancelled;
            let mut should_continue =
                || if cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
            let flow = self.proposer.prefill(cx.committed, &mut should_continue)?;
            self.run.pass_rows = self.proposer.take_pass_log();
            if flow.is_break() {
                return Ok(None);
            }
        }
        let (base, max_depth) = (cx.target.cache_len(), plan.max_draft.min(plan.max_depth));
        let tree = self.proposer.propose(ProposeContext {
            committed: cx.committed,
            plan,
            end_tokens: cx.end_tokens,
            sampler: cx.sampler,
            noise: cx.noise,
            rng: &mut *cx.rng,
            target: &mut *cx.target,
        })?;
        if (0..tree.len()).any(|node| tree.depth(node) >= max_depth) {
            return Err(self.contract_error(&format!(
                "drafted {} tokens but depth {max_depth} is the limit",
                tree.len()
            )));
        }
        let n_vocab = cx.target.info().n_vocab;
        if let Some(node) = (0..tree.len()).find(|&node| !is_possible(&tree, node, n_vocab)) {
            return Err(self.contract_error(&format!(
                "drafted token {}, which its distribution cannot produce",
                tree.tokens()[node]
            )));
        }
        if cx.target.cache_len() != base {
            let left = cx.target.cache_len();
            return Err(
                self.contract_error(&format!("changed the target's cache from {base} to {left} rows"))
            );
        }
        let pass_rows = self.proposer.take_pass_log();
        // A model that drafts all tokens in one pass counts the levels of its draft.
        let steps = match pass_rows.len() {
            0 => tree.height(),
            _ if self.proposer.drafts_in_one_pass() => tree.height().max(1),
            passes => passes,
        };
        (self.run.drafted, self.run.steps) = (tree.len(), steps);
        self.run.pass_rows.extend(pass_rows);
        Ok(Some(tree))
    }

    /// Returns the error for a contract violation by the proposer.
    fn contract_error(&self, violation: &str) -> Error {
        Error::Internal(format!("the method {} {violation}", self.proposer.method()))
    }
}

/// Returns whether a node's token exists and its q can produce it.
fn is_possible(tree: &DraftTree, node: usize, n_vocab: usize) -> bool {
    let token = tree.tokens()[node] as usize;
    let drawn = |q: &[f32]| q.len() == n_vocab && q.get(token).is_some_and(|&q| q > 0.0 && q.is_finite());
    token < n_vocab
        && match tree.prob(node) {
            DraftProb::Certain => true,
            DraftProb::Sampled(q) => drawn(q),
        }
}
