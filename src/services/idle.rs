//! A thread's loop that unloads idle models. Loading and the models belong to the caller.

use std::sync::Arc;
use std::time::Duration;

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
    /// Creates the state of a thread that calls [`watch`](Self::watch).
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

    /// Unloads idle models until [`end`](Self::end) is called.
    ///
    /// `unload` unloads models that have been idle for the timeout. It returns the time until the next check, or `None`
    /// if no models are loaded.
    pub(crate) fn watch(&self, unload: impl Fn(Duration) -> Option<Duration>) {
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
