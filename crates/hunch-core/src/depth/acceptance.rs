//! Acceptance rates of drafted tokens, by position in the draft and by the draft's own confidence.
//! No times and no decisions here.

use crate::limits::MAX_DRAFT;

/// Bins of confidence, each 10% wide: the length of an array.
pub(crate) const CONFIDENCE_BINS: usize = 10;
/// Acceptance of a first token while nothing is known of the draft: Laplace's rule of succession, after one token that
/// was accepted. A draft is tried because it is expected to fit.
const UNKNOWN: f64 = 2.0 / 3.0;

/// A success rate with exponential forgetting: the mean and spread of a Beta posterior.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SuccessRate {
    passed: f64,
    tests: f64,
}

impl SuccessRate {
    /// Adds a test. Earlier ones decay, so that about `memory` tests count.
    pub(crate) fn add(&mut self, passed: bool, memory: f64) {
        self.decay(1.0 - 1.0 / memory);
        self.passed += f64::from(u8::from(passed));
        self.tests += 1.0;
    }

    /// Multiplies the weight of all tests so far by `factor`, 0 to 1.
    fn decay(&mut self, factor: f64) {
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
    /// Acceptance of a first token before any test. It was measured on other text, so it counts as one test.
    prior: f64,
    /// Tests that an estimate remembers.
    memory: f64,
    /// Tests that the draft's own confidence counts for in the acceptance of its bin.
    confidence_tests: f64,
}

impl AcceptanceModel {
    /// A model without evidence. `memory` and `confidence_tests` are those of [`DepthConfig`](super::DepthConfig).
    pub(super) fn new(memory: f64, confidence_tests: f64) -> Self {
        let (positions, bins) = Default::default();
        Self { positions, bins, prior: UNKNOWN, memory, confidence_tests }
    }

    /// Replaces the prior. Evidence so far is kept.
    pub(super) fn set_prior(&mut self, prior: f64) {
        if prior.is_finite() {
            self.prior = prior.clamp(0.0, 1.0);
        }
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
        let (mut prior, mut prior_tests) = (self.prior, 1.0);
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
