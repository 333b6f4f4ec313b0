//! `hunch models folders`: where models are looked for.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use hunch_library::Places;

use super::list::source;
use crate::cli::render;

/// What to do with the list of folders.
#[derive(Args)]
pub(crate) struct FoldersArgs {
    #[command(subcommand)]
    command: Option<FoldersCommand>,
}

#[derive(Subcommand)]
enum FoldersCommand {
    /// Looks through another folder from now on; nothing is ever written to it
    Add {
        /// The folder
        path: PathBuf,
    },
    /// Looks through an added folder no longer; its files stay
    Remove {
        /// The folder
        path: PathBuf,
    },
}

pub(crate) fn run(args: &FoldersArgs, places: &Places, json: bool) -> Result<()> {
    match &args.command {
        None => {}
        Some(FoldersCommand::Add { path }) => hunch_library::add_folder(places, path)?,
        Some(FoldersCommand::Remove { path }) => hunch_library::remove_folder(places, path)?,
    }
    let folders = hunch_library::scan(places).folders;
    let mut out = std::io::stdout().lock();
    if json {
        return Ok(writeln!(out, "{}", serde_json::to_string(&folders)?)?);
    }
    let rows: Vec<_> = folders
        .iter()
        .map(|folder| {
            let models = if folder.exists { folder.models.to_string() } else { "not there".into() };
            vec![folder.path.clone(), source(folder.source).into(), models]
        })
        .collect();
    writeln!(out, "{}", render::table(&["folder", "source", "models"], &rows))?;
    for folder in &folders {
        if let Some(problem) = &folder.problem {
            writeln!(out, "{}", render::line(&format!("{}: {problem}", folder.path)))?;
        }
    }
    Ok(())
}
