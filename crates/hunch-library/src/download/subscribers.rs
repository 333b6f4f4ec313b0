//! Delivers events to subscribers in order. No lock is held during a call, so a subscriber may list
//! downloads or drop anything. Events that arrive meanwhile are queued, and the delivering thread empties
//! the queue.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::ThreadId;

use super::lock;
use crate::types::LibraryEvent;

pub(super) type Subscriber = Box<dyn FnMut(LibraryEvent) + Send>;

/// A registered subscriber, `None` once removed.
type Slot = Arc<Mutex<Option<Subscriber>>>;

#[derive(Default)]
pub(super) struct Subscribers {
    all: Mutex<Vec<(u64, Slot)>>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<LibraryEvent>,
    /// The delivering thread. There is only one, to keep the order.
    deliverer: Option<ThreadId>,
}

/// Ends delivery when dropped, so that a panicking subscriber does not block the next delivery.
struct Delivery<'a>(&'a Subscribers);

impl Drop for Delivery<'_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.0.queue);
        if queue.deliverer == Some(std::thread::current().id()) {
            queue.deliverer = None;
        }
    }
}

impl Subscribers {
    pub(super) fn add(&self, id: u64, subscriber: Subscriber) {
        lock(&self.all).push((id, Arc::new(Mutex::new(Some(subscriber)))));
    }

    /// Removes a subscriber. Waits for a running call to return, unless called from inside it.
    pub(super) fn remove(&self, id: u64) {
        let mut removed: Vec<Slot> = Vec::new();
        lock(&self.all).retain(|(known, subscriber)| {
            if *known == id {
                removed.push(Arc::clone(subscriber));
            }
            *known != id
        });
        let is_delivering = lock(&self.queue).deliverer == Some(std::thread::current().id());
        for slot in removed {
            let subscriber = if is_delivering {
                match slot.try_lock() {
                    Ok(mut subscriber) => subscriber.take(),
                    Err(TryLockError::Poisoned(subscriber)) => subscriber.into_inner().take(),
                    // It is running, and is dropped when it returns.
                    Err(TryLockError::WouldBlock) => None,
                }
            } else {
                lock(&slot).take()
            };
            // Dropped without a lock, because the subscriber may own anything, including these downloads.
            drop(subscriber);
        }
    }

    /// Queues an event. Call under the lock of the changed state to keep the order.
    pub(super) fn enqueue(&self, event: LibraryEvent) {
        lock(&self.queue).events.push_back(event);
    }

    /// Delivers queued events, unless another thread is delivering. Call without locks.
    pub(super) fn deliver(&self) {
        {
            let mut queue = lock(&self.queue);
            if queue.deliverer.is_some() {
                return;
            }
            queue.deliverer = Some(std::thread::current().id());
        }
        let _delivery = Delivery(self);
        while let Some(event) = self.next() {
            let all: Vec<Slot> =
                lock(&self.all).iter().map(|(_, subscriber)| Arc::clone(subscriber)).collect();
            for subscriber in &all {
                if let Some(subscriber) = lock(subscriber).as_mut() {
                    subscriber(event.clone());
                }
            }
        }
    }

    /// Returns the next event. Without one, ends delivery under the same lock, so that no event is left
    /// behind.
    fn next(&self) -> Option<LibraryEvent> {
        let mut queue = lock(&self.queue);
        let event = queue.events.pop_front();
        if event.is_none() {
            queue.deliverer = None;
        }
        event
    }
}
