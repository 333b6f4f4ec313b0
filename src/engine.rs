//! The engine: one thread that owns every tensor, and a handle that sends it jobs.
//!
//! [`crate::generate`] implements a generation. This module runs it and cancels it.

mod load;
mod occupation;
mod stopwatch;
mod thread;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::event::EventSink;
use crate::generate::{CacheUse, GenerationPlan, LoadPlan, Models, Prompt};
use hunch_error::{Error, Result, RunningWork};
use hunch_model::device::Compute;
use load::{are_loaded, load};
use occupation::{Occupied, RunningJob, release};
use parking_lot::Mutex;
use thread::{EngineThread, Job, JobFunction, guarded, spawn};

pub(crate) use load::release_memory;
pub use load::{LoadFailure, Loaded};
pub use occupation::EngineHold;
pub use stopwatch::{PausableStopwatch, WallClock};

/// Longest wait for the thread of an engine that is dropped.
const SHUT_DOWN_WITHIN: Duration = Duration::from_secs(2);

/// A handle to the engine's thread. A thread that ended is started again by the next job.
pub struct Engine {
    compute: Compute,
    /// Loaded models. The thread holds the lock until it ends, and the next thread takes it over.
    models: Arc<Mutex<Option<Models>>>,
    occupied: Occupied,
    worker: Mutex<EngineThread>,
}

impl Engine {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn start(compute: Compute) -> Result<Self> {
        Self::holding(None, compute)
    }

    /// Starts the thread with models that are already loaded on `compute`.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn with_models(models: Models, compute: Compute) -> Result<Self> {
        Self::holding(Some(models), compute)
    }

    fn holding(models: Option<Models>, compute: Compute) -> Result<Self> {
        let (models, occupied) = (Arc::new(Mutex::new(models)), Occupied::default());
        let worker = Mutex::new(spawn(&compute, &models, &occupied)?);
        Ok(Self { compute, models, occupied, worker })
    }

    /// Sends a job to the thread. Starts a new thread if the old one ended.
    fn send(&self, job: Job) -> Result<()> {
        let mut worker = self.worker.lock();
        let Err(unsent) = worker.jobs.send(job) else { return Ok(()) };
        let ended = || Error::Internal("the engine has ended".into());
        if worker.shut_down {
            return Err(ended());
        }
        // The old thread marks the engine as free when it ends. Wait for that before the new job starts.
        let _ = worker.ended.recv();
        *worker = spawn(&self.compute, &self.models, &self.occupied)?;
        self.occupied.lock().running = unsent.0.running();
        worker.jobs.send(unsent.0).map_err(|_| ended())
    }

    /// Loads models and waits for the result. If the target is already loaded, only the draft model changes.
    ///
    /// The old models stay loaded until the new ones are. With `make_room` they are unloaded earlier: after the new
    /// files are checked and before they are read. If reading then fails, the old models are loaded again, with
    /// empty caches.
    ///
    /// # Errors
    /// [`Error::Busy`] while something runs, [`Error::Stopped`] if the plan was cancelled, or the error of loading.
    pub fn load(&self, plan: LoadPlan, make_room: bool) -> Result<Loaded, LoadFailure> {
        self.check_free()?;
        let (reply, answer) = channel();
        self.send(Job::Load { plan: Box::new(plan), make_room, reply })?;
        answer.recv().map_err(|_| Error::Internal("the engine ended while loading".into()))?
    }

    /// Unloads the models.
    ///
    /// # Errors
    /// [`Error::Busy`] while something runs.
    pub fn unload(&self) -> Result<()> {
        self.check_free()?;
        let (reply, answer) = channel();
        self.send(Job::Unload { reply })?;
        answer.recv().map_err(|_| Error::Internal("the engine ended while unloading".into()))?
    }

    /// Returns the time since the last job; `None` while one runs.
    pub fn idle_for(&self) -> Option<Duration> {
        let occupied = self.occupied.lock();
        occupied.running.is_none().then(|| occupied.free_since.elapsed())
    }

    /// Returns the caches of the loaded models, as they were after the last job.
    pub fn caches(&self) -> CacheUse {
        self.occupied.lock().caches
    }

    /// Queues a generation that sends its events to `sink`. The sink is dropped at the end.
    ///
    /// # Errors
    /// [`Error::Busy`] while something runs.
    pub fn generate(
        &self,
        id: u32,
        prompt: Prompt,
        plan: GenerationPlan,
        sink: Box<dyn EventSink>,
    ) -> Result<()> {
        let cancel = self.reserve(id, RunningWork::Answer)?;
        self.send(Job::Generate { id, prompt, plan: Box::new(plan), cancel, sink })
            .inspect_err(|_| release(&self.occupied))
    }

    /// Queues work on the models other than a generation.
    ///
    /// `work` gets a function that returns true once the job is cancelled. `ended` receives the result on the
    /// engine's thread, after the engine is released.
    ///
    /// # Errors
    /// [`Error::Busy`] while something runs.
    pub fn run<T: Send + 'static>(
        &self,
        id: u32,
        work: impl FnOnce(&mut Models, &dyn Fn() -> bool) -> Result<T> + Send + 'static,
        ended: impl FnOnce(Result<T>) + Send + 'static,
    ) -> Result<()> {
        let work = move |models: &mut Option<Models>, stopped: &dyn Fn() -> bool| {
            work(models.as_mut().ok_or(Error::NoModel)?, stopped)
        };
        self.queue(self.hold(id, RunningWork::Measurement)?, work, ended)
    }

    /// Queues work on the models of a plan, which are loaded first if they are not. A drafter whose file is gone is left
    /// out then. The engine is held for the work and
    /// released after it. Otherwise as [`run`](Self::run).
    ///
    /// `make_room` is asked before loading, with `true` if other models are loaded. They are unloaded first if it returns
    /// `true`, and not loaded again if loading fails. Loading ends early if the progress callback of the plan breaks.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn run_on<T: Send + 'static>(
        &self,
        hold: EngineHold,
        plan: LoadPlan,
        make_room: impl FnOnce(bool) -> Result<bool> + Send + 'static,
        work: impl FnOnce(&mut Models, &dyn Fn() -> bool) -> Result<T> + Send + 'static,
        ended: impl FnOnce(Result<T>) + Send + 'static,
    ) -> Result<()> {
        let compute = self.compute.clone();
        let work = move |models: &mut Option<Models>, stopped: &dyn Fn() -> bool| {
            let have = |plan: &LoadPlan, models: &Option<Models>| {
                models.as_ref().is_some_and(|models| are_loaded(models, plan))
            };
            if !have(&plan, models) {
                let existing = plan.without_missing_drafters();
                if !have(&existing, models) {
                    let make_room = make_room(models.is_some())?;
                    if (&existing.draft, &existing.head) != (&plan.draft, &plan.head) {
                        tracing::warn!("The file of a drafter is gone, so its target answers without it.");
                    }
                    load(models, &existing, make_room, &compute)?;
                }
            }
            work(models.as_mut().ok_or(Error::NoModel)?, stopped)
        };
        self.queue(hold, work, ended)
    }

    /// Queues work that may unload the models and load others. It must leave the models as they were, or none. It gets
    /// the flag that [`cancel`](Self::cancel) sets. `ended` also receives whether models are loaded, after a panic too.
    /// Otherwise as [`run`](Self::run).
    ///
    /// # Errors
    /// [`Error::Busy`] while something runs.
    pub fn run_swapping<T: Send + 'static>(
        &self,
        id: u32,
        work: impl FnOnce(&mut Option<Models>, &Arc<AtomicBool>) -> Result<T> + Send + 'static,
        ended: impl FnOnce(Result<T>, bool) + Send + 'static,
    ) -> Result<()> {
        let hold = self.hold(id, RunningWork::Measurement)?;
        let flag = hold.cancel_flag();
        let work: JobFunction = Box::new(move |models, _| {
            let result = guarded(|| work(models, &flag));
            let loaded = models.is_some();
            Box::new(move || ended(result, loaded))
        });
        self.send_work(hold, work)
    }

    /// Queues work that needs the thread alone, with or without models. `kind` is reported to others.
    /// Otherwise as [`run`](Self::run).
    ///
    /// # Errors
    /// [`Error::Busy`] while something runs.
    pub fn occupy<T: Send + 'static>(
        &self,
        id: u32,
        kind: RunningWork,
        work: impl FnOnce(&dyn Fn() -> bool) -> Result<T> + Send + 'static,
        ended: impl FnOnce(Result<T>) + Send + 'static,
    ) -> Result<()> {
        self.queue(self.hold(id, kind)?, move |_, stopped| work(stopped), ended)
    }

    /// Queues work with a held engine. The hold ends with the work.
    fn queue<T: Send + 'static>(
        &self,
        hold: EngineHold,
        work: impl FnOnce(&mut Option<Models>, &dyn Fn() -> bool) -> Result<T> + Send + 'static,
        ended: impl FnOnce(Result<T>) + Send + 'static,
    ) -> Result<()> {
        let work: JobFunction = Box::new(move |models, stopped| {
            let result = guarded(|| work(models, stopped));
            Box::new(move || ended(result))
        });
        self.send_work(hold, work)
    }

    /// Sends work with a held engine to the thread. The hold ends with the work.
    fn send_work(&self, mut hold: EngineHold, work: JobFunction) -> Result<()> {
        self.send(Job::Work { id: hold.id, kind: hold.kind, work, cancel: hold.cancel_flag() })?;
        hold.passed_on = true;
        Ok(())
    }

    /// Queues short work on the models with a held engine. Nothing is done without models.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn use_held(&self, hold: EngineHold, work: impl FnOnce(&mut Models) + Send + 'static) -> Result<()> {
        let work = move |models: &mut Option<Models>, _: &dyn Fn() -> bool| {
            models.as_mut().map(work);
            Ok(())
        };
        self.queue(hold, work, drop)
    }

    /// Runs short work on the models and waits for the result. `work` is as in [`run`](Self::run).
    ///
    /// # Errors
    /// [`Error::Busy`] while something runs, or the error of the work.
    pub fn run_and_wait<T: Send + 'static>(
        &self,
        id: u32,
        work: impl FnOnce(&mut Models, &dyn Fn() -> bool) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = channel();
        self.run(id, work, move |ended| {
            // Fails only if the waiting thread is gone.
            let _ = reply.send(ended);
        })?;
        answer.recv().map_err(|_| Error::Internal("the engine ended during the request".into()))?
    }

    /// Keeps the engine busy as `id` for work that is done elsewhere, until the result is dropped.
    ///
    /// # Errors
    /// [`Error::Busy`] while something runs.
    pub fn hold(&self, id: u32, kind: RunningWork) -> Result<EngineHold> {
        let cancel = self.reserve(id, kind)?;
        Ok(EngineHold::new(id, kind, cancel, self.occupied.clone()))
    }

    /// Marks `id` as running. Returns its cancel flag.
    fn reserve(&self, id: u32, work: RunningWork) -> Result<Arc<AtomicBool>> {
        let mut occupied = self.occupied.lock();
        occupied.check_free()?;
        let cancel = Arc::new(AtomicBool::new(false));
        occupied.running = Some(RunningJob { id, work, cancel: cancel.clone() });
        Ok(cancel)
    }

    /// Checks that nothing runs.
    ///
    /// # Errors
    /// [`Error::Busy`] while something runs.
    pub fn check_free(&self) -> Result<()> {
        self.occupied.lock().check_free()
    }

    /// Returns the number of the running job.
    pub fn running(&self) -> Option<u32> {
        self.occupied.lock().running.as_ref().map(|running| running.id)
    }

    /// Cancels job `id`, which ends within one round. Any other is unaffected.
    pub fn cancel(&self, id: u32) {
        if let Some(running) = &self.occupied.lock().running
            && running.id == id
        {
            running.cancel.store(true, Ordering::Relaxed);
        }
    }

    /// Cancels the running job, ends the thread and waits for it, at most for `patience`.
    ///
    /// Returns true if the thread ended. A thread that hangs is abandoned, for example in a read from a volume that
    /// was disconnected.
    pub fn shutdown(&self, patience: Duration) -> bool {
        if let Some(running) = &self.occupied.lock().running {
            running.cancel.store(true, Ordering::Relaxed);
        }
        let mut worker = self.worker.lock();
        worker.shut_down = true;
        // Fails only if the thread has already ended.
        let _ = worker.jobs.send(Job::Shutdown);
        worker.ended.recv_timeout(patience) == Err(RecvTimeoutError::Disconnected)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shutdown(SHUT_DOWN_WITHIN);
    }
}

#[cfg(test)]
mod tests;
