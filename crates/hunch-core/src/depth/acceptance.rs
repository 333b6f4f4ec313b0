//! Acceptance rates of drafted tokens, by position in the draft and by the draft's own confidence.
//! No times and no decisions here.

use crate::limits::MAX_DRAFT;

/// Bins of confidence, each 10% wide.
pub(crate) const CONFIDENCE_BINS: usize = 10;
/// Tests that the prior of a first token counts for.
const PRIOR_TESTS: f64 = 1.0;
/// Tests that the prior of a confidence bin counts for. A draft's own confidence is the better guess.
const BIN_PRIOR_TESTS: f64 = 4.0;
/// Tests that the acceptance of a position counts for in the estimate of the next one. They differ little, and deep
/// positions are seldom tested.
const NEIGHBOUR_TESTS: f64 = 16.0;

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
    /// Acceptance of a first token before any test.
    prior: f64,
}

impl AcceptanceModel {
    /// A model without evidence, for a first token that is accepted with probability `prior`.
    pub(super) fn new(prior: f64) -> Self {
        Self { positions: Default::default(), bins: Default::default(), prior }
    }

    /// Replaces the prior. Evidence so far is kept.
    pub(super) fn set_prior(&mut self, prior: f64) {
        if prior.is_finite() {
            self.prior = prior.clamp(0.0, 1.0);
        }
    }

    /// Adds the tests of a draft, in order, each with the draft's confidence where it has one.
    pub(super) fn add(&mut self, tests: &[bool], confidence: &[Option<f32>], sampled: bool, memory: f64) {
        for (rate, &passed) in self.positions.iter_mut().zip(tests) {
            rate.add(passed, memory);
        }
        for (&passed, confidence) in tests.iter().zip(confidence) {
            if let Some(confidence) = confidence {
                self.bins[usize::from(sampled)][bin_of(*confidence)].add(passed, memory);
            }
        }
    }

    /// Lets the evidence for positions from `from` on, and for all bins, fade by `factor`.
    pub(super) fn fade(&mut self, from: usize, factor: f64) {
        self.positions.iter_mut().skip(from).for_each(|rate| rate.decay(factor));
        self.bins.as_flattened_mut().iter_mut().for_each(|rate| rate.decay(factor));
    }

    /// Returns the probability that each position is accepted, given that the positions before it are. `optimism` adds
    /// that many standard deviations. A position without tests is taken to be like the one before it.
    pub(super) fn by_position(&self, optimism: f64) -> [f64; MAX_DRAFT] {
        let (mut prior, mut prior_tests) = (self.prior, PRIOR_TESTS);
        self.positions.map(|rate| {
            let upper = rate.mean(prior, prior_tests) + optimism * rate.spread(prior, prior_tests);
            (prior, prior_tests) = (rate.mean(prior, prior_tests), NEIGHBOUR_TESTS);
            upper.min(1.0)
        })
    }

    /// Returns the probability that a token of each confidence bin is accepted.
    pub(super) fn by_confidence(&self, sampled: bool) -> [f64; CONFIDENCE_BINS] {
        let bins = &self.bins[usize::from(sampled)];
        std::array::from_fn(|bin| bins[bin].mean(bin_prior(bin, sampled), BIN_PRIOR_TESTS))
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
