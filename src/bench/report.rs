//! The report of a benchmark: the object that `hunch bench --json` prints.

use std::collections::BTreeMap;

use hunch_library::speed_log::{MIN_TOKENS, Rates};
use serde::{Deserialize, Serialize};
use ts_rs::TS;

use crate::bench::MethodConfig;
use crate::bench::identity::IdentityReport;
use crate::bench::turns::LaneFigures;
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::rule::AcceptanceRule;

/// Result of a benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct BenchReport {
    /// t(M) / t(1) of the target by rows M: the cost of a pass in passes of one row.
    #[ts(type = "Record<string, number>")]
    pub target_cost: BTreeMap<usize, f64>,
    /// c: a draft pass over a target pass, one row each. `null` without a draft model.
    pub draft_cost: Option<f64>,
    /// One row per suite and method.
    pub methods: Vec<MethodReport>,
    /// "cpu" or "metal".
    pub device: String,
    /// CPU threads.
    pub threads: u32,
    /// Name of the target.
    pub target: String,
    /// Name of the draft model, if any.
    pub draft: Option<String>,
    /// Acceptance rule.
    pub rule: AcceptanceRule,
    /// Answers of each method to each prompt, without the warm-up.
    pub runs: u32,
    /// Most tokens of an answer.
    pub max_tokens: u32,
    /// Comparison of the methods' tokens. `null` above temperature 0, where answers only share a distribution.
    pub identity: Option<IdentityReport>,
}

/// Figures of one method on one suite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct MethodReport {
    /// The method.
    pub method: Method,
    /// Name of the suite.
    pub suite: String,
    /// Temperature of the answers.
    pub temperature: f32,
    /// Most tokens drafted a round; 0 for plain.
    pub max_draft: MaxDraft,
    /// Tokens per second after prefill: the median over all answers.
    pub tok_s: f64,
    /// Plain's wall time / this method's for the same prompt: the median over the prompts, each the median of its
    /// runs.
    pub speedup: f64,
    /// 10th percentile of the prompts' speedups.
    pub speedup_low: f64,
    /// 90th percentile of the prompts' speedups.
    pub speedup_high: f64,
    /// Speedup without prefill, comparable with `predicted_speedup`.
    pub decode_speedup: f64,
    /// Speedup without prefill, predicted from the tokens of the answers and the costs of passes timed separately.
    /// `null` when the cost of the drafter is unknown.
    pub predicted_speedup: Option<f64>,
    /// Measured / predicted speedup without prefill: the median over the prompts, each the median of its runs.
    pub measured_over_predicted: Option<f64>,
    /// Share of wall time outside prefill, drafting and target passes: the cost of the loop itself.
    pub loop_share: f64,
    /// accepted / drafted over all answers.
    pub acceptance_rate: f64,
    /// 1 + accepted / rounds over all answers.
    pub mean_acceptance_length: f64,
}

impl MethodReport {
    /// Creates a row from the figures of a lane.
    pub(super) fn new(suite: String, temperature: f32, config: MethodConfig, figures: &LaneFigures) -> Self {
        Self {
            method: config.method,
            suite,
            temperature,
            max_draft: config.drafts(),
            tok_s: figures.tok_s,
            speedup: figures.speedup,
            speedup_low: figures.speedup_low,
            speedup_high: figures.speedup_high,
            decode_speedup: figures.decode_speedup,
            predicted_speedup: figures.predicted_speedup,
            measured_over_predicted: figures.measured_over_predicted,
            loop_share: figures.work.loop_share().unwrap_or(0.0),
            acceptance_rate: figures.work.counts.acceptance_rate(),
            mean_acceptance_length: figures.work.counts.mean_acceptance_length(),
        }
    }
}

impl BenchReport {
    /// Returns the speeds of the models in this benchmark. Empty when answers were short. Draft speeds are not known.
    pub fn rates(&self) -> Rates {
        if self.max_tokens < MIN_TOKENS {
            return Rates::default();
        }
        Rates::of_methods(self.methods.iter().map(|row| (row.method, row.tok_s)), self.rule)
    }

    /// Appends a report of the same models and settings at another temperature. Costs stay those of the first.
    pub fn append(&mut self, other: Self) {
        self.methods.extend(other.methods);
        self.identity = match (self.identity.take(), other.identity) {
            (Some(mut identity), Some(more)) => {
                identity.extend(more);
                Some(identity)
            }
            (one, other) => one.or(other),
        };
    }
}

#[cfg(test)]
mod fixture;

#[cfg(test)]
mod tests {
    use super::fixture::report;
    use super::*;

    #[test]
    fn json_has_documented_field_names() {
        let json = serde_json::to_value(report()).unwrap();
        let names =
            |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(
            names(&json),
            [
                "target_cost",
                "draft_cost",
                "methods",
                "device",
                "threads",
                "target",
                "draft",
                "rule",
                "runs",
                "max_tokens",
                "identity"
            ]
        );
        assert_eq!(
            names(&json["methods"][1]),
            [
                "method",
                "suite",
                "temperature",
                "max_draft",
                "tok_s",
                "speedup",
                "speedup_low",
                "speedup_high",
                "decode_speedup",
                "predicted_speedup",
                "measured_over_predicted",
                "loop_share",
                "acceptance_rate",
                "mean_acceptance_length"
            ]
        );
        assert_eq!(names(&json["target_cost"]), (1..=16).map(|m| m.to_string()).collect::<Vec<_>>());
        assert_eq!(json["target_cost"]["1"], 1.0);
        assert_eq!(json["methods"][1]["method"], "draft-model");
        assert!(json["methods"][1]["predicted_speedup"].is_null());
        assert!(serde_json::to_string(&report()).unwrap().contains("\"temperature\":0.7,"));
        let back: BenchReport = serde_json::from_value(json).unwrap();
        assert_eq!(back, report());
    }

    #[test]
    fn appended_temperatures_make_one_report() {
        let mut all = report();
        let warm = BenchReport { identity: None, ..report() };
        all.append(warm);
        assert_eq!((all.methods.len(), all.identity.as_ref().map(|same| same.compared)), (4, Some(36)));
        all.append(report());
        assert_eq!((all.methods.len(), all.identity.unwrap().compared), (6, 72));
    }
}
