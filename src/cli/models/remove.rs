//! `hunch models rm`: removes a model from Hunch's own folder, after confirmation.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use hunch_library::Places;

use super::confirm;
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
    let paths = files.iter().map(|file| file.display().to_string());
    if !args.yes && !confirm::ask("Removing a model", paths, size)? {
        return report(args, json, &[], 0);
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
