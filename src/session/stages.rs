//! The proposers of a session and what decides how deep they draft. There may be several: they are asked
//! in turn, and the first whose draft is worth its rows is taken, so a lookup that costs nothing goes
//! before a model that does. No target pass and no commit happens here.

use std::ops::ControlFlow;
use std::time::Duration;

use rand::RngCore;

use super::MAX_DRAFT;
use crate::depth::{DepthController, DepthState, DraftPlan, FEW, Observation};
use crate::draft::DraftTree;
use crate::error::{Error, Result};
use crate::model::LanguageModel;
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
    asked: Asked,
}

/// What a stage did in this round.
#[derive(Clone, Debug, Default)]
struct Asked {
    /// Tokens drafted, before some were cut off.
    drafted: usize,
    /// Steps in which they were drafted: passes of a model, else positions.
    passes: usize,
    /// Rows of the passes that its model ran.
    work: Vec<usize>,
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
    /// Which stage it is from.
    stage: Option<usize>,
}

impl Proposal {
    /// Rows of the target pass over it.
    pub(super) fn rows(&self) -> usize {
        1 + self.tree.len() + self.demand.side.len()
    }
}

/// What a draft is made from.
pub(super) struct DraftContext<'c> {
    pub(super) committed: &'c [TokenId],
    /// Whether nothing was generated yet.
    pub(super) first: bool,
    /// Most tokens of a draft.
    pub(super) limit: usize,
    /// Most that the answer still has room for, besides the one that every round gives: none of a path is
    /// deeper.
    pub(super) wanted: usize,
    /// Rows of the target's context that are left behind the root.
    pub(super) room: usize,
    pub(super) end_tokens: &'c [TokenId],
    pub(super) sampler: &'c Sampler,
    pub(super) noise: Option<PositionNoise>,
    pub(super) rng: &'c mut dyn RngCore,
    pub(super) target: &'c mut dyn LanguageModel,
    pub(super) clock: &'c dyn Stopwatch,
    pub(super) interrupted: &'c dyn Fn() -> bool,
}

/// The stages, in turn.
#[derive(Default)]
pub(super) struct Stages<'a>(Vec<Stage<'a>>);

impl<'a> Stages<'a> {
    /// Another one, to be asked after those before it.
    pub(super) fn add(&mut self, proposer: &'a mut dyn Proposer, depth: Option<&'a mut DepthController>) {
        self.0.push(Stage { proposer, depth, asked: Asked::default() });
    }

    /// A generation begins. Where the text depends on the drafts, those of a fixed depth do not depend on earlier
    /// answers, so that a seed repeats it.
    pub(super) fn begin(&mut self, prompt: &[TokenId], sampler: &Sampler, text_depends: bool) {
        for stage in &mut self.0 {
            match &mut stage.depth {
                // What is looked up is not drawn.
                Some(depth) => {
                    depth.begin(!sampler.is_greedy() && stage.proposer.method().drafter().is_some());
                }
                None if text_depends => stage.proposer.unlearn(),
                None => {}
            }
            stage.proposer.begin(prompt);
        }
    }

    /// Lets models of proposers read the prompt, unless it is chosen as it goes whether that pays.
    pub(super) fn read(
        &mut self,
        prompt: &[TokenId],
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        for stage in self.0.iter_mut().filter(|stage| stage.depth.is_none()) {
            let read = stage.proposer.read(prompt, go_on)?;
            // That was prefill, no round's.
            stage.proposer.work();
            if read.is_break() {
                return Ok(read);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The draft of the first stage that has one which is worth it.
    pub(super) fn draft(&mut self, mut cx: DraftContext<'_>) -> Result<Proposal> {
        let nothing = Proposal { tree: DraftTree::new(), demand: TargetDemand::default(), stage: None };
        self.0.iter_mut().for_each(|stage| stage.asked = Asked::default());
        if cx.limit.min(cx.wanted) == 0 {
            return Ok(nothing);
        }
        let plans: Vec<DraftPlan> = self.0.iter_mut().map(|stage| stage.plan(&cx)).collect();
        for (i, plan) in plans.iter().enumerate() {
            if plan.max_draft == 0 {
                continue;
            }
            let stage = &mut self.0[i];
            let begun = cx.clock.elapsed();
            let Some(mut tree) = stage.ask(plan.clone(), &mut cx)? else {
                return Ok(nothing);
            };
            if let Some(depth) = &mut stage.depth
                && tree.is_chain()
                && tree.is_certain()
                && !stage.proposer.branches()
                && stage.proposer.rows_beside() == 0
            {
                // What comes after may promise more.
                let rival = plans[i + 1..].iter().filter_map(DraftPlan::promise);
                let rival = rival.max_by(|a, b| a.rate().total_cmp(&b.rate()));
                tree.cut(depth.keep(tree.confidence(), rival));
            }
            stage.asked.took = cx.clock.elapsed().saturating_sub(begun);
            let demand = stage.proposer.demand();
            if tree.len() + demand.side.len() > MAX_DRAFT.min(cx.room) {
                return Err(stage.broken(&format!(
                    "wants {} rows where there is room for {}",
                    tree.len() + demand.side.len(),
                    MAX_DRAFT.min(cx.room)
                )));
            }
            if !tree.is_empty() || !demand.side.is_empty() {
                return Ok(Proposal { tree, demand, stage: Some(i) });
            }
        }
        Ok(nothing)
    }

    /// Rows of the passes that drafting took in this round.
    pub(super) fn work(&self) -> Vec<usize> {
        self.0.iter().flat_map(|stage| stage.asked.work.iter().copied()).collect()
    }

    /// Tells every stage what became of the round.
    pub(super) fn accept(&mut self, proposal: &Proposal, outcome: &RoundOutcome<'_>) -> Result<()> {
        for (i, stage) in self.0.iter_mut().enumerate() {
            let own = proposal.stage == Some(i);
            let (accepted, kept) = if own { (outcome.accepted, outcome.kept) } else { Default::default() };
            stage.proposer.accept(&RoundOutcome { accepted, kept, ..*outcome })?;
        }
        Ok(())
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
        for (i, stage) in self.0.iter_mut().enumerate() {
            let acted = proposal.stage == Some(i);
            let Asked { drafted, passes, read, took, .. } = stage.asked;
            let Some(depth) = &mut stage.depth else { continue };
            let mut seen = Observation {
                drafted,
                passes,
                read,
                propose_ms: millis(took),
                rows,
                target_ms: timing.target_ms,
                round_ms: timing.propose_ms + timing.target_ms,
                emitted: 1 + verdict.accepted.len(),
                acted,
                ..Observation::default()
            };
            if acted {
                seen.height = proposal.tree.height();
                (seen.tested, seen.confidence) = tested(proposal, verdict);
            }
            depth.observe(&seen);
            let mut told = depth.state();
            told.gains.truncate(stage.proposer.deepest());
            parked &= told.parked;
            if acted || state.is_none() || proposal.stage.is_none() {
                state = Some(told);
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
    if tree.is_empty() && !proposal.demand.side.is_empty() {
        // Rows rode along and there was no draft: what they cost bought nothing this time.
        (tested, confidence) = (vec![false], vec![None]);
    }
    (tested, confidence)
}

impl Stage<'_> {
    /// How far to draft now.
    fn plan(&mut self, cx: &DraftContext<'_>) -> DraftPlan {
        let limit = if self.proposer.branches() { cx.limit } else { cx.limit.min(cx.wanted) };
        let plan = match &mut self.depth {
            None => DraftPlan::fixed(limit),
            Some(depth) => {
                self.asked.read = self.proposer.unread(cx.committed);
                let limit = limit.min(self.proposer.deepest());
                let plan = depth.plan(limit, self.asked.read, self.proposer.rows_beside());
                // The first token should not wait until a second model has read the prompt.
                if cx.first && self.asked.read > FEW { DraftPlan::fixed(0) } else { plan }
            }
        };
        plan.no_deeper_than(cx.wanted)
    }

    /// Asks for a draft, and checks that the proposer kept its contract.
    /// `None` when it was interrupted while its model read.
    fn ask(&mut self, plan: DraftPlan, cx: &mut DraftContext<'_>) -> Result<Option<DraftTree>> {
        if self.depth.is_some() && self.asked.read > FEW {
            let interrupted = cx.interrupted;
            let mut go_on = || if interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
            let read = self.proposer.read(cx.committed, &mut go_on)?;
            self.asked.work = self.proposer.work();
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
                self.broken(&format!("drafted {} tokens where depth {deepest} was allowed", tree.len()))
            );
        }
        if cx.target.cache_len() != base {
            let left = cx.target.cache_len();
            return Err(self.broken(&format!("left {left} rows in the target's cache and found {base}")));
        }
        let work = self.proposer.work();
        let passes = if work.is_empty() { tree.height() } else { work.len() };
        (self.asked.drafted, self.asked.passes) = (tree.len(), passes);
        self.asked.work.extend(work);
        Ok(Some(tree))
    }

    fn broken(&self, how: &str) -> Error {
        Error::Internal(format!("the method {} {how}", self.proposer.method()))
    }
}
