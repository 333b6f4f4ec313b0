//! The models on this machine: where they lie, what they are, which of them fit together. Reads
//! headers, never weights; loads nothing.

mod inspect;

use std::path::{Path, PathBuf};

use directories::BaseDirs;

use crate::api::ModelEntry;
use crate::error::{Error, Result};
pub use inspect::{Inspection, inspect};

/// Short name of the model Hunch starts with: SmolLM2-135M-Instruct, Q4_1, Apache-2.0.
pub const DEFAULT_MODEL: &str = "smollm2-135m-instruct-q4_1";

/// Hunch's data folder: `$HUNCH_DATA_DIR`, else the system's place for application data.
///
/// # Errors
/// When the system names no home folder.
pub fn data_folder() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("HUNCH_DATA_DIR").filter(|f| !f.is_empty()) {
        return Ok(folder.into());
    }
    let dirs = BaseDirs::new().ok_or_else(|| {
        Error::invalid("This user has no home folder. Set HUNCH_DATA_DIR to a folder for Hunch's data.")
    })?;
    Ok(dirs.data_dir().join("hunch"))
}

/// Where models are looked for: `models` in the data folder.
///
/// # Errors
/// As [`data_folder`].
pub fn models_folder() -> Result<PathBuf> {
    Ok(data_folder()?.join("models"))
}

/// Where the layers are kept that a target skips when it drafts for itself.
///
/// # Errors
/// As [`data_folder`].
pub fn skip_sets_folder() -> Result<PathBuf> {
    Ok(data_folder()?.join("skip-sets"))
}

/// The file of conversations.
///
/// # Errors
/// As [`data_folder`].
pub fn conversations_path() -> Result<PathBuf> {
    Ok(data_folder()?.join("conversations.db"))
}

/// Where the low-bit copy of a model file belongs, whether it is there or not.
///
/// # Errors
/// As [`data_folder`], and when the file is not there.
pub fn low_bit_path(target: &Path) -> Result<PathBuf> {
    let io = |source| Error::Io { action: "read", path: target.to_path_buf(), source };
    let size = std::fs::metadata(target).map_err(io)?.len();
    Ok(data_folder()?.join("low-bit").join(format!("{}-{size}.gguf", short_name(target))))
}

/// The default model's file, whether it is there or not.
///
/// # Errors
/// As [`data_folder`].
pub fn default_model_path() -> Result<PathBuf> {
    Ok(models_folder()?.join(format!("{DEFAULT_MODEL}.gguf")))
}

/// The GGUF files of a folder, by name. A folder that is not there holds none.
///
/// # Errors
/// When the folder is there and cannot be read.
pub fn list(folder: &Path) -> Result<Vec<ModelEntry>> {
    let mut paths = gguf_files(folder)?;
    paths.sort();
    Ok(paths.iter().map(|path| entry(path)).collect())
}

fn gguf_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let io = |source| Error::Io { action: "read", path: folder.to_path_buf(), source };
    match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(io(error)),
        Ok(entries) => {
            let mut paths = Vec::new();
            for entry in entries {
                let path = entry.map_err(io)?.path();
                if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) {
                    paths.push(path);
                }
            }
            Ok(paths)
        }
    }
}

/// A file that cannot be used is listed too, with the reason.
fn entry(path: &Path) -> ModelEntry {
    match inspect(path) {
        Ok(inspection) => inspection.entry,
        Err(error) => ModelEntry {
            name: short_name(path),
            path: path.display().to_string(),
            size_bytes: std::fs::metadata(path).map_or(0, |m| m.len()),
            architecture: String::new(),
            parameters: 0,
            quantisation: String::new(),
            context_length: 0,
            is_default: false,
            problem: Some(error.to_string()),
        },
    }
}

/// A file's name without its extension.
fn short_name(path: &Path) -> String {
    path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned())
}

/// The file of a model given by path, or by short name in `folder`.
///
/// # Errors
/// [`Error::ModelNotFound`] with the names that exist.
pub fn find(name: &str, folder: &Path) -> Result<PathBuf> {
    let path = Path::new(name);
    if path.is_file() {
        return Ok(path.to_path_buf());
    }
    let known = gguf_files(folder)?;
    if let Some(found) = known.iter().find(|path| short_name(path).eq_ignore_ascii_case(name)) {
        return Ok(found.clone());
    }
    let mut names: Vec<_> = known.iter().map(|path| short_name(path)).collect();
    names.sort();
    let remedy = if name == DEFAULT_MODEL {
        format!("`make setup` fetches it into {}.", folder.display())
    } else if names.is_empty() {
        format!("Give the path of a GGUF file, or put one into {}.", folder.display())
    } else {
        format!(
            "Give the path of a GGUF file, or one of the names in {}: {}.",
            folder.display(),
            names.join(", ")
        )
    };
    Err(Error::ModelNotFound { name: name.into(), remedy })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_with_and_without_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("Tiny-Q8_0.gguf");
        std::fs::write(&file, b"not a model").unwrap();
        assert_eq!(find("tiny-q8_0", folder.path()).unwrap(), file);
        assert_eq!(find(file.to_str().unwrap(), folder.path()).unwrap(), file);
        let error = find("other", folder.path()).unwrap_err().to_string();
        assert!(error.contains("Tiny-Q8_0"), "{error}");
    }

    #[test]
    fn an_unusable_file_is_listed_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("broken.gguf"), b"GGUF").unwrap();
        std::fs::write(folder.path().join("notes.txt"), b"hello").unwrap();
        let entries = list(folder.path()).unwrap();
        assert_eq!(entries.len(), 1);
        assert!(entries[0].problem.is_some());
        assert!(list(&folder.path().join("nowhere")).unwrap().is_empty());
    }
}
