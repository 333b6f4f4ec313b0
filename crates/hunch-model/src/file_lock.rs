//! Locks between programs, on files of their own. Threads of one program use mutexes.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use hunch_error::{Error, Result};

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// An exclusive lock, held until it is dropped.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// Takes the lock on a file, which is created if it is missing. Retries for `patience` and then returns `None`.
    /// On a volume without locks, succeeds without one.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be opened.
    pub fn acquire(path: &Path, patience: Duration) -> Result<Option<Self>> {
        let opened = File::options().create(true).truncate(false).write(true).open(path);
        let file = opened.map_err(|source| Error::Io { action: "open", path: path.into(), source })?;
        let begun = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) | Err(TryLockError::Error(_)) => return Ok(Some(Self(file))),
                Err(TryLockError::WouldBlock) if begun.elapsed() < patience => std::thread::sleep(PAUSE),
                Err(TryLockError::WouldBlock) => return Ok(None),
            }
        }
    }

    /// Takes the lock of a folder, on a file in it. `None` while another program holds it.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub fn of_folder(folder: &Path) -> Result<Option<Self>> {
        Self::acquire(&folder.join("lock"), Duration::ZERO)
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Closing is not enough: a process that is just being started may hold a copy of the file descriptor.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_holder_gets_the_lock_after_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let acquire = |patience| FileLock::acquire(&path, patience).unwrap();
        let first = acquire(Duration::ZERO).unwrap();
        assert!(acquire(Duration::ZERO).is_none() && acquire(2 * PAUSE).is_none());
        std::thread::scope(|scope| {
            let second = scope.spawn(|| acquire(Duration::MAX));
            drop(first);
            assert!(second.join().unwrap().is_some());
        });
        assert!(FileLock::acquire(&folder.path().join("nowhere/lock"), Duration::ZERO).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn releases_though_a_copy_of_the_descriptor_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = FileLock::acquire(&path, Duration::ZERO).unwrap().unwrap();
        let _copy = held.0.try_clone().unwrap();
        drop(held);
        assert!(FileLock::acquire(&path, Duration::ZERO).unwrap().is_some());
    }
}
