//! The round loop: propose, forward, verify, commit, emit.
//!
//! Every method runs through this one loop. Plain decoding is the loop without a proposer. Only this
//! module extends the committed sequence. It uses no threads, no text and no wall clock: time comes
//! from a [`Stopwatch`], random numbers from a seed.
//!
//! **Cache invariant.** The target's KV cache holds a prefix of the committed tokens. Between rounds
//! that prefix is all of them but the last. The last committed token is the *root* of the next pass,
//! and the pass's row 0 gives the distribution after it. Prefill leaves the cache in the same state,
//! so the verifier produces every emitted token, the first one included.

use std::ops::ControlFlow;
use std::time::Duration;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::depth::{DepthController, DepthState};
use crate::draft::DraftTree;
use crate::error::{Error, Result};
use crate::limits::MAX_DRAFT;
use crate::method::Method;
use crate::model::{LanguageModel, LogitRows, PassInput, PassOutput, RowLayout};
use crate::propose::{Proposer, RoundOutcome};
use crate::rule::AcceptanceRule;
use crate::sample::{Sampler, TokenLogprobs};
use crate::stats::{
    GenerationStats, LiveFigures, PrefillRun, RoundCounts, RoundTiming, Stopwatch, Tally, millis,
};
use crate::token::{DraftedToken, EmittedToken, RejectedToken, TokenId, TokenOrigin};
use crate::verify::{SampledRows, Verdict, Verifier};

mod draft_quality;
mod stages;

pub use draft_quality::{DraftQuality, NodeTest, Overlap};
pub use stages::DroppedDraft;
use stages::{DraftContext, Proposal, Stages, restore};

/// Number of most likely target tokens reported per position.
pub const TOP_TOKENS: usize = 5;

/// Limits and settings of one generation.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Maximum tokens drafted per round, at most [`MAX_DRAFT`]. 0 is plain decoding.
    pub max_draft: usize,
    /// Maximum tokens to generate, at least 1.
    pub max_tokens: usize,
    /// Tokens that end the answer. They are never emitted.
    pub end_tokens: Vec<TokenId>,
    /// Seed of all random numbers of this generation.
    pub seed: u64,
    /// Rule that accepts or rejects drafted tokens.
    pub rule: AcceptanceRule,
}

/// Reason why the generation finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The model produced an end token.
    EndToken,
    /// `max_tokens` tokens were generated.
    MaxTokens,
    /// The context is full.
    ContextFull,
}

/// Result of one round.
#[derive(Clone, Debug)]
pub struct Round {
    /// Tokens added to the text, in order. Empty only if the first token was an end token.
    pub emitted: Vec<EmittedToken>,
    /// Drafted tokens that were tested and rejected.
    pub rejected: Vec<RejectedToken>,
    /// All drafted tokens, parents before children.
    pub drafted: Vec<DraftedToken>,
    /// Method of the proposer that drafted them.
    pub drafted_by: Option<Method>,
    /// Time spent in each phase.
    pub timing: RoundTiming,
    /// State of the depth controller; `None` if the draft depth is fixed.
    pub depth: Option<DepthState>,
    /// Set if this was the last round.
    pub ended: Option<EndReason>,
}

/// One generation: a target, its proposers and the tokens committed so far.
pub struct Session<'a> {
    target: &'a mut dyn LanguageModel,
    stages: Stages<'a>,
    sampler: Sampler,
    clock: &'a dyn Stopwatch,
    config: SessionConfig,
    cancelled: &'a dyn Fn() -> bool,
    verifier: Verifier,
    rng: ChaCha8Rng,
    committed: Vec<TokenId>,
    prompt_len: usize,
    rounds: u32,
    /// Set when the generation finishes normally.
    ended: Option<EndReason>,
    /// Set after an error, a cancelled prefill or a retracted tail. No further round can run.
    closed: bool,
    tally: Tally,
}

/// Output of a target pass and the verdict on its draft.
struct Verified {
    output: PassOutput,
    /// Layers after which the pass returned its hidden states ([`PassInput::taps`]).
    taps: Vec<usize>,
    verdict: Verdict,
    emitted: Vec<EmittedToken>,
    ended: Option<EndReason>,
    /// End of the target pass.
    target_done: Duration,
    /// End of verification.
    verify_done: Duration,
}

impl<'a> Session<'a> {
    /// Creates a generation. The request counts as received now; see [`set_start`](Self::set_start).
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
            cancelled: &|| false,
            verifier: Verifier::new(config.rule, config.seed),
            rng: ChaCha8Rng::seed_from_u64(config.seed),
            committed: Vec::new(),
            prompt_len: 0,
            rounds: 0,
            ended: None,
            closed: false,
            tally: Tally::new(clock.elapsed()),
            config,
        })
    }

    /// Adds a proposer, tried after those added before it. A session without proposers decodes plainly.
    pub fn add_proposer(&mut self, proposer: &'a mut dyn Proposer) {
        self.stages.add(proposer);
    }

    /// Adds the proposers of a method's stages, in their order.
    pub fn add_stages(&mut self, method: Method, proposers: Vec<&'a mut dyn Proposer>) {
        if method.entry().merges_stages {
            self.add_merged(proposers);
        } else {
            proposers.into_iter().for_each(|proposer| self.add_proposer(proposer));
        }
    }

    /// Adds proposers that draft chains, each in every round. Their drafts are merged into one tree, in which the tokens of
    /// the first are tested first.
    pub fn add_merged(&mut self, proposers: Vec<&'a mut dyn Proposer>) {
        self.stages.add_merged(proposers);
    }

    /// Adapts the draft depth up to `max_draft`. Without a controller it is always `max_draft`.
    ///
    /// The controller numbers the proposers in the order in which they are added, so it must be used with the same ones
    /// again.
    pub fn set_depth(&mut self, depth: &'a mut DepthController) {
        self.stages.set_depth(depth);
    }

    /// Sets the cancel check that runs while a proposer prefills its own model.
    ///
    /// Once it returns true, the round continues without a draft.
    pub fn set_cancel(&mut self, cancelled: &'a dyn Fn() -> bool) {
        self.cancelled = cancelled;
    }

    /// Sets the time the request arrived, by the session's stopwatch.
    ///
    /// Call it before [`prefill`](Self::prefill). The default is the time of [`new`](Self::new).
    pub fn set_start(&mut self, at: Duration) {
        self.tally = Tally::new(at);
    }

    /// Runs the prompt through the target in chunks, all but its last token.
    ///
    /// The target's cache must already hold exactly the first `reuse` tokens of the prompt. Tokens whose hidden states a
    /// proposer needs ([`Proposer::reusable_rows`]) are run again.
    ///
    /// After each chunk `progress` receives `(tokens done, tokens to run)`. If it breaks, this returns `Break` and no
    /// round can run. Proposers that prefill a model of their own report through the same callback.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if the prompt is empty, [`Error::ContextOverflow`] if it does not fit
    /// the context, and any error of the target.
    pub fn prefill(
        &mut self,
        prompt: &[TokenId],
        reuse: usize,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let context = self.target.info().context_length;
        let Some(last) = prompt.len().checked_sub(1) else {
            return Err(Error::invalid("The prompt is empty. Enter some text."));
        };
        if prompt.len() > context {
            return Err(Error::ContextOverflow { prompt: prompt.len(), context });
        }
        if !self.committed.is_empty() || reuse > last || self.target.cache_len() != reuse {
            return Err(Error::Internal(format!(
                "prefill expected {reuse} of {} tokens in the cache, found {}",
                prompt.len(),
                self.target.cache_len()
            )));
        }
        self.committed = prompt.to_vec();
        self.prompt_len = prompt.len();
        let temperature = self.sampler.params().temperature;
        let text_depends_on_drafts =
            self.verifier.noise().is_none() && !self.config.rule.keeps_greedy_text(temperature);
        let reuse = if self.config.max_draft > 0 { self.stages.reusable_rows(prompt, reuse) } else { reuse };
        self.stages.begin(prompt, &self.sampler, text_depends_on_drafts);
        self.target.truncate(reuse)?;
        let taps = if self.config.max_draft > 0 { self.stages.prompt_taps() } else { Vec::new() };
        let start = self.clock.elapsed();
        let mut done = 0;
        let rows = self.target.prefill_rows().max(1);
        for chunk in prompt[reuse..last].chunks(rows) {
            let output =
                self.target.forward(PassInput { taps: &taps, ..PassInput::chain(chunk, LogitRows::None) })?;
            done += chunk.len();
            if !taps.is_empty() {
                self.stages.report_prompt_pass(&prompt[..=reuse + done], &output, &taps);
            }
            self.closed = progress(done, last - reuse).is_break();
            if self.closed {
                break;
            }
        }
        let took = self.clock.elapsed().saturating_sub(start);
        if !self.closed && self.config.max_draft > 0 {
            self.closed = self.stages.prefill(prompt, &mut || progress(done, last - reuse)).is_break();
        }
        let ended = self.clock.elapsed();
        self.tally.prefilled(PrefillRun { prompt_tokens: prompt.len(), run: done, took, ended });
        Ok(if self.closed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    /// Runs one round.
    ///
    /// After an error the session is closed. Tokens emitted by earlier rounds stay valid, and the
    /// cache is as it was before this round. A proposer that fails is dropped for the rest of the
    /// generation and reported by [`take_dropped`](Self::take_dropped).
    ///
    /// # Errors
    /// Any error of the target. [`Error::Internal`] if the session is closed or prefill did not
    /// complete.
    pub fn round(&mut self) -> Result<Round> {
        let base = self.check_ready()?;
        let before = self.committed.len();
        let round = self.try_round(base);
        if round.is_err() {
            self.closed = true;
            self.committed.truncate(before);
            // The first error is the one to report.
            let _ = self.target.truncate(base);
        }
        round
    }

    /// Returns the cache length, after checking that a round may run.
    fn check_ready(&self) -> Result<usize> {
        let base = self.target.cache_len();
        if self.closed || self.ended.is_some() || base + 1 != self.committed.len() {
            return Err(Error::Internal("a round was requested outside a generation".into()));
        }
        Ok(base)
    }

    /// The body of [`round`](Self::round); on error the caller rolls back.
    fn try_round(&mut self, base: usize) -> Result<Round> {
        let start = self.clock.elapsed();
        let mut proposal = self.propose(base)?;
        let proposed = self.clock.elapsed();
        let verified = match (self.score_and_verify(&proposal), proposal.stage) {
            (Err(error), Some(stage)) => {
                // The draft may have caused the error: retry without it. If the plain pass fails too,
                // the target is at fault.
                restore(&mut *self.target, &self.committed, base)?;
                proposal = Proposal::empty();
                let plain = self.score_and_verify(&proposal)?;
                self.stages.drop_stage(stage, error);
                plain
            }
            (verified, _) => verified?,
        };
        let Verified { output, taps, verdict, emitted, ended, target_done, verify_done } = verified;
        let tree = &proposal.tree;
        self.commit(base, tree, &verdict, &emitted)?;
        // An end token or the token limit can cut off the end of the accepted path.
        let n_kept = emitted.iter().filter(|t| t.origin == TokenOrigin::Accepted).count();
        let accepted = verdict.accepted_nodes();
        let nodes = accepted.iter().map(|node| node + 1);
        let path: Vec<usize> = std::iter::once(0).chain(nodes).take(emitted.len()).collect();
        let outcome = RoundOutcome {
            accepted: &accepted,
            kept: &accepted[..n_kept],
            committed: &self.committed,
            target: &output,
            tap_layers: &taps,
            path: &path,
            aux_start: tree.len() + 1,
        };
        self.stages.report(&proposal, &outcome);
        let context_full = self.target.cache_len() == self.target.info().context_length;
        self.ended = ended.or(context_full.then_some(EndReason::ContextFull));
        self.rounds += 1;
        let now = self.clock.elapsed();
        let timing = RoundTiming {
            propose_ms: millis(proposed.saturating_sub(start)),
            target_ms: millis(target_done.saturating_sub(proposed)),
            verify_ms: millis(verify_done.saturating_sub(target_done)),
            other_ms: millis(now.saturating_sub(verify_done)),
        };
        let depth = self.stages.observe(&proposal, &verdict, &emitted, &timing);
        let drafted = verdict.fates(tree);
        let counts = RoundCounts {
            drafted: drafted.len(),
            depth: tree.height(),
            rows: proposal.rows(),
            draft_rows: &self.stages.pass_rows(),
            emitted: &emitted,
            timing,
        };
        self.tally.round(&counts, now);
        let drafted_by =
            proposal.stage.filter(|_| !drafted.is_empty()).map(|stage| self.stages.method(stage));
        Ok(Round {
            emitted,
            rejected: verdict.rejected,
            drafted,
            drafted_by,
            timing,
            depth,
            ended: self.ended,
        })
    }

    /// Step 1: drafts a tree with the first proposer that has a worthwhile one.
    fn propose(&mut self, base: usize) -> Result<Proposal> {
        // The last token of a round is not drafted, and its root takes one row of the context.
        let tokens_left = self.config.max_tokens - self.generated() - 1;
        let rows_left = self.target.info().context_length - base - 1;
        self.stages.draft(DraftContext {
            committed: &self.committed,
            first_round: self.committed.len() == self.prompt_len,
            max_draft: self.config.max_draft.min(rows_left),
            tokens_left,
            rows_left,
            end_tokens: &self.config.end_tokens,
            sampler: &self.sampler,
            noise: self.verifier.noise(),
            rng: &mut self.rng,
            target: &mut *self.target,
            clock: self.clock,
            cancelled: self.cancelled,
        })
    }

    /// Steps 2 and 3: runs the target over a proposal and verifies the draft. Commits nothing.
    fn score_and_verify(&mut self, proposal: &Proposal) -> Result<Verified> {
        let tree = &proposal.tree;
        let taps = self.stages.taps();
        let output = self.forward(proposal, &taps)?;
        let target_done = self.clock.elapsed();
        let mut target = SampledRows::new(&output.logits, &self.sampler, &self.committed);
        let verdict = self.verifier.verify(tree, &mut target, self.committed.len(), &mut self.rng)?;
        let (emitted, ended) = self.emit(tree, &verdict, &target);
        let verify_done = self.clock.elapsed();
        Ok(Verified { output, taps, verdict, emitted, ended, target_done, verify_done })
    }

    /// Step 2: one target pass over the root, the draft tree and the proposer's auxiliary rows.
    fn forward(&mut self, proposal: &Proposal, taps: &[usize]) -> Result<PassOutput> {
        let Proposal { tree, aux, .. } = proposal;
        let root = *self.committed.last().expect("a round has a prompt");
        let drafted = tree.tokens().iter().chain(&aux.tokens).copied();
        let tokens: Vec<TokenId> = std::iter::once(root).chain(drafted).collect();
        let below_root = |first: usize| move |parent: &Option<usize>| Some(parent.map_or(0, |p| first + p));
        let drafted = tree.parents().iter().map(below_root(1));
        let aux_parents = aux.parents.iter().map(below_root(1 + tree.len()));
        let parents: Vec<Option<usize>> = std::iter::once(None).chain(drafted).chain(aux_parents).collect();
        let chain = tree.is_chain() && aux.is_empty();
        let layout = if chain { RowLayout::Chain } else { RowLayout::Tree { parents: &parents } };
        self.target.forward(PassInput { layout, taps, ..PassInput::chain(&tokens, LogitRows::All) })
    }

    /// Returns the tokens of a verdict up to an end token or the limit, and which of the two it was.
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
        for ((id, origin, p, q, test), parent) in accepted.chain(std::iter::once(last)).zip(parents) {
            if self.config.end_tokens.contains(&id) {
                return (emitted, Some(EndReason::EndToken));
            }
            let row = parent.map_or(0, |node| node + 1);
            let TokenLogprobs { confidence, entropy, top } = target.row(row).logprobs(id, TOP_TOKENS);
            let guesses = tree.children(parent).next().map_or(&[][..], |node| tree.guesses(node));
            emitted.push(EmittedToken {
                id,
                origin,
                p,
                q,
                u: test.map(|(u, _)| u),
                threshold: test.map(|(_, threshold)| threshold),
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

    /// Step 4: commits the emitted tokens and drops the cache rows of everything else.
    ///
    /// Keeps the rows of the accepted path and then restores the cache invariant: all committed
    /// tokens but the last.
    fn commit(
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

    /// Removes the last emitted tokens, which must equal `tokens`, and closes the session.
    ///
    /// Used when a stop string ends the answer inside a round.
    ///
    /// # Errors
    /// [`Error::Internal`] if `tokens` is not the end of the generated text; any error of the target.
    pub fn retract_tail(&mut self, tokens: &[EmittedToken]) -> Result<()> {
        let keep = self.committed.len() - tokens.len().min(self.generated());
        if !self.committed[keep..].iter().eq(tokens.iter().map(|t| &t.id)) {
            return Err(Error::Internal("the tokens to retract are not the last generated ones".into()));
        }
        tokens.iter().for_each(|token| self.tally.retract(token));
        self.committed.truncate(keep);
        self.closed = true;
        self.target.truncate(keep.saturating_sub(1))
    }

    /// Takes the proposers that failed since the last call. They draft no more in this generation.
    pub fn take_dropped(&mut self) -> Vec<DroppedDraft> {
        self.stages.take_dropped()
    }

    /// Returns the prompt and all generated tokens.
    pub fn committed(&self) -> &[TokenId] {
        &self.committed
    }

    /// Returns the tokens in the target's cache: a prefix of [`committed`](Self::committed).
    ///
    /// Holds after an error too, so the next generation can reuse these rows.
    pub fn cached(&self) -> &[TokenId] {
        &self.committed[..self.target.cache_len().min(self.committed.len())]
    }

    /// Returns the number of tokens generated so far.
    pub fn generated(&self) -> usize {
        self.committed.len() - self.prompt_len
    }

    /// Returns why the generation finished; `None` while it can continue.
    pub fn ended(&self) -> Option<EndReason> {
        self.ended
    }

    /// Returns the running figures.
    pub fn figures(&self) -> LiveFigures {
        self.tally.figures()
    }

    /// Returns all figures as of now.
    ///
    /// `device` names where the target runs. `peak_memory_bytes` is the peak resident memory of the
    /// process.
    pub fn stats(&self, device: &str, peak_memory_bytes: u64) -> GenerationStats {
        self.tally.finish(self.clock.elapsed(), device, peak_memory_bytes)
    }
}

/// Yields rounds until the generation finishes or fails.
impl Iterator for Session<'_> {
    type Item = Result<Round>;

    fn next(&mut self) -> Option<Result<Round>> {
        if self.closed || self.ended.is_some() {
            return None;
        }
        Some(self.round())
    }
}
