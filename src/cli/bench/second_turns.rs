//! `hunch bench --second-turn`.

use std::io::Write;

use anyhow::Result;
use hunch::bench::BenchPlan;
use hunch::bench::second_turn::{self, SecondTurn};
use hunch::generate::Models;
use hunch_core::method::Method;
use serde::Serialize;

use crate::cli::render;

/// The second turns of a suite by one method.
#[derive(Serialize)]
struct SecondTurnRow<'a> {
    suite: &'a str,
    method: Method,
    #[serde(flatten)]
    turn: SecondTurn,
}

/// A row for each suite and config.
pub(super) fn run(models: &mut Models, plan: &BenchPlan, json: bool) -> Result<()> {
    let mut turns = Vec::new();
    for suite in &plan.suites {
        for &config in &plan.configs {
            let turn = second_turn::measure(models, &suite.prompts, &plan.generation(config, 0))?;
            turns.push(SecondTurnRow { suite: &suite.name, method: config.method, turn });
        }
    }
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
    let header = ["suite", "method", "prompt", "new", "first token", "cold", "a new token", "cold, a token"];
    writeln!(
        out,
        "Second turns, medians over the prompts: tokens of the prompt, those that were new, time to the first\n\
         token behind the first turn and from empty caches, and both for each token that ran.\n\n{}",
        render::table(&header, &rows)
    )?;
    if json {
        writeln!(out, "{}", serde_json::to_string(&turns)?)?;
    }
    Ok(())
}
