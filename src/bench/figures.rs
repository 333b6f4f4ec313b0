//! What is made of many answers: quantiles, speedups of pairs, the
//! table of costs and the prediction. Pure arithmetic over the figures of [`crate::stats`].

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::propose::Method;
use crate::stats::{GenerationStats, PooledCounts};
use crate::theory::{self, PassCost};

/// Where a spread begins and ends: the 10th and the 90th percentile.
pub const SPREAD: (f64, f64) = (0.1, 0.9);

/// The value below which a share `at` (0..=1) of `values` lies, a straight line between
/// neighbours. `None` of nothing.
pub fn quantile(values: &[f64], at: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = at.clamp(0.0, 1.0) * sorted.len().checked_sub(1)? as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    Some(below + (above - below) * place.fract())
}

/// The middle value; `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// Speedup of one answer over plain decoding's answer to the same prompt: plain wall time / its
/// wall time. Answers of different length, which happen above temperature 0, are made comparable:
/// plain's time after prefill is scaled to the number of tokens of the other. `None` when a time is
/// missing.
pub fn speedup(plain: &GenerationStats, other: &GenerationStats) -> Option<f64> {
    let wall = if plain.generated_tokens == other.generated_tokens {
        plain.wall_ms
    } else if plain.generated_tokens == 0 || other.generated_tokens == 0 {
        return None;
    } else {
        let decode = decode_ms(plain);
        let scale = f64::from(other.generated_tokens) / f64::from(plain.generated_tokens);
        plain.wall_ms - decode + decode * scale
    };
    ratio(wall, other.wall_ms)
}

/// Speedup of decoding alone: its decode tok/s / plain's. This is what theory predicts, which knows
/// no prefill. `None` when either generated nothing.
pub fn decode_speedup(plain: &GenerationStats, other: &GenerationStats) -> Option<f64> {
    ratio(other.decode_tok_s, plain.decode_tok_s)
}

/// Time after prefill: the four parts of a generation's rounds.
fn decode_ms(stats: &GenerationStats) -> f64 {
    stats.propose_ms + stats.target_ms + stats.verify_ms + stats.other_ms
}

fn ratio(over: f64, under: f64) -> Option<f64> {
    let ratio = over / under;
    (ratio.is_finite() && ratio > 0.0).then_some(ratio)
}

/// What theory predicts for the speedup of decoding from the measured alpha (accepted / tested),
/// the draft's cost `c` of one row and the target's measured cost by rows. Rounds that drafted
/// nothing count as the plain passes they are, and a mean depth between two whole numbers as a
/// mixture of both (Leviathan et al., arXiv 2211.17192, theorem 3.8 over such a mixture). `None`
/// when there was a draft but no test of it, so that alpha is unknown.
pub fn predicted_speedup(counts: &PooledCounts, c: f64, cost: &PassCost) -> Option<f64> {
    if counts.drafted == 0 {
        return Some(1.0);
    }
    // Every resampled token is a rejection: a chain is cut at its first.
    let alpha = theory::alpha(counts.accepted, counts.resampled)?;
    // A plain token is a round without a draft: each yields one.
    let drafting = counts.rounds.saturating_sub(counts.plain).max(1);
    let depth = counts.drafted as f64 / drafting as f64;
    let drafted_share = drafting as f64 / counts.rounds.max(1) as f64;
    let mixture = |of: &dyn Fn(usize) -> f64| {
        let (low, part) = (depth.floor() as usize, depth.fract());
        let drafted = of(low) * (1.0 - part) + of(low + 1) * part;
        drafted * drafted_share + of(0) * (1.0 - drafted_share)
    };
    let tokens = mixture(&|depth| theory::expected_tokens(alpha, depth));
    Some(tokens / mixture(&|depth| depth as f64 * c + cost.at(depth + 1)))
}

/// The measured costs of passes, as ratios to the target's pass of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct CostTable {
    /// t(M) / t(1) of the target by rows M: the median over rounds, each against t(1) of its own.
    pub target: BTreeMap<usize, f64>,
    /// c: the draft's pass of one row over the target's. `None` without a draft model.
    pub draft: Option<f64>,
}

/// The times of one round of the cost table, in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CostRound {
    /// The target's, by rows.
    pub target: BTreeMap<usize, f64>,
    /// The draft's, one row.
    pub draft: Option<f64>,
}

impl CostTable {
    /// Medians of the rounds' ratios.
    ///
    /// # Errors
    /// [`Error::Internal`] when a time is missing or not a positive number.
    pub fn new(rounds: &[CostRound]) -> Result<Self> {
        let mut target: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        let mut draft = Vec::new();
        for round in rounds {
            let one = round.target.get(&1).copied().unwrap_or(f64::NAN);
            let relative = |what: &str, time: f64| {
                ratio(time, one).ok_or_else(|| {
                    Error::Internal(format!(
                        "a pass of {what} took {time} s where a pass of one row of the target took {one} s"
                    ))
                })
            };
            for (&rows, &time) in &round.target {
                target.entry(rows).or_default().push(relative(&format!("{rows} rows"), time)?);
            }
            if let Some(time) = round.draft {
                draft.push(relative("the draft", time)?);
            }
        }
        let target: BTreeMap<_, _> = target.into_iter().filter_map(|(m, t)| Some((m, median(&t)?))).collect();
        if !target.contains_key(&1) {
            return Err(Error::Internal("no pass of the target was measured".into()));
        }
        Ok(Self { target, draft: median(&draft) })
    }

    /// The target's part, for the formulas.
    ///
    /// # Errors
    /// Never for a table that [`CostTable::new`] made.
    pub fn pass_cost(&self) -> Result<PassCost> {
        PassCost::new(self.target.iter().map(|(&rows, &t)| (rows, t)))
    }

    /// What a drafted token costs with this method, in target passes: c of the draft model, nothing
    /// for methods that look up. `None` when it was not measured, and where tokens
    /// do not all cost the same: in trees, in cascades, with rows that ride along.
    pub fn draft_cost_of(&self, method: Method) -> Option<f64> {
        match method {
            Method::DraftModel => self.draft,
            Method::DraftTree
            | Method::Cascade
            | Method::Lookahead
            | Method::EarlyExit
            | Method::LayerSkip
            | Method::LowBit => None,
            Method::Plain | Method::Ngram | Method::Suffix | Method::Synthetic => Some(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: Option<f64>, b: f64) -> bool {
        a.is_some_and(|a| (a - b).abs() < 1e-12)
    }

    fn answer(tokens: u32, prefill_ms: f64, decode_ms: f64) -> GenerationStats {
        GenerationStats {
            generated_tokens: tokens,
            wall_ms: prefill_ms + decode_ms,
            propose_ms: decode_ms * 0.25,
            target_ms: decode_ms * 0.5,
            verify_ms: decode_ms * 0.125,
            other_ms: decode_ms * 0.125,
            decode_tok_s: f64::from(tokens) / decode_ms * 1e3,
            ..GenerationStats::default()
        }
    }

    #[test]
    fn quantiles_by_hand() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(quantile(&values, 0.0), Some(1.0));
        assert_eq!(quantile(&values, 1.0), Some(4.0));
        assert_eq!(median(&values), Some(2.5));
        assert!(close(quantile(&values, 0.1), 1.3));
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn a_speedup_is_a_ratio_of_wall_times() {
        let plain = answer(10, 100.0, 400.0);
        assert!(close(speedup(&plain, &answer(10, 100.0, 150.0)), 2.0));
        assert!(close(decode_speedup(&plain, &answer(10, 100.0, 200.0)), 2.0));
        // Twice the tokens in the same time after prefill: plain would have needed 100 + 800 ms.
        assert!(close(speedup(&plain, &answer(20, 100.0, 400.0)), 1.8));
        assert_eq!(speedup(&plain, &answer(0, 100.0, 0.0)), None);
        assert_eq!(speedup(&plain, &answer(10, 0.0, 0.0)), None);
    }

    #[test]
    fn a_full_chain_is_predicted_by_the_papers_formula() {
        let cost = PassCost::new([(1, 1.0), (2, 1.25), (3, 1.5), (4, 2.0)]).unwrap();
        // alpha = 60 / 80 = 0.75 at depth 2: E = 1 + 0.75 + 0.5625; a round costs 1.5 + 2 * 0.25.
        let counts = PooledCounts { rounds: 50, drafted: 100, accepted: 60, resampled: 20, plain: 0 };
        assert!(close(predicted_speedup(&counts, 0.25, &cost), 2.3125 / 2.0));
    }

    #[test]
    fn plain_rounds_and_uneven_depths_are_mixed_in() {
        let cost = PassCost::new([(1, 1.0), (2, 1.25), (3, 1.5), (4, 2.0)]).unwrap();
        // Half of the rounds drafted 2.5 tokens each; alpha = 0.5.
        // E(2) = 1.75, E(3) = 1.875, so 1.8125 mixed with 1; cost 1.75 mixed with 1.
        let counts = PooledCounts { rounds: 40, drafted: 50, accepted: 15, resampled: 15, plain: 20 };
        assert!(close(predicted_speedup(&counts, 0.0, &cost), (1.8125 + 1.0) / (1.75 + 1.0)));
        let nothing = PooledCounts { rounds: 40, plain: 40, ..PooledCounts::default() };
        assert_eq!(predicted_speedup(&nothing, 0.0, &cost), Some(1.0));
        let untested = PooledCounts { rounds: 1, drafted: 4, ..PooledCounts::default() };
        assert_eq!(predicted_speedup(&untested, 0.0, &cost), None);
    }

    #[test]
    fn costs_are_medians_of_ratios_within_a_round() {
        let round = |one: f64, two: f64, draft: f64| CostRound {
            target: BTreeMap::from([(1, one), (2, two)]),
            draft: Some(draft),
        };
        // The machine is twice as slow in the third round; the ratios do not notice.
        let table =
            CostTable::new(&[round(1.0, 1.5, 0.25), round(1.0, 1.25, 0.5), round(2.0, 3.5, 0.5)]).unwrap();
        assert_eq!(table.target, BTreeMap::from([(1, 1.0), (2, 1.5)]));
        assert_eq!(table.draft, Some(0.25));
        assert_eq!(table.pass_cost().unwrap().at(2), 1.5);
        assert_eq!(table.draft_cost_of(Method::DraftModel), Some(0.25));
        assert_eq!(table.draft_cost_of(Method::Ngram), Some(0.0));
        let broken = CostTable::new(&[round(0.0, 1.0, 1.0)]).expect_err("no time for one row").to_string();
        assert!(broken.contains("a pass of one row of the target took 0 s"), "{broken}");
        assert!(CostTable::new(&[]).is_err());
        let alone = CostRound { target: BTreeMap::from([(1, 1.0)]), draft: None };
        assert_eq!(CostTable::new(&[alone]).unwrap().draft, None);
    }
}
