//! Delivers events to subscribers in order. No lock is held during a call, so a subscriber may list
//! downloads or drop anything. Events that arrive meanwhile are queued, and the delivering thread empties
//! the queue.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::ThreadId;

use super::lock;
use crate::types::LibraryEvent;

pub(super) type Sink = Box<dyn FnMut(LibraryEvent) + Send>;

/// A registered subscriber, `None` once removed.
type Told = Arc<Mutex<Option<Sink>>>;

#[derive(Default)]
pub(super) struct Sinks {
    all: Mutex<Vec<(u64, Told)>>,
    untold: Mutex<Untold>,
}

#[derive(Default)]
struct Untold {
    events: VecDeque<LibraryEvent>,
    /// The delivering thread. There is only one, to keep the order.
    teller: Option<ThreadId>,
}

/// Ends delivery when dropped, so that a panicking subscriber does not block the next delivery.
struct Telling<'a>(&'a Sinks);

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        let mut untold = lock(&self.0.untold);
        if untold.teller == Some(std::thread::current().id()) {
            untold.teller = None;
        }
    }
}

impl Sinks {
    pub(super) fn add(&self, number: u64, sink: Sink) {
        lock(&self.all).push((number, Arc::new(Mutex::new(Some(sink)))));
    }

    /// Removes a subscriber. Waits for a running call to return, unless called from inside it.
    pub(super) fn remove(&self, number: u64) {
        let mut gone: Vec<Told> = Vec::new();
        lock(&self.all).retain(|(known, sink)| {
            if *known == number {
                gone.push(Arc::clone(sink));
            }
            *known != number
        });
        let telling = lock(&self.untold).teller == Some(std::thread::current().id());
        for told in gone {
            let sink = if telling {
                match told.try_lock() {
                    Ok(mut sink) => sink.take(),
                    Err(TryLockError::Poisoned(sink)) => sink.into_inner().take(),
                    // It is running, and is dropped when it returns.
                    Err(TryLockError::WouldBlock) => None,
                }
            } else {
                lock(&told).take()
            };
            // Dropped without a lock, because the subscriber may own anything, including these downloads.
            drop(sink);
        }
    }

    /// Queues an event. Call under the lock of the changed state to keep the order.
    pub(super) fn put(&self, event: LibraryEvent) {
        lock(&self.untold).events.push_back(event);
    }

    /// Delivers queued events, unless another thread is delivering. Call without locks.
    pub(super) fn tell(&self) {
        {
            let mut untold = lock(&self.untold);
            if untold.teller.is_some() {
                return;
            }
            untold.teller = Some(std::thread::current().id());
        }
        let _telling = Telling(self);
        while let Some(event) = self.next() {
            let all: Vec<Told> = lock(&self.all).iter().map(|(_, sink)| Arc::clone(sink)).collect();
            for sink in &all {
                if let Some(sink) = lock(sink).as_mut() {
                    sink(event.clone());
                }
            }
        }
    }

    /// Returns the next event. Without one, ends delivery under the same lock, so that no event is left
    /// behind.
    fn next(&self) -> Option<LibraryEvent> {
        let mut untold = lock(&self.untold);
        let event = untold.events.pop_front();
        if event.is_none() {
            untold.teller = None;
        }
        event
    }
}
