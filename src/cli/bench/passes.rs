//! `hunch bench passes`: times of passes by rows, memory bandwidth, prefill.

use std::io::Write;

use anyhow::Result;
use clap::Args;
#[cfg(feature = "candle-baseline")]
use hunch::bench::candle::{Candle, CandleModel};
use hunch::bench::passes::{self, ExternalRunner, MemoryReader, Ours, PassEngine, PassPlan, PassReport};
use hunch_core::model::DraftWindow;
use hunch_error::Error;
use hunch_model::spec::ModelSpec;
use hunch_model::weights::WeightFile;

use crate::cli::drafting::load_models;
use crate::cli::progress::ProgressLine;
use crate::cli::{IsaArgs, ModelArgs, render};

#[derive(Args)]
pub(super) struct PassesArgs {
    #[command(flatten)]
    pub(super) models: ModelArgs,
    #[command(flatten)]
    pub(super) isa: IsaArgs,
    /// Prefill repetitions; each pass size is timed twice as often
    #[arg(long, default_value_t = 3, value_name = "N")]
    pub(super) runs: usize,
    /// Tokens in the cache during passes, and before the timed prefill [default: 128, and none before the prefill]
    #[arg(long, value_name = "TOKENS", conflicts_with = "external")]
    pub(super) context: Option<usize>,
    /// Also time passes that read only the first 4 and the last TOKENS tokens of the cache, as drafts can
    ///
    /// Several windows, separated by commas, are timed side by side.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    pub(super) draft_window: Vec<DraftWindow>,
    /// Also time candle-transformers' own model of the same file
    #[cfg(feature = "candle-baseline")]
    #[arg(long)]
    pub(super) candle: bool,
    /// Also time another program, with {model} and {threads} filled in; it speaks the protocol of
    /// src/bench/passes.rs, as scripts/llama-passes.py does; may be repeated
    #[arg(long, value_name = "NAME=COMMAND")]
    pub(super) external: Vec<String>,
    /// Print one JSON object as the last line
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn run(args: &PassesArgs) -> Result<()> {
    args.isa.apply()?;
    let compute = args.models.compute()?;
    let path = args.models.target_path()?;
    let file = WeightFile::open(&path)?;
    let weight_bytes = file.bytes_per_pass(&ModelSpec::from_gguf(file.gguf())?);
    let mut models = load_models(&args.models, &[])?;
    let spec = models.target().info().clone();
    let threads = compute.threads().count();
    let memory = MemoryReader::new(compute.threads());
    #[cfg(feature = "candle-baseline")]
    let mut candle = match args.candle {
        true => {
            let info = models.target().info();
            let model = CandleModel::open(&path, &info.architecture, compute.device())?;
            Some(Candle { model, n_vocab: info.n_vocab })
        }
        false => None,
    };
    let start = |line: &String| start(line, &path.display().to_string(), threads);
    let mut others = args.external.iter().map(start).collect::<Result<Vec<_>>>()?;
    for window in &args.draft_window {
        window.check(&spec.name, spec.context_length).map_err(Error::from)?;
    }
    let mut narrow: Vec<_> =
        args.draft_window.iter().map(|window| (models.target().fork(), *window)).collect();
    let mut narrow: Vec<_> = narrow
        .iter_mut()
        .map(|(model, window)| Ours::new(&mut **model, args.context, Some(*window)))
        .collect();
    let mut ours = Ours::new(models.target(), args.context, None);
    let mut engines: Vec<&mut dyn PassEngine> = vec![&mut ours];
    engines.extend(narrow.iter_mut().map(|engine| engine as &mut dyn PassEngine));
    #[cfg(feature = "candle-baseline")]
    engines.extend(candle.as_mut().map(|candle| candle as &mut dyn PassEngine));
    engines.extend(others.iter_mut().map(|other| other as &mut dyn PassEngine));
    let progress = ProgressLine::new();
    let plan = PassPlan { rounds: 2 * args.runs, weight_bytes };
    let mut memory = || memory.gb_s();
    let (memory_gb_s, engines) = passes::measure(&mut engines, &mut memory, plan, &mut |done, total| {
        progress.step("round", done, total);
    })?;
    drop(progress);
    let report = PassReport { target: spec.name, threads, weight_bytes, memory_gb_s, engines };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", pass_table(&report))?;
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    }
    Ok(())
}

/// Starts the program of a line `NAME=PROGRAM ARGUMENT...`, split at spaces.
fn start(line: &str, model: &str, threads: usize) -> Result<ExternalRunner> {
    let words = line.split_once('=').map(|(name, command)| (name, command.split_whitespace()));
    let Some((name, Some(program), rest)) = words.map(|(name, mut words)| (name, words.next(), words)) else {
        return Err(Error::invalid(format!("--external \"{line}\" is not NAME=COMMAND.")).into());
    };
    let fill = |word: &str| word.replace("{model}", model).replace("{threads}", &threads.to_string());
    Ok(ExternalRunner::start(name, program, &rest.map(fill).collect::<Vec<_>>())?)
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
        "target  {}\n{}. A pass reads {} of weights. Memory bandwidth is {:.1} GB/s (10^9 bytes).\n\n{}\n\n\
         (t(M)/t(1)) and (of memory) are medians of ratios within a round. Engines took turns, pass by pass.",
        report.target,
        render::count(report.threads, "thread"),
        render::bytes(report.weight_bytes as u64),
        report.memory_gb_s,
        render::table(&header, &rows)
    )
}
