//! `hunch bench drafts`: expected tokens of a pass over drafts.

use std::io::Write;
use std::str::FromStr;

use anyhow::Result;
use clap::Args;
use hunch::bench::drafts::{self, DraftsReport};
use hunch::bench::figures::Estimate;
use hunch_core::depth::MaxDraft;
use hunch_core::model::DraftWindow;
use hunch_error::Error;

use super::{Prepared, WorkArgs};
use crate::cli::progress::ProgressLine;
use crate::cli::render;

#[derive(Args)]
pub(super) struct DraftsArgs {
    #[command(flatten)]
    pub(super) work: WorkArgs,
    /// Plain answers to every prompt
    #[arg(long, default_value_t = 3, value_name = "N")]
    pub(super) runs: usize,
    /// Evaluate with each of these draft windows, separated by commas: tokens, or all
    #[arg(long, value_name = "TOKENS|all", value_delimiter = ',', conflicts_with = "draft_window")]
    pub(super) draft_windows: Vec<Reach>,
}

/// Part of the cache that drafts read: `all`, or a draft window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach(Option<DraftWindow>);

impl FromStr for Reach {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" { Ok(Self(None)) } else { text.parse::<DraftWindow>().map(Some).map(Self) }
    }
}

/// Draft length that is evaluated without `--max-draft`.
const DEFAULT_LENGTH: MaxDraft = MaxDraft::Fixed(4);

/// Returns the draft lengths to evaluate. Refuses `auto`, whose lengths depend on measured times.
pub(super) fn fixed_lengths(work: &WorkArgs, default: MaxDraft) -> Result<Vec<MaxDraft>> {
    let lengths = work.draft_lengths(default);
    if lengths.contains(&MaxDraft::Auto) {
        let message = "This tool measures no times, so --max-draft cannot be auto. Give numbers from 1 to 15, for \
                       example --max-draft 2,4,8.";
        return Err(Error::invalid(message).into());
    }
    Ok(lengths)
}

pub(super) fn run(args: &DraftsArgs) -> Result<()> {
    let lengths = fixed_lengths(&args.work, DEFAULT_LENGTH)?;
    let Prepared { plan, mut models, .. } = args.work.prepare(args.runs, None, &lengths)?;
    let progress = ProgressLine::new();
    let mut windows: Vec<_> = args.draft_windows.iter().map(|reach| reach.0).collect();
    if windows.is_empty() {
        windows.push(plan.options.draft_window);
    }
    let mut on_text = |done, total| progress.step("text", done, total);
    let reports = drafts::measure(&mut models, &plan, &windows, &mut on_text)?;
    drop(progress);
    let rows: Vec<_> = reports.iter().map(cells).collect();
    let header = [
        "suite",
        "method",
        "draft",
        "window",
        "positions",
        "drafted",
        "depth",
        "tokens per pass",
        "over the first",
        "sum min(p, q)",
        "p(argmax q)",
        "sum p q",
    ];
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "Drafts at the same positions of plain answers, temperature {}: means over the positions, \u{b1} the standard\n\
         error over the answers. Acceptance is computed, not sampled.\n\n{}",
        plan.sampling.temperature,
        render::table(&header, &rows)
    )?;
    if args.work.json {
        writeln!(out, "{}", serde_json::to_string(&reports)?)?;
    }
    Ok(())
}

fn cells(report: &DraftsReport) -> Vec<String> {
    vec![
        report.suite.clone(),
        report.method.to_string(),
        report.max_draft.to_string(),
        report.draft_window.map_or_else(|| "all".into(), |tokens| tokens.to_string()),
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

/// Formats a mean with its error. A non-empty `sign` shows the sign of the mean.
pub(super) fn estimate(Estimate { mean, error }: Estimate, sign: &str) -> String {
    let mean = if sign.is_empty() { format!("{mean:.3}") } else { format!("{mean:+.3}") };
    error.map_or_else(|| mean.clone(), |error| format!("{mean} \u{b1} {error:.3}"))
}

fn optional(figure: Option<Estimate>) -> String {
    figure.map_or_else(|| "-".into(), |figure| estimate(figure, ""))
}
