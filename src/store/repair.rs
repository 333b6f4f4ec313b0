//! Repair of a damaged file, and compaction of one with unused space. Nothing here deletes a conversation: a
//! damaged file is moved aside, complete.

use std::fs;
use std::path::{Path, PathBuf};

use parking_lot::MutexGuard;
use rusqlite::{Connection, Transaction};

use super::{LOCK_PATIENCE, Store, backups, damage, lock, migrations, read_only};
use crate::api::StoreCopy;
use hunch_error::{Error, Refusal};
use hunch_library::{SET_ASIDE_FOLDER, store_files};
use hunch_model::atomic_file;

use super::{Result, StoreError};

/// Unused bytes above which a file of an earlier version is rewritten, once. Such files cannot free single pages.
const WORTH_REWRITING: i64 = 16 << 20;

impl Store {
    /// Moves the file at `path` into the folder `set-aside` next to it, and opens `copy`, or a new file, in its place.
    /// Returns the store and the new path of the old file.
    ///
    /// # Errors
    /// When another program uses the file, or the copy cannot be read, or there is no room for it. The file stays in
    /// place then.
    pub fn replace(path: &Path, copy: Option<&str>) -> Result<(Self, Option<PathBuf>)> {
        let held = lock(path, LOCK_PATIENCE)?;
        let io = |action: &'static str, path: &Path| {
            let path = path.to_path_buf();
            move |source| Error::Io { action, path, source }
        };
        let restored = path.with_extension("restored");
        if let Some(name) = copy {
            let copy = backups::named(path, name).ok_or_else(|| Refusal::NoSuchCopy { name: name.into() })?;
            check(&read_only(&copy)?)?;
            fs::copy(&copy, &restored).map_err(io("write", &restored))?;
            atomic_file::sync(&restored).map_err(io("write", &restored))?;
        }
        let aside = set_aside(path)?;
        // SQLite would apply the old file's log to the new file.
        let [file, log @ ..] = store_files(path);
        for part in log.iter().filter(|part| part.exists()) {
            fs::remove_file(part).map_err(io("move aside", part))?;
        }
        if copy.is_some() {
            // Replaced in one step: a crash in between must not leave an empty list.
            atomic_file::place(&restored, path).map_err(io("write", path))?;
        } else if file.exists() {
            fs::remove_file(&file).map_err(io("move aside", &file))?;
        }
        Ok((Self::open_locked(path, held)?, aside))
    }

    /// Returns whether the file at `path` can be replaced, because no other program uses it.
    pub fn is_replaceable(path: &Path) -> bool {
        lock(path, std::time::Duration::ZERO).is_ok()
    }

    /// Lists the copies of the file at `path`, newest first.
    pub fn copies(path: &Path) -> Vec<StoreCopy> {
        backups::list(path).iter().rev().filter_map(|copy| backups::about(copy)).collect()
    }

    /// Returns the size of the file at `path` with its log, in bytes.
    pub fn bytes(path: &Path) -> u64 {
        store_files(path).iter().filter_map(|part| fs::metadata(part).ok()).map(|part| part.len()).sum()
    }

    /// Checks the structure of the whole file at `path` on its own connection.
    ///
    /// # Errors
    /// [`Error::Store`] when it is damaged.
    pub fn check(path: &Path) -> Result<()> {
        check(&read_only(path)?)
    }

    /// Returns the space of deleted records to the disk.
    ///
    /// # Errors
    /// When the file cannot be written, or there is no room to rewrite it. The file is unchanged then.
    pub fn give_back_room(&self) -> Result<()> {
        let connection = self.connection();
        let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
        if number("PRAGMA auto_vacuum")? == 0 {
            let unused = number("PRAGMA freelist_count")? * number("PRAGMA page_size")?;
            if unused >= WORTH_REWRITING {
                connection.execute_batch("PRAGMA auto_vacuum = INCREMENTAL; VACUUM;")?;
            }
        } else {
            run_through(&connection, "PRAGMA incremental_vacuum")?;
        }
        run_through(&connection, "PRAGMA wal_checkpoint(TRUNCATE)")
    }

    /// Runs `work` in one transaction. If it fails because the search index is damaged, rebuilds the index and runs
    /// `work` again: a damaged index must not prevent writes.
    ///
    /// # Errors
    /// The error of `work`. Nothing was written then.
    pub(super) fn write<T>(&self, work: impl Fn(&Transaction<'_>) -> Result<T>) -> Result<T> {
        let mut connection = self.connection();
        let tried = in_transaction(&mut connection, &work);
        match tried {
            Err(StoreError(Error::Store(_))) if rebuild_search_if_damaged(&mut connection)? => {
                in_transaction(&mut connection, &work)
            }
            tried => tried,
        }
    }

    /// Rebuilds the search index if it is damaged. Returns whether it was.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn repair_search(&self) -> Result<bool> {
        let mut connection: MutexGuard<'_, Connection> = self.connection();
        rebuild_search_if_damaged(&mut connection)
    }
}

fn in_transaction<T>(
    connection: &mut Connection,
    work: &impl Fn(&Transaction<'_>) -> Result<T>,
) -> Result<T> {
    let transaction = connection.transaction()?;
    let done = work(&transaction)?;
    transaction.commit()?;
    Ok(done)
}

fn rebuild_search_if_damaged(connection: &mut Connection) -> Result<bool> {
    let sound = connection.execute("INSERT INTO search(search) VALUES ('integrity-check')", []);
    match sound {
        Err(rusqlite::Error::SqliteFailure(failure, _))
            if failure.code == rusqlite::ErrorCode::DatabaseCorrupt => {}
        _ => return Ok(false),
    }
    tracing::warn!("The search index of the conversations was damaged; it is built again from the messages.");
    in_transaction(connection, &|transaction| Ok(transaction.execute_batch(migrations::REBUILD_SEARCH)?))?;
    Ok(true)
}

fn check(connection: &Connection) -> Result<()> {
    let found: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if found == "ok" {
        return Ok(());
    }
    Err(damage(found))
}

/// Runs a statement to its last row. Some pragmas do one piece of work a row.
fn run_through(connection: &Connection, sql: &str) -> Result<()> {
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    Ok(())
}

/// Links the file and its log under new names and leaves the old names in place. Returns the new path of the file.
fn set_aside(path: &Path) -> Result<Option<PathBuf>> {
    if !path.exists() {
        return Ok(None);
    }
    let folder = path.with_file_name(SET_ASIDE_FOLDER);
    fs::create_dir_all(&folder).map_err(|source| Error::Io {
        action: "make the folder",
        path: folder.clone(),
        source,
    })?;
    let aside = folder.join(format!("{}.db", backups::date_now()?));
    for (from, to) in store_files(path).iter().zip(store_files(&aside)).filter(|(from, _)| from.exists()) {
        // A hard link takes no space. Volumes without hard links get a copy.
        fs::hard_link(from, &to).or_else(|_| fs::copy(from, &to).map(drop)).map_err(|source| Error::Io {
            action: "move aside",
            path: from.clone(),
            source,
        })?;
    }
    Ok(Some(aside))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened() -> (tempfile::TempDir, PathBuf, Store) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("conversations.db");
        let store = Store::open(&path).unwrap();
        (folder, path, store)
    }

    #[test]
    fn rebuilds_damaged_search_index_and_keeps_the_question() {
        let (_folder, _, store) = opened();
        let chat = store.create_conversation(1).unwrap();
        store.add_question(chat, None, "Where do swifts sleep?", 2).unwrap();
        store.title_conversation(chat, "Swifts").unwrap();
        store.connection().execute("UPDATE search_data SET block = x'ff00ff'", []).unwrap();
        store.add_question(chat, None, "And owls?", 3).unwrap();
        let found = |words: &str| store.search(words).unwrap().len();
        assert_eq!((found("owls"), found("sleep")), (1, 1));
        assert!(found("swifts") >= 1);
        store.connection().execute("UPDATE search_data SET block = x'ff00ff'", []).unwrap();
        assert!(store.repair_search().unwrap() && !store.repair_search().unwrap());
        assert_eq!(found("owls"), 1);
    }

    #[test]
    fn restores_copy_and_moves_damaged_file_aside() {
        let (_folder, path, store) = opened();
        store.create_conversation(1).unwrap();
        backups::make(&store.connection(), &path).unwrap();
        store.create_conversation(2).unwrap();
        assert!(!Store::is_replaceable(&path), "it is in use");
        drop(store);
        let mut bytes = fs::read(&path).unwrap();
        bytes[..100].fill(0xaa);
        fs::write(&path, &bytes).unwrap();
        assert!(Store::open(&path).is_err() && Store::is_replaceable(&path));
        let copies = Store::copies(&path);
        assert!(Store::replace(&path, Some("../../etc/passwd")).is_err());
        assert_eq!(fs::read(&path).unwrap(), bytes, "a remedy that fails changes nothing");
        let (restored, aside) = Store::replace(&path, Some(&copies[0].name)).unwrap();
        assert_eq!(restored.conversations().unwrap().len(), 1);
        assert_eq!(fs::read(aside.unwrap()).unwrap(), bytes);
        drop(restored);
        let (anew, aside) = Store::replace(&path, None).unwrap();
        assert!(anew.conversations().unwrap().is_empty());
        let aside = Store::open(&aside.unwrap()).unwrap();
        assert_eq!(aside.conversations().unwrap().len(), 1);
    }

    #[test]
    fn finds_damage_inside_the_file() {
        let (_folder, path, store) = opened();
        for number in 0..200 {
            let chat = store.create_conversation(number).unwrap();
            store.add_question(chat, None, &"word ".repeat(200), number).unwrap();
        }
        drop(store);
        Store::check(&path).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2 / 4096 * 4096;
        bytes[middle..middle + 8192].fill(0xaa);
        fs::write(&path, bytes).unwrap();
        let refused = Error::from(Store::check(&path).unwrap_err());
        assert!(crate::store::is_damage(&refused), "{refused}");
    }

    #[test]
    fn frees_the_space_of_deleted_conversations() {
        let (_folder, path, store) = opened();
        let chat = store.create_conversation(1).unwrap();
        for number in 0..50 {
            store.add_question(chat, None, &format!("{number} ").repeat(20_000), 1).unwrap();
        }
        store.give_back_room().unwrap();
        let full = Store::bytes(&path);
        store.delete_conversation(chat, 2).unwrap();
        store.purge_deleted().unwrap();
        store.give_back_room().unwrap();
        let left = Store::bytes(&path);
        assert!(left * 4 < full, "{left} of {full} bytes");
    }

    #[test]
    fn rewrites_file_of_earlier_version_with_much_unused_space() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("conversations.db");
        // Earlier versions created files that cannot free single pages.
        Connection::open(&path).unwrap().execute_batch("CREATE TABLE t (x); DROP TABLE t;").unwrap();
        let store = Store::open(&path).unwrap();
        let chat = store.create_conversation(1).unwrap();
        let kept = store.create_conversation(2).unwrap();
        for _ in 0..20 {
            store.add_question(chat, None, &"0123456789abcdef".repeat(1 << 16), 1).unwrap();
        }
        store.add_question(kept, None, "kept", 3).unwrap();
        store.delete_conversation(chat, 2).unwrap();
        store.purge_deleted().unwrap();
        store.give_back_room().unwrap();
        assert!(Store::bytes(&path) < 4 << 20, "{}", Store::bytes(&path));
        assert_eq!(store.search("kept").unwrap().len(), 1);
    }
}
