//! The library of the application: the models on this machine, the folders they lie in, and who listens to
//! what comes and goes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use super::{App, LibraryListener, Shared, lock};
use hunch_error::{Error, Result};
use hunch_library::types::ModelEntry;
use hunch_library::types::{Download, Library, LibraryEvent};
use hunch_library::watch::{POLL_INTERVAL, Watch};
use hunch_library::{add_folder, are_known, removable, remove, remove_folder, scan};
use hunch_model::split;

impl App {
    /// The models on this machine, where they lie, and the machine. Reads the headers of files that are new.
    ///
    /// # Errors
    /// None today: what cannot be read is told with the folder or the model.
    pub fn library(&self) -> Result<Library> {
        let scanned = scan(&self.shared.places);
        let mut models = scanned.models;
        if let Some(measured) = self.measured() {
            measured.fill(&mut models);
        }
        Ok(Library { models, folders: scanned.folders, machine: self.machine() })
    }

    /// The models on this machine, as in [`App::library`].
    ///
    /// # Errors
    /// As [`App::library`].
    pub fn list_models(&self) -> Result<Vec<ModelEntry>> {
        Ok(self.library()?.models)
    }

    /// Looks through another folder from now on. Nothing is written to it.
    ///
    /// # Errors
    /// When it is no folder or is looked through already.
    pub fn add_model_folder(&self, path: &str) -> Result<Library> {
        add_folder(&self.shared.places, Path::new(path))?;
        self.library()
    }

    /// Looks through an added folder no longer; its files stay.
    ///
    /// # Errors
    /// When it was not added.
    pub fn remove_model_folder(&self, path: &str) -> Result<Library> {
        remove_folder(&self.shared.places, Path::new(path))?;
        self.library()
    }

    /// Removes a model from Hunch's own folder, all its files, for good.
    ///
    /// # Errors
    /// When it lies elsewhere, is in memory, or a file cannot be removed.
    pub fn remove_model(&self, path: &str) -> Result<Library> {
        let files = removable(Path::new(path), &self.shared.places)?;
        if let Some(name) = self.in_use(&files) {
            return Err(Error::invalid(format!(
                "{name} is in memory. Nothing was removed. Unload it or open another model first."
            )));
        }
        remove(Path::new(path), &self.shared.places)?;
        self.library()
    }

    /// The name of the loaded model that one of these files belongs to.
    fn in_use(&self, files: &[PathBuf]) -> Option<String> {
        let loaded = lock(&self.shared.loaded).clone()?;
        let real = |path: &PathBuf| path.canonicalize().ok();
        let files: Vec<PathBuf> = files.iter().filter_map(real).collect();
        let uses = |entry: &ModelEntry| {
            split::files(Path::new(&entry.path)).iter().filter_map(real).any(|file| files.contains(&file))
        };
        [Some(loaded.target), loaded.draft].into_iter().flatten().find(uses).map(|entry| entry.name)
    }

    /// Returns the first path of a file that is no model of the library, was never loaded before, and did not end the
    /// last run while it was loaded. What is no file can only be the short name of a listed model.
    pub fn unknown_model<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
        let unfinished = lock(&self.shared.unfinished_load).clone();
        let is_unfinished = |name: &str| {
            unfinished.as_ref().is_some_and(|load| load.target == name || load.draft.as_deref() == Some(name))
        };
        let is_file = |name: &&str| Path::new(name).is_file() && !is_unfinished(name);
        let files: Vec<&str> = names.into_iter().filter(is_file).collect();
        let paths: Vec<&Path> = files.iter().map(Path::new).collect();
        let known = are_known(&paths, &self.shared.places);
        files.into_iter().zip(known).find(|(_, known)| !known).map(|(file, _)| file)
    }

    /// Has `listener` hear what happens to the library from now on, in place of the one before: models that come
    /// and go, downloads, loading. Downloads that were under way when the program last ended go on. Gives the
    /// downloads as they are.
    ///
    /// # Errors
    /// When the system has no thread to give, or the environment's hub makes no sense.
    pub fn watch_library(&self, listener: LibraryListener) -> Result<Vec<Download>> {
        self.hear_library(listener);
        // Neither keeps the application alive.
        let tell = |shared: Weak<Shared>| {
            move |event| {
                if let Some(shared) = shared.upgrade() {
                    App { shared }.announce(event);
                }
            }
        };
        let changed = tell(Arc::downgrade(&self.shared));
        let watch =
            Watch::start(self.shared.places.clone(), POLL_INTERVAL, move || changed(LibraryEvent::Changed))?;
        *lock(&self.shared.watch) = Some(watch);
        let downloads = self.downloader()?;
        let heard = downloads.subscribe(Box::new(tell(Arc::downgrade(&self.shared))));
        let before = lock(&self.shared.heard).replace(heard);
        drop(before);
        downloads.resume_interrupted();
        Ok(downloads.list())
    }

    /// Stops looking through the folders of models while nobody can see the window. When it is shown again, what
    /// changed meanwhile is told at once.
    pub fn set_window_hidden(&self, hidden: bool) {
        if let Some(watch) = &*lock(&self.shared.watch) {
            watch.set_paused(hidden);
        }
    }
}
