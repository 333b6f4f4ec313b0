//! The engine: one thread that owns every tensor, and a handle to it. What a generation *is* lives
//! in [`crate::generate`]; here is only who runs it and how it is stopped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::event::{EventSink, GenerationEvent};
use crate::generate::{GenerationContext, GenerationPlan, Models, Prompt, generate};
use crate::model::device::Compute;
use crate::stats::Stopwatch;
use crate::text::Tokenizer;

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

enum Job {
    Load {
        target: PathBuf,
        draft: Option<PathBuf>,
        reply: Sender<Result<Arc<Tokenizer>>>,
    },
    Generate {
        id: u32,
        prompt: Prompt,
        plan: Box<GenerationPlan>,
        cancel: Arc<AtomicBool>,
        sink: Box<dyn EventSink>,
    },
    Shutdown,
}

/// The generation that runs now.
type Running = Arc<Mutex<Option<(u32, Arc<AtomicBool>)>>>;

/// A handle to the engine's thread.
pub struct Engine {
    jobs: Mutex<Sender<Job>>,
    running: Running,
    thread: Mutex<Option<JoinHandle<()>>>,
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
        let (jobs, inbox) = channel();
        let running = Running::default();
        let seen = running.clone();
        let thread = thread::Builder::new()
            .name("hunch-engine".into())
            .spawn(move || work(&compute, &inbox, &seen))
            .map_err(|e| Error::Internal(format!("no thread for the engine: {e}")))?;
        Ok(Self { jobs: Mutex::new(jobs), running, thread: Mutex::new(Some(thread)) })
    }

    fn send(&self, job: Job) -> Result<()> {
        lock(&self.jobs).send(job).map_err(|_| Error::Internal("the engine has ended".into()))
    }

    /// Loads models, waits for it, and gives the target's tokeniser. The old ones stay when this fails.
    ///
    /// # Errors
    /// [`Error::Busy`] while an answer is generated; else why loading failed.
    pub fn load(&self, target: &Path, draft: Option<&Path>) -> Result<Arc<Tokenizer>> {
        if lock(&self.running).is_some() {
            return Err(Error::Busy);
        }
        let (reply, answer) = channel();
        self.send(Job::Load { target: target.into(), draft: draft.map(Into::into), reply })?;
        answer.recv().map_err(|_| Error::Internal("the engine ended while loading".into()))?
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
        let cancel = Arc::new(AtomicBool::new(false));
        {
            let mut running = lock(&self.running);
            if running.is_some() {
                return Err(Error::Busy);
            }
            *running = Some((id, cancel.clone()));
        }
        self.send(Job::Generate { id, prompt, plan: Box::new(plan), cancel, sink })
            .inspect_err(|_| *lock(&self.running) = None)
    }

    /// The generation that runs now.
    pub fn running(&self) -> Option<u32> {
        lock(&self.running).as_ref().map(|(id, _)| *id)
    }

    /// Asks generation `id` to end; it does within one round. No effect on any other.
    pub fn cancel(&self, id: u32) {
        if let Some((running, cancel)) = &*lock(&self.running)
            && *running == id
        {
            cancel.store(true, Ordering::Relaxed);
        }
    }

    /// Stops what runs and ends the thread.
    pub fn shutdown(&self) {
        if let Some((_, cancel)) = &*lock(&self.running) {
            cancel.store(true, Ordering::Relaxed);
        }
        // An engine that has ended already needs no word.
        let _ = self.send(Job::Shutdown);
        if let Some(thread) = lock(&self.thread).take() {
            // A panic was turned into an event where it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shutdown();
    }
}

fn work(compute: &Compute, inbox: &Receiver<Job>, running: &Running) {
    let mut models = None;
    while let Ok(job) = inbox.recv() {
        match job {
            Job::Shutdown => break,
            Job::Load { target, draft, reply } => {
                let loaded = guarded(|| Models::load(&target, draft.as_deref(), compute));
                // The caller may have gone; the models are loaded all the same.
                let _ = reply.send(loaded.map(|new| models.insert(new).shared_tokenizer()));
            }
            Job::Generate { id, prompt, plan, cancel, mut sink } => {
                let ended = guarded(|| {
                    let models = models.as_mut().ok_or(Error::NoModel)?;
                    let clock = WallClock::start();
                    let (ids, dropped) = models.fitting_ids(&prompt, plan.max_tokens)?;
                    let begun = prompt.begun();
                    let stopped = || cancel.load(Ordering::Relaxed);
                    let context =
                        GenerationContext { id, clock: &clock, begun, dropped, cancelled: &stopped };
                    generate(models, &ids, &plan, &context, sink.as_mut())
                });
                // Free before the last event is out, so that who sees it may ask for the next.
                *lock(running) = None;
                match ended {
                    Ok(finished) => sink.send(finished.into_event()),
                    Err(error) => sink.send(GenerationEvent::Failed { error: (&error).into() }),
                }
            }
        }
    }
}

/// A panic on the engine's thread becomes an error: the window must not die of one.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(|s| (*s).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "unknown".into());
        Err(Error::Internal(format!("the engine stopped unexpectedly ({text})")))
    })
}
