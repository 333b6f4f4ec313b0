//! From the engine's events to numbered messages: a log that a reader can ask for again, and a
//! pump that sends what is new once a frame.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::chat::Keeper;
use crate::api::{GenerationSnapshot, StreamMessage};
use crate::error::{Error, Result};
use crate::event::{EventSink, GenerationEvent};

/// Time between two messages: one frame at 60 Hz. More often cannot be seen.
const FRAME: Duration = Duration::from_millis(16);
/// Most bytes of JSON in one message. Tauri sends up to 8,192 by its fast path and holds back every
/// later message while a larger one takes the slow one.
const MESSAGE_BYTES: usize = 6 * 1024;

/// The events of one generation.
pub(super) struct GenerationLog {
    id: u32,
    state: Mutex<State>,
    grown: Condvar,
}

#[derive(Default)]
struct State {
    events: Vec<GenerationEvent>,
    ended: bool,
}

impl GenerationLog {
    pub(super) fn new(id: u32) -> Arc<Self> {
        Arc::new(Self { id, state: Mutex::default(), grown: Condvar::new() })
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the engine puts events: they are kept first, if there is a keeper. The log ends when the sink
    /// is dropped.
    pub(super) fn sink(self: &Arc<Self>, keeper: Option<Keeper>) -> Box<dyn EventSink> {
        Box::new(LogSink { keeper, log: self.clone() })
    }

    pub(super) fn snapshot(&self) -> GenerationSnapshot {
        let state = self.state();
        GenerationSnapshot {
            generation_id: self.id,
            next_seq: state.events.len() as u32,
            events: state.events.clone(),
        }
    }

    /// Sends every event to `sink` from a thread of its own until the log has ended.
    pub(super) fn pump(self: &Arc<Self>, mut sink: Box<dyn FnMut(StreamMessage) + Send>) -> Result<()> {
        let log = self.clone();
        let pump = move || {
            let mut sent = 0;
            while let Some(message) = log.next_message(sent) {
                sent += message.events.len();
                sink(message);
                thread::sleep(FRAME);
            }
        };
        thread::Builder::new()
            .name("hunch-events".into())
            .spawn(pump)
            .map(drop)
            .map_err(|e| Error::Internal(format!("no thread for events: {e}")))
    }

    /// Waits for events after the first `sent`; `None` once all of an ended log are sent.
    fn next_message(&self, sent: usize) -> Option<StreamMessage> {
        let mut state = self.state();
        while state.events.len() == sent && !state.ended {
            state = self.grown.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let events = first_that_fit(&state.events[sent..]);
        (!events.is_empty()).then(|| StreamMessage {
            generation_id: self.id,
            seq: sent as u32,
            events: events.to_vec(),
        })
    }
}

/// The first events whose JSON fits one message; at least one if there is one.
fn first_that_fit(events: &[GenerationEvent]) -> &[GenerationEvent] {
    let mut bytes = 0;
    let fit = events.iter().take_while(|event| {
        bytes += serde_json::to_string(event).map_or(0, |json| json.len() + 1);
        bytes <= MESSAGE_BYTES
    });
    &events[..fit.count().max(events.len().min(1))]
}

struct LogSink {
    keeper: Option<Keeper>,
    log: Arc<GenerationLog>,
}

impl EventSink for LogSink {
    fn send(&mut self, event: GenerationEvent) {
        if let Some(keeper) = &mut self.keeper {
            keeper.keep(&event);
        }
        self.log.state().events.push(event);
        self.log.grown.notify_one();
    }
}

impl Drop for LogSink {
    fn drop(&mut self) {
        self.log.state().ended = true;
        self.log.grown.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn progress(done: u32) -> GenerationEvent {
        GenerationEvent::Prefill { done, total: 1000 }
    }

    #[test]
    fn every_event_arrives_once_in_order_and_messages_stay_small() {
        let log = GenerationLog::new(3);
        let mut sink = log.sink(None);
        (0..500).for_each(|i| sink.send(progress(i)));
        let (sender, receiver) = mpsc::channel();
        log.pump(Box::new(move |message| sender.send(message).unwrap())).unwrap();
        drop(sink);
        let mut received = Vec::new();
        for message in receiver {
            assert_eq!(message.seq as usize, received.len());
            assert!(serde_json::to_string(&message).unwrap().len() < 8192);
            received.extend(message.events);
        }
        assert_eq!(received, (0..500).map(progress).collect::<Vec<_>>());
        assert_eq!(log.snapshot().events, received);
        assert_eq!(log.snapshot().next_seq, 500);
    }

    /// The largest round there is, each token with all of its alternatives.
    #[test]
    fn a_round_of_sixteen_tokens_goes_by_the_fast_path() {
        use crate::event::{Alternative, RoundEvent, TokenEvent};
        use crate::token::TokenOrigin;
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
            error: crate::event::ErrorInfo {
                code: crate::error::ErrorCode::Internal,
                message: "x".repeat(2 * MESSAGE_BYTES),
            },
        };
        assert_eq!(first_that_fit(&[big, progress(1)]).len(), 1);
        assert!(first_that_fit(&[]).is_empty());
    }
}
