//! The engine's thread: takes jobs from a channel and runs them, one after another.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use hunch_error::{Error, Result, RunningWork};
use hunch_model::device::Compute;
use parking_lot::Mutex;

use super::load::{LoadFailure, Loaded, load_or_restore, release_memory};
use super::occupation::{Occupied, RunningJob, release, release_after};
use super::stopwatch::WallClock;
use crate::event::{EventSink, GenerationEvent};
use crate::generate::{FittingPrompt, GenerationContext, GenerationPlan, LoadPlan, Models, Prompt, generate};
use crate::log::panic_text;

/// Work for the thread.
pub(super) enum Job {
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
    Work {
        id: u32,
        kind: RunningWork,
        work: JobFunction,
        cancel: Arc<AtomicBool>,
    },
    Shutdown,
}

impl Job {
    /// Returns a generation or other work on the models; `None` for the rest.
    pub(super) fn running(&self) -> Option<RunningJob> {
        let (id, work, cancel) = match self {
            Self::Generate { id, cancel, .. } => (*id, RunningWork::Answer, cancel),
            Self::Work { id, kind, cancel, .. } => (*id, *kind, cancel),
            Self::Load { .. } | Self::Unload { .. } | Self::Shutdown => return None,
        };
        Some(RunningJob { id, work, cancel: cancel.clone() })
    }
}

/// Work of a job. It takes the models and a function that returns true once the job is cancelled. It returns a
/// callback to run after the engine is released.
pub(super) type JobFunction =
    Box<dyn FnOnce(&mut Option<Models>, &dyn Fn() -> bool) -> Box<dyn FnOnce() + Send> + Send>;

/// The channels to the thread.
pub(super) struct EngineThread {
    pub(super) jobs: Sender<Job>,
    /// Disconnected once the thread has ended.
    pub(super) ended: Receiver<()>,
    /// True if no thread may be started any more.
    pub(super) shut_down: bool,
}

/// Starts the engine's thread.
pub(super) fn spawn(
    compute: &Compute,
    models: &Arc<Mutex<Option<Models>>>,
    occupied: &Occupied,
) -> Result<EngineThread> {
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
    Ok(EngineThread { jobs, ended, shut_down: false })
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
            Self::Work { work, cancel, .. } => {
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

/// Converts a panic into an error, so that it does not end the window.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic_text(panic.as_ref());
        Err(Error::Internal(format!("the engine stopped unexpectedly ({text})")))
    })
}
