//! What outlives the window: conversations, preferences and measurements, in one SQLite file. Each answer keeps the events of its
//! generation, so colours and figures are there after a restart. No engine here, and no clock: times are
//! handed in, as milliseconds since 1970.
//!
//! The file is in WAL mode and every call is one transaction, so whatever was told to be written is there
//! after a crash, and nothing is there by half.

mod comparisons;
mod conversations;
mod exchange;
mod messages;
mod migrations;
mod packed;
mod preferences;
mod search;

use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::Connection;

use crate::error::{Error, Result};

pub use comparisons::CurveOf;
pub use messages::{KeptAnswer, Standing};

/// The file. Shared between threads; calls wait for each other.
pub struct Store {
    connection: Mutex<Connection>,
    /// Says that this program uses the file, as long as the store lives.
    lock: Option<File>,
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
        let io = |source| Error::Io { action: "open", path: path.into(), source };
        let lock = File::create(path.with_extension("lock")).map_err(io)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Store("another Hunch that is running uses them".into()));
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        Self::prepare(Connection::open(path)?, Some(lock))
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
            "PRAGMA journal_mode = WAL;
             PRAGMA synchronous = NORMAL;
             PRAGMA foreign_keys = ON;
             PRAGMA busy_timeout = 5000;",
        )?;
        migrations::run(&mut connection)?;
        let store = Self { connection: Mutex::new(connection), lock };
        store.interrupt_unfinished()?;
        Ok(store)
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        // A transaction that was under way when a thread panicked has been rolled back.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
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

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.to_string())
    }
}

fn not_there(what: &str, id: i64) -> Error {
    Error::invalid(format!("There is no {what} {id} any more. Choose another one."))
}

#[cfg(test)]
mod tests {
    use super::*;

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
