//! `hunch skip-search`: the layers a target can skip when it drafts for itself.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use hunch::bench::Suite;
use hunch::bench::skip_search::{Sample, SkipSearch, SkipSet, search};
use hunch::bench::skip_sets::{self, SearchedModel};
use hunch::generate::{GenerationPlan, Models, Prompt};
use hunch_core::propose::layer_skip::{LayerList, LayerSkip};
use hunch_core::sample::SamplingParams;

use super::drafting::load_models;
use super::progress::Progress;
use super::stream::stream;
use super::{ModelArgs, render};

/// Find the layers that the method layer-skip should skip with this target, and save them.
///
/// Acceptance and the cost of passes are measured. The speedup is predicted from them.
#[derive(Args)]
pub(crate) struct SkipSearchArgs {
    #[command(flatten)]
    models: ModelArgs,
    /// Prompts whose answers are used: code, prose, edit, or a file of prompts (.jsonl or .txt); may be repeated
    #[arg(long, value_name = "NAME|FILE", default_values = ["code", "prose"])]
    suite: Vec<String>,
    /// Use the first N prompts of each suite
    #[arg(long, default_value_t = 2, value_name = "N")]
    prompts: usize,
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
}

/// Tokens of each answer.
const ANSWER: usize = 48;

pub(crate) fn run(args: &SkipSearchArgs) -> Result<()> {
    let mut models = load_models(&args.models, &[])?;
    let samples = samples(&mut models, args)?;
    let model = models.target();
    let vocab_subset = LayerSkip::tokens_after(&[], model.info().n_vocab);
    let progress = Progress::new();
    let found = search(model, &samples, vocab_subset.as_ref(), &mut |trying| {
        let (sample, of) = trying.sample;
        let step = format!("{} skipped, trying one more: text", render::count(trying.skipped, "layer"));
        progress.step(&step, sample, of);
    })?;
    drop(progress);
    let path = skip_sets::remember(&hunch_library::skip_sets_folder()?, SearchedModel::of(model), &found)?;
    let mut out = std::io::stdout().lock();
    write!(out, "{}", table(&found))?;
    writeln!(out, "\nSaved to {}.", path.display())?;
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&found)?)?;
    }
    Ok(())
}

/// Returns the model's greedy answers to the prompts.
fn samples(models: &mut Models, args: &SkipSearchArgs) -> Result<Vec<Sample>> {
    let plan = GenerationPlan {
        max_tokens: ANSWER,
        sampling: SamplingParams::greedy(),
        ..GenerationPlan::default()
    };
    let mut samples = Vec::new();
    for suite in &args.suite {
        for prompt in Suite::named_or_file(suite)?.prompts.iter().take(args.prompts.max(1)) {
            let ids = models.prompt_ids(&Prompt::Chat(prompt.messages()))?;
            let answer = stream(models, &ids, &plan, None, |_| Ok(()))?;
            let tokens = ids.iter().copied().chain(answer.tokens.iter().map(|token| token.id)).collect();
            samples.push(Sample { tokens, prompt: ids.len() });
        }
    }
    Ok(samples)
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
