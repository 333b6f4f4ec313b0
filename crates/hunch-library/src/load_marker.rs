//! A file that names the models being loaded. It exists only during loading. If it exists at startup,
//! loading crashed the program: a failing disk, too little memory, a driver.

use std::path::{Path, PathBuf};

use super::text_file;
use crate::types::LoadRequest;
use hunch_error::Result;
use hunch_model::atomic_file;

/// Returns the models whose loading did not finish. A corrupt file is treated as missing.
pub fn found(folder: &Path) -> Option<LoadRequest> {
    serde_json::from_str(&text_file::read(&path(folder))?).ok()
}

/// Marks models as being loaded, until [`clear`].
///
/// # Errors
/// [`Error::Io`](hunch_error::Error::Io) if the file cannot be written.
pub fn set(folder: &Path, request: &LoadRequest) -> Result<()> {
    atomic_file::write(&path(folder), serde_json::json!(request).to_string())
}

/// Removes the mark after loading succeeded or failed without a crash.
pub fn clear(folder: &Path) {
    if let Err(error) = std::fs::remove_file(path(folder))
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!("The mark of a load was not removed, so the next start asks once more. {error}");
    }
}

fn path(folder: &Path) -> PathBuf {
    folder.join("loading.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_exists_only_while_models_load() {
        let folder = tempfile::tempdir().unwrap();
        let request =
            LoadRequest { target: "/models/a.gguf".into(), draft: None, head: None, context: Some(512) };
        assert_eq!(found(folder.path()), None);
        set(folder.path(), &request).unwrap();
        assert_eq!(found(folder.path()), Some(request));
        clear(folder.path());
        assert_eq!(found(folder.path()), None);
        std::fs::write(path(folder.path()), "{\"target\":").unwrap();
        assert_eq!(found(folder.path()), None);
    }
}
