//! `hunch verify`: the proof as a table, PASS or FAIL, and the exit code.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use hunch::error::Error;
use hunch::proof::{self, Check, Oracle, Thoroughness};

use super::ModelArgs;
use super::run::load;

/// Proves that speculation changes nothing.
#[derive(Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    models: ModelArgs,
    /// Distributions of another engine to compare the target with
    #[arg(long, value_name = "ORACLE.json")]
    against: Option<PathBuf>,
    /// Samples of each method and context in the token law check
    #[arg(long, default_value_t = 200, value_name = "N", value_parser = clap::value_parser!(u64).range(20..=100_000))]
    samples: u64,
}

pub(crate) fn run(args: &VerifyArgs) -> Result<bool> {
    let oracle = args.against.as_ref().map(read_oracle).transpose()?;
    let mut models = load(&args.models)?;
    let mut passed = true;
    let mut show = |checks: Vec<Check>| -> Result<()> {
        let mut out = std::io::stdout().lock();
        for check in checks {
            passed &= check.passed;
            let word = if check.passed { "pass" } else { "FAIL" };
            writeln!(out, "{word}  {:<52} {}", check.name, check.finding)?;
        }
        Ok(())
    };
    show(proof::row_invariance(&mut models)?)?;
    show(proof::identity(&mut models)?)?;
    if let Some(oracle) = &oracle {
        show(proof::against_oracle(&mut models, oracle)?)?;
    }
    let thoroughness = Thoroughness { samples: args.samples as usize };
    show(proof::token_law(&mut models, thoroughness)?)?;
    writeln!(std::io::stdout(), "{}", if passed { "PASS" } else { "FAIL" })?;
    Ok(passed)
}

fn read_oracle(path: &PathBuf) -> Result<Oracle> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::Io {
        action: "read",
        path: path.clone(),
        source,
    })?;
    serde_json::from_str(&text).with_context(|| format!("{} is not an oracle file", path.display()))
}
