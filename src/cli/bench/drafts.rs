//! `hunch bench --drafts`.

use std::io::{IsTerminal, Write};

use anyhow::Result;
use hunch::bench::BenchPlan;
use hunch::bench::drafts::{self, DraftsReport};
use hunch::bench::figures::Estimate;
use hunch::generate::Models;

use crate::cli::render;

/// A row for each suite and config.
pub(super) fn run(models: &mut Models, plan: &BenchPlan, json: bool) -> Result<()> {
    let interactive = std::io::stderr().is_terminal();
    let reports = drafts::measure(models, plan, &mut |done, total| {
        if interactive {
            eprint!("\r\x1b[Ktext {} of {total}", done + 1);
        }
    })?;
    if interactive {
        eprint!("\r\x1b[K");
    }
    let rows: Vec<_> = reports.iter().map(cells).collect();
    let header = [
        "suite",
        "method",
        "draft",
        "places",
        "drafted",
        "depth",
        "tokens a pass",
        "more than the first",
        "sum min(p, q)",
        "p(argmax q)",
        "sum p q",
    ];
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "Drafts at the same places of plain answers, temperature {}: means over the places, \u{b1} the standard error\n\
         over the answers. What verification would accept is computed, not drawn.\n\n{}",
        plan.sampling.temperature,
        render::table(&header, &rows)
    )?;
    if json {
        writeln!(out, "{}", serde_json::to_string(&reports)?)?;
    }
    Ok(())
}

fn cells(report: &DraftsReport) -> Vec<String> {
    vec![
        report.suite.clone(),
        report.method.to_string(),
        report.max_draft.to_string(),
        report.places.to_string(),
        format!("{:.1}", report.drafted),
        format!("{:.1}", report.depth),
        estimate(report.tokens, ""),
        report.ahead.map_or_else(|| "-".into(), |ahead| estimate(ahead, "+")),
        optional(report.acceptance),
        optional(report.likeliest),
        optional(report.matching),
    ]
}

/// A mean with its error; with its sign where that is asked for.
fn estimate(Estimate { mean, error }: Estimate, sign: &str) -> String {
    let mean = if sign.is_empty() { format!("{mean:.3}") } else { format!("{mean:+.3}") };
    error.map_or_else(|| mean.clone(), |error| format!("{mean} \u{b1} {error:.3}"))
}

fn optional(figure: Option<Estimate>) -> String {
    figure.map_or_else(|| "-".into(), |figure| estimate(figure, ""))
}
