//! The round loop: propose, forward, verify, keep, emit. One loop for every method; plain decoding
//! is the loop with nobody to ask for a draft. Only here the committed sequence grows. No threads, no
//! text, no wall clock: time comes from a [`Stopwatch`], chance from a seed.
//!
//! The target's cache always holds the first `cache_len` committed tokens, and between rounds all
//! but the last: that one is the root of the next pass, whose row 0 says what follows it. So the
//! first generated token, too, comes out of a round, and every emitted token out of the verifier.

use std::ops::ControlFlow;
use std::time::Duration;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::depth::{DepthController, DepthState};
use crate::draft::DraftTree;
use crate::error::{Error, Result};
use crate::limits::MAX_DRAFT;
use crate::model::{LanguageModel, LogitRows, RowLayout, Step, StepOutput};
use crate::propose::{Proposer, RoundOutcome};
use crate::rule::AcceptanceRule;
use crate::sample::{Sampler, TokenLogprobs};
use crate::stats::{GenerationStats, LiveFigures, RoundCounts, RoundTiming, Stopwatch, Tally, millis};
use crate::token::{DraftedToken, EmittedToken, RejectedToken, TokenId, TokenOrigin};
use crate::verify::{SampledRows, Verdict, Verifier};

mod draft_quality;
mod stages;

pub use draft_quality::{DraftQuality, Overlap};
pub use stages::DroppedDraft;
use stages::{DraftContext, Proposal, Stages, restore};

/// The target's likeliest tokens that are told of each position.
const TOP: usize = 5;

/// What bounds a generation.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Most tokens to draft a round, up to [`MAX_DRAFT`]; 0 is plain decoding.
    pub max_draft: usize,
    /// Most tokens to generate, 1 or more.
    pub max_tokens: usize,
    /// Tokens that end the answer. They are not emitted.
    pub end_tokens: Vec<TokenId>,
    /// Seed of the generation's random numbers.
    pub seed: u64,
    /// Which drafted tokens stand.
    pub rule: AcceptanceRule,
}

/// Why the round loop ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The model gave an end token.
    EndToken,
    /// `max_tokens` were generated.
    MaxTokens,
    /// The context is full.
    ContextFull,
}

/// What one round gave.
#[derive(Clone, Debug)]
pub struct Round {
    /// The tokens it added, in order; empty only when it began with the end token.
    pub emitted: Vec<EmittedToken>,
    /// Drafted tokens that were tested and rejected.
    pub rejected: Vec<RejectedToken>,
    /// What was drafted, parents before children.
    pub drafted: Vec<DraftedToken>,
    /// Where the time went.
    pub timing: RoundTiming,
    /// What the depth is at, when it is chosen as it goes.
    pub depth: Option<DepthState>,
    /// Why this was the last round, if it was.
    pub ended: Option<EndReason>,
}

/// One generation.
pub struct Session<'a> {
    target: &'a mut dyn LanguageModel,
    stages: Stages<'a>,
    sampler: Sampler,
    clock: &'a dyn Stopwatch,
    config: SessionConfig,
    interrupted: &'a dyn Fn() -> bool,
    verifier: Verifier,
    rng: ChaCha8Rng,
    committed: Vec<TokenId>,
    prompt_len: usize,
    rounds: u32,
    ended: Option<EndReason>,
    over: bool,
    tally: Tally,
}

/// A target pass and its verdict.
struct Tested {
    output: StepOutput,
    /// When the pass ended.
    passed: Duration,
    verdict: Verdict,
    emitted: Vec<EmittedToken>,
    ended: Option<EndReason>,
    /// When verification ended.
    verified: Duration,
}

impl<'a> Session<'a> {
    /// A generation that has not begun; the request arrived now, by `clock`.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when `max_draft` or `max_tokens` is out of its range.
    pub fn new(
        target: &'a mut dyn LanguageModel,
        sampler: &Sampler,
        clock: &'a dyn Stopwatch,
        config: SessionConfig,
    ) -> Result<Self> {
        if config.max_draft > MAX_DRAFT {
            return Err(Error::invalid(format!(
                "max_draft is {}; choose a number from 0 to {MAX_DRAFT}.",
                config.max_draft
            )));
        }
        if config.max_tokens == 0 {
            return Err(Error::invalid("max_tokens is 0; choose 1 or more."));
        }
        Ok(Self {
            target,
            stages: Stages::default(),
            sampler: sampler.clone(),
            clock,
            interrupted: &|| false,
            verifier: Verifier::new(config.rule, config.seed),
            rng: ChaCha8Rng::seed_from_u64(config.seed),
            committed: Vec::new(),
            prompt_len: 0,
            rounds: 0,
            ended: None,
            over: false,
            tally: Tally::new(clock.elapsed()),
            config,
        })
    }

    /// Asks `proposer` for drafts, where those named before it have none that is worth it. A controller
    /// chooses how deep it drafts, up to `max_draft`; without one it is always that deep. Without a
    /// proposer decoding is plain.
    pub fn add_proposer(&mut self, proposer: &'a mut dyn Proposer, depth: Option<&'a mut DepthController>) {
        self.stages.add(proposer, depth);
    }

    /// Has `interrupted` asked while a proposer's model reads: when it says so, the round goes on without
    /// a draft.
    pub fn set_cancel(&mut self, interrupted: &'a dyn Fn() -> bool) {
        self.interrupted = interrupted;
    }

    /// Counts time from `at` instead of from [`new`](Self::new): when the request really arrived,
    /// by the same stopwatch. To be called before [`prefill`](Self::prefill).
    pub fn started_at(&mut self, at: Duration) {
        self.tally = Tally::new(at);
    }

    /// Runs all of the prompt but its last token through the target, in chunks. The target's cache
    /// holds the first `reuse` tokens of the prompt already, and nothing else. After each chunk
    /// `progress` hears how many of the tokens to run are done, and may break: then this gives
    /// `Break`, and no round can follow. The proposer's own preparation asks it as well.
    ///
    /// # Errors
    /// When the prompt is empty or does not fit the context, and when the target fails.
    pub fn prefill(
        &mut self,
        prompt: &[TokenId],
        reuse: usize,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let context = self.target.info().context_length;
        let Some(last) = prompt.len().checked_sub(1) else {
            return Err(Error::invalid("The prompt is empty; write something."));
        };
        if prompt.len() > context {
            return Err(Error::ContextOverflow { prompt: prompt.len(), context });
        }
        if !self.committed.is_empty() || reuse > last || self.target.cache_len() != reuse {
            return Err(Error::Internal(format!(
                "prefill was to reuse {reuse} of {} tokens with {} in the cache",
                prompt.len(),
                self.target.cache_len()
            )));
        }
        self.committed = prompt.to_vec();
        self.prompt_len = prompt.len();
        let begun = self.clock.elapsed();
        let mut done = 0;
        let rows = self.target.prefill_rows().max(1);
        for chunk in prompt[reuse..last].chunks(rows) {
            self.target.forward(Step::chain(chunk, LogitRows::None))?;
            done += chunk.len();
            self.over = progress(done, last - reuse).is_break();
            if self.over {
                break;
            }
        }
        let took = self.clock.elapsed().saturating_sub(begun);
        if !self.over {
            let text_depends = self.verifier.noise().is_none() && !self.sampler.is_greedy();
            self.stages.begin(prompt, &self.sampler, text_depends);
            self.stages.observe_prefill(done, took);
            if self.config.max_draft > 0 {
                self.over = self.stages.read(prompt, &mut || progress(done, last - reuse)).is_break();
            }
        }
        self.tally.prefilled(prompt.len(), done, took, self.clock.elapsed());
        Ok(if self.over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    /// Runs one round. When it fails, the session is over, and what was emitted before stays
    /// valid: the cache is as it was before the round.
    ///
    /// A proposer that fails is left out from then on, see [`take_dropped`](Self::take_dropped).
    ///
    /// # Errors
    /// When the target fails; [`Error::Internal`] when the session is over or prefill was not run to
    /// its end.
    pub fn round(&mut self) -> Result<Round> {
        let base = self.between_rounds()?;
        let before = self.committed.len();
        let round = self.attempt(base);
        if round.is_err() {
            self.over = true;
            self.committed.truncate(before);
            // The first error is the one to tell.
            let _ = self.target.truncate(base);
        }
        round
    }

    /// The rows of the target's cache, which are those of all committed tokens but the last.
    fn between_rounds(&self) -> Result<usize> {
        let base = self.target.cache_len();
        if self.over || self.ended.is_some() || base + 1 != self.committed.len() {
            return Err(Error::Internal("a round was asked for outside a generation".into()));
        }
        Ok(base)
    }

    fn attempt(&mut self, base: usize) -> Result<Round> {
        let start = self.clock.elapsed();
        let mut proposal = self.propose(base)?;
        let proposed = self.clock.elapsed();
        let tested = match (self.test(&proposal), proposal.stage) {
            (Err(error), Some(stage)) => {
                // The draft may be why, so the round is tried without one. If that fails too, it is the target.
                restore(&mut *self.target, &self.committed, base)?;
                proposal = Proposal::nothing();
                let plain = self.test(&proposal)?;
                self.stages.drop_stage(stage, error);
                plain
            }
            (tested, _) => tested?,
        };
        let Tested { output, passed, verdict, emitted, ended, verified } = tested;
        let tree = &proposal.tree;
        self.keep(base, tree, &verdict, &emitted)?;
        let survived = emitted.iter().filter(|t| t.origin == TokenOrigin::Accepted).count();
        let accepted = verdict.kept();
        let outcome = RoundOutcome {
            accepted: &accepted,
            kept: &accepted[..survived],
            committed: &self.committed,
            target: &output,
            side: tree.len() + 1,
        };
        self.stages.accept(&proposal, &outcome);
        let full = self.target.cache_len() == self.target.info().context_length;
        self.ended = ended.or(full.then_some(EndReason::ContextFull));
        self.rounds += 1;
        let now = self.clock.elapsed();
        let timing = RoundTiming {
            propose_ms: millis(proposed.saturating_sub(start)),
            target_ms: millis(passed.saturating_sub(proposed)),
            verify_ms: millis(verified.saturating_sub(passed)),
            other_ms: millis(now.saturating_sub(verified)),
        };
        let depth = self.stages.observe(&proposal, &verdict, &timing);
        let drafted = verdict.fates(tree);
        let counts = RoundCounts {
            drafted: drafted.len(),
            depth: tree.height(),
            rows: proposal.rows(),
            draft_rows: &self.stages.work(),
            emitted: &emitted,
            timing,
        };
        self.tally.round(&counts, now);
        Ok(Round { emitted, rejected: verdict.rejected, drafted, timing, depth, ended: self.ended })
    }

    /// Asks for a draft.
    fn propose(&mut self, base: usize) -> Result<Proposal> {
        // A round emits one token more than it accepts, and its root takes a row of the context.
        let wanted = self.config.max_tokens - self.generated() - 1;
        let room = self.target.info().context_length - base - 1;
        self.stages.draft(DraftContext {
            committed: &self.committed,
            first: self.committed.len() == self.prompt_len,
            limit: self.config.max_draft.min(room),
            wanted,
            room,
            end_tokens: &self.config.end_tokens,
            sampler: &self.sampler,
            noise: self.verifier.noise(),
            rng: &mut self.rng,
            target: &mut *self.target,
            clock: self.clock,
            interrupted: self.interrupted,
        })
    }

    /// Runs the target over a proposal and verifies it. Commits nothing.
    fn test(&mut self, proposal: &Proposal) -> Result<Tested> {
        let tree = &proposal.tree;
        let output = self.forward(proposal)?;
        let passed = self.clock.elapsed();
        let mut target = SampledRows::new(&output.logits, &self.sampler, &self.committed);
        let verdict = self.verifier.verify(tree, &mut target, self.committed.len(), &mut self.rng)?;
        let (emitted, ended) = self.emit(tree, &verdict, &target);
        let verified = self.clock.elapsed();
        Ok(Tested { output, passed, verdict, emitted, ended, verified })
    }

    /// One target pass over the last committed token, the tree and what rides along.
    fn forward(&mut self, proposal: &Proposal) -> Result<StepOutput> {
        let Proposal { tree, demand, .. } = proposal;
        let root = *self.committed.last().expect("a round has a prompt");
        let drafted = tree.tokens().iter().chain(&demand.side.tokens).copied();
        let tokens: Vec<TokenId> = std::iter::once(root).chain(drafted).collect();
        let behind = |row: usize| move |parent: &Option<usize>| Some(parent.map_or(0, |p| row + p));
        let drafted = tree.parents().iter().map(behind(1));
        let beside = demand.side.parents.iter().map(behind(1 + tree.len()));
        let parents: Vec<Option<usize>> = std::iter::once(None).chain(drafted).chain(beside).collect();
        let chain = tree.is_chain() && demand.side.is_empty();
        let layout = if chain { RowLayout::Chain } else { RowLayout::Tree { parents: &parents } };
        self.target.forward(Step { layout, taps: &demand.taps, ..Step::chain(&tokens, LogitRows::All) })
    }

    /// The tokens of a verdict up to the end token or the limit, and why they end there.
    fn emit(
        &self,
        tree: &DraftTree,
        verdict: &Verdict,
        target: &SampledRows<'_>,
    ) -> (Vec<EmittedToken>, Option<EndReason>) {
        let accepted =
            verdict.accepted.iter().map(|a| (a.token, TokenOrigin::Accepted, a.p, a.q, a.u.zip(a.threshold)));
        let last = (verdict.last, verdict.last_origin, verdict.last_p, None, None);
        let parents = std::iter::once(None).chain(verdict.accepted.iter().map(|a| Some(a.node)));
        let mut emitted = Vec::with_capacity(verdict.accepted.len() + 1);
        for ((id, origin, p, q, tested), parent) in accepted.chain(std::iter::once(last)).zip(parents) {
            if self.config.end_tokens.contains(&id) {
                return (emitted, Some(EndReason::EndToken));
            }
            let row = parent.map_or(0, |node| node + 1);
            let TokenLogprobs { confidence, entropy, top } = target.row(row).outlook(id, TOP);
            let guesses = tree.children(parent).next().map_or(&[][..], |node| tree.guesses(node));
            emitted.push(EmittedToken {
                id,
                origin,
                p,
                q,
                u: tested.map(|(u, _)| u),
                threshold: tested.map(|(_, threshold)| threshold),
                confidence,
                entropy,
                top,
                guesses: guesses.to_vec(),
                round: self.rounds,
                position: emitted.len() as u32,
            });
            if self.generated() + emitted.len() == self.config.max_tokens {
                return (emitted, Some(EndReason::MaxTokens));
            }
        }
        (emitted, None)
    }

    /// Commits the emitted tokens and leaves in the cache exactly the rows of the committed
    /// tokens, but the last.
    fn keep(
        &mut self,
        base: usize,
        tree: &DraftTree,
        verdict: &Verdict,
        emitted: &[EmittedToken],
    ) -> Result<()> {
        if !tree.is_chain() {
            let path = verdict.accepted.iter().map(|a| a.node + 1);
            let rows: Vec<usize> = std::iter::once(0).chain(path).collect();
            self.target.keep_rows(base, &rows)?;
        }
        self.committed.extend(emitted.iter().map(|t| t.id));
        self.target.truncate(self.committed.len() - 1)
    }

    /// Takes back the last emitted tokens, which are these: text after a stop string is not part
    /// of the answer. Ends the session.
    ///
    /// # Errors
    /// [`Error::Internal`] when these are not the last generated tokens; else when the device fails.
    pub fn retract_tail(&mut self, tokens: &[EmittedToken]) -> Result<()> {
        let keep = self.committed.len() - tokens.len().min(self.generated());
        if !self.committed[keep..].iter().eq(tokens.iter().map(|t| &t.id)) {
            return Err(Error::Internal("tokens that were not generated were to be withdrawn".into()));
        }
        tokens.iter().for_each(|token| self.tally.withdraw(token));
        self.committed.truncate(keep);
        self.over = true;
        self.target.truncate(keep.saturating_sub(1))
    }

    /// Takes the proposers that failed since the last call and are left out for the rest of the answer.
    pub fn take_dropped(&mut self) -> Vec<DroppedDraft> {
        self.stages.take_dropped()
    }

    /// The prompt and everything generated.
    pub fn committed(&self) -> &[TokenId] {
        &self.committed
    }

    /// The tokens in the target's cache now: a prefix of [`committed`](Self::committed), also
    /// after an error. What a next generation may reuse.
    pub fn cached(&self) -> &[TokenId] {
        &self.committed[..self.target.cache_len().min(self.committed.len())]
    }

    /// Tokens generated so far.
    pub fn generated(&self) -> usize {
        self.committed.len() - self.prompt_len
    }

    /// Why the loop ended by itself; `None` while it goes on.
    pub fn ended(&self) -> Option<EndReason> {
        self.ended
    }

    /// The figures so far.
    pub fn figures(&self) -> LiveFigures {
        self.tally.figures()
    }

    /// All figures, as of now. `device` is where the target runs, `peak_memory_bytes` what the
    /// process took at most.
    pub fn stats(&self, device: &str, peak_memory_bytes: u64) -> GenerationStats {
        self.tally.finish(self.clock.elapsed(), device, peak_memory_bytes)
    }
}

/// The rounds until the generation ends or fails.
impl Iterator for Session<'_> {
    type Item = Result<Round>;

    fn next(&mut self) -> Option<Result<Round>> {
        if self.over || self.ended.is_some() {
            return None;
        }
        Some(self.round())
    }
}
