//! The engine: one thread that owns every tensor, and a handle that sends it jobs.
//!
//! [`crate::generate`] implements a generation. This module runs it and cancels it.

mod occupation;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::event::{EventSink, GenerationEvent};
use crate::generate::{
    CacheUse, FittingPrompt, GenerationContext, GenerationPlan, LoadPlan, Models, OpenedModels, Prompt,
    PromptEncoder, generate,
};
use crate::log::panic_text;
use hunch_core::chat::Thinking;
use hunch_core::method::Method;
use hunch_core::model::ModelMemory;
use hunch_core::stats::Stopwatch;
use hunch_error::{Error, Result, RunningWork};
use hunch_model::device::Compute;
use hunch_model::text::Tokenizer;
use occupation::{Occupied, Running, release, release_after};
use parking_lot::Mutex;

pub use occupation::EngineHold;

/// A stopwatch that measures wall time from its creation.
pub struct WallClock(Instant);

impl WallClock {
    /// Starts a stopwatch.
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

impl Stopwatch for WallClock {
    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// A stopwatch that counts only while resumed. Starts paused.
pub struct PausableStopwatch {
    origin: Instant,
    /// Nanoseconds counted before the last pause.
    counted: AtomicU64,
    /// Nanoseconds from the origin to the last resume; [`PAUSED`] while paused.
    since: AtomicU64,
}

const PAUSED: u64 = u64::MAX;

/// Longest wait for the thread of an engine that is dropped.
const SHUT_DOWN_WITHIN: Duration = Duration::from_secs(2);

impl Default for PausableStopwatch {
    fn default() -> Self {
        Self { origin: Instant::now(), counted: AtomicU64::new(0), since: AtomicU64::new(PAUSED) }
    }
}

impl PausableStopwatch {
    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(PAUSED - 1)
    }

    /// Starts counting.
    pub fn resume(&self) {
        let _ = self.since.compare_exchange(PAUSED, self.now(), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Stops counting.
    pub fn pause(&self) {
        let since = self.since.swap(PAUSED, Ordering::Relaxed);
        if since != PAUSED {
            self.counted.fetch_add(self.now() - since, Ordering::Relaxed);
        }
    }
}

impl Stopwatch for PausableStopwatch {
    fn elapsed(&self) -> Duration {
        let since = self.since.load(Ordering::Relaxed);
        let running = if since == PAUSED { 0 } else { self.now() - since };
        Duration::from_nanos(self.counted.load(Ordering::Relaxed) + running)
    }
}

/// Description of the loaded models.
#[derive(Clone)]
pub struct Loaded {
    /// Encoder of prompts for the target.
    pub encoder: Arc<PromptEncoder>,
    /// Plan that loads the models again.
    pub plan: LoadPlan,
    /// Tokeniser of the target.
    pub tokenizer: Arc<Tokenizer>,
    /// Name of the target.
    pub target: String,
    /// Name of the draft model, if one was loaded.
    pub draft: Option<String>,
    /// Bytes of weights read by one pass of the target, and of the draft model.
    pub read_by_a_pass: (u64, Option<u64>),
    /// Context length, in tokens.
    pub context: usize,
    /// Methods that they can run, plain first, then the most recommended ones.
    pub methods: Vec<Method>,
    /// Warning about the target's chat template.
    pub template_note: Option<String>,
    /// Why they do not run on the kernels of their device.
    pub device_note: Option<String>,
    /// Why the target's own MTP layer does not draft.
    pub head_note: Option<String>,
    /// Choices of reasoning that the target's chat template has.
    pub thinking: Vec<Thinking>,
    /// The device of the draft model, if the target is on a GPU.
    pub draft_placement: Option<String>,
}

/// An error of loading, and the state it left.
#[derive(Debug)]
pub struct LoadFailure {
    /// The error.
    pub error: Error,
    /// True if no model is in memory now.
    pub empty: bool,
}

impl From<Error> for LoadFailure {
    /// Converts an error that left the loaded models unchanged.
    fn from(error: Error) -> Self {
        Self { error, empty: false }
    }
}

enum Job {
    Load {
        plan: Box<LoadPlan>,
        make_room: bool,
        reply: Sender<Result<Loaded, LoadFailure>>,
    },
    Unload {
        reply: Sender<Result<()>>,
    },
    Generate {
        id: u32,
        prompt: Prompt,
        plan: Box<GenerationPlan>,
        cancel: Arc<AtomicBool>,
        sink: Box<dyn EventSink>,
    },
    Measure {
        id: u32,
        kind: RunningWork,
        work: MeasureWork,
        cancel: Arc<AtomicBool>,
    },
    Shutdown,
}

impl Job {
    /// Returns a generation or other work on the models; `None` for the rest.
    fn running(&self) -> Option<Running> {
        let (id, work, cancel) = match self {
            Self::Generate { id, cancel, .. } => (*id, RunningWork::Answer, cancel),
            Self::Measure { id, kind, cancel, .. } => (*id, *kind, cancel),
            Self::Load { .. } | Self::Unload { .. } | Self::Shutdown => return None,
        };
        Some(Running { id, work, cancel: cancel.clone() })
    }
}

/// A measurement job. Takes the models and a function that returns true once the job is cancelled. Returns a
/// callback to run after the engine is released.
type MeasureWork = Box<dyn FnOnce(&mut Option<Models>, &dyn Fn() -> bool) -> Box<dyn FnOnce() + Send> + Send>;

/// A handle to the engine's thread. A thread that ended is started again by the next job.
pub struct Engine {
    compute: Compute,
    /// Loaded models. The thread holds the lock until it ends, and the next thread takes it over.
    models: Arc<Mutex<Option<Models>>>,
    occupied: Occupied,
    worker: Mutex<Worker>,
}

/// The channels to the thread.
struct Worker {
    jobs: Sender<Job>,
    /// Disconnected once the thread has ended.
    ended: Receiver<()>,
    /// True if no thread may be started any more.
    shut_down: bool,
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
    pub fn measure<T: Send + 'static>(
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

    /// Queues work on the models of a plan, which are loaded first if they are not. The engine is held for the work and
    /// released after it. Otherwise as [`measure`](Self::measure).
    ///
    /// `make_room` is asked before loading, with `true` if other models are loaded. They are unloaded first if it returns
    /// `true`, and not loaded again if loading fails. Loading ends early if the progress callback of the plan breaks.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn measure_on<T: Send + 'static>(
        &self,
        hold: EngineHold,
        plan: LoadPlan,
        make_room: impl FnOnce(bool) -> Result<bool> + Send + 'static,
        work: impl FnOnce(&mut Models, &dyn Fn() -> bool) -> Result<T> + Send + 'static,
        ended: impl FnOnce(Result<T>) + Send + 'static,
    ) -> Result<()> {
        let compute = self.compute.clone();
        let work = move |models: &mut Option<Models>, stopped: &dyn Fn() -> bool| {
            if !models.as_ref().is_some_and(|models| are_loaded(models, &plan)) {
                let make_room = make_room(models.is_some())?;
                load(models, &plan, make_room, &compute)?;
            }
            work(models.as_mut().ok_or(Error::NoModel)?, stopped)
        };
        self.queue(hold, work, ended)
    }

    /// Queues work that may unload the models and load others. It must leave the models as they were, or none. It gets
    /// the flag that [`cancel`](Self::cancel) sets. `ended` also receives whether models are loaded, after a panic too.
    /// Otherwise as [`measure`](Self::measure).
    ///
    /// # Errors
    /// [`Error::Busy`] while something runs.
    pub fn measure_swapping<T: Send + 'static>(
        &self,
        id: u32,
        work: impl FnOnce(&mut Option<Models>, &Arc<AtomicBool>) -> Result<T> + Send + 'static,
        ended: impl FnOnce(Result<T>, bool) + Send + 'static,
    ) -> Result<()> {
        let hold = self.hold(id, RunningWork::Measurement)?;
        let flag = hold.cancel_flag();
        let work: MeasureWork = Box::new(move |models, _| {
            let result = guarded(|| work(models, &flag));
            let loaded = models.is_some();
            Box::new(move || ended(result, loaded))
        });
        self.send_measurement(hold, work)
    }

    /// Queues work that needs the thread alone, with or without models. `kind` is reported to others.
    /// Otherwise as [`measure`](Self::measure).
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
        let work: MeasureWork = Box::new(move |models, stopped| {
            let result = guarded(|| work(models, stopped));
            Box::new(move || ended(result))
        });
        self.send_measurement(hold, work)
    }

    /// Sends work with a held engine to the thread. The hold ends with the work.
    fn send_measurement(&self, mut hold: EngineHold, work: MeasureWork) -> Result<()> {
        self.send(Job::Measure { id: hold.id, kind: hold.kind, work, cancel: hold.cancel_flag() })?;
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

    /// Runs short work on the models and waits for the result. `work` is as in [`measure`](Self::measure).
    ///
    /// # Errors
    /// [`Error::Busy`] while something runs, or the error of the work.
    pub fn ask<T: Send + 'static>(
        &self,
        id: u32,
        work: impl FnOnce(&mut Models, &dyn Fn() -> bool) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = channel();
        self.measure(id, work, move |ended| {
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
        occupied.running = Some(Running { id, work, cancel: cancel.clone() });
        Ok(cancel)
    }

    /// Checks that nothing runs.
    ///
    /// # Errors
    /// [`Error::Busy`] while something runs.
    pub fn check_free(&self) -> Result<()> {
        self.occupied.lock().check_free()
    }

    /// Returns the number of the running generation or measurement.
    pub fn running(&self) -> Option<u32> {
        self.occupied.lock().running.as_ref().map(|running| running.id)
    }

    /// Cancels generation or measurement `id`, which ends within one round. Any other is unaffected.
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

/// Starts the engine's thread.
fn spawn(compute: &Compute, models: &Arc<Mutex<Option<Models>>>, occupied: &Occupied) -> Result<Worker> {
    let (jobs, inbox) = channel();
    let (alive, ended) = channel();
    let (compute, models, occupied) = (compute.clone(), models.clone(), occupied.clone());
    let run = move || {
        let end = ThreadEnd { inbox: Some(inbox), occupied, _alive: alive };
        if let Some(inbox) = &end.inbox {
            work(&compute, inbox, &end.occupied, &mut models.lock());
        }
    };
    thread::Builder::new()
        .name("hunch-engine".into())
        .spawn(run)
        .map_err(|e| Error::Internal(format!("the engine's thread could not be started: {e}")))?;
    Ok(Worker { jobs, ended, shut_down: false })
}

/// Releases the engine and closes a channel when the thread ends, by a panic too.
struct ThreadEnd {
    inbox: Option<Receiver<Job>>,
    occupied: Occupied,
    /// Dropped last.
    _alive: Sender<()>,
}

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        // Release after the inbox is dropped, so that a job lost in it does not leave the engine busy.
        self.inbox = None;
        release(&self.occupied);
    }
}

fn work(compute: &Compute, inbox: &Receiver<Job>, occupied: &Occupied, models: &mut Option<Models>) {
    while let Ok(job) = inbox.recv() {
        if matches!(job, Job::Shutdown) {
            break;
        }
        // A panic closes the job's reply channel or drops its sink, which ends the wait for it.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job.run(compute, occupied, models))) {
            release(occupied);
            tracing::error!("An engine job panicked.");
            drop(panic);
        }
    }
}

impl Job {
    fn run(self, compute: &Compute, occupied: &Occupied, models: &mut Option<Models>) {
        match self {
            Self::Shutdown => {}
            Self::Load { plan, make_room, reply } => {
                let loaded = guarded(|| load_or_restore(models, &plan, make_room, compute));
                let mut free = occupied.lock();
                free.free_since = Instant::now();
                free.record_caches(models);
                drop(free);
                let empty = models.is_none();
                // Fails if the caller is gone. The models stay loaded.
                let _ = reply.send(loaded.map_err(|error| LoadFailure { error, empty }));
            }
            Self::Unload { reply } => {
                // A job that was queued in the meantime needs the models.
                let idle = occupied.lock().check_free();
                if idle.is_ok() {
                    *models = None;
                    release_memory(compute);
                    occupied.lock().record_caches(models);
                }
                let _ = reply.send(idle);
            }
            Self::Measure { work, cancel, .. } => {
                let callback = work(models, &|| cancel.load(Ordering::Relaxed));
                release_after(models, occupied);
                callback();
            }
            Self::Generate { id, prompt, plan, cancel, mut sink } => {
                let ended = guarded(|| {
                    let models = models.as_mut().ok_or(Error::NoModel)?;
                    let clock = WallClock::start();
                    let stopped = || cancel.load(Ordering::Relaxed);
                    let FittingPrompt { ids, dropped, template_note } =
                        models.encoder().fitting_ids(&prompt, (plan.max_tokens, plan.thinking), &stopped)?;
                    let begun = prompt.begun();
                    let context = GenerationContext {
                        id,
                        clock: &clock,
                        begun,
                        dropped,
                        cancelled: &stopped,
                        strict_drafts: false,
                        template_note: template_note.as_deref(),
                        constraint: None,
                        shown: &[],
                    };
                    generate(models, &ids, &plan, &context, sink.as_mut())
                });
                // Released before the last event is sent, so that its receiver can start the next generation.
                release_after(models, occupied);
                match ended {
                    Ok(finished) => sink.send(finished.into_event()),
                    Err(error) => sink.send(GenerationEvent::Failed { error: (&error).into() }),
                }
            }
        }
    }
}

/// Returns the memory of dropped tensors to the system. A GPU keeps the buffers until it is synchronised.
pub(crate) fn release_memory(compute: &Compute) {
    // A device that fails here also fails at its next use, which reports the error.
    let _ = compute.synchronise();
}

/// Returns whether a plan's target is loaded. A file that is gone does not unload its model.
fn is_target_of(models: &Models, plan: &LoadPlan) -> bool {
    models.has_target_of(plan) || (models.plan().target == plan.target && !plan.target.exists())
}

/// Returns whether the target and the draft model of a plan are loaded.
fn are_loaded(models: &Models, plan: &LoadPlan) -> bool {
    is_target_of(models, plan) && models.plan().draft == plan.draft
}

/// Loads the models of a plan. After an error, models that were unloaded for them are loaded again.
fn load_or_restore(
    models: &mut Option<Models>,
    plan: &LoadPlan,
    make_room: bool,
    compute: &Compute,
) -> Result<Loaded> {
    let before = models.as_ref().map(Models::plan);
    load(models, plan, make_room, compute).inspect_err(|_| {
        // The first error matters. The caller sees from `models` if the reload failed too.
        if let (None, Some(before)) = (&models, before) {
            *models = Models::load_by(&before, compute).ok();
        }
    })
}

/// Loads the models of a plan. After an error, models that were unloaded for them stay unloaded.
fn load(models: &mut Option<Models>, plan: &LoadPlan, make_room: bool, compute: &Compute) -> Result<Loaded> {
    if let Some(models) = models.as_mut().filter(|models| models.has_target_of(plan)) {
        models.change_draft(plan, compute)?;
    } else {
        let opened = OpenedModels::open(plan)?;
        if make_room {
            *models = None;
        }
        release_memory(compute);
        *models = Some(Models::of(opened, compute)?);
    }
    release_memory(compute);
    let models = models.as_ref().expect("models were loaded above");
    let (of_target, of_draft) = models.memory();
    let read = |memory: ModelMemory| memory.read_by_a_pass as u64;
    Ok(Loaded {
        encoder: models.encoder().clone(),
        plan: models.plan(),
        tokenizer: models.encoder().tokenizer().clone(),
        target: models.target_name(),
        draft: models.draft_name(),
        read_by_a_pass: (read(of_target), of_draft.map(read)),
        context: models.context(),
        methods: models.usable_methods(),
        thinking: models.encoder().thinking_switches().choices(),
        template_note: models.encoder().template_note(),
        device_note: models.device_note(),
        head_note: models.head_note().map(str::to_owned),
        draft_placement: models.draft_placement().map(str::to_owned),
    })
}

/// Converts a panic into an error, so that it does not end the window.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic_text(panic.as_ref());
        Err(Error::Internal(format!("the engine stopped unexpectedly ({text})")))
    })
}

#[cfg(test)]
mod tests;
