//! Responses of chats and completions: whole answers and chunks, with log probabilities and counts of tokens.

use axum::response::sse::Event;
use hunch_core::token::TokenId;
use hunch_model::text::{ThoughtSplitter, Tokenizer, ToolCallParser};
use serde_json::{Map, Value, json};

use super::super::answer::{RunningAnswer, Whole, text_of};
use super::super::errors::{Failure, Protocol};
use super::super::thinking::{split, split_whole};
use super::super::tools::{AnswerPiece, pieces};
use super::super::{AnsweringServer, hunch_field, sse};
use super::tools;
use crate::event::{RoundEvent, StopReason, TokenEvent};
use crate::generate::Finished;

/// Log probability of a token that was not among the most likely ones, as OpenAI reports it.
const UNLIKELY: f64 = -9999.0;

/// Endpoint of a response.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint {
    Chat,
    Completions,
}

/// Form and contents of a response.
pub(super) struct Shape {
    pub(super) endpoint: Endpoint,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) include_usage: bool,
    pub(super) has_hunch_field: bool,
    /// Number of alternatives for each token, if log probabilities were asked for.
    pub(super) logprobs: Option<usize>,
}

/// Returns the reason for the end. `called` is `true` if the answer has calls of tools.
fn finish_reason(stop: &StopReason, called: bool) -> &'static str {
    match stop {
        StopReason::EndOfTurn | StopReason::StopString if called => "tool_calls",
        StopReason::MaxTokens | StopReason::ContextFull => "length",
        StopReason::EndOfTurn | StopReason::StopString | StopReason::Cancelled => "stop",
    }
}

fn usage(answer: &RunningAnswer, finished: &Finished) -> Value {
    let (prompt, generated) = (answer.prompt_tokens, finished.stats.generated_tokens as usize);
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": { "cached_tokens": answer.cached_tokens() },
    })
}

fn log_probability(p: f32) -> f64 {
    if p > 0.0 { f64::from(p).ln() } else { UNLIKELY }
}

/// Returns the log probabilities of tokens, with this many alternatives each.
pub(super) fn log_probabilities<'a>(
    tokenizer: &Tokenizer,
    tokens: impl IntoIterator<Item = &'a TokenEvent>,
    count: usize,
) -> Vec<Value> {
    let entry = |id: TokenId, p: f32| {
        let bytes = tokenizer.token_bytes(id);
        json!({ "token": String::from_utf8_lossy(&bytes), "logprob": log_probability(p), "bytes": &bytes[..] })
    };
    let described = tokens.into_iter().map(|token| {
        let mut described = entry(token.id, token.confidence);
        let top = token.top.iter().take(count).map(|other| entry(other.0, other.2));
        described["top_logprobs"] = top.collect();
        described
    });
    described.collect()
}

/// Returns the log probabilities of tokens in the form of completions, with this many alternatives each and the token
/// itself. `from` is the number of characters of the answer before these tokens.
fn completion_log_probabilities(
    tokenizer: &Tokenizer,
    tokens: &[TokenEvent],
    count: usize,
    from: usize,
) -> Value {
    // OpenAI's form of bytes that are no text of their own.
    let name = |id: TokenId| {
        String::from_utf8(tokenizer.token_bytes(id)).unwrap_or_else(|bytes| {
            let bytes = bytes.into_bytes();
            bytes.iter().fold("bytes:".to_owned(), |name, byte| format!("{name}\\x{byte:02x}"))
        })
    };
    let top = |token: &TokenEvent| -> Map<String, Value> {
        let others = token.top.iter().take(count).map(|other| (other.0, other.2));
        let all = others.chain([(token.id, token.confidence)]);
        all.map(|(id, p)| (name(id), json!(log_probability(p)))).collect()
    };
    let offsets = tokens.iter().scan(from, |next, token| {
        let offset = *next;
        *next += token.text.chars().count();
        Some(offset)
    });
    json!({
        "tokens": tokens.iter().map(|token| name(token.id)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| log_probability(token.confidence)).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets.collect::<Vec<_>>(),
    })
}

impl Shape {
    fn object(&self, chunk: bool) -> &'static str {
        match (self.endpoint, chunk) {
            (Endpoint::Chat, true) => "chat.completion.chunk",
            (Endpoint::Chat, false) => "chat.completion",
            (Endpoint::Completions, _) => "text_completion",
        }
    }

    fn head(&self, server: &AnsweringServer, chunk: bool, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": self.object(chunk),
            "created": self.created,
            "model": server.model.name,
            "system_fingerprint": concat!("hunch-", env!("CARGO_PKG_VERSION")),
            "choices": choices,
        })
    }

    /// Returns the log probabilities of tokens that follow `from` characters of the answer.
    fn logprobs(&self, server: &AnsweringServer, tokens: &[TokenEvent], from: usize) -> Value {
        let tokenizer = server.model.encoder.tokenizer();
        match (self.logprobs, self.endpoint) {
            (None, _) => Value::Null,
            (Some(count), Endpoint::Chat) => {
                json!({ "content": log_probabilities(tokenizer, tokens, count) })
            }
            (Some(count), Endpoint::Completions) => {
                completion_log_probabilities(tokenizer, tokens, count, from)
            }
        }
    }

    /// Returns the splitter of the thoughts in an answer, if they are sent apart from the text.
    fn thoughts(&self, answer: &RunningAnswer) -> Option<ThoughtSplitter> {
        (self.endpoint == Endpoint::Chat).then(|| answer.thoughts.clone())
    }

    /// Returns an answer that is complete.
    pub(super) fn whole(
        &self,
        server: &AnsweringServer,
        answer: &RunningAnswer,
        whole: &Whole,
        parser: Option<ToolCallParser>,
    ) -> Value {
        let (thought, text) = split_whole(self.thoughts(answer), whole.text());
        let pieces = match parser {
            Some(parser) => pieces(parser, &text),
            None => vec![AnswerPiece::Text(text)],
        };
        let called = pieces.iter().any(|piece| matches!(piece, AnswerPiece::Call { .. }));
        let mut choice = json!({
            "index": 0,
            "logprobs": self.logprobs(server, &whole.tokens, 0),
            "finish_reason": finish_reason(&whole.finished.stop, called),
        });
        match self.endpoint {
            Endpoint::Chat => choice["message"] = tools::message(server, &thought, pieces),
            Endpoint::Completions => choice["text"] = json!(whole.text()),
        }
        let mut response = self.head(server, false, json!([choice]));
        response["usage"] = usage(answer, &whole.finished);
        if self.has_hunch_field {
            response["hunch"] = hunch_field::of_whole(answer, whole);
        }
        response
    }

    fn logprobs_of_chunk(&self, server: &AnsweringServer, tokens: &[TokenEvent], from: usize) -> Value {
        if tokens.is_empty() { Value::Null } else { self.logprobs(server, tokens, from) }
    }

    /// Returns a chunk. Completions have only the content of `delta`.
    fn chunk(&self, server: &AnsweringServer, delta: Value, logprobs: Value, finish: Option<&str>) -> Value {
        let mut choice = json!({ "index": 0, "logprobs": logprobs, "finish_reason": finish });
        match self.endpoint {
            Endpoint::Chat => choice["delta"] = delta,
            Endpoint::Completions => choice["text"] = json!(delta["content"].as_str().unwrap_or_default()),
        }
        self.head(server, true, json!([choice]))
    }
}

/// Writes an answer as chunks.
pub(super) struct Chunks {
    pub(super) server: AnsweringServer,
    pub(super) shape: Shape,
    /// Splitter of thoughts, if they are sent apart from the text. Set when the answer begins.
    pub(super) thoughts: Option<ThoughtSplitter>,
    /// Reader of calls, if the answer may have some.
    pub(super) parser: Option<ToolCallParser>,
    /// Characters of the answer so far.
    pub(super) sent_chars: usize,
}

impl Chunks {
    /// Returns the deltas of some tokens: thoughts, then text and calls. With `last`, of all text that is held back too.
    fn deltas(&mut self, tokens: &[TokenEvent], last: bool) -> Vec<Value> {
        let mut text = text_of(tokens);
        let mut deltas = Vec::new();
        if let Some(thoughts) = &mut self.thoughts {
            let (thought, said) = split(thoughts, &text, last);
            if !thought.is_empty() {
                deltas.push(json!({ "reasoning_content": thought }));
            }
            text = said;
        }
        match &mut self.parser {
            Some(parser) => {
                let mut parts = parser.push(&text);
                if last {
                    parts.extend(parser.finish());
                }
                deltas.extend(tools::deltas(&self.server, parser, parts));
            }
            None if text.is_empty() => {}
            None => deltas.push(json!({ "content": text })),
        }
        deltas
    }

    /// Returns the chunks of deltas. The first one has the log probabilities of `tokens`.
    fn chunks(&mut self, deltas: Vec<Value>, tokens: &[TokenEvent]) -> Vec<Value> {
        let Self { server, shape, sent_chars, .. } = self;
        let mut logprobs = shape.logprobs_of_chunk(server, tokens, *sent_chars);
        *sent_chars += text_of(tokens).chars().count();
        let chunk = |delta| shape.chunk(server, delta, std::mem::take(&mut logprobs), None);
        deltas.into_iter().map(chunk).collect()
    }
}

impl sse::EventWriter for Chunks {
    fn begin(&mut self, answer: &mut RunningAnswer) -> Vec<Event> {
        self.thoughts = self.shape.thoughts(answer);
        if self.shape.endpoint == Endpoint::Completions {
            return Vec::new();
        }
        let role = json!({ "role": "assistant", "content": "" });
        vec![sse::data(&self.shape.chunk(&self.server, role, Value::Null, None))]
    }

    fn round(&mut self, answer: &RunningAnswer, round: &RoundEvent) -> Vec<Event> {
        let mut deltas = self.deltas(&round.tokens, false);
        let has_hunch_field = self.shape.has_hunch_field;
        let has_more = has_hunch_field || self.shape.logprobs.is_some() && !round.tokens.is_empty();
        if deltas.is_empty() && has_more {
            deltas.push(json!({ "content": "" }));
        }
        let mut chunks = self.chunks(deltas, &round.tokens);
        if let Some(first) = chunks.first_mut().filter(|_| has_hunch_field) {
            first["hunch"] = hunch_field::of_round(answer, round);
        }
        chunks.iter().map(sse::data).collect()
    }

    fn end(&mut self, answer: &RunningAnswer, finished: &Finished) -> Vec<Event> {
        let mut deltas = self.deltas(&finished.held, true);
        // The last delta comes with the reason for the end.
        deltas.extend(deltas.is_empty().then(|| json!({})));
        let mut chunks = self.chunks(deltas, &finished.held);
        let called = self.parser.as_ref().is_some_and(ToolCallParser::has_called);
        let Self { server, shape, .. } = self;
        if let Some(last) = chunks.last_mut() {
            last["choices"][0]["finish_reason"] = json!(finish_reason(&finished.stop, called));
            if shape.has_hunch_field {
                last["hunch"] = hunch_field::of_end(answer, finished);
            }
        }
        let mut events: Vec<Event> = chunks.iter().map(sse::data).collect();
        if shape.include_usage {
            let mut counts = shape.head(server, true, json!([]));
            counts["usage"] = usage(answer, finished);
            events.push(sse::data(&counts));
        }
        events.push(Event::default().data("[DONE]"));
        events
    }

    fn failed(&mut self, failure: &Failure) -> Vec<Event> {
        vec![sse::data(&failure.body(Protocol::OpenAi))]
    }
}
