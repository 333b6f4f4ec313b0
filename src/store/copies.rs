//! Dated copies of the file, in the folder `backups` beside it: before each migration, and weekly.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use rusqlite::Connection;

use crate::api::StoreCopy;
use hunch_error::Error;

use super::Result;

/// Copies kept.
const KEPT: usize = 3;
/// Age of the newest copy at which another one is made.
const WEEKLY: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The copies of a file, oldest first: their names are their dates.
pub(super) fn list(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder(path)).into_iter().flatten().flatten();
    let mut copies: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|copy| copy.extension().is_some_and(|extension| extension == "db"))
        .collect();
    copies.sort();
    copies
}

/// The copy of this name; none where the name is not that of a copy.
pub(super) fn named(path: &Path, name: &str) -> Option<PathBuf> {
    list(path).into_iter().find(|copy| copy.file_name().is_some_and(|known| known == name))
}

/// What is told of a copy; none where it cannot be read.
pub(super) fn about(copy: &Path) -> Option<StoreCopy> {
    let file = fs::metadata(copy).ok()?;
    let made = file.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(StoreCopy {
        name: copy.file_name()?.to_str()?.into(),
        made_ms: i64::try_from(made.as_millis()).ok()?,
        bytes: file.len(),
    })
}

/// The present moment, as names of files tell it.
pub(super) fn date_now() -> Result<String> {
    Ok(Connection::open_in_memory()?
        .query_row("SELECT strftime('%Y-%m-%d-%H%M%f', 'now')", [], |row| row.get(0))?)
}

fn folder(path: &Path) -> PathBuf {
    path.with_file_name("backups")
}

/// Copies the file, and removes the oldest copies but three.
///
/// # Errors
/// When the copy cannot be written, as on a full disk; the older copies are there then.
pub(super) fn make(connection: &Connection, path: &Path) -> Result<PathBuf> {
    let folder = folder(path);
    let io = |source| Error::Io { action: "write", path: folder.clone(), source };
    fs::create_dir_all(&folder).map_err(io)?;
    let copy = folder.join(format!("{}.db", date_now()?));
    // Renamed once it is whole: a crash must not leave half a copy under a name that can be restored.
    let unfinished = folder.join("unfinished.part");
    let _ = fs::remove_file(&unfinished);
    let copied = connection.execute("VACUUM INTO ?1", [unfinished.to_string_lossy()]);
    if let Err(error) = copied {
        let _ = fs::remove_file(&unfinished);
        return Err(error.into());
    }
    // SQLite does not flush the file: after a power cut the name could be there without the bytes.
    fs::File::open(&unfinished).and_then(|file| file.sync_all()).map_err(io)?;
    fs::rename(&unfinished, &copy).map_err(io)?;
    hunch_library::atomic_file::sync_folder_of(&copy);
    let copies = list(path);
    for old in &copies[..copies.len().saturating_sub(KEPT)] {
        let _ = fs::remove_file(old);
    }
    Ok(copy)
}

/// Whether the newest copy is a week old, or there is none.
pub(super) fn is_due(path: &Path) -> bool {
    let newest = list(path).pop();
    let age = newest.and_then(|copy| fs::metadata(copy).ok()?.modified().ok()?.elapsed().ok());
    age.is_none_or(|age| age >= WEEKLY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;

    #[test]
    fn keeps_three_whole_copies() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hunch.db");
        let store = Store::open(&path).unwrap();
        assert!(list(&path).is_empty(), "a new file needs no copy");
        let mut made = Vec::new();
        for number in 1..=5 {
            store.create_conversation(number).unwrap();
            // Names have milliseconds.
            std::thread::sleep(Duration::from_millis(5));
            made.push(make(&store.connection(), &path).unwrap());
        }
        assert_eq!(list(&path), made[2..]);
        assert!(!is_due(&path), "the newest is of today");
        let copy = Store::open_read_only(&made[4]).unwrap();
        assert_eq!(copy.conversations().unwrap().len(), 5);
    }
}
