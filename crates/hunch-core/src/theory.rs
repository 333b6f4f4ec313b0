//! Formulas of the speculative decoding papers: predicted acceptance, tokens per round and speedup, and
//! the statistical tests of the output.
//!
//! Pure functions of numbers. Their results are predictions and never labelled as measurements.
//!
//! Notation of Leviathan et al. (arXiv 2211.17192):
//!
//! - alpha: probability that a drafted token is accepted
//! - gamma (here `depth`): number of drafted tokens
//! - c: cost of a draft token, in target passes
//!
//! The paper assumes that a target pass costs the same for any number of rows. Here the measured
//! [`PassCost`] replaces that assumption.

mod power;
mod tree;

use statrs::function::gamma::{checked_gamma_ur, ln_gamma};

use crate::pass_cost::PassCost;
pub use power::TestPower;
pub use tree::ExpectedTree;

/// Returns the probability that a token sampled from q is accepted: the sum of min(p, q) (Leviathan et
/// al., theorem 3.5). `p` and `q` have the same length.
pub fn acceptance(p: &[f32], q: &[f32]) -> f64 {
    p.iter().zip(q).map(|(&p, &q)| f64::from(p.min(q))).sum()
}

/// Returns the total variation distance of two distributions, half the sum of |p - q|. It equals 1 -
/// [`acceptance`] (Leviathan et al., corollary 3.6).
pub fn total_variation(p: &[f32], q: &[f32]) -> f64 {
    0.5 * p.iter().zip(q).map(|(&p, &q)| (f64::from(p) - f64::from(q)).abs()).sum::<f64>()
}

/// Returns the mass of the residual after a rejection: the sum of max(0, p - q). For exact
/// distributions it equals 1 - [`acceptance`] (Leviathan et al., appendix A.1).
pub fn residual_mass(p: &[f32], q: &[f32]) -> f64 {
    p.iter().zip(q).map(|(&p, &q)| (f64::from(p) - f64::from(q)).max(0.0)).sum()
}

/// Returns the probability that rejection sampling accepts one drafted token: min(1, p / (l q)).
///
/// l is the lenience, 1 for the lossless rule (Leviathan et al., section 2.3 and appendix A.5). A
/// certain draft has q = 1. The result is 0 if p is 0.
pub fn token_acceptance(p: f64, q: f64, lenience: f64) -> f64 {
    let drafted = q * lenience;
    if p >= drafted && p > 0.0 { 1.0 } else { (p / drafted).max(0.0) }
}

/// Returns the probability that independent samples of p and q are equal: the sum of p q.
pub fn matching(p: &[f32], q: &[f32]) -> f64 {
    p.iter().zip(q).map(|(&p, &q)| f64::from(p) * f64::from(q)).sum()
}

/// Returns the probability that a token sampled from q is accepted with lenience l in (0, 1].
///
/// It is `sum q min(1, p / (l q)) = sum min(q, p / l)` (Leviathan et al., appendix A.5).
pub fn lenient_acceptance(p: &[f32], q: &[f32], lenience: f64) -> f64 {
    p.iter().zip(q).map(|(&p, &q)| f64::from(q).min(f64::from(p) / lenience)).sum()
}

/// Returns the probability that typical acceptance accepts a token sampled from q.
///
/// It is the sum of q over all x with `p(x) > min(epsilon, delta e^-H(p))` (Medusa, Cai et al., arXiv 2401.10774,
/// section 2.3.1).
pub fn typical_acceptance(p: &[f32], q: &[f32], epsilon: f64, delta: f64) -> f64 {
    let threshold = epsilon.min(delta * (-entropy(p)).exp());
    p.iter().zip(q).filter(|(p, _)| f64::from(**p) > threshold).map(|(_, &q)| f64::from(q)).sum()
}

/// Returns the entropy of a distribution, in nats.
pub fn entropy(p: &[f32]) -> f64 {
    p.iter().filter(|p| **p > 0.0).map(|&p| -f64::from(p) * f64::from(p).ln()).sum()
}

/// Returns alpha as measured on chains: accepted / (accepted + rejected). `None` if nothing was tested.
///
/// Tokens after a rejected one are never tested, so alpha exceeds the acceptance rate.
pub fn alpha(accepted: u64, rejected: u64) -> Option<f64> {
    let tested = accepted + rejected;
    (tested > 0).then(|| accepted as f64 / tested as f64)
}

/// Returns the expected tokens per round if each of `depth` drafted tokens is accepted with probability
/// `alpha`.
///
/// This is (1 - alpha^(depth + 1)) / (1 - alpha) (Leviathan et al., equation 1).
pub fn expected_tokens(alpha: f64, depth: usize) -> f64 {
    // The sum instead of the fraction, which is 0 / 0 at alpha = 1.
    (0..=depth).map(|i| alpha.powi(i as i32)).sum()
}

/// Returns [`expected_tokens`] for an alpha per position: 1 + a_0 + a_0 a_1 + ...
///
/// Each a_i is conditional on the acceptance of all positions before it.
#[cfg(test)]
pub(crate) fn expected_tokens_by_position(alphas: &[f64]) -> f64 {
    let mut reached = 1.0;
    let accepted = alphas.iter().map(|alpha| {
        reached *= alpha;
        reached
    });
    1.0 + accepted.sum::<f64>()
}

/// Predicted speedup over plain decoding: expected tokens over the cost of a round.
///
/// A round costs `depth` draft tokens at `c` and one target pass of depth + 1 rows. With
/// [`PassCost::flat`] this is Leviathan et al., theorem 3.8.
pub fn speedup(alpha: f64, depth: usize, c: f64, cost: &PassCost) -> f64 {
    expected_tokens(alpha, depth) / (depth as f64 * c + cost.at(depth + 1))
}

/// Returns the factor by which speculation multiplies the arithmetic operations per token.
///
/// A round feeds `draft_rows` rows to the draft and tests `drafted` tokens in a target pass of one row more, for `tokens`
/// expected tokens. `ratio` is c hat: operations per row of a draft pass, relative to the target. A chain has as many
/// draft rows as tokens. With [`expected_tokens`] this is then (1 - alpha)(gamma c_hat + gamma + 1) / (1 -
/// alpha^(gamma + 1)) (Leviathan et al., theorem 3.11).
pub fn operations_factor(tokens: f64, drafted: usize, draft_rows: usize, ratio: f64) -> f64 {
    (draft_rows as f64 * ratio + drafted as f64 + 1.0) / tokens
}

/// Returns the depth in `0..=max_depth` with the highest predicted [`speedup`], and that speedup. Ties
/// go to the smaller depth. Depth 0 is plain decoding, speedup 1.
pub fn best_depth(alpha: f64, c: f64, cost: &PassCost, max_depth: usize) -> (usize, f64) {
    best_of(max_depth, |depth| speedup(alpha, depth, c, cost))
}

/// Returns the draft length in `1..=max_depth` with the highest speedup, and that speedup. Ties go to the smaller one.
/// Plain decoding, (0, 1.0), if none is above 1.
pub fn best_of(max_depth: usize, speedup: impl Fn(usize) -> f64) -> (usize, f64) {
    let better = |best: (usize, f64), at: (usize, f64)| if at.1 > best.1 { at } else { best };
    (1..=max_depth).map(|depth| (depth, speedup(depth))).fold((0, 1.0), better)
}

/// Result of a chi-square test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChiSquare {
    /// Sum of (observed - expected)^2 / expected.
    pub statistic: f64,
    /// Degrees of freedom.
    pub degrees: usize,
    /// Probability of a statistic at least this large under the null hypothesis.
    pub p_value: f64,
}

/// Pearson's chi-square test that `observed` counts come from `distribution` (same length, sum 1).
///
/// Outcomes with an expected count below 5 are pooled. An observed outcome of probability 0 gives p = 0.
/// With fewer than two pools there is nothing to test, and p = 1.
pub fn goodness_of_fit(observed: &[u64], distribution: &[f64]) -> ChiSquare {
    let total: u64 = observed.iter().sum();
    let mut pools: Vec<(f64, f64)> = Vec::new();
    let mut rare = (0.0, 0.0);
    for (&count, &p) in observed.iter().zip(distribution) {
        if p <= 0.0 && count > 0 {
            return ChiSquare { statistic: f64::INFINITY, degrees: 1, p_value: 0.0 };
        }
        let expected = p * total as f64;
        if expected >= 5.0 {
            pools.push((count as f64, expected));
        } else {
            rare = (rare.0 + count as f64, rare.1 + expected);
        }
    }
    if rare.1 >= 5.0 {
        pools.push(rare);
    } else if let Some(pool) = pools.iter_mut().min_by(|a, b| a.1.total_cmp(&b.1)) {
        *pool = (pool.0 + rare.0, pool.1 + rare.1);
    }
    if pools.len() < 2 {
        return ChiSquare { statistic: 0.0, degrees: 0, p_value: 1.0 };
    }
    let statistic = pools.iter().map(|(o, e)| (o - e).powi(2) / e).sum();
    let degrees = pools.len() - 1;
    ChiSquare { statistic, degrees, p_value: chi_square_tail(statistic, degrees) }
}

/// Pearson's chi-square test that two samples over the same outcomes come from one distribution.
/// Outcomes seen fewer than 10 times in both samples together are pooled.
pub fn same_distribution(a: &[u64], b: &[u64]) -> ChiSquare {
    let (total_a, total_b) = (a.iter().sum::<u64>() as f64, b.iter().sum::<u64>() as f64);
    let mut pools: Vec<(f64, f64)> = Vec::new();
    let mut rare = (0.0, 0.0);
    for (&a, &b) in a.iter().zip(b) {
        if a + b >= 10 {
            pools.push((a as f64, b as f64));
        } else {
            rare = (rare.0 + a as f64, rare.1 + b as f64);
        }
    }
    if rare.0 + rare.1 > 0.0 {
        pools.push(rare);
    }
    if pools.len() < 2 || total_a == 0.0 || total_b == 0.0 {
        return ChiSquare { statistic: 0.0, degrees: 0, p_value: 1.0 };
    }
    let (weight_a, weight_b) = ((total_b / total_a).sqrt(), (total_a / total_b).sqrt());
    let statistic = pools.iter().map(|(a, b)| (weight_a * a - weight_b * b).powi(2) / (a + b)).sum();
    let degrees = pools.len() - 1;
    ChiSquare { statistic, degrees, p_value: chi_square_tail(statistic, degrees) }
}

/// Returns the probability that a chi-square variable with `degrees` degrees of freedom exceeds `x`.
///
/// This is the regularised upper incomplete gamma function Q(degrees / 2, x / 2).
pub fn chi_square_tail(x: f64, degrees: usize) -> f64 {
    if x <= 0.0 || degrees == 0 {
        return 1.0;
    }
    // An infinite statistic has no tail.
    checked_gamma_ur(degrees as f64 / 2.0, x / 2.0).unwrap_or(0.0)
}

/// Returns the expected total variation between `distribution` and the observed shares of `rounds`
/// samples of it. 0 for no samples.
///
/// This is half the sum of E|X_i / n - p_i| with binomial X_i.
pub fn expected_variation(distribution: &[f64], rounds: u64) -> f64 {
    if rounds == 0 {
        return 0.0;
    }
    let deviations: f64 = distribution.iter().map(|&p| mean_absolute_deviation(rounds, p)).sum();
    0.5 * deviations / rounds as f64
}

/// Returns E|X - np| of a binomial X, computed in logarithms.
///
/// It is `2 k C(n, k) p^k (1 - p)^(n - k + 1)` with `k = floor(np) + 1` (de Moivre 1730; see Diaconis and Zabell,
/// Statistical Science 6(3), 1991).
fn mean_absolute_deviation(n: u64, p: f64) -> f64 {
    let n = n as f64;
    let k = (n * p).floor() + 1.0;
    if !(p > 0.0 && p < 1.0) || k > n {
        return 0.0;
    }
    let ln_choose = ln_gamma(n + 1.0) - ln_gamma(k + 1.0) - ln_gamma(n - k + 1.0);
    ((2.0 * k).ln() + ln_choose + k * p.ln() + (n - k + 1.0) * (-p).ln_1p()).exp()
}

/// Returns the 95% confidence interval of the probability behind `hits` of `trials`; (0, 1) for no
/// trials.
///
/// Wilson's score interval (E. B. Wilson, JASA 22, 1927) stays within 0 and 1 and is accurate for few
/// trials.
pub fn wilson_interval(hits: u64, trials: u64) -> (f64, f64) {
    /// The 97.5% quantile of the normal distribution.
    const Z: f64 = 1.959_963_984_540_054;
    if trials == 0 {
        return (0.0, 1.0);
    }
    let n = trials as f64;
    let share = hits as f64 / n;
    let scale = 1.0 / (1.0 + Z * Z / n);
    let middle = scale * (share + Z * Z / (2.0 * n));
    let half = scale * Z * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    ((middle - half).max(0.0), (middle + half).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn acceptance_and_total_variation_sum_to_one() {
        let (p, q) = ([0.5, 0.25, 0.25], [0.25, 0.75, 0.0]);
        assert!(close(acceptance(&p, &q), 0.5));
        assert!(close(total_variation(&p, &q), 0.5));
        assert_eq!(alpha(3, 1), Some(0.75));
        assert_eq!(alpha(0, 0), None);
    }

    #[test]
    fn acceptance_of_rules_matches_hand_computed_values() {
        let (p, q) = ([0.5, 0.25, 0.25, 0.0], [0.25, 0.5, 0.0, 0.25]);
        assert!(close(residual_mass(&p, &q), 0.5));
        assert!(close(matching(&p, &q), 0.25));
        assert!(close(lenient_acceptance(&p, &q, 0.5), 0.75));
        assert!(close(lenient_acceptance(&p, &q, 1.0), acceptance(&p, &q)));
        assert!(close(entropy(&p), 1.5 * 2f64.ln()));
        // Entropy 1.04: 0.3 e^-H is 0.106, and with delta 0.9 it is 0.318.
        assert!(close(typical_acceptance(&p, &q, 0.09, 0.3), 0.75));
        assert!(close(typical_acceptance(&p, &q, 0.4, 0.9), 0.25));
        for (p, q, lenience, accepted) in
            [(0.2, 0.4, 1.0, 0.5), (0.2, 0.4, 0.5, 1.0), (0.2, 1.0, 1.0, 0.2), (0.0, 0.0, 1.0, 0.0)]
        {
            assert!(close(token_acceptance(p, q, lenience), accepted), "{p} {q} {lenience}");
        }
    }

    #[test]
    fn equal_alphas_by_position_give_geometric_sum() {
        for (alpha, depth) in [(0.0, 3), (0.6, 1), (0.8, 5), (1.0, 4)] {
            let by_position = expected_tokens_by_position(&vec![alpha; depth]);
            assert!(close(by_position, expected_tokens(alpha, depth)));
        }
        assert!(close(expected_tokens_by_position(&[0.5, 0.25]), 1.625));
        assert!(close(expected_tokens_by_position(&[]), 1.0));
    }

    #[test]
    fn mean_absolute_deviation_matches_direct_sum() {
        for (n, p) in [(1, 0.5), (2, 0.5), (7, 0.3), (20, 0.05), (20, 0.95), (40, 0.25)] {
            let mean = f64::from(n) * p;
            let mut term = (1.0f64 - p).powi(n);
            let mut sum = 0.0;
            for x in 0..=n {
                sum += term * (f64::from(x) - mean).abs();
                term *= f64::from(n - x) / f64::from(x + 1) * p / (1.0 - p);
            }
            assert!(close(mean_absolute_deviation(n as u64, p), sum), "{n} {p}");
        }
        assert_eq!(expected_variation(&[1.0, 0.0], 100), 0.0);
        assert_eq!(expected_variation(&[0.5, 0.5], 0), 0.0);
        // Limit for large n: E|X - np| is sqrt(2 n p (1 - p) / pi).
        let normal = (2.0 * 1e6 * 0.25 / std::f64::consts::PI).sqrt() / 1e6;
        assert!((expected_variation(&[0.5, 0.5], 1_000_000) / normal - 1.0).abs() < 1e-5);
    }

    #[test]
    fn expected_variation_matches_simulation() {
        let mut state = 7u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let distribution = [0.4, 0.3, 0.2, 0.07, 0.03];
        for rounds in [5u64, 60] {
            let experiments = 20_000;
            let mut sum = 0.0;
            for _ in 0..experiments {
                let mut counts = [0.0; 5];
                for _ in 0..rounds {
                    let mut left = uniform();
                    let drawn = distribution.iter().position(|p| {
                        left -= p;
                        left < 0.0
                    });
                    counts[drawn.unwrap_or(4)] += 1.0;
                }
                let off = counts.iter().zip(distribution).map(|(count, p)| (count / rounds as f64 - p).abs());
                sum += 0.5 * off.sum::<f64>();
            }
            let simulated = sum / f64::from(experiments);
            let exact = expected_variation(&distribution, rounds);
            assert!((simulated / exact - 1.0).abs() < 0.01, "{rounds}: {simulated} {exact}");
        }
    }

    #[test]
    fn wilson_intervals_match_published_table() {
        // Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
        let printed = [
            (81, 263, 0.2553, 0.3662),
            (15, 148, 0.0624, 0.1605),
            (0, 20, 0.0, 0.1611),
            (1, 29, 0.0061, 0.1718),
        ];
        for (hits, trials, low, high) in printed {
            let interval = wilson_interval(hits, trials);
            assert!((interval.0 - low).abs() < 5e-5 && (interval.1 - high).abs() < 5e-5, "{interval:?}");
        }
        let (low, high) = wilson_interval(20, 20);
        assert!((low - 0.8389).abs() < 5e-5 && high == 1.0);
        assert_eq!(wilson_interval(0, 0), (0.0, 1.0));
    }

    #[test]
    fn expected_tokens_match_hand_computed_values() {
        assert!(close(expected_tokens(0.5, 2), 1.75));
        assert!(close(expected_tokens(0.8, 4), (1.0 - 0.8f64.powi(5)) / 0.2));
        assert!(close(expected_tokens(1.0, 4), 5.0));
        assert!(close(expected_tokens(0.0, 4), 1.0));
    }

    /// A widespread tutorial uses (1 - alpha^K) / (1 - alpha) + 1, which counts the first drafted token
    /// as always accepted.
    #[test]
    fn expected_tokens_differ_from_common_wrong_formula() {
        let (alpha, depth) = (0.7f64, 5);
        let wrong = (1.0 - alpha.powi(5)) / (1.0 - alpha) + 1.0;
        assert!((wrong - 3.77).abs() < 0.005);
        assert!((expected_tokens(alpha, depth) - 2.94).abs() < 0.005);
        // Monte Carlo: accept while a coin lands heads, plus one token.
        let mut state = 1u64;
        let mut coin = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) as f64 / (1u64 << 31) as f64) < alpha
        };
        let rounds = 200_000;
        let tokens: usize = (0..rounds).map(|_| 1 + (0..depth).take_while(|_| coin()).count()).sum();
        assert!((tokens as f64 / f64::from(rounds) - expected_tokens(alpha, depth)).abs() < 0.02);
    }

    #[test]
    fn speedup_at_depth_1_is_one_plus_alpha_over_one_plus_c() {
        assert!(close(speedup(0.6, 1, 0.25, &PassCost::flat()), 1.6 / 1.25));
    }

    #[test]
    fn reproduces_table_1_of_leviathan_et_al() {
        // Leviathan et al., table 1: alpha, gamma -> operations factor (rows a token) and speed at c = 0.
        let rows = [
            (0.6, 2, 1.53, 1.96),
            (0.7, 3, 1.58, 2.53),
            (0.8, 2, 1.23, 2.44),
            (0.8, 5, 1.63, 3.69),
            (0.9, 2, 1.11, 2.71),
            (0.9, 10, 1.60, 6.86),
        ];
        for (alpha, gamma, operations, speed) in rows {
            let factor = operations_factor(expected_tokens(alpha, gamma), gamma, gamma, 0.0);
            assert!((factor - operations).abs() < 0.006);
            assert!((speedup(alpha, gamma, 0.0, &PassCost::flat()) - speed).abs() < 0.006);
        }
    }

    #[test]
    fn operations_count_drafted_and_tested_rows() {
        // Theorem 3.11 as printed, with c hat.
        for (alpha, gamma, ratio) in [(0.8f64, 5, 0.1), (0.6, 2, 0.05), (0.3, 7, 1.0)] {
            let printed = (1.0 - alpha) * (gamma as f64 * ratio + gamma as f64 + 1.0)
                / (1.0 - alpha.powi(gamma as i32 + 1));
            assert!(close(operations_factor(expected_tokens(alpha, gamma), gamma, gamma, ratio), printed));
        }
        assert_eq!(operations_factor(1.0, 0, 0, 0.5), 1.0, "plain decoding");
        // Two siblings take one row of the draft.
        assert!(close(operations_factor(1.6, 2, 1, 0.5), 3.5 / 1.6));
    }

    #[test]
    fn speedup_uses_the_measured_cost_of_the_verify_pass() {
        let cost = PassCost::new([(4, 20.0), (1, 10.0), (2, 12.0)]).unwrap();
        assert!(close(speedup(0.5, 1, 0.3, &cost), 1.5 / (0.3 + 1.2)));
    }

    #[test]
    fn best_depth_is_0_when_drafting_does_not_pay() {
        let steep = PassCost::new([(1, 1.0), (2, 2.0), (3, 3.0)]).unwrap();
        assert_eq!(best_depth(0.9, 0.1, &steep, 8), (0, 1.0));
        let (depth, gain) = best_depth(0.8, 0.1, &PassCost::flat(), 8);
        // By hand: E(4) / 1.4 = 2.401, E(5) / 1.5 = 2.459, E(6) / 1.6 = 2.470, E(7) / 1.7 = 2.448.
        assert_eq!(depth, 6);
        assert!((gain - 2.470).abs() < 0.001);
    }

    #[test]
    fn chi_square_tail_matches_published_tables() {
        // Critical values of printed tables.
        let table = [
            (3.841_459, 1, 0.05),
            (6.634_897, 1, 0.01),
            (5.991_465, 2, 0.05),
            (11.070_498, 5, 0.05),
            (15.086_272, 5, 0.01),
            (18.307_038, 10, 0.05),
            (24.995_790, 15, 0.05),
            (10.827_566, 1, 0.001),
            (124.342_113, 100, 0.05),
        ];
        for (x, degrees, p) in table {
            let tail = chi_square_tail(x, degrees);
            assert!((tail - p).abs() < 1e-7, "{x} {degrees}: {tail}");
        }
        assert_eq!(chi_square_tail(0.0, 3), 1.0);
        assert!(chi_square_tail(500.0, 3) < 1e-100);
        assert_eq!(chi_square_tail(f64::INFINITY, 3), 0.0);
    }

    #[test]
    fn chi_square_rejects_wrong_distribution_only() {
        let fair = [0.25; 4];
        assert!(goodness_of_fit(&[251, 240, 260, 249], &fair).p_value > 0.5);
        assert!(goodness_of_fit(&[351, 240, 160, 249], &fair).p_value < 1e-9);
        assert_eq!(goodness_of_fit(&[10, 1], &[1.0, 0.0]).p_value, 0.0);
        assert_eq!(goodness_of_fit(&[10, 0], &[1.0, 0.0]).p_value, 1.0);
        // Three rare outcomes form one pool.
        assert_eq!(goodness_of_fit(&[94, 2, 2, 2], &[0.94, 0.02, 0.02, 0.02]).degrees, 1);
        assert!(same_distribution(&[500, 300, 200], &[980, 620, 400]).p_value > 0.3);
        assert!(same_distribution(&[500, 300, 200], &[700, 620, 680]).p_value < 1e-9);
    }
}
