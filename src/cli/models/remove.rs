//! `hunch models rm`: takes a model out of Hunch's own folder, after a question.

use std::io::{IsTerminal, Write};

use anyhow::Result;
use clap::Args;
use hunch::error::Error;
use hunch::library::{self, Places};

use crate::cli::render;

/// Which model, and whether to ask.
#[derive(Args)]
pub(crate) struct RemoveArgs {
    /// A name from the list, or the path of a file in Hunch's folder
    name: String,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

pub(crate) fn run(args: &RemoveArgs, places: &Places) -> Result<()> {
    let path = library::find(&args.name, places)?;
    let files = library::removable(&path, places)?;
    let size: u64 = files.iter().filter_map(|file| file.metadata().ok()).map(|meta| meta.len()).sum();
    let mut out = std::io::stdout().lock();
    if !args.yes {
        if !std::io::stdin().is_terminal() {
            let text = "Removing a model asks first, and there is no terminal to answer at. Nothing was \
                        removed. Say --yes to remove it without a question.";
            return Err(Error::invalid(text).into());
        }
        for file in &files {
            writeln!(out, "{}", render::line(&file.display().to_string()))?;
        }
        write!(out, "Remove this for good ({})? [y/N] ", render::bytes(size))?;
        out.flush()?;
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        if !matches!(answer.trim().to_lowercase().as_str(), "y" | "yes") {
            return Ok(writeln!(out, "Nothing was removed.")?);
        }
    }
    library::remove(&path, places)?;
    Ok(writeln!(out, "Removed {} ({}).", args.name, render::bytes(size))?)
}
