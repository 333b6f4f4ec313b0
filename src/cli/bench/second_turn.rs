//! `hunch bench second-turn`: time to the first token of a second message.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use hunch::bench::second_turn::{self, SecondTurn};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use serde::Serialize;

use super::{Prepared, WorkArgs};
use crate::cli::progress::ProgressLine;
use crate::cli::render;

#[derive(Args)]
pub(super) struct SecondTurnArgs {
    #[command(flatten)]
    pub(super) work: WorkArgs,
}

/// Second turns of a suite by one method.
#[derive(Serialize)]
struct SecondTurnRow<'a> {
    suite: &'a str,
    method: Method,
    #[serde(flatten)]
    turn: SecondTurn,
}

pub(super) fn run(args: &SecondTurnArgs) -> Result<()> {
    let Prepared { plan, mut models, .. } =
        args.work.prepare(1, None, &args.work.draft_lengths(MaxDraft::Auto))?;
    let progress = ProgressLine::new();
    let total = plan.suites.len() * plan.configs.len();
    let mut turns = Vec::new();
    for suite in &plan.suites {
        for &config in &plan.configs {
            progress.show(turns.len() as u64, total as u64, format!("{}, {}", suite.name, config.method));
            let turn = second_turn::measure(&mut models, &suite.prompts, &plan.generation(config, 0))?;
            turns.push(SecondTurnRow { suite: &suite.name, method: config.method, turn });
        }
    }
    drop(progress);
    let cells = |SecondTurnRow { suite, method, turn }: &SecondTurnRow<'_>| {
        vec![
            (*suite).to_owned(),
            method.to_string(),
            format!("{:.0}", turn.prompt_tokens),
            format!("{:.0}", turn.new_tokens),
            format!("{:.0} ms", turn.ttft_ms),
            format!("{:.0} ms", turn.cold_ttft_ms),
            format!("{:.2} ms", turn.ms_a_new_token),
            format!("{:.2} ms", turn.cold_ms_a_token),
        ]
    };
    let rows: Vec<_> = turns.iter().map(cells).collect();
    let mut out = std::io::stdout().lock();
    let header = ["suite", "method", "prompt", "new", "first token", "cold", "per token", "cold, per token"];
    writeln!(
        out,
        "Second messages, medians over the prompts: tokens of the prompt, new ones among them, and time to the first\n\
         token with warm and with empty (cold) caches, in all and per token read.\n\n{}",
        render::table(&header, &rows)
    )?;
    if args.work.json {
        writeln!(out, "{}", serde_json::to_string(&turns)?)?;
    }
    Ok(())
}
