//! Storage of conversations, preferences and measurements in one SQLite file. Each answer is stored with the
//! events of its generation, so colours and figures survive a restart. The module knows neither engine nor clock:
//! callers pass times as milliseconds since 1970.
//!
//! The file is in WAL mode and every call is one transaction. After a crash, each call has taken effect completely
//! or not at all.

mod backups;
mod comparisons;
mod conversations;
mod exchange;
#[cfg(test)]
mod kill_tests;
mod messages;
mod migrations;
mod packed;
mod preferences;
mod repair;
mod search;

use std::path::Path;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rusqlite::{Connection, OpenFlags};

use hunch_error::{Error, Refusal};
use hunch_model::file_lock::FileLock;

pub use comparisons::CurveOf;
#[cfg(test)]
pub(crate) use messages::tests::settings as answer_settings;
pub use messages::{ConversationState, KeptAnswer};

/// Timeout for a lock held by another program. A program that only reads is done in a moment.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// An open store, shared between threads. Calls wait for each other.
pub struct Store {
    connection: Mutex<Connection>,
    /// Second connection for slow reads (searches, answers), so that no write waits for them. `None` in memory.
    reader: Option<Mutex<Connection>>,
    /// Lock that marks the file as in use while the store is open.
    _lock: Option<FileLock>,
    /// Makes each use panic.
    #[cfg(test)]
    panicking: std::sync::atomic::AtomicBool,
}

impl Store {
    /// Opens the file, or creates it, and migrates an older one. Answers that were unfinished when the program last
    /// ended are marked as interrupted.
    ///
    /// # Errors
    /// [`Error::Store`] when the file cannot be opened or written, is damaged, or is from a newer version of Hunch.
    /// Also when another running program uses it, because its answer would be marked as interrupted.
    pub fn open(path: &Path) -> Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|source| Error::Io {
                action: "make the folder",
                path: folder.into(),
                source,
            })?;
        }
        let lock = lock(path, LOCK_PATIENCE)?;
        Self::open_locked(path, lock)
    }

    fn open_locked(path: &Path, lock: FileLock) -> Result<Self> {
        let connection = Connection::open(path)?;
        if migrations::is_older(&connection)? {
            // A full disk must not keep the file closed. The migration is a transaction, so it is safe without a copy.
            if let Err(error) = backups::make(&connection, path) {
                tracing::warn!(
                    "No copy of the conversations was made before their file is brought up to date. {error}"
                );
            }
        }
        let mut store = Self::prepare(connection, Some(lock))?;
        store.reader = read_only(path).ok().map(Mutex::new);
        Ok(store)
    }

    /// Copies the file at `path` into the folder `backups` next to it. Uses its own connection, so no call waits.
    ///
    /// # Errors
    /// When the file cannot be read or the copy cannot be written.
    pub fn copy(path: &Path) -> Result<()> {
        backups::make(&read_only(path)?, path).map(drop)
    }

    /// Returns whether the newest copy of the file at `path` is a week old, or missing.
    pub fn is_copy_due(path: &Path) -> bool {
        backups::is_due(path)
    }

    /// Opens the file for reading only, even while another program writes to it. Takes no lock and does not migrate.
    ///
    /// # Errors
    /// [`Error::Store`] when the file is missing, cannot be read, or is from another version of Hunch.
    pub fn open_read_only(path: &Path) -> Result<Self> {
        let connection = read_only(path)?;
        migrations::check_current(&connection)?;
        Ok(Self::of(connection, None))
    }

    /// Creates a store in memory, which is lost when the program ends.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn in_memory() -> Result<Self> {
        Self::prepare(Connection::open_in_memory()?, None)
    }

    fn prepare(mut connection: Connection, lock: Option<FileLock>) -> Result<Self> {
        // A crash loses nothing. A power cut may lose the last transactions, but never the file.
        connection.execute_batch(
            "-- Takes effect in new files only.
             PRAGMA auto_vacuum = INCREMENTAL;
             PRAGMA journal_mode = WAL;
             PRAGMA synchronous = NORMAL;
             -- Without it, a Mac's disk may reorder the writes of a checkpoint, and a power cut damages the file.
             PRAGMA checkpoint_fullfsync = ON;
             PRAGMA secure_delete = ON;
             PRAGMA foreign_keys = ON;
             PRAGMA busy_timeout = 5000;",
        )?;
        migrations::run(&mut connection)?;
        let store = Self::of(connection, lock);
        match store.interrupt_unfinished() {
            // For example on a full disk. The next start marks them; until then the file must stay usable.
            Err(StoreError(error)) if !is_damage(&error) => {
                tracing::warn!("Unfinished answers are not marked as interrupted yet. {error}");
            }
            marked => marked?,
        }
        Ok(store)
    }

    fn of(connection: Connection, lock: Option<FileLock>) -> Self {
        Self {
            connection: Mutex::new(connection),
            reader: None,
            _lock: lock,
            #[cfg(test)]
            panicking: std::sync::atomic::AtomicBool::default(),
        }
    }

    /// Makes the store refuse further conversations once it has `most`.
    #[cfg(test)]
    pub(crate) fn set_refusing_after(&self, most: u32) {
        let refuse = format!(
            "DROP TRIGGER IF EXISTS refuse;
             CREATE TRIGGER refuse BEFORE INSERT ON conversations
             WHEN (SELECT count(*) FROM conversations) >= {most} BEGIN SELECT RAISE(ABORT, 'full'); END"
        );
        self.connection().execute_batch(&refuse).unwrap();
    }

    /// Makes each use of the store panic, or stops that.
    #[cfg(test)]
    pub(crate) fn set_panicking(&self, panicking: bool) {
        self.panicking.store(panicking, std::sync::atomic::Ordering::Relaxed);
    }

    /// Simulates a full disk, or ends the simulation.
    #[cfg(test)]
    pub(crate) fn set_full(&self, full: bool) {
        let connection = self.connection();
        let pages: i64 = connection.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
        let most = if full { pages } else { 1 << 30 };
        connection.query_row(&format!("PRAGMA max_page_count = {most}"), [], |_| Ok(())).unwrap();
    }

    /// Locks the connection for slow reads.
    fn reader(&self) -> MutexGuard<'_, Connection> {
        let reader = self.reader.as_ref().unwrap_or(&self.connection);
        reader.lock()
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        #[cfg(test)]
        assert!(!self.panicking.load(std::sync::atomic::Ordering::Relaxed), "the store broke");
        // A panic rolls the open transaction back, so the connection is usable after it.
        self.connection.lock()
    }
}

fn read_only(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.execute_batch("PRAGMA busy_timeout = 5000;")?;
    Ok(connection)
}

/// Takes the lock file next to `path`, retrying for `patience`. On a volume without locks, continues without it.
fn lock(path: &Path, patience: Duration) -> Result<FileLock> {
    let lock = FileLock::acquire(&path.with_extension("lock"), patience)?;
    lock.ok_or_else(|| StoreError(Error::Store("another running Hunch is using them".into())))
}

/// Result type of the store.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Error type of the store: an [`Error`] that SQLite's errors convert to, as [`Error::Store`].
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct StoreError(pub Error);

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        use rusqlite::ffi::SQLITE_CORRUPT_VTAB;
        match &error {
            // A damaged search index is rebuilt, so it does not count.
            rusqlite::Error::SqliteFailure(failure, _)
                if matches!(failure.code, DatabaseCorrupt | NotADatabase)
                    && failure.extended_code != SQLITE_CORRUPT_VTAB =>
            {
                damage(&error)
            }
            _ => Self(Error::Store(error.to_string())),
        }
    }
}

/// Prefix of the reason when the file is damaged.
const DAMAGED: &str = "the file is damaged";

fn damage(found: impl std::fmt::Display) -> StoreError {
    StoreError(Error::Store(format!("{DAMAGED} ({found})")))
}

/// Returns whether an error reports a damaged file, for which a copy can be restored.
pub fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Store(reason) if reason.starts_with(DAMAGED))
}

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl From<Refusal> for StoreError {
    fn from(refusal: Refusal) -> Self {
        Self(refusal.into())
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        error.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_when_unfinished_answers_cannot_be_marked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hunch.db");
        let store = Store::open(&path).unwrap();
        let chat = store.create_conversation(1).unwrap();
        let question = store.add_question(chat, None, "Why?", 2).unwrap();
        let answer = store.begin_answer(chat, question, &messages::tests::settings(), 3).unwrap();
        store.append_events(answer, &[messages::tests::round("Because")]).unwrap();
        drop(store);
        let refuse = "CREATE TRIGGER refuse BEFORE UPDATE ON messages BEGIN SELECT RAISE(ABORT, 'full'); END";
        Connection::open(&path).unwrap().execute_batch(refuse).unwrap();
        let store = Store::open(&path).unwrap();
        assert_eq!(store.conversation(chat).unwrap().messages.len(), 2);
        assert_eq!(store.events(answer).unwrap().len(), 1);
        drop(store);
        Connection::open(&path).unwrap().execute_batch("DROP TRIGGER refuse").unwrap();
        let state = Store::open(&path).unwrap().message(answer).unwrap().1.state;
        assert_eq!(state, crate::api::MessageState::Interrupted);
    }

    #[test]
    fn only_corrupt_files_count_as_damage() {
        let failed = |code: i32| {
            let failure = rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
            Error::from(StoreError::from(failure))
        };
        use rusqlite::ffi::{SQLITE_CORRUPT, SQLITE_CORRUPT_VTAB, SQLITE_FULL, SQLITE_NOTADB};
        assert!(is_damage(&failed(SQLITE_CORRUPT)) && is_damage(&failed(SQLITE_NOTADB)));
        assert!(!is_damage(&failed(SQLITE_FULL)) && !is_damage(&failed(SQLITE_CORRUPT_VTAB)));
    }

    /// Would wait forever if both used one connection.
    #[test]
    fn searches_and_reads_answers_while_a_write_is_under_way() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("hunch.db")).unwrap();
        let chat = store.create_conversation(1).unwrap();
        let question = store.add_question(chat, None, "Why?", 2).unwrap();
        let mut writing = store.connection();
        let transaction = writing.transaction().unwrap();
        transaction.execute("UPDATE messages SET content = 'How?'", []).unwrap();
        assert_eq!(store.search("why").unwrap().len(), 1);
        assert!(store.events(question).unwrap().is_empty());
        transaction.commit().unwrap();
        drop(writing);
        assert_eq!((store.search("why").unwrap().len(), store.search("how").unwrap().len()), (0, 1));
    }

    #[test]
    fn waits_for_a_lock_held_briefly() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hunch.db");
        let held = lock(&path, Duration::ZERO).unwrap();
        let refused = lock(&path, Duration::ZERO).unwrap_err().to_string();
        assert!(refused.contains("another running Hunch"), "{refused}");
        let opening = std::thread::spawn({
            let path = path.clone();
            move || Store::open(&path).map(drop)
        });
        std::thread::sleep(Duration::from_millis(100));
        drop(held);
        opening.join().unwrap().unwrap();
    }

    #[test]
    fn reads_while_another_program_writes_and_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hunch.db");
        assert!(Store::open_read_only(&path).is_err() && !path.exists(), "makes no file");
        let window = Store::open(&path).unwrap();
        let chat = window.create_conversation(1).unwrap();
        let reader = Store::open_read_only(&path).unwrap();
        assert_eq!(reader.conversations().unwrap()[0].id, chat);
        assert!(reader.rename_conversation(chat, "Other").is_err());
        window.create_conversation(2).unwrap();
        assert_eq!(reader.conversations().unwrap().len(), 2);
        drop(window);
        drop(Store::open(&path).unwrap());
        reader.connection.lock().execute_batch("SELECT 1").unwrap();
        let other = Connection::open(&path).unwrap();
        other.pragma_update(None, "user_version", 1).unwrap();
        let refused = Store::open_read_only(&path).err().unwrap().to_string();
        assert!(refused.contains("version 1"), "{refused}");
    }
}
