//! `hunch verify`: the checks that speculation changes nothing, as a table and an exit code.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use hunch::proof::{self, Oracle, ProofCheck, ProofPlan};
use hunch_core::method::Method;
use hunch_core::propose::Needs;
use hunch_core::rule::AcceptanceRule;
use hunch_error::Error;

use super::drafting::{OptionArgs, load_with, method_parser};
use super::{DrafterArgs, IsaArgs, ModelArgs, render};

/// Prove that speculation changes nothing.
#[derive(Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    models: ModelArgs,
    #[command(flatten)]
    drafters: DrafterArgs,
    #[command(flatten)]
    isa: IsaArgs,
    /// Methods to check, separated by commas [default: all that these models can run]
    #[arg(long, visible_alias = "method", value_parser = method_parser(), value_delimiter = ',')]
    methods: Vec<Method>,
    #[command(flatten)]
    options: OptionArgs,
    /// Acceptance rule to check: lossless, match or coupled; a lossy rule is expected to fail
    #[arg(long, default_value_t = AcceptanceRule::Lossless, value_name = "RULE")]
    rule: AcceptanceRule,
    /// Compare the target with distributions recorded from another engine
    #[arg(long, value_name = "ORACLE.json")]
    against: Option<PathBuf>,
    /// Samples per method and context for the distribution check
    #[arg(long, default_value_t = 200, value_name = "N", value_parser = clap::value_parser!(u64).range(20..=100_000))]
    samples: u64,
}

pub(crate) fn run(args: &VerifyArgs) -> Result<bool> {
    args.isa.apply()?;
    let oracle = args.against.as_ref().map(read_oracle).transpose()?;
    args.rule.validate()?;
    let mut models = load_with(&args.models, &args.drafters, &args.methods)?;
    let mut usable = models.usable_methods();
    // Texts of the user rarely continue the prompts of the checks.
    usable.retain(|method| !method.requires(Needs::Texts));
    let methods = if args.methods.is_empty() { &usable } else { &args.methods };
    let plan = ProofPlan {
        options: args.options.options(models.target()),
        rule: args.rule,
        samples: args.samples as usize,
        ..ProofPlan::of(methods.clone())
    };
    let mut passed = true;
    let mut show = |checks: Vec<ProofCheck>| -> Result<()> {
        passed &= checks.iter().all(|check| check.passed);
        let word = |passed: bool| if passed { "pass" } else { "FAIL" }.to_owned();
        let row = |check: ProofCheck| vec![word(check.passed), check.name, check.finding];
        let rows: Vec<Vec<String>> = checks.into_iter().map(row).collect();
        Ok(writeln!(std::io::stdout(), "{}", render::list(&rows))?)
    };
    show(proof::row_invariance(&mut models)?)?;
    show(proof::identity(&mut models, &plan)?)?;
    if let Some(oracle) = &oracle {
        show(proof::against_oracle(&mut models, oracle)?)?;
    }
    show(proof::token_distribution(&mut models, &plan)?)?;
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
