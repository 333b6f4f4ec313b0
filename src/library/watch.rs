//! Noticing that models come and go. A thread looks at names, sizes and times every two seconds, while
//! somebody listens. Looking is dearer than being told, but the caches of other programs are farms of
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
use crate::error::{Error, Result};

/// How often is looked.
pub const PERIOD: Duration = Duration::from_secs(2);
/// How long the first look is waited for.
const MOMENT: Duration = Duration::from_millis(100);
/// Looking takes at most this part of the time.
const SHARE: u32 = 10;

/// A watch over the places; ends when it is dropped. A call that is under way then is the last one.
pub struct Watch {
    ended: Arc<Ended>,
}

#[derive(Default)]
struct Ended {
    flag: Mutex<bool>,
    told: Condvar,
}

impl Ended {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.flag.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits; `true` when the watch has ended.
    fn within(&self, time: Duration) -> bool {
        let waited = self.told.wait_timeout_while(self.lock(), time, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
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
        let ended = Arc::new(Ended::default());
        let watched = ended.clone();
        // Without room: what is sent has been received, or nobody waits for it any more.
        let (looked, first_look) = sync_channel(0);
        let watching = move || {
            let begun = Instant::now();
            let mut settling = Settling::new(look());
            let mut took = begun.elapsed();
            if looked.send(()).is_err() && !*watched.lock() {
                changed();
            }
            while !watched.within(period.max(took * SHARE)) {
                let begun = Instant::now();
                let now = look();
                took = begun.elapsed();
                if settling.has_news(now) && !*watched.lock() {
                    changed();
                }
            }
        };
        std::thread::Builder::new()
            .name("library-watch".into())
            .spawn(watching)
            .map_err(|e| Error::Internal(format!("the folders cannot be watched: {e}")))?;
        let _ = first_look.recv_timeout(MOMENT);
        Ok(Self { ended })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Not waited for: it may be looking at a volume that does not answer.
        *self.ended.lock() = true;
        self.ended.told.notify_all();
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
