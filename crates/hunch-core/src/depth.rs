//! Chooses how many tokens to draft each round, 0 included, so that a conversation is never much slower than plain
//! decoding and as fast as its draft allows.
//!
//! Three parts, each testable alone. [`CostModel`] estimates the time of passes, [`AcceptanceModel`] the acceptance of
//! drafted tokens, and [`DepthController`] picks the depth with the best expected tokens per millisecond. This is
//! SmartSpec's goodput (Liu et al., arXiv 2406.14066) for one conversation, with dynamic stopping inside a draft (Mamou et al.,
//! arXiv 2405.04304).
//!
//! A *loss budget* bounds what drafting may cost. It holds the time, in plain passes, that drafting may still lose.
//! Each drafting round adds the tokens it yielded and subtracts the time it took. All decoding adds a small share. No
//! draft is made whose complete rejection the budget could not pay for. While nothing is drafted, the controller is
//! *parked*: evidence fades, and once an optimistic estimate promises a speedup again, the budget pays for a look.
//!
//! Pure: times come in as numbers, and nothing reads a clock.

mod acceptance;
mod cost_model;
mod max_draft;
mod plan;

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use crate::limits::{MAX_DRAFT, MAX_ROWS};
use acceptance::AcceptanceModel;
pub(crate) use acceptance::{CONFIDENCE_BINS, SuccessRate, bin_of, bin_prior};
use cost_model::CostModel;
pub use max_draft::MaxDraft;
use plan::StopRule;
pub use plan::{DraftPlan, ExpectedRound};

/// Unread tokens that a draft model reads along with its first pass, at no extra cost.
pub const FREE_READ: usize = 4;
/// Standard deviations that an optimistic estimate of acceptance adds.
const OPTIMISM: f64 = 1.0;
/// Depths in [`DepthState::gains`].
const SHOWN_GAINS: usize = 8;

/// The numbers of the controller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DepthConfig {
    /// Tests, and times of one kind of pass, that an estimate remembers. Fewer follow a change of topic sooner, more
    /// give steadier depths.
    pub memory: f64,
    /// Passes after which a change of the machine's speed counts fully.
    pub speed_memory: f64,
    /// Acceptance of a first token before any test. Pairs of one model family reach 0.6 to 0.9.
    pub prior_acceptance: f64,
    /// Time that drafting may lose before it has won anything, in plain passes. Winning fills the budget up to twice
    /// as much.
    pub loss_allowance: f64,
    /// Share of decoding time that drafting may lose on top, in the long run.
    pub loss_share: f64,
    /// Tokens within which reading the conversation has to pay for itself, and rounds after which unused evidence is
    /// stale.
    pub horizon: f64,
}

impl Default for DepthConfig {
    fn default() -> Self {
        Self {
            memory: 32.0,
            speed_memory: 5.0,
            prior_acceptance: 0.7,
            loss_allowance: 3.0,
            loss_share: 0.005,
            horizon: 128.0,
        }
    }
}

/// The state of the controller, for display.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, TS)]
pub struct DepthState {
    /// Whether plain decoding is expected to be faster, so that nothing is drafted.
    pub parked: bool,
    /// Predicted speedup over plain decoding when 1, 2, 3, ... tokens are drafted in a round.
    pub gains: Vec<f32>,
}

/// One round, as the controller sees it.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// Tokens drafted, before any were cut off.
    pub drafted: usize,
    /// Passes of a draft model that drafting took: one per token in a chain, fewer in a tree.
    pub passes: usize,
    /// Tokens that the proposer's own model had to read first.
    pub read: usize,
    /// Milliseconds of drafting, reading included. 0 when no draft was asked for.
    pub propose_ms: f64,
    /// Whether the target pass verified this draft or ran its extra rows.
    pub acted: bool,
    /// Tokens on the longest path of the draft that was verified.
    pub height: usize,
    /// Rows of the target pass.
    pub rows: usize,
    /// Milliseconds of the target pass.
    pub target_ms: f64,
    /// Tokens the round yielded, 1 or more.
    pub emitted: usize,
    /// Whether each tested depth was accepted, in order.
    pub tested: Vec<bool>,
    /// The draft's confidence in each of them, where it has one.
    pub confidence: Vec<Option<f32>>,
}

/// Decayed sums of tokens and time.
#[derive(Clone, Copy, Debug, Default)]
struct Throughput {
    tokens: f64,
    /// In plain passes.
    time: f64,
}

/// Learns from rounds and chooses depths. One per method and target, kept from answer to answer.
#[derive(Clone, Debug)]
pub struct DepthController {
    config: DepthConfig,
    costs: CostModel,
    acceptance: AcceptanceModel,
    /// Whether drafted tokens are sampled, and not the likeliest.
    sampled: bool,
    /// Whether drafting runs passes of a model. Lookups cost next to nothing and are judged when they are there.
    has_model: bool,
    /// Drafted tokens per pass of the draft model: above 1 in trees.
    width: f64,
    /// Rows that the proposer adds to the target pass next to its draft.
    extra_rows: usize,
    /// Recent tokens per plain pass of time.
    throughput: Throughput,
    /// Time that drafting may still lose, in plain passes.
    budget: f64,
    /// Time won by drafting since the conversation was read, less the reading, in plain passes.
    read_balance: f64,
    parked: bool,
    /// Whether the next draft is only made to learn.
    exploring: bool,
    rounds_since_plain: u32,
}

impl Default for DepthController {
    fn default() -> Self {
        Self::new(DepthConfig::default())
    }
}

impl DepthController {
    /// A controller without evidence.
    pub fn new(config: DepthConfig) -> Self {
        Self {
            config,
            costs: CostModel::default(),
            acceptance: AcceptanceModel::new(config.prior_acceptance),
            sampled: false,
            has_model: false,
            width: 1.0,
            extra_rows: 0,
            throughput: Throughput::default(),
            budget: config.loss_allowance,
            read_balance: 0.0,
            parked: false,
            exploring: false,
            rounds_since_plain: 0,
        }
    }

    /// Starts an answer. `has_model` says whether drafting runs passes of a model, `sampled` whether its tokens are
    /// sampled and not the likeliest ones.
    pub fn begin(&mut self, has_model: bool, sampled: bool) {
        (self.has_model, self.sampled) = (has_model, sampled);
    }

    /// Sets the cost of a drafted token, in plain passes, that is assumed until one is measured.
    pub fn expect_cost(&mut self, passes: f64) {
        self.costs.expect_draft(passes);
    }

    /// Learns from a prefill of the target: `tokens` took `ms` milliseconds.
    pub fn observe_prefill(&mut self, tokens: usize, ms: f64) {
        if tokens >= MAX_ROWS {
            self.costs.set_prefill_row(ms / tokens as f64);
        }
    }

    /// Plans the next draft of at most `limit` tokens. The proposer's model has `unread` tokens to read first, every
    /// draft comes with `extra_rows` rows, and the answer has room for `remaining` tokens.
    pub fn plan(&mut self, limit: usize, unread: usize, extra_rows: usize, remaining: usize) -> DraftPlan {
        self.extra_rows = extra_rows;
        self.rounds_since_plain += 1;
        let one = self.costs.pass(1);
        let (depth, gain) = self.best(limit, 0.0);
        let (_, optimistic) = self.best(limit, OPTIMISM);
        let reading = if unread > FREE_READ { unread as f64 * self.costs.read() } else { 0.0 };
        let saving = |gain: f64| (1.0 - 1.0 / gain) * one * self.config.horizon.min(remaining as f64);
        // A draft model that has not earned its last readings back has to be expected to pay, not only hoped to.
        let owes = self.read_balance < -self.config.loss_allowance;
        let readable = reading == 0.0 || saving(if owes { gain } else { optimistic }) >= reading;
        let affordable = self.affordable(limit);
        let is_free = self.is_free();
        self.exploring = gain <= 1.0;
        self.parked = !is_free && (optimistic <= 1.0 || !readable || affordable == 0);
        // The time of a plain pass decides everything, so it has to be known, and recent.
        let stale = f64::from(self.rounds_since_plain) > 2.0 * self.config.memory;
        let max_draft = match self.costs.knows_plain() && !stale {
            true if is_free => limit,
            true if !self.parked => affordable,
            _ => 0,
        };
        let ms = self.round_ms(depth);
        let stop = StopRule {
            rate: self.rate(gain),
            expected: ExpectedRound { tokens: gain * ms / one, ms },
            draft_ms: self.costs.draft(),
            pass_ms: std::array::from_fn(|rows| if rows == 0 { 0.0 } else { self.costs.pass(rows) }),
            by_confidence: self.acceptance.by_confidence(self.sampled),
            by_position: self.acceptance.by_position(0.0),
            extra_rows,
            max_draft,
            len: 0,
            reach: 1.0,
        };
        DraftPlan { max_draft, deepest: MAX_DRAFT, stop: Some(stop) }
    }

    /// Returns the number of tokens of a drafted chain that are worth a row of the target pass. Only for chains whose
    /// tokens were not sampled. `confidence` has an element for each token. `rival` is the round that another proposer
    /// would lead to.
    pub fn keep(&mut self, confidence: &[Option<f32>], rival: Option<ExpectedRound>) -> usize {
        let own = self.rate(self.best(MAX_DRAFT, 0.0).1);
        let other = rival.unwrap_or(ExpectedRound { tokens: 1.0, ms: self.costs.pass(1) });
        let rate = own.max(other.rate());
        let (by_position, by_confidence) =
            (self.acceptance.by_position(0.0), self.acceptance.by_confidence(self.sampled));
        let (mut tokens, mut reach) = (1.0, 1.0);
        let (mut best, mut most) = (0, other.tokens - rate * other.ms);
        let affordable = if self.is_free() { self.affordable(MAX_DRAFT) } else { MAX_DRAFT };
        for (i, confidence) in confidence.iter().enumerate().take(affordable) {
            reach *= confidence.map_or(by_position[i], |c| by_confidence[bin_of(c)]);
            tokens += reach;
            let surplus = tokens - rate * self.costs.pass(i + 2 + self.extra_rows);
            if surplus > most {
                (best, most) = (i + 1, surplus);
            }
        }
        if self.is_free() {
            self.parked = best == 0 && !confidence.is_empty() && rival.is_none();
        } else if self.exploring && rival.is_none() {
            // The draft is paid for, and only a test shows what it was worth.
            best = best.max(confidence.len().min(1));
        }
        best
    }

    /// Learns from a round.
    pub fn observe(&mut self, seen: &Observation) {
        let DepthConfig { memory, speed_memory, loss_allowance, loss_share, horizon, .. } = self.config;
        let memories = (memory, speed_memory);
        if seen.rows == 1 {
            self.rounds_since_plain = 0;
        }
        let passes = seen.passes.max(1) as f64;
        let has_read = seen.read > FREE_READ;
        let reading = if has_read { (seen.propose_ms - passes * self.costs.draft()).max(0.0) } else { 0.0 };
        if seen.drafted > 0 {
            self.width += (seen.drafted as f64 / passes - self.width) / speed_memory;
            if has_read {
                self.costs.add_read(reading / seen.read as f64, memories);
            } else if self.has_model {
                self.costs.add_draft(seen.propose_ms / passes, memories);
            }
        }
        self.costs.add_pass(seen.rows, seen.target_ms, memories);

        let one = self.costs.pass(1);
        // Estimates, not this round's times: on a busy machine one pass may take three times the next, and a loss
        // would look like a win.
        let drafting =
            if self.has_model && seen.propose_ms > 0.0 { passes * self.costs.draft() } else { 0.0 };
        let took = (drafting + self.costs.pass(seen.rows)) / one;
        self.throughput.tokens += seen.emitted as f64 - self.throughput.tokens / memory;
        self.throughput.time += took - self.throughput.time / memory;

        self.acceptance.add(&seen.tested, &seen.confidence, self.sampled, memory);
        let tested = if seen.acted { seen.height } else { 0 };
        self.acceptance.fade(tested, 1.0 - 1.0 / horizon);

        let drafted = seen.acted || (self.has_model && seen.propose_ms > 0.0);
        let won = if drafted { seen.emitted as f64 - took } else { 0.0 } + loss_share * took;
        let cap = 2.0 * loss_allowance;
        self.budget = (self.budget + won).min(cap);
        self.read_balance = (self.read_balance + won - reading / one).min(cap);
    }

    /// The state for display.
    pub fn state(&self) -> DepthState {
        let accepted = self.accepted(0.0);
        let gains = (1..=SHOWN_GAINS).map(|depth| self.gain(depth, &accepted) as f32).collect();
        DepthState { parked: self.parked, gains }
    }

    /// The depth up to `limit` with the largest predicted speedup, and that speedup; 0 and 1 when none is above 1.
    fn best(&self, limit: usize, optimism: f64) -> (usize, f64) {
        let accepted = self.accepted(optimism);
        let deepest = (limit.min(MAX_DRAFT) as f64 / self.width).ceil() as usize;
        (1..=deepest)
            .map(|depth| (depth, self.gain(depth, &accepted)))
            .fold((0, 1.0), |best, at| if at.1 > best.1 { at } else { best })
    }

    /// Predicted speedup over plain decoding at a fixed depth.
    fn gain(&self, depth: usize, accepted: &[f64; MAX_DRAFT]) -> f64 {
        let (mut tokens, mut reach) = (1.0, 1.0);
        for accepted in &accepted[..depth] {
            reach *= accepted;
            tokens += reach;
        }
        tokens * self.costs.pass(1) / self.round_ms(depth)
    }

    /// Expected milliseconds of a round at a fixed depth.
    fn round_ms(&self, depth: usize) -> f64 {
        depth as f64 * self.costs.draft() + self.costs.pass(self.rows(depth))
    }

    /// Probability that each position is accepted at a fixed depth, given that those before it are. A draft model goes
    /// deep only where it is confident, so its later positions look better than they are: they count at most as much
    /// as the first.
    fn accepted(&self, optimism: f64) -> [f64; MAX_DRAFT] {
        let accepted = self.acceptance.by_position(optimism);
        let most = if self.has_model { accepted[0] } else { 1.0 };
        accepted.map(|rate| rate.min(most))
    }

    /// Most tokens up to `limit` whose complete rejection the budget can pay for: a first token with all of it, more
    /// with half of it.
    fn affordable(&self, limit: usize) -> usize {
        let budget = self.budget * self.costs.pass(1);
        let without = self.costs.pass(1);
        let loss = |tokens: usize| {
            let draft = if self.is_free() { 0.0 } else { tokens as f64 / self.width * self.costs.draft() };
            draft + self.costs.pass((1 + self.extra_rows + tokens).min(MAX_ROWS)) - without
        };
        // One long draft must not leave nothing for the next.
        let share = |tokens| if tokens == 1 { budget } else { budget / 2.0 };
        (1..=limit).take_while(|&tokens| loss(tokens) <= share(tokens)).last().unwrap_or(0)
    }

    /// Tokens per millisecond that a further token has to reach: the recent rate, and before there is one the rate that
    /// a predicted speedup promises. Never below that of plain decoding.
    fn rate(&self, gain: f64) -> f64 {
        let Throughput { tokens, time } = self.throughput;
        let prior = self.config.loss_allowance;
        ((tokens + gain * prior) / (time + prior)).max(1.0) / self.costs.pass(1)
    }

    /// Rows of a target pass over a draft of this depth.
    fn rows(&self, depth: usize) -> usize {
        1 + (self.extra_rows + (depth as f64 * self.width).round() as usize).min(MAX_DRAFT)
    }

    /// Whether a draft costs nothing but rows.
    fn is_free(&self) -> bool {
        !self.has_model && self.extra_rows == 0
    }
}

#[cfg(test)]
mod tests;
