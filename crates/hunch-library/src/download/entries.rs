//! The downloads by id: their published state and their running tasks. State changes and their events are
//! queued under one lock, so the last event always matches the state.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::disk_space::SpaceReservations;
use super::partial_state::{self, OnDisk, PartialDownload, PartialState};
use super::subscribers::Subscribers;
use super::task::Task;
use super::{DownloadSettings, is_active};
use crate::hub;
use crate::hub::Hub;
use crate::types::{Download, DownloadPhase, DownloadRequest, LibraryEvent};
use hunch_error::{Error, ErrorCode, ErrorInfo, Refusal, Result};

pub(super) struct Inner {
    pub(super) models: PathBuf,
    pub(super) hub: Arc<Hub>,
    pub(super) settings: DownloadSettings,
    pub(super) runtime: Handle,
    /// Limits parallel file transfers.
    pub(super) slots: Arc<Semaphore>,
    /// Disk space reserved by active downloads.
    pub(super) reservations: SpaceReservations,
    pub(super) subscribers: Subscribers,
    /// Locked before `tasks` where both are needed.
    pub(super) entries: Mutex<BTreeMap<String, DownloadEntry>>,
    /// Last task started for each download.
    pub(super) tasks: Mutex<HashMap<String, tokio::task::JoinHandle<()>>>,
    pub(super) next: AtomicU64,
}

pub(super) struct DownloadEntry {
    pub(super) view: Download,
    /// Task that may change this entry. An older task may still be finishing.
    pub(super) generation: u64,
    /// Set if the state file is missing or corrupt.
    is_unreadable: bool,
    /// Held by the task that accesses the files.
    files_lock: Arc<tokio::sync::Mutex<()>>,
}

impl Inner {
    pub(super) fn view(&self, id: &str) -> Result<Download> {
        let missing = || Error::from(Refusal::NoSuchDownload);
        self.entries.lock().get(id).map(|entry| entry.view.clone()).ok_or_else(missing)
    }

    pub(super) fn partial(&self, id: &str) -> PartialDownload {
        PartialDownload::new(&self.models, id)
    }

    /// Updates the entries from disk, for downloads of other programs.
    pub(super) fn sync_from_disk(&self) {
        let on_disk: BTreeMap<String, OnDisk> = partial_state::all(&self.models).into_iter().collect();
        for (id, found) in &on_disk {
            match found {
                OnDisk::Readable(state) => self.sync_entry(id, state),
                OnDisk::Unreadable { bytes } => self.sync_unreadable(id, *bytes),
            }
        }
        let gone: Vec<(String, u64)> = self
            .entries
            .lock()
            .iter()
            .filter(|(id, entry)| (entry.is_unreadable || is_idle(&entry.view)) && !on_disk.contains_key(*id))
            .map(|(id, entry)| (id.clone(), entry.generation))
            .collect();
        for (id, generation) in gone {
            // A download paused before its first write has nothing on disk yet.
            if !self.is_busy(&id) {
                self.remove_entry(&id, generation);
            }
        }
    }

    /// Checks whether a task of this program is still running for a download. It may still access the
    /// files, whatever phase is shown.
    pub(super) fn is_busy(&self, id: &str) -> bool {
        self.tasks.lock().get(id).is_some_and(|task| !task.is_finished())
    }

    fn entry(&self, view: Download) -> DownloadEntry {
        let is_unreadable = view.request.file.is_empty();
        DownloadEntry {
            view,
            generation: self.next.fetch_add(1, Ordering::Relaxed),
            is_unreadable,
            files_lock: Arc::default(),
        }
    }

    /// Checks whether the download's state file is unreadable.
    pub(super) fn is_unreadable(&self, id: &str) -> bool {
        self.entries.lock().get(id).is_some_and(|entry| entry.is_unreadable)
    }

    /// Returns the error for a download whose state file is unreadable.
    pub(super) fn unreadable_error(&self, id: &str, bytes: u64) -> Error {
        Error::DownloadUnreadable { folder: self.partial(id).folder().to_owned(), bytes }
    }

    /// Returns the view of a download whose state file is unreadable. It can only be removed.
    fn unreadable_view(&self, id: &str, bytes: u64) -> Download {
        Download {
            id: id.to_owned(),
            request: DownloadRequest {
                repository: String::new(),
                file: String::new(),
                expected_sha256: None,
            },
            name: id.to_owned(),
            phase: DownloadPhase::Failed,
            done_bytes: bytes,
            total_bytes: None,
            bytes_per_second: None,
            seconds_left: None,
            error: Some(ErrorInfo::from(&self.unreadable_error(id, bytes))),
            path: None,
            head: None,
        }
    }

    /// Takes over a download from disk whose state file is unreadable.
    fn sync_unreadable(&self, id: &str, bytes: u64) {
        let now = self.unreadable_view(id, bytes);
        let generation = {
            let mut entries = self.entries.lock();
            let entry = entries.entry(id.to_owned()).or_insert_with(|| self.entry(now.clone()));
            // For a download known here, the state file is written again on resume.
            if !entry.is_unreadable {
                return;
            }
            entry.generation
        };
        self.publish(id, generation, |view| *view = now);
    }

    /// Returns the view of a download on disk that is not active here.
    fn disk_view(&self, id: &str, state: &PartialState) -> Download {
        Download {
            id: id.to_owned(),
            request: state.request.clone(),
            name: hub::model_name(&state.request).to_owned(),
            phase: DownloadPhase::Paused,
            done_bytes: self.partial(id).bytes(state),
            total_bytes: state.total(),
            bytes_per_second: None,
            seconds_left: None,
            error: None,
            path: None,
            head: None,
        }
    }

    /// Takes over the state on disk of a download that is not active here.
    fn sync_entry(&self, id: &str, state: &PartialState) {
        let now = self.disk_view(id, state);
        let elsewhere = Error::DownloadElsewhere { name: now.name.clone() };
        let generation = {
            let mut entries = self.entries.lock();
            let entry = entries.entry(id.to_owned()).or_insert_with(|| self.entry(now.clone()));
            if std::mem::take(&mut entry.is_unreadable) {
                // Another program has restarted it.
                entry.view = now.clone();
            }
            if is_active(entry.view.phase) || entry.view.phase == DownloadPhase::Done {
                return;
            }
            entry.generation
        };
        let is_foreign = !self.is_busy(id) && self.partial(id).is_locked();
        self.publish(id, generation, |view| {
            view.done_bytes = now.done_bytes;
            view.total_bytes = now.total_bytes.or(view.total_bytes);
            let code = elsewhere.code();
            if is_foreign {
                (view.phase, view.error) = (DownloadPhase::Failed, Some(ErrorInfo::from(&elsewhere)));
            } else if view.error.as_ref().is_some_and(|error| error.code == code) {
                (view.phase, view.error) = (DownloadPhase::Paused, None);
            }
        });
    }

    /// Changes a download and notifies subscribers, unless a newer task owns it or nothing changed.
    pub(super) fn publish(&self, id: &str, generation: u64, change: impl FnOnce(&mut Download)) {
        {
            let mut entries = self.entries.lock();
            let Some(entry) = entries.get_mut(id).filter(|entry| entry.generation == generation) else {
                return;
            };
            self.change(entry, change);
        }
        self.subscribers.deliver();
    }

    /// Changes a locked entry, and queues an event if anything changed.
    fn change(&self, entry: &mut DownloadEntry, change: impl FnOnce(&mut Download)) {
        let before = entry.view.clone();
        change(&mut entry.view);
        if entry.view != before {
            self.subscribers.enqueue(LibraryEvent::Download { download: Box::new(entry.view.clone()) });
        }
    }

    pub(super) fn remove_entry(&self, id: &str, generation: u64) {
        {
            let mut entries = self.entries.lock();
            if entries.get(id).is_none_or(|entry| entry.generation != generation) {
                return;
            }
            entries.remove(id);
            self.subscribers.enqueue(LibraryEvent::DownloadGone { id: id.to_owned() });
        }
        self.subscribers.deliver();
    }

    pub(super) fn notify(&self, event: LibraryEvent) {
        self.subscribers.enqueue(event);
        self.subscribers.deliver();
    }

    /// Starts fetching unless the download is active. `request` creates or updates the entry.
    pub(super) fn start(self: &Arc<Self>, id: &str, request: Option<&DownloadRequest>) {
        {
            // Under one lock, so that concurrent calls start one task and subscribers never see a new entry
            // idle.
            let mut entries = self.entries.lock();
            if let Some(request) = request {
                let new = || self.disk_view(id, &PartialState::new(request));
                let entry = entries.entry(id.to_owned()).or_insert_with(|| self.entry(new()));
                if std::mem::take(&mut entry.is_unreadable) {
                    // The request replaces the unreadable state.
                    entry.view = new();
                }
            }
            let Some(entry) = entries.get_mut(id).filter(|entry| !is_active(entry.view.phase)) else {
                return;
            };
            self.change(entry, |view| {
                // After a checksum mismatch, the user may retry without one.
                view.request = request.cloned().unwrap_or_else(|| view.request.clone());
                (view.phase, view.error, view.path) = (DownloadPhase::Waiting, None, None);
            });
            self.spawn(entry, |task| task.fetch());
        }
        self.subscribers.deliver();
    }

    /// Aborts the running task of a download and starts `work` in its place.
    pub(super) fn replace<F: Future<Output = ()> + Send>(
        self: &Arc<Self>,
        id: &str,
        work: impl FnOnce(Task) -> F + Send + 'static,
    ) {
        {
            let mut entries = self.entries.lock();
            let Some(entry) = entries.get_mut(id) else { return };
            self.change(entry, |view| {
                if is_active(view.phase) {
                    (view.phase, view.error) = (DownloadPhase::Paused, None);
                }
                (view.bytes_per_second, view.seconds_left) = (None, None);
            });
            if let Some(task) = self.tasks.lock().get(id) {
                task.abort();
            }
            // Released here, because the aborted task ends later and the next one may need the space.
            self.reservations.release(entry.generation);
            self.spawn(entry, work);
        }
        self.subscribers.deliver();
    }

    /// Starts a task for a download. It begins once the previous task releases the files.
    fn spawn<F: Future<Output = ()> + Send>(
        self: &Arc<Self>,
        entry: &mut DownloadEntry,
        work: impl FnOnce(Task) -> F + Send + 'static,
    ) {
        entry.generation = self.next.fetch_add(1, Ordering::Relaxed);
        let id = entry.view.id.clone();
        let request = entry.view.request.clone();
        let new = Task {
            inner: Arc::clone(self),
            partial: self.partial(&id),
            request,
            generation: entry.generation,
            id: id.clone(),
        };
        let files_lock = Arc::clone(&entry.files_lock);
        let task = self.runtime.spawn(async move {
            // Joining the previous task is not enough: it may have been aborted while waiting for the one
            // before.
            let _files = files_lock.lock_owned().await;
            work(new).await;
        });
        self.tasks.lock().insert(id, task);
    }
}

/// Checks whether the entry mirrors the disk: paused, or active in another program.
fn is_idle(view: &Download) -> bool {
    view.phase == DownloadPhase::Paused
        || view.error.as_ref().is_some_and(|error| error.code == ErrorCode::DownloadElsewhere)
}
