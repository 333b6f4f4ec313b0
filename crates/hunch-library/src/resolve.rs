//! Resolves a path or short name to a model file.

use std::path::{Path, PathBuf};

use super::candidates::{ModelCandidate, candidates_in, find_candidates};
use super::names::{DEFAULT_MODEL, is_default_name};
use super::ollama;
use super::places::Places;
use crate::types::ModelSource;
use hunch_error::{Error, Result};
use hunch_model::model_folder;

/// Names listed in an error message.
const MAX_LISTED_NAMES: usize = 40;

/// Returns the file of a model given by path or short name, for a model folder its first weight file. Hunch's own folder is searched first. In other
/// folders the name must be unique. For a split model, returns its first existing part. The default model is also found
/// under the name that it has on the Hub.
///
/// # Errors
/// [`Error::ModelNotFound`] with the existing names; [`Error::InvalidRequest`] with the paths if several
/// models have this name.
pub fn resolve(name: &str, places: &Places) -> Result<PathBuf> {
    let path = Path::new(name);
    if path.is_file() {
        return Ok(path.to_path_buf());
    }
    if let Some(first) = model_folder::weight_files(path).and_then(|files| files.into_iter().next()) {
        return Ok(first);
    }
    // Most names are in Hunch's own folder, so the other folders are searched only if needed.
    if let Some(found) = only_one(name, &candidates_in(&places.models, ModelSource::Hunch))? {
        return Ok(found);
    }
    let known = find_candidates(places).candidates;
    match only_one(name, &known)? {
        Some(found) => Ok(found),
        None => Err(not_found(name, places, &known)),
    }
}

/// Returns the only model of that name, if there is one.
fn only_one(name: &str, candidates: &[ModelCandidate]) -> Result<Option<PathBuf>> {
    let is_called = |candidate: &&ModelCandidate| {
        let short = candidate.name.strip_suffix(ollama::LATEST).unwrap_or(&candidate.name);
        candidate.name.eq_ignore_ascii_case(name) || short.eq_ignore_ascii_case(name)
    };
    let mut found: Vec<&ModelCandidate> = candidates.iter().filter(is_called).collect();
    if found.is_empty() && name == DEFAULT_MODEL {
        found = candidates.iter().filter(|candidate| is_default_name(&candidate.name)).collect();
    }
    match found[..] {
        [] => Ok(None),
        [one] => Ok(Some(one.path().to_path_buf())),
        _ => {
            let paths: Vec<String> = found.iter().map(|c| format!("  {}", c.path().display())).collect();
            Err(Error::invalid(format!(
                "{} models are called \"{name}\". Give the path of the one you mean:\n{}",
                found.len(),
                paths.join("\n")
            )))
        }
    }
}

fn not_found(name: &str, places: &Places, known: &[ModelCandidate]) -> Error {
    let folder = places.models.display();
    let mut names: Vec<&str> = known.iter().map(|candidate| candidate.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let rest = names.len().saturating_sub(MAX_LISTED_NAMES);
    names.truncate(MAX_LISTED_NAMES);
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    let remedy = if name == DEFAULT_MODEL {
        format!("Run `make setup` to download it into {folder}.")
    } else if names.is_empty() {
        format!("Give the path of a GGUF file, or put one in {folder}.")
    } else {
        format!(
            "Give the path of a GGUF file or an MLX folder, or one of these names: {}{more}.",
            names.join(", ")
        )
    };
    Error::ModelNotFound { name: name.into(), remedy }
}

#[cfg(test)]
mod tests {
    use super::super::folders::add_folder;
    use super::*;

    fn places(root: &Path) -> Places {
        let (models, data) = (root.join("models"), Some(root.join("data")));
        std::fs::create_dir_all(&models).unwrap();
        Places { models, data, ..Places::default() }
    }

    #[test]
    fn resolves_model_by_name_and_by_path() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        let file = places.models.join("Tiny-Q8_0.gguf");
        std::fs::write(&file, b"not a model").unwrap();
        assert_eq!(resolve("tiny-q8_0", &places).unwrap(), file);
        assert_eq!(resolve(file.to_str().unwrap(), &places).unwrap(), file);
        let error = resolve("other", &places).unwrap_err().to_string();
        assert!(error.contains("Tiny-Q8_0"), "{error}");
    }

    #[test]
    fn finds_the_default_model_under_its_name_on_the_hub() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        let downloaded = places.models.join("SmolLM2-135M-Instruct.Q4_1.gguf");
        std::fs::write(&downloaded, b"x").unwrap();
        std::fs::write(places.models.join("SmolLM2-135M-Instruct.Q8_0.gguf"), b"x").unwrap();
        assert_eq!(resolve(DEFAULT_MODEL, &places).unwrap(), downloaded);
        let own = places.models.join(format!("{DEFAULT_MODEL}.gguf"));
        std::fs::write(&own, b"x").unwrap();
        assert_eq!(resolve(DEFAULT_MODEL, &places).unwrap(), own);
    }

    #[test]
    fn catalogue_names_the_default_model_as_it_is_found() {
        let file = &crate::catalogue::by_id(DEFAULT_MODEL).unwrap().file;
        assert!(is_default_name(file.strip_suffix(".gguf").unwrap()), "{file}");
    }

    #[test]
    fn own_folder_wins_and_ambiguous_names_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        for folder in ["one", "two"] {
            let folder = root.path().join(folder);
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("twin.gguf"), b"x").unwrap();
            add_folder(&places, &folder).unwrap();
        }
        std::fs::write(root.path().join("two/big-00001-of-00002.gguf"), b"x").unwrap();
        assert!(resolve("big", &places).unwrap().ends_with("big-00001-of-00002.gguf"));
        let error = resolve("twin", &places).unwrap_err().to_string();
        assert!(error.contains("one/twin.gguf") && error.contains("two/twin.gguf"), "{error}");
        let own = places.models.join("twin.gguf");
        std::fs::write(&own, b"x").unwrap();
        assert_eq!(resolve("twin", &places).unwrap(), own);
    }
}
