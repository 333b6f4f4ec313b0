//! Heads on this machine: folders and files of others among the models, and the heads that Hunch trained.

use std::path::{Path, PathBuf};

use super::folders::added_folders;
use super::places::Places;
use crate::data_folders::HEADS_FOLDER;
use crate::types::ModelEntry;
use hunch_error::{Error, Result};
use hunch_model::heads::{self, HeadSummary};
use serde::Serialize;

/// Folders below a searched one: owner and repository.
const DEPTH: usize = 2;
/// Most entries of a folder that are searched.
const MAX_ENTRIES: usize = 1000;

/// A head on this machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeadEntry {
    /// Name of its folder, or of its file without the extension.
    pub name: String,
    /// Path of its folder or file.
    pub path: PathBuf,
    /// Facts from its files.
    pub head: HeadSummary,
}

/// Lists the heads on this machine, by name. `models` are the files that were found there: one that is no model may be
/// a head. Files and folders that cannot be read are left out.
pub fn heads(places: &Places, models: &[ModelEntry]) -> Vec<HeadEntry> {
    let mut paths: Vec<PathBuf> = Vec::new();
    let added = added_folders(places).unwrap_or_default();
    for folder in std::iter::once(&places.models).chain(&added) {
        subfolders(folder, DEPTH, &mut paths);
    }
    let trained = places.data.as_deref().map(|data| entries(&data.join(HEADS_FOLDER))).unwrap_or_default();
    let is_head = |path: &PathBuf| path.extension().is_some_and(|e| e == "gguf") || path.is_dir();
    paths.extend(trained.into_iter().filter(is_head));
    paths
        .extend(models.iter().filter(|model| model.problem.is_some()).map(|model| model.path.clone().into()));
    let mut found: Vec<HeadEntry> = paths.into_iter().filter_map(|path| head_at(&path)).collect();
    found.sort_by(|a, b| (&a.name, &a.path).cmp(&(&b.name, &b.path)));
    found.dedup_by(|a, b| a.path == b.path);
    found
}

/// Describes the head in a folder or file. `None` if there is none, or it cannot be read.
pub fn head_at(path: &Path) -> Option<HeadEntry> {
    let head = heads::describe(path).ok().flatten()?;
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    Some(HeadEntry { name: name?.to_string_lossy().into_owned(), path: path.to_path_buf(), head })
}

/// Returns the path of a head given by path or name.
///
/// # Errors
/// [`Error::InvalidRequest`] with the existing names if there is no head of this name, or several.
pub fn resolve_head(name: &Path, places: &Places) -> Result<PathBuf> {
    if name.exists() {
        return Ok(name.to_path_buf());
    }
    let found = heads(places, &super::scan(places).models);
    let is_called =
        |head: &&HeadEntry| name.to_str().is_some_and(|name| head.name.eq_ignore_ascii_case(name));
    let own: Vec<&HeadEntry> = found.iter().filter(is_called).collect();
    let shown = name.display();
    match own[..] {
        [one] => Ok(one.path.clone()),
        [] if found.is_empty() => Err(Error::invalid(format!(
            "There is no head \"{shown}\". Give the path of its folder, or put the folder into {}.",
            places.models.display()
        ))),
        [] => {
            let names: Vec<&str> = found.iter().map(|head| &head.name[..]).collect();
            Err(Error::invalid(format!(
                "There is no head \"{shown}\". Give the path of its folder, or one of these names: {}.",
                names.join(", ")
            )))
        }
        _ => {
            let paths: Vec<String> = own.iter().map(|head| format!("  {}", head.path.display())).collect();
            Err(Error::invalid(format!(
                "{} heads are called \"{shown}\". Give the path of the one you mean:\n{}",
                own.len(),
                paths.join("\n")
            )))
        }
    }
}

/// Adds the folders below a folder.
fn subfolders(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    for path in entries(folder).into_iter().filter(|path| path.is_dir()) {
        if depth > 1 {
            subfolders(&path, depth - 1, found);
        }
        found.push(path);
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.take(MAX_ENTRIES).map(|entry| entry.path()).collect();
    paths.sort();
    paths
}
