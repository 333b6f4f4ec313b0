//! Chooses how many tokens to draft each round, 0 included: never much slower than plain decoding, and as fast as the
//! draft allows.
//!
//! Four parts:
//!
//! - [`CostModel`] estimates the time of passes.
//! - [`AcceptanceModel`] estimates the acceptance of drafted tokens.
//! - `ReadingAccount` decides whether a draft model first reads the conversation.
//! - [`DepthController`] picks the depth with the most expected tokens per millisecond, within the loss budget.
//!
//! This is SmartSpec's goodput (Liu et al., arXiv 2406.14066) for one conversation, with dynamic stopping inside a
//! draft (Mamou et al., arXiv 2405.04304).
//!
//! # Terms
//!
//! - **Plain pass**: a target pass over one row, the cost of a token without drafting. It is the unit of costs.
//! - **Certainty**: the target's probability of its most likely token, at temperature 1. Without any draft, it shows how
//!   often drafts will be accepted ([`MeasuredAcceptance`]).
//! - **Reading**: prefill of the draft model, over the committed tokens that its cache lacks. It is made if drafts are
//!   expected to repay it. Readings that were not repaid are owed. Once they owe more than twice the allowance, the next
//!   one has to repay that as well.
//! - **Loss budget**: the time, in plain passes, that drafting may still lose. Each drafting round adds the tokens it
//!   yielded and subtracts the time it took. All decoding adds one plain pass in a horizon. A draft is made only if the
//!   budget could pay for the rejection of all its tokens.
//! - **Parked**: nothing is drafted, because plain decoding is expected to be faster. Evidence fades meanwhile. Once
//!   an optimistic estimate of acceptance promises a speedup again, the budget pays for a draft that tests it.
//!
//! # A round
//!
//! [`plan`](DepthController::plan) sets the limits of a draft. The proposer asks the plan after each token whether to
//! continue. [`keep`](DepthController::keep) truncates drafts that cost nothing to make. After the target pass,
//! [`observe`](DepthController::observe) updates the estimates and the budget.
//!
//! Times come in as numbers, and nothing reads a clock.

mod acceptance;
mod cost_model;
mod max_draft;
mod plan;
mod reading;

use serde::{Deserialize, Serialize};

use crate::limits::{MAX_DRAFT, MAX_ROWS};
use acceptance::AcceptanceModel;
pub use acceptance::MeasuredAcceptance;
pub(crate) use acceptance::{CONFIDENCE_BINS, SuccessRate, UNKNOWN, bin_of, bin_prior};
use cost_model::{CostMemory, CostModel, DraftTimes, OUTLIER};
pub use max_draft::MaxDraft;
use plan::StopRule;
pub use plan::{DraftPlan, ExpectedRound};
pub use reading::FREE_READ;
use reading::{PossibleReading, ReadingAccount};

/// Share of the loss budget that a draft of several tokens may use. Not tuned: it leaves as much as it may lose.
const LONG_DRAFT_SHARE: f64 = 0.5;

/// Standard deviations of acceptance that are added where only a draft shows more. That is before a test of a draft that
/// does not seem to pay, and before a reading. Not tuned: the upper end of what is likely.
const OPTIMISM: f64 = 1.0;

/// Parameters of the controller. Other numbers are derived or not tuned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DepthConfig {
    /// Number of tests, or of ratios of one kind of pass to a plain one, that an estimate remembers. Fewer follow a
    /// change of topic sooner, more give steadier depths.
    pub memory: f64,
    /// Number of passes over which the speed of the machine is averaged. Few, as only ratios of times matter, and a pass
    /// is best compared with its neighbours. Caches that get warm may halve times within ten passes.
    pub speed_memory: f64,
    /// Number of tests that a model's confidence counts for. The draft's counts in the acceptance of tokens of that
    /// confidence, the target's in the acceptance on this text. More trust the models longer, fewer follow the first rounds.
    pub confidence_tests: f64,
    /// Loss budget at the start, in plain passes: what a draft that never fits may cost. Drafting that pays fills the
    /// budget up to what the longest draft needs.
    pub loss_allowance: f64,
    /// Share of a reading's time, 0 to 1, that drafts would already have saved in this answer, before the reading is made.
    /// Only next to other proposers: they show meanwhile whether they need the drafts. More spares readings, less saves
    /// sooner.
    pub read_delay: f64,
    /// Number of tokens within which reading the conversation has to pay for itself, and of rounds over which evidence
    /// fades that is not renewed. After as many rounds without one, a plain pass is timed again. In the long run, drafting
    /// may lose one plain pass of as many.
    pub horizon: f64,
}

impl Default for DepthConfig {
    fn default() -> Self {
        Self {
            memory: 32.0,
            speed_memory: 2.0,
            confidence_tests: 4.0,
            loss_allowance: 2.0,
            read_delay: 1.0 / 16.0,
            horizon: 128.0,
        }
    }
}

/// State of the controller, for display.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct DepthState {
    /// `true` while plain decoding is expected to be faster, so that nothing is drafted.
    pub parked: bool,
    /// Predicted speedup over plain decoding when 1, 2, 3, ... tokens are drafted in a round.
    pub gains: Vec<f32>,
}

impl DepthState {
    /// Number of depths in [`gains`](Self::gains). Only for display.
    const DEPTHS: usize = 8;
}

/// Work of one proposer in a round.
#[derive(Clone, Copy, Debug, Default)]
pub struct DraftWork {
    /// Tokens drafted, before truncation.
    pub drafted: usize,
    /// Passes of the draft model: one per token in a chain, fewer in a tree. If one pass drafts all tokens, or no model
    /// does, the tokens on the longest path.
    pub steps: usize,
    /// Tokens that the proposer's own model had to read first.
    pub read: usize,
    /// Milliseconds of drafting, reading included. 0 if the proposer did not run.
    pub ms: f64,
}

/// Measurements and outcome of one round, the input of [`DepthController::observe`].
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// Work of each proposer, in the order in which they are tried.
    pub work: Vec<DraftWork>,
    /// The proposer whose draft or extra rows the target pass ran.
    pub drafted_by: Option<usize>,
    /// Tokens on the longest path of the draft that was verified.
    pub height: usize,
    /// Rows of the target pass.
    pub rows: usize,
    /// Milliseconds of the target pass.
    pub target_ms: f64,
    /// Tokens the round yielded, 1 or more.
    pub emitted: usize,
    /// The target's certainty at each of them, 0 to 1. May be empty.
    pub certainty: Vec<f32>,
    /// Results of the tested depths, in order: `true` for accepted.
    pub tested: Vec<bool>,
    /// The draft's confidence in each of them, where it has one.
    pub confidence: Vec<Option<f32>>,
}

/// Request for a proposer's draft, the input of [`DepthController::plan`].
#[derive(Clone, Copy, Debug, Default)]
pub struct DraftRequest {
    /// Most tokens of the draft.
    pub limit: usize,
    /// Committed tokens that the proposer's model has to read first.
    pub unread: usize,
    /// Rows that the target pass carries in addition to the draft.
    pub extra_rows: usize,
    /// Tokens that the answer has room for.
    pub remaining: usize,
}

/// Decayed sums of tokens and time.
#[derive(Clone, Copy, Debug, Default)]
struct Throughput {
    tokens: f64,
    /// In plain passes.
    time: f64,
}

impl Throughput {
    /// Adds a round. Earlier ones decay, so that about `memory` rounds count.
    fn add(&mut self, tokens: f64, time: f64, memory: f64) {
        self.tokens += tokens - self.tokens / memory;
        self.time += time - self.time / memory;
    }

    /// Returns the tokens per plain pass, at least those of plain decoding.
    fn rate(self) -> f64 {
        if self.tokens > self.time { self.tokens / self.time } else { 1.0 }
    }
}

/// Properties of a proposer's drafts, the input of [`DepthController::begin`].
#[derive(Clone, Copy, Debug, Default)]
pub struct DraftTraits {
    /// `true` if drafting runs passes of a model. Lookups cost next to nothing, so they draft first and are truncated
    /// afterwards, by [`DepthController::keep`].
    pub has_model: bool,
    /// `true` if drafted tokens are sampled, instead of the most likely ones.
    pub sampled: bool,
    /// `true` if one pass drafts all tokens, so that a longer draft takes no more passes.
    pub in_one_pass: bool,
}

/// Estimates and state of one proposer.
#[derive(Clone, Debug)]
struct ProposerDepth {
    traits: DraftTraits,
    times: DraftTimes,
    acceptance: AcceptanceModel,
    /// Drafted tokens per step: above 1 in trees.
    width: f64,
    /// Rows that the proposer adds to the target pass next to its draft.
    extra_rows: usize,
    reading: ReadingAccount,
    parked: bool,
    /// `true` if the next draft is only made to measure acceptance.
    exploring: bool,
}

impl ProposerDepth {
    fn new(config: &DepthConfig) -> Self {
        Self {
            traits: DraftTraits::default(),
            times: DraftTimes::default(),
            acceptance: AcceptanceModel::new(config.memory, config.confidence_tests),
            width: 1.0,
            extra_rows: 0,
            reading: ReadingAccount::default(),
            parked: false,
            exploring: false,
        }
    }

    /// Returns the probability that each position is accepted at a fixed depth, given that all before it are. `spreads`
    /// adds that many standard deviations.
    ///
    /// A draft model goes deep only where it is confident, so measured acceptance of later positions is biased upwards.
    /// Later positions are capped at the rate of the first.
    fn accepted(&self, spreads: f64) -> [f64; MAX_DRAFT] {
        self.capped(self.acceptance.by_position(spreads))
    }

    fn capped(&self, accepted: [f64; MAX_DRAFT]) -> [f64; MAX_DRAFT] {
        let most = if self.traits.has_model { accepted[0] } else { 1.0 };
        accepted.map(|rate| rate.min(most))
    }

    /// Returns the rows of a target pass over a draft of this depth.
    fn rows(&self, depth: usize) -> usize {
        1 + (self.extra_rows + (depth as f64 * self.width).round() as usize).min(MAX_DRAFT)
    }

    /// Returns the passes of the draft model for a draft of `steps` steps.
    fn model_passes(&self, steps: f64) -> f64 {
        if self.traits.in_one_pass && steps > 0.0 { 1.0 } else { steps }
    }

    /// Returns whether a draft costs nothing but rows.
    fn is_lookup(&self) -> bool {
        !self.traits.has_model && self.extra_rows == 0
    }

    /// Returns whether its model ran, or its draft or extra rows were in the target pass.
    fn has_drafted(&self, work: &DraftWork, is_source: bool) -> bool {
        is_source || (self.traits.has_model && (work.steps > 0 || work.read > FREE_READ))
    }

    /// Updates the acceptance with the outcome of a round.
    fn add_outcome(&mut self, seen: &Observation, work: &DraftWork, is_source: bool, horizon: f64) {
        let found_nothing = self.traits.has_model && work.steps > 0 && work.drafted == 0;
        if found_nothing {
            // A tree without a token worth its row was paid for like one that is rejected.
            self.acceptance.add(&[false], &[None], self.traits.sampled);
        } else if is_source {
            self.acceptance.add(&seen.tested, &seen.confidence, self.traits.sampled);
        }
        let tested = if is_source { seen.height } else { usize::from(found_nothing) };
        self.acceptance.fade(tested, 1.0 - 1.0 / horizon);
    }
}

/// Controller of the draft depth. One per method and target, kept from answer to answer.
///
/// A method has one proposer or more, numbered from 0 in the order in which they are tried. They share the times of
/// target passes and one loss budget.
#[derive(Clone, Debug)]
pub struct DepthController {
    config: DepthConfig,
    costs: CostModel,
    proposers: Vec<ProposerDepth>,
    /// Recent tokens per plain pass of time.
    throughput: Throughput,
    /// Tokens of the throughput that lookups drafted.
    tokens_of_lookups: f64,
    /// Time that drafting may still lose, in plain passes.
    budget: f64,
    /// Rounds since a target pass of one row was timed.
    rounds_since_plain: u32,
}

impl Default for DepthController {
    fn default() -> Self {
        Self::new(DepthConfig::default())
    }
}

impl DepthController {
    /// Creates a controller without evidence.
    pub fn new(config: DepthConfig) -> Self {
        Self {
            config,
            costs: CostModel::new(CostMemory { own: config.memory, shared: config.speed_memory }),
            proposers: Vec::new(),
            throughput: Throughput::default(),
            tokens_of_lookups: 0.0,
            budget: config.loss_allowance,
            rounds_since_plain: 0,
        }
    }

    /// Starts an answer of a proposer.
    pub fn begin(&mut self, proposer: usize, traits: DraftTraits) {
        let own = self.proposer(proposer);
        own.traits = traits;
        own.reading.begin_answer();
    }

    /// Sets the cost of a pass of a proposer's model, in plain passes, that is assumed until one is measured.
    pub fn expect_cost(&mut self, proposer: usize, cost: f64) {
        self.proposer(proposer).times.expected = cost;
    }

    /// Sets what was measured of the target and a proposer's model, from which acceptance is expected until drafts are
    /// tested, instead of 1/2.
    pub fn expect_acceptance(&mut self, proposer: usize, measured: MeasuredAcceptance) {
        self.proposer(proposer).acceptance.set_measured(measured);
    }

    /// Sets the milliseconds of a target pass of one row that are expected until one is measured. They count as one
    /// measurement.
    pub fn expect_plain(&mut self, ms: f64) {
        self.costs.expect_plain(ms);
    }

    /// Sets predicted times of target passes of 1, 2, 3, ... rows, up to [`MAX_ROWS`]. Each is replaced once a pass of
    /// that many rows is measured, and all are scaled by measured ones.
    pub fn expect_passes(&mut self, curve: &[(usize, f64)]) {
        self.costs.expect_passes(curve);
    }

    /// Sets the cost of a further row of a target pass, in plain passes, that was measured before. It is used until passes
    /// are measured, unless they are predicted ([`expect_passes`](Self::expect_passes)).
    pub fn expect_row(&mut self, cost: f64) {
        self.costs.expect_row(cost);
    }

    /// Reports a pause before the next round, in which the speed of the machine may have changed.
    pub fn pause(&mut self) {
        self.costs.pause();
    }

    /// Plans the next draft of a proposer.
    pub fn plan(&mut self, proposer: usize, request: DraftRequest) -> DraftPlan {
        let DraftRequest { limit, extra_rows, .. } = request;
        self.proposer(proposer).extra_rows = extra_rows;
        let own = &self.proposers[proposer];
        let one = self.costs.pass(1);
        let (depth, gain) = self.best(own, limit, &own.accepted(0.0));
        // Untested drafts are worth a test if the upper end of what is likely pays.
        let (_, optimistic) = self.best(own, limit, &own.accepted(OPTIMISM));
        let readable = request.unread <= FREE_READ || self.reading_pays(own, request, gain);
        let affordable = self.affordable(own, limit);
        let is_lookup = own.is_lookup();
        let parked = !is_lookup && (optimistic <= 1.0 || !readable || affordable == 0);
        // Every decision compares with the time of a plain pass, so it has to be known, and recent.
        let stale = f64::from(self.rounds_since_plain) >= self.plain_interval();
        let max_draft = match self.costs.knows_plain() && !stale {
            true if is_lookup => limit,
            true if !parked => affordable,
            _ => 0,
        };
        let ms = self.round_ms(own, depth);
        let stop = StopRule {
            rate: self.rate(gain),
            expected: ExpectedRound { tokens: gain * ms / one, ms },
            draft_ms: if own.traits.in_one_pass { 0.0 } else { self.costs.draft(&own.times) },
            pass_ms: std::array::from_fn(|rows| if rows == 0 { 0.0 } else { self.costs.pass(rows) }),
            by_confidence: own.acceptance.by_confidence(own.traits.sampled),
            by_position: own.acceptance.by_position(0.0),
            extra_rows,
            max_draft,
            len: 0,
            reach: 1.0,
        };
        let own = &mut self.proposers[proposer];
        (own.parked, own.exploring) = (parked, gain <= 1.0);
        DraftPlan { max_draft, max_depth: MAX_DRAFT, stop: Some(stop) }
    }

    /// Returns the number of tokens of a proposer's chain that are worth a row of the target pass.
    ///
    /// Only for chains of certain tokens: truncating sampled ones would bias the output. `confidence` has an element
    /// for each token. `rival` is the round that the best later proposer is expected to lead to.
    pub fn keep(
        &mut self,
        proposer: usize,
        confidence: &[Option<f32>],
        rival: Option<ExpectedRound>,
    ) -> usize {
        self.proposer(proposer);
        let own = &self.proposers[proposer];
        let rate = self.rate(self.best(own, MAX_DRAFT, &own.accepted(0.0)).1);
        let other = rival.unwrap_or(ExpectedRound { tokens: 1.0, ms: self.costs.pass(1) });
        let rate = rate.max(other.rate());
        let (by_position, by_confidence) =
            (own.acceptance.by_position(0.0), own.acceptance.by_confidence(own.traits.sampled));
        let (mut tokens, mut reach) = (1.0, 1.0);
        let (mut best, mut most) = (0, other.tokens - rate * other.ms);
        let affordable = if own.is_lookup() { self.affordable(own, MAX_DRAFT) } else { MAX_DRAFT };
        for (i, confidence) in confidence.iter().enumerate().take(affordable) {
            reach *= confidence.map_or(by_position[i], |c| by_confidence[bin_of(c)]);
            tokens += reach;
            let surplus = tokens - rate * self.costs.pass(i + 2 + own.extra_rows);
            if surplus > most {
                (best, most) = (i + 1, surplus);
            }
        }
        let own = &mut self.proposers[proposer];
        if own.is_lookup() {
            own.parked = best == 0 && !confidence.is_empty() && rival.is_none();
        } else if own.exploring && rival.is_none() {
            // The draft has been paid for, and only a test measures its acceptance.
            best = best.max(confidence.len().min(1));
        }
        best
    }

    /// Updates estimates and budget with the outcome of a round.
    pub fn observe(&mut self, seen: &Observation) {
        let DepthConfig { memory, loss_allowance, horizon, .. } = self.config;
        self.rounds_since_plain = if seen.rows == 1 { 0 } else { self.rounds_since_plain + 1 };
        let mut work = seen.work.clone();
        work.resize(work.len().max(self.proposers.len()), DraftWork::default());
        let readings: Vec<f64> = work.iter().enumerate().map(|(i, work)| self.add_work(i, work)).collect();
        self.costs.add_pass(seen.rows, seen.target_ms);

        let one = self.costs.pass(1);
        let took = self.estimated_ms(seen.rows, &work) / one;
        self.throughput.add(seen.emitted as f64, took, memory);
        let source = seen.drafted_by.and_then(|by| self.proposers.get(by));
        let by_lookup = source.is_some_and(ProposerDepth::is_lookup);
        let of_lookup = if by_lookup { seen.emitted as f64 } else { 0.0 };
        self.tokens_of_lookups += of_lookup - self.tokens_of_lookups / memory;

        let has_drafted: Vec<bool> = self
            .proposers
            .iter()
            .zip(&work)
            .enumerate()
            .map(|(i, (own, work))| own.has_drafted(work, seen.drafted_by == Some(i)))
            .collect();
        for (i, own) in self.proposers.iter_mut().enumerate() {
            own.acceptance.add_certainty(&seen.certainty);
            own.add_outcome(seen, &work[i], seen.drafted_by == Some(i), horizon);
            if !by_lookup {
                own.reading.add_round(seen.emitted as f64, took, has_drafted[i], memory);
            }
        }
        // The allowance, and enough for the longest draft.
        let losses = self.proposers.iter().map(|own| self.loss(own, MAX_DRAFT));
        let cap = loss_allowance + losses.fold(0.0, f64::max) / (one * LONG_DRAFT_SHARE);
        let share = took / horizon;
        let won = |drafted: bool| if drafted { seen.emitted as f64 - took + share } else { share };
        self.budget = (self.budget + won(has_drafted.contains(&true))).min(cap);
        for ((own, &drafted), reading) in self.proposers.iter_mut().zip(&has_drafted).zip(readings) {
            own.reading.add(won(drafted) - reading / one, cap);
        }
    }

    /// Returns the state of a proposer, for display.
    pub fn state(&self, proposer: usize) -> DepthState {
        let Some(own) = self.proposers.get(proposer) else { return DepthState::default() };
        let accepted = own.accepted(0.0);
        let gains = (1..=DepthState::DEPTHS).map(|depth| self.gain(own, depth, &accepted) as f32).collect();
        DepthState { parked: own.parked, gains }
    }

    /// Returns the state of a proposer. One that is new begins without evidence.
    fn proposer(&mut self, proposer: usize) -> &mut ProposerDepth {
        while self.proposers.len() <= proposer {
            self.proposers.push(ProposerDepth::new(&self.config));
        }
        &mut self.proposers[proposer]
    }

    /// Updates the times and the width of a proposer's drafts. Returns the milliseconds in which its model read.
    fn add_work(&mut self, proposer: usize, work: &DraftWork) -> f64 {
        let speed_memory = self.config.speed_memory;
        self.proposer(proposer);
        let own = &mut self.proposers[proposer];
        let steps = work.steps.max(1) as f64;
        let passes = own.model_passes(steps);
        let has_read = work.read > FREE_READ;
        let reading = if has_read { (work.ms - passes * self.costs.draft(&own.times)).max(0.0) } else { 0.0 };
        if work.drafted > 0 {
            own.width += (work.drafted as f64 / steps - own.width) / speed_memory;
            if has_read {
                self.costs.add_read(&mut own.times, reading / work.read as f64);
            } else if own.traits.has_model {
                self.costs.add_draft(&mut own.times, work.ms / passes);
            }
        }
        reading
    }

    /// Returns the milliseconds of a round without its readings, by the estimates of its passes. On a busy machine one
    /// pass may take three times as long as the next, and a loss would look like a gain.
    fn estimated_ms(&self, rows: usize, work: &[DraftWork]) -> f64 {
        let drafting = |(own, work): (&ProposerDepth, &DraftWork)| {
            let steps = if own.traits.has_model { work.steps as f64 } else { 0.0 };
            own.model_passes(steps) * self.costs.draft(&own.times)
        };
        self.costs.pass(rows) + self.proposers.iter().zip(work).map(drafting).sum::<f64>()
    }

    /// Returns the depth up to `limit` with the largest predicted speedup, and that speedup; 0 and 1 if none is above
    /// 1.
    fn best(&self, own: &ProposerDepth, limit: usize, accepted: &[f64; MAX_DRAFT]) -> (usize, f64) {
        // A pass whose tokens were not worth their rows leaves less than a token a pass.
        let max_depth = (limit as f64 / own.width).ceil() as usize;
        (1..=max_depth.min(MAX_DRAFT))
            .map(|depth| (depth, self.gain(own, depth, accepted)))
            .fold((0, 1.0), |best, at| if at.1 > best.1 { at } else { best })
    }

    /// Returns the predicted speedup over plain decoding at a fixed depth.
    fn gain(&self, own: &ProposerDepth, depth: usize, accepted: &[f64; MAX_DRAFT]) -> f64 {
        let (mut tokens, mut reach) = (1.0, 1.0);
        for accepted in &accepted[..depth] {
            reach *= accepted;
            tokens += reach;
        }
        tokens * self.costs.pass(1) / self.round_ms(own, depth)
    }

    /// Returns the expected milliseconds of a round at a fixed depth.
    fn round_ms(&self, own: &ProposerDepth, depth: usize) -> f64 {
        own.model_passes(depth as f64) * self.costs.draft(&own.times) + self.costs.pass(own.rows(depth))
    }

    /// Returns whether the next draft is expected to repay reading the unread tokens. `gain` is the expected speedup.
    fn reading_pays(&self, own: &ProposerDepth, request: DraftRequest, gain: f64) -> bool {
        let likely = own.capped(own.acceptance.by_certainty(OPTIMISM));
        own.reading.pays(
            PossibleReading {
                cost: request.unread as f64 * self.costs.read(&own.times) / self.costs.pass(1),
                gain,
                optimistic_gain: self.best(own, request.limit, &likely).1,
                remaining: request.remaining as f64,
                by_lookups: self.tokens_of_lookups / self.throughput.tokens.max(1.0),
                has_rivals: self.proposers.len() > 1,
            },
            &self.config,
        )
    }

    /// Returns the most tokens, up to `limit`, whose complete rejection the budget can pay for.
    ///
    /// A single token may use all of the budget. A longer draft has to leave as much for the next one.
    fn affordable(&self, own: &ProposerDepth, limit: usize) -> usize {
        let budget = self.budget * self.costs.pass(1);
        let share = |tokens| if tokens == 1 { budget } else { budget * LONG_DRAFT_SHARE };
        (1..=limit).take_while(|&tokens| self.loss(own, tokens) <= share(tokens)).last().unwrap_or(0)
    }

    /// Returns the milliseconds that the rejection of a draft of `tokens` tokens costs.
    fn loss(&self, own: &ProposerDepth, tokens: usize) -> f64 {
        let passes = own.model_passes(tokens as f64 / own.width);
        let draft = if own.is_lookup() { 0.0 } else { passes * self.costs.draft(&own.times) };
        let rows = (1 + own.extra_rows + tokens).min(MAX_ROWS);
        draft + self.costs.pass(rows) - self.costs.pass(1)
    }

    /// Returns the rounds after which a plain pass is timed again: 2, 4, 8, ... up to the horizon.
    ///
    /// The ratio of a draft's cost to a plain pass is only learnt from passes of both. Drafts that pay even if plain passes
    /// take half the time that was measured need no such check.
    fn plain_interval(&self) -> f64 {
        if self.throughput.rate() >= OUTLIER {
            return self.config.horizon;
        }
        self.config.horizon.min(libm::exp2(self.costs.plain_measurements()))
    }

    /// Returns the tokens per millisecond that a further token has to reach.
    ///
    /// Uses the recent rate. The predicted speedup `gain` counts as one plain pass. Never below plain decoding.
    fn rate(&self, gain: f64) -> f64 {
        let Throughput { tokens, time } = self.throughput;
        ((tokens + gain) / (time + 1.0)).max(1.0) / self.costs.pass(1)
    }
}

#[cfg(test)]
mod tests;
