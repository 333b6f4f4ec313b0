//! Power of a chi-square test: the sample size with which a bias is seen.

use super::chi_square_tail;

/// Bisection steps: the precision of an f64.
const HALVINGS: u32 = 60;

/// A chi-square test of goodness of fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TestPower {
    /// Degrees of freedom: pools less one.
    pub degrees: usize,
    /// p-value below which the test rejects.
    pub significance: f64,
    /// Probability that it rejects a biased distribution.
    pub power: f64,
}

impl TestPower {
    /// Returns the samples with which the test rejects `biased`, if `distribution` is expected.
    ///
    /// Each element is the probability of one pool. Both sum to 1. The result is infinite if they are equal. The statistic of n samples is noncentral
    /// chi-square. Its noncentrality is n times the sum of (b - p)^2 / p (Cohen, Statistical Power Analysis, 1988,
    /// chapter 7).
    pub fn samples(&self, distribution: &[f64], biased: &[f64]) -> f64 {
        let terms = distribution.iter().zip(biased).map(|(&p, &b)| match p > 0.0 {
            true => (b - p).powi(2) / p,
            // Seen at once.
            false if b > 0.0 => f64::INFINITY,
            false => 0.0,
        });
        (self.noncentrality() / terms.sum::<f64>()).ceil()
    }

    /// Returns the samples with which the test rejects **every** distribution at a total variation of `variation` or
    /// more from the expected one, over the pools.
    ///
    /// The sum of (b - p)^2 / p is least if b is p times one factor on a set, and times another outside of it. With a,
    /// the probability of the set, it is then v^2 / (a (1 - a)), which is 4 v^2 at least.
    pub fn samples_for_any(&self, variation: f64) -> f64 {
        (self.noncentrality() / (4.0 * variation * variation)).ceil()
    }

    /// Returns the total variation from which every bias is seen with `samples` samples.
    pub fn variation_seen(&self, samples: u64) -> f64 {
        (self.noncentrality() / (4.0 * samples as f64)).sqrt()
    }

    /// Returns the noncentrality at which the test rejects with the asked probability. Infinite for a single pool, which
    /// shows nothing.
    fn noncentrality(&self) -> f64 {
        if self.degrees == 0 {
            return f64::INFINITY;
        }
        let critical = rising(|x| chi_square_tail(x, self.degrees) <= self.significance);
        rising(|lambda| noncentral_tail(critical, self.degrees, lambda) >= self.power)
    }
}

/// Returns the least x from 0 on at which a rising condition holds. Infinite if none does.
fn rising(holds: impl Fn(f64) -> bool) -> f64 {
    let mut high = 1.0;
    while !holds(high) {
        high *= 2.0;
        if high.is_infinite() {
            return high;
        }
    }
    let mut low = 0.0;
    for _ in 0..HALVINGS {
        let middle = 0.5 * (low + high);
        if holds(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}

/// Returns the probability that a noncentral chi-square variable exceeds x: a Poisson mixture of central ones.
fn noncentral_tail(x: f64, degrees: usize, noncentrality: f64) -> f64 {
    let mean = 0.5 * noncentrality;
    // Ten standard deviations around the mean.
    let width = 10.0 * mean.sqrt() + 10.0;
    let (from, to) = ((mean - width).max(0.0) as usize, (mean + width) as usize);
    let mut log_weight = from as f64 * mean.max(f64::MIN_POSITIVE).ln() - mean;
    log_weight -= (1..=from).map(|j| (j as f64).ln()).sum::<f64>();
    let mut tail = 0.0;
    for j in from..=to {
        tail += log_weight.exp() * chi_square_tail(x, degrees + 2 * j);
        log_weight += mean.max(f64::MIN_POSITIVE).ln() - (j as f64 + 1.0).ln();
    }
    tail
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theory::goodness_of_fit;

    #[test]
    fn noncentrality_matches_published_tables() {
        // Haynam, Govindarajulu and Leone, Tables of the cumulative noncentral chi-square distribution (1962), as in
        // Cohen (1988): significance 0.05, power 0.80, 0.90, by degrees of freedom.
        for (degrees, power, lambda) in
            [(1, 0.8, 7.849), (1, 0.9, 10.507), (5, 0.8, 12.828), (10, 0.9, 20.532), (20, 0.8, 20.961)]
        {
            let test = TestPower { degrees, significance: 0.05, power };
            assert!(
                (test.noncentrality() - lambda).abs() < 0.01,
                "{degrees} {power} {}",
                test.noncentrality()
            );
        }
    }

    #[test]
    fn single_pool_and_impossible_power_see_nothing() {
        let test = TestPower { degrees: 0, significance: 1e-3, power: 0.99 };
        assert_eq!((test.samples_for_any(0.1), test.variation_seen(1000)), (f64::INFINITY, f64::INFINITY));
        assert_eq!(rising(|_| false), f64::INFINITY);
    }

    #[test]
    fn samples_follow_from_the_effect() {
        let test = TestPower { degrees: 2, significance: 1e-3, power: 0.99 };
        let (p, biased) = ([0.5, 0.3, 0.2], [0.45, 0.3, 0.25]);
        let effect = 0.05f64.powi(2) / 0.5 + 0.05f64.powi(2) / 0.2;
        assert_eq!(test.samples(&p, &biased), (test.noncentrality() / effect).ceil());
        assert_eq!(test.samples(&p, &p), f64::INFINITY);
        // No distribution at this distance needs more samples than the bound.
        let most = test.samples_for_any(0.05);
        for to in [[0.55, 0.25, 0.2], [0.5, 0.35, 0.15], [0.45, 0.35, 0.2], [0.525, 0.325, 0.15]] {
            assert!(test.samples(&p, &to) <= most, "{to:?}");
        }
        assert!((test.variation_seen(most as u64) - 0.05).abs() < 1e-4);
    }

    #[test]
    fn figures_of_the_documentation_hold() {
        let of = |degrees| TestPower { degrees, significance: 1e-3, power: 0.99 };
        // docs/theory.md: up to 52 counted outcomes of the default model, and 125 of toys.
        assert_eq!(of(52).samples_for_any(0.08), 3178.0);
        assert!((1..=52).all(|degrees| of(degrees).samples_for_any(0.08) <= 3178.0));
        assert_eq!((of(124).variation_seen(6000) * 100.0).round(), 7.0);
    }

    #[test]
    fn test_of_that_many_samples_rejects_the_bias() {
        let (p, biased) = ([0.4, 0.3, 0.2, 0.1], [0.37, 0.3, 0.2, 0.13]);
        let test = TestPower { degrees: 3, significance: 1e-3, power: 0.9 };
        let samples = test.samples(&p, &biased) as u32;
        let mut state = 5u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let trials = 600;
        let mut rejected = 0;
        for _ in 0..trials {
            let mut counts = [0u64; 4];
            for _ in 0..samples {
                let mut left = uniform();
                let drawn = biased.iter().position(|p| {
                    left -= p;
                    left < 0.0
                });
                counts[drawn.unwrap_or(3)] += 1;
            }
            rejected += u32::from(goodness_of_fit(&counts, &p).p_value < test.significance);
        }
        let share = f64::from(rejected) / f64::from(trials);
        assert!((share - 0.9).abs() < 0.05, "{share} with {samples} samples");
    }
}
