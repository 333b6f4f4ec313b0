//! What outlives the window: conversations, preferences and measurements, in one SQLite file. Each answer keeps the events of its
//! generation, so colours and figures are there after a restart. No engine here, and no clock: times are
//! handed in, as milliseconds since 1970.
//!
//! The file is in WAL mode and every call is one transaction, so whatever was told to be written is there
//! after a crash, and nothing is there by half.

mod comparisons;
mod conversations;
mod copies;
mod exchange;
#[cfg(test)]
mod kills;
mod messages;
mod migrations;
mod packed;
mod preferences;
mod repair;
mod search;

use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags};

use hunch_error::Error;

pub use comparisons::CurveOf;
pub use messages::{KeptAnswer, Standing};

/// Longest wait for another program that holds the file: one that only looks is done in a moment.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// Time between two tries of the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// The file. Shared between threads; calls wait for each other.
pub struct Store {
    connection: Mutex<Connection>,
    /// For searches and answers, which take long to read: no write waits for them. None in memory.
    reader: Option<Mutex<Connection>>,
    /// Says that this program uses the file, as long as the store lives.
    lock: Option<File>,
    /// Whether each use panics.
    #[cfg(test)]
    panicking: std::sync::atomic::AtomicBool,
}

impl Store {
    /// Opens the file, makes it when it is not there, brings an older one up to date, and marks answers
    /// that were being written when the program last ended as interrupted.
    ///
    /// # Errors
    /// [`Error::Store`] when the file cannot be opened or written, is damaged, is from a newer Hunch, or
    /// when another program that runs is using it: its answer would be taken for an interrupted one.
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

    fn open_locked(path: &Path, lock: File) -> Result<Self> {
        let connection = Connection::open(path)?;
        if migrations::is_older(&connection)? {
            // A disk without room for a copy must not lock anybody out: a migration is one transaction.
            if let Err(error) = copies::make(&connection, path) {
                tracing::warn!(
                    "No copy of the conversations was made before their file is brought up to date. {error}"
                );
            }
        }
        let mut store = Self::prepare(connection, Some(lock))?;
        store.reader = read_only(path).ok().map(Mutex::new);
        Ok(store)
    }

    /// Copies the file at `path` into `backups` beside it. Reads on a connection of its own, so nothing waits for it.
    ///
    /// # Errors
    /// When it cannot be read, or the copy cannot be written.
    pub fn copy(path: &Path) -> Result<()> {
        copies::make(&read_only(path)?, path).map(drop)
    }

    /// Whether the newest copy of the file at `path` is a week old, or there is none.
    pub fn is_copy_due(path: &Path) -> bool {
        copies::is_due(path)
    }

    /// Opens the file for reading, while another program may be writing to it. Takes no lock, migrates nothing
    /// and changes no answer.
    ///
    /// # Errors
    /// [`Error::Store`] when there is no such file, it cannot be read, or it is of another version of Hunch.
    pub fn open_read_only(path: &Path) -> Result<Self> {
        let connection = read_only(path)?;
        migrations::check_current(&connection)?;
        Ok(Self::of(connection, None))
    }

    /// A store that is gone with the program.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn in_memory() -> Result<Self> {
        Self::prepare(Connection::open_in_memory()?, None)
    }

    fn prepare(mut connection: Connection, lock: Option<File>) -> Result<Self> {
        // A power cut may take the last transactions, never the file; a crash takes nothing.
        connection.execute_batch(
            "-- Only a file that is made now takes it.
             PRAGMA auto_vacuum = INCREMENTAL;
             PRAGMA journal_mode = WAL;
             PRAGMA synchronous = NORMAL;
             -- On a Mac a checkpoint without it may be reordered by the disk: a power cut could damage the file.
             PRAGMA checkpoint_fullfsync = ON;
             PRAGMA secure_delete = ON;
             PRAGMA foreign_keys = ON;
             PRAGMA busy_timeout = 5000;",
        )?;
        migrations::run(&mut connection)?;
        let store = Self::of(connection, lock);
        match store.interrupt_unfinished() {
            // Such as on a full disk. The next start marks them; nobody must be locked out until then.
            Err(StoreError(error)) if !is_damage(&error) => {
                tracing::warn!("Unfinished answers are not marked as interrupted yet. {error}");
            }
            marked => marked?,
        }
        Ok(store)
    }

    fn of(connection: Connection, lock: Option<File>) -> Self {
        Self {
            connection: Mutex::new(connection),
            reader: None,
            lock,
            #[cfg(test)]
            panicking: std::sync::atomic::AtomicBool::default(),
        }
    }

    /// Makes the store refuse another conversation once it has `most`.
    #[cfg(test)]
    pub(crate) fn set_refusing_after(&self, most: u32) {
        let refuse = format!(
            "DROP TRIGGER IF EXISTS refuse;
             CREATE TRIGGER refuse BEFORE INSERT ON conversations
             WHEN (SELECT count(*) FROM conversations) >= {most} BEGIN SELECT RAISE(ABORT, 'full'); END"
        );
        self.connection().execute_batch(&refuse).unwrap();
    }

    /// Makes each use of the store panic, or no longer.
    #[cfg(test)]
    pub(crate) fn set_panicking(&self, panicking: bool) {
        self.panicking.store(panicking, std::sync::atomic::Ordering::Relaxed);
    }

    /// Has the file take no more pages, as on a disk that is full, or take them again.
    #[cfg(test)]
    pub(crate) fn set_full(&self, full: bool) {
        let connection = self.connection();
        let pages: i64 = connection.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
        let most = if full { pages } else { 1 << 30 };
        connection.query_row(&format!("PRAGMA max_page_count = {most}"), [], |_| Ok(())).unwrap();
    }

    /// The connection for what takes long to read.
    fn reader(&self) -> MutexGuard<'_, Connection> {
        let reader = self.reader.as_ref().unwrap_or(&self.connection);
        reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        #[cfg(test)]
        assert!(!self.panicking.load(std::sync::atomic::Ordering::Relaxed), "the store broke");
        // A transaction that was under way when a thread panicked has been rolled back.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read_only(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.execute_batch("PRAGMA busy_timeout = 5000;")?;
    Ok(connection)
}

/// Takes the lock beside the file, trying for `patience`. A volume without locks is used without one.
fn lock(path: &Path, patience: Duration) -> Result<File> {
    let path = path.with_extension("lock");
    let opened = File::options().create(true).truncate(false).write(true).open(&path);
    let lock = opened.map_err(|source| Error::Io { action: "open", path, source })?;
    let begun = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) | Err(TryLockError::Error(_)) => return Ok(lock),
            Err(TryLockError::WouldBlock) if begun.elapsed() < patience => std::thread::sleep(LOCK_PAUSE),
            Err(TryLockError::WouldBlock) => {
                return Err(StoreError(Error::Store("another Hunch that is running uses them".into())));
            }
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Closing the file would not do while a process that is just being started has a copy of it.
        if let Some(lock) = &self.lock {
            let _ = lock.unlock();
        }
    }
}

/// A result of the store.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// A failure of the store: an [`Error`] to which SQLite's own errors convert, as [`Error::Store`].
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct StoreError(pub Error);

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        use rusqlite::ffi::SQLITE_CORRUPT_VTAB;
        match &error {
            // A damaged search index is made anew, so it is no damage of the file.
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

/// First words of the reason when the file is damaged.
const DAMAGED: &str = "the file is damaged";

fn damage(found: impl std::fmt::Display) -> StoreError {
    StoreError(Error::Store(format!("{DAMAGED} ({found})")))
}

/// Returns whether an error says that the file is damaged: a copy can be restored then.
pub fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Store(reason) if reason.starts_with(DAMAGED))
}

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        error.0
    }
}

fn not_there(what: &str, id: i64) -> StoreError {
    StoreError(Error::invalid(format!("There is no {what} {id} any more. Choose another one.")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_though_unfinished_answers_cannot_be_marked() {
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
    fn tells_a_damaged_file_from_other_failures() {
        let failed = |code: i32| {
            let failure = rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
            Error::from(StoreError::from(failure))
        };
        use rusqlite::ffi::{SQLITE_CORRUPT, SQLITE_CORRUPT_VTAB, SQLITE_FULL, SQLITE_NOTADB};
        assert!(is_damage(&failed(SQLITE_CORRUPT)) && is_damage(&failed(SQLITE_NOTADB)));
        assert!(!is_damage(&failed(SQLITE_FULL)) && !is_damage(&failed(SQLITE_CORRUPT_VTAB)));
    }

    /// Fails by waiting for ever where they share a connection.
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
    fn waits_for_a_lock_that_is_held_for_a_moment() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hunch.db");
        let held = lock(&path, Duration::ZERO).unwrap();
        let refused = lock(&path, Duration::ZERO).unwrap_err().to_string();
        assert!(refused.contains("another Hunch"), "{refused}");
        let opening = std::thread::spawn({
            let path = path.clone();
            move || Store::open(&path).map(drop)
        });
        std::thread::sleep(2 * LOCK_PAUSE);
        held.unlock().unwrap();
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
        reader.connection.lock().unwrap().execute_batch("SELECT 1").unwrap();
        let other = Connection::open(&path).unwrap();
        other.pragma_update(None, "user_version", 1).unwrap();
        let refused = Store::open_read_only(&path).err().unwrap().to_string();
        assert!(refused.contains("version 1"), "{refused}");
    }

    /// As a process has that is started in the same moment: it shares the open file until it is itself.
    #[test]
    fn a_store_that_is_gone_can_be_opened_though_a_copy_of_its_lock_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hunch.db");
        let store = Store::open(&path).unwrap();
        let copy = store.lock.as_ref().unwrap().try_clone().unwrap();
        assert!(Store::open(&path).is_err(), "it is in use");
        drop(store);
        assert!(Store::open(&path).is_ok());
        drop(copy);
    }
}
