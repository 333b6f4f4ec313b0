//! How deep to draft next, 0 included: chosen each round so that the tokens expected for the time
//! expected are most. Everything it needs it learns as it goes: the cost t(M) of a target pass by its
//! rows, the cost c of a drafted token, the acceptance by position, and what a draft's own confidence is
//! worth. This is SmartSpec's goodput (Liu et al., arXiv 2406.14066) for one conversation, with dynamic
//! stopping inside a draft (Mamou et al., 2405.04304).
//!
//! While drafting does not pay it is *parked*: rounds are plain, and a small share of their time is saved
//! up for probes, so that looking again costs little however long it stays so. Pure: times come in as
//! numbers, nothing is read from a clock.

mod costs;

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use crate::limits::{MAX_DRAFT, MAX_ROWS};
use costs::{Costs, Smoothed};

/// What the depth is at, as the outside sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, TS)]
pub struct DepthState {
    /// Whether plain decoding is expected to be faster here, so that nothing is drafted but probes.
    pub parked: bool,
    /// Expected speedup over plain decoding when 1, 2, 3, ... tokens are drafted a round. Predicted from
    /// what was measured so far.
    pub gains: Vec<f32>,
}

/// How many depths [`DepthState::gains`] tells.
const GAINS_TOLD: usize = 8;
/// Acceptance of a drafted token before anything is known, and how many tokens' worth that counts.
pub(crate) const PRIOR: (f64, f64) = (0.6, 2.0);
/// What an older observation counts when a new one comes: a memory of some thirty.
const FORGET: f64 = 0.97;
/// What is known of a position counts so much of what it did, after each draft that ended before it: half after seven.
const STALE: f64 = 0.9;
/// Drafting has to promise this much, or the noise of the promise decides.
const WORTH: f64 = 1.02;
/// So much where a draft model that rests would have to read first: once read is paid, whatever comes of it.
const WORTH_READING: f64 = 1.06;
/// So much to go on where it drafts and has read: little is lost by finding out more, and what it lost is counted.
const WORTH_GOING_ON: f64 = 0.93;
/// First tokens of drafts that are tested before a bad beginning is believed: answers begin with what is hardest to
/// guess.
const ENOUGH_TESTS: u32 = 24;
/// So few of them tell nothing: more are made though a draft model that gave up has to read first, for bad luck or a
/// machine that was slow just then may have made it give up.
const FEW_TESTS: u32 = 6;
/// So many of them again, where a model has read the conversation to look again.
const TESTS_AGAIN: u32 = 8;
/// Passes of one row that these first tests may lose.
const EXPLORING_LOSES: f64 = 3.0;
/// So many more for each of them that is accepted: who guesses right now and then is worth another look.
const BOUGHT: f64 = 0.5;
/// Passes of one row that those may lose: it was given up for a reason.
const AGAIN_LOSES: f64 = 0.75;
/// Acceptance that is hoped for meanwhile, and what it would have to win: what is too dear to win so much is not
/// explored.
const HOPE: (f64, f64) = (0.75, 1.1);
/// The share of the time spent parked that probes may take.
const PROBE_SHARE: f64 = 0.012;
/// Tokens drafted by a probe.
const PROBE: usize = 2;
/// Tokens an answer is expected to go on for, when it is weighed whether a draft model's reading of the
/// conversation pays.
const HORIZON: f64 = 128.0;
/// After so many rounds with a draft comes one without: often where little is won by drafting, so that
/// little is lost, and what plain decoding costs decides.
const REFRESH: (f64, f64) = (4.0, 64.0);
/// Passes of one row that drafting may have lost, whatever it promises, before it is parked.
const MOST_LOST: f64 = 3.0;
/// So many where drafting costs nothing but rows: it can be asked again at any time.
const FREE_LOSES: f64 = 1.0;
/// Passes of one row that it keeps of what it has won: so much bad luck more it outlives.
const MOST_WON: f64 = 8.0;
/// Passes of one row that a single draft may lose, and the share of what drafting has won besides: one that goes deep
/// before it has won anything could lose at once all that may be lost.
const RISKED: (f64, f64) = (0.65, 1.0 / 3.0);
/// The share of the time by which a loss is forgotten: so much slower than plain decoding it may be in the
/// long run.
const FORGIVEN: f64 = 0.01;
/// Asked in vain so often in a row, what it promises is no longer believed.
const IN_VAIN: u32 = 4;
/// Passes of one row that an expected pace counts beside what was measured.
const EXPECTED_PACE: f64 = 2.0;
/// Classes of confidence.
pub(crate) const CLASSES: usize = 10;
/// Unread tokens that a proposer's model reads along with its first pass.
pub const FEW: usize = 4;
/// A draft cheaper than this, in passes of one row, is always asked for: it is judged when it is there.
const FREE: f64 = 0.02;

/// A share of successes that forgets, also what was believed before the first one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    passed: f64,
    seen: f64,
    /// What is left of the belief.
    belief: f64,
}

impl Default for Share {
    fn default() -> Self {
        Self { passed: 0.0, seen: 0.0, belief: 1.0 }
    }
}

impl Share {
    pub(crate) fn add(&mut self, passed: bool) {
        self.passed = self.passed * FORGET + f64::from(u8::from(passed));
        self.seen = self.seen * FORGET + 1.0;
        self.belief *= FORGET;
    }

    /// What was seen counts this share of what it did from now on.
    fn fade(&mut self, share: f64) {
        self.passed *= share;
        self.seen *= share;
    }

    pub(crate) fn mean(self, (prior, weight): (f64, f64)) -> f64 {
        let weight = weight * self.belief;
        (self.passed + prior * weight) / (self.seen + weight)
    }
}

/// How fast rounds were of late, drafting or not.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    tokens: f64,
    /// In passes of one row.
    time: f64,
}

impl Pace {
    fn add(&mut self, tokens: usize, time: f64) {
        if time > 0.0 && time.is_finite() {
            self.tokens = self.tokens * FORGET + tokens as f64;
            self.time = self.time * FORGET + time;
        }
    }

    /// Tokens a pass of one row; `expected` counts as so many passes.
    fn rate(self, expected: f64) -> f64 {
        (self.tokens + expected * EXPECTED_PACE) / (self.time + EXPECTED_PACE)
    }
}

/// What happened in a round, as the controller hears it.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// Tokens drafted, before anything was cut off.
    pub drafted: usize,
    /// Passes of a draft model that it took: in a chain one a token, in a tree fewer.
    pub passes: usize,
    /// Tokens the proposer's own model had to read first.
    pub read: usize,
    /// Milliseconds of drafting, reading included.
    pub propose_ms: f64,
    /// Whether the target pass was over this draft, or over rows that came with it.
    pub acted: bool,
    /// Positions it was over: those of the longest path.
    pub height: usize,
    /// Rows of the target pass.
    pub rows: usize,
    /// Milliseconds of the target pass.
    pub target_ms: f64,
    /// Milliseconds of the round: of whatever drafted, and of the target pass.
    pub round_ms: f64,
    /// Tokens the round gave.
    pub emitted: usize,
    /// Whether each depth that was tested was accepted, in order.
    pub tested: Vec<bool>,
    /// The draft's confidence in each of them, where it has one.
    pub confidence: Vec<Option<f32>>,
}

/// Learns and chooses. One for each method on a target, kept from answer to answer.
#[derive(Clone, Debug, Default)]
pub struct DepthController {
    costs: Costs,
    positions: [Share; MAX_DRAFT],
    /// By confidence: of tokens that were the likeliest, and of those that chance drew.
    classes: [[Share; CLASSES]; 2],
    by_chance: bool,
    /// Tokens drafted for each pass of the draft model: more than one in trees.
    width: Smoothed,
    /// Rows that ride along with a draft.
    beside: usize,
    /// Tokens of late, and the passes of one row that they took.
    pace: Pace,
    /// Milliseconds that probes may take.
    credit: f64,
    /// Whether nothing is drafted but probes.
    rests: bool,
    /// Whether that is so, or what was drafted is not worth a row.
    parked: bool,
    /// How often in a row it was asked for a draft, took its time and had none: a tree that finds nothing worth
    /// its rows.
    barren: u32,
    /// Rounds to wait between two probes: twice as long after each that failed.
    patience: u32,
    since_probe: u32,
    /// Rounds since the last one without a draft.
    since_plain: u32,
    /// Milliseconds that drafting has won over plain decoding of late; below 0 what it has lost.
    won: f64,
    /// How often the first token of a draft was tested.
    tests: u32,
    /// How often that was accepted.
    passed: u32,
    /// Drafted tokens to be tested whatever they promise, because this round is there to learn from.
    to_test: usize,
}

impl DepthController {
    /// Knows nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// An answer begins; `by_chance` says whether its drafts are drawn from a distribution, not the likeliest tokens.
    pub fn begin(&mut self, by_chance: bool) {
        self.by_chance = by_chance;
        // What it lost in the one before was luck if it still promises much.
        if self.best(MAX_DRAFT).1 >= WORTH_READING {
            self.won = self.won.max(-MOST_LOST / 2.0 * self.pass(1));
        }
    }

    /// What a drafted token is likely to cost, in passes of one row; what is measured counts for more.
    pub fn expect_cost(&mut self, passes: Option<f64>) {
        self.costs.expect_draft(passes);
    }

    /// What to ask the proposer for, when at most `limit` tokens may be drafted and its own model has
    /// `unread` tokens to read first, and `beside` rows ride along with every draft.
    pub fn plan(&mut self, limit: usize, unread: usize, beside: usize) -> DraftPlan {
        self.beside = beside;
        let (depth, gain) = self.best(limit);
        let (one, draft) = (self.pass(1), self.draft());
        // The read costs once, the gain lasts.
        let reading = unread as f64 * self.read();
        let repays = |gain: f64| (1.0 - 1.0 / gain) * one * HORIZON >= reading;
        let (should_continue, has_read) = (!self.rests && self.tests > 0, unread <= FEW);
        let enough = match (should_continue, has_read) {
            (true, true) => WORTH_GOING_ON,
            (false, false) => WORTH_READING,
            _ => WORTH,
        };
        let least = if depth == 0 { self.gain(1) } else { gain };
        let promising = least >= enough && (has_read || repays(gain)) && self.won > -MOST_LOST * one;
        let exploring = !promising && (has_read || self.tests < FEW_TESTS) && self.explores(one, repays);
        let pays = self.barren < IN_VAIN && (promising || exploring);
        let free = self.is_free() && unread == 0 && beside == 0;
        self.rests = !pays;
        self.parked = self.rests;
        self.since_plain += 1;
        // What plain decoding costs has to be known, and known of late.
        // Where a draft is free most rounds that find none are plain anyway.
        let due = if free { REFRESH.1 as u32 } else { refresh(gain) };
        let affordable = limit.min(self.affordable());
        let max_draft = if !self.costs.knows_plain() || self.since_plain > due {
            0
        } else if free {
            limit
        } else if pays && (self.width() > 1.0 || self.classes().iter().any(|class| class.seen > 0.0)) {
            // A tree knows itself what it is worth, and a chain ends where it is not sure enough of itself.
            affordable
        } else if pays {
            affordable.min(depth.max(1))
        } else {
            let cost = reading + self.extra(PROBE.min(limit));
            if self.may_probe(cost) { PROBE.min(limit) } else { 0 }
        };
        self.to_test = match (free, pays) {
            (true, _) => 0,
            (false, true) => usize::from(exploring),
            (false, false) => PROBE,
        };
        let rate = self.rate(gain);
        let classes = std::array::from_fn(|class| self.class_share(class));
        let rows = std::array::from_fn(|rows| if rows == 0 { 0.0 } else { self.pass(rows) });
        let next = self.reached();
        let ms = if depth == 0 { one } else { depth as f64 * draft + self.pass(self.rows(depth)) };
        let promise = Promise { tokens: gain * ms / one, ms };
        let stop = StopRule {
            rate,
            promise,
            draft,
            rows,
            classes,
            beside,
            next,
            reach: 1.0,
            len: 0,
            most: max_draft,
        };
        DraftPlan { max_draft, deepest: MAX_DRAFT, stop: Some(stop) }
    }

    /// How many of a chain of drafted tokens, which cannot be told from others by chance, are worth a
    /// row of the target pass. `confidence` has one element a token; `rival` is what another proposer
    /// promises instead.
    pub fn keep(&mut self, confidence: &[Option<f32>], rival: Option<Promise>) -> usize {
        let one = self.pass(1);
        let own = self.rate(self.best(MAX_DRAFT).1);
        let other = rival.unwrap_or(Promise { tokens: 1.0, ms: one });
        let rate = own.max(other.rate());
        let acceptance = self.acceptance();
        let (mut tokens, mut reach) = (1.0, 1.0);
        let (mut best, mut most) = (0, other.tokens - rate * other.ms);
        for (i, confidence) in confidence.iter().enumerate().take(MAX_DRAFT) {
            reach *= confidence.map_or_else(|| acceptance[i], |c| self.class_share(class_of(c)));
            tokens += reach;
            let surplus = tokens - rate * self.pass(i + 2 + self.beside);
            if surplus > most {
                (best, most) = (i + 1, surplus);
            }
        }
        if self.to_test > 0 && rival.is_none() {
            return best.max(self.to_test.min(confidence.len()));
        }
        if !self.is_free() {
            // It was decided when it was asked for; only what costs nothing is judged when it is there.
            return best;
        }
        if self.won < -FREE_LOSES * one {
            best = 0;
        }
        self.parked = best == 0 && !confidence.is_empty() && rival.is_none();
        let probe = PROBE.min(confidence.len());
        if self.parked && self.may_probe(self.extra(probe)) {
            return probe;
        }
        best
    }

    /// Tokens a millisecond that are to be had, when drafting promises this gain: what was had of late, a promise
    /// only where nothing was. A token more pays when it comes at no less. What is promised is no measure of that:
    /// where it is too much, no draft would seem to reach it, and each would end at once.
    fn rate(&self, gain: f64) -> f64 {
        self.pace.rate(gain).max(1.0) / self.pass(1)
    }

    /// Whether too little is known yet to believe a bad beginning, and what is hoped for would pay.
    fn explores(&self, one: f64, repays: impl Fn(f64) -> bool) -> bool {
        let hoped = (1.0 + HOPE.0) * one / (self.draft() + self.pass(self.rows(1)));
        self.tests < ENOUGH_TESTS
            && hoped >= HOPE.1
            && repays(hoped)
            && self.won > -(EXPLORING_LOSES + BOUGHT * f64::from(self.passed)) * one
    }

    /// The most tokens of a draft of which it can be borne that none is accepted.
    fn affordable(&self) -> usize {
        let most = RISKED.0 * self.pass(1) + RISKED.1 * self.won.max(0.0);
        let without = self.pass(1 + self.beside);
        let lost = |tokens: usize| {
            tokens as f64 / self.width() * self.draft() + self.pass(1 + self.beside + tokens) - without
        };
        (2..=MAX_DRAFT).take_while(|&tokens| lost(tokens) <= most).last().unwrap_or(1)
    }

    /// Whether it is time to look again, and the time for it was saved.
    fn may_probe(&self, cost: f64) -> bool {
        self.credit >= cost && self.since_probe >= self.patience
    }

    /// Learns from a round.
    pub fn observe(&mut self, seen: &Observation) {
        if seen.rows == 1 {
            self.since_plain = 0;
        }
        if seen.drafted > 0 {
            let passes = seen.passes.max(1) as f64;
            self.width.add(seen.drafted as f64 / passes);
            let known = self.draft() * passes;
            if seen.read > FEW {
                self.costs.add_read((seen.propose_ms - known).max(0.0) / seen.read as f64);
            } else {
                self.costs.add_draft(seen.propose_ms / passes);
            }
        }
        self.costs.add_pass(seen.rows, seen.target_ms);
        if self.rests && !seen.acted {
            self.costs.doubt();
        }
        self.pace.add(seen.emitted, seen.round_ms / self.pass(1));
        self.tests += u32::from(!seen.tested.is_empty());
        self.passed += u32::from(seen.tested.first() == Some(&true));
        if self.rests && seen.acted && !self.is_free() {
            // What made it rest was long ago.
            self.positions.iter_mut().for_each(|share| share.fade(0.5));
            if seen.read > FEW {
                self.tests = self.tests.min(ENOUGH_TESTS - TESTS_AGAIN);
                self.won = self.won.min((AGAIN_LOSES - EXPLORING_LOSES) * self.pass(1));
            }
        }
        for (share, &passed) in self.positions.iter_mut().zip(&seen.tested) {
            share.add(passed);
        }
        if seen.acted {
            // Drafts ended before these, perhaps because of what is remembered of them: it has to be seen anew.
            self.positions.iter_mut().skip(seen.height).for_each(|share| share.fade(STALE));
        }
        for (&passed, confidence) in seen.tested.iter().zip(&seen.confidence) {
            if let Some(confidence) = confidence {
                self.classes[usize::from(self.by_chance)][class_of(*confidence)].add(passed);
            }
        }
        if seen.drafted > 0 || seen.propose_ms > FREE * self.pass(1) {
            self.barren = if seen.drafted == 0 { self.barren + 1 } else { 0 };
        }
        self.since_probe += 1;
        if !self.parked {
            self.patience = 0;
        } else if seen.acted || seen.propose_ms > FREE * self.pass(1) {
            let worked = !seen.tested.is_empty() && seen.tested.iter().all(|&passed| passed);
            self.patience = if worked { self.patience / 2 } else { (2 * self.patience).clamp(4, 512) };
            self.since_probe = 0;
        }
        self.account(seen);
        // Probes are paid from what was saved while nothing else was drafted.
        if self.parked {
            self.credit += PROBE_SHARE * (seen.propose_ms + seen.target_ms);
            self.credit -= seen.propose_ms;
            if seen.acted {
                self.credit -= (seen.target_ms - self.pass(1)).max(0.0);
            }
        }
    }

    /// Keeps the account of what drafting wins and loses. What reading the conversation took does not count: it was
    /// weighed before, and is paid once.
    fn account(&mut self, seen: &Observation) {
        let one = self.pass(1);
        let drafting = if seen.read > FEW { seen.passes as f64 * self.draft() } else { f64::INFINITY };
        let took = seen.propose_ms.min(drafting) + seen.target_ms;
        let most = MOST_LOST * one;
        if seen.acted || seen.propose_ms > FREE * one {
            let emitted = 1 + seen.tested.iter().filter(|&&passed| passed).count();
            self.won = (self.won + emitted as f64 * one - took).clamp(-2.0 * most, MOST_WON * one);
        }
        if self.won < 0.0 {
            self.won = (self.won + FORGIVEN * took).min(0.0);
        }
    }

    /// What is known, for the outside.
    pub fn state(&self) -> DepthState {
        let gains = (1..=GAINS_TOLD).map(|depth| self.gain(depth) as f32).collect();
        DepthState { parked: self.parked, gains }
    }

    /// The depth up to `limit` with the largest gain, and the gain; 0 and 1 when none is above 1.
    fn best(&self, limit: usize) -> (usize, f64) {
        let mut best = (0, 1.0);
        let deepest = (limit.min(MAX_DRAFT) as f64 / self.width()).ceil() as usize;
        for depth in 1..=deepest {
            let gain = self.gain(depth);
            if gain > best.1 {
                best = (depth, gain);
            }
        }
        best
    }

    /// Expected speedup over plain decoding when `depth` tokens are drafted.
    fn gain(&self, depth: usize) -> f64 {
        let (mut tokens, mut reach) = (1.0, 1.0);
        for accepted in &self.acceptance()[..depth] {
            reach *= accepted;
            tokens += reach;
        }
        let cost = depth as f64 * self.draft() + self.pass(self.rows(depth));
        tokens * self.pass(1) / cost
    }

    /// Rows of a target pass over a draft of this depth.
    fn rows(&self, depth: usize) -> usize {
        1 + (self.beside + (depth as f64 * self.width()).round() as usize).min(MAX_DRAFT)
    }

    fn width(&self) -> f64 {
        self.width.0.unwrap_or(1.0).max(1.0)
    }

    /// Milliseconds a round that drafts `depth` tokens takes more than a plain one.
    fn extra(&self, depth: usize) -> f64 {
        depth as f64 * self.draft() + (self.pass(self.rows(depth)) - self.pass(1)).max(0.0)
    }

    /// Milliseconds of a target pass of `rows` rows.
    fn pass(&self, rows: usize) -> f64 {
        self.costs.pass(rows)
    }

    /// Whether drafting takes next to no time.
    fn is_free(&self) -> bool {
        self.draft() <= FREE * self.pass(1)
    }

    /// Milliseconds of a drafted token.
    fn draft(&self) -> f64 {
        self.costs.draft()
    }

    /// Milliseconds for which a draft model reads a token.
    fn read(&self) -> f64 {
        self.costs.read()
    }

    /// The probability that each position is accepted when those before it were, at a fixed depth. Drafts that cost
    /// time go deep only where they are sure of themselves, so what passed there says too much of a later position: it
    /// is taken to be no better than the first.
    fn acceptance(&self) -> [f64; MAX_DRAFT] {
        let reached = self.reached();
        let most = if self.is_free() { 1.0 } else { reached[0] };
        reached.map(|share| share.min(most))
    }

    fn classes(&self) -> &[Share; CLASSES] {
        &self.classes[usize::from(self.by_chance)]
    }

    /// The probability that a token of a class of confidence is accepted.
    fn class_share(&self, class: usize) -> f64 {
        self.classes()[class].mean((class_prior(class, self.by_chance), PRIOR.1))
    }

    /// The share of each position that was accepted where a draft reached it. One that was never tested is taken to be
    /// like the one before it.
    fn reached(&self) -> [f64; MAX_DRAFT] {
        let mut prior = PRIOR.0;
        self.positions.map(|share| {
            prior = share.mean((prior, PRIOR.1));
            prior
        })
    }
}

/// Rounds with a draft between two without one, when drafting is expected to gain so much.
fn refresh(gain: f64) -> u32 {
    (REFRESH.1 * 2.0 * (gain - 1.0)).clamp(REFRESH.0, REFRESH.1) as u32
}

/// The probability that a token of a class of confidence is accepted, before anything is known of the draft.
pub(crate) fn class_prior(class: usize, by_chance: bool) -> f64 {
    let middle = (class as f64 + 0.5) / CLASSES as f64;
    // An unlikely draw is no bad guess: it is accepted with min(1, p / q), and p may be as small. Measured on prose,
    // every other one was.
    if by_chance { (1.0 + middle) / 2.0 } else { middle }
}

pub(crate) fn class_of(confidence: f32) -> usize {
    ((confidence.clamp(0.0, 1.0) * CLASSES as f32) as usize).min(CLASSES - 1)
}

/// What a round is expected to give, and to take.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    /// Tokens.
    pub tokens: f64,
    /// Milliseconds.
    pub ms: f64,
}

impl Promise {
    /// Tokens a millisecond.
    pub fn rate(self) -> f64 {
        self.tokens / self.ms
    }
}

/// How far a proposer is to draft.
#[derive(Clone, Debug)]
pub struct DraftPlan {
    /// Most tokens: of a chain its length, of a tree all its nodes; 0 = nothing.
    pub max_draft: usize,
    /// No path is longer: what the answer has no room for need not be guessed.
    pub deepest: usize,
    stop: Option<StopRule>,
}

impl DraftPlan {
    /// What is expected of it, where that is known and anything is to be drafted.
    pub(crate) fn promise(&self) -> Option<Promise> {
        self.stop.as_ref().filter(|_| self.max_draft > 0).map(|stop| stop.promise)
    }

    /// As much as asked, whatever the draft thinks of it.
    pub fn fixed(max_draft: usize) -> Self {
        Self { max_draft, deepest: MAX_DRAFT, stop: None }
    }

    /// The same, with paths of at most so many tokens.
    #[must_use]
    pub fn with_max_depth(self, deepest: usize) -> Self {
        Self { deepest, ..self }
    }

    /// Whether another token is worth drafting after one that was drafted with this confidence. To be
    /// asked once for each token of a chain, after it is in the draft: a token that was drawn must stay,
    /// or what is left would not be drawn from its distribution any more.
    pub fn should_continue(&mut self, confidence: f32) -> bool {
        self.stop.as_mut().is_none_or(|stop| stop.should_continue(confidence))
    }

    /// Whether a token that is accepted with this probability is worth a row more of the target pass, when
    /// the draft has `len` tokens.
    pub(crate) fn row_pays(&self, value: f64, len: usize) -> bool {
        self.stop.as_ref().is_none_or(|stop| value >= stop.rate * stop.rows_cost(len, 1))
    }

    /// Whether tokens that are accepted with probabilities of this sum are worth a pass of the draft model
    /// and a row each.
    pub(crate) fn pass_pays(&self, value: f64, len: usize, rows: usize) -> bool {
        self.stop.as_ref().is_none_or(|stop| value >= stop.rate * (stop.draft + stop.rows_cost(len, rows)))
    }
}

/// More tokens pay while those that they are expected to add come at no less than the going rate.
#[derive(Clone, Debug)]
struct StopRule {
    /// Tokens a millisecond that are to be had.
    rate: f64,
    /// By a draft of the best depth.
    promise: Promise,
    draft: f64,
    rows: [f64; MAX_ROWS + 1],
    classes: [f64; CLASSES],
    /// Rows that ride along.
    beside: usize,
    /// The probability that each position is accepted where a draft has gone so far, before it is drawn.
    next: [f64; MAX_DRAFT],
    /// The probability that all so far are accepted.
    reach: f64,
    len: usize,
    /// Tokens that may be drafted.
    most: usize,
}

impl StopRule {
    fn should_continue(&mut self, confidence: f32) -> bool {
        self.reach *= self.classes[class_of(confidence)];
        self.len += 1;
        // The next one alone may not pay where it and those behind it do: rows do not all cost the same.
        let (mut reach, mut tokens) = (self.reach, 0.0);
        (1..=self.most.saturating_sub(self.len)).any(|more| {
            reach *= self.next[self.len + more - 1];
            tokens += reach;
            tokens >= self.rate * (more as f64 * self.draft + self.rows_cost(self.len, more))
        })
    }

    /// Milliseconds that `more` rows cost a target pass over a draft of `len` tokens.
    fn rows_cost(&self, len: usize, more: usize) -> f64 {
        let at = 1 + self.beside + len;
        match (self.rows.get(at), self.rows.get(at + more)) {
            (Some(without), Some(with)) => (with - without).max(0.0),
            _ => f64::INFINITY,
        }
    }
}
