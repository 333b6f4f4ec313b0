//! Numbered streams of events: a log that can be read again, and a pump that sends all new events once a frame.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::Serialize;

use hunch_error::{Error, Result};

/// Interval between sends: a frame at 60 Hz. Nobody can see more.
const FRAME: Duration = Duration::from_millis(16);
/// Maximum size of a message, in bytes of JSON. Tauri sends up to 8,192 bytes by a fast path. A larger message takes
/// a slow path and delays all later ones.
const MESSAGE_BYTES: usize = 6 * 1024;

/// Log of the events of a generation or measurement.
pub(super) struct EventLog<E> {
    id: u32,
    state: Mutex<LogState<E>>,
    grown: Condvar,
}

struct LogState<E> {
    events: Vec<E>,
    ended: bool,
}

/// Callback for new events. Takes the number of the first event and the events.
pub(super) type Receiver<E> = Box<dyn FnMut(u32, Vec<E>) + Send>;

impl<E: Clone + Serialize + Send + 'static> EventLog<E> {
    /// Creates a log and its writer. The log ends when the last clone of the writer is dropped.
    pub(super) fn open(id: u32) -> (Arc<Self>, LogWriter<E>) {
        let state = LogState { events: Vec::new(), ended: false };
        let log = Arc::new(Self { id, state: Mutex::new(state), grown: Condvar::new() });
        let writer = LogWriter(Arc::new(OpenLog(log.clone())));
        (log, writer)
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    fn state(&self) -> MutexGuard<'_, LogState<E>> {
        self.state.lock()
    }

    /// Returns all events so far.
    pub(super) fn events(&self) -> Vec<E> {
        self.state().events.clone()
    }

    /// Returns up to `most` events after the first `read`.
    pub(super) fn after(&self, read: usize, most: usize) -> Vec<E> {
        self.state().events.iter().skip(read).take(most).cloned().collect()
    }

    /// Sends every event to `receiver` from its own thread. Calls `ended` once the log has ended and all are sent.
    pub(super) fn pump(
        self: &Arc<Self>,
        mut receiver: Receiver<E>,
        ended: impl FnOnce() + Send + 'static,
    ) -> Result<()> {
        let log = self.clone();
        let pump = move || {
            let mut sent = 0;
            while let Some(new) = log.send_after(sent, &mut receiver) {
                sent += new;
                thread::sleep(FRAME);
            }
            ended();
            // Dropped last, so that `ended` has run when the reader sees the channel closed.
            drop(receiver);
        };
        thread::Builder::new()
            .name("hunch-events".into())
            .spawn(pump)
            .map(drop)
            .map_err(|e| Error::Internal(format!("no thread for events: {e}")))
    }

    /// Waits for events after the first `sent`, and sends them in as many messages as they need. Returns their number, or
    /// `None` once the log has ended and all are sent.
    fn send_after(&self, sent: usize, receiver: &mut Receiver<E>) -> Option<usize> {
        let mut state = self.state();
        while state.events.len() == sent && !state.ended {
            self.grown.wait(&mut state);
        }
        let events = state.events[sent..].to_vec();
        drop(state);
        let (mut seq, mut left) = (sent, &events[..]);
        while !left.is_empty() {
            let (message, rest) = left.split_at(first_that_fit(left).len());
            receiver(seq as u32, message.to_vec());
            (seq, left) = (seq + message.len(), rest);
        }
        (!events.is_empty()).then_some(events.len())
    }
}

/// Returns the first events whose JSON fits a message, at least one if there is one.
fn first_that_fit<E: Serialize>(events: &[E]) -> &[E] {
    let mut bytes = 0;
    let fit = events.iter().take_while(|event| {
        bytes += serde_json::to_string(event).map_or(0, |json| json.len() + 1);
        bytes <= MESSAGE_BYTES
    });
    &events[..fit.count().max(events.len().min(1))]
}

/// Appends events to a log.
pub(super) struct LogWriter<E>(Arc<OpenLog<E>>);

impl<E> Clone for LogWriter<E> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<E> LogWriter<E> {
    pub(super) fn put(&self, event: E) {
        self.0.state().events.push(event);
        self.0.0.grown.notify_one();
    }
}

/// Ends its log when the last writer is dropped.
struct OpenLog<E>(Arc<EventLog<E>>);

impl<E> OpenLog<E> {
    fn state(&self) -> MutexGuard<'_, LogState<E>> {
        self.0.state.lock()
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
    fn sends_each_event_once_in_order_in_small_messages() {
        let (log, writer) = EventLog::open(3);
        (0..500).for_each(|i| writer.put(progress(i)));
        let (sender, receiver) = mpsc::channel();
        log.pump(Box::new(move |seq, events| sender.send((seq, events)).unwrap()), || ()).unwrap();
        // The log stays open while a writer exists.
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

    /// A model that writes faster than one message a frame must not get ahead of the window.
    #[test]
    fn events_of_a_frame_are_sent_together_however_many_they_are() {
        let events: Vec<_> = (0..1_000).map(progress).collect();
        assert!(serde_json::to_string(&events).unwrap().len() > 5 * MESSAGE_BYTES);
        let (log, writer) = EventLog::open(3);
        events.iter().for_each(|event| writer.put(event.clone()));
        let (sender, receiver) = mpsc::channel();
        let mut receive: Receiver<_> = Box::new(move |seq, events| sender.send((seq, events)).unwrap());
        assert_eq!(log.send_after(7, &mut receive), Some(993));
        let received: Vec<_> = receiver.try_iter().collect();
        assert!(received.len() > 5 && received[0].0 == 7);
        assert_eq!(received.into_iter().flat_map(|(_, events)| events).collect::<Vec<_>>(), events[7..]);
        drop(writer);
        assert_eq!(log.send_after(1_000, &mut receive), None);
    }

    /// The largest round: every token has all alternatives.
    #[test]
    fn round_of_sixteen_tokens_fits_the_fast_path() {
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
    fn sends_an_event_larger_than_a_message() {
        let big = GenerationEvent::Failed {
            error: (&hunch_error::Error::Internal("x".repeat(2 * MESSAGE_BYTES))).into(),
        };
        assert_eq!(first_that_fit(&[big, progress(1)]).len(), 1);
        assert!(first_that_fit::<GenerationEvent>(&[]).is_empty());
    }
}
