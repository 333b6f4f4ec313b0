//! The file of conversations over its life: how it is opened, what is wrong with it, and what a person has done
//! about that.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use super::{App, QUIT_WITHIN, lock};
use crate::api::{AppInfo, StoreProblem, StoreRemedy};
use crate::store::{Store, is_damage};
use hunch_error::ErrorInfo;
use hunch_error::{Error, Result};
use hunch_library::types::LibraryEvent;

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

    /// Passes a result of the store on. The first error that says that the file is damaged becomes the store's problem,
    /// which the window is told.
    pub(super) fn noted<T, E: Into<Error>>(&self, result: Result<T, E>) -> Result<T> {
        result.map_err(Into::into).inspect_err(|error| self.note_damage(error))
    }

    /// Makes an error that says that the file is damaged the store's problem, and tells the window once.
    pub(super) fn note_damage(&self, error: &Error) {
        if !is_damage(error) {
            return;
        }
        let mut in_use = lock(&self.shared.store);
        if in_use.problem.is_some() {
            return;
        }
        in_use.problem = Some(Problem { error: error.into(), in_memory: false, accepted: true });
        drop(in_use);
        tracing::error!("The file of conversations is damaged. {error}");
        self.announce(LibraryEvent::StoreProblem);
    }

    /// Does what a person chose about the file of conversations. What was said in memory meanwhile goes into
    /// the file that is opened. An answer that the file has refused so far is tried once more and then given up.
    ///
    /// # Errors
    /// [`Error::Busy`] while an answer is written; [`Error::Store`] when it does not help. What was in use is in use
    /// then, if it can be opened again, and the file is as it was.
    pub fn mend_store(&self, remedy: &StoreRemedy) -> Result<AppInfo> {
        if self.shared.engine.running().is_some() || !self.shared.keepers.give_up(QUIT_WITHIN) {
            return Err(Error::Busy);
        }
        if let Err(error) = self.apply(remedy) {
            // The problem may be another one now.
            self.announce(LibraryEvent::StoreProblem);
            return Err(error);
        }
        self.look_after_store();
        Ok(self.info())
    }

    fn apply(&self, remedy: &StoreRemedy) -> Result<()> {
        let path = self.shared.store_path.as_deref();
        let mut in_use = lock(&self.shared.store);
        let opened = match remedy {
            StoreRemedy::GoWithout => {
                if let Some(problem) = &mut in_use.problem {
                    problem.accepted = true;
                }
                return Ok(());
            }
            StoreRemedy::Retry if !in_use.in_memory() => return Ok(()),
            StoreRemedy::Retry => open_and_purge(path.ok_or_else(no_folder)?)?,
            StoreRemedy::Restore { copy } => self.replace(&mut in_use, Some(copy))?,
            StoreRemedy::StartAnew => self.replace(&mut in_use, None)?,
        };
        if in_use.in_memory() {
            bring_all(&in_use.store, &opened)?;
        }
        *in_use = StoreInUse { store: Arc::new(opened), problem: None };
        Ok(())
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
                let StoreInUse { store, problem } = StoreInUse::open(Some(path))?;
                in_use.store = store;
                if problem.is_some() {
                    in_use.problem = problem;
                }
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
        let look = move || {
            let copied = Store::check(&path).and_then(|()| mend_search()).and_then(|_| Store::copy(&path));
            match copied.map_err(Error::from) {
                Ok(()) => {}
                Err(error) if is_damage(&error) => {
                    if let Some(shared) = app.upgrade() {
                        (App { shared }).note_damage(&error);
                    }
                }
                Err(error) => tracing::warn!("No weekly copy of the conversations was made. {error}"),
            }
        };
        drop(thread::Builder::new().name("hunch-copy".into()).spawn(look));
    }
}

/// Copies every conversation to another store. Where one fails, none is there: the next attempt brings all of them.
fn bring_all(from: &Store, to: &Store) -> Result<()> {
    let mut brought = Vec::new();
    for entry in from.conversations()? {
        let text = from.export_json(entry.id)?;
        match to.import_json(text.as_bytes()) {
            Ok(id) => brought.push(id),
            Err(error) => {
                for id in brought {
                    // One that stays is there twice after the next attempt, which is better than lost.
                    let _ = to.remove_conversation(id);
                }
                return Err(error.into());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;
    use crate::app::AppConfig;
    use hunch_model::device::DeviceChoice;

    fn started() -> (tempfile::TempDir, PathBuf, App, Receiver<LibraryEvent>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("conversations.db");
        let app = App::start(AppConfig {
            models_folder: Some(folder.path().into()),
            store: Some(path.clone()),
            threads: Some(1),
            device: DeviceChoice::Cpu,
            ..AppConfig::default()
        })
        .unwrap();
        let (sender, told) = channel();
        app.hear_library(Box::new(move |event| drop(sender.send(event))));
        (folder, path, app, told)
    }

    fn damaged() -> Error {
        Error::Store("the file is damaged (row 7 missing from index)".into())
    }

    #[test]
    fn damage_met_while_running_is_told_once_and_questions_are_still_taken() {
        let (_folder, _, app, told) = started();
        assert!(app.noted::<(), _>(Err(Error::Store("database or disk is full".into()))).is_err());
        assert_eq!((app.store_problem(), told.try_recv().ok()), (None, None));
        for _ in 0..2 {
            assert!(app.noted::<(), _>(Err(damaged())).is_err());
        }
        let problem = app.store_problem().unwrap();
        assert!(!problem.in_memory && problem.replaceable, "{problem:?}");
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [LibraryEvent::StoreProblem]);
        app.check_kept().unwrap();
    }

    #[test]
    fn remedy_that_leaves_no_file_to_open_is_told_and_questions_wait() {
        let (_folder, path, app, told) = started();
        app.note_damage(&damaged());
        // Something else takes its place while it is open.
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let refused = app.mend_store(&StoreRemedy::Restore { copy: "none.db".into() });
        assert!(refused.is_err());
        assert!(app.store_problem().unwrap().in_memory);
        assert!(app.check_kept().is_err(), "nothing is lost unsaid");
        assert_eq!(told.try_iter().count(), 2);
    }

    #[test]
    fn failed_move_of_conversations_leaves_none_behind() {
        let (from, to) = (Store::in_memory().unwrap(), Store::in_memory().unwrap());
        from.create_conversation(1).unwrap();
        from.create_conversation(2).unwrap();
        to.set_refusing_after(1);
        assert!(bring_all(&from, &to).is_err());
        assert!(to.conversations().unwrap().is_empty());
        to.set_refusing_after(9);
        bring_all(&from, &to).unwrap();
        assert_eq!(to.conversations().unwrap().len(), 2);
    }
}
