//! An unfinished download on disk: `.downloads/<id>/` in the models folder, and a lock file next to it.
//! Holds the request, the Hub's file list and the partial files. File names are Hunch's own, except a
//! quarantined file's, whose name was checked.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::atomic_file;
use crate::hub;
use crate::hub::RemoteFile;
use crate::types::DownloadRequest;
use hunch_error::{Error, Result};

/// Folder of unfinished downloads in the models folder. Scans skip it.
pub(super) const FOLDER: &str = ".downloads";
/// Name of the state file.
const STATE: &str = "state.json";

/// Content of the state file. Never includes the token.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) request: DownloadRequest,
    /// Whether the download was active: the window resumes it after a restart.
    pub(super) wanted: bool,
    /// Files to download, empty until the Hub has listed them.
    pub(super) parts: Vec<RemoteFile>,
}

impl Kept {
    pub(super) fn new(request: &DownloadRequest) -> Self {
        Self { request: request.clone(), wanted: false, parts: Vec::new() }
    }

    pub(super) fn total(&self) -> Option<u64> {
        let sum = |sum: u64, part: &RemoteFile| sum.saturating_add(part.size);
        (!self.parts.is_empty()).then(|| self.parts.iter().fold(0, sum))
    }

    /// Checks names read from disk, because the file is untrusted.
    fn is_sound(&self) -> bool {
        hub::repository(&self.request.repository).is_ok_and(|name| name == self.request.repository)
            && hub::check_path(&self.request.file).is_ok()
            && self.parts.iter().all(|part| hub::check_path(&part.path).is_ok())
    }
}

/// Returns the id of a download, the same for the same file of the same repository.
pub(super) fn id(request: &DownloadRequest) -> String {
    hex(&Sha256::digest(format!("{}\n{}", request.repository, request.file)))[..16].to_owned()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Lock held by the program that works on a download.
#[derive(Debug)]
pub(super) struct Held(File);

impl Drop for Held {
    fn drop(&mut self) {
        // Closing is not enough: a child process being spawned may hold a copy of the descriptor.
        let _ = self.0.unlock();
    }
}

/// Folder and lock file of a download.
#[derive(Clone, Debug)]
pub(super) struct Place {
    folder: PathBuf,
}

impl Place {
    pub(super) fn new(models: &Path, id: &str) -> Self {
        Self { folder: models.join(FOLDER).join(id) }
    }

    /// Returns the folder.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of a partial file.
    pub(super) fn part(&self, index: usize) -> PathBuf {
        self.folder.join(format!("{index:05}.part"))
    }

    /// Returns the size of a partial file, in bytes.
    pub(super) fn part_bytes(&self, index: usize) -> u64 {
        std::fs::metadata(self.part(index)).map_or(0, |file| file.len())
    }

    /// Returns the size of all partial files, in bytes.
    pub(super) fn bytes(&self, kept: &Kept) -> u64 {
        (0..kept.parts.len()).map(|index| self.part_bytes(index)).sum()
    }

    /// Takes the exclusive lock on the download.
    pub(super) fn hold(&self, name: &str) -> Result<Held> {
        // A short conflict is only another program checking the lock.
        for _ in 0..3 {
            let file = self.lock_file()?;
            match file.try_lock() {
                // The previous holder may have deleted the lock file, and another program created a new
                // one.
                Ok(()) if !is_at(&file, &self.lock_path()) => {}
                // Some network file systems have no locks. Downloads work there without one.
                Ok(()) | Err(TryLockError::Error(_)) => return Ok(Held(file)),
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        Err(Error::DownloadElsewhere { name: name.to_owned() })
    }

    /// Checks whether the folder exists.
    pub(super) fn exists(&self) -> bool {
        self.folder.is_dir()
    }

    /// Checks whether another program or task holds the lock.
    pub(super) fn is_held(&self) -> bool {
        let Ok(file) = File::open(self.lock_path()) else { return false };
        match file.try_lock_shared() {
            Ok(()) => {
                let _ = file.unlock();
                false
            }
            Err(error) => matches!(error, TryLockError::WouldBlock),
        }
    }

    fn lock_path(&self) -> PathBuf {
        self.folder.with_extension("lock")
    }

    fn lock_file(&self) -> Result<File> {
        let path = self.lock_path();
        let io = |source| Error::Io { action: "write", path: path.clone(), source };
        std::fs::create_dir_all(path.parent().expect("a download has a parent folder")).map_err(io)?;
        OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(io)
    }

    /// Reads the state file, if it is valid.
    pub(super) fn load(&self) -> Option<Kept> {
        let bytes = std::fs::read(self.folder.join(STATE)).ok()?;
        serde_json::from_slice(&bytes).ok().filter(Kept::is_sound)
    }

    /// Replaces the state file atomically.
    pub(super) fn store(&self, kept: &Kept) -> Result<()> {
        let text = serde_json::to_string_pretty(kept).expect("text and numbers are serialisable");
        atomic_file::write(&self.folder.join(STATE), &text)
    }

    /// Deletes a partial file.
    pub(super) fn drop_part(&self, index: usize) -> Result<()> {
        let path = self.part(index);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::Io { action: "remove", path, source })
            }
            _ => Ok(()),
        }
    }

    /// Quarantines a partial file that must not become a model, replacing an older one.
    pub(super) fn set_aside(&self, index: usize, name: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        let io = |source| Error::Io { action: "rename", path: path.clone(), source };
        std::fs::rename(self.part(index), &path).map_err(io)?;
        Ok(path)
    }

    /// Deletes the download, then its lock file. The caller holds the lock.
    pub(super) fn remove(&self) -> Result<()> {
        match std::fs::remove_dir_all(&self.folder) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::Io { action: "remove", path: self.folder.clone(), source });
            }
            _ => {}
        }
        // A remaining empty lock file does no harm.
        #[cfg(unix)]
        let _ = std::fs::remove_file(self.lock_path());
        Ok(())
    }
}

/// Checks whether an open file is still the one at `path`.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let number = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
    file.metadata().ok().map(number) == std::fs::metadata(path).ok().map(number)
}

/// On other systems, lock files are never deleted.
#[cfg(not(unix))]
fn is_at(_file: &File, _path: &Path) -> bool {
    true
}

/// State of a download's folder.
#[derive(Clone, Debug)]
pub(super) enum Found {
    /// The state file is valid.
    Known(Kept),
    /// There are partial files, and the state file is missing or corrupt.
    Lost {
        /// Size of all files.
        bytes: u64,
    },
}

/// Returns every download in a models folder, by id.
pub(super) fn all(models: &Path) -> Vec<(String, Found)> {
    let Ok(entries) = std::fs::read_dir(models.join(FOLDER)) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let found = |name: String| found(models, &name).map(|found| (name, found));
    names.filter(|name| is_id(name)).filter_map(found).collect()
}

/// Returns the downloads with a valid state file.
pub(super) fn known(models: &Path) -> Vec<(String, Kept)> {
    let known = |(id, found)| match found {
        Found::Known(kept) => Some((id, kept)),
        Found::Lost { .. } => None,
    };
    all(models).into_iter().filter_map(known).collect()
}

/// Returns the state of a download's folder, or `None` if it is empty.
fn found(models: &Path, name: &str) -> Option<Found> {
    let place = Place::new(models, name);
    if let Some(kept) = place.load().filter(|kept| id(&kept.request) == name) {
        return Some(Found::Known(kept));
    }
    // The program holding the lock is about to write the state file, or to delete the folder.
    let bytes = if place.is_held() { 0 } else { bytes_in(&place.folder) };
    (bytes > 0).then_some(Found::Lost { bytes })
}

/// Returns the size of all files in a folder, in bytes.
fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| entry.metadata().ok()).filter(std::fs::Metadata::is_file);
    files.fold(0, |sum, file| sum.saturating_add(file.len()))
}

/// Checks whether a folder name is a download id.
fn is_id(name: &str) -> bool {
    name.len() == 16 && name.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> DownloadRequest {
        DownloadRequest { repository: "a/b".into(), file: "m.gguf".into(), expected_sha256: None }
    }

    #[test]
    fn lock_is_exclusive() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new(folder.path(), &id(&request()));
        assert!(!place.is_held());
        let held = place.hold("m").unwrap();
        assert!(place.is_held());
        assert!(matches!(place.hold("m"), Err(Error::DownloadElsewhere { .. })));
        drop(held);
        assert!(!place.is_held());
        place.hold("m").unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn lock_works_after_its_file_was_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new(folder.path(), &id(&request()));
        place.store(&Kept::new(&request())).unwrap();
        let held = place.hold("m").unwrap();
        let late = place.lock_file().unwrap();
        place.remove().unwrap();
        assert_eq!(std::fs::read_dir(folder.path().join(FOLDER)).unwrap().count(), 0);
        drop(held);
        // A handle to the deleted lock file locks nothing.
        late.try_lock().unwrap();
        assert!(!is_at(&late, &place.lock_path()));
        let again = place.hold("m").unwrap();
        assert!(place.is_held() && is_at(&again.0, &place.lock_path()));
    }

    #[test]
    fn finds_unreadable_downloads_unless_locked() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new(folder.path(), &id(&request()));
        place.store(&Kept::new(&request())).unwrap();
        std::fs::write(place.part(0), "12345").unwrap();
        assert!(matches!(all(folder.path())[..], [(_, Found::Known(_))]));
        for damage in ["", "{\"request\": "] {
            std::fs::write(place.folder.join(STATE), damage).unwrap();
            let bytes = 5 + damage.len() as u64;
            assert!(matches!(all(folder.path())[..], [(_, Found::Lost { bytes: found })] if found == bytes));
        }
        std::fs::remove_file(place.folder.join(STATE)).unwrap();
        assert!(matches!(all(folder.path())[..], [(_, Found::Lost { bytes: 5 })]));
        let held = place.hold("m").unwrap();
        assert!(all(folder.path()).is_empty(), "it may be being removed");
        drop(held);
        std::fs::write(place.part(0), "").unwrap();
        assert!(all(folder.path()).is_empty(), "nothing is lost with it");
    }

    #[test]
    fn state_with_unsafe_paths_or_wrong_id_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new(folder.path(), &id(&request()));
        let part = RemoteFile { path: "m.gguf".into(), size: 7, sha256: None };
        let kept = Kept { request: request(), wanted: true, parts: vec![part] };
        place.store(&kept).unwrap();
        assert_eq!(place.load().unwrap().total(), Some(7));
        assert_eq!(all(folder.path()).len(), 1);
        // With the id of another download, and without a valid one.
        for name in ["0123456789abcdef", "0123456789ABCDEF", "notes"] {
            Place::new(folder.path(), name).store(&kept).unwrap();
        }
        assert_eq!(known(folder.path()).len(), 1);
        let mut evil = kept;
        evil.parts[0].path = "../../m.gguf".into();
        place.store(&evil).unwrap();
        assert!(place.load().is_none() && known(folder.path()).is_empty());
        place.remove().unwrap();
        place.remove().unwrap();
    }
}
