//! A thread's loop that unloads idle models. Loading and the models belong to the caller.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hunch_error::{Error, Result};
use parking_lot::{Condvar, Mutex};

/// Unloads models after an idle timeout. Clones share their state.
#[derive(Clone)]
pub(crate) struct IdleUnloader(Arc<(Mutex<IdleState>, Condvar)>);

struct IdleState {
    /// Idle timeout. `None` means never.
    keep: Option<Duration>,
    /// Number of loads and changed timeouts so far.
    changes: u64,
    ended: bool,
}

impl IdleUnloader {
    /// Creates the state of a thread that [`start`](Self::start) starts.
    pub(crate) fn new(keep: Option<Duration>) -> Self {
        Self(Arc::new((Mutex::new(IdleState { keep, changes: 0, ended: false }), Condvar::new())))
    }

    /// Sets the idle timeout.
    pub(crate) fn keep_for(&self, keep: Option<Duration>) {
        self.0.0.lock().keep = keep;
        self.wake();
    }

    /// Wakes the thread after models were loaded or the timeout changed.
    pub(crate) fn wake(&self) {
        self.0.0.lock().changes += 1;
        self.0.1.notify_all();
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        self.0.0.lock().ended = true;
        self.wake();
    }

    /// Starts the thread. It unloads idle models until [`end`](Self::end) is called.
    ///
    /// `unload` unloads models that have been idle for the timeout. It returns the time until the next check, or `None`
    /// if no models are loaded.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(crate) fn start(&self, unload: impl Fn(Duration) -> Option<Duration> + Send + 'static) -> Result<()> {
        let unloader = self.clone();
        thread::Builder::new()
            .name("hunch-unload".into())
            .spawn(move || unloader.watch(unload))
            .map(drop)
            .map_err(|error| {
                Error::Internal(format!("the thread that unloads idle models could not be started: {error}"))
            })
    }

    fn watch(&self, unload: impl Fn(Duration) -> Option<Duration>) {
        let (state, changed) = &*self.0;
        let mut current = state.lock();
        while !current.ended {
            let (keep, changes) = (current.keep, current.changes);
            // Without the lock, because unloading takes a moment.
            drop(current);
            let wait = keep.and_then(&unload);
            current = state.lock();
            if current.changes != changes {
                continue;
            }
            match wait {
                None => changed.wait(&mut current),
                Some(wait) => {
                    changed.wait_for(&mut current, wait);
                }
            }
        }
    }
}

/// Unloads models that have been idle for `keep`. `idle` is their idle time, or `None` while they are in use.
///
/// Returns the time until the next check, or `None` if the models were unloaded.
pub(crate) fn unload_after(
    keep: Duration,
    idle: Option<Duration>,
    unload: impl FnOnce() -> Result<()>,
) -> Option<Duration> {
    match idle {
        // A failure means that a request arrived just now, so they are in use.
        Some(idle) if idle >= keep => unload().err().map(|_| keep),
        Some(idle) => Some(keep - idle),
        None => Some(keep),
    }
}
