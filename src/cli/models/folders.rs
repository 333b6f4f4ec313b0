//! `hunch models folders`: the folders that are searched for models.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use hunch_library::Places;

use super::list::source;
use crate::cli::render;

/// Change to the list of folders, if any.
#[derive(Args)]
pub(crate) struct FoldersArgs {
    #[command(subcommand)]
    command: Option<FoldersCommand>,
}

#[derive(Subcommand)]
enum FoldersCommand {
    /// Search another folder; nothing is ever written to it
    Add {
        /// The folder
        path: PathBuf,
    },
    /// Stop searching an added folder; its files stay
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
            let models = if folder.exists { folder.models.to_string() } else { "missing".into() };
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
