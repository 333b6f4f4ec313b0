//! Streams of server-sent events: one for the parts of an answer, whatever the protocol.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::stream::{iter, unfold};
use serde_json::Value;

use super::answer::{AnswerPart, RunningAnswer, lost};
use super::errors::Failure;
use crate::event::RoundEvent;
use crate::generate::Finished;

/// Pause after which a comment keeps the connection alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Writes the parts of an answer as the events of a protocol.
pub(super) trait Writer: Send + 'static {
    /// Returns the events before the first token.
    fn begin(&mut self, answer: &RunningAnswer) -> Vec<Event>;
    /// Returns the events of a round.
    fn round(&mut self, answer: &RunningAnswer, round: &RoundEvent) -> Vec<Event>;
    /// Returns the events of the end.
    fn end(&mut self, answer: &RunningAnswer, finished: &Finished) -> Vec<Event>;
    /// Returns the events of a failure.
    fn failed(&mut self, failure: &Failure) -> Vec<Event>;
}

/// Returns an event with JSON data.
pub(super) fn data(value: &Value) -> Event {
    Event::default().data(value.to_string())
}

/// Returns a named event with JSON data. The name comes first, as in Anthropic's streams.
pub(super) fn named(name: &str, value: &Value) -> Event {
    Event::default().event(name).data(value.to_string())
}

struct Running<W> {
    answer: RunningAnswer,
    writer: W,
    begun: bool,
}

impl<W: Writer> Running<W> {
    /// Returns the next events, and whether more follow.
    async fn step(&mut self) -> (Vec<Event>, bool) {
        let Self { answer, writer, begun } = self;
        if !std::mem::replace(begun, true) {
            return (writer.begin(answer), true);
        }
        match answer.next().await {
            Ok(Some(AnswerPart::Round(round))) => (writer.round(answer, &round), true),
            Ok(Some(AnswerPart::End(finished))) => (writer.end(answer, &finished), false),
            Ok(None) => (writer.failed(&lost()), false),
            Err(failure) => (writer.failed(&failure), false),
        }
    }
}

/// Returns the response that streams an answer. Dropping it cancels the answer.
pub(super) fn respond(answer: RunningAnswer, writer: impl Writer) -> Response {
    let running = Running { answer, writer, begun: false };
    let events = unfold(Some(running), |running| async move {
        let mut running = running?;
        let (events, more) = running.step().await;
        Some((events, more.then_some(running)))
    });
    let events = events.flat_map(|events| iter(events.into_iter().map(Ok::<_, Infallible>)));
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}
