//! The library: models on this machine, their folders, and the listener for changes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use super::lock::{RankedGuard, RankedMutex};
use super::{App, AppParts, LibraryListener};
use crate::generate::LoadPlan;
use crate::services::load::{self, ModelNames};
use hunch_error::{Error, Refusal, Result};
use hunch_library::download::{Downloads, Subscription};
use hunch_library::types::{Download, Library, LibraryEvent, LoadRequest, ModelEntry, StoredData};
use hunch_library::watch::{LibraryWatch, POLL_INTERVAL};
use hunch_library::{add_folder, are_known, removable, remove, remove_folder, scan, template_note};
use hunch_model::{low_bit, split};
use parking_lot::Mutex;

impl App {
    /// Returns the models on this machine, their folders, and its memory. Reads the headers of new files.
    /// Unreadable folders and models carry their error.
    pub fn library(&self) -> Library {
        let scanned = scan(&self.shared.places);
        let mut models = scanned.models;
        if let Some(measured) = self.measured() {
            measured.fill(&mut models);
        }
        Library { models, folders: scanned.folders, machine: self.machine() }
    }

    /// Lists the models on this machine, as in [`App::library`].
    pub fn list_models(&self) -> Vec<ModelEntry> {
        self.library().models
    }

    /// Adds a folder to those searched for models. Nothing is written to it.
    ///
    /// # Errors
    /// When it is not a folder, or is searched already.
    pub fn add_model_folder(&self, path: &str) -> Result<Library> {
        add_folder(&self.shared.places, Path::new(path))?;
        Ok(self.library())
    }

    /// Removes an added folder from those searched. Its files stay.
    ///
    /// # Errors
    /// When it was not added.
    pub fn remove_model_folder(&self, path: &str) -> Result<Library> {
        remove_folder(&self.shared.places, Path::new(path))?;
        Ok(self.library())
    }

    /// Deletes all files of a model from Hunch's own folder.
    ///
    /// # Errors
    /// When it is in another folder, is loaded, or a file cannot be deleted.
    pub fn remove_model(&self, path: &str) -> Result<Library> {
        let mut files = removable(Path::new(path), &self.shared.places)?;
        // Its copy is deleted with it. A damaged model has none.
        files.extend(self.low_bit_path(Path::new(path)).ok().flatten());
        if let Some(name) = self.in_use(&files) {
            return Err(Error::Refused(Refusal::ModelInMemory { name }));
        }
        remove(Path::new(path), &self.shared.places)?;
        Ok(self.library())
    }

    /// Tries a model's chat template on a short conversation. Returns the problem, or `None` if it works or there is no
    /// template. A hostile template takes a few seconds.
    ///
    /// # Errors
    /// When the file cannot be read or is unsound.
    pub fn template_note(&self, path: &str) -> Result<Option<String>> {
        template_note(&self.find_model(path)?)
    }

    /// Returns the name of the loaded model that one of these files belongs to.
    fn in_use(&self, files: &[PathBuf]) -> Option<String> {
        let loaded = self.shared.models.ready().ok()?.loaded.clone();
        let real = |path: &PathBuf| path.canonicalize().ok();
        let files: Vec<PathBuf> = files.iter().filter_map(real).collect();
        let uses = |entry: &ModelEntry| {
            split::files(Path::new(&entry.path)).iter().filter_map(real).any(|file| files.contains(&file))
        };
        [Some(loaded.target), loaded.draft].into_iter().flatten().find(uses).map(|entry| entry.name)
    }

    /// Returns the first file or folder that the page may not name by itself. It is not in the library, was never
    /// loaded, and did not end the last run while it was loaded. A name that is neither can only be the short name of a
    /// listed model.
    pub fn unknown_model<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
        let unfinished = self.shared.models.failed();
        let is_unfinished = |name: &str| {
            unfinished.as_ref().is_some_and(|load| load.target == name || load.draft.as_deref() == Some(name))
        };
        let exists = |path: &Path| path.is_file() || hunch_library::is_model_folder(path);
        let is_file = |name: &&str| {
            exists(Path::new(name)) && !is_unfinished(name) && !self.is_low_bit_copy(Path::new(name))
        };
        let files: Vec<&str> = names.into_iter().filter(is_file).collect();
        let paths: Vec<&Path> = files.iter().map(Path::new).collect();
        let known = are_known(&paths, &self.shared.places);
        files.into_iter().zip(known).find(|(_, known)| !known).map(|(file, _)| file)
    }

    /// Finds models given by path or name, and plans to load them.
    ///
    /// # Errors
    /// As [`load::find`].
    pub(super) fn find_models(
        &self,
        target: &str,
        draft: Option<&str>,
        head: Option<&str>,
    ) -> Result<LoadPlan> {
        load::find(&self.shared.places, ModelNames { target, draft, head: head.map(Path::new) })
    }

    /// Finds the models of a request. The draft may be the target's low-bit copy, which is missing until it is written.
    ///
    /// # Errors
    /// As [`load::find`].
    pub(super) fn find_requested(&self, request: &LoadRequest) -> Result<LoadPlan> {
        let LoadRequest { target, draft, head, .. } = request;
        let find = |draft| self.find_models(target, draft, head.as_deref());
        let draft = draft.as_deref();
        let is_missing = |path: &Path| self.is_low_bit_copy(path) && !path.is_file();
        match draft.filter(|draft| is_missing(Path::new(draft))) {
            None => find(draft),
            Some(copy) => {
                let plan = find(None)?;
                if self.low_bit_path(&plan.target)? == Some(copy.into()) {
                    Ok(LoadPlan { draft: Some(copy.into()), ..plan })
                } else {
                    find(draft)
                }
            }
        }
    }

    /// Returns the path of a target's low-bit copy, which may be missing. `None` without a data folder.
    pub(super) fn low_bit_path(&self, target: &Path) -> Result<Option<PathBuf>> {
        let data = self.shared.places.data.as_deref();
        data.map(|data| hunch_library::low_bit_path_in(data, target)).transpose()
    }

    /// Returns true for a path in the folder of low-bit copies. It may be missing.
    pub(super) fn is_low_bit_copy(&self, path: &Path) -> bool {
        let data = self.shared.places.data.as_deref();
        data.is_some_and(|data| hunch_library::is_low_bit_copy(data, path))
    }

    /// Deletes the low-bit copy of a target. The next load with it as the draft writes it again.
    ///
    /// # Errors
    /// [`Error::Busy`] while models are loaded, and when it is in memory or cannot be deleted.
    pub fn remove_low_bit_copy(&self, target: &str) -> Result<()> {
        let _turn = self.shared.models.try_turn()?;
        let target = self.find_model(target)?;
        let Some(copy) = self.low_bit_path(&target)? else { return Ok(()) };
        if let Some(name) = self.in_use(std::slice::from_ref(&copy)) {
            return Err(Error::Refused(Refusal::ModelInMemory { name }));
        }
        low_bit::remove_copy(&copy)
    }

    /// Lists the data that Hunch made for models. Reads samples of all models.
    pub fn stored_data(&self) -> Vec<StoredData> {
        hunch_library::stored_data(&self.shared.places)
    }

    /// Deletes such data by its id, and returns the rest.
    ///
    /// # Errors
    /// [`Error::Busy`] while something runs. [`Refusal::ModelInMemory`] for a copy that is loaded. When nothing has the
    /// id, or a file cannot be deleted.
    pub fn remove_stored_data(&self, id: &str) -> Result<Vec<StoredData>> {
        let _turn = self.shared.models.try_turn()?;
        self.shared.engine.check_free()?;
        let file = self.shared.places.data.iter().map(|data| data.join(id)).collect::<Vec<_>>();
        if let Some(name) = self.in_use(&file) {
            return Err(Error::Refused(Refusal::ModelInMemory { name }));
        }
        hunch_library::remove_stored_data(&self.shared.places, id)?;
        Ok(self.stored_data())
    }

    /// Returns true if a head is on this machine's list, by name or path, or ended the last run while it was loaded.
    pub fn knows_head(&self, name: &str) -> bool {
        let unfinished = self.shared.models.failed().and_then(|load| load.head);
        unfinished.as_deref() == Some(name)
            || hunch_library::heads(&self.shared.places, &self.list_models())
                .iter()
                .any(|head| head.name == name || head.path == Path::new(name))
    }

    /// Replaces the listener for changes of models, downloads and loading, and starts watching the folders. Resumes
    /// downloads that were running when the program last ended. Returns all downloads.
    ///
    /// # Errors
    /// When no thread can be started, or the environment names an invalid hub.
    pub fn watch_library(&self, listener: LibraryListener) -> Result<Vec<Download>> {
        self.set_library_listener(listener);
        // Weak, so that neither keeps the application alive.
        let notify = |shared: Weak<AppParts>| {
            move |event| {
                if let Some(shared) = shared.upgrade() {
                    App { shared }.announce(event);
                }
            }
        };
        let changed = notify(Arc::downgrade(&self.shared));
        let watch = LibraryWatch::start(self.shared.places.clone(), POLL_INTERVAL, move || {
            changed(LibraryEvent::Changed)
        })?;
        self.shared.library.set_watch(watch);
        let downloads = self.downloader()?;
        let subscription = downloads.subscribe(Box::new(notify(Arc::downgrade(&self.shared))));
        self.shared.library.set_subscription(subscription);
        downloads.resume_interrupted();
        Ok(downloads.list())
    }

    /// Pauses watching the model folders while the window is hidden. Changes are reported when it is shown again.
    pub fn set_window_hidden(&self, hidden: bool) {
        self.shared.library.set_paused(hidden);
    }
}

/// State of the library: who receives its events, where they come from, and the downloads.
#[derive(Default)]
pub(super) struct LibraryState {
    events: RankedMutex<LibraryEvents>,
    /// Opened on first use. Not under the lock of the events: it is held while the disk is read, and downloads report
    /// to the listener.
    downloads: RankedMutex<Option<Downloads>>,
}

/// Receiver and sources of events.
#[derive(Default)]
struct LibraryEvents {
    /// Called outside the lock of the events, as it may stop a load.
    listener: Option<Arc<Mutex<LibraryListener>>>,
    /// Watches the model folders.
    watch: Option<LibraryWatch>,
    /// Passes events of downloads on.
    subscription: Option<Subscription>,
}

impl LibraryState {
    /// Replaces the listener.
    pub(super) fn set_listener(&self, listener: LibraryListener) {
        self.events.lock().listener = Some(Arc::new(Mutex::new(listener)));
    }

    /// Passes an event to the listener.
    pub(super) fn announce(&self, event: LibraryEvent) {
        let listener = self.events.lock().listener.clone();
        if let Some(listener) = listener {
            listener.lock()(event);
        }
    }

    /// Replaces the watch of the model folders.
    fn set_watch(&self, watch: LibraryWatch) {
        self.events.lock().watch = Some(watch);
    }

    /// Replaces the subscription to downloads.
    fn set_subscription(&self, subscription: Subscription) {
        // Dropped outside the lock: that waits for subscribers, and they may be about to announce.
        let before = self.events.lock().subscription.replace(subscription);
        drop(before);
    }

    /// Pauses watching the model folders.
    fn set_paused(&self, paused: bool) {
        if let Some(watch) = &self.events.lock().watch {
            watch.set_paused(paused);
        }
    }

    /// Locks the downloads.
    pub(super) fn lock_downloads(&self) -> RankedGuard<'_, Option<Downloads>> {
        self.downloads.lock()
    }

    /// Replaces the downloads.
    pub(super) fn set_downloads(&self, downloads: Downloads) {
        // Closed outside the lock: closing waits for listeners, and they may ask for the downloads.
        let before = self.downloads.lock().replace(downloads);
        drop(before);
    }

    /// Closes the downloads. Waits for their writes, outside the lock.
    pub(super) fn close_downloads(&self) {
        let downloads = self.downloads.lock().take();
        drop(downloads);
    }
}
