//! `hunch bench --passes`.

use std::io::{IsTerminal, Write};

use anyhow::Result;
#[cfg(feature = "candle-baseline")]
use hunch::bench::candle::{Candle, CandleModel};
use hunch::bench::passes::{self, ExternalRunner, MemoryReader, Ours, PassEngine, PassPlan, PassReport};
use hunch_error::Error;
use hunch_model::weights::WeightFile;

use super::BenchArgs;
use crate::cli::render;
use crate::cli::run::load;

pub(super) fn run(args: &BenchArgs) -> Result<()> {
    let compute = args.models.compute()?;
    let path = args.models.target_path()?;
    let weight_bytes = WeightFile::open(&path)?.bytes_per_pass();
    let mut models = load(&args.models, &[])?;
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
    let start = |line: &String| beside(line, &path.display().to_string(), threads);
    let mut others = args.beside.iter().map(start).collect::<Result<Vec<_>>>()?;
    let mut ours = Ours(models.target());
    let mut engines: Vec<&mut dyn PassEngine> = vec![&mut ours];
    #[cfg(feature = "candle-baseline")]
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
fn beside(line: &str, model: &str, threads: usize) -> Result<ExternalRunner> {
    let words = line.split_once('=').map(|(name, command)| (name, command.split_whitespace()));
    let Some((name, Some(program), rest)) = words.map(|(name, mut words)| (name, words.next(), words)) else {
        return Err(Error::invalid(format!("--beside \"{line}\" is not NAME=COMMAND.")).into());
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
        "target  {}\n{} threads; a pass reads {} of weights; memory reads {:.1} GB/s here (10^9 bytes)\n\n{}\n\n\
         (t(M)/t(1)) and (of memory) are medians of ratios within a round; engines took turns, pass by pass",
        report.target,
        report.threads,
        render::bytes(report.weight_bytes as u64),
        report.memory_gb_s,
        render::table(&header, &rows)
    )
}
