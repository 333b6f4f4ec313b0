//! The protocol of OpenAI: `/v1/chat/completions`, `/v1/completions` and `/v1/models`.

mod tools;

use std::sync::Arc;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use axum::response::sse::Event;
use hunch_core::chat::Thinking;
use hunch_core::session::TOP_TOKENS;
use hunch_core::token::TokenId;
use hunch_model::text::{AnswerFormat, Tokenizer, ToolCallParser, ToolPart};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::task::spawn_blocking;

use super::answer::{self, Ask, Calling, Question, RunningAnswer, Whole, text_of};
use super::body::{self, Fields, OneOrMany, is_nothing};
use super::errors::{Failure, FailureKind, Protocol, json_response};
use super::tools::{AnswerPiece, History, pieces};
use super::{Served, Server, find_model, hunch_field, sse, thinking};
use crate::event::{RoundEvent, StopReason, TokenEvent};
use crate::generate::{Finished, GenerationPlan, Prompt};

/// Log probability of a token that was not among the most likely ones, as OpenAI reports it.
const UNLIKELY: f64 = -9999.0;
/// Default length of a completion without a chat, as OpenAI's.
const COMPLETION_TOKENS: usize = 16;

/// Fields that never change the answer.
const IGNORED: [&str; 8] = [
    "user",
    "store",
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prediction",
];

/// Fields of both endpoints.
#[derive(Deserialize)]
struct Common {
    model: Option<String>,
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    stream_options: StreamOptions,
    stop: Option<OneOrMany>,
    response_format: Option<Map<String, Value>>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    #[serde(default)]
    hunch: bool,
}

impl Common {
    const NAMES: [&str; 8] = [
        "model",
        "stream",
        "stream_options",
        "stop",
        "response_format",
        "max_tokens",
        "max_completion_tokens",
        "hunch",
    ];
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
    /// Padding against observers of the network. It is not sent, and changes no text.
    #[serde(default, rename = "include_obfuscation")]
    _include_obfuscation: bool,
}

/// Reads the format of the answer.
///
/// A schema may also stand next to the type `json_object`, as llama.cpp has it. The name and description of a schema are
/// for the model, and it does not read them; all schemas are followed strictly.
///
/// # Errors
/// If the type is unknown, the schema is missing, or a field is not understood.
fn answer_format(given: Option<Map<String, Value>>) -> Result<Option<AnswerFormat>, Failure> {
    let Some(mut given) = given else { return Ok(None) };
    let refuse = |message: String| Err(Failure::of_param("response_format", message));
    let kind = given.shift_remove("type").unwrap_or_default();
    let format = match kind.as_str() {
        Some("text") => None,
        Some("json_object") => {
            Some(given.shift_remove("schema").map_or(AnswerFormat::JsonObject, AnswerFormat::JsonSchema))
        }
        Some("json_schema") => {
            let Some(Value::Object(mut named)) = given.shift_remove("json_schema") else {
                return refuse(
                    "`response_format` has no `json_schema`. Add an object with a `schema`.".into(),
                );
            };
            let Some(schema) = named.shift_remove("schema") else {
                return refuse("`response_format.json_schema` has no `schema`. Add it.".into());
            };
            for name in ["name", "description", "strict"] {
                named.shift_remove(name);
            }
            if let Some(name) = named.keys().next() {
                return refuse(format!(
                    "`response_format.json_schema` has the unknown field `{name}`. Remove it."
                ));
            }
            Some(AnswerFormat::JsonSchema(schema))
        }
        _ => {
            return refuse(format!(
                "The type of `response_format` is {kind}. Choose text, json_object or json_schema."
            ));
        }
    };
    match given.keys().next() {
        Some(name) => refuse(format!("`response_format` has the unknown field `{name}`. Remove it.")),
        None => Ok(format),
    }
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<tools::Message>,
    #[serde(default)]
    logprobs: bool,
    top_logprobs: Option<u32>,
}

#[derive(Deserialize)]
struct Reasoning {
    reasoning_effort: Option<String>,
    #[serde(default)]
    chat_template_kwargs: TemplateArguments,
}

/// Variables of the chat template that a request may set.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TemplateArguments {
    enable_thinking: Option<bool>,
    thinking: Option<bool>,
    reasoning_effort: Option<String>,
}

#[derive(Deserialize)]
struct Completion {
    prompt: OneOrMany,
    logprobs: Option<Value>,
}

impl Completion {
    /// Returns the number of alternatives for each token, if log probabilities are asked for.
    fn alternatives(&self) -> Result<Option<usize>, Failure> {
        match &self.logprobs {
            None | Some(Value::Bool(false)) => Ok(None),
            Some(given) => match given.as_u64().and_then(|count| usize::try_from(count).ok()) {
                Some(count) if count <= TOP_TOKENS => Ok(Some(count)),
                _ => {
                    let message = format!("`logprobs` is {given}. Choose a number from 0 to {TOP_TOKENS}.");
                    Err(Failure::of_param("logprobs", message))
                }
            },
        }
    }
}

/// Endpoint of a response.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Endpoint {
    Chat,
    Completions,
}

/// Form and contents of a response.
struct Shape {
    endpoint: Endpoint,
    id: String,
    created: u64,
    include_usage: bool,
    has_hunch_field: bool,
    /// Number of alternatives for each token, if log probabilities were asked for.
    logprobs: Option<usize>,
}

/// Answers `/v1/chat/completions`.
pub(super) async fn chat(server: Arc<Server>, request: Request) -> Result<Response, Failure> {
    let mut fields = body::read(&server, request).await?;
    let mut common: Common = fields.take(&Common::NAMES)?;
    let server = find_model(server, common.model.clone()).await?;
    let chat: Chat = fields.take(&["messages", "logprobs", "top_logprobs"])?;
    let logprobs = alternatives(&chat)?;
    let mut history = History::default();
    for (i, message) in chat.messages.into_iter().enumerate() {
        tools::add_message(&mut history, i, message)?;
    }
    if history.is_empty() {
        return Err(Failure::of_param("messages", "`messages` is empty. Send at least one message."));
    }
    let tools = tools::read(&mut fields)?;
    let thinking = wanted_thinking(&server, &mut fields)?;
    refuse_unsupported(&mut fields)?;
    let question = tools.question(history, Vec::new());
    let format = answer_format(common.response_format.take())?;
    let calling = tools.calling(&server, format.as_ref())?;
    let asked = Asked { endpoint: Endpoint::Chat, question, thinking, format, calling, logprobs };
    respond(server, fields, common, asked).await
}

/// Answers `/v1/completions`.
pub(super) async fn completions(server: Arc<Server>, request: Request) -> Result<Response, Failure> {
    let mut fields = body::read(&server, request).await?;
    let mut common: Common = fields.take(&Common::NAMES)?;
    let server = find_model(server, common.model.clone()).await?;
    let completion: Completion = fields.take(&["prompt", "logprobs"])?;
    let logprobs = completion.alternatives()?;
    let mut prompts = completion.prompt.into_vec();
    let (Some(prompt), true) = (prompts.pop(), prompts.is_empty()) else {
        let message = "`prompt` must be one text. Send a request for each prompt.";
        return Err(Failure::of_param("prompt", message));
    };
    refuse_unsupported(&mut fields)?;
    fields.refuse("echo", is_nothing, "Add the prompt to the answer yourself.")?;
    fields.refuse("suffix", is_nothing, "Remove it.")?;
    fields.refuse("best_of", |value| *value == 1, "Remove it: one answer is generated.")?;
    let format = answer_format(common.response_format.take())?;
    let question = Question::Plain(Prompt::Raw(prompt));
    let asked =
        Asked { endpoint: Endpoint::Completions, question, thinking: None, format, calling: None, logprobs };
    respond(server, fields, common, asked).await
}

/// Returns the list of models. Has the fields of both protocols.
///
/// # Errors
/// If the folders could not be searched.
pub(super) async fn models(server: Arc<Server>) -> Result<Response, Failure> {
    let models = server.models.clone();
    let listed = spawn_blocking(move || models.list()).await.map_err(|_| {
        Failure::new(FailureKind::Internal, "The models could not be listed. This is a bug in Hunch.")
    })?;
    let objects: Vec<Value> =
        listed.iter().map(|model| model_object(&server, &model.name, model.context)).collect();
    let list = json!({
        "object": "list",
        "data": objects,
        "has_more": false,
        "first_id": listed.first().map(|model| &model.name),
        "last_id": listed.last().map(|model| &model.name),
    });
    Ok(json_response(StatusCode::OK, &list))
}

/// Returns a model by its id.
///
/// # Errors
/// If there is none.
pub(super) async fn model(server: Arc<Server>, id: String) -> Result<Response, Failure> {
    let Served { server, model } = find_model(server, Some(id)).await?;
    Ok(json_response(StatusCode::OK, &model_object(&server, &model.name, model.context)))
}

fn model_object(server: &Server, name: &str, context: usize) -> Value {
    json!({
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": server.created,
        "created_at": jiff::Timestamp::from_second(server.created as i64).unwrap_or_default().to_string(),
        "owned_by": "hunch",
        "context_length": context,
    })
}

/// A request, as the fields of one endpoint set it.
struct Asked {
    endpoint: Endpoint,
    question: Question,
    thinking: Option<Thinking>,
    format: Option<AnswerFormat>,
    /// Reader of calls. `None` if the answer has none.
    calling: Option<Calling>,
    /// Number of alternatives of each token, if log probabilities are asked for.
    logprobs: Option<usize>,
}

async fn respond(
    server: Served,
    mut fields: Fields,
    common: Common,
    asked: Asked,
) -> Result<Response, Failure> {
    let Asked { endpoint, question, thinking, format, calling, logprobs } = asked;
    let stop = common.stop.map(OneOrMany::into_vec).unwrap_or_default();
    let plan = body::plan(&server, &mut fields, stop)?;
    fields.finish()?;
    let plan = GenerationPlan { thinking: thinking.or(plan.thinking), ..plan };
    let default_tokens = (endpoint == Endpoint::Completions).then_some(COMPLETION_TOKENS);
    for (name, given) in
        [("max_completion_tokens", common.max_completion_tokens), ("max_tokens", common.max_tokens)]
    {
        if given == Some(0) {
            return Err(Failure::of_param(name, format!("`{name}` is 0. Choose 1 or more.")));
        }
    }
    let max_tokens = common.max_completion_tokens.or(common.max_tokens).or(default_tokens);
    let prefix = if endpoint == Endpoint::Chat { "chatcmpl" } else { "cmpl" };
    let shape = Shape {
        endpoint,
        id: server.response_id(prefix),
        created: super::unix_time(),
        include_usage: common.stream_options.include_usage,
        has_hunch_field: common.hunch,
        logprobs,
    };
    let ask = Ask { question, plan, max_tokens, format, calling, thinking_budget: None };
    let mut answer = answer::start(&server, ask).await?;
    let parser = answer.parser.take();
    if common.stream {
        return Ok(sse::respond(answer, Chunks { server, shape, parser, sent_chars: 0 }));
    }
    let whole = answer.whole().await?;
    Ok(json_response(StatusCode::OK, &shape.whole(&server, &answer, &whole, parser)))
}

/// Reads whether and how much the model thinks before its answer. `None` leaves it to the server.
///
/// # Errors
/// If an effort is unknown, or the chat template of the model has no switch for what is asked.
fn wanted_thinking(server: &Served, fields: &mut Fields) -> Result<Option<Thinking>, Failure> {
    let Reasoning { reasoning_effort, chat_template_kwargs } =
        fields.take(&["reasoning_effort", "chat_template_kwargs"])?;
    let param = if reasoning_effort.is_some() { "reasoning_effort" } else { "chat_template_kwargs" };
    let switch = chat_template_kwargs.enable_thinking.or(chat_template_kwargs.thinking);
    let effort = match reasoning_effort.or(chat_template_kwargs.reasoning_effort) {
        None => None,
        Some(name) => Some(thinking::effort(&name).ok_or_else(|| {
            let message = format!("`{param}` is \"{name}\". Choose none, low, medium or high.");
            Failure::of_param(param, message)
        })?),
    };
    let wanted = match switch {
        Some(false) => Some(Thinking::Off),
        Some(true) => effort.or(Some(Thinking::On)),
        None => effort,
    };
    thinking::supported(server, wanted, param)
}

/// Refuses parameters that would change the answer and are not supported.
fn refuse_unsupported(fields: &mut Fields) -> Result<(), Failure> {
    let unset = |value: &Value| is_nothing(value) || *value == "none" || *value == "auto";
    let remove = "Remove it.";
    fields.ignore(&IGNORED);
    fields.refuse("n", |value| *value == 1, "Send a request for each answer.")?;
    let elsewhere = "Use /v1/chat/completions for tools.";
    fields.refuse("tools", is_nothing, elsewhere)?;
    fields.refuse("tool_choice", unset, elsewhere)?;
    fields.ignore(&["parallel_tool_calls"]);
    fields.refuse("functions", is_nothing, "Use `tools`.")?;
    fields.refuse("function_call", unset, "Use `tool_choice`.")?;
    fields.refuse("modalities", |value| *value == json!(["text"]), "The server writes text only.")?;
    fields.refuse("audio", is_nothing, "The server writes text only.")?;
    fields.refuse("verbosity", |value| *value == "medium", "Ask for a short or long answer in a message.")?;
    fields.refuse("reasoning_effort", |value| *value == "none", remove)
}

/// Returns the number of alternatives for each token, if log probabilities are asked for.
fn alternatives(chat: &Chat) -> Result<Option<usize>, Failure> {
    let top = chat.top_logprobs.unwrap_or(0);
    if top as usize > TOP_TOKENS {
        let message = format!("`top_logprobs` is {top}. Choose a number from 0 to {TOP_TOKENS}.");
        return Err(Failure::of_param("top_logprobs", message));
    }
    if top > 0 && !chat.logprobs {
        let message = "`top_logprobs` needs `logprobs`. Set `logprobs` to true.";
        return Err(Failure::of_param("top_logprobs", message));
    }
    Ok(chat.logprobs.then_some(top as usize))
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
fn log_probabilities(tokenizer: &Tokenizer, tokens: &[TokenEvent], count: usize) -> Value {
    let entry = |id: TokenId, p: f32| {
        let bytes = tokenizer.token_bytes(id);
        json!({ "token": String::from_utf8_lossy(&bytes), "logprob": log_probability(p), "bytes": &bytes[..] })
    };
    let content = tokens.iter().map(|token| {
        let mut described = entry(token.id, token.confidence);
        let top = token.top.iter().take(count).map(|other| entry(other.0, other.2));
        described["top_logprobs"] = top.collect();
        described
    });
    json!({ "content": content.collect::<Vec<_>>() })
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

    fn head(&self, server: &Served, chunk: bool, choices: Value) -> Value {
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
    fn logprobs(&self, server: &Served, tokens: &[TokenEvent], from: usize) -> Value {
        let tokenizer = server.model.encoder.tokenizer();
        match (self.logprobs, self.endpoint) {
            (None, _) => Value::Null,
            (Some(count), Endpoint::Chat) => log_probabilities(tokenizer, tokens, count),
            (Some(count), Endpoint::Completions) => {
                completion_log_probabilities(tokenizer, tokens, count, from)
            }
        }
    }

    fn whole(
        &self,
        server: &Served,
        answer: &RunningAnswer,
        whole: &Whole,
        parser: Option<ToolCallParser>,
    ) -> Value {
        let text = whole.text();
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
            Endpoint::Chat => choice["message"] = tools::message(server, pieces),
            Endpoint::Completions => choice["text"] = json!(whole.text()),
        }
        let mut response = self.head(server, false, json!([choice]));
        response["usage"] = usage(answer, &whole.finished);
        if self.has_hunch_field {
            response["hunch"] = hunch_field::of_whole(answer, whole);
        }
        response
    }

    /// Returns a chunk with tokens that follow `from` characters of the answer, or `None` if it would be empty.
    fn chunk(&self, server: &Served, tokens: &[TokenEvent], from: usize) -> Option<Value> {
        let text = text_of(tokens);
        let empty =
            text.is_empty() && (tokens.is_empty() || self.logprobs.is_none()) && !self.has_hunch_field;
        let logprobs = || self.logprobs_of_chunk(server, tokens, from);
        (!empty).then(|| self.delta(server, json!({ "content": text }), &text, logprobs(), None))
    }

    fn logprobs_of_chunk(&self, server: &Served, tokens: &[TokenEvent], from: usize) -> Value {
        if tokens.is_empty() { Value::Null } else { self.logprobs(server, tokens, from) }
    }

    fn delta(
        &self,
        server: &Served,
        delta: Value,
        text: &str,
        logprobs: Value,
        finish: Option<&str>,
    ) -> Value {
        let mut choice = json!({ "index": 0, "logprobs": logprobs, "finish_reason": finish });
        match self.endpoint {
            Endpoint::Chat => choice["delta"] = delta,
            Endpoint::Completions => choice["text"] = json!(text),
        }
        self.head(server, true, json!([choice]))
    }
}

/// Writes an answer as chunks.
struct Chunks {
    server: Served,
    shape: Shape,
    /// Reader of calls, if the answer may have some.
    parser: Option<ToolCallParser>,
    /// Characters of the answer so far.
    sent_chars: usize,
}

impl Chunks {
    /// Returns the chunks of a round of an answer that may have calls. The first one has the field `hunch`.
    fn round_with_calls(
        &self,
        parser: &ToolCallParser,
        parts: Vec<ToolPart>,
        answer: &RunningAnswer,
        round: &RoundEvent,
    ) -> Vec<Event> {
        let Self { server, shape, .. } = self;
        let mut deltas = tools::deltas(server, parser, parts);
        let has_more = shape.has_hunch_field || shape.logprobs.is_some() && !round.tokens.is_empty();
        if deltas.is_empty() && has_more {
            deltas.push(json!({ "content": "" }));
        }
        let chunk = |(i, delta)| {
            let tokens = if i == 0 { &round.tokens[..] } else { &[] };
            let logprobs = shape.logprobs_of_chunk(server, tokens, self.sent_chars);
            let mut chunk = shape.delta(server, delta, "", logprobs, None);
            if i == 0 && shape.has_hunch_field {
                chunk["hunch"] = hunch_field::of_round(answer, round);
            }
            sse::data(&chunk)
        };
        deltas.into_iter().enumerate().map(chunk).collect()
    }
}

impl sse::Writer for Chunks {
    fn begin(&mut self, _: &RunningAnswer) -> Vec<Event> {
        if self.shape.endpoint == Endpoint::Completions {
            return Vec::new();
        }
        let role = json!({ "role": "assistant", "content": "" });
        vec![sse::data(&self.shape.delta(&self.server, role, "", Value::Null, None))]
    }

    fn round(&mut self, answer: &RunningAnswer, round: &RoundEvent) -> Vec<Event> {
        if let Some(mut parser) = self.parser.take() {
            let parts = parser.push(&text_of(&round.tokens));
            let events = self.round_with_calls(&parser, parts, answer, round);
            self.parser = Some(parser);
            return events;
        }
        let chunk = self.shape.chunk(&self.server, &round.tokens, self.sent_chars);
        self.sent_chars += text_of(&round.tokens).chars().count();
        let Some(mut chunk) = chunk else { return Vec::new() };
        if self.shape.has_hunch_field {
            chunk["hunch"] = hunch_field::of_round(answer, round);
        }
        vec![sse::data(&chunk)]
    }

    fn end(&mut self, answer: &RunningAnswer, finished: &Finished) -> Vec<Event> {
        let Self { server, shape, parser, sent_chars } = self;
        let mut text = text_of(&finished.held);
        let (mut events, mut called) = (Vec::new(), false);
        if let Some(parser) = parser {
            let mut parts = parser.push(&std::mem::take(&mut text));
            parts.extend(parser.finish());
            let deltas = tools::deltas(server, parser, parts).into_iter();
            events.extend(deltas.map(|delta| sse::data(&shape.delta(server, delta, "", Value::Null, None))));
            called = parser.has_called();
        }
        let delta = if text.is_empty() { json!({}) } else { json!({ "content": text }) };
        let reason = Some(finish_reason(&finished.stop, called));
        let logprobs = shape.logprobs_of_chunk(server, &finished.held, *sent_chars);
        let mut last = shape.delta(server, delta, &text, logprobs, reason);
        if shape.has_hunch_field {
            last["hunch"] = hunch_field::of_end(answer, finished);
        }
        events.push(sse::data(&last));
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
