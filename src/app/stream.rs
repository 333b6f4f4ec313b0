//! From the engine's events to numbered messages: a log that a reader can ask for again, and a
//! pump that sends what is new once a frame.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde::Serialize;

use hunch_error::{Error, Result};

/// Time between two messages: one frame at 60 Hz. More often cannot be seen.
const FRAME: Duration = Duration::from_millis(16);
/// Most bytes of JSON in one message. Tauri sends up to 8,192 by its fast path and holds back every
/// later message while a larger one takes the slow one.
const MESSAGE_BYTES: usize = 6 * 1024;

/// The events of one generation or measurement.
pub(super) struct EventLog<E> {
    id: u32,
    state: Mutex<State<E>>,
    grown: Condvar,
}

struct State<E> {
    events: Vec<E>,
    ended: bool,
}

/// Where events go a frame's worth at a time: the number of the first, and the events.
pub(super) type Receiver<E> = Box<dyn FnMut(u32, Vec<E>) + Send>;

impl<E: Clone + Serialize + Send + 'static> EventLog<E> {
    /// A log, and what puts events into it: it ends when the last copy of that is dropped.
    pub(super) fn open(id: u32) -> (Arc<Self>, Writer<E>) {
        let state = State { events: Vec::new(), ended: false };
        let log = Arc::new(Self { id, state: Mutex::new(state), grown: Condvar::new() });
        let writer = Writer(Arc::new(OpenLog(log.clone())));
        (log, writer)
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    fn state(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything so far.
    pub(super) fn events(&self) -> Vec<E> {
        self.state().events.clone()
    }

    /// Returns up to `most` events behind the first `read`.
    pub(super) fn after(&self, read: usize, most: usize) -> Vec<E> {
        self.state().events.iter().skip(read).take(most).cloned().collect()
    }

    /// Sends every event to `receiver` from a thread of its own until the log has ended; then calls `ended`.
    pub(super) fn pump(
        self: &Arc<Self>,
        mut receiver: Receiver<E>,
        ended: impl FnOnce() + Send + 'static,
    ) -> Result<()> {
        let log = self.clone();
        let pump = move || {
            let mut sent = 0;
            while let Some(events) = log.next_events(sent) {
                let seq = sent as u32;
                sent += events.len();
                receiver(seq, events);
                thread::sleep(FRAME);
            }
            ended();
            // Last: whoever hears that nothing comes any more may count on the end having been dealt with.
            drop(receiver);
        };
        thread::Builder::new()
            .name("hunch-events".into())
            .spawn(pump)
            .map(drop)
            .map_err(|e| Error::Internal(format!("no thread for events: {e}")))
    }

    /// Waits for events after the first `sent`; `None` once all of an ended log are sent.
    fn next_events(&self, sent: usize) -> Option<Vec<E>> {
        let mut state = self.state();
        while state.events.len() == sent && !state.ended {
            state = self.grown.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let events = first_that_fit(&state.events[sent..]);
        (!events.is_empty()).then(|| events.to_vec())
    }
}

/// The first events whose JSON fits one message; at least one if there is one.
fn first_that_fit<E: Serialize>(events: &[E]) -> &[E] {
    let mut bytes = 0;
    let fit = events.iter().take_while(|event| {
        bytes += serde_json::to_string(event).map_or(0, |json| json.len() + 1);
        bytes <= MESSAGE_BYTES
    });
    &events[..fit.count().max(events.len().min(1))]
}

/// Puts events into a log.
pub(super) struct Writer<E>(Arc<OpenLog<E>>);

impl<E> Clone for Writer<E> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<E> Writer<E> {
    pub(super) fn put(&self, event: E) {
        self.0.state().events.push(event);
        self.0.0.grown.notify_one();
    }
}

/// Ends its log when nobody writes any more.
struct OpenLog<E>(Arc<EventLog<E>>);

impl<E> OpenLog<E> {
    fn state(&self) -> MutexGuard<'_, State<E>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E> Drop for OpenLog<E> {
    fn drop(&mut self) {
        self.state().ended = true;
        self.0.grown.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::event::GenerationEvent;

    fn progress(done: u32) -> GenerationEvent {
        GenerationEvent::Prefill { done, total: 1000 }
    }

    #[test]
    fn every_event_arrives_once_in_order_and_messages_stay_small() {
        let (log, writer) = EventLog::open(3);
        (0..500).for_each(|i| writer.put(progress(i)));
        let (sender, receiver) = mpsc::channel();
        log.pump(Box::new(move |seq, events| sender.send((seq, events)).unwrap()), || ()).unwrap();
        // It goes on while anybody writes.
        let other = writer.clone();
        drop(writer);
        other.put(progress(500));
        drop(other);
        let mut received = Vec::new();
        for (seq, events) in receiver {
            assert_eq!(seq as usize, received.len());
            assert!(serde_json::to_string(&events).unwrap().len() < 8000);
            received.extend(events);
        }
        assert_eq!(received, (0..=500).map(progress).collect::<Vec<_>>());
        assert_eq!((log.id(), log.events()), (3, received));
    }

    /// The largest round there is, each token with all of its alternatives.
    #[test]
    fn a_round_of_sixteen_tokens_goes_by_the_fast_path() {
        use crate::event::{Alternative, RoundEvent, TokenEvent};
        use hunch_core::token::TokenOrigin;
        let alternative = |id: u32| Alternative(150_000 + id, " word".into(), 0.12345);
        let token = |position| TokenEvent {
            id: 151_000,
            text: " something".into(),
            origin: TokenOrigin::Accepted,
            p: 0.123_456_78,
            q: Some(0.123_456_78),
            u: Some(0.123_456_78),
            threshold: Some(0.123_456_78),
            confidence: 0.123_456_78,
            entropy: Some(1.234_567_8),
            top: (0..5u32).map(alternative).collect(),
            guesses: (0..3u32).map(alternative).collect(),
            round: 1000,
            position,
        };
        let round = GenerationEvent::Round(RoundEvent::of_tokens(1000, (0..16).map(token).collect()));
        assert!(serde_json::to_string(&round).unwrap().len() < 8000);
    }

    #[test]
    fn an_event_too_large_for_a_message_still_goes() {
        let big = GenerationEvent::Failed {
            error: (&hunch_error::Error::Internal("x".repeat(2 * MESSAGE_BYTES))).into(),
        };
        assert_eq!(first_that_fit(&[big, progress(1)]).len(), 1);
        assert!(first_that_fit::<GenerationEvent>(&[]).is_empty());
    }
}
