//! `hunch demo`: shown by `make run` where there is no display.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use hunch::bench::figures;
use hunch::event::GenerationEvent;
use hunch::generate::{GenerationPlan, Models, Prompt};
use hunch_core::chat::{ChatMessage, Role};
use hunch_core::method::Method;
use hunch_core::sample::SamplingParams;

use super::drafting::load_models;
use super::stream::{FinishedAnswer, stream};
use super::{ModelArgs, render};

/// An editing task: much of the answer is in the prompt, so lookup finds good drafts.
const REQUEST: &str = "Repeat this text exactly, but with \"lighthouse\" instead of \"harbour\":\n\n\
    The harbour stood at the end of the long stone pier. Every evening the keeper of the harbour \
    walked along the pier with a lamp, and every morning the keeper of the harbour walked back. \
    Nobody in the town could say how old the harbour was, but everybody could see it from home.";

/// Show speculation on a model.
#[derive(Args)]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    models: ModelArgs,
}

pub(crate) fn run(args: &DemoArgs) -> Result<()> {
    let mut models = load_models(&args.models, &[])?;
    let prompt = Prompt::Chat(vec![ChatMessage { role: Role::User, content: REQUEST.into() }]);
    let ids = models.prompt_ids(&prompt)?;
    let speculative = Method::Auto;
    let colour = render::colour_wanted();
    writeln!(std::io::stdout(), "{REQUEST}\n")?;

    let answer = answer(&mut models, &ids, speculative, |event| {
        render::tokens_of(&mut std::io::stdout().lock(), event, colour)
    })?;
    // Plain and the second speculative answer both start from empty caches with warm weights.
    let plain = answer_quietly(&mut models, &ids, Method::Plain)?;
    let again = answer_quietly(&mut models, &ids, speculative)?;

    let mut out = std::io::stdout().lock();
    writeln!(out, "\n\n{}\n", render::card(&answer.finished.stats, colour))?;
    let row = |method: Method, a: &FinishedAnswer| {
        let s = &a.finished.stats;
        vec![
            method.to_string(),
            format!("{:.1}", s.decode_tok_s),
            format!("{:.2}", s.mean_acceptance_length),
            format!("{:.0}%", 100.0 * s.acceptance_rate),
            format!("{:.0} ms", s.wall_ms),
        ]
    };
    let header = ["method", "tok/s", "tokens per pass", "accepted", "wall time"];
    let rows = [row(Method::Plain, &plain), row(speculative, &again)];
    writeln!(out, "{}", render::table(&header, &rows))?;
    let speedup = figures::speedup(&plain.finished.stats, &again.finished.stats);
    let same = plain.tokens.iter().map(|t| t.id).eq(again.tokens.iter().map(|t| t.id));
    writeln!(
        out,
        "speedup {} (measured once; `hunch bench` measures properly); {}",
        speedup.map_or_else(|| "unknown".into(), |s| format!("{s:.2}x")),
        if same {
            "both texts are equal, token for token"
        } else {
            "the texts differ: please report this bug"
        }
    )?;
    Ok(())
}

fn answer(
    models: &mut Models,
    ids: &[u32],
    method: Method,
    show: impl FnMut(&GenerationEvent) -> std::io::Result<()> + Send,
) -> Result<FinishedAnswer> {
    models.forget()?;
    let plan = GenerationPlan {
        method,
        max_tokens: 160,
        sampling: SamplingParams::greedy(),
        ..GenerationPlan::default()
    };
    stream(models, ids, &plan, None, show)
}

fn answer_quietly(models: &mut Models, ids: &[u32], method: Method) -> Result<FinishedAnswer> {
    answer(models, ids, method, |_| Ok(()))
}
