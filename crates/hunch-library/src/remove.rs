//! Deletes models. Only files in Hunch's own folder may be deleted.

use std::path::{Path, PathBuf};

use super::candidates::find_candidates;
use super::data_folders::low_bit_path_in;
use super::places::Places;
use crate::types::ModelSource;
use hunch_error::{Error, Refusal, Result};
use hunch_model::input_file::is_hidden;
use hunch_model::{low_bit, model_folder, split};

/// Files of a model folder that no program reads without its weights, in addition to those that Hunch reads.
const COMPANIONS: [&str; 9] = [
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "configuration.json",
];
/// Files that describe a model folder. They may describe other weights in it as well.
const TEXTS: [&str; 4] = ["README.md", "LICENSE", "LICENSE.txt", ".gitattributes"];

/// Returns the files that deleting a model would delete. A split model has several, and so has a model folder.
///
/// # Errors
/// If there is no such model, or it is in another program's folder. The message says how to delete it
/// there.
pub fn removable(path: &Path, places: &Places) -> Result<Vec<PathBuf>> {
    let files: Vec<PathBuf> = split::files(path).into_iter().filter(|file| file.is_file()).collect();
    let is_model = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    if files.is_empty() || (!is_model && !is_listed(path, places)) {
        return Err(Error::ModelNotFound {
            name: path.display().to_string(),
            remedy: "Nothing was removed. `hunch models` lists what is here.".into(),
        });
    }
    // Links are resolved for the folder but not for the file: a link in the folder is deleted, its target
    // stays.
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    let own = places.models.canonicalize().ok();
    match (folder, own) {
        (Some(folder), Some(own)) if folder.starts_with(&own) => Ok(with_companions(path, files)),
        _ => {
            Err(Refusal::NotOwnModel { path: path.into(), detail: where_to(source_of(path, places)).into() }
                .into())
        }
    }
}

/// Deletes a model from Hunch's own folder, and its low-bit copy.
///
/// # Errors
/// As [`removable`], and [`Error::Io`] if a file cannot be deleted.
pub fn remove(path: &Path, places: &Places) -> Result<()> {
    let folder = model_folder::folder_of(path);
    let files = removable(path, places)?;
    // A damaged model may have none.
    let copy = places.data.as_deref().and_then(|data| low_bit_path_in(data, path).ok());
    for file in files {
        std::fs::remove_file(&file).map_err(|source| Error::Io { action: "remove", path: file, source })?;
    }
    // Without its model, nothing finds the copy.
    let of_copy = copy.map_or(Ok(()), |copy| low_bit::remove_copy(&copy));
    // An empty folder is of no use. One with other files stays.
    let own = places.models.canonicalize().ok();
    if let Some(folder) = folder.filter(|folder| folder.canonicalize().ok() != own) {
        let _ = std::fs::remove_dir(folder);
    }
    of_copy
}

/// Adds the settings and texts of a model folder to its weights. Without them, adapters left in the folder are not
/// taken for a model.
fn with_companions(path: &Path, mut files: Vec<PathBuf>) -> Vec<PathBuf> {
    let Some(folder) = model_folder::folder_of(path) else { return files };
    let texts = if has_other_weights(&folder, &files) { &[][..] } else { &TEXTS };
    let companions = COMPANIONS.iter().chain(texts).map(|name| folder.join(name));
    let settings = model_folder::settings_files(path).into_iter().chain(companions);
    // Links count, whatever they lead to.
    files.extend(settings.filter(|file| file.is_file() || file.is_symlink()));
    files
}

/// Returns whether a folder holds weights in addition to those of `files`. If it cannot be read, it may.
fn has_other_weights(folder: &Path, files: &[PathBuf]) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return true };
    let is_weights = |path: &Path| {
        if is_hidden(path) {
            return false;
        }
        let extension = path.extension().map(|extension| extension.to_ascii_lowercase());
        extension
            .is_some_and(|extension| ["gguf", "safetensors", "bin", "pth"].iter().any(|e| extension == *e))
    };
    let is_own = |path: &PathBuf| files.iter().any(|file| file.file_name() == path.file_name());
    entries.flatten().map(|entry| entry.path()).any(|path| is_weights(&path) && !is_own(&path))
}

/// Returns the source of a listed file, or [`ModelSource::Added`] for any other.
pub(super) fn source_of(path: &Path, places: &Places) -> ModelSource {
    let found = find_candidates(places)
        .candidates
        .into_iter()
        .find(|candidate| candidate.files.iter().any(|file| file.path == path));
    found.map_or(ModelSource::Added, |candidate| candidate.source)
}

fn is_listed(path: &Path, places: &Places) -> bool {
    find_candidates(places).candidates.iter().any(|candidate| candidate.path() == path)
}

fn where_to(source: ModelSource) -> &'static str {
    match source {
        ModelSource::Hunch | ModelSource::Added => {
            "Delete the file yourself, or remove its folder from the list."
        }
        ModelSource::HuggingFace => "Remove it with `hf cache rm`, or with the program that downloaded it.",
        ModelSource::LmStudio => "Remove it in LM Studio, under My Models.",
        ModelSource::Ollama => "Remove it with `ollama rm`.",
        ModelSource::LlamaCpp => "Delete the file from llama.cpp's cache yourself.",
        ModelSource::Jan => "Remove it in Jan, under Settings, Model Providers.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(root: &Path) -> Places {
        let models = root.join("models");
        std::fs::create_dir_all(models.join("sub")).unwrap();
        Places { models, home: Some(root.join("home")), ..Places::default() }
    }

    #[test]
    fn removes_all_parts_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let places = Places { data: Some(root.path().into()), ..places(root.path()) };
        for name in ["sub/a-00001-of-00002.gguf", "sub/a-00002-of-00002.gguf", "sub/b.gguf"] {
            std::fs::write(places.models.join(name), "x").unwrap();
        }
        let copy = |name| low_bit_path_in(root.path(), &places.models.join(name)).unwrap();
        let copies = [copy("sub/a-00001-of-00002.gguf"), copy("sub/b.gguf")];
        std::fs::create_dir(copies[0].parent().unwrap()).unwrap();
        copies.iter().for_each(|copy| std::fs::write(copy, "x").unwrap());
        remove(&places.models.join("sub/a-00001-of-00002.gguf"), &places).unwrap();
        assert_eq!(copies.each_ref().map(|copy| copy.exists()), [false, true]);
        let left: Vec<_> = std::fs::read_dir(places.models.join("sub")).unwrap().collect();
        assert_eq!(left.len(), 1);
        assert!(places.models.join("sub/b.gguf").exists());
    }

    /// A model folder with these files, all but empty.
    fn folder_of(folder: &Path, names: &[&str]) {
        std::fs::create_dir_all(folder).unwrap();
        for name in [&["config.json", "tokenizer.json", "model.safetensors"], names].concat() {
            std::fs::write(folder.join(name), "{}").unwrap();
        }
    }

    #[test]
    fn removes_a_model_folder_with_its_settings() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        let folder = places.models.join("Tiny-4bit");
        folder_of(
            &folder,
            &["tokenizer_config.json", "special_tokens_map.json", "README.md", "generation_config.json"],
        );
        remove(&folder.join("model.safetensors"), &places).unwrap();
        assert!(!folder.exists() && places.models.is_dir());
    }

    #[test]
    fn folder_with_other_files_keeps_them() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        let folder = places.models.join("Mine");
        folder_of(&folder, &["notes.txt", "adapters.safetensors", "vocab.json", "README.md"]);
        remove(&folder.join("model.safetensors"), &places).unwrap();
        let files = std::fs::read_dir(&folder).unwrap();
        let mut left: Vec<_> = files.map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["README.md", "adapters.safetensors", "notes.txt"]);
        assert!(!find_candidates(&places).candidates.iter().any(|found| found.path().starts_with(&folder)));
    }

    #[test]
    fn refuses_foreign_models_with_a_remedy() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        let (outside, lm) = (root.path().join("outside.gguf"), root.path().join("home/.lmstudio/models/o/r"));
        std::fs::create_dir_all(&lm).unwrap();
        let lm = lm.join("m.gguf");
        for path in [&outside, &lm] {
            std::fs::write(path, "x").unwrap();
        }
        let candidates_near = places.models.join("sub/../../outside.gguf");
        for path in [&outside, &candidates_near, &lm] {
            assert!(remove(path, &places).is_err(), "{}", path.display());
        }
        assert!(outside.exists() && lm.exists());
        let error = remove(&lm, &places).unwrap_err().to_string();
        assert!(error.contains("in LM Studio"), "{error}");
        std::fs::write(places.models.join("notes.txt"), "x").unwrap();
        assert!(remove(&places.models.join("notes.txt"), &places).is_err());
        assert!(remove(&places.models.join("nowhere.gguf"), &places).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn removes_link_and_keeps_its_target() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        let outside = root.path().join("outside.gguf");
        std::fs::write(&outside, "x").unwrap();
        std::os::unix::fs::symlink(&outside, places.models.join("link.gguf")).unwrap();
        std::os::unix::fs::symlink(root.path(), places.models.join("up")).unwrap();
        assert!(remove(&places.models.join("up/outside.gguf"), &places).is_err());
        remove(&places.models.join("link.gguf"), &places).unwrap();
        assert!(outside.exists() && !places.models.join("link.gguf").exists());
    }
}
