//! The report of `hunch bench` as text.

use std::fmt::Write;

use hunch::bench::{BenchReport, IdentityReport, MethodReport};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::rule::AcceptanceRule;

use crate::cli::render::{self, count};

/// Differences listed in the text. The JSON has all of them.
const DIFFERENCES_SHOWN: usize = 5;
/// Longest name of a suite in the table, in characters.
const SUITE_WIDTH: usize = 20;

/// Formats the report for a terminal of 100 columns, with a line break at the end.
pub(super) fn text(report: &BenchReport) -> String {
    let mut sections = vec![setting(report), costs(report), methods(report), notes(report)];
    sections.extend([extremes(report), depths(report)].into_iter().filter(|section| !section.is_empty()));
    if let Some(same) = &report.identity {
        sections.push(identity(same));
    }
    // The last sections are single lines that need no empty line between them.
    let (tables, lines) = sections.split_at(3);
    format!("{}\n\n{}\n", tables.join("\n\n"), lines.join("\n"))
}

fn setting(report: &BenchReport) -> String {
    let mut rows = vec![
        ("target", report.target.clone()),
        ("draft", report.draft.clone().unwrap_or_else(|| "none".into())),
        ("device", format!("{}, {}", report.device, count(report.threads as usize, "thread"))),
    ];
    if report.rule != AcceptanceRule::Lossless {
        rows.push(("rule", report.rule.to_string()));
    }
    render::fields(&rows)
}

fn costs(report: &BenchReport) -> String {
    let rows: Vec<String> = report.target_cost.keys().map(ToString::to_string).collect();
    let header: Vec<&str> = ["M"].into_iter().chain(rows.iter().map(String::as_str)).collect();
    let costs = report.target_cost.values().map(|cost| format!("{cost:.2}"));
    let costs = ["t(M)/t(1)".to_owned()].into_iter().chain(costs).collect();
    let table = render::table(&header, &[costs]);
    let mut text = format!("Cost of a target pass by its rows M, in passes of one row\n{table}");
    if let Some(c) = report.draft_cost {
        text += &format!("\nc = {c:.3}: a pass of the draft model, one row");
    }
    text
}

fn methods(report: &BenchReport) -> String {
    let row = |row: &MethodReport| {
        let plain = row.method == Method::Plain;
        let or_dash = |value: String| if plain { "-".to_owned() } else { value };
        vec![
            row.suite.chars().take(SUITE_WIDTH).collect(),
            row.method.to_string(),
            or_dash(row.max_draft.to_string()),
            row.temperature.to_string(),
            format!("{:.1}", row.tok_s),
            format!("{:.2}x", row.speedup),
            or_dash(format!("{:.2}-{:.2}x", row.speedup_low, row.speedup_high)),
            format!("{:.2}x", row.decode_speedup),
            row.predicted_speedup.map_or("-".to_owned(), |s| or_dash(format!("{s:.2}x"))),
            or_dash(format!("{:.1}%", row.acceptance_rate * 100.0)),
            format!("{:.2}", row.mean_acceptance_length),
            format!("{:.1}%", row.loop_share * 100.0),
        ]
    };
    let header = [
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
        "loop",
    ];
    render::table(&header, &report.methods.iter().map(row).collect::<Vec<_>>())
}

fn notes(report: &BenchReport) -> String {
    let runs = count(report.runs as usize, "run");
    let tokens = count(report.max_tokens as usize, "token");
    let mut text = render::fields(&[
        ("speedup", "plain's wall time / this method's, same prompt, both warm".into()),
        ("", format!("median over the prompts ({runs} each, at most {tokens} an answer)")),
        ("p10-p90", "10th to 90th percentile of the same".into()),
        ("decode", "speedup without prefill".into()),
        ("predicted", "speedup without prefill, from tokens and the cost of passes timed separately".into()),
        ("accepted", "share of the drafted tokens".into()),
        ("tokens", "tokens per target pass (mean acceptance length)".into()),
        ("loop", "share of wall time outside prefill, drafting and target passes".into()),
    ]);
    if report.identity.is_none() || report.methods.iter().any(|row| row.temperature > 0.0) {
        text +=
            "\nAbove temperature 0 answers differ in length. Plain's time is scaled to the other's tokens.";
    }
    text
}

/// Names the slowest row and the range of prediction errors.
fn extremes(report: &BenchReport) -> String {
    let others = || report.methods.iter().filter(|row| row.method != Method::Plain);
    let mut lines = Vec::new();
    if let Some(slowest) = others().min_by(|a, b| a.speedup.total_cmp(&b.speedup)) {
        let MethodReport { speedup, method, max_draft, suite, temperature, .. } = slowest;
        lines.push(format!(
            "Slowest: {speedup:.2}x, {method} with K = {max_draft} on {suite} at temperature {temperature}."
        ));
    }
    let mut off: Vec<f64> = others().filter_map(|row| row.measured_over_predicted).collect();
    off.sort_by(f64::total_cmp);
    if let (Some(least), Some(most)) = (off.first(), off.last()) {
        lines.push(format!("Decode measured / predicted: {least:.2} to {most:.2} (medians of the rows)."));
    }
    lines.join("\n")
}

/// Compares `auto` with the best fixed draft length.
fn depths(report: &BenchReport) -> String {
    let line = |auto: &MethodReport| {
        let fixed = report.methods.iter().filter(|row| {
            row.method == auto.method
                && row.suite == auto.suite
                && row.temperature == auto.temperature
                && row.max_draft != MaxDraft::Auto
        });
        let best = fixed.max_by(|a, b| a.speedup.total_cmp(&b.speedup))?;
        Some(format!(
            "{} on {} at temperature {}: auto reaches {:.0}% of the best fixed K = {}.",
            auto.method,
            auto.suite,
            auto.temperature,
            100.0 * auto.speedup / best.speedup,
            best.max_draft
        ))
    };
    let auto = report.methods.iter().filter(|row| row.max_draft == MaxDraft::Auto);
    auto.filter_map(line).collect::<Vec<_>>().join("\n")
}

fn identity(same: &IdentityReport) -> String {
    let compared = count(same.compared as usize, "answer");
    let different = same.differences.len();
    if different == 0 {
        return format!("Greedy identity: {compared} compared, every token equal to plain's.");
    }
    let mut text = String::new();
    let mut line = |line: std::fmt::Arguments<'_>| {
        writeln!(text, "{line}").expect("writing to a String cannot fail");
    };
    line(format_args!("Greedy identity FAILED: {different} of {compared} differ from plain's."));
    for d in same.differences.iter().take(DIFFERENCES_SHOWN) {
        line(format_args!(
            "  {} / {}: {} with K = {}, run {}, from token {}",
            d.suite,
            d.prompt,
            d.method,
            d.max_draft,
            d.run + 1,
            d.position
        ));
    }
    if different > DIFFERENCES_SHOWN {
        line(format_args!("  and {} more", different - DIFFERENCES_SHOWN));
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
#[path = "../../bench/report/fixture.rs"]
mod fixture;

#[cfg(test)]
mod tests {
    use super::fixture::report;
    use super::*;
    use hunch::bench::Difference;

    fn cells(line: &str) -> Vec<&str> {
        line.split_whitespace().collect()
    }

    #[test]
    fn shows_each_figure_within_100_columns() {
        let text = text(&report());
        let line = |start: &str| text.lines().find(|line| line.contains(start)).unwrap();
        let row = cells(line("draft-model"));
        assert_eq!(
            row,
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
        assert_eq!(cells(line("suite ")).len(), row.len());
        assert_eq!(
            cells(line(" plain ")),
            ["code", "plain", "-", "0", "81.5", "1.00x", "-", "1.00x", "-", "-", "1.00", "0.4%"]
        );
        assert_eq!(cells(line("t(M)/t(1) "))[..3], ["t(M)/t(1)", "1.00", "1.12"]);
        assert!(text.contains("c = 0.340"), "{text}");
        assert!(text.starts_with("target  big\ndraft   small\ndevice  cpu, 2 threads\n\n"), "{text}");
        assert!(text.contains("3 runs each") && text.contains("36 answers compared, every token equal"));
        assert!(text.lines().all(|l| l.chars().count() <= 100), "{text}");
        assert!(text.ends_with('\n'));
    }

    #[test]
    fn names_slowest_row_and_compares_auto_with_fixed_depths() {
        let mut all = report();
        let mut warm = BenchReport { identity: None, ..report() };
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
        let text = text(&all);
        assert!(text.contains("auto reaches 99% of the best fixed K = 4."), "{text}");
        assert!(text.contains("Slowest: 0.90x, draft-model with K = 2 on code at temperature 0.7."));
        assert!(text.contains("Decode measured / predicted: 0.94 to 0.94"));
        assert!(text.contains("scaled to the other's tokens") && text.contains("36 answers compared"));
        assert!(text.lines().all(|l| l.chars().count() <= 100), "{text}");
    }

    #[test]
    fn lists_differences_and_missing_draft() {
        let mut report = report();
        let difference = Difference {
            suite: "code".into(),
            prompt: "python-lru".into(),
            method: Method::Ngram,
            max_draft: MaxDraft::Fixed(10),
            run: 1,
            lane: None,
            position: 17,
        };
        report.identity = Some(IdentityReport { compared: 9, differences: vec![difference; 7] });
        report.draft = None;
        report.draft_cost = None;
        let shown = text(&report);
        assert!(shown.contains("Greedy identity FAILED: 7 of 9 answers differ"), "{shown}");
        assert!(shown.contains("code / python-lru: ngram with K = 10, run 2, from token 17"));
        assert!(shown.contains("and 2 more") && shown.contains("draft   none\n") && !shown.contains("c = "));
        report.identity = None;
        assert!(text(&report).contains("scaled to the other's tokens"));
    }
}
