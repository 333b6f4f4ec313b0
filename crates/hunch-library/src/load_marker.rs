//! A file that names the models being loaded. It exists only while they load, so one found at a start names models
//! that ended the program: a failing disk, too little memory, a driver.

use std::path::{Path, PathBuf};

use super::atomic_file;
use crate::types::LoadRequest;
use hunch_error::Result;

/// The models whose loading did not end, in `folder`; a damaged file is treated as missing.
pub fn found(folder: &Path) -> Option<LoadRequest> {
    serde_json::from_str(&atomic_file::text(&path(folder))?).ok()
}

/// Marks models as being loaded, until [`clear`].
///
/// # Errors
/// [`Error::Io`](hunch_error::Error::Io) when the file cannot be written.
pub fn set(folder: &Path, request: &LoadRequest) -> Result<()> {
    atomic_file::write(&path(folder), &serde_json::json!(request).to_string())
}

/// Removes the mark, if there is one: the program survived.
pub fn clear(folder: &Path) {
    // One that stays makes the next start ask, no more.
    let _ = std::fs::remove_file(path(folder));
}

fn path(folder: &Path) -> PathBuf {
    folder.join("loading.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_found_only_while_models_load() {
        let folder = tempfile::tempdir().unwrap();
        let request = LoadRequest { target: "/models/a.gguf".into(), draft: None, context: Some(512) };
        assert_eq!(found(folder.path()), None);
        set(folder.path(), &request).unwrap();
        assert_eq!(found(folder.path()), Some(request));
        clear(folder.path());
        assert_eq!(found(folder.path()), None);
        std::fs::write(path(folder.path()), "{\"target\":").unwrap();
        assert_eq!(found(folder.path()), None);
    }
}
