//! A download on disk: `.downloads/<number>/` in the models folder, with what was asked for, what the
//! hub said of it and the bytes so far, and a lock beside it that the program holds which is at it.
//! No name from outside becomes the name of a file here, except that of a file set aside, which was
//! checked.

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

/// The folder of unfinished downloads in the models folder. Whoever looks for models passes it by.
pub(super) const FOLDER: &str = ".downloads";
/// What is known of a download.
const STATE: &str = "state.json";

/// What is known of a download. Never the token.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) request: DownloadRequest,
    /// Whether it was under way: the window goes on with it after a restart.
    pub(super) wanted: bool,
    /// The files it consists of, as the hub told; none before it has.
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

    /// The file may have been written by anybody.
    fn is_sound(&self) -> bool {
        hub::repository(&self.request.repository).is_ok_and(|name| name == self.request.repository)
            && hub::check_path(&self.request.file).is_ok()
            && self.parts.iter().all(|part| hub::check_path(&part.path).is_ok())
    }
}

/// The number of a download: the same for the same file of the same repository.
pub(super) fn id(request: &DownloadRequest) -> String {
    hex(&Sha256::digest(format!("{}\n{}", request.repository, request.file)))[..16].to_owned()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Held by the program that is at a download.
#[derive(Debug)]
pub(super) struct Held(File);

impl Drop for Held {
    fn drop(&mut self) {
        // Closing the file would not do while a process that is just being started has a copy of it.
        let _ = self.0.unlock();
    }
}

/// Where a download lies.
#[derive(Clone, Debug)]
pub(super) struct Place {
    folder: PathBuf,
    /// Makes the volume one without locks, with this folder for the locks of the machine.
    #[cfg(test)]
    lockless: Option<PathBuf>,
}

impl Place {
    pub(super) fn new(models: &Path, id: &str) -> Self {
        Self {
            folder: models.join(FOLDER).join(id),
            #[cfg(test)]
            lockless: None,
        }
    }

    /// Where all of it lies.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The bytes of a part.
    pub(super) fn part(&self, index: usize) -> PathBuf {
        self.folder.join(format!("{index:05}.part"))
    }

    /// Bytes of a part that are here.
    pub(super) fn part_bytes(&self, index: usize) -> u64 {
        std::fs::metadata(self.part(index)).map_or(0, |file| file.len())
    }

    /// Bytes of all parts that are here.
    pub(super) fn bytes(&self, kept: &Kept) -> u64 {
        (0..kept.parts.len()).map(|index| self.part_bytes(index)).sum()
    }

    /// Makes this program the only one that is at the download.
    pub(super) fn hold(&self, name: &str) -> Result<Held> {
        // Another one that only looks whether it is held does so for an instant.
        for _ in 0..3 {
            let file = self.lock_file()?;
            match self.try_lock(&file) {
                // Whoever held it before may have removed it with the download, and a third one have made another.
                Ok(()) if !is_at(&file, &self.lock_path()) => {}
                Ok(()) => return Ok(Held(file)),
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(5)),
                // A volume without locks, as some of a network are.
                Err(TryLockError::Error(_)) => match self.machine_lock() {
                    // Better than no downloads there.
                    None => return Ok(Held(file)),
                    Some(lock) => match lock.try_lock() {
                        Ok(()) | Err(TryLockError::Error(_)) => return Ok(Held(lock)),
                        Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(5)),
                    },
                },
            }
        }
        Err(Error::DownloadElsewhere { name: name.to_owned() })
    }

    /// Whether the download has a folder.
    pub(super) fn exists(&self) -> bool {
        self.folder.is_dir()
    }

    /// Whether another one is at it.
    pub(super) fn is_held(&self) -> bool {
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

    /// The lock of a download on a volume without locks: a file in the data folder of this user, so that at least two
    /// programs of one machine do not append to the same part. None where that folder cannot be written to.
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
        Some(crate::data_folder().ok()?.join("locks"))
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
        std::fs::create_dir_all(path.parent().expect("it lies in a folder")).map_err(io)?;
        OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(io)
    }

    /// What is known of it, if that is sound.
    pub(super) fn load(&self) -> Option<Kept> {
        let bytes = std::fs::read(self.folder.join(STATE)).ok()?;
        serde_json::from_slice(&bytes).ok().filter(Kept::is_sound)
    }

    /// Writes what is known of it: the old or the new is there, whatever happens.
    pub(super) fn store(&self, kept: &Kept) -> Result<()> {
        let text = serde_json::to_string_pretty(kept).expect("text and numbers have a form");
        atomic_file::write(&self.folder.join(STATE), &text)
    }

    /// Throws away what is here of a part.
    pub(super) fn drop_part(&self, index: usize) -> Result<()> {
        let path = self.part(index);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::Io { action: "remove", path, source })
            }
            _ => Ok(()),
        }
    }

    /// Keeps a part that must not become a model out of the way. An older one of that name goes.
    pub(super) fn set_aside(&self, index: usize, name: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        let io = |source| Error::Io { action: "rename", path: path.clone(), source };
        std::fs::rename(self.part(index), &path).map_err(io)?;
        Ok(path)
    }

    /// Throws all of it away, and last the lock, which whoever does this holds.
    pub(super) fn remove(&self) -> Result<()> {
        match std::fs::remove_dir_all(&self.folder) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::Io { action: "remove", path: self.folder.clone(), source });
            }
            _ => {}
        }
        // An empty file that stays does no harm.
        #[cfg(unix)]
        let _ = std::fs::remove_file(self.lock_path());
        Ok(())
    }
}

/// Whether an open file is the one of that name.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let number = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
    file.metadata().ok().map(number) == std::fs::metadata(path).ok().map(number)
}

/// Elsewhere it is never removed.
#[cfg(not(unix))]
fn is_at(_file: &File, _path: &Path) -> bool {
    true
}

/// What lies in the folder of a download.
#[derive(Clone, Debug)]
pub(super) enum Found {
    /// What is known of it.
    Known(Kept),
    /// Bytes, and nothing that tells what they are: the file that did was damaged, or is gone.
    Lost {
        /// How many.
        bytes: u64,
    },
}

/// Every download that lies in a models folder, by its number.
pub(super) fn all(models: &Path) -> Vec<(String, Found)> {
    let Ok(entries) = std::fs::read_dir(models.join(FOLDER)) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let found = |name: String| found(models, &name).map(|found| (name, found));
    names.filter(|name| is_id(name)).filter_map(found).collect()
}

/// Those of them of which is known what they are.
pub(super) fn known(models: &Path) -> Vec<(String, Kept)> {
    let known = |(id, found)| match found {
        Found::Known(kept) => Some((id, kept)),
        Found::Lost { .. } => None,
    };
    all(models).into_iter().filter_map(known).collect()
}

/// What lies in the folder of that name; `None` for nothing worth a word.
fn found(models: &Path, name: &str) -> Option<Found> {
    let place = Place::new(models, name);
    if let Some(kept) = place.load().filter(|kept| id(&kept.request) == name) {
        return Some(Found::Known(kept));
    }
    // A program that is at it is about to write that down, or to remove it all.
    let bytes = if place.is_held() { 0 } else { bytes_in(&place.folder) };
    (bytes > 0).then_some(Found::Lost { bytes })
}

/// Bytes of the files in a folder.
fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| entry.metadata().ok()).filter(std::fs::Metadata::is_file);
    files.fold(0, |sum, file| sum.saturating_add(file.len()))
}

/// Whether that can be the number of a download.
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
    fn one_at_a_time_is_at_a_download() {
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

    #[test]
    fn one_at_a_time_is_at_a_download_on_a_volume_without_locks() {
        let (folder, locks) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let place =
            |id: &str| Place { lockless: Some(locks.path().join("locks")), ..Place::new(folder.path(), id) };
        let id = id(&request());
        let held = place(&id).hold("m").unwrap();
        assert!(place(&id).is_held());
        assert!(matches!(place(&id).hold("m"), Err(Error::DownloadElsewhere { .. })));
        let other = place("0123456789abcdef");
        other.hold("m").unwrap();
        assert!(!other.is_held());
        drop(held);
        assert!(!place(&id).is_held());
        place(&id).hold("m").unwrap();
        // Where the machine has no place for locks either there are downloads all the same.
        std::fs::write(locks.path().join("file"), "").unwrap();
        let nowhere = Place { lockless: Some(locks.path().join("file")), ..place(&id) };
        nowhere.hold("m").unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn the_lock_goes_with_the_download_and_holds_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new(folder.path(), &id(&request()));
        place.store(&Kept::new(&request())).unwrap();
        let held = place.hold("m").unwrap();
        let late = place.lock_file().unwrap();
        place.remove().unwrap();
        assert_eq!(std::fs::read_dir(folder.path().join(FOLDER)).unwrap().count(), 0);
        drop(held);
        // Who has opened the old one holds nothing by it.
        late.try_lock().unwrap();
        assert!(!is_at(&late, &place.lock_path()));
        let again = place.hold("m").unwrap();
        assert!(place.is_held() && is_at(&again.0, &place.lock_path()));
    }

    #[test]
    fn bytes_that_nothing_is_known_of_are_found_while_nobody_is_at_them() {
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
    fn what_is_kept_comes_back_unless_it_names_what_it_must_not() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new(folder.path(), &id(&request()));
        let part = RemoteFile { path: "m.gguf".into(), size: 7, sha256: None };
        let kept = Kept { request: request(), wanted: true, parts: vec![part] };
        place.store(&kept).unwrap();
        assert_eq!(place.load().unwrap().total(), Some(7));
        assert_eq!(all(folder.path()).len(), 1);
        // Under the number of another one, and under none.
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
