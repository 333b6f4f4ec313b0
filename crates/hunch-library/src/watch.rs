//! Noticing that models come and go. A thread looks at names, sizes and times every two seconds, while
//! somebody listens and can see it. Looking is dearer than being told, but the caches of other programs are farms of
//! symbolic links, and folders lie on network volumes and external disks: of changes behind a link or made
//! by another machine, the system tells nothing. Where a look takes long, as on a slow volume, the next one
//! waits longer.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::places::Places;
use super::survey::survey;
use hunch_error::{Error, Result};

/// How often is looked.
pub const PERIOD: Duration = Duration::from_secs(2);
/// How long the first look is waited for.
const MOMENT: Duration = Duration::from_millis(100);
/// Looking takes at most this part of the time.
const SHARE: u32 = 10;

/// A watch over the places; ends when it is dropped. A call that is under way then is the last one.
pub struct Watch {
    control: Arc<Control>,
}

/// Orders to the thread that looks.
#[derive(Default)]
struct Control {
    orders: Mutex<Orders>,
    changed: Condvar,
}

#[derive(Default)]
struct Orders {
    ended: bool,
    paused: bool,
}

impl Control {
    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn has_ended(&self) -> bool {
        self.lock().ended
    }

    /// Waits for `time`, and longer while the watch is paused. After a pause it returns at once. Returns `false`
    /// when the watch has ended.
    fn wait(&self, time: Duration) -> bool {
        let waiting = |orders: &mut Orders| !orders.ended && !orders.paused;
        let waited = self.changed.wait_timeout_while(self.lock(), time, waiting);
        let orders = waited.unwrap_or_else(PoisonError::into_inner).0;
        let paused = |orders: &mut Orders| !orders.ended && orders.paused;
        let resumed = self.changed.wait_while(orders, paused);
        !resumed.unwrap_or_else(PoisonError::into_inner).ended
    }
}

impl Watch {
    /// Looks every `period` and calls `changed` when something else lies there than when it started, or than
    /// it said last. A file that grows is said when it appears, and once more when it has settled. The first
    /// look is waited for a moment and no longer, since a dead volume may hold it up for minutes; one that comes
    /// later is followed by a call of `changed`, because what came meanwhile may have been missed.
    ///
    /// # Errors
    /// When the system has no thread to give.
    pub fn start(places: Places, period: Duration, changed: impl FnMut() + Send + 'static) -> Result<Self> {
        Self::over(move || Fingerprint::of(&places), period, changed)
    }

    /// The same over whatever `look` sees.
    fn over(
        mut look: impl FnMut() -> Fingerprint + Send + 'static,
        period: Duration,
        mut changed: impl FnMut() + Send + 'static,
    ) -> Result<Self> {
        let control = Arc::new(Control::default());
        let watched = control.clone();
        // Without room: what is sent has been received, or nobody waits for it any more.
        let (looked, first_look) = sync_channel(0);
        let watching = move || {
            let begun = Instant::now();
            let mut settling = Settling::new(look());
            let mut took = begun.elapsed();
            if looked.send(()).is_err() && !watched.has_ended() {
                changed();
            }
            while watched.wait(period.max(took * SHARE)) {
                let begun = Instant::now();
                let now = look();
                took = begun.elapsed();
                if settling.has_news(now) && !watched.has_ended() {
                    changed();
                }
            }
        };
        std::thread::Builder::new()
            .name("library-watch".into())
            .spawn(watching)
            .map_err(|e| Error::Internal(format!("the folders cannot be watched: {e}")))?;
        let _ = first_look.recv_timeout(MOMENT);
        Ok(Self { control })
    }

    /// Stops looking, or looks again: at once, then every period.
    pub fn set_paused(&self, paused: bool) {
        self.control.change(|orders| orders.paused = paused);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Not waited for: it may be looking at a volume that does not answer.
        self.control.change(|orders| orders.ended = true);
    }
}

/// What lies in the places, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fingerprint {
    /// Which files.
    names: u64,
    /// Which files, how large and from when.
    contents: u64,
}

impl Fingerprint {
    fn of(places: &Places) -> Self {
        let survey = survey(places);
        let (mut names, mut contents) = (DefaultHasher::new(), DefaultHasher::new());
        for folder in &survey.folders {
            (&folder.path, folder.exists, &folder.problem).hash(&mut names);
        }
        for candidate in &survey.candidates {
            candidate.name.hash(&mut names);
            for mark in &candidate.files {
                mark.path.hash(&mut names);
                (mark.size, mark.modified).hash(&mut contents);
            }
        }
        let names = names.finish();
        names.hash(&mut contents);
        Self { names, contents: contents.finish() }
    }
}

/// When a change is news.
struct Settling {
    /// What was said last.
    said: Fingerprint,
    /// What was seen last.
    seen: Fingerprint,
}

impl Settling {
    fn new(first: Fingerprint) -> Self {
        Self { said: first, seen: first }
    }

    /// A file more or less is news at once; other contents are when they stay as they are for one look.
    fn has_news(&mut self, now: Fingerprint) -> bool {
        let settled = now == self.seen;
        self.seen = now;
        let news = now.names != self.said.names || (settled && now.contents != self.said.contents);
        if news {
            self.said = now;
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn news_is_said_at_once_and_growing_when_it_has_ended() {
        let print = |names, contents| Fingerprint { names, contents };
        let mut settling = Settling::new(print(1, 1));
        assert!(!settling.has_news(print(1, 1)));
        assert!(settling.has_news(print(2, 2)), "a file came");
        for size in 3..6 {
            assert!(!settling.has_news(print(2, size)), "it grows");
        }
        assert!(settling.has_news(print(2, 5)), "it has settled");
        assert!(!settling.has_news(print(2, 5)));
        assert!(!settling.has_news(print(2, 6)));
        assert!(settling.has_news(print(3, 7)), "another file comes while one grows");
        assert!(!settling.has_news(print(3, 7)));
    }

    #[test]
    fn a_fingerprint_sees_what_matters() {
        let folder = tempfile::tempdir().unwrap();
        let places = Places::only(folder.path().into());
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let empty = Fingerprint::of(&places);
        write("notes.txt", "x");
        assert_eq!(Fingerprint::of(&places), empty);
        write("a.gguf", "x");
        let one = Fingerprint::of(&places);
        assert_ne!(one.names, empty.names);
        write("a.gguf", "xy");
        let grown = Fingerprint::of(&places);
        assert_eq!(grown.names, one.names);
        assert_ne!(grown.contents, one.contents);
        std::fs::rename(folder.path().join("a.gguf"), folder.path().join("b.gguf")).unwrap();
        assert_ne!(Fingerprint::of(&places).names, one.names);
    }

    #[test]
    fn a_folder_that_does_not_answer_holds_nobody_up() {
        let (answer, answers) = channel();
        let (sender, changes) = channel();
        let print = |names| Fingerprint { names, contents: 0 };
        let look = move || answers.recv().unwrap_or(print(0));
        // This comes back although no look has.
        let watch = Watch::over(look, Duration::ZERO, move || {
            let _ = sender.send(());
        })
        .unwrap();
        assert!(changes.try_recv().is_err());
        answer.send(print(1)).unwrap();
        changes.recv_timeout(Duration::from_secs(30)).expect("the first look came late");
        answer.send(print(2)).unwrap();
        changes.recv_timeout(Duration::from_secs(30)).expect("something else lies there");
        // Nor is it waited for at the end: a look is under way, and will not come back by itself.
        drop(watch);
        drop(answer);
        assert!(changes.recv().is_err(), "the last look tells nobody");
    }

    #[test]
    fn paused_watch_does_not_look_and_tells_what_it_missed_when_resumed() {
        let (sender, changes) = channel();
        let (looked, looks) = channel();
        let names = Arc::new(Mutex::new(1));
        let seen = names.clone();
        let look = move || {
            let _ = looked.send(());
            Fingerprint { names: *seen.lock().unwrap(), contents: 0 }
        };
        let watch = Watch::over(look, Duration::from_millis(1), move || {
            let _ = sender.send(());
        })
        .unwrap();
        let long = Duration::from_secs(30);
        for _ in 0..3 {
            looks.recv_timeout(long).expect("it looks");
        }
        watch.set_paused(true);
        // A look may have been under way.
        std::thread::sleep(Duration::from_millis(20));
        while looks.try_recv().is_ok() {}
        *names.lock().unwrap() = 2;
        std::thread::sleep(Duration::from_millis(50));
        assert!(looks.try_recv().is_err(), "it looked while paused");
        assert!(changes.try_recv().is_err());
        watch.set_paused(false);
        changes.recv_timeout(long).expect("what changed meanwhile");
        // A paused watch ends too.
        watch.set_paused(true);
        drop(watch);
        while looks.recv_timeout(long).is_ok() {}
        assert!(looks.recv().is_err());
    }

    #[test]
    fn a_watch_tells_until_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let (sender, changes) = channel();
        let places = Places::only(folder.path().into());
        let watch = Watch::start(places, Duration::from_millis(5), move || {
            let _ = sender.send(());
        })
        .unwrap();
        let file: &Path = &folder.path().join("new.gguf");
        std::fs::write(file, "x").unwrap();
        changes.recv_timeout(Duration::from_secs(30)).unwrap();
        drop(watch);
        // The thread ends and with it the sender.
        while changes.recv_timeout(Duration::from_secs(30)).is_ok() {}
        std::fs::remove_file(file).unwrap();
        assert!(changes.recv().is_err());
    }
}
