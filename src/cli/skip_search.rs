//! `hunch skip-search`: which layers a target can leave out when it drafts for itself.

use std::io::{IsTerminal, Write};

use anyhow::Result;
use clap::Args;
use hunch::bench::Suite;
use hunch::bench::skip_search::{Sample, SkipSearch, SkipSet, search};
use hunch::bench::skip_sets::{self, SearchedModel};
use hunch::generate::{GenerationPlan, Models, Prompt};
use hunch_core::propose::layer_skip::{LayerList, LayerSkip};
use hunch_core::sample::SamplingParams;

use super::run::{load, stream};
use super::{ModelArgs, render};

/// Finds the layers that the method layer-skip should leave out with this target, and remembers them.
/// What a set accepts and what passes cost is measured; the speedup it promises is predicted.
#[derive(Args)]
pub(crate) struct SkipSearchArgs {
    #[command(flatten)]
    models: ModelArgs,
    /// Prompts whose answers are tried on: code, prose, edit, or a file of JSON Lines; may be given several
    /// times
    #[arg(long, value_name = "NAME|FILE.jsonl", default_values = ["code", "prose"])]
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
    let mut models = load(&args.models, &[])?;
    let interactive = std::io::stderr().is_terminal();
    let samples = samples(&mut models, args)?;
    let model = models.target();
    let vocab_subset = LayerSkip::tokens_after(&[], model.info().n_vocab);
    let found = search(model, &samples, vocab_subset.as_ref(), &mut |trying| {
        if interactive {
            let (sample, of) = trying.sample;
            eprint!("\r\x1b[K{} layers skipped, one more: text {} of {of}", trying.skipped, sample + 1);
        }
    })?;
    if interactive {
        eprint!("\r\x1b[K");
    }
    let path = skip_sets::remember(&hunch_library::skip_sets_folder()?, SearchedModel::of(model), &found)?;
    let mut out = std::io::stdout().lock();
    write!(out, "{}", table(&found))?;
    writeln!(out, "\nRemembered in {}.", path.display())?;
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&found)?)?;
    }
    Ok(())
}

/// The model's own greedy answers to the prompts.
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
            let answer = stream(models, &ids, &plan, |_| Ok(()))?;
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
        format!("* is predicted to pay most: {:.2}x.", found.best.predicted_speedup)
    } else {
        format!(
            "No set is predicted to pay here; * comes nearest, {:.2}x of plain's speed. With --max-draft auto \
             drafting will rest.",
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
