//! `hunch bench`: methods against plain decoding, measured here.

use std::io::{IsTerminal, Write};

use anyhow::Result;
use clap::Args;
use hunch::bench::candle::{CandleModel, compare_with_candle};
use hunch::bench::model::ModelBench;
use hunch::bench::passes::{self, Beside, Candle, MemoryReader, Ours, PassEngine, PassPlan, PassReport};
use hunch::bench::second_turn::{self, SecondTurn};
use hunch::bench::{self, BenchPlan, BenchReport, Contender, Progress, Setting, Suite};
use hunch::depth::MaxDraft;
use hunch::error::Error;
use hunch::generate::{Models, Prompt};
use hunch::library::measured::Rates;
use hunch::model::weights::WeightFile;
use hunch::propose::Method;
use hunch::rule::AcceptanceRule;
use hunch::sample::SamplingParams;
use serde::Serialize;

use super::run::{OptionArgs, SamplingArgs, load, method_parser};
use super::{ModelArgs, measured, render};

/// Measures methods against plain decoding: the same prompts through each, taking turns, warm.
/// Speedup is plain wall time / the method's, median over the prompts, with the 10th and 90th
/// percentile; what is computed instead of measured is called predicted.
#[derive(Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    models: ModelArgs,
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
    #[arg(long, value_delimiter = ',', value_name = "T", conflicts_with = "temperature")]
    temperatures: Vec<f32>,
    /// Also measure plain decoding beside candle-transformers' own model of the same file
    #[arg(long)]
    candle: bool,
    /// Measure passes only: t(M) by rows, the memory's speed, prefill; with --candle beside candle
    #[arg(long)]
    passes: bool,
    /// Measure second turns only: how long the first token waits behind a first turn, and from empty caches
    #[arg(long, conflicts_with = "passes")]
    second_turn: bool,
    /// With --passes: another program that takes turns, with {model} and {threads} filled in; it
    /// speaks the protocol of src/bench/passes.rs, as scripts/llama-passes.py does
    #[arg(long, value_name = "NAME=COMMAND", requires = "passes")]
    beside: Vec<String>,
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    if args.passes {
        return passes(args);
    }
    let mut plan = plan(args)?;
    let compute = args.models.compute()?;
    let methods: Vec<Method> = plan.contenders.iter().map(|contender| contender.method).collect();
    let mut models = load(&args.models, &methods)?;
    plan.options = args.options.options(models.target());
    plan.options.synthetic_acceptance = args.synthetic.unwrap_or_default();
    let setting = Setting {
        device: compute.name().into(),
        threads: compute.threads().count() as u32,
        target: models.target().spec().name.clone(),
        draft: models.draft_name(),
    };
    if args.second_turn {
        return second_turns(&mut models, &plan, args.json);
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
    measured::remember(&args.models, &report.device, Rates::of_bench(&report));
    let mut out = std::io::stdout().lock();
    write!(out, "{}", report.table())?;
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
    let contenders = methods.iter().copied().chain(synthetic).flat_map(|method| {
        let depths = if method == Method::Plain { &args.max_draft[..1] } else { &args.max_draft[..] };
        depths.iter().map(move |&max_draft| Contender { method, max_draft })
    });
    // Greedy unless a way of drawing is asked for, so that answers can be compared token for token.
    let greedy = SamplingParams { seed: args.sampling.seed(), ..SamplingParams::greedy() };
    let sampling = if args.sampling.says_how_to_draw() { args.sampling.params() } else { greedy };
    Ok(BenchPlan {
        suites,
        contenders: contenders.collect(),
        max_tokens: args.max_tokens,
        sampling,
        rule: args.rule,
        runs: args.runs,
        ..BenchPlan::default()
    })
}

/// The second turns of a suite by one method.
#[derive(Serialize)]
struct SecondTurnRow<'a> {
    suite: &'a str,
    method: Method,
    #[serde(flatten)]
    turn: SecondTurn,
}

/// A row for each suite and contender.
fn second_turns(models: &mut Models, plan: &BenchPlan, json: bool) -> Result<()> {
    let mut turns = Vec::new();
    for suite in &plan.suites {
        for &contender in &plan.contenders {
            let turn = second_turn::measure(models, &suite.prompts, &plan.generation(contender, 0))?;
            turns.push(SecondTurnRow { suite: &suite.name, method: contender.method, turn });
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

fn show(progress: Progress<'_>) {
    match progress {
        Progress::Cost { done, total } => eprint!("\r\x1b[Kcost of a pass: {done} of {total}"),
        Progress::Turn { suite, prompt, done, total, .. } => {
            eprint!("\r\x1b[K{done} of {total}: {suite}, {prompt}");
        }
    }
}

/// Plain decoding here and in candle-transformers, token by token in turn.
fn candle_line(args: &BenchArgs, models: &mut Models) -> Result<String> {
    let compute = args.models.compute()?;
    let path = args.models.target_path()?;
    let architecture = models.target().spec().architecture.clone();
    let mut candle = CandleModel::open(&path, &architecture, compute.device())?;
    let prompt =
        models.prompt_ids(&Prompt::Raw("The lighthouse keeper looked at the sea and said that".into()))?;
    let result = compare_with_candle(models.target(), &mut candle, &prompt, 48, compute.device())?;
    Ok(format!(
        "plain decoding: {:.1} tok/s, candle-transformers {:.1} tok/s, {:.2}x (median of 48 tokens in turn)",
        result.tok_s, result.candle_tok_s, result.ratio
    ))
}

/// `--passes`.
fn passes(args: &BenchArgs) -> Result<()> {
    let compute = args.models.compute()?;
    let path = args.models.target_path()?;
    let weight_bytes = WeightFile::open(&path)?.bytes_per_pass();
    let mut models = load(&args.models, &[])?;
    let spec = models.target().spec().clone();
    let threads = compute.threads().count();
    let memory = MemoryReader::new(compute.threads());
    let mut candle = match args.candle {
        true => {
            let model = CandleModel::open(&path, &spec.architecture, compute.device())?;
            Some(Candle { model, n_vocab: spec.n_vocab })
        }
        false => None,
    };
    let start = |line: &String| beside(line, &path.display().to_string(), threads);
    let mut others = args.beside.iter().map(start).collect::<Result<Vec<_>>>()?;
    let mut ours = Ours(models.target());
    let mut engines: Vec<&mut dyn PassEngine> = vec![&mut ours];
    engines.extend(candle.as_mut().map(|candle| candle as &mut dyn PassEngine));
    engines.extend(others.iter_mut().map(|other| other as &mut dyn PassEngine));
    let interactive = std::io::stderr().is_terminal();
    let plan = PassPlan { rounds: 2 * args.runs, weight_bytes };
    let mut memory = || memory.gb_s();
    let (memory_gb_s, engines) = passes::measure(&mut engines, &mut memory, plan, &mut |done, total| {
        if interactive {
            eprint!("\r\x1b[Kround {} of {total}", done + 1);
        }
    })?;
    if interactive {
        eprint!("\r\x1b[K");
    }
    let report = PassReport { target: spec.name, threads, weight_bytes, memory_gb_s, engines };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", pass_table(&report))?;
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    }
    Ok(())
}

/// `NAME=PROGRAM ARGUMENT...`; words are separated by blanks.
fn beside(line: &str, model: &str, threads: usize) -> Result<Beside> {
    let words = line.split_once('=').map(|(name, command)| (name, command.split_whitespace()));
    let Some((name, Some(program), rest)) = words.map(|(name, mut words)| (name, words.next(), words)) else {
        return Err(Error::invalid(format!("--beside \"{line}\" is not NAME=COMMAND.")).into());
    };
    let fill = |word: &str| word.replace("{model}", model).replace("{threads}", &threads.to_string());
    Ok(Beside::start(name, program, &rest.map(fill).collect::<Vec<_>>())?)
}

fn pass_table(report: &PassReport) -> String {
    let mut header = vec!["t(M), ms".to_owned()];
    header.extend(passes::ROWS.iter().map(|rows| format!("M = {rows}")));
    header.extend(["GB/s (of memory)".to_owned(), format!("prefill {}", passes::PROMPT)]);
    let row = |figures: &passes::PassFigures| {
        let mut cells = vec![figures.engine.clone()];
        let pass = |rows| format!("{:.1} ({:.2}x)", figures.pass_ms[rows], figures.relative[rows]);
        cells.extend(passes::ROWS.iter().map(pass));
        cells.push(format!("{:.1} ({:.0}%)", figures.gb_s, 100.0 * figures.of_memory));
        cells.push(format!("{:.0} tok/s", figures.prefill_tok_s));
        cells
    };
    let rows: Vec<Vec<String>> = report.engines.iter().map(row).collect();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    format!(
        "target  {}\n{} threads; a pass reads {} of weights; memory reads {:.1} GB/s here (10^9 bytes)\n\n{}\n\n\
         (t(M)/t(1)) and (of memory) are medians of ratios within a round; engines took turns, pass by pass",
        report.target,
        report.threads,
        render::bytes(report.weight_bytes as u64),
        report.memory_gb_s,
        render::table(&header, &rows)
    )
}
