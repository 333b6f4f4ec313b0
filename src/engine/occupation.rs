//! State of the engine, busy or free, with the caches that its last job left. Jobs and models do not belong here.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use crate::generate::{CacheUse, Models};
use hunch_error::{Error, Result, RunningWork};
use parking_lot::Mutex;

/// Work that the engine runs.
pub(super) struct RunningJob {
    /// Number of the job.
    pub(super) id: u32,
    pub(super) work: RunningWork,
    pub(super) cancel: Arc<AtomicBool>,
}

/// State of the engine: busy or free.
pub(super) struct Occupation {
    pub(super) running: Option<RunningJob>,
    /// End of the last one.
    pub(super) free_since: Instant,
    /// Caches of the loaded models at that time.
    pub(super) caches: CacheUse,
}

impl Default for Occupation {
    fn default() -> Self {
        Self { running: None, free_since: Instant::now(), caches: CacheUse::default() }
    }
}

impl Occupation {
    /// Checks that nothing runs.
    ///
    /// # Errors
    /// [`Error::Busy`] while something runs.
    pub(super) fn check_free(&self) -> Result<()> {
        self.running.as_ref().map_or(Ok(()), |running| Err(Error::Busy(running.work)))
    }

    fn release(&mut self) {
        (self.running, self.free_since) = (None, Instant::now());
    }

    pub(super) fn record_caches(&mut self, models: &Option<Models>) {
        self.caches = models.as_ref().map(Models::caches).unwrap_or_default();
    }
}

pub(super) type Occupied = Arc<Mutex<Occupation>>;

/// Keeps the engine busy without work. Released on drop.
#[must_use = "the engine is free again once this is dropped"]
pub struct EngineHold {
    pub(super) id: u32,
    pub(super) kind: RunningWork,
    cancel: Arc<AtomicBool>,
    occupied: Occupied,
    /// `true` once a job releases the engine.
    pub(super) passed_on: bool,
}

impl EngineHold {
    /// Creates the hold of an engine that was reserved for `id`.
    pub(super) fn new(id: u32, kind: RunningWork, cancel: Arc<AtomicBool>, occupied: Occupied) -> Self {
        Self { id, kind, cancel, occupied, passed_on: false }
    }

    /// Returns the flag that [`Engine::cancel`](super::Engine::cancel) sets.
    pub fn cancel_flag(&self) -> Arc<AtomicBool> {
        self.cancel.clone()
    }

    /// Keeps the engine busy until the process ends.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for EngineHold {
    fn drop(&mut self) {
        if self.passed_on {
            return;
        }
        let mut occupied = self.occupied.lock();
        if occupied.running.as_ref().is_some_and(|running| running.id == self.id) {
            occupied.release();
        }
    }
}

/// Marks the engine as free.
pub(super) fn release(occupied: &Occupied) {
    occupied.lock().release();
}

/// Marks the engine as free after work on the models.
pub(super) fn release_after(models: &Option<Models>, occupied: &Occupied) {
    let mut occupied = occupied.lock();
    occupied.record_caches(models);
    occupied.release();
}
