//! The endpoint `/v1/responses` of OpenAI, stateless: a request has the whole conversation, and nothing is stored.
//!
//! Requests are read here. Fields that chats have too are read by the module above.

mod events;
mod input;
mod output;
mod pieces;
mod text_tokens;

use std::sync::Arc;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use events::{ResponseEvents, Shape};
use hunch_core::chat::Role;
use hunch_model::text::AnswerFormat;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::answer::{self, Ask};
use super::super::body::{self, Fields, OneOrMany, is_nothing};
use super::super::errors::{Failure, json_response};
use super::super::tools::History;
use super::super::{Server, find_model, sse, unix_time};
use super::{
    FormatParam, IGNORED, StreamOptions, TemplateArguments, VERBOSITY, alternatives, answer_format,
    check_limit, thinking_of,
};
use crate::generate::GenerationPlan;
use output::OutputItems;

/// Fields of this endpoint that never change the answer. `max_tool_calls` counts tools that run at OpenAI.
const HARMLESS: [&str; 2] = ["max_tool_calls", "client_metadata"];

/// Value of `include` that asks for log probabilities.
const LOGPROBS: &str = "message.output_text.logprobs";
/// Value of `include` that asks for encrypted thoughts. Thoughts are sent as they are.
const ENCRYPTED: &str = "reasoning.encrypted_content";

/// Settings of a request.
#[derive(Deserialize)]
struct ResponseSettings {
    instructions: Option<String>,
    /// A negative number is no limit, as in chats.
    max_output_tokens: Option<i64>,
    #[serde(default)]
    stream: bool,
    #[serde(default, rename = "stream_options")]
    _stream_options: StreamOptions,
    stop: Option<OneOrMany>,
    #[serde(default)]
    include: Vec<String>,
    top_logprobs: Option<u32>,
    #[serde(default)]
    metadata: Map<String, Value>,
    #[serde(default)]
    hunch: bool,
}

impl ResponseSettings {
    const NAMES: [&str; 9] = [
        "instructions",
        "max_output_tokens",
        "stream",
        "stream_options",
        "stop",
        "include",
        "top_logprobs",
        "metadata",
        "hunch",
    ];

    /// Returns the number of alternatives for each token, if log probabilities are asked for.
    fn logprobs(&self) -> Result<Option<usize>, Failure> {
        let is_unknown = |name: &&String| ![LOGPROBS, ENCRYPTED].contains(&name.as_str());
        if let Some(other) = self.include.iter().find(is_unknown) {
            let message =
                format!("`include` has \"{other}\", which is not supported. Remove it, or use {LOGPROBS}.");
            return Err(Failure::of_param("include", message));
        }
        let wanted = self.include.iter().any(|name| name == LOGPROBS);
        alternatives(self.top_logprobs, wanted, &format!("`include`. Add \"{LOGPROBS}\" to it"))
    }
}

#[derive(Deserialize)]
struct Model {
    model: Option<String>,
}

/// Form of the answer, and the reasoning before it.
#[derive(Deserialize)]
struct Form {
    #[serde(default)]
    text: TextSettings,
    #[serde(default)]
    reasoning: Reasoning,
    #[serde(default)]
    chat_template_kwargs: TemplateArguments,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TextSettings {
    format: Option<Map<String, Value>>,
    verbosity: Option<String>,
}

/// Reasoning of a request. Thoughts are sent whole, so summaries are accepted and not written.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reasoning {
    effort: Option<String>,
    #[serde(rename = "summary")]
    _summary: Option<String>,
    #[serde(rename = "generate_summary")]
    _generate_summary: Option<String>,
}

/// Answers `/v1/responses`.
pub(in crate::serve) async fn create(server: Arc<Server>, request: Request) -> Result<Response, Failure> {
    let mut fields = body::read(&server, request).await?;
    let Model { model } = fields.take(&["model"])?;
    let server = find_model(server, model).await?;
    refuse_unsupported(&mut fields)?;
    let mut echo = Echo::of(&fields);
    let settings: ResponseSettings = fields.take(&ResponseSettings::NAMES)?;
    let logprobs = settings.logprobs()?;
    check_limit("max_output_tokens", settings.max_output_tokens)?;
    let mut history = History::default();
    if let Some(instructions) = settings.instructions.as_ref().filter(|text| !text.is_empty()) {
        history.text(Role::System, instructions.clone());
    }
    input::read(&mut fields, &mut history)?;
    let tools = input::read_tools(&mut fields)?;
    let Form { text, reasoning, chat_template_kwargs } =
        fields.take(&["text", "reasoning", "chat_template_kwargs"])?;
    let format = format(text)?;
    let thinking = thinking_of(&server, reasoning.effort, "reasoning.effort", chat_template_kwargs)?;
    let stop = settings.stop.map(OneOrMany::into_vec).unwrap_or_default();
    let plan = body::plan(&server, &mut fields, stop)?;
    fields.finish()?;
    let plan = GenerationPlan { thinking: thinking.or(plan.thinking), ..plan };
    echo.set("instructions", json!(settings.instructions));
    echo.set("metadata", json!(settings.metadata));
    echo.set("max_output_tokens", json!(settings.max_output_tokens));
    echo.set("top_logprobs", json!(settings.top_logprobs.unwrap_or(0)));
    echo.set("temperature", json!(decimal(plan.sampling.temperature)));
    echo.set("top_p", json!(decimal(plan.sampling.top_p)));
    let question = tools.question(history, Vec::new());
    let calling = tools.calling(&server, format.as_ref())?;
    let shape = Shape {
        id: server.item_id("resp"),
        created: unix_time(),
        model: server.model.name.clone(),
        echo: echo.0,
        has_hunch_field: settings.hunch,
    };
    // Thoughts are split off before calls are read.
    let parser = calling.as_ref().map(|calling| calling.parser.clone());
    let output = OutputItems::new(server.clone(), parser, logprobs);
    let ask = Ask {
        question,
        plan,
        max_tokens: settings.max_output_tokens.and_then(|tokens| usize::try_from(tokens).ok()),
        format,
        format_param: FormatParam::Text.name(),
        calling,
        thinking_budget: None,
    };
    if settings.stream {
        return sse::respond(server, ask, ResponseEvents::new(shape, output)).await;
    }
    let mut answer = answer::start(&server, ask).await?;
    let whole = answer.whole().await?;
    Ok(json_response(StatusCode::OK, &shape.whole(output, &answer, &whole)))
}

/// Reads the format of the answer.
fn format(text: TextSettings) -> Result<Option<AnswerFormat>, Failure> {
    if let Some(verbosity) = text.verbosity.filter(|verbosity| verbosity != "medium") {
        let message = format!("`text.verbosity` \"{verbosity}\" is not supported here. {VERBOSITY}");
        return Err(Failure::of_param("text.verbosity", message));
    }
    answer_format(text.format, FormatParam::Text)
}

/// Refuses parameters that would change the answer and are not supported.
fn refuse_unsupported(fields: &mut Fields) -> Result<(), Failure> {
    let stateless = "Nothing is stored. Send the whole conversation in `input`.";
    fields.ignore(&HARMLESS);
    // Echoed in the response.
    let ignored: Vec<&str> = IGNORED.into_iter().filter(|name| *name != "metadata").collect();
    fields.ignore(&ignored);
    fields.refuse("previous_response_id", is_nothing, stateless)?;
    fields.refuse("conversation", is_nothing, stateless)?;
    fields.refuse("prompt", is_nothing, "Send its text in `instructions` and `input`.")?;
    fields.refuse("background", is_nothing, "Set `stream` to true, or wait for the answer.")?;
    let shorten = "Use disabled, and shorten `input` yourself.";
    fields.refuse("truncation", |value| *value == "disabled", shorten)
}

/// Fields of a request that its response repeats.
struct Echo(Map<String, Value>);

impl Echo {
    /// Returns the fields that are repeated as they are, with OpenAI's defaults for absent ones.
    fn of(fields: &Fields) -> Self {
        let mut echo = Self(Map::new());
        let nested = |name: &str, field: &str| {
            let outer = fields.copy(name).unwrap_or_default();
            outer.get(field).cloned().filter(|value| !value.is_null())
        };
        let format = nested("text", "format").unwrap_or_else(|| json!({ "type": "text" }));
        echo.set("text", json!({ "format": format }));
        echo.set("reasoning", json!({ "effort": nested("reasoning", "effort"), "summary": null }));
        echo.set("tools", fields.copy("tools").unwrap_or_else(|| json!([])));
        echo.set("tool_choice", fields.copy("tool_choice").unwrap_or_else(|| json!("auto")));
        echo.set("parallel_tool_calls", fields.copy("parallel_tool_calls").unwrap_or(json!(true)));
        echo
    }

    fn set(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }
}

/// Returns the number that is written with the same digits.
fn decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}
