//! `hunch bench`: methods against plain decoding, measured here.

mod drafts;
mod passes;
mod second_turns;

use std::io::{IsTerminal, Write};

use anyhow::Result;
use clap::Args;
#[cfg(feature = "candle-baseline")]
use hunch::bench::candle::{CandleModel, compare_with_candle};
use hunch::bench::model::ModelBench;
use hunch::bench::{self, BenchPlan, BenchReport, MethodConfig, Progress, Setting, Suite};
use hunch::generate::Models;
#[cfg(feature = "candle-baseline")]
use hunch::generate::Prompt;
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::SamplingParams;

use super::run::{OptionArgs, SamplingArgs, load, method_parser};
use super::{IsaArgs, ModelArgs, measured};

/// Measures methods against plain decoding: the same prompts through each, taking turns, warm.
/// Speedup is plain wall time / the method's, median over the prompts, with the 10th and 90th
/// percentile; what is computed instead of measured is called predicted.
#[derive(Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    models: ModelArgs,
    #[command(flatten)]
    isa: IsaArgs,
    /// Methods, separated by commas [default: all that these models can run]
    #[arg(long, visible_alias = "method", value_parser = method_parser(), value_delimiter = ',')]
    methods: Vec<Method>,
    /// Prompts: code, prose, edit, or a file of JSON Lines; may be given several times
    #[arg(long, value_name = "NAME|FILE.jsonl", default_value = "code")]
    suite: Vec<String>,
    /// Use only the first N prompts of each suite
    #[arg(long, value_name = "N")]
    prompts: Option<usize>,
    /// How often every method answers every prompt
    #[arg(long, default_value_t = 3, value_name = "N")]
    runs: usize,
    /// Most tokens to draft a round: 1 to 15, or auto, which measures what pays; several, separated by
    /// commas, are measured side by side
    #[arg(long, default_value = "auto", value_delimiter = ',', value_name = "K|auto")]
    max_draft: Vec<MaxDraft>,
    #[command(flatten)]
    options: OptionArgs,
    /// Also measure a draft that costs nothing and gets this share of its tokens right, 0 to 1: at 0 it
    /// shows what auto loses where nothing can be won, otherwise what the loop itself costs
    #[arg(long, value_name = "SHARE")]
    synthetic: Option<f64>,
    /// Which drafted tokens stand: lossless, match, coupled, lossy-typical[:epsilon:delta] or
    /// lossy-lenience[:l]
    #[arg(long, default_value_t = AcceptanceRule::Lossless, value_name = "RULE")]
    rule: AcceptanceRule,
    /// Most tokens of an answer
    #[arg(long, default_value_t = 128, value_name = "N")]
    max_tokens: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Measure at each of these temperatures, one after the other: --temperatures 0,0.7,1
    #[arg(long, value_delimiter = ',', value_name = "T",
          conflicts_with_all = ["temperature", "passes", "second_turn", "drafts"])]
    temperatures: Vec<f32>,
    /// Also measure plain decoding beside candle-transformers' own model of the same file
    #[cfg(feature = "candle-baseline")]
    #[arg(long)]
    candle: bool,
    /// Measure passes only: t(M) by rows, the memory's speed, prefill
    #[arg(long)]
    passes: bool,
    /// Measure second turns only: how long the first token waits behind a first turn, and from empty caches
    #[arg(long, conflicts_with = "passes")]
    second_turn: bool,
    /// Weigh drafts only: the tokens that a pass over them gives on average, by methods of a fixed --max-draft at
    /// the same places of plain answers; no times, and no luck of verification
    #[arg(long, conflicts_with_all = ["passes", "second_turn"])]
    drafts: bool,
    /// With --passes: another program that takes turns, with {model} and {threads} filled in; it
    /// speaks the protocol of src/bench/passes.rs, as scripts/llama-passes.py does
    #[arg(long, value_name = "NAME=COMMAND", requires = "passes")]
    beside: Vec<String>,
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    args.isa.apply()?;
    if args.passes {
        return passes::run(args);
    }
    let mut plan = plan(args)?;
    let compute = args.models.compute()?;
    let methods: Vec<Method> = plan.configs.iter().map(|config| config.method).collect();
    let mut models = load(&args.models, &methods)?;
    plan.options = args.options.options(models.target());
    plan.options.synthetic_acceptance = args.synthetic.unwrap_or_default();
    let setting = Setting {
        device: compute.name().into(),
        threads: compute.threads().count() as u32,
        target: models.target().info().name.clone(),
        draft: models.draft_name(),
    };
    if args.second_turn {
        return second_turns::run(&mut models, &plan, args.json);
    }
    if args.drafts {
        return drafts::run(&mut models, &plan, args.json);
    }
    let interactive = std::io::stderr().is_terminal();
    let report = measure(args, &mut models, plan, &setting, &mut |progress| {
        if interactive {
            show(progress);
        }
    })?;
    if interactive {
        eprint!("\r\x1b[K");
    }
    measured::remember(&args.models, &report.device, report.rates());
    let mut out = std::io::stdout().lock();
    write!(out, "{}", report.table())?;
    #[cfg(feature = "candle-baseline")]
    if args.candle {
        writeln!(out, "{}", candle_line(args, &mut models)?)?;
    }
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    }
    Ok(())
}

/// One report of all temperatures.
fn measure(
    args: &BenchArgs,
    models: &mut Models,
    mut plan: BenchPlan,
    setting: &Setting,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<BenchReport> {
    let mut run =
        |plan: &BenchPlan| bench::run(&mut ModelBench::new(models), plan, setting.clone(), &mut *progress);
    let Some((&first, others)) = args.temperatures.split_first() else {
        return Ok(run(&plan)?);
    };
    plan.sampling = SamplingParams { temperature: first, ..args.sampling.params() };
    let mut report = run(&plan)?;
    for &temperature in others {
        plan.sampling.temperature = temperature;
        report.append(run(&plan)?);
    }
    Ok(report)
}

fn plan(args: &BenchArgs) -> Result<BenchPlan> {
    let mut suites =
        args.suite.iter().map(|name| Suite::named_or_file(name)).collect::<Result<Vec<_>, _>>()?;
    if let Some(count) = args.prompts {
        suites.iter_mut().for_each(|suite| suite.prompts.truncate(count.max(1)));
    }
    let usable = Method::usable(args.models.draft.is_some());
    let methods = if args.methods.is_empty() { &usable } else { &args.methods };
    let synthetic = args.synthetic.map(|_| Method::Synthetic);
    let configs = methods.iter().copied().chain(synthetic).flat_map(|method| {
        let depths = if method == Method::Plain { &args.max_draft[..1] } else { &args.max_draft[..] };
        depths.iter().map(move |&max_draft| MethodConfig { method, max_draft })
    });
    // Greedy unless a way of drawing is asked for, so that answers can be compared token for token.
    let greedy = SamplingParams { seed: args.sampling.seed(), ..SamplingParams::greedy() };
    let sampling = if args.sampling.says_how_to_draw() { args.sampling.params() } else { greedy };
    Ok(BenchPlan {
        suites,
        configs: configs.collect(),
        max_tokens: args.max_tokens,
        sampling,
        rule: args.rule,
        runs: args.runs,
        ..BenchPlan::default()
    })
}

fn show(progress: Progress<'_>) {
    match progress {
        Progress::Cost { done, total } => eprint!("\r\x1b[Kcost of a pass: {done} of {total}"),
        Progress::Turn { suite, prompt, done, total, .. } => {
            eprint!("\r\x1b[K{done} of {total}: {suite}, {prompt}");
        }
    }
}

/// Plain decoding here and in candle-transformers, token by token in turn.
#[cfg(feature = "candle-baseline")]
fn candle_line(args: &BenchArgs, models: &mut Models) -> Result<String> {
    let compute = args.models.compute()?;
    let path = args.models.target_path()?;
    let architecture = models.target().info().architecture.clone();
    let mut candle = CandleModel::open(&path, &architecture, compute.device())?;
    let prompt =
        models.prompt_ids(&Prompt::Raw("The lighthouse keeper looked at the sea and said that".into()))?;
    let result = compare_with_candle(models.target(), &mut candle, &prompt, 48, compute.device())?;
    Ok(format!(
        "plain decoding: {:.1} tok/s, candle-transformers {:.1} tok/s, {:.2}x (median of 48 tokens in turn)",
        result.tok_s, result.candle_tok_s, result.ratio
    ))
}
