//! Streams of server-sent events: one for the parts of an answer, whatever the protocol. Protocols write the events.

use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::stream::{iter, unfold};
use serde_json::Value;
use tokio::time::timeout;

use super::AnsweringServer;
use super::answer::{self, AnswerPart, Ask, RunningAnswer, lost};
use super::errors::Failure;
use crate::event::RoundEvent;
use crate::generate::Finished;

/// Pause after which a comment keeps the connection alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Writes the parts of an answer as the events of a protocol.
pub(super) trait EventWriter: Send + 'static {
    /// Takes the readers of the answer, and returns the events before the first token.
    fn begin(&mut self, answer: &mut RunningAnswer) -> Vec<Event>;
    /// Returns the events of a round.
    fn round(&mut self, answer: &RunningAnswer, round: &RoundEvent) -> Vec<Event>;
    /// Returns the events of the end.
    fn end(&mut self, answer: &RunningAnswer, finished: &Finished) -> Vec<Event>;
    /// Returns the events of a failure, before the answer begins or after it.
    fn failed(&mut self, failure: &Failure) -> Vec<Event>;
}

/// Returns an event with JSON data.
pub(super) fn data(value: &Value) -> Event {
    Event::default().data(value.to_string())
}

/// Returns an event with JSON data, named after its type. The name comes first, as in Anthropic's streams.
pub(super) fn typed(value: &Value) -> Event {
    Event::default().event(value["type"].as_str().unwrap_or("message")).data(value.to_string())
}

/// An answer and its writer.
struct RunningStream<W> {
    answer: RunningAnswer,
    writer: W,
    begun: bool,
}

impl<W: EventWriter> RunningStream<W> {
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

/// An answer that waits for its turn or its model.
type Starting = Pin<Box<dyn Future<Output = Result<RunningAnswer, Failure>> + Send>>;

/// State of a stream.
enum Stream<W> {
    Starting(Starting, W),
    Running(Box<RunningStream<W>>),
}

impl<W: EventWriter> Stream<W> {
    fn running(answer: RunningAnswer, writer: W) -> Self {
        Self::Running(Box::new(RunningStream { answer, writer, begun: false }))
    }

    /// Returns the next events, and the rest of the stream if more follow.
    async fn step(self) -> (Vec<Event>, Option<Self>) {
        match self {
            Self::Starting(starting, mut writer) => match starting.await {
                Ok(answer) => (Vec::new(), Some(Self::running(answer, writer))),
                Err(failure) => (writer.failed(&failure), None),
            },
            Self::Running(mut running) => {
                let (events, more) = running.step().await;
                (events, more.then_some(Self::Running(running)))
            }
        }
    }
}

/// Starts an answer and returns the response that streams it. Dropping the response cancels the answer.
///
/// Clients and proxies give up on a response without a header. So the stream begins after a while even if the answer still
/// waits, and a failure is an event then.
///
/// # Errors
/// The errors of [`answer::start`] until then.
pub(super) async fn respond<W: EventWriter>(
    server: AnsweringServer,
    ask: Ask,
    writer: W,
) -> Result<Response, Failure> {
    let begins = server.limits.stream_begins;
    let mut starting: Starting = Box::pin(async move { answer::start(&server, ask).await });
    let stream = match timeout(begins, &mut starting).await {
        Ok(answer) => Stream::running(answer?, writer),
        Err(_) => Stream::Starting(starting, writer),
    };
    let events = unfold(Some(stream), |stream| async move { Some(stream?.step().await) });
    let events = events.flat_map(|events| iter(events.into_iter().map(Ok::<_, Infallible>)));
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}
