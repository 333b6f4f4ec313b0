//! Answers of servers, as events of a generation.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use super::answer_writer::AnswerSink;
use super::answerer::Answerer;
use crate::api::{AnswerSettings, StoredMessage};
use crate::engine::Engine;
use crate::event::{EventSink, GenerationEvent, RoundEvent, ServerFigures, StopReason, TokenEvent};
use crate::generate::Prompt;
use crate::remote::{RemoteServer, runtime, unless_cancelled};
use crate::server_answers::{RemoteAnswer, RemoteRequest, TextPiece, sampling_fields};
use crate::services::measure::SpeedRecorder;
use hunch_core::chat::{ChatMessage, Role};
use hunch_core::propose::MethodOptions;
use hunch_core::sample::SamplingParams;
use hunch_core::stats::millis;
use hunch_core::token::TokenOrigin;
use hunch_error::{Error, Refusal, Result, RunningWork};
use hunch_model::text::{THOUGHT_END, THOUGHT_OPENING, Tokenizer, without_reasoning};

/// A model of a server.
pub(super) struct ServerAnswerer<'a> {
    /// Kept busy during an answer: one answer or measurement runs at a time.
    engine: &'a Engine,
    server: Arc<RemoteServer>,
    address: String,
    model: String,
}

impl<'a> ServerAnswerer<'a> {
    pub(super) fn new(engine: &'a Engine, server: RemoteServer, address: &str, model: &str) -> Self {
        Self { engine, server: Arc::new(server), address: address.to_owned(), model: model.to_owned() }
    }
}

impl Answerer for ServerAnswerer<'_> {
    fn sign(&self, settings: AnswerSettings) -> AnswerSettings {
        let server = Some(self.address.clone());
        let options = MethodOptions::default();
        AnswerSettings { target: self.model.clone(), draft: None, options, server, ..settings }
    }

    fn check(&self, settings: &AnswerSettings) -> Result<()> {
        Ok(settings.sampling.validate()?)
    }

    fn tokenizer_of(&self, _: &StoredMessage) -> Result<Arc<Tokenizer>> {
        Err(Refusal::ServerCannotContinue.into())
    }

    fn speeds(&self) -> Option<SpeedRecorder> {
        None
    }

    fn start(&self, id: u32, prompt: Prompt, settings: &AnswerSettings, mut sink: AnswerSink) -> Result<()> {
        let (messages, raw) = match prompt {
            Prompt::Raw(text) => (Vec::new(), Some(text)),
            Prompt::Chat(messages) | Prompt::Continued(messages, _) => (messages, None),
        };
        let question = ServerQuestion {
            id,
            server: self.server.clone(),
            address: self.address.clone(),
            model: self.model.clone(),
            sampling: settings.sampling.clone(),
            request: RemoteRequest {
                messages: messages.into_iter().map(said).collect(),
                raw,
                max_tokens: Some(settings.max_tokens as usize),
                stop: settings.stop.clone(),
                ..RemoteRequest::default()
            },
        };
        let hold = self.engine.hold(id, RunningWork::Answer)?;
        let answer = move || {
            let last = question.ask(&hold.cancel_flag(), &mut sink);
            // Free before the end is known, so that the next question can be asked at once.
            drop(hold);
            sink.send(last);
        };
        let spawned = thread::Builder::new().name("hunch-server".into()).spawn(answer);
        spawned.map(drop).map_err(|error| Error::Internal(format!("no thread for the answer: {error}")))
    }
}

/// Returns a message as servers get it: an answer without its reasoning.
fn said(message: ChatMessage) -> ChatMessage {
    match message.role {
        Role::Assistant => ChatMessage { content: without_reasoning(&message.content).to_owned(), ..message },
        _ => message,
    }
}

/// A request to a server, whose program is not known yet.
struct ServerQuestion {
    id: u32,
    server: Arc<RemoteServer>,
    address: String,
    model: String,
    sampling: SamplingParams,
    request: RemoteRequest,
}

impl ServerQuestion {
    /// Asks the server and sends what it answers. Returns the last event.
    fn ask(self, cancel: &AtomicBool, sink: &mut AnswerSink) -> GenerationEvent {
        let runtime = match runtime() {
            Ok(runtime) => runtime,
            Err(error) => return GenerationEvent::Failed { error: (&error).into() },
        };
        let mut stream = PieceStream::new(sink);
        match runtime
            .block_on(unless_cancelled(&|| cancel.load(Ordering::Relaxed), self.exchange(&mut stream)))
        {
            Some(Ok(answer)) => GenerationEvent::ServerFinished {
                stop: stop_of(&answer.finish_reason),
                figures: ServerFigures::of(&answer),
            },
            Some(Err(error)) => GenerationEvent::Failed { error: (&error).into() },
            None => {
                GenerationEvent::ServerFinished { stop: StopReason::Cancelled, figures: stream.cut_off() }
            }
        }
    }

    async fn exchange(mut self, stream: &mut PieceStream<'_>) -> Result<RemoteAnswer> {
        let model = self.server.model(Some(&self.model)).await?;
        stream.sink.send(GenerationEvent::ServerStarted {
            generation_id: self.id,
            address: self.address,
            kind: model.kind,
            model: model.id.clone(),
            context_length: model.context,
        });
        self.request.sampling = sampling_fields(&self.sampling, model.kind);
        stream.begun = Instant::now();
        self.server
            .answer(&model, &self.request, |piece, begun| {
                // Later than the last value by what vLLM's counters took.
                stream.begun = begun;
                stream.send(piece);
                ControlFlow::Continue(())
            })
            .await
    }
}

/// Turns pieces of an answer into events.
struct PieceStream<'a> {
    sink: &'a mut AnswerSink,
    begun: Instant,
    first_ms: Option<f64>,
    rounds: u32,
    thinking: bool,
}

impl<'a> PieceStream<'a> {
    fn new(sink: &'a mut AnswerSink) -> Self {
        Self { sink, begun: Instant::now(), first_ms: None, rounds: 0, thinking: false }
    }

    fn send(&mut self, piece: &TextPiece) {
        self.first_ms.get_or_insert(millis(self.begun.elapsed()));
        let marker = match (std::mem::replace(&mut self.thinking, piece.thinking), piece.thinking) {
            (false, true) => THOUGHT_OPENING,
            (true, false) => THOUGHT_END,
            _ => "",
        };
        let origin = piece.origin.unwrap_or(TokenOrigin::Plain);
        let token = TokenEvent::of_server(format!("{marker}{}", piece.text), origin, self.rounds);
        self.sink.send(GenerationEvent::Round(RoundEvent::of_tokens(self.rounds, vec![token])));
        self.rounds += 1;
    }

    /// Returns the figures of an answer that was stopped. The server has not sent its own.
    fn cut_off(&self) -> ServerFigures {
        ServerFigures {
            first_ms: self.first_ms,
            wall_ms: millis(self.begun.elapsed()),
            finish_reason: "cancelled".into(),
            ..ServerFigures::default()
        }
    }
}

fn stop_of(finish_reason: &str) -> StopReason {
    if finish_reason == "length" { StopReason::MaxTokens } else { StopReason::EndOfTurn }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_answers_are_sent_without_reasoning() {
        let message = |role, content: &str| said(ChatMessage { role, content: content.into() }).content;
        assert_eq!(message(Role::Assistant, "<think>Hm</think>\n\nHello"), "Hello");
        assert_eq!(message(Role::User, "<think>Hm</think>\n\nHello"), "<think>Hm</think>\n\nHello");
    }
}
