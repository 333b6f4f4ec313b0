//! The protocol of OpenAI: `/v1/chat/completions`, `/v1/completions`, `/v1/responses` and `/v1/models`.
//!
//! Requests of chats and completions are read here, with the fields that `/v1/responses` has too.

mod response;
pub(super) mod responses;
mod tools;

use std::sync::Arc;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use hunch_core::chat::Thinking;
use hunch_core::session::TOP_TOKENS;
use hunch_model::text::AnswerFormat;
use response::{Chunks, Endpoint, Shape};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::task::spawn_blocking;

use super::answer::{self, AnswerInput, Ask, Calling};
use super::body::{self, Fields, OneOrMany, is_nothing};
use super::errors::{Failure, FailureKind, json_response};
use super::tools::History;
use super::{AnsweringServer, Server, find_model, sse, thinking};
use crate::generate::{GenerationPlan, Prompt};

/// Default length of a completion without a chat, as OpenAI's.
const COMPLETION_TOKENS: usize = 16;

/// Remedy for a wish for shorter or longer answers.
const VERBOSITY: &str = "Ask for a short or long answer in a message.";

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

/// Fields of chats and completions.
#[derive(Deserialize)]
struct Common {
    model: Option<String>,
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    stream_options: StreamOptions,
    stop: Option<OneOrMany>,
    response_format: Option<Map<String, Value>>,
    /// A negative number is no limit, as in LM Studio and llama.cpp.
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
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
    include_usage: Option<bool>,
    /// Padding against observers of the network. It is not sent, and changes no text.
    #[serde(rename = "include_obfuscation")]
    _include_obfuscation: Option<bool>,
}

/// Parameter that sets the format of an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FormatParam {
    /// `response_format`, with a schema in the field `json_schema`.
    ResponseFormat,
    /// `text.format`, with a schema next to the type.
    Text,
}

impl FormatParam {
    fn name(self) -> &'static str {
        match self {
            Self::ResponseFormat => "response_format",
            Self::Text => "text.format",
        }
    }
}

/// Reads the format of the answer.
///
/// A schema may also stand next to the type `json_object`, as llama.cpp has it. The name and description of a schema are
/// for the model, and it does not read them; all schemas are followed strictly.
///
/// # Errors
/// If the type is unknown, the schema is missing, or a field is not understood.
fn answer_format(
    given: Option<Map<String, Value>>,
    param: FormatParam,
) -> Result<Option<AnswerFormat>, Failure> {
    let Some(mut given) = given else { return Ok(None) };
    let name = param.name();
    let refuse = |message: String| Err(Failure::of_param(name, message));
    let kind = given.shift_remove("type").unwrap_or_default();
    let format = match kind.as_str() {
        Some("text") => None,
        Some("json_object") => {
            Some(given.shift_remove("schema").map_or(AnswerFormat::JsonObject, AnswerFormat::JsonSchema))
        }
        Some("json_schema") => {
            let (mut named, place) = match param {
                FormatParam::Text => (std::mem::take(&mut given), name.to_owned()),
                FormatParam::ResponseFormat => match given.shift_remove("json_schema") {
                    Some(Value::Object(named)) => (named, format!("{name}.json_schema")),
                    _ => {
                        return refuse(format!(
                            "`{name}` has no `json_schema`. Add an object with a `schema`."
                        ));
                    }
                },
            };
            let Some(schema) = named.shift_remove("schema") else {
                return refuse(format!("`{place}` has no `schema`. Add it."));
            };
            for field in ["name", "description", "strict"] {
                named.shift_remove(field);
            }
            if let Some(field) = named.keys().next() {
                return refuse(format!("`{place}` has the unknown field `{field}`. Remove it."));
            }
            Some(AnswerFormat::JsonSchema(schema))
        }
        _ => {
            return refuse(format!(
                "The type of `{name}` is {kind}. Choose text, json_object or json_schema."
            ));
        }
    };
    match given.keys().next() {
        Some(field) => refuse(format!("`{name}` has the unknown field `{field}`. Remove it.")),
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

/// Answers `/v1/chat/completions`.
pub(super) async fn chat(server: Arc<Server>, request: Request) -> Result<Response, Failure> {
    let mut fields = body::read(&server, request).await?;
    let mut common: Common = fields.take(&Common::NAMES)?;
    let server = find_model(server, common.model.clone()).await?;
    let chat: Chat = fields.take(&["messages", "logprobs", "top_logprobs"])?;
    let logprobs = alternatives(chat.top_logprobs, chat.logprobs, "`logprobs`. Set `logprobs` to true")?;
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
    let format = answer_format(common.response_format.take(), FormatParam::ResponseFormat)?;
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
    let format = answer_format(common.response_format.take(), FormatParam::ResponseFormat)?;
    let question = AnswerInput::Plain(Prompt::Raw(prompt));
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
    let AnsweringServer { server, model } = find_model(server, Some(id)).await?;
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
    question: AnswerInput,
    thinking: Option<Thinking>,
    format: Option<AnswerFormat>,
    /// Reader of calls. `None` if the answer has none.
    calling: Option<Calling>,
    /// Number of alternatives of each token, if log probabilities are asked for.
    logprobs: Option<usize>,
}

async fn respond(
    server: AnsweringServer,
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
        check_limit(name, given)?;
    }
    let max_tokens = match common.max_completion_tokens.or(common.max_tokens) {
        None => default_tokens,
        Some(given) => usize::try_from(given).ok(),
    };
    let prefix = if endpoint == Endpoint::Chat { "chatcmpl" } else { "cmpl" };
    let shape = Shape {
        endpoint,
        id: server.response_id(prefix),
        created: super::unix_time(),
        include_usage: common.stream_options.include_usage == Some(true),
        has_hunch_field: common.hunch,
        logprobs,
    };
    // Thoughts are split off before calls are read.
    let parser = calling.as_ref().map(|calling| calling.parser.clone());
    let format_param = FormatParam::ResponseFormat.name();
    let ask = Ask { question, plan, max_tokens, format, format_param, calling, thinking_budget: None };
    if common.stream {
        let writer = Chunks { server: server.clone(), shape, thoughts: None, parser, sent_chars: 0 };
        return sse::respond(server, ask, writer).await;
    }
    let mut answer = answer::start(&server, ask).await?;
    let whole = answer.whole().await?;
    Ok(json_response(StatusCode::OK, &shape.whole(&server, &answer, &whole, parser)))
}

/// Refuses a limit of 0 tokens.
fn check_limit(name: &str, tokens: Option<i64>) -> Result<(), Failure> {
    match tokens {
        Some(0) => Err(Failure::of_param(name, format!("`{name}` is 0. Choose 1 or more."))),
        _ => Ok(()),
    }
}

/// Reads whether and how much the model thinks before its answer. `None` leaves it to the server.
///
/// # Errors
/// If an effort is unknown, or the chat template of the model has no switch for what is asked.
fn wanted_thinking(server: &AnsweringServer, fields: &mut Fields) -> Result<Option<Thinking>, Failure> {
    let Reasoning { reasoning_effort, chat_template_kwargs } =
        fields.take(&["reasoning_effort", "chat_template_kwargs"])?;
    thinking_of(server, reasoning_effort, "reasoning_effort", chat_template_kwargs)
}

/// As [`wanted_thinking`], for an effort in the parameter `effort_param`.
fn thinking_of(
    server: &AnsweringServer,
    effort: Option<String>,
    effort_param: &str,
    arguments: TemplateArguments,
) -> Result<Option<Thinking>, Failure> {
    let param = if effort.is_some() { effort_param } else { "chat_template_kwargs" };
    let switch = arguments.enable_thinking.or(arguments.thinking);
    let effort = match effort.or(arguments.reasoning_effort) {
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
    fields.refuse("verbosity", |value| *value == "medium", VERBOSITY)?;
    fields.refuse("reasoning_effort", |value| *value == "none", remove)
}

/// Returns the number of alternatives for each token, if log probabilities are `wanted`. `switch` says how to ask for
/// them.
fn alternatives(top: Option<u32>, wanted: bool, switch: &str) -> Result<Option<usize>, Failure> {
    let top = top.unwrap_or(0);
    if top as usize > TOP_TOKENS {
        let message = format!("`top_logprobs` is {top}. Choose a number from 0 to {TOP_TOKENS}.");
        return Err(Failure::of_param("top_logprobs", message));
    }
    if top > 0 && !wanted {
        return Err(Failure::of_param("top_logprobs", format!("`top_logprobs` needs {switch}.")));
    }
    Ok(wanted.then_some(top as usize))
}
