//! Responses of `/v1/responses`: the whole object, and the events of a stream.

use axum::response::sse::Event;
use serde_json::{Map, Value, json};

use super::super::super::answer::{RunningAnswer, Whole};
use super::super::super::errors::Failure;
use super::super::super::{hunch_field, sse};
use super::output::OutputItems;
use crate::event::{RoundEvent, StopReason, TokenEvent};
use crate::generate::Finished;

/// Returns whether an answer reached its limit.
fn is_cut(finished: &Finished) -> bool {
    matches!(finished.stop, StopReason::MaxTokens | StopReason::ContextFull)
}

fn usage(answer: &RunningAnswer, output: &OutputItems, finished: &Finished) -> Value {
    let (prompt, generated) = (answer.prompt_tokens, finished.stats.generated_tokens as usize);
    json!({
        "input_tokens": prompt,
        "input_tokens_details": { "cached_tokens": answer.cached_tokens() },
        "output_tokens": generated,
        "output_tokens_details": { "reasoning_tokens": output.reasoning_tokens() },
        "total_tokens": prompt + generated,
    })
}

/// Form and contents of a response.
pub(super) struct Shape {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    /// Fields of the request that the response repeats.
    pub(super) echo: Map<String, Value>,
    pub(super) has_hunch_field: bool,
}

impl Shape {
    fn response(&self, status: &str, output: &[Value]) -> Value {
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": null,
            "incomplete_details": null,
            "model": self.model,
            "output": output,
            "usage": null,
            "previous_response_id": null,
            "background": false,
            "store": false,
            "truncation": "disabled",
        });
        for (name, value) in &self.echo {
            response[name] = value.clone();
        }
        response
    }

    /// Returns the response of an answer that has ended. `tokens` are all of it.
    fn finished(
        &self,
        output: &OutputItems,
        answer: &RunningAnswer,
        finished: &Finished,
        tokens: &[TokenEvent],
    ) -> Value {
        let is_cut = is_cut(finished);
        let mut response = self.response(if is_cut { "incomplete" } else { "completed" }, output.items());
        if is_cut {
            response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        response["usage"] = usage(answer, output, finished);
        if self.has_hunch_field {
            response["hunch"] = hunch_field::of_answer(tokens, answer, finished);
        }
        response
    }

    /// Returns the response of a whole answer. `output` is that of no tokens.
    pub(super) fn whole(&self, mut output: OutputItems, answer: &RunningAnswer, whole: &Whole) -> Value {
        output.begin(answer.thoughts.clone());
        output.read_whole(&whole.tokens, is_cut(&whole.finished));
        self.finished(&output, answer, &whole.finished, &whole.tokens)
    }
}

/// Writes an answer as the events of a response.
pub(super) struct ResponseEvents {
    shape: Shape,
    output: OutputItems,
    /// Number of the next event.
    number: u64,
    /// Tokens so far, if their origins are sent.
    tokens: Vec<TokenEvent>,
    /// Tokens whose origins were sent. Others wait for the next event.
    sent: usize,
}

impl ResponseEvents {
    /// Creates the writer of an answer that has not begun. `output` is that of no tokens.
    pub(super) fn new(shape: Shape, output: OutputItems) -> Self {
        Self { shape, output, number: 0, tokens: Vec::new(), sent: 0 }
    }

    /// Keeps tokens for their origins.
    fn keep(&mut self, tokens: &[TokenEvent]) {
        if self.shape.has_hunch_field {
            self.tokens.extend_from_slice(tokens);
        }
    }

    /// Adds the origins that were not sent yet to the first event.
    fn add_origins(&mut self, round: Option<(&RunningAnswer, &RoundEvent)>, events: &mut [Value]) {
        let unsent = &self.tokens[self.sent..];
        if unsent.is_empty() {
            return;
        }
        let Some(first) = events.first_mut() else { return };
        first["hunch"] = match round {
            Some((answer, round)) => hunch_field::of_tokens_after(unsent, answer, round),
            None => hunch_field::of_tokens(unsent),
        };
        self.sent = self.tokens.len();
    }

    /// Returns an event about the response as a whole.
    fn of_response(kind: &str, response: &Value) -> Value {
        json!({ "type": format!("response.{kind}"), "response": response })
    }

    /// Numbers events, in the order in which they are sent.
    fn numbered(&mut self, events: Vec<Value>) -> Vec<Event> {
        let numbered = events.into_iter().map(|mut event| {
            event["sequence_number"] = json!(self.number);
            self.number += 1;
            sse::typed(&event)
        });
        numbered.collect()
    }
}

impl sse::EventWriter for ResponseEvents {
    fn begin(&mut self, answer: &mut RunningAnswer) -> Vec<Event> {
        self.output.begin(answer.thoughts.clone());
        let response = self.shape.response("in_progress", &[]);
        let events = ["created", "in_progress"].map(|kind| Self::of_response(kind, &response));
        self.numbered(events.into())
    }

    fn round(&mut self, answer: &RunningAnswer, round: &RoundEvent) -> Vec<Event> {
        let mut events = self.output.push(&round.tokens);
        self.keep(&round.tokens);
        self.add_origins(Some((answer, round)), &mut events);
        self.numbered(events)
    }

    fn end(&mut self, answer: &RunningAnswer, finished: &Finished) -> Vec<Event> {
        let is_cut = is_cut(finished);
        let mut events = self.output.end(&finished.held, is_cut);
        self.keep(&finished.held);
        let response = self.shape.finished(&self.output, answer, finished, &self.tokens);
        events.push(Self::of_response(if is_cut { "incomplete" } else { "completed" }, &response));
        self.add_origins(None, &mut events);
        self.numbered(events)
    }

    fn failed(&mut self, failure: &Failure) -> Vec<Event> {
        let mut events = Vec::new();
        if self.number == 0 {
            // Clients expect no other event before this one.
            events.push(Self::of_response("created", &self.shape.response("in_progress", &[])));
        }
        let mut response = self.shape.response("failed", self.output.items());
        response["error"] = failure.of_response();
        events.push(Self::of_response("failed", &response));
        self.numbered(events)
    }
}
