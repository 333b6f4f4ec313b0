//! The queue in front of the engine: a bounded number of places, and turns in the order of arrival.
//! Knows no HTTP and no models.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Longest pause that a refused client is asked to make, in seconds.
const LONGEST_RETRY: u64 = 60;

/// A queue of requests. One has its turn, the others wait.
pub(super) struct RequestQueue {
    places: Arc<Semaphore>,
    /// Tokio's semaphore is fair: permits are given in the order in which they were asked for.
    turn: Arc<Semaphore>,
    capacity: usize,
    /// Moving mean of the time of a turn, in milliseconds.
    mean_turn_ms: AtomicU64,
}

/// A place in the queue. Dropping it frees the place.
pub(super) struct QueuePlace {
    place: OwnedSemaphorePermit,
    turn: Arc<Semaphore>,
}

/// The turn of a request. Dropping it lets the next one start.
pub(super) struct QueueTurn {
    // Fields are dropped in this order, so the turn is free when the place is.
    _turn: OwnedSemaphorePermit,
    _place: OwnedSemaphorePermit,
}

impl RequestQueue {
    /// Creates a queue with room for `waiting` requests in addition to the one that has its turn.
    pub(super) fn new(waiting: usize) -> Self {
        let capacity = waiting + 1;
        Self {
            places: Arc::new(Semaphore::new(capacity)),
            turn: Arc::new(Semaphore::new(1)),
            capacity,
            mean_turn_ms: AtomicU64::new(0),
        }
    }

    /// Takes a place. Returns `None` if the queue is full.
    pub(super) fn enter(&self) -> Option<QueuePlace> {
        let place = self.places.clone().try_acquire_owned().ok()?;
        Some(QueuePlace { place, turn: self.turn.clone() })
    }

    /// Returns the number of requests that have a place, and of those that have their turn.
    pub(super) fn held(&self) -> (usize, usize) {
        let inside = self.capacity - self.places.available_permits();
        (inside, inside.min(1 - self.turn.available_permits().min(1)))
    }

    /// Records the time that a turn took.
    pub(super) fn record_turn(&self, took: Duration) {
        let took = u64::try_from(took.as_millis()).unwrap_or(u64::MAX / 8);
        let mean = self.mean_turn_ms.load(Ordering::Relaxed);
        let mean = if mean == 0 { took } else { (3 * mean + took) / 4 };
        self.mean_turn_ms.store(mean, Ordering::Relaxed);
    }

    /// Returns the seconds after which a place is expected to be free: the mean of a turn, from 1 to 60.
    pub(super) fn retry_after(&self) -> u64 {
        self.mean_turn_ms.load(Ordering::Relaxed).div_ceil(1000).clamp(1, LONGEST_RETRY)
    }

    /// Ends the wait of every request that has no turn yet, and of those to come.
    pub(super) fn close(&self) {
        self.turn.close();
    }
}

impl QueuePlace {
    /// Waits for the turn. Returns `None` once the queue is closed.
    pub(super) async fn turn(self) -> Option<QueueTurn> {
        let turn = self.turn.acquire_owned().await.ok()?;
        Some(QueueTurn { _turn: turn, _place: self.place })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn refuses_more_than_its_places_and_frees_them() {
        block_on(async {
            let queue = RequestQueue::new(1);
            let first = queue.enter().unwrap().turn().await.unwrap();
            let second = queue.enter().unwrap();
            assert!(queue.enter().is_none());
            assert_eq!(queue.held(), (2, 1));
            drop(second);
            let third = queue.enter().unwrap();
            drop(first);
            let third = third.turn().await.unwrap();
            drop(third);
            assert_eq!(queue.held(), (0, 0));
        });
    }

    #[test]
    fn gives_turns_in_order_of_arrival() {
        block_on(async {
            let queue = RequestQueue::new(8);
            let order = Arc::new(std::sync::Mutex::new(Vec::new()));
            let running = queue.enter().unwrap().turn().await.unwrap();
            let mut tasks = tokio::task::JoinSet::new();
            for number in 0..8 {
                let (place, order) = (queue.enter().unwrap(), order.clone());
                tasks.spawn(async move {
                    let turn = place.turn().await.unwrap();
                    order.lock().unwrap().push(number);
                    tokio::task::yield_now().await;
                    drop(turn);
                });
                tokio::task::yield_now().await;
            }
            drop(running);
            while tasks.join_next().await.is_some() {}
            assert_eq!(*order.lock().unwrap(), (0..8).collect::<Vec<_>>());
        });
    }

    #[test]
    fn closing_ends_every_wait() {
        block_on(async {
            let queue = RequestQueue::new(2);
            let running = queue.enter().unwrap().turn().await.unwrap();
            let waiting = queue.enter().unwrap();
            queue.close();
            assert!(waiting.turn().await.is_none());
            drop(running);
            assert!(queue.enter().unwrap().turn().await.is_none());
        });
    }

    #[test]
    fn retry_after_follows_the_turns_within_limits() {
        let queue = RequestQueue::new(1);
        assert_eq!(queue.retry_after(), 1);
        queue.record_turn(Duration::from_secs(20));
        assert_eq!(queue.retry_after(), 20);
        queue.record_turn(Duration::from_secs(4));
        assert_eq!(queue.retry_after(), 16);
        queue.record_turn(Duration::from_secs(100_000));
        assert_eq!(queue.retry_after(), 60);
    }
}
