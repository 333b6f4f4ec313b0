//! Turns downloaded files into a model of the library: verifies checksum and header, then renames. Existing
//! files are never overwritten. The first part of a split model is renamed last. A folder is put together in the
//! download's own one, and appears in the library at once.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use sha2::{Digest, Sha256};

use super::partial_state::PartialDownload;
use crate::hub::{RemoteFile, TOKENISER, is_folder, local_file};
use hunch_error::{Error, Refusal, Result};
use hunch_model::atomic_file::{self, sync_parent};
use hunch_model::gguf::Gguf;
use hunch_model::heads;
use hunch_model::hex;

/// Limit of alternative names tried for a model.
const MAX_NAMES: usize = 100;

/// Final location of a model.
#[derive(Clone, Debug)]
pub(super) struct Destination {
    /// Its short name.
    pub(super) name: String,
    /// Its files.
    pub(super) files: Vec<PathBuf>,
    /// Set for each file that already exists there.
    pub(super) exists: Vec<bool>,
    /// Folder of all files, for a model folder.
    folder: Option<PathBuf>,
}

impl Destination {
    /// Chooses the first name without a different file. Hashes existing files of the same name and size.
    pub(super) fn choose(
        models: &Path,
        stem: &str,
        parts: &[RemoteFile],
        cancelled: &AtomicBool,
    ) -> Result<Self> {
        for number in 1..=MAX_NAMES {
            let name = if number == 1 { stem.to_owned() } else { format!("{stem}-{number}") };
            if is_folder(&parts[0].path) {
                match Self::folder(models.join(&name), name, parts, cancelled)? {
                    Some(found) => return Ok(found),
                    None => continue,
                }
            }
            let file = |index| models.join(local_file(&name, index, parts.len()));
            let files: Vec<PathBuf> = (0..parts.len()).map(file).collect();
            let mut exists = Vec::new();
            for (path, part) in files.iter().zip(parts) {
                match std::fs::symlink_metadata(path) {
                    Err(error) if error.kind() == ErrorKind::NotFound => exists.push(false),
                    _ if is_match(path, part, cancelled)? => exists.push(true),
                    _ => break,
                }
            }
            if exists.len() == parts.len() {
                return Ok(Self { name, files, exists, folder: None });
            }
        }
        Err(Refusal::NameTaken { name: stem.into(), limit: MAX_NAMES }.into())
    }

    /// Returns the architecture of an installed head. `None` for models, which have a tokeniser or are GGUF files.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] and others if the folder is a head that Hunch does not run. It stays where it is.
    pub(super) fn head(&self) -> Result<Option<String>> {
        let is_tokeniser = |file: &PathBuf| file.file_name().is_some_and(|name| name == TOKENISER);
        let Some(folder) = self.folder.as_ref().filter(|_| !self.files.iter().any(is_tokeniser)) else {
            return Ok(None);
        };
        Ok(heads::describe(folder)?.map(|head| head.kind))
    }

    /// Returns a folder as the location of a model folder: a new one, or one that has its files. `None` for others.
    fn folder(
        folder: PathBuf,
        name: String,
        parts: &[RemoteFile],
        cancelled: &AtomicBool,
    ) -> Result<Option<Self>> {
        let files: Vec<PathBuf> = parts.iter().map(|part| folder.join(&part.path)).collect();
        let exists = std::fs::symlink_metadata(&folder).is_ok();
        for (path, part) in files.iter().zip(parts).filter(|_| exists) {
            // Small files have no checksum. The weights have one.
            let has_size = || std::fs::metadata(path).is_ok_and(|file| file.len() == part.size);
            let is_small = part.sha256.is_none() && !is_folder(&part.path);
            if !(if is_small { has_size() } else { is_match(path, part, cancelled)? }) {
                return Ok(None);
            }
        }
        Ok(Some(Self { name, files, exists: vec![exists; parts.len()], folder: Some(folder) }))
    }
}

fn is_match(path: &Path, part: &RemoteFile, cancelled: &AtomicBool) -> Result<bool> {
    let Some(expected) = &part.sha256 else { return Ok(false) };
    let size = std::fs::metadata(path).map_or(0, |file| file.len());
    Ok(size == part.size && sha256(path, cancelled)? == *expected)
}

/// Computes a file's SHA-256, in hexadecimal.
fn sha256(path: &Path, cancelled: &AtomicBool) -> Result<String> {
    let io = |source| Error::Io { action: "read", path: path.to_owned(), source };
    let mut file = File::open(path).map_err(io)?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        if cancelled.load(Ordering::Relaxed) {
            return Err(io(ErrorKind::Interrupted.into()));
        }
        match file.read(&mut buffer).map_err(io)? {
            0 => return Ok(hex(&hash.finalize())),
            count => hash.update(&buffer[..count]),
        }
    }
}

/// Verifies a file's checksum and GGUF header. A bad file is quarantined.
pub(super) fn check(
    partial: &PartialDownload,
    index: usize,
    part: &RemoteFile,
    cancelled: &AtomicBool,
) -> Result<()> {
    let path = partial.part_path(index);
    let name = part.path.rsplit('/').next().unwrap_or_default();
    if let Some(expected) = &part.sha256 {
        let found = sha256(&path, cancelled)?;
        if found != *expected {
            return Err(Error::WrongChecksum {
                file: part.path.clone(),
                expected: expected.chars().take(12).collect(),
                found: found.chars().take(12).collect(),
                path: partial.quarantine(index, &format!("{name}.bad-checksum"))?,
            });
        }
    }
    if is_folder(&part.path) {
        return Ok(());
    }
    if part.path.ends_with(".json") || part.path.ends_with(".jinja") {
        return check_settings(partial, index, part);
    }
    // Only this file's header: part numbers are checked once all parts have their names.
    match Gguf::read(&path) {
        Err(Error::InvalidModelFile { reason, .. }) => {
            let path = partial.quarantine(index, &format!("{name}.not-a-model"))?;
            Err(Error::InvalidModelFile { path, reason })
        }
        // The library reports unsupported architectures.
        Err(Error::UnsupportedModel { .. }) | Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Checks that a settings file is text, and JSON if its name says so. Others are quarantined.
fn check_settings(partial: &PartialDownload, index: usize, part: &RemoteFile) -> Result<()> {
    let path = partial.part_path(index);
    let bytes = std::fs::read(&path).map_err(|source| Error::Io { action: "read", path, source })?;
    let is_json = part.path.ends_with(".json");
    let is_valid = match is_json {
        true => serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_ok(),
        false => std::str::from_utf8(&bytes).is_ok(),
    };
    if is_valid {
        return Ok(());
    }
    let path = partial.quarantine(index, &format!("{}.not-a-model", part.path))?;
    let reason = if is_json { "it is not JSON" } else { "it is not text" };
    Err(Error::InvalidModelFile { path, reason: reason.into() })
}

/// Puts the files of a folder together and renames it. Returns `false` if another one has appeared there.
fn install_folder(partial: &PartialDownload, destination: &Destination, folder: &Path) -> Result<bool> {
    if destination.exists.iter().all(|exists| *exists) {
        return Ok(true);
    }
    let whole = partial.whole_path();
    std::fs::create_dir_all(&whole).map_err(|source| Error::Io {
        action: "write",
        path: whole.clone(),
        source,
    })?;
    for (index, file) in destination.files.iter().enumerate() {
        let (part, to) = (partial.part_path(index), whole.join(file.file_name().unwrap_or_default()));
        // It is there already if another folder appeared in the meantime.
        if (part.exists() || !to.exists()) && !rename_to_new(&part, &to)? {
            return Err(Error::Io { action: "rename to", path: to, source: ErrorKind::AlreadyExists.into() });
        }
        sync_parent(&to);
    }
    let renamed = rename_to_new(&whole, folder)?;
    sync_parent(folder);
    Ok(renamed)
}

/// Moves the files of a folder that was not finished back to their partial files.
pub(super) fn take_apart(partial: &PartialDownload, parts: &[RemoteFile]) -> Result<()> {
    let whole = partial.whole_path();
    if !whole.is_dir() {
        return Ok(());
    }
    for (index, part) in parts.iter().enumerate() {
        let (from, to) = (whole.join(&part.path), partial.part_path(index));
        if from.is_file() && !to.exists() {
            rename_to_new(&from, &to)?;
        }
    }
    std::fs::remove_dir_all(&whole).map_err(|source| Error::Io { action: "remove", path: whole, source })
}

/// Renames all files to their final names, or none. Returns `false` if another file has appeared there.
pub(super) fn install(partial: &PartialDownload, destination: &Destination) -> Result<bool> {
    if let Some(folder) = &destination.folder {
        return install_folder(partial, destination, folder);
    }
    let missing = destination.files.iter().enumerate().filter(|(index, _)| !destination.exists[*index]);
    let mut renamed: Vec<(usize, &Path)> = Vec::new();
    // The first part makes the model visible, so it comes last.
    for (index, target) in missing.rev() {
        match rename_to_new(&partial.part_path(index), target) {
            Ok(true) => renamed.push((index, target)),
            Ok(false) => {
                undo(partial, &renamed)?;
                return Ok(false);
            }
            Err(error) => {
                // The first error is the one to report.
                if let Err(error) = undo(partial, &renamed) {
                    tracing::warn!("Finished parts of a download stay in the models folder. {error}");
                }
                return Err(error);
            }
        }
    }
    sync_parent(&destination.files[0]);
    Ok(true)
}

/// Moves renamed files back to the download folder. A file left behind, for example by a crash, is
/// recognised later by its checksum.
fn undo(partial: &PartialDownload, renamed: &[(usize, &Path)]) -> Result<()> {
    for (index, target) in renamed {
        let part = partial.part_path(*index);
        if !rename_to_new(target, &part)? {
            let source = ErrorKind::AlreadyExists.into();
            return Err(Error::Io { action: "rename to", path: part, source });
        }
    }
    Ok(())
}

/// Renames a file without replacing an existing one. Returns `false` if one exists.
fn rename_to_new(from: &Path, to: &Path) -> Result<bool> {
    let io = |source| Error::Io { action: "rename to", path: to.to_owned(), source };
    atomic_file::rename_to_new(from, to).map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(bytes: &[u8]) -> RemoteFile {
        let sha256 = Some(hex(&Sha256::digest(bytes)));
        RemoteFile { path: "a/m.gguf".into(), size: bytes.len() as u64, sha256 }
    }

    #[test]
    fn chooses_a_name_without_a_different_file() {
        let folder = tempfile::tempdir().unwrap();
        let models = folder.path();
        let choose =
            |bytes: &[u8]| Destination::choose(models, "m", &[part(bytes)], &AtomicBool::new(false)).unwrap();
        assert_eq!((choose(b"one").name, choose(b"one").exists), ("m".into(), vec![false]));
        std::fs::write(models.join("m.gguf"), b"one").unwrap();
        assert_eq!((choose(b"one").name, choose(b"one").exists), ("m".into(), vec![true]));
        assert_eq!((choose(b"two").name, choose(b"two").exists), ("m-2".into(), vec![false]));
        // A file appears between choosing and renaming.
        let partial = PartialDownload::new(models, "x");
        std::fs::create_dir_all(partial.part_path(0).parent().unwrap()).unwrap();
        std::fs::write(partial.part_path(0), b"two").unwrap();
        let destination = choose(b"two");
        std::fs::write(models.join("m-2.gguf"), b"six").unwrap();
        assert!(!install(&partial, &destination).unwrap());
        assert!(install(&partial, &choose(b"two")).unwrap());
        let read = |name: &str| std::fs::read(models.join(name)).unwrap();
        assert_eq!(
            (read("m.gguf"), read("m-2.gguf"), read("m-3.gguf")),
            (b"one".into(), b"six".into(), b"two".into())
        );
        assert!(!partial.part_path(0).exists());
    }

    #[test]
    fn installs_all_parts_or_none() {
        let folder = tempfile::tempdir().unwrap();
        let models = folder.path();
        let partial = PartialDownload::new(models, "x");
        std::fs::create_dir_all(partial.folder()).unwrap();
        let bytes: [&[u8]; 3] = [b"one", b"two", b"three"];
        for (index, bytes) in bytes.iter().enumerate() {
            std::fs::write(partial.part_path(index), bytes).unwrap();
        }
        // Without checksums, existing files cannot be recognised.
        let parts = bytes.map(|bytes| RemoteFile { sha256: None, ..part(bytes) });
        let choose = || Destination::choose(models, "m", &parts, &AtomicBool::new(false)).unwrap();
        let destination = choose();
        let (first, stranger) = (destination.files[0].clone(), b"stranger");
        std::fs::write(&first, stranger).unwrap();
        assert!(!install(&partial, &destination).unwrap());
        let names = || {
            let entries = std::fs::read_dir(models).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<_> = entries.filter(|name| name != ".downloads").collect();
            names.sort();
            names
        };
        assert_eq!(names(), [first.file_name().unwrap()], "no part of the model is left there");
        // The disk refuses: the first part is gone.
        std::fs::rename(partial.part_path(0), models.join("aside")).unwrap();
        std::fs::remove_file(&first).unwrap();
        assert!(matches!(install(&partial, &destination), Err(Error::Io { .. })));
        assert_eq!(names(), ["aside"]);
        std::fs::rename(models.join("aside"), partial.part_path(0)).unwrap();
        std::fs::write(&first, stranger).unwrap();
        let destination = choose();
        assert_eq!(destination.name, "m-2");
        assert!(install(&partial, &destination).unwrap());
        for (file, bytes) in destination.files.iter().zip(bytes) {
            assert_eq!(std::fs::read(file).unwrap(), bytes);
        }
        assert_eq!(std::fs::read(&first).unwrap(), stranger);
    }

    #[test]
    fn rename_replaces_neither_files_nor_broken_links() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        std::fs::write(&from, "new").unwrap();
        std::fs::write(&to, "old").unwrap();
        assert!(!rename_to_new(&from, &to).unwrap());
        assert_eq!(std::fs::read(&to).unwrap(), b"old");
        #[cfg(unix)]
        {
            std::fs::remove_file(&to).unwrap();
            std::os::unix::fs::symlink("nowhere", &to).unwrap();
            assert!(!rename_to_new(&from, &to).unwrap());
            assert_eq!(std::fs::read_link(&to).unwrap(), Path::new("nowhere"));
        }
        std::fs::remove_file(&to).unwrap();
        assert!(rename_to_new(&from, &to).unwrap());
        assert!(!from.exists() && std::fs::read(&to).unwrap() == b"new");
        assert!(matches!(rename_to_new(&from, &folder.path().join("other")), Err(Error::Io { .. })));
    }

    #[test]
    fn short_checksum_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let partial = PartialDownload::new(folder.path(), "x");
        std::fs::create_dir_all(partial.folder()).unwrap();
        std::fs::write(partial.part_path(0), b"one").unwrap();
        let short = RemoteFile { sha256: Some("äb".into()), ..part(b"one") };
        let Err(Error::WrongChecksum { expected, found, .. }) =
            check(&partial, 0, &short, &AtomicBool::new(false))
        else {
            panic!("it matches no file")
        };
        assert_eq!((expected.as_str(), found.len()), ("äb", 12));
    }

    #[test]
    fn installed_parts_are_recognised_by_checksum() {
        let folder = tempfile::tempdir().unwrap();
        let models = folder.path();
        std::fs::write(models.join("m-00002-of-00002.gguf"), b"two").unwrap();
        let parts = [part(b"one"), part(b"two")];
        let destination = Destination::choose(models, "m", &parts, &AtomicBool::new(false)).unwrap();
        assert_eq!((destination.name.as_str(), destination.exists), ("m", vec![false, true]));
    }
}
