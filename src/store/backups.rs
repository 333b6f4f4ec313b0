//! Dated copies of the file in the folder `backups` next to it, made before each migration and weekly.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use rusqlite::Connection;

use crate::api::StoreCopy;
use hunch_error::Error;
use hunch_model::atomic_file;

use super::Result;

/// Number of copies kept.
const KEPT: usize = 3;
/// Age of the newest copy at which the next one is made.
const WEEKLY: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Lists the copies of a file, oldest first. Their names are dates.
pub(super) fn list(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder(path)).into_iter().flatten().flatten();
    let mut copies: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_dated))
        .map(|entry| entry.path())
        .collect();
    copies.sort();
    copies
}

/// Returns whether a file is named as [`make`] names copies, such as `2026-11-30-014212.123.db`. Others in the folder
/// are not Hunch's.
fn is_dated(name: &str) -> bool {
    const FORM: &str = "0000-00-00-000000.000.db";
    let fits = |(byte, form): (u8, u8)| if form == b'0' { byte.is_ascii_digit() } else { byte == form };
    name.len() == FORM.len() && name.bytes().zip(FORM.bytes()).all(fits)
}

/// Finds the copy with this name. Returns `None` for any other name, so a path cannot be passed.
pub(super) fn named(path: &Path, name: &str) -> Option<PathBuf> {
    list(path).into_iter().find(|copy| copy.file_name().is_some_and(|known| known == name))
}

/// Describes a copy for the window. Returns `None` when its metadata cannot be read.
pub(super) fn about(copy: &Path) -> Option<StoreCopy> {
    let file = fs::metadata(copy).ok()?;
    let made = file.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(StoreCopy {
        name: copy.file_name()?.to_str()?.into(),
        made_ms: i64::try_from(made.as_millis()).ok()?,
        bytes: file.len(),
    })
}

/// Formats the current time for a file name.
pub(super) fn date_now() -> Result<String> {
    Ok(Connection::open_in_memory()?
        .query_row("SELECT strftime('%Y-%m-%d-%H%M%f', 'now')", [], |row| row.get(0))?)
}

fn folder(path: &Path) -> PathBuf {
    path.with_file_name("backups")
}

/// Copies the file and removes all but the three newest copies.
///
/// # Errors
/// When the copy cannot be written, for example on a full disk. The older copies are kept then.
pub(super) fn make(connection: &Connection, path: &Path) -> Result<PathBuf> {
    let folder = folder(path);
    let io = |source| Error::Io { action: "write", path: folder.clone(), source };
    fs::create_dir_all(&folder).map_err(io)?;
    let copy = folder.join(format!("{}.db", date_now()?));
    // Renamed when complete: a crash must not leave half a copy under a name that can be restored.
    let unfinished = folder.join("unfinished.part");
    let _ = fs::remove_file(&unfinished);
    let copied = connection.execute("VACUUM INTO ?1", [unfinished.to_string_lossy()]);
    if let Err(error) = copied {
        let _ = fs::remove_file(&unfinished);
        return Err(error.into());
    }
    // SQLite does not sync this file.
    atomic_file::place(&unfinished, &copy).map_err(io)?;
    let copies = list(path);
    // Copies of a clock that was ahead sort after the new one.
    for old in copies[..copies.len().saturating_sub(KEPT)].iter().filter(|old| **old != copy) {
        // It may hold what has been deleted since.
        if let Err(error) = fs::remove_file(old) {
            tracing::warn!("The old copy {} was not removed. {error}", old.display());
        }
    }
    Ok(copy)
}

/// Returns whether the newest copy is a week old, or missing.
pub(super) fn is_due(path: &Path) -> bool {
    let age = |copy: PathBuf| fs::metadata(copy).ok()?.modified().ok()?.elapsed().ok();
    list(path).into_iter().filter_map(age).min().is_none_or(|newest| newest >= WEEKLY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;

    #[test]
    fn keeps_the_three_newest_copies() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hunch.db");
        let store = Store::open(&path).unwrap();
        assert!(list(&path).is_empty(), "a new file needs no copy");
        let mut made = Vec::new();
        for number in 1..=5 {
            store.create_conversation(number).unwrap();
            // Names have a resolution of milliseconds.
            std::thread::sleep(Duration::from_millis(5));
            made.push(make(&store.connection(), &path).unwrap());
        }
        assert_eq!(list(&path), made[2..]);
        assert!(!is_due(&path), "the newest is of today");
        for copy in &made[2..] {
            let copy = fs::File::options().write(true).open(copy).unwrap();
            copy.set_modified(std::time::SystemTime::now() - WEEKLY).unwrap();
        }
        assert!(is_due(&path), "the newest is a week old");
        // A clock that was ahead left copies of the future, and a person a file of their own.
        let theirs = path.with_file_name("backups").join("2019 chats.db");
        fs::write(&theirs, "mine").unwrap();
        for old in &made[2..4] {
            fs::rename(
                old,
                old.with_file_name(format!("3{}", &old.file_name().unwrap().to_str().unwrap()[1..])),
            )
            .unwrap();
        }
        let last = make(&store.connection(), &path).unwrap();
        assert!(last.exists() && theirs.exists() && list(&path).contains(&last));
        assert!(!list(&path).contains(&theirs) && !is_due(&path));
        let copy = Store::open_read_only(&last).unwrap();
        assert_eq!(copy.conversations().unwrap().len(), 5);
    }
}
