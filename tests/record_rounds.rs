//! Records what the depth controller is tested on: drafts along real answers, and what passes cost on this machine.
//!
//! `record-rounds drafts TARGET DRAFT|- METHODS PROMPTS TOKENS OUT` writes one JSON line for each answer and method. It has
//! the draft's confidences, how many of its tokens the target accepted, and the target's certainty, at every position. All
//! methods draft along the same text. `record-rounds times TARGET DRAFT|head|- ISA THREADS NAME OUT` appends one JSON line
//! of pass times, taken in turn, and of the first plain passes of answers. `head` is the target's own head. The recordings
//! are in `tests/golden/rounds`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use hunch::bench::Suite;
use hunch::engine::WallClock;
use hunch::generate::{GenerationPlan, Models, Prompt, answer_ids, evaluate_drafts};
use hunch_core::depth::MaxDraft;
use hunch_core::limits::MAX_DRAFT;
use hunch_core::method::Method;
use hunch_core::model::{LanguageModel, LayerPlan, LogitRows, PassInput};
use hunch_core::propose::MethodOptions;
use hunch_core::quantile::median;
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::SamplingParams;
use hunch_core::session::DraftQuality;
use hunch_core::stats::Stopwatch;
use hunch_core::token::TokenId;
use hunch_model::device::{Compute, DeviceChoice};
use hunch_model::text::template::child;
use serde_json::json;

/// Tokens drafted at each position by a model, and by a lookup.
const MODEL_DRAFT: usize = 8;
const LOOKUP_DRAFT: usize = MAX_DRAFT;
/// Rounds of timed passes. Every number of rows is passed several times.
const TIMED_ROUNDS: usize = 96;
/// Tokens that a model reads at once when its reading is timed.
const READ: usize = 64;
/// Readings of which the median counts.
const READINGS: usize = 5;
/// Plain passes that are timed at the beginning of an answer.
const FIRST_PASSES: usize = 40;

fn main() -> ExitCode {
    child::offer();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["drafts", target, draft, methods, prompts, tokens, out] => {
            let methods: Result<Vec<Method>, _> = methods.split(',').map(str::parse).collect();
            match (methods, prompts.parse(), tokens.parse()) {
                (Ok(methods), Ok(prompts), Ok(tokens)) => {
                    record_drafts((target, draft), &methods, (prompts, tokens), Path::new(out))
                }
                _ => return usage(),
            }
        }
        ["times", target, draft, isa, threads, name, out] => {
            record_times(target, draft, (isa, threads.parse().ok()), name, Path::new(out))
        }
        _ => return usage(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: record-rounds drafts TARGET DRAFT|- METHODS PROMPTS TOKENS OUT | times TARGET DRAFT|head|- ISA THREADS NAME OUT"
    );
    ExitCode::from(2)
}

fn load(target: &str, draft: &str, threads: Option<usize>) -> Result<Models> {
    let compute = Compute::open(DeviceChoice::Cpu, threads)?;
    let draft = (!matches!(draft, "-" | "head")).then_some(Path::new(draft));
    Ok(Models::load(Path::new(target), draft, &compute)?)
}

fn plan(method: Method, max_draft: usize, temperature: f32, max_tokens: usize) -> GenerationPlan {
    let sampling = match temperature {
        0.0 => SamplingParams::greedy(),
        temperature => SamplingParams { temperature, ..SamplingParams::unfiltered() },
    };
    GenerationPlan {
        method,
        max_draft: MaxDraft::Fixed(max_draft as u32),
        options: MethodOptions::default(),
        max_tokens,
        sampling: SamplingParams { seed: Some(7), ..sampling },
        rule: AcceptanceRule::Lossless,
        stop: Vec::new(),
        thinking: None,
    }
}

/// Plain decoding's answer to a prompt.
fn answer(
    models: &mut Models,
    prompt: &[TokenId],
    temperature: f32,
    max_tokens: usize,
    clock: &WallClock,
) -> Result<Vec<TokenId>> {
    let (text, _) = answer_ids(models, prompt, &plan(Method::Plain, 1, temperature, max_tokens), clock)?;
    Ok(text)
}

/// Records the drafts along the answers to `prompts` prompts of each suite, of at most `tokens` tokens.
fn record_drafts(
    (target, draft): (&str, &str),
    methods: &[Method],
    (prompts, tokens): (usize, usize),
    out: &Path,
) -> Result<()> {
    let mut models = load(target, draft, None)?;
    let clock = WallClock::start();
    let mut out = BufWriter::new(File::create(out)?);
    for suite in Suite::names() {
        for temperature in [0.0f32, 0.7, 1.0] {
            for prompt in Suite::named(suite)?.prompts.iter().take(prompts) {
                let ids = models.prompt_ids(&Prompt::Chat(prompt.messages()))?;
                let text = answer(&mut models, &ids, temperature, tokens, &clock)?;
                for &method in methods {
                    let max_draft = if method.drafter().is_some() { MODEL_DRAFT } else { LOOKUP_DRAFT };
                    let plan = plan(method, max_draft, temperature, tokens);
                    let drafts = evaluate_drafts(&mut models, (&ids, &text), 1, &plan, &clock)?;
                    let line = json!({
                        "method": method.name(),
                        "suite": suite,
                        "temperature": (f64::from(temperature) * 10.0).round() / 10.0,
                        "prompt_tokens": ids.len(),
                        "accepted": drafts.iter().map(|draft| draft.accepted).collect::<Vec<_>>(),
                        "confidence": drafts.iter().map(confidences).collect::<Vec<_>>(),
                        "certainty": drafts.iter().map(|draft| percent(draft.certainty)).collect::<Vec<_>>(),
                    });
                    writeln!(out, "{line}")?;
                }
                eprintln!("{suite} at {temperature}: {} tokens", text.len());
            }
        }
    }
    out.flush()?;
    Ok(())
}

/// Confidences in percent, rounded down as the controller's bins are.
fn confidences(draft: &DraftQuality) -> Vec<Option<u8>> {
    draft.confidence.iter().map(|c| c.map(percent)).collect()
}

fn percent(share: f32) -> u8 {
    (share.clamp(0.0, 1.0) * 100.0) as u8
}

fn record_times(
    target: &str,
    draft: &str,
    (isa, threads): (&str, Option<usize>),
    name: &str,
    out: &Path,
) -> Result<()> {
    hunch_kernels::use_level(isa).map_err(anyhow::Error::msg)?;
    let mut models = load(target, draft, threads)?;
    let clock = WallClock::start();
    let prompt = &Suite::named("prose")?.prompts[0];
    let ids = models.prompt_ids(&Prompt::Chat(prompt.messages()))?;
    let text = answer(&mut models, &ids, 0.0, 2, &clock)?;
    let Some(text) = text.get(..2) else { bail!("the answer is too short to time passes after it") };
    let method = match draft {
        "-" => Method::Synthetic,
        "head" => Method::Head,
        _ => Method::DraftModel,
    };
    let first_passes = first_passes(&mut models, &clock)?;
    let run = |models: &mut Models, method, max_draft: usize| -> Result<Vec<DraftQuality>> {
        let plan = plan(method, max_draft, 0.0, 2);
        Ok(evaluate_drafts(models, (&ids, text), 1, &plan, &clock)?)
    };
    let (mut passes, mut drafts) = (Vec::new(), Vec::new());
    // Steps of 7 visit every number of rows in an order that is not sorted.
    let all_rows = (0..TIMED_ROUNDS).map(|round| 2 + round * 7 % MAX_DRAFT);
    for rows in all_rows.clone() {
        if method == Method::DraftModel {
            let plain = run(&mut models, Method::Plain, 1)?;
            passes.extend(plain.iter().map(|draft| (1, rounded(draft.target_ms))));
            // The first of a call may have to read the prompt again.
            let draft = &run(&mut models, method, rows - 1)?[1];
            if draft.nodes > 0 {
                passes.push((draft.nodes + 1, rounded(draft.target_ms)));
                drafts.push((draft.nodes, rounded(draft.propose_ms)));
            }
        } else {
            for rows in [1, rows, 1] {
                passes.push((rows, rounded(pass_ms(&mut models, &ids, rows, &clock)?)));
            }
        }
    }
    // A head reads the prompt again in each call, and passes are slow after that.
    if method == Method::Head {
        for rows in all_rows {
            let draft = &run(&mut models, method, rows - 1)?[1];
            drafts.extend((draft.nodes > 0).then_some((draft.nodes, rounded(draft.propose_ms))));
        }
    }
    let draft_read_ms =
        models.with_drafter(Method::DraftModel, &MethodOptions::default(), &ids, |model, layers, _| {
            Ok(read_ms(model, layers, &ids, &clock)?)
        })?;
    let line = json!({
        "name": name,
        "passes": passes,
        "drafts": drafts,
        "first_passes": first_passes,
        "read_ms": draft_read_ms.map(rounded),
    });
    let mut out = File::options().create(true).append(true).open(out)?;
    writeln!(out, "{line}")?;
    Ok(())
}

/// Times of the first plain passes of an answer, relative to later ones: the medians over the prompts of a suite.
fn first_passes(models: &mut Models, clock: &WallClock) -> Result<Vec<f64>> {
    let mut times = vec![Vec::new(); FIRST_PASSES];
    for prompt in &Suite::named("prose")?.prompts {
        let ids = models.prompt_ids(&Prompt::Chat(prompt.messages()))?;
        models.target().truncate(0)?;
        for chunk in ids.chunks(models.target().prefill_rows().max(1)) {
            models.target().forward(PassInput::chain(chunk, LogitRows::None))?;
        }
        for times in &mut times {
            let start = clock.elapsed();
            models.target().forward(PassInput::chain(&ids[..1], LogitRows::All))?;
            times.push((clock.elapsed() - start).as_secs_f64());
        }
    }
    let of_pass: Vec<f64> = times.iter().filter_map(|times| median(times)).collect();
    let later = median(&of_pass[FIRST_PASSES / 2..]).unwrap_or(1.0);
    Ok(of_pass.iter().map(|seconds| rounded(seconds / later)).collect())
}

/// Milliseconds in which a model reads a token of a prompt: the median of a few readings.
fn read_ms(
    model: &mut dyn LanguageModel,
    layers: LayerPlan<'_>,
    ids: &[TokenId],
    clock: &WallClock,
) -> hunch_core::error::Result<f64> {
    let tokens: Vec<TokenId> = ids.iter().copied().cycle().take(READ).collect();
    let mut times = Vec::new();
    for _ in 0..READINGS {
        model.truncate(0)?;
        let start = clock.elapsed();
        model.forward(PassInput { layers, ..PassInput::chain(&tokens, LogitRows::None) })?;
        times.push((clock.elapsed() - start).as_secs_f64() * 1000.0 / READ as f64);
    }
    model.truncate(0)?;
    times.sort_by(f64::total_cmp);
    Ok(times[READINGS / 2])
}

/// Milliseconds of a target pass of `rows` rows after the prompt.
fn pass_ms(models: &mut Models, ids: &[TokenId], rows: usize, clock: &WallClock) -> Result<f64> {
    let target = models.target();
    if target.cache_len() < ids.len() {
        target.truncate(0)?;
        for chunk in ids.chunks(target.prefill_rows().max(1)) {
            target.forward(PassInput::chain(chunk, LogitRows::None))?;
        }
    }
    target.truncate(ids.len())?;
    let tokens: Vec<TokenId> = ids.iter().copied().cycle().take(rows).collect();
    let start = clock.elapsed();
    target.forward(PassInput::chain(&tokens, LogitRows::All))?;
    let took = clock.elapsed() - start;
    target.truncate(ids.len())?;
    Ok(took.as_secs_f64() * 1000.0)
}

/// To microseconds.
fn rounded(ms: f64) -> f64 {
    (ms * 1000.0).round() / 1000.0
}
