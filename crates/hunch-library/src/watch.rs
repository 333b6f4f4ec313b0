//! Watches for added and removed models by polling. Names, sizes and times are compared every two seconds
//! while the window is visible. File system events are not used. They do not report changes on network
//! volumes or behind symbolic links, which caches of other programs consist of. On a slow volume the
//! interval grows.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use super::candidates::find_candidates;
use super::places::Places;
use hunch_error::{Error, Result};
use parking_lot::{Condvar, Mutex};

/// Default interval between polls.
pub const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Longest time that [`LibraryWatch::start`] waits for the first poll.
const FIRST_POLL_WAIT: Duration = Duration::from_millis(100);
/// Minimum ratio of waiting to polling time.
const MIN_IDLE_RATIO: u32 = 10;

/// Watches the places until dropped. A callback already running finishes.
pub struct LibraryWatch {
    control: Arc<Control>,
}

/// State shared with the polling thread.
#[derive(Default)]
struct Control {
    state: Mutex<WatchState>,
    changed: Condvar,
}

#[derive(Default)]
struct WatchState {
    ended: bool,
    paused: bool,
}

impl Control {
    fn change(&self, change: impl FnOnce(&mut WatchState)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    fn has_ended(&self) -> bool {
        self.state.lock().ended
    }

    /// Waits for `time`, or until resumed if paused. Returns `false` once the watch has ended.
    fn wait(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_while_for(&mut state, |state| !state.ended && !state.paused, time);
        self.changed.wait_while(&mut state, |state| !state.ended && state.paused);
        !state.ended
    }
}

impl LibraryWatch {
    /// Polls every `period` and calls `changed` when the files have changed. A growing file is reported
    /// when it appears and again when its size settles. The first poll is awaited only briefly, because an
    /// unresponsive volume may block it for minutes. If it finishes late, `changed` is called, because
    /// changes may have been missed.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(places: Places, period: Duration, changed: impl FnMut() + Send + 'static) -> Result<Self> {
        Self::over(move || FolderFingerprint::of(&places), period, changed)
    }

    /// Like [`LibraryWatch::start`], with any source of fingerprints.
    fn over(
        mut poll: impl FnMut() -> FolderFingerprint + Send + 'static,
        period: Duration,
        mut changed: impl FnMut() + Send + 'static,
    ) -> Result<Self> {
        let control = Arc::new(Control::default());
        let watched = control.clone();
        // Unbuffered, so a failed send means that the first poll was late.
        let (polled, first_poll) = sync_channel(0);
        let watching = move || {
            let begun = Instant::now();
            let mut filter = ChangeFilter::new(poll());
            let mut took = begun.elapsed();
            if polled.send(()).is_err() && !watched.has_ended() {
                changed();
            }
            while watched.wait(period.max(took * MIN_IDLE_RATIO)) {
                let begun = Instant::now();
                let now = poll();
                took = begun.elapsed();
                if filter.should_report(now) && !watched.has_ended() {
                    changed();
                }
            }
        };
        std::thread::Builder::new()
            .name("library-watch".into())
            .spawn(watching)
            .map_err(|e| Error::Internal(format!("the folders cannot be watched: {e}")))?;
        let _ = first_poll.recv_timeout(FIRST_POLL_WAIT);
        Ok(Self { control })
    }

    /// Pauses or resumes polling. Resuming polls at once.
    pub fn set_paused(&self, paused: bool) {
        self.control.change(|state| state.paused = paused);
    }
}

impl Drop for LibraryWatch {
    fn drop(&mut self) {
        // The thread is not joined: it may be blocked on an unresponsive volume.
        self.control.change(|state| state.ended = true);
    }
}

/// Hashes of the files in the places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FolderFingerprint {
    /// Hash of the file names.
    names: u64,
    /// Hash of names, sizes and modification times.
    contents: u64,
}

impl FolderFingerprint {
    fn of(places: &Places) -> Self {
        let list = find_candidates(places);
        let (mut names, mut contents) = (DefaultHasher::new(), DefaultHasher::new());
        for folder in &list.folders {
            (&folder.path, folder.exists, &folder.problem).hash(&mut names);
        }
        for candidate in &list.candidates {
            candidate.name.hash(&mut names);
            candidate.files.iter().for_each(|file| file.path.hash(&mut names));
            candidate.stamps().hash(&mut contents);
        }
        let names = names.finish();
        names.hash(&mut contents);
        Self { names, contents: contents.finish() }
    }
}

/// Decides when a change is reported.
struct ChangeFilter {
    /// Last reported fingerprint.
    reported: FolderFingerprint,
    /// Last observed fingerprint.
    seen: FolderFingerprint,
}

impl ChangeFilter {
    fn new(first: FolderFingerprint) -> Self {
        Self { reported: first, seen: first }
    }

    /// Decides whether to report this fingerprint. A changed set of files is reported at once, changed
    /// contents once they are stable for one poll.
    fn should_report(&mut self, now: FolderFingerprint) -> bool {
        let settled = now == self.seen;
        self.seen = now;
        let changed = now.names != self.reported.names || (settled && now.contents != self.reported.contents);
        if changed {
            self.reported = now;
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn reports_new_files_at_once_and_growing_files_when_stable() {
        let print = |names, contents| FolderFingerprint { names, contents };
        let mut filter = ChangeFilter::new(print(1, 1));
        assert!(!filter.should_report(print(1, 1)));
        assert!(filter.should_report(print(2, 2)), "a file appeared");
        for size in 3..6 {
            assert!(!filter.should_report(print(2, size)), "the file is growing");
        }
        assert!(filter.should_report(print(2, 5)), "the size has settled");
        assert!(!filter.should_report(print(2, 5)));
        assert!(!filter.should_report(print(2, 6)));
        assert!(filter.should_report(print(3, 7)), "another file appears while one grows");
        assert!(!filter.should_report(print(3, 7)));
    }

    #[test]
    fn fingerprint_covers_names_sizes_and_times() {
        let folder = tempfile::tempdir().unwrap();
        let places = Places::only(folder.path().into());
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let empty = FolderFingerprint::of(&places);
        write("notes.txt", "x");
        assert_eq!(FolderFingerprint::of(&places), empty);
        write("a.gguf", "x");
        let one = FolderFingerprint::of(&places);
        assert_ne!(one.names, empty.names);
        write("a.gguf", "xy");
        let grown = FolderFingerprint::of(&places);
        assert_eq!(grown.names, one.names);
        assert_ne!(grown.contents, one.contents);
        std::fs::rename(folder.path().join("a.gguf"), folder.path().join("b.gguf")).unwrap();
        assert_ne!(FolderFingerprint::of(&places).names, one.names);
    }

    #[test]
    fn unresponsive_folder_blocks_neither_start_nor_drop() {
        let (answer, answers) = channel();
        let (sender, changes) = channel();
        let print = |names| FolderFingerprint { names, contents: 0 };
        let poll = move || answers.recv().unwrap_or(print(0));
        // Returns although no poll has finished.
        let watch = LibraryWatch::over(poll, Duration::ZERO, move || {
            let _ = sender.send(());
        })
        .unwrap();
        assert!(changes.try_recv().is_err());
        answer.send(print(1)).unwrap();
        changes.recv_timeout(Duration::from_secs(30)).expect("the first poll was late");
        answer.send(print(2)).unwrap();
        changes.recv_timeout(Duration::from_secs(30)).expect("the files changed");
        // Dropping does not wait for the running poll, which never finishes by itself.
        drop(watch);
        drop(answer);
        assert!(changes.recv().is_err(), "no report after the drop");
    }

    #[test]
    fn paused_watch_does_not_poll_and_reports_changes_on_resume() {
        let (sender, changes) = channel();
        let (polled, polls) = channel();
        let names = Arc::new(Mutex::new(1));
        let seen = names.clone();
        let poll = move || {
            let _ = polled.send(());
            FolderFingerprint { names: *seen.lock(), contents: 0 }
        };
        let watch = LibraryWatch::over(poll, Duration::from_millis(1), move || {
            let _ = sender.send(());
        })
        .unwrap();
        let long = Duration::from_secs(30);
        for _ in 0..3 {
            polls.recv_timeout(long).expect("polls while running");
        }
        watch.set_paused(true);
        // A poll may have been running.
        std::thread::sleep(Duration::from_millis(20));
        while polls.try_recv().is_ok() {}
        *names.lock() = 2;
        std::thread::sleep(Duration::from_millis(50));
        assert!(polls.try_recv().is_err(), "polled while paused");
        assert!(changes.try_recv().is_err());
        watch.set_paused(false);
        changes.recv_timeout(long).expect("the change during the pause");
        // A paused watch ends too.
        watch.set_paused(true);
        drop(watch);
        while polls.recv_timeout(long).is_ok() {}
        assert!(polls.recv().is_err());
    }

    #[test]
    fn reports_changes_until_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let (sender, changes) = channel();
        let places = Places::only(folder.path().into());
        let watch = LibraryWatch::start(places, Duration::from_millis(5), move || {
            let _ = sender.send(());
        })
        .unwrap();
        let file: &Path = &folder.path().join("new.gguf");
        std::fs::write(file, "x").unwrap();
        changes.recv_timeout(Duration::from_secs(30)).unwrap();
        drop(watch);
        // The thread ends and drops the sender.
        while changes.recv_timeout(Duration::from_secs(30)).is_ok() {}
        std::fs::remove_file(file).unwrap();
        assert!(changes.recv().is_err());
    }
}
