//! `hunch models storage`: data that Hunch made for models.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use hunch_library::Places;
use hunch_library::types::StoredKind;

use super::confirm;
use crate::cli::render;

/// Data to delete, if any.
#[derive(Args)]
pub(crate) struct StorageArgs {
    /// Delete these data, by their path in the list; may be repeated
    #[arg(long, value_name = "PATH")]
    delete: Vec<String>,
    /// Do not ask for confirmation
    #[arg(long, short, requires = "delete")]
    yes: bool,
}

pub(crate) fn run(args: &StorageArgs, places: &Places, json: bool) -> Result<()> {
    if delete_confirmed(args, places)? {
        args.delete.iter().try_for_each(|id| hunch_library::remove_stored_data(places, id))?;
    }
    let stored = hunch_library::stored_data(places);
    let mut out = std::io::stdout().lock();
    if json {
        return Ok(writeln!(out, "{}", serde_json::to_string(&stored)?)?);
    }
    if stored.is_empty() {
        return Ok(writeln!(out, "Nothing is stored for models.")?);
    }
    let rows: Vec<_> = stored
        .iter()
        .map(|stored| {
            let model = stored.model.clone().unwrap_or_else(|| "none here".into());
            vec![stored.id.clone(), kind(stored.kind).into(), model, render::bytes(stored.bytes)]
        })
        .collect();
    writeln!(out, "{}", render::table(&["path", "kind", "model", "size"], &rows))?;
    let all = stored.iter().map(|stored| stored.bytes).sum();
    Ok(writeln!(out, "{} in all. --delete PATH deletes an entry.", render::bytes(all))?)
}

/// Returns whether there are data to delete, and their deletion was confirmed.
fn delete_confirmed(args: &StorageArgs, places: &Places) -> Result<bool> {
    if args.delete.is_empty() || args.yes {
        return Ok(!args.delete.is_empty());
    }
    let stored = hunch_library::stored_data(places);
    let is_unknown = |id: &&String| !stored.iter().any(|stored| stored.id == **id);
    if let Some(unknown) = args.delete.iter().find(is_unknown) {
        // Refused before anything is asked.
        hunch_library::remove_stored_data(places, unknown)?;
    }
    let chosen = stored.iter().filter(|stored| args.delete.contains(&stored.id));
    let bytes = chosen.map(|stored| stored.bytes).sum();
    confirm::ask("Deleting stored data", args.delete.iter().cloned(), bytes)
}

fn kind(kind: StoredKind) -> &'static str {
    match kind {
        StoredKind::LowBitCopy => "low-bit copy",
        StoredKind::TrainingData => "training data",
        StoredKind::Drafter => "trained drafter",
        StoredKind::SetAside => "conversations before a repair",
        StoredKind::Unfinished => "unfinished file",
    }
}
