//! Acceptance rates of drafted tokens, by position in the draft and by the draft's own confidence. Before any test, from
//! the target's certainty. No times and no decisions here.

use crate::limits::MAX_DRAFT;

/// Bins of confidence, each 10% wide: the length of an array.
pub(crate) const CONFIDENCE_BINS: usize = 10;
/// Acceptance of a first token while nothing is known of the draft: any acceptance from 0 to 1 is as likely.
pub(crate) const UNKNOWN: f64 = 0.5;

/// Acceptance and the target's certainty on one text, from which the acceptance on another text is expected.
///
/// Drafts are accepted about as often as the target is certain of its own tokens. On 68 recorded answers of Qwen2.5-Coder
/// 1.5B with a draft of 0.5B, the correlation of the two is 0.95 (`tests/golden/rounds/held-out.jsonl`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredAcceptance {
    /// Mean probability that the target accepts a token of the draft, 0 to 1.
    pub acceptance: f64,
    /// Mean probability of the target's most likely token at temperature 1, 0 to 1.
    pub certainty: f64,
}

impl MeasuredAcceptance {
    /// Returns the acceptance of a draft, relative to the target's certainty. At most 1: at temperature 1, a greedy draft
    /// cannot be accepted more often than the target is certain.
    fn ratio(self) -> f64 {
        if self.acceptance < self.certainty { self.acceptance / self.certainty } else { 1.0 }
    }
}

/// A success rate with exponential forgetting: the mean and spread of a Beta posterior.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SuccessRate {
    passed: f64,
    tests: f64,
}

impl SuccessRate {
    /// Adds a test. Earlier ones decay, so that about `memory` tests count.
    pub(crate) fn add(&mut self, passed: bool, memory: f64) {
        self.add_share(f64::from(u8::from(passed)), memory);
    }

    /// Adds a test that passes with a known probability, 0 to 1.
    fn add_share(&mut self, probability: f64, memory: f64) {
        self.decay(1.0 - 1.0 / memory);
        self.passed += probability;
        self.tests += 1.0;
    }

    /// Multiplies the weight of all tests so far by `factor`, 0 to 1.
    pub(crate) fn decay(&mut self, factor: f64) {
        self.passed *= factor;
        self.tests *= factor;
    }

    /// Returns the mean of the posterior under a prior mean that counts as `prior_tests` tests.
    pub(crate) fn mean(self, prior: f64, prior_tests: f64) -> f64 {
        (self.passed + prior * prior_tests) / (self.tests + prior_tests)
    }

    /// Returns the standard deviation of the same posterior.
    fn spread(self, prior: f64, prior_tests: f64) -> f64 {
        let mean = self.mean(prior, prior_tests);
        (mean * (1.0 - mean) / (self.tests + prior_tests + 1.0)).sqrt()
    }
}

/// Acceptance of one proposer's tokens on one target.
#[derive(Clone, Debug)]
pub(super) struct AcceptanceModel {
    positions: [SuccessRate; MAX_DRAFT],
    /// By confidence: of the likeliest tokens, and of sampled tokens.
    bins: [[SuccessRate; CONFIDENCE_BINS]; 2],
    /// The pair's acceptance, if it was measured. With it, the expected acceptance follows the target's certainty.
    measured: Option<MeasuredAcceptance>,
    /// The target's certainty of the text.
    certainty: SuccessRate,
    /// Tests that an estimate remembers.
    memory: f64,
    /// Tests that the draft's own confidence counts for in the acceptance of its bin.
    confidence_tests: f64,
}

impl AcceptanceModel {
    /// A model without evidence. `memory` and `confidence_tests` are those of [`DepthConfig`](super::DepthConfig).
    pub(super) fn new(memory: f64, confidence_tests: f64) -> Self {
        let (positions, bins) = Default::default();
        Self { positions, bins, measured: None, certainty: SuccessRate::default(), memory, confidence_tests }
    }

    /// Sets the measured acceptance of the pair. Evidence so far is kept. Numbers outside 0 to 1 are ignored.
    pub(super) fn set_measured(&mut self, measured: MeasuredAcceptance) {
        let is_share = |share: f64| (0.0..=1.0).contains(&share);
        if is_share(measured.acceptance) && is_share(measured.certainty) {
            self.measured = Some(measured);
        }
    }

    /// Adds the target's certainty of tokens of the text.
    pub(super) fn add_certainty(&mut self, tokens: &[f32]) {
        tokens.iter().for_each(|&certainty| self.certainty.add_share(f64::from(certainty), self.memory));
    }

    /// Returns the acceptance of a first token before any test. The measured acceptance counts as much as one token of this
    /// text.
    fn prior(&self) -> f64 {
        let SuccessRate { passed, tests } = self.certainty;
        self.measured.map_or(UNKNOWN, |of| (of.acceptance + of.ratio() * passed) / (1.0 + tests))
    }

    /// Returns the tests that the prior counts for if the target's certainty counts as evidence. Real tests replace it.
    fn prior_tests(&self) -> f64 {
        let untested = (self.certainty.tests - self.positions[0].tests).max(0.0);
        if self.measured.is_some() { 1.0 + self.confidence_tests * untested } else { 1.0 }
    }

    /// Adds the tests of a draft, in order, each with the draft's confidence where it has one.
    pub(super) fn add(&mut self, tests: &[bool], confidence: &[Option<f32>], sampled: bool) {
        for (rate, &passed) in self.positions.iter_mut().zip(tests) {
            rate.add(passed, self.memory);
        }
        for (&passed, confidence) in tests.iter().zip(confidence) {
            if let Some(confidence) = confidence {
                self.bins[usize::from(sampled)][bin_of(*confidence)].add(passed, self.memory);
            }
        }
    }

    /// Lets the evidence for positions from `from` on, and for all bins, fade by `factor`.
    pub(super) fn fade(&mut self, from: usize, factor: f64) {
        self.positions.iter_mut().skip(from).for_each(|rate| rate.decay(factor));
        self.bins.as_flattened_mut().iter_mut().for_each(|rate| rate.decay(factor));
    }

    /// Returns the probability that each position is accepted, given that the positions before it are. `spreads` adds
    /// that many standard deviations. Neighbours differ little and deep positions are seldom tested, so the position
    /// before counts as much as all tests that an estimate remembers.
    pub(super) fn by_position(&self, spreads: f64) -> [f64; MAX_DRAFT] {
        self.positions_after(1.0, spreads)
    }

    /// Returns the same, where each token's certainty counts as much as a draft's confidence in its bin.
    pub(super) fn by_certainty(&self, spreads: f64) -> [f64; MAX_DRAFT] {
        self.positions_after(self.prior_tests(), spreads)
    }

    fn positions_after(&self, mut prior_tests: f64, spreads: f64) -> [f64; MAX_DRAFT] {
        let mut prior = self.prior();
        self.positions.map(|rate| {
            let upper = rate.mean(prior, prior_tests) + spreads * rate.spread(prior, prior_tests);
            (prior, prior_tests) = (rate.mean(prior, prior_tests), self.memory);
            upper.min(1.0)
        })
    }

    /// Returns the probability that a token of each confidence bin is accepted.
    pub(super) fn by_confidence(&self, sampled: bool) -> [f64; CONFIDENCE_BINS] {
        let bins = &self.bins[usize::from(sampled)];
        std::array::from_fn(|bin| bins[bin].mean(bin_prior(bin, sampled), self.confidence_tests))
    }
}

/// Returns the bin of a confidence from 0 to 1.
pub(crate) fn bin_of(confidence: f32) -> usize {
    ((confidence.clamp(0.0, 1.0) * CONFIDENCE_BINS as f32) as usize).min(CONFIDENCE_BINS - 1)
}

/// Returns the acceptance of a token of a confidence bin before any test: the middle of the bin. A sampled token is halfway to
/// 1. It is accepted with probability min(1, p / q), and where q is small p often is not much smaller.
pub(crate) fn bin_prior(bin: usize, sampled: bool) -> f64 {
    let middle = (bin as f64 + 0.5) / CONFIDENCE_BINS as f64;
    if sampled { (1.0 + middle) / 2.0 } else { middle }
}
