//! The protocol of Anthropic: `/v1/messages` and `/v1/messages/count_tokens`.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use axum::response::sse::Event;
use hunch_core::chat::{ChatMessage, Role};
use hunch_model::text::{AnswerFormat, EncodeOptions};
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{self, Ask, RunningAnswer};
use super::body::{self, Content, Fields, is_nothing};
use super::errors::{Failure, Protocol, json_response};
use super::{Server, hunch_field, sse};
use crate::event::{RoundEvent, StopReason, TokenEvent};
use crate::generate::{Finished, Prompt};

#[derive(Deserialize)]
struct ConversationFields {
    model: Option<String>,
    system: Option<Content>,
    messages: Vec<Message>,
}

impl ConversationFields {
    const NAMES: [&str; 3] = ["model", "system", "messages"];
}

#[derive(Deserialize)]
struct Message {
    role: String,
    content: Content,
}

#[derive(Deserialize)]
struct Settings {
    max_tokens: usize,
    #[serde(default)]
    stop_sequences: Vec<String>,
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    hunch: bool,
}

impl Settings {
    const NAMES: [&str; 4] = ["max_tokens", "stop_sequences", "stream", "hunch"];
}

#[derive(Deserialize)]
struct Output {
    output_config: Option<OutputConfig>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OutputConfig {
    format: Option<Format>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Format {
    JsonSchema { schema: Value },
}

/// Answers `/v1/messages`.
pub(super) async fn messages(server: Arc<Server>, request: Request) -> Result<Response, Failure> {
    let mut fields = body::read(&server, request).await?;
    let prompt = prompt(&server, &mut fields)?;
    let settings: Settings = fields.take(&Settings::NAMES)?;
    refuse_unsupported(&mut fields)?;
    let format = format(&mut fields)?;
    let plan = body::plan(&server, &mut fields, settings.stop_sequences)?;
    fields.finish()?;
    let id = server.response_id("msg");
    let ask = Ask { prompt, plan, max_tokens: Some(settings.max_tokens), format };
    let mut answer = answer::start(&server, ask).await?;
    if settings.stream {
        return Ok(sse::respond(answer, Events { server, id, has_hunch_field: settings.hunch }));
    }
    let whole = answer.whole().await?;
    let (reason, sequence) = stop(&whole.finished);
    let mut response = message(&server, &id, json!([{ "type": "text", "text": whole.text() }]));
    response["stop_reason"] = json!(reason);
    response["stop_sequence"] = json!(sequence);
    response["usage"] = usage(&answer, whole.finished.stats.generated_tokens);
    if settings.hunch {
        response["hunch"] = hunch_field::of_whole(&server, &answer, &whole);
    }
    Ok(json_response(StatusCode::OK, &response))
}

/// Answers `/v1/messages/count_tokens`.
pub(super) async fn count_tokens(server: Arc<Server>, request: Request) -> Result<Response, Failure> {
    let mut fields = body::read(&server, request).await?;
    let prompt = prompt(&server, &mut fields)?;
    refuse_unsupported(&mut fields)?;
    format(&mut fields)?;
    fields.finish()?;
    let encoded = answer::encode(&server, prompt, server.plan.thinking, None).await?;
    Ok(json_response(StatusCode::OK, &json!({ "input_tokens": encoded.ids.len() })))
}

/// Reads the format of the answer.
fn format(fields: &mut Fields) -> Result<Option<AnswerFormat>, Failure> {
    let Output { output_config } = fields.take(&["output_config"])?;
    Ok(output_config
        .and_then(|config| config.format)
        .map(|Format::JsonSchema { schema }| AnswerFormat::JsonSchema(schema)))
}

fn refuse_unsupported(fields: &mut Fields) -> Result<(), Failure> {
    fields.ignore(&["metadata", "service_tier", "cache_control"]);
    fields.refuse("tools", is_nothing, "Remove it, or describe the tools in the prompt.")?;
    fields.refuse("tool_choice", |choice| choice["type"] == "none", "Remove it.")?;
    fields.refuse("thinking", |thinking| thinking["type"] == "disabled", "Remove it.")?;
    fields.refuse("mcp_servers", is_nothing, "Remove it.")?;
    fields.refuse("container", is_nothing, "Remove it.")
}

/// Reads model, system prompt and messages. A last message of the assistant is the start of the answer.
fn prompt(server: &Server, fields: &mut Fields) -> Result<Prompt, Failure> {
    let conversation: ConversationFields = fields.take(&ConversationFields::NAMES)?;
    server.check_model(conversation.model.as_deref())?;
    let mut messages = Vec::new();
    if let Some(system) = conversation.system {
        messages.push(ChatMessage { role: Role::System, content: system.into_text("system")? });
    }
    if conversation.messages.is_empty() {
        return Err(Failure::of_param("messages", "`messages` is empty. Send at least one message."));
    }
    for (i, message) in conversation.messages.into_iter().enumerate() {
        let role = match message.role.as_str() {
            "user" => Role::User,
            "assistant" => Role::Assistant,
            other => {
                let message = format!(
                    "The role \"{other}\" is not supported. Use user or assistant, and `system` for instructions."
                );
                return Err(Failure::of_param(&format!("messages[{i}].role"), message));
            }
        };
        let content = message.content.into_text(&format!("messages[{i}].content"))?;
        messages.push(ChatMessage { role, content });
    }
    match messages.pop_if(|last| last.role == Role::Assistant) {
        Some(begun) => {
            let options = EncodeOptions { parse_special: false, add_bos: false };
            let ids = server.encoder.tokenizer().encode(&begun.content, options)?;
            Ok(Prompt::Continued(messages, ids))
        }
        None => Ok(Prompt::Chat(messages)),
    }
}

fn stop(finished: &Finished) -> (&'static str, Option<&str>) {
    match finished.stop {
        StopReason::MaxTokens => ("max_tokens", None),
        StopReason::ContextFull => ("model_context_window_exceeded", None),
        StopReason::StopString => ("stop_sequence", finished.stop_string.as_deref()),
        StopReason::EndOfTurn | StopReason::Cancelled => ("end_turn", None),
    }
}

fn usage(answer: &RunningAnswer, generated: u32) -> Value {
    json!({ "input_tokens": answer.prompt_tokens, "output_tokens": generated })
}

fn message(server: &Server, id: &str, content: Value) -> Value {
    json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": server.model,
        "content": content,
        "stop_reason": null,
        "stop_sequence": null,
    })
}

/// Writes an answer as the events of a message.
struct Events {
    server: Arc<Server>,
    id: String,
    has_hunch_field: bool,
}

/// Returns an event named after the type of its data.
fn event(value: &Value) -> Event {
    sse::data(value).event(value["type"].as_str().unwrap_or("message"))
}

impl Events {
    /// Returns the event of some tokens, or `None` if it would be empty.
    fn delta(&self, tokens: &[TokenEvent], hunch_field: impl FnOnce() -> Value) -> Option<Event> {
        let text: String = tokens.iter().map(|token| token.text.as_str()).collect();
        if text.is_empty() && !self.has_hunch_field {
            return None;
        }
        let mut delta = json!({
            "type": "content_block_delta",
            "index": 0,
            "delta": { "type": "text_delta", "text": text },
        });
        if self.has_hunch_field {
            delta["hunch"] = hunch_field();
        }
        Some(event(&delta))
    }
}

impl sse::Writer for Events {
    fn begin(&mut self, answer: &RunningAnswer) -> Vec<Event> {
        let mut message = message(&self.server, &self.id, json!([]));
        message["usage"] = usage(answer, 0);
        let text = json!({ "type": "text", "text": "" });
        vec![
            event(&json!({ "type": "message_start", "message": message })),
            event(&json!({ "type": "content_block_start", "index": 0, "content_block": text })),
        ]
    }

    fn round(&mut self, _: &RunningAnswer, round: &RoundEvent) -> Vec<Event> {
        self.delta(&round.tokens, || hunch_field::of_round(round)).into_iter().collect()
    }

    fn end(&mut self, answer: &RunningAnswer, finished: &Finished) -> Vec<Event> {
        let mut events = Vec::new();
        if !finished.held.is_empty() {
            events.extend(self.delta(&finished.held, || hunch_field::of_tokens(&finished.held)));
        }
        let (reason, sequence) = stop(finished);
        let mut last = json!({
            "type": "message_delta",
            "delta": { "stop_reason": reason, "stop_sequence": sequence },
            "usage": usage(answer, finished.stats.generated_tokens),
        });
        if self.has_hunch_field {
            last["hunch"] = hunch_field::figures(&self.server, answer, finished);
        }
        events.extend([
            event(&json!({ "type": "content_block_stop", "index": 0 })),
            event(&last),
            event(&json!({ "type": "message_stop" })),
        ]);
        events
    }

    fn failed(&mut self, failure: &Failure) -> Vec<Event> {
        vec![event(&failure.body(Protocol::Anthropic))]
    }
}
