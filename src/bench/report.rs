//! What a bench says: the object `hunch bench --json` ends with, and the same as a table for a
//! terminal. Nothing is measured or computed here.

use std::collections::BTreeMap;
use std::fmt::Write;

use hunch_library::speed_log::{MIN_TOKENS, Rates};
use serde::{Deserialize, Serialize};
use ts_rs::TS;

use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::rule::AcceptanceRule;

/// Differences listed in the table; the JSON has all of them.
const DIFFERENCES_SHOWN: usize = 5;

/// Everything a bench found out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct BenchReport {
    /// t(M) / t(1) of the target by rows M: what a pass of M rows costs in passes of one.
    #[ts(type = "Record<string, number>")]
    pub target_cost: BTreeMap<usize, f64>,
    /// c: a pass of the draft model over one of the target, one row each. `null` without a draft.
    pub draft_cost: Option<f64>,
    /// A row for each suite and method.
    pub methods: Vec<MethodReport>,
    /// "cpu" or "metal".
    pub device: String,
    /// CPU threads.
    pub threads: u32,
    /// Name of the target.
    pub target: String,
    /// Name of the draft model, if there is one.
    pub draft: Option<String>,
    /// Which drafted tokens stood.
    pub rule: AcceptanceRule,
    /// How often each prompt was answered with each method, the warm-up not counted.
    pub runs: u32,
    /// Most tokens of an answer.
    pub max_tokens: u32,
    /// Whether the methods' answers are the same tokens; `null` above temperature 0, where they
    /// only follow the same distribution.
    pub identity: Option<IdentityReport>,
}

/// One method on one suite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct MethodReport {
    /// The method.
    pub method: Method,
    /// The suite's name.
    pub suite: String,
    /// Temperature of the answers.
    pub temperature: f32,
    /// Most tokens drafted a round; 0 for plain.
    pub max_draft: MaxDraft,
    /// Tokens a second after prefill: the median over all answers.
    pub tok_s: f64,
    /// Plain wall time / this method's for the same prompt: the median over the prompts, each the
    /// median of its runs.
    pub speedup: f64,
    /// 10th percentile of the prompts' speedups.
    pub speedup_low: f64,
    /// 90th percentile of the prompts' speedups.
    pub speedup_high: f64,
    /// The same for decoding alone: this method's decode tok/s / plain's. What
    /// `predicted_speedup` is to be compared with, for theory knows no prefill.
    pub decode_speedup: f64,
    /// What the measured tokens a pass and the costs of passes, measured alone, predict for it; `null` when
    /// the cost of what drafts is unknown.
    pub predicted_speedup: Option<f64>,
    /// Measured over predicted speedup of decoding: the median over the prompts of each one's own ratio, the median of
    /// its runs.
    pub measured_over_predicted: Option<f64>,
    /// The share of wall time that went neither into prefill, nor drafting, nor target passes: what the loop
    /// itself costs.
    pub loop_share: f64,
    /// accepted / drafted over all answers.
    pub acceptance_rate: f64,
    /// 1 + accepted / rounds over all answers.
    pub mean_acceptance_length: f64,
}

/// Whether greedy answers are the same, token for token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct IdentityReport {
    /// Answers compared with the prompt's first plain answer.
    pub compared: u32,
    /// Those that differ.
    pub differences: Vec<Difference>,
}

/// An answer that differs from plain's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct Difference {
    /// The suite.
    pub suite: String,
    /// The prompt's id.
    pub prompt: String,
    /// The method.
    pub method: Method,
    /// Most tokens drafted a round; 0 for plain.
    pub max_draft: MaxDraft,
    /// Number of the run, from 0.
    pub run: u32,
    /// The first token that differs, from 0; the shorter length when one answer begins the other.
    pub position: u32,
}

impl BenchReport {
    /// Speeds of the models in this bench, nothing where answers were short. It has no times of drafting.
    pub fn rates(&self) -> Rates {
        if self.max_tokens < MIN_TOKENS {
            return Rates::default();
        }
        Rates::of_methods(self.methods.iter().map(|row| (row.method, row.tok_s)), self.rule)
    }

    /// Adds what was measured right after, by the same models and settings at another temperature. Costs stay those
    /// of the first.
    pub fn append(&mut self, after: Self) {
        self.methods.extend(after.methods);
        self.identity = match (self.identity.take(), after.identity) {
            (Some(mut identity), Some(more)) => {
                identity.compared += more.compared;
                identity.differences.extend(more.differences);
                Some(identity)
            }
            (one, other) => one.or(other),
        };
    }

    /// The report for a terminal, 100 columns wide, with a line break at its end.
    pub fn table(&self) -> String {
        let mut text = String::new();
        self.write_setting(&mut text);
        self.write_costs(&mut text);
        self.write_methods(&mut text);
        self.write_notes(&mut text);
        text
    }

    fn write_setting(&self, text: &mut String) {
        let draft = self.draft.as_deref().unwrap_or("none");
        let threads = count(self.threads, "thread");
        line(
            text,
            format_args!("target  {}\ndraft   {draft}\ndevice  {}, {threads}", self.target, self.device),
        );
        if self.rule != AcceptanceRule::Lossless {
            line(text, format_args!("rule    {}", self.rule));
        }
    }

    fn write_costs(&self, text: &mut String) {
        line(text, format_args!("\nCost of a target pass by its rows M, in passes of one row"));
        let (mut rows, mut costs) = (format!("{:<10}", "M"), format!("{:<10}", "t(M)/t(1)"));
        for (m, cost) in &self.target_cost {
            rows += &format!("{m:>5}");
            costs += &format!("{cost:>5.2}");
        }
        line(text, format_args!("{rows}\n{costs}"));
        if let Some(c) = self.draft_cost {
            line(text, format_args!("c = {c:.3}: a pass of the draft model, one row"));
        }
    }

    fn write_methods(&self, text: &mut String) {
        let width = self.methods.iter().map(|m| m.suite.chars().count()).max().unwrap_or(0).clamp(5, 20);
        line(
            text,
            format_args!(
                "\n{:<width$}  {:<11} {:>4} {:>5} {:>7} {:>8} {:>13} {:>7} {:>9} {:>8} {:>6} {:>5}",
                "suite",
                "method",
                "K",
                "temp",
                "tok/s",
                "speedup",
                "p10-p90",
                "decode",
                "predicted",
                "accepted",
                "tokens",
                "loop"
            ),
        );
        for row in &self.methods {
            let suite: String = row.suite.chars().take(width).collect();
            let plain = row.method == Method::Plain;
            let or_dash = |value: String| if plain { "-".to_owned() } else { value };
            line(
                text,
                format_args!(
                    "{suite:<width$}  {:<11} {:>4} {:>5} {:>7.1} {:>8} {:>13} {:>7} {:>9} {:>8} {:>6.2} {:>5}",
                    row.method.name(),
                    or_dash(row.max_draft.to_string()),
                    row.temperature,
                    row.tok_s,
                    format!("{:.2}x", row.speedup),
                    or_dash(format!("{:.2}-{:.2}x", row.speedup_low, row.speedup_high)),
                    format!("{:.2}x", row.decode_speedup),
                    row.predicted_speedup.map_or("-".to_owned(), |s| or_dash(format!("{s:.2}x"))),
                    or_dash(format!("{:.1}%", row.acceptance_rate * 100.0)),
                    row.mean_acceptance_length,
                    format!("{:.1}%", row.loop_share * 100.0),
                ),
            );
        }
    }

    fn write_notes(&self, text: &mut String) {
        let runs = count(self.runs, "run");
        let tokens = count(self.max_tokens, "token");
        line(
            text,
            format_args!(
                "\nspeedup    plain wall time / this method's, same prompt, both warm: median over the\n           \
                 prompts ({runs} each, at most {tokens} an answer), and 10th to 90th percentile\n\
                 decode     the same without prefill\n\
                 predicted  for decoding, from the tokens of the answers and the costs of passes measured alone\n\
                 accepted   share of the drafted tokens\n\
                 tokens     emitted per target pass (mean acceptance length)\n\
                 loop       share of wall time besides prefill, drafting and target passes"
            ),
        );
        if self.identity.is_none() || self.methods.iter().any(|row| row.temperature > 0.0) {
            line(
                text,
                format_args!(
                    "Above temperature 0 answers differ in length; plain's time is scaled to the tokens of the other."
                ),
            );
        }
        self.write_extremes(text);
        self.write_depths(text);
        if let Some(identity) = &self.identity {
            write_identity(text, identity);
        }
    }

    /// The row that is slowest, and how far predictions were off.
    fn write_extremes(&self, text: &mut String) {
        let others = || self.methods.iter().filter(|row| row.method != Method::Plain);
        if let Some(slowest) = others().min_by(|a, b| a.speedup.total_cmp(&b.speedup)) {
            let MethodReport { speedup, method, max_draft, suite, temperature, .. } = slowest;
            line(
                text,
                format_args!(
                    "Slowest: {speedup:.2}x, {method} with K = {max_draft} on {suite} at temperature {temperature}."
                ),
            );
        }
        let off = others().filter_map(|row| row.measured_over_predicted);
        if let Some((least, most)) = off.fold(None, |spread: Option<(f64, f64)>, off| {
            Some(spread.map_or((off, off), |(least, most)| (least.min(off), most.max(off))))
        }) {
            line(
                text,
                format_args!(
                    "Decode measured / predicted: {least:.2} to {most:.2}, each row the median of its prompts."
                ),
            );
        }
    }

    /// How near `auto` came to the best of the fixed depths that were measured beside it.
    fn write_depths(&self, text: &mut String) {
        for auto in self.methods.iter().filter(|row| row.max_draft == MaxDraft::Auto) {
            let beside = self.methods.iter().filter(|row| {
                row.method == auto.method
                    && row.suite == auto.suite
                    && row.temperature == auto.temperature
                    && row.max_draft != MaxDraft::Auto
            });
            let Some(best) = beside.max_by(|a, b| a.speedup.total_cmp(&b.speedup)) else { continue };
            line(
                text,
                format_args!(
                    "{} on {} at temperature {}: auto is at {:.0}% of the best fixed depth, K = {}.",
                    auto.method,
                    auto.suite,
                    auto.temperature,
                    100.0 * auto.speedup / best.speedup,
                    best.max_draft
                ),
            );
        }
    }
}

fn write_identity(text: &mut String, identity: &IdentityReport) {
    let compared = count(identity.compared, "answer");
    if identity.differences.is_empty() {
        line(text, format_args!("Greedy identity: {compared} compared, every token equal to plain's."));
        return;
    }
    let different = identity.differences.len();
    line(text, format_args!("Greedy identity FAILED: {different} of {compared} differ from plain's."));
    for d in identity.differences.iter().take(DIFFERENCES_SHOWN) {
        line(
            text,
            format_args!(
                "  {} / {}: {} with K = {}, run {}, from token {}",
                d.suite,
                d.prompt,
                d.method,
                d.max_draft,
                d.run + 1,
                d.position
            ),
        );
    }
    if different > DIFFERENCES_SHOWN {
        line(text, format_args!("  and {} more", different - DIFFERENCES_SHOWN));
    }
}

fn line(text: &mut String, content: std::fmt::Arguments<'_>) {
    writeln!(text, "{content}").expect("a String takes every text");
}

fn count(number: u32, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> BenchReport {
        let plain = MethodReport {
            method: Method::Plain,
            suite: "code".into(),
            temperature: 0.0,
            max_draft: MaxDraft::Fixed(0),
            tok_s: 81.5,
            speedup: 1.0,
            speedup_low: 1.0,
            speedup_high: 1.0,
            decode_speedup: 1.0,
            predicted_speedup: Some(1.0),
            measured_over_predicted: Some(1.0),
            loop_share: 0.004,
            acceptance_rate: 0.0,
            mean_acceptance_length: 1.0,
        };
        let draft = MethodReport {
            method: Method::DraftModel,
            temperature: 0.7,
            max_draft: MaxDraft::Fixed(4),
            tok_s: 120.25,
            speedup: 1.4321,
            speedup_low: 0.98,
            speedup_high: 1.75,
            decode_speedup: 1.5,
            predicted_speedup: None,
            measured_over_predicted: None,
            acceptance_rate: 0.625,
            mean_acceptance_length: 3.5,
            ..plain.clone()
        };
        BenchReport {
            target_cost: (1..=10).map(|m| (m, 1.0 + (m - 1) as f64 / 8.0)).collect(),
            draft_cost: Some(0.34),
            methods: vec![plain, draft],
            device: "cpu".into(),
            threads: 2,
            rule: AcceptanceRule::Lossless,
            target: "big".into(),
            draft: Some("small".into()),
            runs: 3,
            max_tokens: 128,
            identity: Some(IdentityReport { compared: 36, differences: Vec::new() }),
        }
    }

    #[test]
    fn json_has_the_documented_names() {
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
        assert_eq!(names(&json["target_cost"]), (1..=10).map(|m| m.to_string()).collect::<Vec<_>>());
        assert_eq!(json["target_cost"]["1"], 1.0);
        assert_eq!(json["methods"][1]["method"], "draft-model");
        assert!(json["methods"][1]["predicted_speedup"].is_null());
        assert!(serde_json::to_string(&report()).unwrap().contains("\"temperature\":0.7,"));
        let back: BenchReport = serde_json::from_value(json).unwrap();
        assert_eq!(back, report());
    }

    #[test]
    fn the_table_shows_each_figure_and_fits_a_terminal() {
        let table = report().table();
        let row = table.lines().find(|l| l.contains("draft-model")).unwrap();
        let cells: Vec<_> = row.split_whitespace().collect();
        assert_eq!(
            cells,
            [
                "code",
                "draft-model",
                "4",
                "0.7",
                "120.2",
                "1.43x",
                "0.98-1.75x",
                "1.50x",
                "-",
                "62.5%",
                "3.50",
                "0.4%"
            ]
        );
        let head: Vec<_> =
            table.lines().find(|l| l.starts_with("suite")).unwrap().split_whitespace().collect();
        assert_eq!(head.len(), cells.len());
        let plain: Vec<_> =
            table.lines().find(|l| l.contains("plain  ")).unwrap().split_whitespace().collect();
        assert_eq!(
            plain,
            ["code", "plain", "-", "0", "81.5", "1.00x", "-", "1.00x", "-", "-", "1.00", "0.4%"]
        );
        assert!(table.contains("t(M)/t(1)  1.00 1.12"), "{table}");
        assert!(
            table.contains("c = 0.340")
                && table.starts_with("target  big\ndraft   small\ndevice  cpu, 2 threads\n")
        );
        assert!(table.contains("3 runs each") && table.contains("36 answers compared, every token equal"));
        assert!(table.lines().all(|l| l.chars().count() <= 100), "{table}");
        assert!(table.ends_with('\n'));
    }

    #[test]
    fn temperatures_make_one_report_and_depths_are_set_beside_auto() {
        let mut all = report();
        let mut warm = report();
        warm.identity = None;
        let row = warm.methods[1].clone();
        warm.methods[0].temperature = 0.7;
        warm.methods.push(MethodReport {
            max_draft: MaxDraft::Auto,
            speedup: 1.4178,
            measured_over_predicted: Some(0.94),
            ..row.clone()
        });
        warm.methods.push(MethodReport { max_draft: MaxDraft::Fixed(2), speedup: 0.9, ..row });
        all.append(warm);
        let table = all.table();
        assert!(table.contains("auto is at 99% of the best fixed depth, K = 4."), "{table}");
        assert!(table.contains("Slowest: 0.90x, draft-model with K = 2 on code at temperature 0.7."));
        assert!(table.contains("Decode measured / predicted: 0.94 to 0.94, each"));
        assert!(table.contains("scaled to the tokens of the other") && table.contains("36 answers compared"));
        assert!(table.lines().all(|l| l.chars().count() <= 100), "{table}");
        let mut twice = report();
        twice.append(report());
        assert_eq!(twice.identity.unwrap().compared, 72);
    }

    #[test]
    fn differences_and_what_is_missing_are_said() {
        let mut report = report();
        let difference = Difference {
            suite: "code".into(),
            prompt: "python-lru".into(),
            method: Method::Ngram,
            max_draft: MaxDraft::Fixed(10),
            run: 1,
            position: 17,
        };
        report.identity = Some(IdentityReport { compared: 9, differences: vec![difference; 7] });
        report.draft = None;
        report.draft_cost = None;
        let table = report.table();
        assert!(table.contains("Greedy identity FAILED: 7 of 9 answers differ"), "{table}");
        assert!(table.contains("code / python-lru: ngram with K = 10, run 2, from token 17"));
        assert!(table.contains("and 2 more") && table.contains("draft   none\n") && !table.contains("c = "));
        report.identity = None;
        assert!(report.table().contains("scaled to the tokens of the other"));
    }
}
