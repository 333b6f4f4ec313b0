//! Figures of a generation, each defined once. The window and the command line print these values and
//! compute no rate or mean of their own.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::token::{EmittedToken, TokenOrigin};

/// Time of one round by phase, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct RoundTiming {
    /// Drafting.
    pub propose_ms: f64,
    /// Target pass.
    pub target_ms: f64,
    /// Computing distributions and verifying the draft.
    pub verify_ms: f64,
    /// Everything else: cache maintenance, text, events.
    pub other_ms: f64,
}

/// Figures of a running generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct LiveFigures {
    /// Tokens generated so far.
    pub generated_tokens: u32,
    /// Rounds so far: target passes after prefill.
    pub rounds: u32,
    /// Generated tokens per second since prefill ended.
    pub decode_tok_s: f64,
    /// accepted / drafted; 0 if nothing was drafted.
    pub acceptance_rate: f64,
    /// 1 + accepted / rounds: tokens per target pass.
    pub mean_acceptance_length: f64,
}

/// All figures of a generation. `accepted + resampled + bonus + plain == generated_tokens`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct GenerationStats {
    /// Tokens in the prompt.
    pub prompt_tokens: u32,
    /// Tokens emitted, without the end token.
    pub generated_tokens: u32,
    /// Target passes after prefill.
    pub rounds: u32,
    /// Tokens drafted.
    pub drafted: u32,
    /// Emitted tokens that were drafted and accepted.
    pub accepted: u32,
    /// Emitted tokens resampled after a rejection.
    pub resampled: u32,
    /// Emitted tokens drawn after a fully accepted path.
    pub bonus: u32,
    /// Emitted tokens of rounds without a draft.
    pub plain: u32,
    /// accepted / drafted; 0 if nothing was drafted.
    pub acceptance_rate: f64,
    /// 1 + accepted / rounds: tokens per target pass, bonus included, as in vLLM and Spec-Bench.
    pub mean_acceptance_length: f64,
    /// Target passes after prefill as `(rows, passes)`.
    #[serde(default)]
    pub target_passes: Vec<(u32, u32)>,
    /// Passes of the drafting model (or part of the target) as `(rows, passes)`. A pass that drafts all tokens has a row
    /// for each of them.
    #[serde(default)]
    pub draft_passes: Vec<(u32, u32)>,
    /// Acceptance by draft position i: the accepted share of the rounds that drafted i + 1 deep or more.
    pub accepted_at_position: Vec<f64>,
    /// Number of rounds that drafted i + 1 deep or more, by position i.
    #[serde(default)]
    pub drafted_at_position: Vec<u32>,
    /// Time to first token: from the request to the first emitted token, in milliseconds.
    pub ttft_ms: f64,
    /// Prompt tokens per second during prefill.
    pub prefill_tok_s: f64,
    /// Generated tokens per second after prefill.
    pub decode_tok_s: f64,
    /// From the request to the end, in milliseconds.
    pub wall_ms: f64,
    /// Total drafting time, in milliseconds.
    pub propose_ms: f64,
    /// Total time of target passes after prefill, in milliseconds.
    pub target_ms: f64,
    /// Total time of verification, in milliseconds.
    pub verify_ms: f64,
    /// Remaining time after prefill, in milliseconds.
    pub other_ms: f64,
    /// Peak resident memory of the process, in bytes; 0 if the system does not report it.
    #[cfg_attr(feature = "ts", ts(type = "number"))]
    pub peak_memory_bytes: u64,
    /// Device: "cpu" or "metal".
    pub device: String,
}

/// Counts of one or more generations. Pooled rates are computed from the summed counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PooledCounts {
    /// Target passes after prefill.
    pub rounds: u64,
    /// Tokens emitted.
    pub generated: u64,
    /// Tokens drafted.
    pub drafted: u64,
    /// Emitted tokens that were drafted and accepted.
    pub accepted: u64,
    /// Emitted tokens resampled after a rejection.
    pub resampled: u64,
    /// Emitted tokens of rounds without a draft.
    pub plain: u64,
}

impl PooledCounts {
    /// Adds the counts of one generation.
    pub fn add(&mut self, stats: &GenerationStats) {
        self.rounds += u64::from(stats.rounds);
        self.generated += u64::from(stats.generated_tokens);
        self.drafted += u64::from(stats.drafted);
        self.accepted += u64::from(stats.accepted);
        self.resampled += u64::from(stats.resampled);
        self.plain += u64::from(stats.plain);
    }

    /// accepted / drafted; 0 if nothing was drafted.
    pub fn acceptance_rate(&self) -> f64 {
        share(self.accepted, self.drafted)
    }

    /// 1 + accepted / rounds: tokens per target pass; 0 before the first round.
    pub fn mean_acceptance_length(&self) -> f64 {
        if self.rounds == 0 { 0.0 } else { 1.0 + share(self.accepted, self.rounds) }
    }
}

/// The clock of the round loop. The engine passes the wall clock, tests a scripted one.
pub trait Stopwatch: Send {
    /// Returns the time since a fixed moment. Never decreases.
    fn elapsed(&self) -> Duration;
}

/// Counts that one round adds to a [`Tally`].
#[derive(Clone, Copy, Debug)]
pub struct RoundCounts<'a> {
    /// Tokens drafted.
    pub drafted: usize,
    /// Depth of the tree; equals `drafted` for a chain.
    pub depth: usize,
    /// Rows of the target pass.
    pub rows: usize,
    /// Rows of each draft pass.
    pub draft_rows: &'a [usize],
    /// Tokens emitted.
    pub emitted: &'a [EmittedToken],
    /// Time by phase.
    pub timing: RoundTiming,
}

/// The part of a prompt that went through the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillRun {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens that went through the target. The rest was in its cache, and the last one belongs to the first round.
    pub run: usize,
    /// Time of their passes.
    pub took: Duration,
    /// Time at the end, on the clock of the generation.
    pub ended: Duration,
}

/// Accumulates the figures of one generation.
#[derive(Clone, Debug)]
pub struct Tally {
    started: Duration,
    decoding_since: Duration,
    first_token: Option<Duration>,
    last_round: Duration,
    prompt_tokens: usize,
    /// Tokens run and the time they took.
    prefill: (usize, Duration),
    rounds: u32,
    drafted: u32,
    accepted: u32,
    resampled: u32,
    bonus: u32,
    plain: u32,
    positions: Vec<PositionCount>,
    target_passes: BTreeMap<usize, u32>,
    draft_passes: BTreeMap<usize, u32>,
    propose_ms: f64,
    target_ms: f64,
    verify_ms: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct PositionCount {
    drafted: u32,
    accepted: u32,
}

impl Tally {
    /// Creates an empty tally. `started` is the time of the request by the generation's stopwatch.
    pub fn new(started: Duration) -> Self {
        Self {
            started,
            decoding_since: started,
            first_token: None,
            last_round: started,
            prompt_tokens: 0,
            prefill: (0, Duration::ZERO),
            rounds: 0,
            drafted: 0,
            accepted: 0,
            resampled: 0,
            bonus: 0,
            plain: 0,
            positions: Vec::new(),
            target_passes: BTreeMap::new(),
            draft_passes: BTreeMap::new(),
            propose_ms: 0.0,
            target_ms: 0.0,
            verify_ms: 0.0,
        }
    }

    /// Records the end of prefill.
    pub fn prefilled(&mut self, prefill: PrefillRun) {
        self.prompt_tokens = prefill.prompt_tokens;
        self.decoding_since = prefill.ended;
        self.last_round = prefill.ended;
        self.prefill = (prefill.run, prefill.took);
    }

    /// Records a round that ended at `now`.
    pub fn round(&mut self, round: &RoundCounts<'_>, now: Duration) {
        self.rounds += 1;
        self.last_round = now;
        self.drafted += round.drafted as u32;
        *self.target_passes.entry(round.rows).or_default() += 1;
        for &rows in round.draft_rows {
            *self.draft_passes.entry(rows).or_default() += 1;
        }
        if self.positions.len() < round.depth {
            self.positions.resize(round.depth, PositionCount::default());
        }
        self.positions[..round.depth].iter_mut().for_each(|p| p.drafted += 1);
        for token in round.emitted {
            self.first_token.get_or_insert(now);
            self.count(token, 1);
        }
        self.propose_ms += round.timing.propose_ms;
        self.target_ms += round.timing.target_ms;
        self.verify_ms += round.timing.verify_ms;
    }

    /// Removes a counted token that will not be shown because it follows a stop string.
    pub fn retract(&mut self, token: &EmittedToken) {
        self.count(token, -1);
    }

    fn count(&mut self, token: &EmittedToken, by: i32) {
        let count = match token.origin {
            TokenOrigin::Accepted => {
                if let Some(p) = self.positions.get_mut(token.position as usize) {
                    p.accepted = p.accepted.saturating_add_signed(by);
                }
                &mut self.accepted
            }
            TokenOrigin::Resampled => &mut self.resampled,
            TokenOrigin::Bonus => &mut self.bonus,
            TokenOrigin::Plain => &mut self.plain,
            TokenOrigin::Chosen => return,
        };
        *count = count.saturating_add_signed(by);
    }

    fn generated(&self) -> u32 {
        self.accepted + self.resampled + self.bonus + self.plain
    }

    /// Returns the figures as of the last round.
    pub fn figures(&self) -> LiveFigures {
        LiveFigures {
            generated_tokens: self.generated(),
            rounds: self.rounds,
            decode_tok_s: rate(self.generated(), self.last_round.saturating_sub(self.decoding_since)),
            acceptance_rate: self.counts().acceptance_rate(),
            mean_acceptance_length: self.counts().mean_acceptance_length(),
        }
    }

    /// Returns all figures of the generation, ended at `now`.
    pub fn finish(&self, now: Duration, device: &str, peak_memory_bytes: u64) -> GenerationStats {
        let decode = now.saturating_sub(self.decoding_since);
        let measured = self.propose_ms + self.target_ms + self.verify_ms;
        GenerationStats {
            prompt_tokens: self.prompt_tokens as u32,
            generated_tokens: self.generated(),
            rounds: self.rounds,
            drafted: self.drafted,
            accepted: self.accepted,
            resampled: self.resampled,
            bonus: self.bonus,
            plain: self.plain,
            acceptance_rate: self.counts().acceptance_rate(),
            mean_acceptance_length: self.counts().mean_acceptance_length(),
            target_passes: by_rows(&self.target_passes),
            draft_passes: by_rows(&self.draft_passes),
            accepted_at_position: self
                .positions
                .iter()
                .map(|p| share(p.accepted.into(), p.drafted.into()))
                .collect(),
            drafted_at_position: self.positions.iter().map(|p| p.drafted).collect(),
            ttft_ms: self.first_token.map_or(0.0, |at| millis(at.saturating_sub(self.started))),
            prefill_tok_s: rate(self.prefill.0 as u32, self.prefill.1),
            decode_tok_s: rate(self.generated(), decode),
            wall_ms: millis(now.saturating_sub(self.started)),
            propose_ms: self.propose_ms,
            target_ms: self.target_ms,
            verify_ms: self.verify_ms,
            other_ms: (millis(decode) - measured).max(0.0),
            peak_memory_bytes,
            device: device.to_owned(),
        }
    }

    fn counts(&self) -> PooledCounts {
        let [rounds, generated, drafted, accepted, resampled, plain] =
            [self.rounds, self.generated(), self.drafted, self.accepted, self.resampled, self.plain]
                .map(u64::from);
        PooledCounts { rounds, generated, drafted, accepted, resampled, plain }
    }
}

/// Converts a duration to milliseconds.
pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn by_rows(passes: &BTreeMap<usize, u32>) -> Vec<(u32, u32)> {
    passes.iter().map(|(&rows, &count)| (rows as u32, count)).collect()
}

/// `part / whole`; 0 if `whole` is 0.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// `count` per second; 0 if no time has passed.
fn rate(count: u32, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { f64::from(count) / time.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(origin: TokenOrigin, position: u32) -> EmittedToken {
        EmittedToken {
            id: 1,
            origin,
            p: 1.0,
            q: None,
            u: None,
            threshold: None,
            confidence: 1.0,
            entropy: 0.0,
            top: Vec::new(),
            guesses: Vec::new(),
            round: 0,
            position,
        }
    }

    const fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn sample() -> Tally {
        use TokenOrigin::{Accepted, Bonus, Plain, Resampled};
        let timing = RoundTiming { propose_ms: 10.0, target_ms: 20.0, verify_ms: 5.0, other_ms: 1.0 };
        let mut tally = Tally::new(at(100));
        tally.prefilled(PrefillRun { prompt_tokens: 11, run: 10, took: at(50), ended: at(200) });
        let rounds = [
            (4, 4, vec![token(Accepted, 0), token(Accepted, 1), token(Resampled, 2)]),
            (2, 2, vec![token(Accepted, 0), token(Accepted, 1), token(Bonus, 2)]),
            (2, 2, vec![token(Resampled, 0)]),
            (0, 0, vec![token(Plain, 0)]),
        ];
        for (i, (drafted, depth, emitted)) in rounds.iter().enumerate() {
            let draft_rows = &vec![1; *drafted];
            let counts = RoundCounts {
                drafted: *drafted,
                depth: *depth,
                rows: drafted + 1,
                draft_rows,
                emitted,
                timing,
            };
            tally.round(&counts, at(250 + 50 * i as u64));
        }
        tally
    }

    #[test]
    fn figures_match_hand_computed_values() {
        let stats = sample().finish(at(450), "cpu", 7);
        assert_eq!(stats.generated_tokens, 8);
        assert_eq!((stats.accepted, stats.resampled, stats.bonus, stats.plain), (4, 2, 1, 1));
        assert_eq!((stats.rounds, stats.drafted), (4, 8));
        assert_eq!(stats.acceptance_rate, 0.5);
        assert_eq!(stats.mean_acceptance_length, 2.0);
        assert_eq!(stats.accepted_at_position, [2.0 / 3.0, 2.0 / 3.0, 0.0, 0.0]);
        assert_eq!(stats.drafted_at_position, [3, 3, 1, 1]);
        assert_eq!((stats.target_passes, stats.draft_passes), (vec![(1, 1), (3, 2), (5, 1)], vec![(1, 8)]));
        assert_eq!((stats.ttft_ms, stats.wall_ms), (150.0, 350.0));
        assert_eq!(stats.prefill_tok_s, 200.0);
        assert_eq!(stats.decode_tok_s, 32.0);
        assert_eq!((stats.propose_ms, stats.target_ms, stats.verify_ms), (40.0, 80.0, 20.0));
        assert_eq!(stats.other_ms, 110.0);
        assert_eq!((stats.prompt_tokens, stats.peak_memory_bytes, stats.device.as_str()), (11, 7, "cpu"));
        let live = sample().figures();
        assert_eq!((live.generated_tokens, live.rounds, live.decode_tok_s), (8, 4, 40.0));
    }

    #[test]
    fn retracted_tokens_are_not_counted() {
        let mut tally = sample();
        tally.retract(&token(TokenOrigin::Plain, 0));
        tally.retract(&token(TokenOrigin::Accepted, 1));
        let stats = tally.finish(at(450), "cpu", 0);
        assert_eq!((stats.generated_tokens, stats.accepted, stats.plain), (6, 3, 0));
        assert_eq!(stats.accepted_at_position[1], 1.0 / 3.0);
    }

    #[test]
    fn pooled_rates_use_summed_counts() {
        let mut pooled = PooledCounts::default();
        for (rounds, drafted, accepted) in [(10, 40, 30), (30, 120, 10)] {
            pooled.add(&GenerationStats { rounds, drafted, accepted, ..GenerationStats::default() });
        }
        assert_eq!(pooled.acceptance_rate(), 0.25);
        assert_eq!(pooled.mean_acceptance_length(), 2.0);
        assert_eq!(PooledCounts::default().acceptance_rate(), 0.0);
        assert_eq!(PooledCounts::default().mean_acceptance_length(), 0.0);
    }

    #[test]
    fn empty_generation_has_zero_rates() {
        let tally = Tally::new(at(5));
        let stats = tally.finish(at(5), "cpu", 0);
        assert_eq!(stats, GenerationStats { device: "cpu".into(), ..GenerationStats::default() });
        assert_eq!(tally.figures(), LiveFigures::default());
    }
}
