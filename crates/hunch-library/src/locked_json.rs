//! JSON files that the window and the command line both write. A lock prevents lost updates, and atomic
//! replacement prevents partial reads. A corrupt file is treated as missing.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::text_file;
use hunch_error::{Error, Result};
use hunch_model::atomic_file;
use hunch_model::file_lock::FileLock;
use hunch_model::input_file;

/// Longest time to wait for the lock. Updates take milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);
/// Limit of a file, in bytes. Hunch never writes longer ones.
const MOST_BYTES: u64 = 16 << 20;

/// Reads the value, or its default if the file is missing or corrupt.
pub(super) fn read<T: DeserializeOwned + Default>(path: &Path) -> T {
    parsed(text_file::read_up_to(path, MOST_BYTES))
}

fn parsed<T: DeserializeOwned + Default>(text: Option<String>) -> T {
    text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// Reads, changes and writes the value under the lock.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read or written. It is then unchanged.
pub(super) fn update<T: DeserializeOwned + Default + Serialize>(
    path: &Path,
    change: impl FnOnce(&mut T),
) -> Result<()> {
    let _lock = lock(path)?;
    let mut value: T = match input_file::regular(path) {
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => T::default(),
        // A file that cannot be read now may be intact, and must not be replaced.
        found => {
            found?;
            let read = |source| Error::Io { action: "read", path: path.to_path_buf(), source };
            let text = input_file::read(path, MOST_BYTES).map_err(read)?.and_then(input_file::text);
            parsed(text)
        }
    };
    change(&mut value);
    let text = serde_json::to_string(&value)
        .map_err(|e| Error::Internal(format!("{} cannot be serialised: {e}", path.display())))?;
    atomic_file::write(path, &text)
}

/// Locks a file until the returned lock is dropped. The lock is on a separate file, because the file
/// itself is replaced.
pub(super) fn lock(path: &Path) -> Result<FileLock> {
    let io = |source| Error::Io { action: "write", path: path.to_path_buf(), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(io)?;
    }
    FileLock::acquire(&path.with_extension("lock"), PATIENCE)?.ok_or_else(|| {
        io(std::io::Error::new(std::io::ErrorKind::WouldBlock, "another program is writing to it"))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use super::*;

    type Counts = BTreeMap<String, u32>;

    #[test]
    fn concurrent_updates_are_all_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep").join("counts.json");
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let path = &path;
                scope.spawn(move || {
                    for i in 0..10 {
                        let add = |counts: &mut Counts| counts.extend([(format!("{writer}-{i}"), i)]);
                        update(path, add).unwrap();
                    }
                });
            }
        });
        assert_eq!(read::<Counts>(&path).len(), 40);
        let names: Vec<_> =
            fs::read_dir(path.parent().unwrap()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "the file and its lock: {names:?}");
    }

    #[test]
    fn corrupt_file_reads_as_default() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counts.json");
        assert!(read::<Counts>(&path).is_empty());
        fs::write(&path, b"{\"half\": ").unwrap();
        assert!(read::<Counts>(&path).is_empty());
        update(&path, |counts: &mut Counts| counts.extend([("new".into(), 1)])).unwrap();
        assert_eq!(read::<Counts>(&path), Counts::from([("new".into(), 1)]));
    }
}
