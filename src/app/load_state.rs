//! State of the models in memory: none, ready, or others being loaded. Reading files and talking to the engine belong
//! to [`loading`](super::loading).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::lock::{RankedGuard, RankedMutex};
use crate::api::LoadedModels;
use crate::engine::Loaded;
use hunch_error::{Error, Result, RunningWork};
use hunch_library::types::LoadRequest;

/// Models that can answer.
pub(super) struct ReadyModels {
    /// The models as the window shows them.
    pub(super) loaded: LoadedModels,
    /// Details from the engine.
    pub(super) details: Loaded,
}

/// Set to true to stop a load.
pub(super) type StopFlag = Arc<AtomicBool>;

#[derive(Default)]
enum LoadState {
    /// Nothing is in memory.
    #[default]
    Empty,
    /// Nothing is in memory. These models ended the last run while they were loaded.
    Failed(LoadRequest),
    /// Models can answer.
    Ready(Arc<ReadyModels>),
    /// Models are being loaded. The state `before` lasts until they are.
    Loading { stop: StopFlag, before: Box<LoadState> },
}

impl LoadState {
    /// Returns the state without the load in progress.
    fn settled(&self) -> &Self {
        match self {
            Self::Loading { before, .. } => before,
            settled => settled,
        }
    }

    fn settled_mut(&mut self) -> &mut Self {
        match self {
            Self::Loading { before, .. } => before,
            settled => settled,
        }
    }
}

/// The models in memory. Loads and unloads take turns, so that the state matches the engine.
pub(super) struct ModelSlot {
    turn: RankedMutex<()>,
    state: RankedMutex<LoadState>,
}

impl ModelSlot {
    /// Makes an empty slot. `failed` are the models that ended the last run while they were loaded.
    pub(super) fn new(failed: Option<LoadRequest>) -> Self {
        let state = failed.map_or(LoadState::Empty, LoadState::Failed);
        Self { turn: RankedMutex::turn(()), state: RankedMutex::state(state) }
    }

    /// Announces a load, and stops the one in progress.
    pub(super) fn begin_load(&self, stop: &StopFlag) {
        let mut state = self.state.lock();
        if let LoadState::Loading { stop, .. } = &*state {
            stop.store(true, Ordering::Relaxed);
        }
        let before = Box::new(std::mem::take(state.settled_mut()));
        *state = LoadState::Loading { stop: stop.clone(), before };
    }

    /// Waits until no other load is in progress. The next one waits until the guard is dropped.
    pub(super) fn wait_for_turn(&self) -> RankedGuard<'_, ()> {
        self.turn.lock()
    }

    /// As [`wait_for_turn`](Self::wait_for_turn), without waiting.
    ///
    /// # Errors
    /// [`Error::Busy`] while models are loaded or unloaded.
    pub(super) fn try_turn(&self) -> Result<RankedGuard<'_, ()>> {
        self.turn.try_lock().ok_or(Error::Busy(RunningWork::Loading))
    }

    /// Ends the load that was announced with `stop`. Models that ended the last run are forgotten: this program
    /// survived its load.
    pub(super) fn end_load(&self, stop: &StopFlag) {
        let mut state = self.state.lock();
        if let LoadState::Failed(_) = state.settled() {
            *state.settled_mut() = LoadState::Empty;
        }
        if matches!(&*state, LoadState::Loading { stop: last, .. } if Arc::ptr_eq(last, stop)) {
            let settled = std::mem::take(state.settled_mut());
            *state = settled;
        }
    }

    /// Replaces the models.
    pub(super) fn set_ready(&self, models: ReadyModels) {
        *self.state.lock().settled_mut() = LoadState::Ready(Arc::new(models));
    }

    /// Sets the layers that a target skips, if it is still loaded.
    pub(super) fn set_skipped_layers(&self, target: &str, layers: Vec<usize>) {
        let mut state = self.state.lock();
        if let LoadState::Ready(models) = state.settled_mut()
            && models.loaded.target.path == target
        {
            let loaded = LoadedModels { skipped_layers: Some(layers), ..models.loaded.clone() };
            *models = Arc::new(ReadyModels { loaded, details: models.details.clone() });
        }
    }

    /// Removes the models. Returns whether there were any.
    pub(super) fn clear(&self) -> bool {
        let mut state = self.state.lock();
        let settled = state.settled_mut();
        let ready = matches!(settled, LoadState::Ready(_));
        if ready {
            *settled = LoadState::Empty;
        }
        ready
    }

    /// Stops the load in progress, even one that waits for its turn.
    pub(super) fn stop_load(&self) {
        if let LoadState::Loading { stop, .. } = &*self.state.lock() {
            stop.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether a load is in progress.
    pub(super) fn is_loading(&self) -> bool {
        matches!(*self.state.lock(), LoadState::Loading { .. })
    }

    /// Returns the models that can answer, also while others are being loaded.
    ///
    /// # Errors
    /// [`Error::NoModel`] if there are none.
    pub(super) fn ready(&self) -> Result<Arc<ReadyModels>> {
        match self.state.lock().settled() {
            LoadState::Ready(models) => Ok(models.clone()),
            _ => Err(Error::NoModel),
        }
    }

    /// Returns the models that ended the last run while they were loaded.
    pub(super) fn failed(&self) -> Option<LoadRequest> {
        match self.state.lock().settled() {
            LoadState::Failed(request) => Some(request.clone()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> LoadRequest {
        LoadRequest { target: "target".into(), draft: None, head: None, context: None }
    }

    #[test]
    fn newer_load_stops_the_older_and_outlasts_it() {
        let slot = ModelSlot::new(None);
        let [first, second] = [StopFlag::default(), StopFlag::default()];
        slot.begin_load(&first);
        slot.begin_load(&second);
        assert!(first.load(Ordering::Relaxed) && !second.load(Ordering::Relaxed));
        slot.end_load(&first);
        assert!(slot.is_loading(), "the newer one waits");
        slot.stop_load();
        assert!(second.load(Ordering::Relaxed));
        slot.end_load(&second);
        assert!(!slot.is_loading() && slot.ready().is_err());
    }

    #[test]
    fn models_that_ended_the_last_run_are_named_until_a_load_ends() {
        let slot = ModelSlot::new(Some(request()));
        assert!(!slot.clear());
        let stop = StopFlag::default();
        slot.begin_load(&stop);
        assert_eq!((slot.failed(), slot.ready().is_err()), (Some(request()), true));
        slot.end_load(&stop);
        assert_eq!(slot.failed(), None);
    }

    #[test]
    fn loads_and_unloads_take_turns() {
        let slot = ModelSlot::new(None);
        let turn = slot.wait_for_turn();
        assert!(matches!(slot.try_turn(), Err(Error::Busy(RunningWork::Loading))));
        drop(turn);
        assert!(slot.try_turn().is_ok());
    }
}
