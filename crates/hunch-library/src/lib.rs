//! Models on this machine: discovery, inspection, memory fit, pairing and downloads. Reads headers, never
//! weights, and loads nothing. Folders of other programs are only read.

mod candidates;
pub mod catalogue;
pub mod download;
pub mod fit;
mod folders;
mod header_cache;
mod heads;
pub mod http;
pub mod hub;
mod inspect;
mod jan;
pub mod keychain;
pub mod load_marker;
mod locked_json;
pub mod machine;
mod ollama;
pub mod pairs;
mod places;
mod quantisation;
mod remove;
mod resolve;
mod scan;
pub mod speed_log;
mod text_file;
pub mod types;
pub mod vocabularies;
mod walk;
pub mod watch;

use std::path::{Path, PathBuf};

use directories::BaseDirs;

use crate::types::{ModelEntry, ModelSource};
pub use folders::{add_folder, added_folders, remember_loaded, remove_folder, was_loaded};
pub use heads::{HeadEntry, head_at, heads, resolve_head};
use hunch_error::{Refusal, Result};
use hunch_model::{low_bit, model_folder, split};
pub use inspect::{Inspection, inspect, template_note};
pub use places::Places;
pub use remove::{removable, remove};
pub use resolve::resolve;
pub use scan::{Scan, scan};

/// Short name of the default model: SmolLM2-135M-Instruct, Q4_1, Apache-2.0.
pub const DEFAULT_MODEL: &str = "smollm2-135m-instruct-q4_1";

/// Returns Hunch's data folder: `$HUNCH_DATA_DIR`, or the system's folder for application data.
///
/// # Errors
/// If the system reports no home folder.
pub fn data_folder() -> Result<PathBuf> {
    named_data_folder().map_or_else(usual_data_folder, Ok)
}

/// Returns the folder named by `$HUNCH_DATA_DIR`, unless it is the default one.
pub fn other_data_folder() -> Option<PathBuf> {
    let real = |folder: &Path| folder.canonicalize().ok();
    let is_usual = |named: &PathBuf| usual_data_folder().is_ok_and(|usual| real(&usual) == real(named));
    named_data_folder().filter(|named| real(named).is_none() || !is_usual(named))
}

fn named_data_folder() -> Option<PathBuf> {
    std::env::var_os("HUNCH_DATA_DIR").filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

fn usual_data_folder() -> Result<PathBuf> {
    let dirs = BaseDirs::new().ok_or(Refusal::NoDataFolder)?;
    Ok(dirs.data_dir().join("hunch"))
}

/// Returns Hunch's own models folder: `models` in the data folder.
///
/// # Errors
/// As [`data_folder`].
pub fn models_folder() -> Result<PathBuf> {
    Ok(data_folder()?.join("models"))
}

/// Returns the folder of skip sets. A skip set lists the layers that a target skips in self-speculation.
///
/// # Errors
/// As [`data_folder`].
pub fn skip_sets_folder() -> Result<PathBuf> {
    Ok(data_folder()?.join("skip-sets"))
}

/// Name of the folder of trained heads in the data folder.
pub const HEADS_FOLDER: &str = "heads";

/// Returns the folder of trained heads.
///
/// # Errors
/// As [`data_folder`].
pub fn heads_folder() -> Result<PathBuf> {
    Ok(data_folder()?.join(HEADS_FOLDER))
}

/// Returns the folder with the training data of a target's heads, one for each seed. Its name includes a fingerprint
/// of the contents, as in [`low_bit_path`].
///
/// # Errors
/// As [`low_bit_path`].
pub fn training_folder(target: &Path, seed: u64) -> Result<PathBuf> {
    training_folder_in(&data_folder()?, target, seed)
}

/// As [`training_folder`], in another data folder than the user's.
///
/// # Errors
/// If the target cannot be read.
pub fn training_folder_in(data: &Path, target: &Path, seed: u64) -> Result<PathBuf> {
    let name = format!("{}-{}-seed-{seed}", short_name(target), low_bit::fingerprint(target)?);
    Ok(data.join("drafters").join(name))
}

/// Returns the path of the conversation database.
///
/// # Errors
/// As [`data_folder`].
pub fn conversations_path() -> Result<PathBuf> {
    Ok(data_folder()?.join("conversations.db"))
}

/// Returns the path of a model's low-bit copy, which may not exist. The name includes a fingerprint of the
/// contents, so models of the same name do not collide.
///
/// # Errors
/// As [`data_folder`], and if the file cannot be read.
pub fn low_bit_path(target: &Path) -> Result<PathBuf> {
    let name = format!("{}-{}.gguf", short_name(target), low_bit::fingerprint(target)?);
    Ok(data_folder()?.join("low-bit").join(name))
}

/// Returns the path of the default model, which may not exist.
///
/// # Errors
/// As [`data_folder`].
pub fn default_model_path() -> Result<PathBuf> {
    Ok(models_folder()?.join(format!("{DEFAULT_MODEL}.gguf")))
}

/// Inspects a model given by path, under its listed name and source.
///
/// # Errors
/// As [`inspect`].
pub fn inspect_listed(path: &Path, places: &Places) -> Result<Inspection> {
    let found = candidates::candidates_near(&[path], places).candidates.into_iter();
    let listed = found.into_iter().find(|c| c.files.iter().any(|file| file.path == path));
    let inspected = inspect(path)?;
    let entry = match listed {
        Some(candidate) => {
            ModelEntry { source: candidate.source, ..inspect::listed_as(&candidate.name, inspected.entry) }
        }
        None => ModelEntry { source: ModelSource::Added, is_default: false, ..inspected.entry },
    };
    Ok(Inspection { entry, ..inspected })
}

/// Checks for each file whether its model is listed or was loaded before.
pub fn are_known(paths: &[&Path], places: &Places) -> Vec<bool> {
    let listed = are_listed(paths, places);
    paths.iter().zip(listed).map(|(path, listed)| listed || was_loaded(places, path)).collect()
}

/// Checks for each file whether it belongs to a listed model.
pub fn are_listed(paths: &[&Path], places: &Places) -> Vec<bool> {
    let found = candidates::candidates_near(paths, places).candidates;
    let is_listed =
        |path: &&Path| found.iter().any(|candidate| candidate.files.iter().any(|file| file.path == **path));
    paths.iter().map(is_listed).collect()
}

/// Checks whether a path is a folder of safetensors files that can be loaded as a model.
pub fn is_model_folder(path: &Path) -> bool {
    path.is_dir() && model_folder::weight_files(path).is_some()
}

/// Returns a file's name without its extension and part suffix.
pub fn short_name(path: &Path) -> String {
    split::stem(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_file_is_listed_with_a_problem() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("broken.gguf"), b"GGUF").unwrap();
        std::fs::write(folder.path().join("notes.txt"), b"hello").unwrap();
        let found = |folder: &Path| scan(&Places::only(folder.to_path_buf())).models;
        let entries = found(folder.path());
        assert_eq!(entries.len(), 1);
        assert!(entries[0].problem.is_some());
        assert!(found(&folder.path().join("nowhere")).is_empty());
    }
}
