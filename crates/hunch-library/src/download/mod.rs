//! Downloads: their list, progress and control. They run on their own thread, a few files at a time, and
//! can resume after a restart from the state on disk. The Hub's protocol is in [`hub`](crate::hub).

mod disk_space;
mod entries;
mod fetch;
mod install;
mod partial_state;
mod progress;
mod subscribers;
mod task;

use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, oneshot};

use super::hub::{self, Hub, HubConfig, Token};
use crate::types::{
    Download, DownloadPhase, DownloadRequest, HubCard, HubRepository, HubSearch, HubSearchPage, HubState,
    LibraryEvent,
};
use disk_space::SpaceReservations;
pub use disk_space::free_space;
use entries::Inner;
use hunch_error::{Error, Result};
use subscribers::Subscribers;

/// Time to wait for tasks to close their files at exit.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the free bytes of a folder's volume, if known.
pub type FreeSpace = Arc<dyn Fn(&Path) -> Option<u64> + Send + Sync>;

/// Sleeps for a duration.
pub type Sleep = Arc<dyn Fn(Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// Settings for downloads.
#[derive(Clone)]
pub struct DownloadSettings {
    /// Files transferred in parallel.
    pub max_parallel: usize,
    /// Time without data after which a connection counts as lost.
    pub stall_timeout: Duration,
    /// Longest time of a search, or of fetching a model card.
    pub answer_timeout: Duration,
    /// Retries without progress before giving up.
    pub max_retries: usize,
    /// Wait before the first retry. It doubles with each retry, with jitter.
    pub min_backoff: Duration,
    /// Longest wait between retries.
    pub max_backoff: Duration,
    /// Reports free disk space.
    pub free_space: FreeSpace,
    /// Waits between retries.
    pub sleep: Sleep,
}

impl Default for DownloadSettings {
    fn default() -> Self {
        Self {
            max_parallel: 3,
            stall_timeout: Duration::from_secs(30),
            answer_timeout: Duration::from_secs(40),
            max_retries: 8,
            min_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(60),
            free_space: Arc::new(disk_space::free_space),
            sleep: Arc::new(|time| Box::pin(tokio::time::sleep(time))),
        }
    }
}

/// The downloads of a models folder. Cheap to clone: all clones share one state. When the last one is
/// dropped, all downloads stop and keep their files.
#[derive(Clone)]
pub struct Downloads {
    inner: Arc<Inner>,
    _worker: Arc<DownloadThread>,
}

fn is_active(phase: DownloadPhase) -> bool {
    use DownloadPhase::{Checking, Retrying, Running, Waiting};
    matches!(phase, Waiting | Running | Retrying | Checking)
}

/// Runs blocking work off the download thread. The flag is set when the caller stops waiting.
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
    done.map_err(|error| Error::Internal(format!("a download task failed: {error}")))
}

/// The download thread. Dropping it aborts active downloads.
struct DownloadThread {
    inner: Weak<Inner>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for DownloadThread {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade() {
            let entries = inner.entries.lock();
            let tasks = inner.tasks.lock();
            let active = entries.iter().filter(|(_, entry)| is_active(entry.view.phase));
            // Tasks that only record a pause are allowed to finish.
            active.filter_map(|(id, _)| tasks.get(id)).for_each(tokio::task::JoinHandle::abort);
        }
        drop(self.stop.take());
        let thread = self.thread.take();
        // A subscriber may have owned the last clone.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

/// Keeps a subscriber registered until dropped.
#[must_use = "dropping this removes the subscriber"]
pub struct Subscription {
    inner: Weak<Inner>,
    id: u64,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade() {
            inner.subscribers.remove(self.id);
        }
    }
}

impl Downloads {
    /// Opens the downloads of a models folder, including unfinished ones. Starts none.
    ///
    /// # Errors
    /// If the Hub's or a proxy's address is invalid, or the thread cannot be started.
    pub fn open(models: &Path, hub: HubConfig, settings: DownloadSettings) -> Result<Self> {
        let hub = Arc::new(Hub::new(hub, settings.stall_timeout)?);
        let failed = |error| Error::Internal(format!("the download thread cannot be started: {error}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let inner = Arc::new(Inner {
            models: models.to_owned(),
            hub,
            runtime: runtime.handle().clone(),
            slots: Arc::new(Semaphore::new(settings.max_parallel)),
            settings,
            reservations: SpaceReservations::default(),
            subscribers: Subscribers::default(),
            entries: Mutex::default(),
            tasks: Mutex::default(),
            next: AtomicU64::new(1),
        });
        inner.sync_from_disk();
        let (stop, stopped) = oneshot::channel();
        let thread_inner = Arc::clone(&inner);
        let thread = std::thread::Builder::new().name("downloads".into()).spawn(move || {
            runtime.block_on(async {
                let _ = stopped.await;
                let tasks = std::mem::take(&mut *thread_inner.tasks.lock());
                for task in tasks.into_values() {
                    let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, task).await;
                }
            });
            runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        });
        let worker = DownloadThread {
            inner: Arc::downgrade(&inner),
            stop: Some(stop),
            thread: Some(thread.map_err(failed)?),
        };
        Ok(Self { inner, _worker: Arc::new(worker) })
    }

    /// Registers a subscriber until the subscription is dropped. It is called a few times per second per
    /// download at most, on any thread. It may call [`Downloads::list`] and drop subscriptions, and nothing
    /// else of this type.
    pub fn subscribe(&self, subscriber: Box<dyn FnMut(LibraryEvent) + Send>) -> Subscription {
        let id = self.inner.next.fetch_add(1, Ordering::Relaxed);
        self.inner.subscribers.add(id, subscriber);
        Subscription { inner: Arc::downgrade(&self.inner), id }
    }

    /// Returns every download, including those of other programs as found on disk.
    pub fn list(&self) -> Vec<Download> {
        self.inner.sync_from_disk();
        self.inner.entries.lock().values().map(|entry| entry.view.clone()).collect()
    }

    /// Lists a repository's models. Blocks until the Hub responds.
    ///
    /// # Errors
    /// If the name is invalid, or the Hub is unreachable or denies access.
    pub fn repository(&self, repository: &str) -> Result<HubRepository> {
        let repository = self.inner.hub.repository(repository)?;
        let inner = Arc::clone(&self.inner);
        self.wait_for(async move { task::repository(&inner, &repository).await })
    }

    /// Searches the Hub for repositories by name. Blocks until the Hub responds.
    ///
    /// # Errors
    /// If the search has no words, or the Hub is unreachable, busy, slow or does not search.
    pub fn search(&self, search: &HubSearch) -> Result<HubSearchPage> {
        hub::check_search(search)?;
        let (inner, search) = (Arc::clone(&self.inner), search.clone());
        self.wait_for(async move { task::search(&inner, &search).await })
    }

    /// Fetches the model card of a repository. Blocks until the Hub responds.
    ///
    /// # Errors
    /// As [`Downloads::repository`].
    pub fn card(&self, repository: &str) -> Result<HubCard> {
        let repository = self.inner.hub.repository(repository)?;
        let inner = Arc::clone(&self.inner);
        self.wait_for(async move { task::card(&inner, &repository).await })
    }

    /// Runs work on the download thread and waits for its result.
    fn wait_for<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = std::sync::mpsc::channel();
        self.inner.runtime.spawn(async move {
            let _ = sender.send(work.await);
        });
        receiver.recv().map_err(|_| Error::Internal("the download thread has ended".into()))?
    }

    /// Returns the quantisation or file after the colon of a name such as "owner/name:Q8_0". Makes no
    /// request.
    ///
    /// # Errors
    /// If the name is invalid.
    pub fn selector(&self, repository: &str) -> Result<Option<String>> {
        self.inner.hub.selector(repository)
    }

    /// Returns the state of the Hub connection. May wait for the user to unlock the keychain.
    pub fn hub_state(&self) -> HubState {
        self.inner.hub.state()
    }

    /// Lets the next request try a keychain again that could not be read. Otherwise it is tried once per
    /// process. Interactive callers use this before each user action.
    pub fn retry_keychain(&self) {
        self.inner.hub.retry_keychain();
    }

    /// Stores the Hub token in the keychain, or deletes it.
    ///
    /// # Errors
    /// If the token is malformed, or the keychain is missing or cannot be written.
    pub fn set_hub_token(&self, token: Option<&str>) -> Result<HubState> {
        let token = token.map(Token::new).transpose()?;
        self.inner.hub.set_token(token.as_ref())?;
        Ok(self.hub_state())
    }

    /// Starts or resumes a download, with the requested checksum if any. Progress is reported by events. An
    /// active download is not changed.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if the repository or file name is invalid.
    pub fn start(&self, request: &DownloadRequest) -> Result<Download> {
        let repository = self.inner.hub.repository(&request.repository)?;
        hub::check_path(&request.file)?;
        let request = DownloadRequest { repository, ..request.clone() };
        let id = partial_state::download_id(&request);
        self.inner.start(&id, Some(&request));
        self.inner.view(&id)
    }

    /// Pauses a download and keeps its partial files. Does nothing if it is not active.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if there is no such download.
    pub fn pause(&self, id: &str) -> Result<()> {
        if is_active(self.inner.view(id)?.phase) {
            self.inner.replace(id, |task| async move { task.record_pause() });
        }
        Ok(())
    }

    /// Resumes a download.
    ///
    /// # Errors
    /// As [`Downloads::pause`]; [`Error::DownloadUnreadable`] if its state file is unreadable.
    pub fn resume(&self, id: &str) -> Result<()> {
        let view = self.inner.view(id)?;
        if self.inner.is_unreadable(id) {
            return Err(self.inner.unreadable_error(id, view.done_bytes));
        }
        if view.phase != DownloadPhase::Done {
            self.inner.start(id, None);
        }
        Ok(())
    }

    /// Resumes the downloads that were active when the program last ended.
    pub fn resume_interrupted(&self) {
        for (id, state) in partial_state::all_readable(&self.inner.models) {
            if state.resume_on_start
                && self.inner.view(&id).is_ok_and(|view| view.phase == DownloadPhase::Paused)
            {
                self.inner.start(&id, None);
            }
        }
    }

    /// Removes a download and its partial files. If it is done, the model stays.
    ///
    /// # Errors
    /// As [`Downloads::pause`].
    pub fn remove(&self, id: &str) -> Result<()> {
        self.inner.view(id)?;
        self.inner.replace(id, |task| async move { task.remove() });
        Ok(())
    }
}
