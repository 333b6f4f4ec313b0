//! `hunch skip-search`: the layers a target can skip when it drafts for itself.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use hunch::bench::Suite;
use hunch::bench::skip_search::{SearchStep, SearchWatch, SkipSearch, SkipSet};
use hunch::services::skip_search::{self as service, PROMPTS, SUITES};
use hunch_core::propose::layer_skip::LayerList;

use super::drafting::load_models;
use super::progress::ProgressLine;
use super::{ModelArgs, render};

/// Find the layers that the method layer-skip should skip with this target, and save them.
///
/// Acceptance and the cost of passes are measured. The speedup is predicted from them.
#[derive(Args)]
pub(crate) struct SkipSearchArgs {
    #[command(flatten)]
    models: ModelArgs,
    /// Prompts whose answers are used: code, prose, edit, or a file of prompts (.jsonl or .txt); may be repeated
    #[arg(long, value_name = "NAME|FILE", default_values = SUITES)]
    suite: Vec<String>,
    /// Use the first N prompts of each suite
    #[arg(long, default_value_t = PROMPTS, value_name = "N")]
    prompts: usize,
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
}

/// Shows the steps.
struct Shown(ProgressLine);

impl SearchWatch for Shown {
    fn step(&mut self, step: SearchStep) {
        match step {
            SearchStep::Answering { done, of } => self.0.step("answers of the model: text", done, of),
            SearchStep::Trying { skipped, done, of } => {
                let step = format!("{} skipped, trying one more: text", render::count(skipped, "layer"));
                self.0.step(&step, done, of);
            }
        }
    }
}

pub(crate) fn run(args: &SkipSearchArgs) -> Result<()> {
    let suites = args.suite.iter().map(|suite| Suite::named_or_file(suite));
    let suites = suites.collect::<Result<Vec<_>, _>>()?;
    let mut models = load_models(&args.models, &[])?;
    let found = service::run(&models, &suites, args.prompts, &mut Shown(ProgressLine::new()))?;
    let path = service::save(&hunch_library::data_folder()?, &mut models, &found)?;
    let mut out = std::io::stdout().lock();
    write!(out, "{}", table(&found))?;
    writeln!(out, "\nSaved to {}.", path.display())?;
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&found)?)?;
    }
    Ok(())
}

fn table(found: &SkipSearch) -> String {
    let row = |set: &SkipSet| {
        let mark = if *set == found.best { "*" } else { "" };
        vec![
            format!("{}{mark}", set.skipped.len()),
            format!("{:.1}%", 100.0 * set.acceptance),
            format!("{:.3}", set.cost),
            set.depth.to_string(),
            format!("{:.2}x", set.predicted_speedup),
            LayerList(set.skipped.clone()).to_string(),
        ]
    };
    let header = ["skipped", "accepted", "c", "best K", "predicted", "layers"];
    let rows: Vec<Vec<String>> = found.path.iter().map(row).collect();
    let verdict = if found.best.predicted_speedup > 1.0 {
        format!("* has the highest predicted speedup: {:.2}x.", found.best.predicted_speedup)
    } else {
        format!(
            "No set is predicted to be faster than plain decoding; * is best, at {:.2}x. With --max-draft auto \
             drafting will be parked.",
            found.best.predicted_speedup
        )
    };
    format!(
        "target  {}, {} layers\n\n{}\n{verdict}\n",
        found.model,
        found.layers,
        render::table(&header, &rows)
    )
}
