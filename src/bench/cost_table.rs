//! Costs of passes during a benchmark, for predictions.
//!
//! Knows no model and no clock. The caller passes a [`PassBench`].

use std::collections::{BTreeMap, BTreeSet};

use crate::bench::MethodConfig;
use crate::bench::figures::{PooledWork, ratio};
use hunch_core::limits::MAX_ROWS;
use hunch_core::method::Method;
use hunch_core::pass_cost::PassCost;
use hunch_core::propose::{MethodOptions, Stage};
use hunch_error::{Error, Result};
use hunch_model::pass_timer::{PassTimer, PassTimes, TimingObserver};

/// Rows of target passes that are always timed: 1 to this many.
const COST_ROWS: usize = 9;

/// Rows of the draft passes that are timed: chains, levels of a tree, and reading the prompt.
pub const DRAFT_ROWS: [usize; 5] = [1, 2, 4, 8, READING];
/// Rows of a pass that reads a prompt and computes no logits.
pub const READING: usize = 32;

/// Single-row passes per round. All ratios refer to the target's, and drafting consists mostly of the draft
/// model's, so their times need more samples than others.
const ONES: usize = 3;

/// Times single passes.
pub trait PassBench {
    /// Seconds of one target pass of `rows` rows.
    ///
    /// # Errors
    /// When the pass fails.
    fn target_pass(&mut self, rows: usize) -> Result<f64>;

    /// Seconds of one pass of `rows` rows of a drafter ([`Method::drafter`]). `None` when it is not loaded.
    ///
    /// # Errors
    /// When the pass fails.
    fn draft_pass(&mut self, drafter: Method, options: &MethodOptions, rows: usize) -> Result<Option<f64>>;
}

/// The measured costs of passes, in target passes of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct CostTable {
    /// Target passes.
    pub target: PassCost,
    /// Draft passes by [`Method::drafter`].
    pub drafts: BTreeMap<Method, PassCost>,
}

impl CostTable {
    /// Computes costs from the times of some rounds.
    ///
    /// Means, not medians: times are skewed, those of short passes most, and an answer contains the slow ones too.
    ///
    /// # Errors
    /// [`Error::Internal`] when a time is missing or not a positive number.
    fn new(times: &PassTimes<'_, TimedPass>, passes: &BTreeSet<TimedPass>) -> Result<Self> {
        let mut means: BTreeMap<Option<Method>, Vec<(usize, f64)>> = BTreeMap::new();
        for pass in passes {
            if let Some(time) = times.typical_mean(pass) {
                means.entry(pass.drafter).or_default().push((pass.rows, time));
            }
        }
        let internal = |error: hunch_core::error::Error| Error::Internal(error.to_string());
        let target_times = means.remove(&None).unwrap_or_default();
        let one = target_times.first().map_or(f64::NAN, |&(_, time)| time);
        let target = PassCost::new(target_times).map_err(internal)?;
        let mut drafts = BTreeMap::new();
        for (drafter, times) in means {
            if let Some(drafter) = drafter {
                drafts.insert(drafter, PassCost::in_units_of(one, times).map_err(internal)?);
            }
        }
        Ok(Self { target, drafts })
    }

    /// c: a pass of the draft model over a pass of the target, one row each. `None` without a draft model.
    pub fn draft_cost(&self) -> Option<f64> {
        Some(self.drafts.get(&Method::DraftModel)?.at(1))
    }

    /// t(M) / t(1) of the target by the rows that were measured.
    pub fn target_cost(&self) -> BTreeMap<usize, f64> {
        self.target.points().collect()
    }

    /// Predicted decode speedup of an answer over plain decoding's answer to the same prompt.
    ///
    /// Tokens of the answer over the summed cost of its passes, divided by the same for plain decoding. The last pass
    /// of an answer may yield a token that is not part of it; the pass still costs. `None` when the passes of the
    /// drafter were not measured.
    pub fn predicted_speedup(&self, method: Method, plain: &PooledWork, other: &PooledWork) -> Option<f64> {
        ratio(self.predicted_rate(method, other)?, self.predicted_rate(Method::Plain, plain)?)
    }

    /// Tokens per target pass of one row.
    fn predicted_rate(&self, method: Method, work: &PooledWork) -> Option<f64> {
        let total = |cost: &PassCost, passes: &BTreeMap<usize, u64>| {
            cost.total(passes.iter().map(|(&rows, &count)| (rows, count)))
        };
        let drafting = if work.draft_passes.is_empty() {
            0.0
        } else {
            // Passes are counted without their model, so only one may have been timed.
            let mut timed = method.drafters().filter_map(|drafter| self.drafts.get(&drafter));
            let cost = timed.next().filter(|_| timed.next().is_none())?;
            total(cost, &work.draft_passes)
        };
        ratio(work.counts.generated as f64, total(&self.target, &work.target_passes) + drafting)
    }
}

/// A pass of the cost table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TimedPass {
    /// The drafter. `None` is the target.
    drafter: Option<Method>,
    rows: usize,
}

/// Times the passes that some methods need, whenever it is asked to.
pub(super) struct CostTimer<'a> {
    options: &'a MethodOptions,
    passes: BTreeSet<TimedPass>,
    timer: PassTimer<TimedPass>,
}

impl<'a> CostTimer<'a> {
    /// Creates a timer of the target's passes and of the passes of every drafter of `configs`.
    pub(super) fn new(configs: &[MethodConfig], options: &'a MethodOptions) -> Self {
        let target = |rows| TimedPass { drafter: None, rows };
        let mut ones = vec![target(1)];
        let mut wider: Vec<_> = (2..=cost_rows(configs)).map(target).collect();
        let drafters: BTreeSet<Method> = configs.iter().flat_map(|c| c.method.drafters()).collect();
        for drafter in drafters.into_iter().chain([Method::DraftModel]).collect::<BTreeSet<_>>() {
            // The target's own layers draft chains only, and have read what the target has read.
            let own_layers = matches!(drafter.model_stage(), Some(Stage::TargetLayers { .. }));
            let rows = if own_layers { &DRAFT_ROWS[..1] } else { &DRAFT_ROWS[..] };
            let passes = rows.iter().map(|&rows| TimedPass { drafter: Some(drafter), rows });
            let (one, more): (Vec<_>, Vec<_>) = passes.partition(|pass| pass.rows == 1);
            ones.extend(one);
            wider.extend(more);
        }
        let parts = wider.chunks(wider.len().div_ceil(ONES));
        let order: Vec<TimedPass> = parts.flat_map(|part| ones.iter().chain(part)).copied().collect();
        Self { options, passes: order.iter().copied().collect(), timer: PassTimer::new(order) }
    }

    /// Times `rounds` more rounds, after a warm-up the first time. Returns false if it was stopped.
    ///
    /// # Errors
    /// When a pass fails.
    pub(super) fn run(
        &mut self,
        bench: &mut dyn PassBench,
        rounds: usize,
        watch: TimingObserver<'_>,
    ) -> Result<bool> {
        let options = self.options;
        let mut time = |_: usize, pass: &TimedPass| match pass.drafter {
            None => bench.target_pass(pass.rows).map(Some),
            Some(drafter) => bench.draft_pass(drafter, options, pass.rows),
        };
        self.timer.run(rounds, &mut time, watch)
    }

    /// Times `rounds` more rounds, to the end.
    ///
    /// # Errors
    /// When a pass fails.
    pub(super) fn run_all(&mut self, bench: &mut dyn PassBench, rounds: usize) -> Result<()> {
        self.run(bench, rounds, TimingObserver { on_round: &mut |_, _| (), stopped: &|| false })?;
        Ok(())
    }

    /// Number of rounds timed so far.
    pub(super) fn rounds(&self) -> usize {
        self.timer.rounds()
    }

    /// Costs by the rounds after the first `from`.
    ///
    /// # Errors
    /// [`Error::Internal`] when a time is missing or not a positive number.
    pub(super) fn since(&self, from: usize) -> Result<CostTable> {
        CostTable::new(&self.timer.since(from), &self.passes)
    }
}

/// Most rows of a target pass that these methods make.
fn cost_rows(configs: &[MethodConfig]) -> usize {
    let rows = |c: &MethodConfig| (1 + c.drafts().limit() + c.method.extra_rows()).min(MAX_ROWS);
    configs.iter().map(rows).fold(COST_ROWS, usize::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hunch_core::stats::PooledCounts;

    fn close(a: Option<f64>, b: f64) -> bool {
        a.is_some_and(|a| (a - b).abs() < 1e-12)
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
    fn predicts_tokens_over_the_cost_of_their_passes() {
        let draft = PassCost::in_units_of(1.0, [(1, 0.25), (2, 0.375)]).unwrap();
        let table = CostTable {
            target: PassCost::new([(1, 1.0), (2, 1.25), (3, 1.5), (4, 2.0)]).unwrap(),
            drafts: BTreeMap::from([(Method::DraftModel, draft)]),
        };
        let plain = work(40, &[(1, 40)], &[]);
        // 50 rounds of two drafted tokens, 60 of them accepted: 110 tokens. Each round is a target pass of
        // three rows and two draft passes.
        let chain = work(110, &[(3, 50)], &[(1, 100)]);
        let predicted = |method| table.predicted_speedup(method, &plain, &chain);
        assert!(close(predicted(Method::DraftModel), 110.0 / (50.0 * 1.5 + 100.0 * 0.25)));
        assert_eq!(predicted(Method::DraftTree), predicted(Method::DraftModel), "the same model drafts");
        assert_eq!(predicted(Method::LowBit), None, "another drafter, not measured");
        let lookup = work(110, &[(3, 50)], &[]);
        assert!(close(table.predicted_speedup(Method::Ngram, &plain, &lookup), 110.0 / 75.0));
        // Rounds without a draft are plain passes. The draft reads its prompt in a wide pass.
        let mixed = work(55, &[(1, 20), (2, 20)], &[(1, 20), (4, 1)]);
        let cost = 20.0 + 20.0 * 1.25 + 20.0 * 0.25 + (0.375 + 2.0 * 0.125);
        assert!(close(table.predicted_speedup(Method::Cascade, &plain, &mixed), 55.0 / cost));
        assert_eq!(table.predicted_speedup(Method::Plain, &plain, &plain), Some(1.0));
        assert_eq!(table.predicted_speedup(Method::LowBit, &plain, &plain), Some(1.0), "it never drafted");
        assert_eq!(table.predicted_speedup(Method::Plain, &plain, &PooledWork::default()), None);
        // The last pass of both answers yields the end-of-turn token, which is not counted.
        let ended = work(39, &[(1, 40)], &[]);
        let drafted = work(59, &[(3, 20)], &[]);
        let predicted = table.predicted_speedup(Method::Ngram, &ended, &drafted);
        assert!(close(predicted, (59.0 / 30.0) / (39.0 / 40.0)));
    }

    /// Passes of known times: one and two rows of the target, one row of the draft, by round.
    struct Known<'a>(&'a [[f64; 3]], usize);

    impl Known<'_> {
        fn table(rounds: &[[f64; 3]]) -> Result<CostTable> {
            let target = |rows| TimedPass { drafter: None, rows };
            let draft = TimedPass { drafter: Some(Method::DraftModel), rows: 1 };
            let passes = vec![target(1), target(2), draft];
            let mut timer = PassTimer::new(passes.clone());
            let mut known = Known(rounds, 0);
            let mut time = |number: usize, pass: &TimedPass| {
                known.1 = number.saturating_sub(1);
                let column = passes.iter().position(|other| other == pass).unwrap();
                Ok(known.0.get(known.1).map(|times| times[column]).filter(|time| *time >= 0.0))
            };
            timer.run(
                rounds.len(),
                &mut time,
                TimingObserver { on_round: &mut |_, _| (), stopped: &|| false },
            )?;
            CostTable::new(&timer.since(0), &passes.into_iter().collect())
        }
    }

    #[test]
    fn costs_pool_all_rounds_and_clamp_outliers() {
        // The third round is slower. It weighs more, as slow passes do in an answer.
        let table = Known::table(&[[1.0, 1.5, 0.25], [1.0, 1.25, 0.25], [2.0, 2.25, 0.5]]).unwrap();
        assert_eq!(table.target_cost().len(), 2);
        assert!(close(Some(table.target.at(1)), 1.0) && close(Some(table.target.at(2)), 1.25));
        assert!(close(table.draft_cost(), 0.25));
        // A stalled pass counts at most twice the median.
        let stalled = |one: f64| Known::table(&[[1.0, 1.5, 0.5], [1.0, 1.5, 0.5], [one, 3.0, 0.5]]).unwrap();
        assert_eq!(stalled(9.0), stalled(2.0));
        assert!(close(Some(stalled(9.0).target.at(2)), 1.5));
        // No draft model: its passes give no time.
        assert_eq!(Known::table(&[[1.0, 1.5, -1.0]]).unwrap().draft_cost(), None);
    }

    #[test]
    fn rejects_missing_or_zero_times() {
        let error = Known::table(&[[0.0, 1.0, 1.0]]).expect_err("no time for one row").to_string();
        assert!(error.contains("A pass of 1 rows took 0"), "{error}");
        assert!(Known::table(&[]).is_err());
    }
}
