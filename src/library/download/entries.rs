//! The downloads by number: what each looks like from outside, what runs for it, who is told. A change
//! is made and told under one lock, so that what is heard last is what is.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::kept::{self, Kept, Place};
use super::task::Run;
use super::{DownloadSettings, is_active, lock};
use crate::api::library::{Download, DownloadPhase, LibraryEvent};
use crate::error::{Error, ErrorCode, Result};
use crate::event::ErrorInfo;
use crate::library::hub::{self, Hub};

pub(super) struct Inner {
    pub(super) models: PathBuf,
    pub(super) hub: Arc<Hub>,
    pub(super) settings: DownloadSettings,
    pub(super) runtime: Handle,
    /// Files that may be fetched now.
    pub(super) slots: Arc<Semaphore>,
    /// Taken before `entries` by all who change one, so that what is told comes in the order of what happened.
    pub(super) sinks: Mutex<Vec<(u64, Sink)>>,
    pub(super) entries: Mutex<BTreeMap<String, Entry>>,
    /// What was last started for each download. One waits for the one before.
    pub(super) tasks: Mutex<HashMap<String, tokio::task::JoinHandle<()>>>,
    pub(super) next: AtomicU64,
}

pub(super) type Sink = Box<dyn FnMut(LibraryEvent) + Send>;

pub(super) struct Entry {
    pub(super) view: Download,
    /// Which of its runs may change it; an older one may still be coming to its end.
    pub(super) run: u64,
}

impl Inner {
    pub(super) fn view(&self, id: &str) -> Result<Download> {
        let missing = || Error::invalid("There is no such download any more. Choose another one.");
        lock(&self.entries).get(id).map(|entry| entry.view.clone()).ok_or_else(missing)
    }

    pub(super) fn place(&self, id: &str) -> Place {
        Place::new(&self.models, id)
    }

    /// Looks at the disk for what other programs have begun, moved and ended.
    pub(super) fn look(&self) {
        let on_disk: BTreeMap<String, Kept> = kept::all(&self.models).into_iter().collect();
        for (id, kept) in &on_disk {
            self.learn(id, kept);
        }
        let gone: Vec<(String, u64)> = lock(&self.entries)
            .iter()
            .filter(|(id, entry)| is_idle(&entry.view) && !on_disk.contains_key(*id))
            .map(|(id, entry)| (id.clone(), entry.run))
            .collect();
        for (id, run) in gone {
            // One that was paused before it had begun has nothing on disk yet.
            let busy = lock(&self.tasks).get(&id).is_some_and(|task| !task.is_finished());
            if !busy {
                self.forget(&id, run);
            }
        }
    }

    /// Takes over what is known on disk of a download that this program is not at.
    pub(super) fn learn(&self, id: &str, kept: &Kept) {
        let place = self.place(id);
        let name = hub::short_name(&kept.request.file).to_owned();
        let elsewhere = Error::DownloadElsewhere { name: name.clone() };
        let now = Download {
            id: id.to_owned(),
            request: kept.request.clone(),
            name,
            phase: DownloadPhase::Paused,
            done_bytes: place.bytes(kept),
            total_bytes: kept.total(),
            bytes_per_second: None,
            seconds_left: None,
            error: None,
            path: None,
        };
        let run = {
            let mut entries = lock(&self.entries);
            let new = || Entry { view: now.clone(), run: self.next.fetch_add(1, Ordering::Relaxed) };
            let entry = entries.entry(id.to_owned()).or_insert_with(new);
            if is_active(entry.view.phase) || entry.view.phase == DownloadPhase::Done {
                return;
            }
            entry.run
        };
        let busy = lock(&self.tasks).get(id).is_some_and(|task| !task.is_finished());
        let held = !busy && place.is_held();
        self.publish(id, run, |view| {
            view.done_bytes = now.done_bytes;
            view.total_bytes = now.total_bytes.or(view.total_bytes);
            let code = elsewhere.code();
            if held {
                (view.phase, view.error) = (DownloadPhase::Failed, Some(ErrorInfo::from(&elsewhere)));
            } else if view.error.as_ref().is_some_and(|error| error.code == code) {
                (view.phase, view.error) = (DownloadPhase::Paused, None);
            }
        });
    }

    /// Changes a download and tells it, if it changes and `run` is the run that may.
    pub(super) fn publish(&self, id: &str, run: u64, change: impl FnOnce(&mut Download)) {
        let mut sinks = lock(&self.sinks);
        let download = {
            let mut entries = lock(&self.entries);
            let Some(entry) = entries.get_mut(id).filter(|entry| entry.run == run) else { return };
            let before = entry.view.clone();
            change(&mut entry.view);
            if entry.view == before {
                return;
            }
            entry.view.clone()
        };
        for (_, sink) in sinks.iter_mut() {
            sink(LibraryEvent::Download { download: download.clone() });
        }
    }

    pub(super) fn forget(&self, id: &str, run: u64) {
        let mut sinks = lock(&self.sinks);
        {
            let mut entries = lock(&self.entries);
            if entries.get(id).is_none_or(|entry| entry.run != run) {
                return;
            }
            entries.remove(id);
        }
        for (_, sink) in sinks.iter_mut() {
            sink(LibraryEvent::DownloadGone { id: id.to_owned() });
        }
    }

    pub(super) fn tell(&self, event: &LibraryEvent) {
        for (_, sink) in lock(&self.sinks).iter_mut() {
            sink(event.clone());
        }
    }

    /// Fetches, if nobody does.
    pub(super) fn launch(self: &Arc<Self>, id: &str) {
        let run = {
            let mut entries = lock(&self.entries);
            let Some(entry) = entries.get_mut(id).filter(|entry| !is_active(entry.view.phase)) else {
                return;
            };
            entry.run = self.next.fetch_add(1, Ordering::Relaxed);
            entry.run
        };
        self.publish(id, run, |view| {
            (view.phase, view.error, view.path) = (DownloadPhase::Waiting, None, None);
        });
        self.spawn(id, run, |run| run.fetch());
    }

    /// Stops what runs for a download and does something else with it.
    pub(super) fn replace<F: Future<Output = ()> + Send>(
        self: &Arc<Self>,
        id: &str,
        work: impl FnOnce(Run) -> F + Send + 'static,
    ) {
        let run = {
            let mut entries = lock(&self.entries);
            let Some(entry) = entries.get_mut(id) else { return };
            entry.run = self.next.fetch_add(1, Ordering::Relaxed);
            entry.run
        };
        self.publish(id, run, |view| {
            if is_active(view.phase) {
                (view.phase, view.error) = (DownloadPhase::Paused, None);
            }
            (view.bytes_per_second, view.seconds_left) = (None, None);
        });
        if let Some(task) = lock(&self.tasks).get(id) {
            task.abort();
        }
        self.spawn(id, run, work);
    }

    /// Starts work for a download. It begins when what was started before has let go of the files.
    pub(super) fn spawn<F: Future<Output = ()> + Send>(
        self: &Arc<Self>,
        id: &str,
        run: u64,
        work: impl FnOnce(Run) -> F + Send + 'static,
    ) {
        let Ok(view) = self.view(id) else { return };
        let run =
            Run { inner: Arc::clone(self), place: self.place(id), request: view.request, run, id: view.id };
        let mut tasks = lock(&self.tasks);
        let before = tasks.remove(id);
        let task = self.runtime.spawn(async move {
            if let Some(before) = before {
                let _ = before.await;
            }
            work(run).await;
        });
        tasks.insert(id.to_owned(), task);
    }
}

/// Whether there is no more to it than what lies on disk: paused, or another program was at it.
fn is_idle(view: &Download) -> bool {
    view.phase == DownloadPhase::Paused
        || view.error.as_ref().is_some_and(|error| error.code == ErrorCode::DownloadElsewhere)
}
