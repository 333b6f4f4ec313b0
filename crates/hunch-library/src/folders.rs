//! Folders added by the user, and models loaded from elsewhere. Stored in `library.json` in the data
//! folder. A plain file, because the command line reads it while the window has the database open.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::places::Places;
use super::{locked_json, text_file};
use hunch_error::{Error, Refusal, Result};
use hunch_model::atomic_file;
use hunch_model::file_lock::FileLock;

/// Limit of added folders, to bound the scan.
const MAX_FOLDERS: usize = 200;

/// Limit of remembered models from elsewhere.
const MAX_LOADED: usize = 50;

#[derive(Default, Serialize, Deserialize)]
struct LibraryFile {
    folders: Vec<PathBuf>,
    /// Models loaded from outside the scanned folders, newest first.
    #[serde(default)]
    loaded: Vec<PathBuf>,
}

fn file(places: &Places) -> Option<PathBuf> {
    places.data.as_ref().map(|data| data.join("library.json"))
}

/// Returns the added folders in the order they were added.
///
/// # Errors
/// If the list exists but cannot be read.
pub fn added_folders(places: &Places) -> Result<Vec<PathBuf>> {
    Ok(load(places)?.folders.into_iter().filter(|folder| folder.is_absolute()).take(MAX_FOLDERS).collect())
}

/// Reads the file. A missing file is an empty list.
fn load(places: &Places) -> Result<LibraryFile> {
    let Some(file) = file(places).filter(|file| file.exists()) else { return Ok(LibraryFile::default()) };
    let stored = text_file::read(&file).and_then(|text| serde_json::from_str::<LibraryFile>(&text).ok());
    stored.ok_or_else(|| Refusal::FolderListUnreadable { path: file }.into())
}

/// Remembers models loaded from outside the scanned folders.
///
/// # Errors
/// If the list cannot be read or written.
pub fn remember_loaded(places: &Places, models: &[&Path]) -> Result<()> {
    let is_new =
        |known: &LibraryFile| models.iter().any(|path| !known.loaded.iter().any(|stored| stored == path));
    if file(places).is_none() || !is_new(&load(places)?) {
        return Ok(());
    }
    let _lock = lock(places)?;
    let mut known = load(places)?;
    known.loaded.retain(|path| !models.contains(&path.as_path()));
    known.loaded.splice(0..0, models.iter().map(|path| path.to_path_buf()));
    known.loaded.truncate(MAX_LOADED);
    write(places, &known)
}

/// Checks whether a model was loaded before from outside the scanned folders.
pub fn was_loaded(places: &Places, model: &Path) -> bool {
    load(places).is_ok_and(|stored| stored.loaded.iter().any(|path| path == model))
}

/// Adds a folder to scan. Hunch never writes to it.
///
/// # Errors
/// If the path is not a folder, is already scanned, or the list cannot be written.
pub fn add_folder(places: &Places, folder: &Path) -> Result<()> {
    let path = folder.canonicalize().map_err(|_| Refusal::NoSuchFolder { folder: folder.into() })?;
    if !path.is_dir() {
        return Err(Refusal::NotAFolder { path }.into());
    }
    if path.to_str().is_none() {
        return Err(Refusal::NotUnicode { path }.into());
    }
    let _lock = lock(places)?;
    let mut folders = added_folders(places)?;
    let known =
        places.roots(&folders).into_iter().any(|root| root.path.canonicalize().is_ok_and(|p| p == path));
    if known {
        return Err(Refusal::FolderKnown { folder: path }.into());
    }
    if folders.len() >= MAX_FOLDERS {
        return Err(Refusal::FolderLimit { limit: MAX_FOLDERS }.into());
    }
    folders.push(path);
    store_folders(places, folders)
}

/// Removes a folder from the list. Its files stay.
///
/// # Errors
/// If the folder is not on the list, or the list cannot be written.
pub fn remove_folder(places: &Places, folder: &Path) -> Result<()> {
    let _lock = lock(places)?;
    let mut folders = added_folders(places)?;
    let real = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
    let before = folders.len();
    folders.retain(|stored| stored != folder && *stored != real);
    if folders.len() == before {
        return Err(Refusal::FolderNotAdded { folder: folder.into() }.into());
    }
    store_folders(places, folders)
}

/// Locks the list from read to write. The window and the command line may both change it.
fn lock(places: &Places) -> Result<Option<FileLock>> {
    file(places).map(|file| locked_json::lock(&file)).transpose()
}

fn store_folders(places: &Places, folders: Vec<PathBuf>) -> Result<()> {
    write(places, &LibraryFile { folders, ..load(places)? })
}

fn write(places: &Places, stored: &LibraryFile) -> Result<()> {
    let file = file(places).ok_or(Refusal::FoldersFixed)?;
    let text = serde_json::to_string_pretty(stored)
        .map_err(|e| Error::Internal(format!("the list of folders cannot be written: {e}")))?;
    atomic_file::write(&file, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_each_folder_once_and_removes_it() {
        let root = tempfile::tempdir().unwrap();
        let places = Places {
            models: root.path().join("data/models"),
            data: Some(root.path().join("data")),
            ..Places::default()
        };
        let (folder, file) = (root.path().join("mine"), root.path().join("file"));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::create_dir_all(&places.models).unwrap();
        std::fs::write(&file, "").unwrap();
        add_folder(&places, &folder).unwrap();
        let real = folder.canonicalize().unwrap();
        assert_eq!(added_folders(&places).unwrap(), std::slice::from_ref(&real));
        for refused in [&folder, &file, &root.path().join("nowhere"), &places.models, &folder.join("../mine")]
        {
            assert!(add_folder(&places, refused).is_err(), "{}", refused.display());
        }
        std::fs::remove_dir(&folder).unwrap();
        remove_folder(&places, &real).unwrap();
        assert!(added_folders(&places).unwrap().is_empty());
        assert!(remove_folder(&places, &real).is_err());
    }

    #[test]
    fn remembers_loaded_models_and_added_folders() {
        let root = tempfile::tempdir().unwrap();
        let places = Places { data: Some(root.path().join("data")), ..Places::default() };
        let [one, two] = ["/a/one.gguf", "/b/two.gguf"].map(Path::new);
        assert!(!was_loaded(&places, one));
        remember_loaded(&places, &[one]).unwrap();
        let folder = root.path().join("mine");
        std::fs::create_dir(&folder).unwrap();
        add_folder(&places, &folder).unwrap();
        remember_loaded(&places, &[two, one]).unwrap();
        assert!(was_loaded(&places, one) && was_loaded(&places, two));
        assert!(!was_loaded(&places, Path::new("/b/three.gguf")));
        assert_eq!(added_folders(&places).unwrap(), [folder.canonicalize().unwrap()]);
        remove_folder(&places, &folder).unwrap();
        assert!(was_loaded(&places, one));
        // With a single models folder nothing is remembered, and nothing fails.
        remember_loaded(&Places::only("/models".into()), &[one]).unwrap();
    }

    #[test]
    fn concurrent_additions_are_all_kept() {
        let root = tempfile::tempdir().unwrap();
        let places = Places { data: Some(root.path().join("data")), ..Places::default() };
        let folder = |name: String| {
            let path = root.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path
        };
        std::thread::scope(|scope| {
            for adder in 0..4 {
                let (places, folder) = (&places, &folder);
                scope.spawn(move || {
                    for i in 0..5 {
                        add_folder(places, &folder(format!("{adder}-{i}"))).unwrap();
                    }
                });
            }
        });
        assert_eq!(added_folders(&places).unwrap().len(), 20);
    }

    #[test]
    fn corrupt_list_is_reported_and_not_overwritten() {
        let root = tempfile::tempdir().unwrap();
        let places = Places { data: Some(root.path().into()), ..Places::default() };
        let file = root.path().join("library.json");
        std::fs::write(&file, "{\"folders\": [").unwrap();
        assert!(added_folders(&places).is_err());
        assert!(add_folder(&places, root.path()).is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "{\"folders\": [");
    }

    #[test]
    fn refuses_to_add_folders_to_a_single_models_folder() {
        let root = tempfile::tempdir().unwrap();
        let error = add_folder(&Places::only(root.path().join("models")), root.path()).unwrap_err();
        assert!(error.to_string().contains("cannot be added"), "{error}");
    }
}
