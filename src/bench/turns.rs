//! Turns, and the figures made of them: the one path from answers to a report.
//!
//! Shared by the benchmark ([`runner`](super::runner)) and the comparison ([`compare`](super::compare)).

use std::collections::BTreeMap;

use crate::bench::cost_table::CostTable;
use crate::bench::figures::{self, PooledWork, SPREAD};
use hunch_core::limits::MAX_SEED;
use hunch_core::method::Method;
use hunch_core::quantile::{median, quantile};
use hunch_core::sample::SamplingParams;
use hunch_core::stats::GenerationStats;
use hunch_core::token::TokenId;

/// One finished answer.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredAnswer {
    /// Figures of the answer.
    pub stats: GenerationStats,
    /// Tokens of the answer.
    pub ids: Vec<TokenId>,
}

impl AsRef<MeasuredAnswer> for MeasuredAnswer {
    fn as_ref(&self) -> &MeasuredAnswer {
        self
    }
}

/// The answers of all lanes to one prompt in one run.
pub(super) struct Turn<A = MeasuredAnswer> {
    /// Index of the prompt.
    pub(super) prompt: usize,
    /// Number of the run, from 0.
    pub(super) run: usize,
    /// Costs of passes timed around the turn.
    pub(super) costs: CostTable,
    /// Answers by lane. Lane 0 is plain decoding.
    pub(super) answers: Vec<A>,
}

impl<A: AsRef<MeasuredAnswer>> Turn<A> {
    /// Figures of a lane's answer.
    pub(super) fn stats(&self, lane: usize) -> &GenerationStats {
        &self.answers[lane].as_ref().stats
    }

    /// `ratio(plain, lane)` of this turn's answers.
    fn over_plain(&self, lane: usize, ratio: Ratio) -> Option<f64> {
        ratio(self.stats(0), self.stats(lane))
    }

    /// Predicted decode speedup of a lane. `None` when the cost of its drafter is unknown.
    fn predicted(&self, lane: usize, method: Method) -> Option<f64> {
        let [plain, own] = [0, lane].map(|lane| PooledWork::of(self.stats(lane)));
        self.costs.predicted_speedup(method, &plain, &own)
    }
}

/// A ratio of two answers, the first by plain decoding.
type Ratio = fn(&GenerationStats, &GenerationStats) -> Option<f64>;

/// The samples that medians and spreads are taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Samples {
    /// One per prompt: the median of its runs.
    Prompts,
    /// One per prompt, or one per run when there is a single prompt.
    PromptsOrRuns,
}

impl Samples {
    /// Samples of a figure. Turns without the figure are left out.
    fn of<A>(self, turns: &[Turn<A>], figure: impl Fn(&Turn<A>) -> Option<f64>) -> Vec<f64> {
        let mut runs: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for turn in turns {
            runs.entry(turn.prompt).or_default().extend(figure(turn));
        }
        if self == Self::PromptsOrRuns && runs.len() == 1 {
            return runs.into_values().flatten().collect();
        }
        runs.values().filter_map(|figures| median(figures)).collect()
    }
}

/// Figures of one lane over some turns.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LaneFigures {
    /// Decode tokens per second: median over the answers that have tokens.
    pub(super) tok_s: f64,
    /// Milliseconds to the first token: median over the answers.
    pub(super) ttft_ms: f64,
    /// Samples of the speedup.
    pub(super) speedups: Vec<f64>,
    /// Median speedup.
    pub(super) speedup: f64,
    /// 10th percentile of the speedup.
    pub(super) speedup_low: f64,
    /// 90th percentile of the speedup.
    pub(super) speedup_high: f64,
    /// Median speedup without prefill.
    pub(super) decode_speedup: f64,
    /// Median predicted speedup without prefill. `None` when the cost of the drafter is unknown.
    pub(super) predicted_speedup: Option<f64>,
    /// Median of measured / predicted speedup, each taken within a turn.
    pub(super) measured_over_predicted: Option<f64>,
    /// Counts, passes and times of all answers.
    pub(super) work: PooledWork,
}

impl LaneFigures {
    /// Computes the figures of a lane. `None` when no answer could be measured.
    pub(super) fn of<A: AsRef<MeasuredAnswer>>(
        turns: &[Turn<A>],
        lane: usize,
        method: Method,
        samples: Samples,
    ) -> Option<Self> {
        let mut work = PooledWork::default();
        turns.iter().for_each(|turn| work.add(turn.stats(lane)));
        let answered = turns.iter().map(|turn| turn.stats(lane)).filter(|stats| stats.generated_tokens > 0);
        let rates: Vec<f64> = answered.map(|stats| stats.decode_tok_s).collect();
        let waits: Vec<f64> = turns.iter().map(|turn| turn.stats(lane).ttft_ms).collect();
        let speedups = samples.of(turns, |turn| turn.over_plain(lane, figures::speedup));
        let decode = |turn: &Turn<A>| turn.over_plain(lane, figures::decode_speedup);
        let predicted = |turn: &Turn<A>| turn.predicted(lane, method);
        let off = samples.of(turns, |turn| Some(decode(turn)? / predicted(turn)?));
        Some(Self {
            tok_s: median(&rates)?,
            ttft_ms: median(&waits)?,
            speedup: median(&speedups)?,
            speedup_low: quantile(&speedups, SPREAD.0)?,
            speedup_high: quantile(&speedups, SPREAD.1)?,
            speedups,
            decode_speedup: median(&samples.of(turns, decode))?,
            predicted_speedup: median(&samples.of(turns, predicted)),
            measured_over_predicted: median(&off),
            work,
        })
    }
}

/// Sampling of a run: run 0 uses the given seed (0 when there is none), run 1 the next, and so on.
pub(super) fn sampling_of_run(sampling: &SamplingParams, run: usize) -> SamplingParams {
    let seed = sampling.seed.unwrap_or(0).wrapping_add(run as u64) & MAX_SEED;
    SamplingParams { seed: Some(seed), ..sampling.clone() }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use hunch_core::pass_cost::PassCost;

    pub(in crate::bench) fn turn(prompt: usize, run: usize, wall_ms: f64, ids: &[TokenId]) -> Turn {
        let answer = |wall_ms: f64, ids: &[TokenId]| MeasuredAnswer {
            stats: GenerationStats {
                generated_tokens: ids.len() as u32,
                wall_ms,
                decode_tok_s: 1e3 * ids.len() as f64 / wall_ms,
                ..GenerationStats::default()
            },
            ids: ids.to_vec(),
        };
        let costs = CostTable { target: PassCost::flat(), drafts: BTreeMap::new() };
        // Plain's second run differs from its first.
        let plain: &[TokenId] = if run == 0 { &[1, 2, 3, 4] } else { &[1, 2, 9, 4] };
        Turn { prompt, run, costs, answers: vec![answer(80.0, plain), answer(wall_ms, ids)] }
    }

    #[test]
    fn samples_are_prompts_or_runs_of_a_single_prompt() {
        let times = |turn: &Turn| Some(turn.stats(1).wall_ms);
        let ids = [1, 2, 3, 4];
        let one = [turn(0, 0, 20.0, &ids), turn(0, 1, 40.0, &ids), turn(0, 2, 90.0, &ids)];
        assert_eq!(Samples::Prompts.of(&one, times), [40.0]);
        assert_eq!(Samples::PromptsOrRuns.of(&one, times), [20.0, 40.0, 90.0]);
        let two = [turn(0, 0, 20.0, &ids), turn(1, 0, 40.0, &ids), turn(0, 1, 30.0, &ids)];
        assert_eq!(Samples::PromptsOrRuns.of(&two, times), [25.0, 40.0]);
        let figures = LaneFigures::of(&one, 1, Method::Ngram, Samples::PromptsOrRuns).unwrap();
        assert_eq!((figures.speedup, figures.speedups.len()), (2.0, 3));
        assert!(LaneFigures::of::<MeasuredAnswer>(&[], 1, Method::Ngram, Samples::Prompts).is_none());
    }

    #[test]
    fn runs_use_consecutive_seeds() {
        let seeds = |seed| {
            [0, 1].map(|run| sampling_of_run(&SamplingParams { seed, ..SamplingParams::greedy() }, run).seed)
        };
        assert_eq!(seeds(None), [Some(0), Some(1)]);
        assert_eq!(seeds(Some(MAX_SEED)), [Some(MAX_SEED), Some(0)]);
    }
}
