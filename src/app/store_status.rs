//! State of the file of conversations: opening it, its problems, and the remedies a person chooses.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use super::servers::{SERVERS, joined_servers};
use super::{App, QUIT_WITHIN};
use crate::api::{AppInfo, StoreProblem, StoreRemedy};
use crate::store::{Store, is_damage};
use hunch_error::ErrorInfo;
use hunch_error::{Error, Refusal, Result, RunningWork};
use hunch_library::types::LibraryEvent;

/// The store in use and its problem, if it has one.
pub(super) struct StoreInUse {
    store: Arc<Store>,
    problem: Option<Problem>,
}

struct Problem {
    error: ErrorInfo,
    /// Set if conversations are only in memory.
    in_memory: bool,
    /// Set once the person chose to continue like that.
    accepted: bool,
}

impl StoreInUse {
    /// Opens the file. If that fails, uses a store in memory, and questions are refused until the person chooses.
    ///
    /// # Errors
    /// When the store in memory cannot be created either.
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

/// Removes deleted conversations permanently. A failure is logged only, because the next start can do it.
fn purge(store: &Store) {
    if let Err(error) = store.purge_deleted() {
        tracing::warn!("Deleted conversations could not be purged; they stay hidden. {error}");
    } else if let Err(error) = store.give_back_room() {
        tracing::warn!("The space of deleted conversations could not be freed yet. {error}");
    }
}

/// Returns the path of the file of conversations.
pub(super) fn store_path(chosen: Option<PathBuf>) -> Option<PathBuf> {
    chosen.or_else(|| hunch_library::conversations_path().ok())
}

impl App {
    /// Returns the store in use.
    pub(super) fn store(&self) -> Arc<Store> {
        self.shared.store.lock().store()
    }

    /// Refuses changes that would be lost, while conversations are only in memory and nobody chose that.
    ///
    /// # Errors
    /// [`Error::Store`], with what to do.
    pub(super) fn check_kept(&self) -> Result<()> {
        match &self.shared.store.lock().problem {
            Some(problem) if problem.in_memory && !problem.accepted => Err(Refusal::NotKept.into()),
            _ => Ok(()),
        }
    }

    pub(super) fn store_problem(&self) -> Option<StoreProblem> {
        let path = self.shared.store_path.as_deref();
        let store = self.shared.store.lock();
        store.problem.as_ref().map(|problem| StoreProblem {
            error: problem.error.clone(),
            in_memory: problem.in_memory,
            accepted: problem.accepted,
            // A file that is open here is closed before it is replaced.
            replaceable: path.is_some_and(|path| !problem.in_memory || Store::is_replaceable(path)),
            copies: path.map(Store::copies).unwrap_or_default(),
        })
    }

    /// Passes a result of the store on, and reports a damaged file with [`note_damage`](Self::note_damage).
    pub(super) fn noted<T, E: Into<Error>>(&self, result: Result<T, E>) -> Result<T> {
        result.map_err(Into::into).inspect_err(|error| self.note_damage(error))
    }

    /// Records an error that reports a damaged file as the store's problem, and informs the window once.
    pub(super) fn note_damage(&self, error: &Error) {
        if !is_damage(error) {
            return;
        }
        let mut in_use = self.shared.store.lock();
        if in_use.problem.is_some() {
            return;
        }
        in_use.problem = Some(Problem { error: error.into(), in_memory: false, accepted: true });
        drop(in_use);
        tracing::error!("The file of conversations is damaged. {error}");
        self.announce(LibraryEvent::StoreProblem);
    }

    /// Applies the remedy a person chose for the file of conversations. Conversations in memory are moved into the
    /// file that is opened. An answer the file refused so far is attempted once more and then given up.
    ///
    /// # Errors
    /// [`Error::Busy`] while an answer is written, [`Error::Store`] when the remedy fails. The file is unchanged then
    /// and stays in use if it can be opened again.
    pub fn repair_store(&self, remedy: &StoreRemedy) -> Result<AppInfo> {
        self.shared.engine.check_free()?;
        if !self.shared.writers.give_up(QUIT_WITHIN) {
            return Err(Error::Busy(RunningWork::Answer));
        }
        if let Err(error) = self.apply(remedy) {
            // The problem may have changed.
            self.announce(LibraryEvent::StoreProblem);
            return Err(error);
        }
        self.check_and_copy_store();
        Ok(self.info())
    }

    fn apply(&self, remedy: &StoreRemedy) -> Result<()> {
        let path = self.shared.store_path.as_deref();
        let mut in_use = self.shared.store.lock();
        let opened = match remedy {
            StoreRemedy::StayInMemory => {
                if let Some(problem) = &mut in_use.problem {
                    problem.accepted = true;
                }
                return Ok(());
            }
            StoreRemedy::Retry if !in_use.in_memory() => return Ok(()),
            StoreRemedy::Retry => open_and_purge(path.ok_or_else(no_folder)?)?,
            StoreRemedy::Restore { copy } => self.replace(&mut in_use, Some(copy))?,
            StoreRemedy::StartEmpty => self.replace(&mut in_use, None)?,
        };
        if in_use.in_memory() {
            bring_all(&in_use.store, &opened)?;
            if let Err(error) = bring_records(&in_use.store, &opened) {
                tracing::warn!("Some comparisons and settings were not moved into the file. {error}");
            }
        }
        *in_use = StoreInUse { store: Arc::new(opened), problem: None };
        Ok(())
    }

    /// Moves the file aside. A file that is open here is closed first, and reopened if that fails.
    fn replace(&self, in_use: &mut StoreInUse, copy: Option<&str>) -> Result<Store> {
        let path = self.shared.store_path.as_deref().ok_or_else(no_folder)?;
        if in_use.in_memory() {
            return Ok(Store::replace(path, copy)?.0);
        }
        // Closes the file once its last reader is done.
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

    /// Checks and copies the file on its own thread, once a week. A damaged file is not copied, because the copy would
    /// replace a sound one.
    pub(super) fn check_and_copy_store(&self) {
        let Some(path) = self.shared.store_path.clone() else { return };
        let store = {
            let in_use = self.shared.store.lock();
            if in_use.in_memory() || !Store::is_copy_due(&path) {
                return;
            }
            Arc::downgrade(&in_use.store)
        };
        let app = Arc::downgrade(&self.shared);
        let repair_search = move || store.upgrade().map_or(Ok(false), |store| store.repair_search());
        let look = move || {
            let copied = Store::check(&path).and_then(|()| repair_search()).and_then(|_| Store::copy(&path));
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

/// Settings by conversation. The window moves them, because conversations get other numbers.
const OF_CONVERSATIONS: [&str; 2] = ["drafts", "draft_files"];

/// Copies comparisons, servers and settings to another store. Settings that it has stay as they are: the window knows which
/// of them were changed meanwhile.
fn bring_records(from: &Store, to: &Store) -> Result<()> {
    for entry in from.comparisons()? {
        to.add_comparison(&entry, &from.comparison(entry.id)?)?;
    }
    let known = to.preferences()?;
    let brought = from.preferences()?.into_iter();
    for (key, value) in brought.filter(|(key, _)| !OF_CONVERSATIONS.contains(&&**key)) {
        match known.get(&key) {
            None => to.set_preference(&key, &value)?,
            Some(kept) if key == SERVERS => to.set_preference(&key, &joined_servers(kept, &value))?,
            Some(_) => {}
        }
    }
    Ok(())
}

/// Copies all conversations to another store, or none if one fails, so that a retry makes no duplicates.
fn bring_all(from: &Store, to: &Store) -> Result<()> {
    let mut brought = Vec::new();
    for entry in from.conversations()? {
        let text = from.export_json(entry.id)?;
        match to.import_json(text.as_bytes()) {
            Ok(id) => brought.push(id),
            Err(error) => {
                for id in brought {
                    // One that cannot be removed is duplicated by the next attempt, which is better than lost.
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
        let (sender, events) = channel();
        app.set_library_listener(Box::new(move |event| drop(sender.send(event))));
        (folder, path, app, events)
    }

    fn damaged() -> Error {
        Error::Store("the file is damaged (row 7 missing from index)".into())
    }

    #[test]
    fn reports_damage_once_and_still_takes_questions() {
        let (_folder, _, app, events) = started();
        assert!(app.noted::<(), _>(Err(Error::Store("database or disk is full".into()))).is_err());
        assert_eq!((app.store_problem(), events.try_recv().ok()), (None, None));
        for _ in 0..2 {
            assert!(app.noted::<(), _>(Err(damaged())).is_err());
        }
        let problem = app.store_problem().unwrap();
        assert!(!problem.in_memory && problem.replaceable, "{problem:?}");
        assert_eq!(events.try_iter().collect::<Vec<_>>(), [LibraryEvent::StoreProblem]);
        app.check_kept().unwrap();
    }

    #[test]
    fn refuses_questions_when_a_failed_remedy_leaves_no_file() {
        let (_folder, path, app, events) = started();
        app.note_damage(&damaged());
        // Something else takes the place of the open file.
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let refused = app.repair_store(&StoreRemedy::Restore { copy: "none.db".into() });
        assert!(refused.is_err());
        assert!(app.store_problem().unwrap().in_memory);
        assert!(app.check_kept().is_err(), "nothing is lost unsaid");
        assert_eq!(events.try_iter().count(), 2);
    }

    #[test]
    fn failed_copy_of_conversations_leaves_none_behind() {
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

    #[test]
    fn servers_and_settings_made_in_memory_join_those_of_the_file() {
        use serde_json::json;
        let (from, to) = (Store::in_memory().unwrap(), Store::in_memory().unwrap());
        let server = |address: &str, key: bool| json!({ "address": address, "key_in_keychain": key });
        from.set_preference(SERVERS, &json!([server("http://a", true), server("http://b", false)])).unwrap();
        from.set_preference("language", &json!("de")).unwrap();
        from.set_preference("presets", &json!(["new"])).unwrap();
        to.set_preference(SERVERS, &json!([server("http://a", false), server("http://c", false)])).unwrap();
        to.set_preference("presets", &json!(["old"])).unwrap();
        bring_records(&from, &to).unwrap();
        let joined = to.preferences().unwrap();
        let all = json!([server("http://a", true), server("http://c", false), server("http://b", false)]);
        assert_eq!(joined[SERVERS], all);
        assert_eq!((&joined["language"], &joined["presets"]), (&json!("de"), &json!(["old"])));
    }
}
