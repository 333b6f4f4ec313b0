//! The engine: one thread that owns every tensor, and a handle to it. What a generation *is* lives
//! in [`crate::generate`]; here is only who runs it and how it is stopped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::event::{EventSink, GenerationEvent};
use crate::generate::{
    FittingPrompt, GenerationContext, GenerationPlan, LoadPlan, Models, OpenedModels, Prompt, generate,
};
use crate::log::panic_text;
use hunch_core::model::ModelMemory;
use hunch_core::stats::Stopwatch;
use hunch_error::{Error, Result};
use hunch_model::device::Compute;
use hunch_model::text::Tokenizer;

/// The wall clock, from the moment it was made.
pub struct WallClock(Instant);

impl WallClock {
    /// Starts now.
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

impl Stopwatch for WallClock {
    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// A clock that stands while others have their turn. It stands at first.
pub struct PausableStopwatch {
    origin: Instant,
    /// Nanoseconds it went before.
    gone: AtomicU64,
    /// Nanoseconds after the origin at which it began to go; [`STANDING`] while it stands.
    since: AtomicU64,
}

const STANDING: u64 = u64::MAX;

/// Longest wait for the thread of an engine that is let go.
const SHUT_DOWN_WITHIN: Duration = Duration::from_secs(2);

impl Default for PausableStopwatch {
    fn default() -> Self {
        Self { origin: Instant::now(), gone: AtomicU64::new(0), since: AtomicU64::new(STANDING) }
    }
}

impl PausableStopwatch {
    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(STANDING - 1)
    }

    /// Goes on.
    pub fn resume(&self) {
        let _ = self.since.compare_exchange(STANDING, self.now(), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Stands still.
    pub fn pause(&self) {
        let since = self.since.swap(STANDING, Ordering::Relaxed);
        if since != STANDING {
            self.gone.fetch_add(self.now() - since, Ordering::Relaxed);
        }
    }
}

impl Stopwatch for PausableStopwatch {
    fn elapsed(&self) -> Duration {
        let since = self.since.load(Ordering::Relaxed);
        let going = if since == STANDING { 0 } else { self.now() - since };
        Duration::from_nanos(self.gone.load(Ordering::Relaxed) + going)
    }
}

/// What was loaded.
pub struct Loaded {
    /// The target's tokeniser.
    pub tokenizer: Arc<Tokenizer>,
    /// The target's name.
    pub target: String,
    /// The draft model's, if one was loaded.
    pub draft: Option<String>,
    /// Bytes of weights that a pass of the target reads, and of the draft.
    pub read_by_a_pass: (u64, Option<u64>),
    /// Most tokens of a conversation.
    pub context: usize,
    /// What a person should know of the target's chat template.
    pub template_note: Option<String>,
}

/// Why models were not loaded.
#[derive(Debug)]
pub struct LoadFailure {
    /// What happened.
    pub error: Error,
    /// Whether there is no model in memory now.
    pub empty: bool,
}

impl From<Error> for LoadFailure {
    /// One that has changed nothing.
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
        reply: Sender<bool>,
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
        work: MeasureWork,
        cancel: Arc<AtomicBool>,
    },
    Shutdown,
}

impl Job {
    /// The generation or measurement that it is, and what stops it.
    fn running(&self) -> Option<(u32, Arc<AtomicBool>)> {
        match self {
            Self::Generate { id, cancel, .. } | Self::Measure { id, cancel, .. } => {
                Some((*id, cancel.clone()))
            }
            Self::Load { .. } | Self::Unload { .. } | Self::Shutdown => None,
        }
    }
}

/// Works with the models, asks whether to stop, and gives what is to be told once the engine is free again.
type MeasureWork = Box<dyn FnOnce(&mut Option<Models>, &dyn Fn() -> bool) -> Box<dyn FnOnce() + Send> + Send>;

/// What the engine is at.
struct Occupation {
    /// The generation or measurement that runs now, and what stops it.
    running: Option<(u32, Arc<AtomicBool>)>,
    /// When the last one ended.
    free_since: Instant,
}

impl Default for Occupation {
    fn default() -> Self {
        Self { running: None, free_since: Instant::now() }
    }
}

type Occupied = Arc<Mutex<Occupation>>;

/// What runs has ended.
fn release(occupied: &Occupied) {
    *lock(occupied) = Occupation::default();
}

/// A handle to the engine's thread. The thread is started again if it ends.
pub struct Engine {
    compute: Compute,
    /// What is in memory. The thread holds the lock for as long as it lives; the next one takes it over.
    models: Arc<Mutex<Option<Models>>>,
    occupied: Occupied,
    worker: Mutex<Worker>,
}

/// The thread as others see it.
struct Worker {
    jobs: Sender<Job>,
    /// Disconnected once the thread has ended.
    ended: Receiver<()>,
    /// Whether no thread is to be started any more.
    shut_down: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(compute: Compute) -> Result<Self> {
        let (models, occupied) = (Arc::default(), Occupied::default());
        let worker = Mutex::new(spawn(&compute, &models, &occupied)?);
        Ok(Self { compute, models, occupied, worker })
    }

    /// Hands a job to the thread. Starts another thread if that one has ended.
    fn send(&self, job: Job) -> Result<()> {
        let mut worker = lock(&self.worker);
        let Err(unsent) = worker.jobs.send(job) else { return Ok(()) };
        let ended = || Error::Internal("the engine has ended".into());
        if worker.shut_down {
            return Err(ended());
        }
        // The old thread first takes back that something runs, which would hold for the new one otherwise.
        let _ = worker.ended.recv();
        *worker = spawn(&self.compute, &self.models, &self.occupied)?;
        lock(&self.occupied).running = unsent.0.running();
        worker.jobs.send(unsent.0).map_err(|_| ended())
    }

    /// Loads models and waits for it. When the target is in memory already, only the draft changes. The old
    /// ones stay when this fails. With `make_room` they are let go once the new files were found to be sound,
    /// before those are read; when that fails after all they are read again, with empty caches.
    ///
    /// # Errors
    /// [`Error::Busy`] while an answer is generated, [`Error::Stopped`] when the plan's watch breaks; else why
    /// loading failed.
    pub fn load(&self, plan: LoadPlan, make_room: bool) -> Result<Loaded, LoadFailure> {
        if self.running().is_some() {
            return Err(Error::Busy.into());
        }
        let (reply, answer) = channel();
        self.send(Job::Load { plan: Box::new(plan), make_room, reply })?;
        answer.recv().map_err(|_| Error::Internal("the engine ended while loading".into()))?
    }

    /// Lets the models go.
    ///
    /// # Errors
    /// [`Error::Busy`] while something runs with them.
    pub fn unload(&self) -> Result<()> {
        if self.running().is_some() {
            return Err(Error::Busy);
        }
        let (reply, answer) = channel();
        self.send(Job::Unload { reply })?;
        let gone = answer.recv().map_err(|_| Error::Internal("the engine ended while unloading".into()))?;
        if gone { Ok(()) } else { Err(Error::Busy) }
    }

    /// For how long nothing has run; `None` while something does.
    pub fn idle_for(&self) -> Option<Duration> {
        let occupied = lock(&self.occupied);
        occupied.running.is_none().then(|| occupied.free_since.elapsed())
    }

    /// Queues a generation; its events go to `sink`, which is dropped at the end.
    ///
    /// # Errors
    /// [`Error::Busy`] while another runs.
    pub fn generate(
        &self,
        id: u32,
        prompt: Prompt,
        plan: GenerationPlan,
        sink: Box<dyn EventSink>,
    ) -> Result<()> {
        let cancel = self.reserve(id)?;
        self.send(Job::Generate { id, prompt, plan: Box::new(plan), cancel, sink })
            .inspect_err(|_| release(&self.occupied))
    }

    /// Queues work on the models that is no answer. It asks the function it is given whether to stop; `ended`
    /// hears what came of it, on the engine's thread, when the engine is free again.
    ///
    /// # Errors
    /// [`Error::Busy`] while something else runs.
    pub fn measure<T: Send + 'static>(
        &self,
        id: u32,
        work: impl FnOnce(&mut Models, &dyn Fn() -> bool) -> Result<T> + Send + 'static,
        ended: impl FnOnce(Result<T>) + Send + 'static,
    ) -> Result<()> {
        let cancel = self.reserve(id)?;
        let work: MeasureWork = Box::new(move |models, stopped| {
            let result = guarded(|| work(models.as_mut().ok_or(Error::NoModel)?, stopped));
            Box::new(move || ended(result))
        });
        self.send(Job::Measure { id, work, cancel }).inspect_err(|_| release(&self.occupied))
    }

    /// Has the models do something that takes a moment, and waits for it. The work asks the function it is
    /// given whether to stop.
    ///
    /// # Errors
    /// [`Error::Busy`] while something else runs; else what the work reports.
    pub fn ask<T: Send + 'static>(
        &self,
        id: u32,
        work: impl FnOnce(&mut Models, &dyn Fn() -> bool) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = channel();
        self.measure(id, work, move |ended| {
            // Who asked may have gone.
            let _ = reply.send(ended);
        })?;
        answer.recv().map_err(|_| Error::Internal("the engine ended while it was asked".into()))?
    }

    /// Marks `id` as what runs now; gives what stops it.
    fn reserve(&self, id: u32) -> Result<Arc<AtomicBool>> {
        let mut occupied = lock(&self.occupied);
        if occupied.running.is_some() {
            return Err(Error::Busy);
        }
        let cancel = Arc::new(AtomicBool::new(false));
        occupied.running = Some((id, cancel.clone()));
        Ok(cancel)
    }

    /// The generation or measurement that runs now.
    pub fn running(&self) -> Option<u32> {
        lock(&self.occupied).running.as_ref().map(|(id, _)| *id)
    }

    /// Asks generation or measurement `id` to end; it does within one round. No effect on any other.
    pub fn cancel(&self, id: u32) {
        if let Some((running, cancel)) = &lock(&self.occupied).running
            && *running == id
        {
            cancel.store(true, Ordering::Relaxed);
        }
    }

    /// Stops what runs, ends the thread and waits for it, at most for `patience`. Gives whether it has ended. A thread
    /// that hangs, in a read from a volume that is gone for example, is left behind.
    pub fn shutdown(&self, patience: Duration) -> bool {
        if let Some((_, cancel)) = &lock(&self.occupied).running {
            cancel.store(true, Ordering::Relaxed);
        }
        let mut worker = lock(&self.worker);
        worker.shut_down = true;
        // A thread that has ended already needs no word.
        let _ = worker.jobs.send(Job::Shutdown);
        worker.ended.recv_timeout(patience) == Err(RecvTimeoutError::Disconnected)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shutdown(SHUT_DOWN_WITHIN);
    }
}

/// Starts a thread that works on these models.
fn spawn(compute: &Compute, models: &Arc<Mutex<Option<Models>>>, occupied: &Occupied) -> Result<Worker> {
    let (jobs, inbox) = channel();
    let (alive, ended) = channel();
    let (compute, models, occupied) = (compute.clone(), models.clone(), occupied.clone());
    let run = move || {
        let end = ThreadEnd { inbox: Some(inbox), occupied, _alive: alive };
        if let Some(inbox) = &end.inbox {
            work(&compute, inbox, &end.occupied, &mut lock(&models));
        }
    };
    thread::Builder::new()
        .name("hunch-engine".into())
        .spawn(run)
        .map_err(|e| Error::Internal(format!("no thread for the engine: {e}")))?;
    Ok(Worker { jobs, ended, shut_down: false })
}

/// Says that the thread has ended and that nothing runs on it any more, however it ended.
struct ThreadEnd {
    inbox: Option<Receiver<Job>>,
    occupied: Occupied,
    /// Dropped last.
    _alive: Sender<()>,
}

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        // After the inbox: a job that is lost with it must not leave the engine busy.
        self.inbox = None;
        release(&self.occupied);
    }
}

fn work(compute: &Compute, inbox: &Receiver<Job>, occupied: &Occupied, models: &mut Option<Models>) {
    while let Ok(job) = inbox.recv() {
        if matches!(job, Job::Shutdown) {
            break;
        }
        // Whoever waits for the job sees its channel closed, or its sink dropped.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job.run(compute, occupied, models))) {
            release(occupied);
            tracing::error!("A job of the engine ended in a panic.");
            drop(panic);
        }
    }
}

impl Job {
    fn run(self, compute: &Compute, occupied: &Occupied, models: &mut Option<Models>) {
        match self {
            Self::Shutdown => {}
            Self::Load { plan, make_room, reply } => {
                let loaded = guarded(|| bring(models, &plan, make_room, compute));
                lock(occupied).free_since = Instant::now();
                let empty = models.is_none();
                // The caller may have gone; the models are loaded all the same.
                let _ = reply.send(loaded.map_err(|error| LoadFailure { error, empty }));
            }
            Self::Unload { reply } => {
                // Whoever asked for something meanwhile wants the models.
                let idle = lock(occupied).running.is_none();
                if idle {
                    *models = None;
                    give_back(compute);
                }
                let _ = reply.send(idle);
            }
            Self::Measure { work, cancel, .. } => {
                let told = work(models, &|| cancel.load(Ordering::Relaxed));
                release(occupied);
                told();
            }
            Self::Generate { id, prompt, plan, cancel, mut sink } => {
                let ended = guarded(|| {
                    let models = models.as_mut().ok_or(Error::NoModel)?;
                    let clock = WallClock::start();
                    let stopped = || cancel.load(Ordering::Relaxed);
                    let FittingPrompt { ids, dropped, template_note } =
                        models.fitting_ids(&prompt, plan.max_tokens, &stopped)?;
                    let begun = prompt.begun();
                    let context = GenerationContext {
                        id,
                        clock: &clock,
                        begun,
                        dropped,
                        cancelled: &stopped,
                        strict_drafts: false,
                        template_note: template_note.as_deref(),
                    };
                    generate(models, &ids, &plan, &context, sink.as_mut())
                });
                // Free before the last event is out, so that who sees it may ask for the next.
                release(occupied);
                match ended {
                    Ok(finished) => sink.send(finished.into_event()),
                    Err(error) => sink.send(GenerationEvent::Failed { error: (&error).into() }),
                }
            }
        }
    }
}

/// Has the device give back the memory of what was let go: a GPU keeps buffers until it is waited for.
fn give_back(compute: &Compute) {
    // A device that fails here will say so when it is next used.
    let _ = compute.synchronise();
}

/// Brings the models of a plan into memory, and tells what they are.
fn bring(models: &mut Option<Models>, plan: &LoadPlan, make_room: bool, compute: &Compute) -> Result<Loaded> {
    if let Some(models) = models.as_mut().filter(|models| models.has_target_of(plan)) {
        models.change_draft(plan, compute)?;
    } else {
        let opened = OpenedModels::open(plan)?;
        let before = if make_room { models.take().map(|models| models.plan()) } else { None };
        give_back(compute);
        match Models::of(opened, compute) {
            Ok(new) => *models = Some(new),
            Err(error) => {
                // The first error is the one to tell; that there is nothing left now is told with it.
                if let Some(before) = before {
                    *models = Models::load_by(&before, compute).ok();
                }
                return Err(error);
            }
        }
    }
    give_back(compute);
    let models = models.as_ref().expect("models were brought or were there");
    let (of_target, of_draft) = models.memory();
    let read = |memory: ModelMemory| memory.read_by_a_pass as u64;
    Ok(Loaded {
        tokenizer: models.shared_tokenizer(),
        target: models.target_name(),
        draft: models.draft_name(),
        read_by_a_pass: (read(of_target), of_draft.map(read)),
        context: models.context(),
        template_note: models.template_note(),
    })
}

/// A panic on the engine's thread becomes an error: the window must not die of one.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic_text(panic.as_ref());
        Err(Error::Internal(format!("the engine stopped unexpectedly ({text})")))
    })
}

#[cfg(test)]
mod tests;
