//! `hunch bench tree-search`: the fixed draft tree with the most expected tokens.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use hunch::bench::tree_search::{self, TreeSearch};
use hunch_core::depth::MaxDraft;
use hunch_core::propose::draft_tree::TreeShape;

use super::drafts::{estimate, fixed_lengths};
use super::{Prepared, WorkArgs};
use crate::cli::progress::ProgressLine;
use crate::cli::render;

#[derive(Args)]
pub(super) struct TreeSearchArgs {
    #[command(flatten)]
    work: WorkArgs,
    /// Plain answers to every prompt
    #[arg(long, default_value_t = 1, value_name = "N")]
    runs: usize,
}

/// Tokens of a tree without `--max-draft`.
const DEFAULT_LENGTH: MaxDraft = MaxDraft::Fixed(8);

pub(super) fn run(args: &TreeSearchArgs) -> Result<()> {
    let lengths = fixed_lengths(&args.work, DEFAULT_LENGTH)?;
    let Prepared { mut plan, mut models, .. } = args.work.prepare(args.runs, None, &lengths)?;
    if args.work.methods.is_empty() {
        plan.configs.retain(|config| tree_search::drafts_trees(config.method));
    }
    let progress = ProgressLine::new();
    let mut on_text = |done, total| progress.step("text", done, total);
    let found = tree_search::search(&mut models, &plan, &mut on_text)?;
    drop(progress);
    let header = ["suite", "method", "draft", "tree", "drafted", "tokens per pass", "over dynamic"];
    let rows: Vec<_> = found.iter().flat_map(rows).collect();
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "Draft trees on answers that were not searched, temperature {}: means over the positions, \u{b1} the standard\n\
         error over the answers. Acceptance is computed, not sampled.\n\n{}",
        plan.sampling.temperature,
        render::table(&header, &rows)
    )?;
    for search in &found {
        writeln!(out, "{}", summary(search))?;
    }
    if args.work.json {
        writeln!(out, "{}", serde_json::to_string(&found)?)?;
    }
    Ok(())
}

fn rows(search: &TreeSearch) -> impl Iterator<Item = Vec<String>> + '_ {
    let chain = TreeShape::by_level(vec![1; search.nodes]);
    search.shapes.iter().map(move |shape| {
        let name = if shape.shape == chain { "chain".to_owned() } else { shape.shape.to_string() };
        vec![
            search.suite.clone(),
            search.method.to_string(),
            search.nodes.to_string(),
            name,
            format!("{:.1}", shape.drafted),
            estimate(shape.tokens, ""),
            shape.ahead.map_or_else(|| "-".into(), |ahead| estimate(ahead, "+")),
        ]
    })
}

/// Returns the lines that say what was measured, and how the tree is used.
fn summary(search: &TreeSearch) -> String {
    let rates = |rates: &[f64]| {
        let rates: Vec<String> = rates.iter().map(|rate| format!("{:.0}%", 100.0 * rate)).collect();
        rates.join(" ")
    };
    format!(
        "{suite}, {method}: best tree of {nodes} tokens  --tree {tree}\n  accepted by rank   {by_rank}\n  accepted by depth  \
         {by_depth}\n  {searched} positions searched, {evaluated} others evaluated",
        suite = search.suite,
        method = search.method,
        nodes = search.nodes,
        tree = search.found().shape,
        by_rank = rates(&search.acceptance.by_rank),
        by_depth = rates(&search.acceptance.by_depth),
        searched = search.searched,
        evaluated = search.evaluated,
    )
}
