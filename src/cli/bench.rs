//! `hunch bench`: methods against plain decoding, measured here.

use std::io::{IsTerminal, Write};

use anyhow::Result;
use clap::Args;
use hunch::bench::candle::{CandleModel, compare_with_candle};
use hunch::bench::model::ModelBench;
use hunch::bench::{self, BenchPlan, Contender, Progress, Setting, Suite};
use hunch::generate::{Models, Prompt};

use super::ModelArgs;
use super::run::{MethodArg, SamplingArgs, load};

/// Measures methods against plain decoding: the same prompts through each, taking turns, warm.
/// Speedup is plain wall time / the method's, median over the prompts, with the 10th and 90th
/// percentile; what is computed instead of measured is called predicted.
#[derive(Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    models: ModelArgs,
    /// Methods, separated by commas [default: all that these models can run]
    #[arg(long, value_enum, value_delimiter = ',')]
    methods: Vec<MethodArg>,
    /// Prompts: code, prose, edit, or a file of JSON Lines; may be given several times
    #[arg(long, value_name = "NAME|FILE.jsonl", default_value = "code")]
    suite: Vec<String>,
    /// Use only the first N prompts of each suite
    #[arg(long, value_name = "N")]
    prompts: Option<usize>,
    /// How often every method answers every prompt
    #[arg(long, default_value_t = 3, value_name = "N")]
    runs: usize,
    /// Most tokens to draft a round; several values, separated by commas, are measured side by side
    #[arg(long, default_value = "4", value_delimiter = ',', value_name = "K")]
    max_draft: Vec<usize>,
    /// Most tokens of an answer
    #[arg(long, default_value_t = 128, value_name = "N")]
    max_tokens: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Also measure plain decoding beside candle-transformers' own model of the same file
    #[arg(long)]
    candle: bool,
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let plan = plan(args)?;
    let compute = args.models.compute()?;
    let mut models = load(&args.models)?;
    let setting = Setting {
        device: compute.name().into(),
        threads: compute.threads().count() as u32,
        target: models.target().spec().name.clone(),
        draft: models.draft()?.map(|draft| draft.spec().name.clone()),
    };
    let interactive = std::io::stderr().is_terminal();
    let report = bench::run(&mut ModelBench::new(&mut models), &plan, setting, &mut |progress| {
        if interactive {
            show(progress);
        }
    })?;
    if interactive {
        eprint!("\r\x1b[K");
    }
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

fn plan(args: &BenchArgs) -> Result<BenchPlan> {
    let mut suites =
        args.suite.iter().map(|name| Suite::named_or_file(name)).collect::<Result<Vec<_>, _>>()?;
    if let Some(count) = args.prompts {
        suites.iter_mut().for_each(|suite| suite.prompts.truncate(count.max(1)));
    }
    let all = [MethodArg::Plain, MethodArg::Ngram, MethodArg::DraftModel];
    let possible = if args.models.draft.is_some() { &all[..] } else { &all[..2] };
    let methods = if args.methods.is_empty() { possible } else { &args.methods };
    let contenders = methods.iter().flat_map(|&method| {
        let depths = if method == MethodArg::Plain { &args.max_draft[..1] } else { &args.max_draft[..] };
        depths.iter().map(move |&max_draft| Contender { method: method.into(), max_draft })
    });
    let mut sampling = args.sampling.params();
    if args.sampling.is_default() {
        sampling = hunch::sample::SamplingParams::greedy();
    }
    Ok(BenchPlan {
        suites,
        contenders: contenders.collect(),
        max_tokens: args.max_tokens,
        sampling,
        runs: args.runs,
        ..BenchPlan::default()
    })
}

fn show(progress: Progress<'_>) {
    match progress {
        Progress::Cost { done, total } => eprint!("\r\x1b[Kcost of a pass: {done} of {total}"),
        Progress::Answer { suite, prompt, method, done, total, .. } => {
            eprint!("\r\x1b[K{done} of {total}: {suite}, {prompt}, {method}");
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
