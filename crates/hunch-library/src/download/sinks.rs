//! Who is told what happens, and in which order. No lock of the downloads is held while a sink is called, so
//! that it may ask for the list, or let go of anything: what happens meanwhile waits in a queue, which whoever
//! is telling empties.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::ThreadId;

use super::lock;
use crate::types::LibraryEvent;

pub(super) type Sink = Box<dyn FnMut(LibraryEvent) + Send>;

/// One that is told; `None` once it is no more.
type Told = Arc<Mutex<Option<Sink>>>;

#[derive(Default)]
pub(super) struct Sinks {
    all: Mutex<Vec<(u64, Told)>>,
    untold: Mutex<Untold>,
}

#[derive(Default)]
struct Untold {
    events: VecDeque<LibraryEvent>,
    /// The thread that is telling: one at a time, or the order would be lost.
    teller: Option<ThreadId>,
}

/// Where a sink panics, the next one who has something to tell goes on.
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

    /// Afterwards the sink is not called any more. Waits for a call of it, unless that is what we are in.
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
                    // It is running, and dropped when it has come to its end.
                    Err(TryLockError::WouldBlock) => None,
                }
            } else {
                lock(&told).take()
            };
            // It may own whatever it likes, even the last of these downloads: no lock is held here.
            drop(sink);
        }
    }

    /// Puts an event behind those that wait. In the order of what happens, if the lock of what is changed is
    /// held.
    pub(super) fn put(&self, event: LibraryEvent) {
        lock(&self.untold).events.push_back(event);
    }

    /// Tells what waits, unless somebody is at it already. To be called without a lock.
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

    /// The next event; without one the telling is over, under the same lock, so that none stays behind.
    fn next(&self) -> Option<LibraryEvent> {
        let mut untold = lock(&self.untold);
        let event = untold.events.pop_front();
        if event.is_none() {
            untold.teller = None;
        }
        event
    }
}
