//! Models given by path: whether they are listed, and under which name.

use std::path::Path;

use hunch_error::Result;
use hunch_model::model_folder;

use super::candidates::candidates_near;
use super::folders::was_loaded;
use super::inspect::{Inspection, inspect, listed_as};
use super::places::Places;
use crate::types::{ModelEntry, ModelSource};

/// Inspects a model given by path, under its listed name and source.
///
/// # Errors
/// As [`inspect`].
pub fn inspect_listed(path: &Path, places: &Places) -> Result<Inspection> {
    let found = candidates_near(&[path], places).candidates.into_iter();
    let listed = found.into_iter().find(|c| c.files.iter().any(|file| file.path == path));
    let inspected = inspect(path)?;
    let entry = match listed {
        Some(candidate) => {
            ModelEntry { source: candidate.source, ..listed_as(&candidate.name, inspected.entry) }
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
    let found = candidates_near(paths, places).candidates;
    let is_listed =
        |path: &&Path| found.iter().any(|candidate| candidate.files.iter().any(|file| file.path == **path));
    paths.iter().map(is_listed).collect()
}

/// Checks whether a path is a folder of safetensors files that can be loaded as a model.
pub fn is_model_folder(path: &Path) -> bool {
    path.is_dir() && model_folder::weight_files(path).is_some()
}
