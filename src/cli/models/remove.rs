//! `hunch models rm`: removes a model from Hunch's own folder, after confirmation.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use hunch_error::Error;
use hunch_library::Places;

use crate::cli::render;

/// Model to remove.
#[derive(Args)]
pub(crate) struct RemoveArgs {
    /// A name from the list, or the path of a file in Hunch's folder
    name: String,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

pub(crate) fn run(args: &RemoveArgs, places: &Places, json: bool) -> Result<()> {
    let path = hunch_library::resolve(&args.name, places)?;
    let files = hunch_library::removable(&path, places)?;
    let size: u64 = files.iter().filter_map(|file| file.metadata().ok()).map(|meta| meta.len()).sum();
    if !args.yes {
        if !std::io::stdin().is_terminal() {
            let text = "Removing a model needs confirmation, and there is no terminal to ask on. Use --yes to \
                        remove it without asking.";
            return Err(Error::invalid(text).into());
        }
        // The question goes to standard error: standard output may be read by a program.
        let mut asking = std::io::stderr().lock();
        for file in &files {
            writeln!(asking, "{}", render::line(&file.display().to_string()))?;
        }
        write!(asking, "Delete this permanently ({})? [y/N] ", render::bytes(size))?;
        asking.flush()?;
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        if !matches!(answer.trim().to_lowercase().as_str(), "y" | "yes") {
            return report(args, json, &[], 0);
        }
    }
    hunch_library::remove(&path, places)?;
    report(args, json, &files, size)
}

/// Prints what was removed.
fn report(args: &RemoveArgs, json: bool, files: &[PathBuf], size: u64) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        let value = serde_json::json!({ "name": args.name, "removed": files, "freed_bytes": size });
        return Ok(writeln!(out, "{value}")?);
    }
    if files.is_empty() {
        return Ok(writeln!(out, "Nothing was removed.")?);
    }
    Ok(writeln!(out, "Removed {} ({}).", args.name, render::bytes(size))?)
}
