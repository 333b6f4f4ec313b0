//! What is made of many answers: quantiles, speedups of pairs, the
//! table of costs and the prediction. Pure arithmetic over the figures of [`hunch_core::stats`].

use std::collections::BTreeMap;

use serde::Serialize;

use hunch_core::method::Method;
use hunch_core::stats::{GenerationStats, PooledCounts};
use hunch_core::theory::PassCost;
use hunch_error::{Error, Result};

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

/// The mean, where none counts as more than twice the median: what other programs hold up for long says nothing of the
/// rest. `None` of nothing.
pub(super) fn typical_mean(values: &[f64]) -> Option<f64> {
    let most = 2.0 * median(values)?;
    Some(values.iter().map(|value| value.min(most)).sum::<f64>() / values.len() as f64)
}

/// A mean and how far chance may have moved it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Its standard error; `None` of a single text.
    pub error: Option<f64>,
}

/// The mean of all values of some texts. Values of one text say much the same, so the error is that of texts, not of
/// values: the square root of n / (n - 1) times the sum of each text's squared sum of deviations, over the number of
/// values. `None` of nothing.
pub fn mean_of_texts(texts: &[Vec<f64>]) -> Option<Estimate> {
    let texts: Vec<&[f64]> = texts.iter().map(Vec::as_slice).filter(|text| !text.is_empty()).collect();
    let count = texts.iter().map(|text| text.len()).sum::<usize>() as f64;
    let mean = texts.iter().copied().flatten().sum::<f64>() / count;
    let off = |text: &&[f64]| text.iter().map(|value| value - mean).sum::<f64>().powi(2);
    let between = texts.iter().map(off).sum::<f64>();
    let of_texts = texts.len() as f64 / (texts.len() as f64 - 1.0);
    let error = (texts.len() > 1).then(|| (of_texts * between).sqrt() / count);
    (!texts.is_empty()).then_some(Estimate { mean, error })
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

/// The work behind many answers: what a prediction is made from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PooledWork {
    /// Their counts.
    pub counts: PooledCounts,
    /// Target passes after prefill, by rows.
    pub target_passes: BTreeMap<usize, u64>,
    /// Passes of what drafted, by rows.
    pub draft_passes: BTreeMap<usize, u64>,
    /// Time after prefill that went neither into drafting nor into target passes, in milliseconds.
    pub loop_ms: f64,
    /// Wall time, in milliseconds.
    pub wall_ms: f64,
}

impl PooledWork {
    /// That behind one answer.
    pub fn of(stats: &GenerationStats) -> Self {
        let mut work = Self::default();
        work.add(stats);
        work
    }

    /// Adds an answer.
    pub fn add(&mut self, stats: &GenerationStats) {
        self.counts.add(stats);
        self.loop_ms += stats.verify_ms + stats.other_ms;
        self.wall_ms += stats.wall_ms;
        for (passes, more) in
            [(&mut self.target_passes, &stats.target_passes), (&mut self.draft_passes, &stats.draft_passes)]
        {
            for &(rows, count) in more {
                *passes.entry(rows as usize).or_default() += u64::from(count);
            }
        }
    }

    /// The share of wall time that the loop itself took; `None` of nothing.
    pub fn loop_share(&self) -> Option<f64> {
        (self.wall_ms > 0.0).then(|| self.loop_ms / self.wall_ms)
    }
}

/// The measured costs of passes, as ratios to the target's pass of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct CostTable {
    /// t(M) / t(1) of the target by rows M: all rounds together, as an answer's time is all its passes together.
    pub target: BTreeMap<usize, f64>,
    /// The same for passes of what drafts, by [`Method::drafter`].
    pub drafts: BTreeMap<Method, BTreeMap<usize, f64>>,
}

/// The times of one round of the cost table, in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CostRound {
    /// The target's, by rows.
    pub target: BTreeMap<usize, f64>,
    /// Those of what drafts, by [`Method::drafter`] and rows.
    pub drafts: BTreeMap<Method, BTreeMap<usize, f64>>,
}

impl CostTable {
    /// Ratios of what the passes took in all rounds. A median would not do: times are skewed, those of short passes most,
    /// and an answer has the slow ones among its own. Yet none counts as more than twice the median of its kind.
    ///
    /// # Errors
    /// [`Error::Internal`] when a time is missing or not a positive number.
    pub fn new(rounds: &[CostRound]) -> Result<Self> {
        let mut target: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        let mut drafts: BTreeMap<Method, BTreeMap<usize, Vec<f64>>> = BTreeMap::new();
        for round in rounds {
            for (&rows, &time) in &round.target {
                target.entry(rows).or_default().push(time);
            }
            for (&method, times) in &round.drafts {
                for (&rows, &time) in times {
                    drafts.entry(method).or_default().entry(rows).or_default().push(time);
                }
            }
        }
        let one = target.get(&1).and_then(|times| typical_mean(times)).unwrap_or(f64::NAN);
        let relative = |what: &str, times: &BTreeMap<usize, Vec<f64>>| -> Result<BTreeMap<usize, f64>> {
            let of = |(&rows, times): (&usize, &Vec<f64>)| {
                let time = typical_mean(times).unwrap_or(f64::NAN);
                let relative = ratio(time, one).ok_or_else(|| {
                    Error::Internal(format!(
                        "a pass of {rows} rows of the {what} took {time} s where a pass of one row of the target \
                         took {one} s"
                    ))
                });
                Ok((rows, relative?))
            };
            times.iter().map(of).collect()
        };
        let target = relative("target", &target)?;
        let drafts = drafts.iter().map(|(&method, times)| Ok((method, relative("draft", times)?)));
        let drafts = drafts.collect::<Result<_>>()?;
        if !target.contains_key(&1) {
            return Err(Error::Internal("no pass of the target was measured".into()));
        }
        Ok(Self { target, drafts })
    }

    /// c: the draft model's pass of one row over the target's. `None` without a draft model.
    pub fn draft_cost(&self) -> Option<f64> {
        self.drafts.get(&Method::DraftModel)?.get(&1).copied()
    }

    /// What the costs predict for the speedup of decoding over plain's answer to the same prompt: the tokens that came
    /// over what the passes they took cost by this table, of both. An answer's last pass may give a token that is none
    /// of the answer: it costs, and counts for nothing. `None` when the cost of what drafted was not measured.
    pub fn predicted_speedup(&self, method: Method, plain: &PooledWork, other: &PooledWork) -> Option<f64> {
        ratio(self.predicted_rate(method, other)?, self.predicted_rate(Method::Plain, plain)?)
    }

    /// Tokens for the time of a target pass of one row.
    fn predicted_rate(&self, method: Method, work: &PooledWork) -> Option<f64> {
        let cost = |table: &BTreeMap<usize, f64>, passes: &BTreeMap<usize, u64>| {
            let shape = PassCost::new(table.iter().map(|(&rows, &t)| (rows, t))).ok()?;
            let relative: f64 = passes.iter().map(|(&rows, &count)| count as f64 * shape.at(rows)).sum();
            Some(relative * table.get(&1)?)
        };
        let drafting = match method.drafter() {
            Some(drafter) if !work.draft_passes.is_empty() => {
                cost(self.drafts.get(&drafter)?, &work.draft_passes)?
            }
            _ => 0.0,
        };
        ratio(work.counts.generated as f64, cost(&self.target, &work.target_passes)? + drafting)
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
    fn texts_vary_not_values() {
        let alike = mean_of_texts(&[vec![1.0; 4], vec![3.0; 4]]).unwrap();
        // Two texts, whatever their length: deviations of 1 from a mean of 2, over the root of 2 times 1.
        assert_eq!(alike.mean, 2.0);
        assert!(close(alike.error, 1.0));
        let single = mean_of_texts(&[vec![1.0, 2.0], Vec::new()]).unwrap();
        assert_eq!((single.mean, single.error), (1.5, None));
        assert_eq!(mean_of_texts(&[Vec::new()]), None);
        // One value a text: the textbook's standard error.
        let values = [vec![1.0], vec![2.0], vec![6.0]];
        assert!(close(mean_of_texts(&values).unwrap().error, (7.0f64 / 3.0).sqrt()));
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

    fn work(generated: u64, target: &[(usize, u64)], draft: &[(usize, u64)]) -> PooledWork {
        PooledWork {
            counts: PooledCounts { generated, ..PooledCounts::default() },
            target_passes: target.iter().copied().collect(),
            draft_passes: draft.iter().copied().collect(),
            ..PooledWork::default()
        }
    }

    #[test]
    fn a_prediction_is_tokens_over_the_cost_of_their_passes() {
        let table = CostTable {
            target: BTreeMap::from([(1, 1.0), (2, 1.25), (3, 1.5), (4, 2.0)]),
            drafts: BTreeMap::from([(Method::DraftModel, BTreeMap::from([(1, 0.25), (2, 0.375)]))]),
        };
        let plain = work(40, &[(1, 40)], &[]);
        // 50 rounds of two drafted tokens, 60 of them accepted: 110 tokens. Each round is a target pass of
        // three rows and two passes of the draft.
        let chain = work(110, &[(3, 50)], &[(1, 100)]);
        let predicted = |method| table.predicted_speedup(method, &plain, &chain);
        assert!(close(predicted(Method::DraftModel), 110.0 / (50.0 * 1.5 + 100.0 * 0.25)));
        assert_eq!(predicted(Method::DraftTree), predicted(Method::DraftModel), "the same model drafts");
        assert_eq!(predicted(Method::LowBit), None, "another one, not measured");
        let lookup = work(110, &[(3, 50)], &[]);
        assert!(close(table.predicted_speedup(Method::Ngram, &plain, &lookup), 110.0 / 75.0));
        // Rounds without a draft are plain passes, a prompt that the draft reads is a pass of many rows.
        let mixed = work(55, &[(1, 20), (2, 20)], &[(1, 20), (4, 1)]);
        let cost = 20.0 + 20.0 * 1.25 + 20.0 * 0.25 + (0.375 + 2.0 * 0.125);
        assert!(close(table.predicted_speedup(Method::Cascade, &plain, &mixed), 55.0 / cost));
        assert_eq!(table.predicted_speedup(Method::Plain, &plain, &plain), Some(1.0));
        assert_eq!(table.predicted_speedup(Method::LowBit, &plain, &plain), Some(1.0), "it never drafted");
        assert_eq!(table.predicted_speedup(Method::Plain, &plain, &PooledWork::default()), None);
        // The last pass of each gave the end of the turn: of 40 passes one, of 20 also one.
        let ended = work(39, &[(1, 40)], &[]);
        let drafted = work(59, &[(3, 20)], &[]);
        let predicted = table.predicted_speedup(Method::Ngram, &ended, &drafted);
        assert!(close(predicted, (59.0 / 30.0) / (39.0 / 40.0)));
    }

    #[test]
    fn work_is_pooled_by_rows() {
        let mut pooled = PooledWork::default();
        for passes in [vec![(1, 2), (3, 4)], vec![(3, 1)]] {
            pooled.add(&GenerationStats {
                rounds: 5,
                target_passes: passes.clone(),
                draft_passes: passes,
                verify_ms: 2.0,
                other_ms: 1.0,
                wall_ms: 50.0,
                ..GenerationStats::default()
            });
        }
        assert!(close(pooled.loop_share(), 0.06));
        assert_eq!(pooled.target_passes, BTreeMap::from([(1, 2), (3, 5)]));
        assert_eq!((pooled.counts.rounds, pooled.draft_passes), (10, BTreeMap::from([(1, 2), (3, 5)])));
    }

    #[test]
    fn costs_are_of_all_rounds_together() {
        let round = |one: f64, two: f64, draft: f64| CostRound {
            target: BTreeMap::from([(1, one), (2, two)]),
            drafts: BTreeMap::from([(Method::DraftModel, BTreeMap::from([(1, draft)]))]),
        };
        // The machine is slower in the third round; it says the more, as it does of an answer.
        let table =
            CostTable::new(&[round(1.0, 1.5, 0.25), round(1.0, 1.25, 0.25), round(2.0, 2.25, 0.5)]).unwrap();
        assert_eq!(table.target.len(), 2);
        assert!(close(table.target.get(&1).copied(), 1.0) && close(table.target.get(&2).copied(), 1.25));
        assert!(close(table.draft_cost(), 0.25));
        // A pass that something else held up counts as twice as long as others, however long it took.
        let held =
            |one: f64| CostTable::new(&[round(1.0, 1.5, 0.5), round(1.0, 1.5, 0.5), round(one, 3.0, 0.5)]);
        assert_eq!(held(9.0).unwrap(), held(2.0).unwrap());
        assert!(close(held(9.0).unwrap().target.get(&2).copied(), 1.5));
        let broken = CostTable::new(&[round(0.0, 1.0, 1.0)]).expect_err("no time for one row").to_string();
        assert!(broken.contains("a pass of 1 rows of the target took 0 s"), "{broken}");
        assert!(CostTable::new(&[]).is_err());
        let alone = CostRound { target: BTreeMap::from([(1, 1.0)]), drafts: BTreeMap::new() };
        assert_eq!(CostTable::new(&[alone]).unwrap().draft_cost(), None);
    }
}
