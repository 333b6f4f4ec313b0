//! Downloads: which there are, how far they are, and what the person may do with them. They run on a
//! thread of their own, a few files at a time; what is on disk is enough to go on after a restart.
//! What the hub says and means is `hub`'s.

mod entries;
mod install;
mod kept;
mod part;
mod progress;
mod room;
mod sinks;
mod task;

use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::{Semaphore, oneshot};

use super::hub::{self, Hub, HubConfig, Token};
use crate::types::{Download, DownloadPhase, DownloadRequest, HubRepository, HubState, LibraryEvent};
use entries::Inner;
use hunch_error::{Error, Result};
use room::Room;
use sinks::Sinks;

/// How long the end of the program waits for files to be closed.
const CLOSING: Duration = Duration::from_secs(2);

/// Free bytes of the disk that a folder is on, if that is known.
pub type Space = Arc<dyn Fn(&Path) -> Option<u64> + Send + Sync>;

/// Comes back after so long.
pub type Wait = Arc<dyn Fn(Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// How to download.
#[derive(Clone)]
pub struct DownloadSettings {
    /// Files that are fetched at the same time.
    pub at_once: usize,
    /// A connection over which nothing comes for so long has ended.
    pub stall: Duration,
    /// How often something is tried again without a byte more.
    pub tries: usize,
    /// How long before the first time; doubled with each, and longer by chance, so that not all come at once.
    pub first_wait: Duration,
    /// The longest of these.
    pub longest_wait: Duration,
    /// Tells the free space.
    pub space: Space,
    /// Waits before something is tried again.
    pub wait: Wait,
}

impl Default for DownloadSettings {
    fn default() -> Self {
        Self {
            at_once: 3,
            stall: Duration::from_secs(30),
            tries: 8,
            first_wait: Duration::from_secs(1),
            longest_wait: Duration::from_secs(60),
            space: Arc::new(room::free_space),
            wait: Arc::new(|time| Box::pin(tokio::time::sleep(time))),
        }
    }
}

/// The downloads of a models folder. Cheap to clone; all clones are the same one, and when the last is gone
/// everything stops where it is.
#[derive(Clone)]
pub struct Downloads {
    inner: Arc<Inner>,
    _worker: Arc<Worker>,
}

/// Nothing that panics runs under these locks but sinks, and what they are told of is sound before.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_active(phase: DownloadPhase) -> bool {
    use DownloadPhase::{Checking, Retrying, Running, Waiting};
    matches!(phase, Waiting | Running | Retrying | Checking)
}

/// Runs what would hold everything else up, off the thread. It is told when nobody waits for it any more.
async fn blocking<T: Send + 'static>(work: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> Result<T> {
    struct Cancel(Arc<AtomicBool>);
    impl Drop for Cancel {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let cancel = Cancel(Arc::default());
    let cancelled = Arc::clone(&cancel.0);
    let done = tokio::task::spawn_blocking(move || work(&cancelled)).await;
    done.map_err(|error| Error::Internal(format!("a download ended: {error}")))
}

/// The thread. Dropping it ends what runs.
struct Worker {
    inner: Weak<Inner>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade() {
            let entries = lock(&inner.entries);
            let tasks = lock(&inner.tasks);
            let active = entries.iter().filter(|(_, entry)| is_active(entry.view.phase));
            // Those that only write down that they are paused come to their end.
            active.filter_map(|(id, _)| tasks.get(id)).for_each(tokio::task::JoinHandle::abort);
        }
        drop(self.stop.take());
        let thread = self.thread.take();
        // A sink may have held the last clone.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

/// While it lives, a sink is told what happens.
#[must_use = "a sink hears nothing when this is dropped"]
pub struct Subscription {
    inner: Weak<Inner>,
    number: u64,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade() {
            inner.sinks.remove(self.number);
        }
    }
}

impl Downloads {
    /// Opens the downloads of a models folder, with those that lie there unfinished. None is started.
    ///
    /// # Errors
    /// When the hub's or a proxy's address makes no sense, or the thread cannot be started.
    pub fn open(models: &Path, hub: HubConfig, settings: DownloadSettings) -> Result<Self> {
        let hub = Arc::new(Hub::new(hub, settings.stall)?);
        let failed = |error| Error::Internal(format!("the thread of downloads cannot be started: {error}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let inner = Arc::new(Inner {
            models: models.to_owned(),
            hub,
            runtime: runtime.handle().clone(),
            slots: Arc::new(Semaphore::new(settings.at_once)),
            settings,
            room: Room::default(),
            sinks: Sinks::default(),
            entries: Mutex::default(),
            tasks: Mutex::default(),
            next: AtomicU64::new(1),
        });
        inner.look();
        let (stop, stopped) = oneshot::channel();
        let of_thread = Arc::clone(&inner);
        let thread = std::thread::Builder::new().name("downloads".into()).spawn(move || {
            runtime.block_on(async {
                let _ = stopped.await;
                let tasks = std::mem::take(&mut *lock(&of_thread.tasks));
                for task in tasks.into_values() {
                    let _ = tokio::time::timeout(CLOSING, task).await;
                }
            });
            runtime.shutdown_timeout(CLOSING);
        });
        let worker =
            Worker { inner: Arc::downgrade(&inner), stop: Some(stop), thread: Some(thread.map_err(failed)?) };
        Ok(Self { inner, _worker: Arc::new(worker) })
    }

    /// Tells a sink what happens, at most a few times a second for each download, until the subscription is
    /// dropped, from whichever thread something happens on. A sink may ask for [`Downloads::list`] and drop what
    /// it likes, subscriptions too; it must call nothing else here.
    pub fn subscribe(&self, sink: Box<dyn FnMut(LibraryEvent) + Send>) -> Subscription {
        let number = self.inner.next.fetch_add(1, Ordering::Relaxed);
        self.inner.sinks.add(number, sink);
        Subscription { inner: Arc::downgrade(&self.inner), number }
    }

    /// Every download: those of this program as they are, others as they lie on disk.
    pub fn list(&self) -> Vec<Download> {
        self.inner.look();
        lock(&self.inner.entries).values().map(|entry| entry.view.clone()).collect()
    }

    /// What a repository holds. Waits for the hub.
    ///
    /// # Errors
    /// When that is not the name of one, or the hub does not answer or does not let us in.
    pub fn repository(&self, repository: &str) -> Result<HubRepository> {
        let repository = self.inner.hub.repository(repository)?;
        let (sender, receiver) = std::sync::mpsc::channel();
        let inner = Arc::clone(&self.inner);
        self.inner.runtime.spawn(async move {
            let _ = sender.send(task::repository(&inner, &repository).await);
        });
        receiver.recv().map_err(|_| Error::Internal("the thread of downloads has ended".into()))?
    }

    /// What of a repository is meant where that is written behind it, as in "owner/name:Q8_0": a quantisation or a
    /// file. Asks nobody.
    ///
    /// # Errors
    /// When that is not the name of a repository.
    pub fn wanted(&self, repository: &str) -> Result<Option<String>> {
        self.inner.hub.wanted(repository)
    }

    /// The hub, as this machine sees it. May wait for the person to open the keychain.
    pub fn hub_state(&self) -> HubState {
        self.inner.hub.state()
    }

    /// Has a keychain that stayed shut asked once more with the next request; else it is asked once and never again.
    /// For a window, where a person does one thing after the other: to be called before each.
    pub fn ask_keychain_again(&self) {
        self.inner.hub.ask_keychain_again();
    }

    /// Keeps the hub's token in the keychain, or forgets it.
    ///
    /// # Errors
    /// When it cannot be one, or there is no keychain or it stays shut.
    pub fn set_hub_token(&self, token: Option<&str>) -> Result<HubState> {
        let token = token.map(Token::new).transpose()?;
        self.inner.hub.set_token(token.as_ref())?;
        Ok(self.hub_state())
    }

    /// Starts a download, or goes on with it, now with the checksum that is asked for, if any. Tells how it goes by
    /// events; a download that runs is left alone.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when the names cannot be those of a file in a repository.
    pub fn start(&self, request: &DownloadRequest) -> Result<Download> {
        let repository = self.inner.hub.repository(&request.repository)?;
        hub::check_path(&request.file)?;
        let request = DownloadRequest { repository, ..request.clone() };
        let id = kept::id(&request);
        self.inner.launch(&id, Some(&request));
        self.inner.view(&id)
    }

    /// Stops a download; what is here of it stays. One that does not run is left alone.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when there is none of that number.
    pub fn pause(&self, id: &str) -> Result<()> {
        if is_active(self.inner.view(id)?.phase) {
            self.inner.replace(id, |run| async move { run.put_down() });
        }
        Ok(())
    }

    /// Goes on with a download.
    ///
    /// # Errors
    /// As [`Downloads::pause`]; [`Error::DownloadUnreadable`] where nothing tells any more what was to be fetched.
    pub fn resume(&self, id: &str) -> Result<()> {
        let view = self.inner.view(id)?;
        if self.inner.is_lost(id) {
            return Err(self.inner.unreadable(id, view.done_bytes));
        }
        if view.phase != DownloadPhase::Done {
            self.inner.launch(id, None);
        }
        Ok(())
    }

    /// Goes on with what was under way when the program last ended.
    pub fn resume_interrupted(&self) {
        for (id, kept) in kept::known(&self.inner.models) {
            if kept.wanted && self.inner.view(&id).is_ok_and(|view| view.phase == DownloadPhase::Paused) {
                self.inner.launch(&id, None);
            }
        }
    }

    /// Takes a download away, with what is here of it; of one that is done only the entry, the model stays.
    ///
    /// # Errors
    /// As [`Downloads::pause`].
    pub fn remove(&self, id: &str) -> Result<()> {
        self.inner.view(id)?;
        self.inner.replace(id, |run| async move { run.remove() });
        Ok(())
    }
}
