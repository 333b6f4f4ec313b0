//! The file of conversations over its life: how it is opened, what is wrong with it, and what a person has done
//! about that.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use super::{App, QUIT_WITHIN, lock};
use crate::api::{AppInfo, StoreProblem, StoreRemedy};
use crate::store::{Store, StoreError};
use hunch_error::ErrorInfo;
use hunch_error::{Error, Result};

/// The store that is in use, and what is wrong with it.
pub(super) struct StoreInUse {
    store: Arc<Store>,
    problem: Option<Problem>,
}

struct Problem {
    error: ErrorInfo,
    /// Whether conversations are in memory only.
    in_memory: bool,
    /// Whether the person chose to go on like that.
    accepted: bool,
}

impl StoreInUse {
    /// Opens the file; where it cannot be used the store is in memory, and questions wait for the person's choice.
    ///
    /// # Errors
    /// When there is no memory for one either.
    pub(super) fn open(path: Option<&Path>) -> Result<Self> {
        match path.ok_or_else(no_folder).and_then(open_and_purge) {
            Ok(store) => Ok(Self { store: Arc::new(store), problem: None }),
            Err(error) => {
                let problem = Problem { error: ErrorInfo::from(&error), in_memory: true, accepted: false };
                Ok(Self { store: Arc::new(Store::in_memory()?), problem: Some(problem) })
            }
        }
    }

    pub(super) fn store(&self) -> Arc<Store> {
        self.store.clone()
    }

    fn in_memory(&self) -> bool {
        self.problem.as_ref().is_some_and(|problem| problem.in_memory)
    }
}

fn no_folder() -> Error {
    Error::Store("this user has no folder for them".into())
}

fn open_and_purge(path: &Path) -> Result<Store> {
    let store = Store::open(path)?;
    purge(&store);
    Ok(store)
}

/// What is deleted can be purged at the next start as well.
fn purge(store: &Store) {
    if let Err(error) = store.purge_deleted() {
        tracing::warn!("Deleted conversations could not be purged; they stay hidden. {error}");
    } else if let Err(error) = store.give_back_room() {
        tracing::warn!("The room of deleted conversations is not free yet. {error}");
    }
}

/// Where conversations are kept.
pub(super) fn store_path(chosen: Option<PathBuf>) -> Option<PathBuf> {
    chosen.or_else(|| hunch_library::conversations_path().ok())
}

impl App {
    /// The store that is in use now.
    pub(super) fn store(&self) -> Arc<Store> {
        lock(&self.shared.store).store()
    }

    /// Refuses what would be lost: while conversations are in memory only, and nobody chose that.
    ///
    /// # Errors
    /// [`Error::Store`], with what to do.
    pub(super) fn check_kept(&self) -> Result<()> {
        match &lock(&self.shared.store).problem {
            Some(problem) if problem.in_memory && !problem.accepted => Err(Error::Store(
                "what is said now would be lost; choose beside the list of conversations what to do".into(),
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn store_problem(&self) -> Option<StoreProblem> {
        let path = self.shared.store_path.as_deref();
        let store = lock(&self.shared.store);
        store.problem.as_ref().map(|problem| StoreProblem {
            error: problem.error.clone(),
            in_memory: problem.in_memory,
            accepted: problem.accepted,
            // A file that is open here is let go before it is replaced.
            replaceable: path.is_some_and(|path| !problem.in_memory || Store::is_replaceable(path)),
            copies: path.map(Store::copies).unwrap_or_default(),
        })
    }

    /// Does what a person chose about the file of conversations. What was said in memory meanwhile goes into
    /// the file that is opened.
    ///
    /// # Errors
    /// [`Error::Busy`] while an answer is written; [`Error::Store`] when it does not help. What was in use is in use
    /// then, and the file is as it was.
    pub fn mend_store(&self, remedy: &StoreRemedy) -> Result<AppInfo> {
        if self.shared.engine.running().is_some() || !self.shared.keepers.rest(QUIT_WITHIN) {
            return Err(Error::Busy);
        }
        let path = self.shared.store_path.as_deref();
        let mut in_use = lock(&self.shared.store);
        if let StoreRemedy::GoWithout = remedy {
            if let Some(problem) = &mut in_use.problem {
                problem.accepted = true;
            }
        } else {
            let opened = match remedy {
                StoreRemedy::Retry if !in_use.in_memory() => None,
                StoreRemedy::Retry => Some(open_and_purge(path.ok_or_else(no_folder)?)?),
                StoreRemedy::Restore { copy } => Some(self.replace(&mut in_use, Some(copy))?),
                StoreRemedy::StartAnew | StoreRemedy::GoWithout => Some(self.replace(&mut in_use, None)?),
            };
            if let Some(opened) = opened {
                if in_use.in_memory() {
                    for entry in in_use.store.conversations()? {
                        opened.import_json(in_use.store.export_json(entry.id)?.as_bytes())?;
                    }
                }
                *in_use = StoreInUse { store: Arc::new(opened), problem: None };
            }
        }
        drop(in_use);
        self.look_after_store();
        Ok(self.info())
    }

    /// Sets the file aside; one that is open here is closed first, and opened again where that fails.
    fn replace(&self, in_use: &mut StoreInUse, copy: Option<&str>) -> Result<Store> {
        let path = self.shared.store_path.as_deref().ok_or_else(no_folder)?;
        if in_use.in_memory() {
            return Ok(Store::replace(path, copy)?.0);
        }
        // Whoever still reads from it ends with this.
        in_use.store = Arc::new(Store::in_memory()?);
        match Store::replace(path, copy) {
            Ok((store, _)) => Ok(store),
            Err(error) => {
                in_use.store = StoreInUse::open(Some(path))?.store();
                Err(error.into())
            }
        }
    }

    /// Checks the file and copies it, weekly, on a thread of its own. A damaged one is not copied: it would take the
    /// place of a sound copy.
    pub(super) fn look_after_store(&self) {
        let Some(path) = self.shared.store_path.clone() else { return };
        let store = {
            let in_use = lock(&self.shared.store);
            if in_use.in_memory() || !Store::is_copy_due(&path) {
                return;
            }
            Arc::downgrade(&in_use.store)
        };
        let app = Arc::downgrade(&self.shared);
        let mend_search = move || store.upgrade().map_or(Ok(false), |store| store.mend_search());
        let look =
            move || match Store::check(&path).and_then(|()| mend_search()).and_then(|_| Store::copy(&path)) {
                Ok(()) => {}
                Err(StoreError(Error::Store(reason))) if Store::check(&path).is_err() => {
                    let Some(shared) = app.upgrade() else { return };
                    let error = ErrorInfo::from(&Error::Store(reason));
                    let mut in_use = lock(&shared.store);
                    in_use.problem.get_or_insert(Problem { error, in_memory: false, accepted: true });
                }
                Err(error) => tracing::warn!("No weekly copy of the conversations was made. {error}"),
            };
        drop(thread::Builder::new().name("hunch-copy".into()).spawn(look));
    }
}
