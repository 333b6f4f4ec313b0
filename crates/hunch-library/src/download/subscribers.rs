//! Delivers events to subscribers in order. No lock is held during a call, so a subscriber may list
//! downloads or drop anything. Events that arrive meanwhile are queued, and the delivering thread empties
//! the queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::ThreadId;

use crate::types::LibraryEvent;
use parking_lot::Mutex;

pub(super) type Subscriber = Box<dyn FnMut(LibraryEvent) + Send>;

/// A registered subscriber, `None` once removed.
type SubscriberSlot = Arc<Mutex<Option<Subscriber>>>;

#[derive(Default)]
pub(super) struct Subscribers {
    all: Mutex<Vec<(u64, SubscriberSlot)>>,
    queue: Mutex<EventQueue>,
}

#[derive(Default)]
struct EventQueue {
    events: VecDeque<LibraryEvent>,
    /// The delivering thread. There is only one, to keep the order.
    deliverer: Option<ThreadId>,
}

/// Ends delivery when dropped, so that a panicking subscriber does not block the next delivery.
struct Delivery<'a>(&'a Subscribers);

impl Drop for Delivery<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        if queue.deliverer == Some(std::thread::current().id()) {
            queue.deliverer = None;
        }
    }
}

impl Subscribers {
    pub(super) fn add(&self, id: u64, subscriber: Subscriber) {
        self.all.lock().push((id, Arc::new(Mutex::new(Some(subscriber)))));
    }

    /// Removes a subscriber. Waits for a running call to return, unless called from inside it.
    pub(super) fn remove(&self, id: u64) {
        let mut removed: Vec<SubscriberSlot> = Vec::new();
        self.all.lock().retain(|(known, subscriber)| {
            if *known == id {
                removed.push(Arc::clone(subscriber));
            }
            *known != id
        });
        let is_delivering = self.queue.lock().deliverer == Some(std::thread::current().id());
        for slot in removed {
            let subscriber = if is_delivering {
                // A running one is dropped when it returns.
                slot.try_lock().and_then(|mut subscriber| subscriber.take())
            } else {
                slot.lock().take()
            };
            // Dropped without a lock, because the subscriber may own anything, including these downloads.
            drop(subscriber);
        }
    }

    /// Queues an event. Call under the lock of the changed state to keep the order.
    pub(super) fn enqueue(&self, event: LibraryEvent) {
        self.queue.lock().events.push_back(event);
    }

    /// Delivers queued events, unless another thread is delivering. Call without locks.
    pub(super) fn deliver(&self) {
        {
            let mut queue = self.queue.lock();
            if queue.deliverer.is_some() {
                return;
            }
            queue.deliverer = Some(std::thread::current().id());
        }
        let _delivery = Delivery(self);
        while let Some(event) = self.next() {
            let all: Vec<SubscriberSlot> =
                self.all.lock().iter().map(|(_, subscriber)| Arc::clone(subscriber)).collect();
            for subscriber in &all {
                if let Some(subscriber) = subscriber.lock().as_mut() {
                    subscriber(event.clone());
                }
            }
        }
    }

    /// Returns the next event. Without one, ends delivery under the same lock, so that no event is left
    /// behind.
    fn next(&self) -> Option<LibraryEvent> {
        let mut queue = self.queue.lock();
        let event = queue.events.pop_front();
        if event.is_none() {
            queue.deliverer = None;
        }
        event
    }
}
