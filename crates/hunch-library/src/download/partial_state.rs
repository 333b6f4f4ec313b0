//! An unfinished download on disk. It is the folder `.downloads/<id>/` in the models folder, with a lock
//! file next to it. It holds the request, the Hub's file list and the partial files. File names are Hunch's
//! own, except a quarantined file's, whose name was checked.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::hub;
use crate::hub::RemoteFile;
use crate::types::DownloadRequest;
use hunch_error::{Error, Result};
use hunch_model::{atomic_file, hex};

/// Folder of unfinished downloads in the models folder. Scans skip it.
pub(super) const FOLDER: &str = ".downloads";
/// Name of the state file.
const STATE_FILE: &str = "state.json";

/// Content of the state file. Never includes the token.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PartialState {
    pub(super) request: DownloadRequest,
    /// Set if the download was active. The window resumes it after a restart.
    #[serde(rename = "wanted")]
    pub(super) resume_on_start: bool,
    /// Files to download, empty until the Hub has listed them.
    pub(super) parts: Vec<RemoteFile>,
}

impl PartialState {
    pub(super) fn new(request: &DownloadRequest) -> Self {
        Self { request: request.clone(), resume_on_start: false, parts: Vec::new() }
    }

    pub(super) fn total(&self) -> Option<u64> {
        let sum = |sum: u64, part: &RemoteFile| sum.saturating_add(part.size);
        (!self.parts.is_empty()).then(|| self.parts.iter().fold(0, sum))
    }

    /// Checks names read from disk, because the file is untrusted.
    fn is_valid(&self) -> bool {
        hub::repository(&self.request.repository).is_ok_and(|name| name == self.request.repository)
            && hub::check_path(&self.request.file).is_ok()
            && self.parts.iter().all(|part| hub::check_part(&part.path).is_ok())
    }
}

/// Returns the id of a download, which depends on repository and file only.
pub(super) fn download_id(request: &DownloadRequest) -> String {
    hex(&Sha256::digest(format!("{}\n{}", request.repository, request.file)))[..16].to_owned()
}

/// Lock held by the program that works on a download.
#[derive(Debug)]
pub(super) struct DownloadLock(File);

impl Drop for DownloadLock {
    fn drop(&mut self) {
        // Closing is not enough: a child process being spawned may hold a copy of the descriptor.
        let _ = self.0.unlock();
    }
}

/// Folder and lock file of a download.
#[derive(Clone, Debug)]
pub(super) struct PartialDownload {
    folder: PathBuf,
    /// Simulates a volume without locks, with this folder for the machine's locks.
    #[cfg(test)]
    lockless: Option<PathBuf>,
}

impl PartialDownload {
    pub(super) fn new(models: &Path, id: &str) -> Self {
        Self {
            folder: models.join(FOLDER).join(id),
            #[cfg(test)]
            lockless: None,
        }
    }

    /// Returns the folder.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of a partial file.
    pub(super) fn part_path(&self, index: usize) -> PathBuf {
        self.folder.join(format!("{index:05}.part"))
    }

    /// Returns the folder in which a model folder is put together.
    pub(super) fn whole_path(&self) -> PathBuf {
        self.folder.join("whole")
    }

    /// Returns the size of a partial file, in bytes.
    pub(super) fn part_bytes(&self, index: usize) -> u64 {
        std::fs::metadata(self.part_path(index)).map_or(0, |file| file.len())
    }

    /// Returns the size of all partial files, in bytes.
    pub(super) fn bytes(&self, state: &PartialState) -> u64 {
        (0..state.parts.len()).map(|index| self.part_bytes(index)).sum()
    }

    /// Takes the exclusive lock on the download.
    pub(super) fn lock(&self, name: &str) -> Result<DownloadLock> {
        // A short conflict is only another program checking the lock.
        for _ in 0..3 {
            let file = self.lock_file()?;
            match self.try_lock(&file) {
                // The previous holder may have deleted the lock file, and another program created a new
                // one.
                Ok(()) if !is_current(&file, &self.lock_path()) => {}
                Ok(()) => return Ok(DownloadLock(file)),
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(5)),
                // Some network file systems have no locks.
                Err(TryLockError::Error(_)) => match self.machine_lock() {
                    // Downloads work without any lock, too.
                    None => return Ok(DownloadLock(file)),
                    Some(lock) => match lock.try_lock() {
                        Ok(()) | Err(TryLockError::Error(_)) => return Ok(DownloadLock(lock)),
                        Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(5)),
                    },
                },
            }
        }
        Err(Error::DownloadElsewhere { name: name.to_owned() })
    }

    /// Checks whether the folder exists.
    pub(super) fn exists(&self) -> bool {
        self.folder.is_dir()
    }

    /// Checks whether another program or task holds the lock.
    pub(super) fn is_locked(&self) -> bool {
        let Ok(file) = File::open(self.lock_path()) else { return false };
        match self.try_lock_shared(&file) {
            Ok(()) => {
                let _ = file.unlock();
                false
            }
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Error(_)) => self.machine_lock().is_some_and(|lock| {
                let held = matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock));
                let _ = lock.unlock();
                held
            }),
        }
    }

    /// Opens the lock file for a download on a volume without locks.
    ///
    /// It is in the user's data folder, so that at least two programs on this machine do not append to the
    /// same partial file. Returns `None` if that folder is not writable.
    fn machine_lock(&self) -> Option<File> {
        let locks = self.machine_locks()?;
        let models = self.folder.parent()?.canonicalize().ok()?;
        let path = models.join(self.folder.file_name()?);
        let name = &hex(&Sha256::digest(path.as_os_str().as_encoded_bytes()))[..16];
        std::fs::create_dir_all(&locks).ok()?;
        let path = locks.join(format!("{name}.lock"));
        OpenOptions::new().create(true).truncate(false).write(true).open(path).ok()
    }

    fn machine_locks(&self) -> Option<PathBuf> {
        #[cfg(test)]
        if self.lockless.is_some() {
            return self.lockless.clone();
        }
        Some(crate::data_folders::data_folder().ok()?.join("locks"))
    }

    fn try_lock(&self, file: &File) -> Result<(), TryLockError> {
        #[cfg(test)]
        if self.lockless.is_some() {
            return Err(TryLockError::Error(std::io::ErrorKind::Unsupported.into()));
        }
        file.try_lock()
    }

    fn try_lock_shared(&self, file: &File) -> Result<(), TryLockError> {
        #[cfg(test)]
        if self.lockless.is_some() {
            return Err(TryLockError::Error(std::io::ErrorKind::Unsupported.into()));
        }
        file.try_lock_shared()
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
    pub(super) fn load(&self) -> Option<PartialState> {
        let bytes = std::fs::read(self.folder.join(STATE_FILE)).ok()?;
        serde_json::from_slice(&bytes).ok().filter(PartialState::is_valid)
    }

    /// Replaces the state file atomically.
    pub(super) fn store(&self, state: &PartialState) -> Result<()> {
        let text = serde_json::to_string_pretty(state).expect("text and numbers are serialisable");
        atomic_file::write(&self.folder.join(STATE_FILE), &text)
    }

    /// Deletes a partial file.
    pub(super) fn delete_part(&self, index: usize) -> Result<()> {
        let path = self.part_path(index);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::Io { action: "remove", path, source })
            }
            _ => Ok(()),
        }
    }

    /// Quarantines a partial file that must not become a model, replacing an older one.
    pub(super) fn quarantine(&self, index: usize, name: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        let io = |source| Error::Io { action: "rename", path: path.clone(), source };
        std::fs::rename(self.part_path(index), &path).map_err(io)?;
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
fn is_current(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let number = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
    file.metadata().ok().map(number) == std::fs::metadata(path).ok().map(number)
}

/// On other systems, lock files are never deleted.
#[cfg(not(unix))]
fn is_current(_file: &File, _path: &Path) -> bool {
    true
}

/// State of a download's folder.
#[derive(Clone, Debug)]
pub(super) enum OnDisk {
    /// The state file is valid.
    Readable(PartialState),
    /// There are partial files, and the state file is missing or corrupt.
    Unreadable {
        /// Size of all files.
        bytes: u64,
    },
}

/// Returns every download in a models folder, by id.
pub(super) fn all(models: &Path) -> Vec<(String, OnDisk)> {
    let Ok(entries) = std::fs::read_dir(models.join(FOLDER)) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let found = |name: String| on_disk(models, &name).map(|found| (name, found));
    names.filter(|name| is_download_id(name)).filter_map(found).collect()
}

/// Returns the downloads with a valid state file.
pub(super) fn all_readable(models: &Path) -> Vec<(String, PartialState)> {
    let known = |(id, found)| match found {
        OnDisk::Readable(state) => Some((id, state)),
        OnDisk::Unreadable { .. } => None,
    };
    all(models).into_iter().filter_map(known).collect()
}

/// Returns the state of a download's folder, or `None` if it is empty.
fn on_disk(models: &Path, name: &str) -> Option<OnDisk> {
    let partial = PartialDownload::new(models, name);
    if let Some(state) = partial.load().filter(|state| download_id(&state.request) == name) {
        return Some(OnDisk::Readable(state));
    }
    // The program holding the lock is about to write the state file, or to delete the folder.
    let bytes = if partial.is_locked() { 0 } else { bytes_in(&partial.folder) };
    (bytes > 0).then_some(OnDisk::Unreadable { bytes })
}

/// Returns the size of all files in a folder, in bytes.
fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| entry.metadata().ok()).filter(std::fs::Metadata::is_file);
    files.fold(0, |sum, file| sum.saturating_add(file.len()))
}

/// Checks whether a folder name is a download id.
fn is_download_id(name: &str) -> bool {
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
        let partial = PartialDownload::new(folder.path(), &download_id(&request()));
        assert!(!partial.is_locked());
        let guard = partial.lock("m").unwrap();
        assert!(partial.is_locked());
        assert!(matches!(partial.lock("m"), Err(Error::DownloadElsewhere { .. })));
        drop(guard);
        assert!(!partial.is_locked());
        partial.lock("m").unwrap();
    }

    #[test]
    fn lock_is_exclusive_on_volume_without_locks() {
        let (folder, locks) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let partial = |id: &str| PartialDownload {
            lockless: Some(locks.path().join("locks")),
            ..PartialDownload::new(folder.path(), id)
        };
        let id = download_id(&request());
        let guard = partial(&id).lock("m").unwrap();
        assert!(partial(&id).is_locked());
        assert!(matches!(partial(&id).lock("m"), Err(Error::DownloadElsewhere { .. })));
        let other = partial("0123456789abcdef");
        other.lock("m").unwrap();
        assert!(!other.is_locked());
        drop(guard);
        assert!(!partial(&id).is_locked());
        partial(&id).lock("m").unwrap();
        // Downloads also work if the machine has no folder for locks.
        std::fs::write(locks.path().join("file"), "").unwrap();
        let nowhere = PartialDownload { lockless: Some(locks.path().join("file")), ..partial(&id) };
        nowhere.lock("m").unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn lock_works_after_its_file_was_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let partial = PartialDownload::new(folder.path(), &download_id(&request()));
        partial.store(&PartialState::new(&request())).unwrap();
        let guard = partial.lock("m").unwrap();
        let late = partial.lock_file().unwrap();
        partial.remove().unwrap();
        assert_eq!(std::fs::read_dir(folder.path().join(FOLDER)).unwrap().count(), 0);
        drop(guard);
        // A handle to the deleted lock file locks nothing.
        late.try_lock().unwrap();
        assert!(!is_current(&late, &partial.lock_path()));
        let second = partial.lock("m").unwrap();
        assert!(partial.is_locked() && is_current(&second.0, &partial.lock_path()));
    }

    #[test]
    fn finds_unreadable_downloads_unless_locked() {
        let folder = tempfile::tempdir().unwrap();
        let partial = PartialDownload::new(folder.path(), &download_id(&request()));
        partial.store(&PartialState::new(&request())).unwrap();
        std::fs::write(partial.part_path(0), "12345").unwrap();
        assert!(matches!(all(folder.path())[..], [(_, OnDisk::Readable(_))]));
        for damage in ["", "{\"request\": "] {
            std::fs::write(partial.folder.join(STATE_FILE), damage).unwrap();
            let bytes = 5 + damage.len() as u64;
            assert!(
                matches!(all(folder.path())[..], [(_, OnDisk::Unreadable { bytes: found })] if found == bytes)
            );
        }
        std::fs::remove_file(partial.folder.join(STATE_FILE)).unwrap();
        assert!(matches!(all(folder.path())[..], [(_, OnDisk::Unreadable { bytes: 5 })]));
        let guard = partial.lock("m").unwrap();
        assert!(all(folder.path()).is_empty(), "it may be about to be deleted");
        drop(guard);
        std::fs::write(partial.part_path(0), "").unwrap();
        assert!(all(folder.path()).is_empty(), "an empty download is ignored");
    }

    #[test]
    fn state_with_unsafe_paths_or_wrong_id_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let partial = PartialDownload::new(folder.path(), &download_id(&request()));
        let part = RemoteFile { path: "m.gguf".into(), size: 7, sha256: None };
        let state = PartialState { request: request(), resume_on_start: true, parts: vec![part] };
        partial.store(&state).unwrap();
        assert_eq!(partial.load().unwrap().total(), Some(7));
        assert_eq!(all(folder.path()).len(), 1);
        // With the id of another download, and without a valid one.
        for name in ["0123456789abcdef", "0123456789ABCDEF", "notes"] {
            PartialDownload::new(folder.path(), name).store(&state).unwrap();
        }
        assert_eq!(all_readable(folder.path()).len(), 1);
        let mut evil = state;
        evil.parts[0].path = "../../m.gguf".into();
        partial.store(&evil).unwrap();
        assert!(partial.load().is_none() && all_readable(folder.path()).is_empty());
        partial.remove().unwrap();
        partial.remove().unwrap();
    }
}
