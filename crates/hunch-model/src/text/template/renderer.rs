//! Rendering of a request with limits on time and output, in the child process or in this one.
//!
//! Processes and fallbacks do not belong here.

use minijinja::Environment;
use minijinja::value::Value;
use serde::{Deserialize, Serialize};

use super::{environment, time};
use crate::text::tools::{ToolCall, ToolForm, ToolMessage};
use hunch_core::chat::{ChatMessage, Role, Thinking};

const NAME: &str = "chat";

/// Maximum size of a template in bytes. Templates of models have a few thousand.
pub(super) const MAX_SOURCE: usize = 1 << 20;
/// Base limit of template instructions per rendering.
const BASE_FUEL: u64 = 2_000_000;
/// Additional template instructions per byte of the conversation.
const FUEL_PER_BYTE: u64 = 100;
/// Base limit of the output in bytes.
const BASE_OUTPUT: usize = 1 << 20;
/// Additional output in bytes per byte of the conversation.
const OUTPUT_PER_BYTE: usize = 8;

/// Template and conversation to render.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub source: String,
    pub bos: String,
    pub eos: String,
    /// Time for `strftime_now`, in seconds since 1970.
    pub time: Option<i64>,
    pub messages: Vec<ToolMessage>,
    /// Tools as templates expect them.
    pub tools: Vec<serde_json::Value>,
    pub add_generation_prompt: bool,
    /// Reasoning before the answer. `None` leaves it to the template.
    pub thinking: Option<Thinking>,
    /// `true` to return the names of the variables that the template reads, a line each, and render nothing.
    pub variables: bool,
}

impl Request {
    fn content_bytes(&self) -> usize {
        let of_messages: usize = self.messages.iter().map(message_bytes).sum();
        of_messages + self.tools.iter().map(|tool| tool.to_string().len()).sum::<usize>()
    }

    /// Returns the maximum output in bytes.
    pub(super) fn max_output(&self) -> usize {
        self.content_bytes().saturating_mul(OUTPUT_PER_BYTE).saturating_add(BASE_OUTPUT)
    }

    fn fuel(&self) -> u64 {
        (self.content_bytes() as u64).saturating_mul(FUEL_PER_BYTE).saturating_add(BASE_FUEL)
    }
}

/// Template renderer that caches the template of the last request.
#[derive(Debug, Default)]
pub(super) struct Renderer {
    parsed: Option<(String, Environment<'static>)>,
}

impl Renderer {
    /// Renders a request. Returns the reason on failure.
    pub(super) fn render(&mut self, request: &Request) -> Result<String, String> {
        if self.parsed.as_ref().is_none_or(|(source, _)| *source != request.source) {
            let environment = environment::environment(NAME, &request.source)
                .map_err(|error| format!("it cannot be parsed: {error}"))?;
            self.parsed = Some((request.source.clone(), environment));
        }
        let Some((_, environment)) = &mut self.parsed else { return Err("it cannot be parsed".into()) };
        if request.variables {
            let template = environment.get_template(NAME).map_err(|error| error.to_string())?;
            let mut names: Vec<String> = template.undeclared_variables(false).into_iter().collect();
            names.sort_unstable();
            return Ok(names.join("\n"));
        }
        environment.set_fuel(Some(request.fuel()));
        if let Some(seconds) = request.time {
            environment.add_function("strftime_now", move |format: String| time::strftime(seconds, &format));
        }
        let text = render(environment, request).map_err(|error| error.to_string())?;
        match text.len() <= request.max_output() {
            true => Ok(text),
            false => Err(format!("its output is too long ({} bytes)", text.len())),
        }
    }
}

fn render(environment: &Environment<'static>, request: &Request) -> Result<String, minijinja::Error> {
    let template = environment.get_template(NAME)?;
    let is_phi = ToolForm::of_template(&request.source) == Some(ToolForm::Phi);
    let messages = match is_phi && !template.undeclared_variables(false).contains("tools") {
        true => messages_of_phi(&request.messages, &request.tools),
        false => messages_for_template(&request.messages),
    };
    let tools = (!request.tools.is_empty()).then(|| request.tools.iter().map(value_of).collect::<Value>());
    // Templates test whether a switch is defined. DeepSeek and Granite call it `thinking`, gpt-oss has efforts. Seed-OSS has
    // a number of tokens, where 0 is off and none is no limit.
    let on = request.thinking.map_or(Value::UNDEFINED, |thinking| Value::from(thinking != Thinking::Off));
    let budget = if request.thinking == Some(Thinking::Off) { Value::from(0) } else { Value::UNDEFINED };
    let effort = request.thinking.and_then(Thinking::effort).map_or(Value::UNDEFINED, Value::from);
    template.render(minijinja::context! {
        messages => messages,
        add_generation_prompt => request.add_generation_prompt,
        bos_token => request.bos.as_str(),
        eos_token => request.eos.as_str(),
        tools => tools,
        documents => Value::from(()),
        enable_thinking => on.clone(),
        thinking => on,
        reasoning_effort => effort,
        thinking_budget => budget,
    })
}

fn message_bytes(message: &ToolMessage) -> usize {
    let calls = match message {
        ToolMessage::Calls { calls, .. } => &calls[..],
        _ => &[],
    };
    let arguments = |call: &ToolCall| {
        call.name.len() + serde_json::to_string(&call.arguments).map_or(0, |text| text.len())
    };
    message.content().len() + calls.iter().map(arguments).sum::<usize>()
}

/// Returns messages as templates expect them. Many test whether a field exists, so no message has fields without need.
fn messages_for_template(messages: &[ToolMessage]) -> Vec<Value> {
    let mut names: Vec<String> = Vec::new();
    let describe = |message: &ToolMessage| match message {
        ToolMessage::Text(ChatMessage { role, content }) => {
            minijinja::context! { role => role_name(*role), content => content.as_str() }
        }
        ToolMessage::Calls { content, calls } => {
            let describe = |call: &ToolCall| {
                let name = call.name.as_str();
                names.push(name.to_owned());
                let function = minijinja::context! { name, arguments => value_of_object(&call.arguments) };
                minijinja::context! { id => call_id(names.len() - 1), type => "function", function }
            };
            let tool_calls: Vec<Value> = calls.iter().map(describe).collect();
            minijinja::context! { role => "assistant", content => content.as_str(), tool_calls }
        }
        ToolMessage::Result { call, content } => {
            let name = names.get(*call).map_or("", String::as_str);
            minijinja::context! { role => "tool", content => content.as_str(), name, tool_call_id => call_id(*call) }
        }
    };
    messages.iter().map(describe).collect()
}

/// Returns messages for templates that read the tools from the system message and know no calls: Phi-4-mini. Calls and
/// results are written as Microsoft describes the tokens of that model.
fn messages_of_phi(messages: &[ToolMessage], tools: &[serde_json::Value]) -> Vec<Value> {
    let functions: Vec<_> = tools.iter().map(|tool| &tool["function"]).collect();
    let listed = || serde_json::to_string(&functions).unwrap_or_default();
    let system = |content: &str| match tools.is_empty() {
        true => minijinja::context! { role => "system", content },
        false => minijinja::context! { role => "system", content, tools => listed() },
    };
    let describe = |message: &ToolMessage| match message {
        ToolMessage::Text(ChatMessage { role: Role::System, content }) => system(content),
        ToolMessage::Text(ChatMessage { role, content }) => {
            minijinja::context! { role => role_name(*role), content => content.as_str() }
        }
        ToolMessage::Calls { content, calls } => {
            let call = |call: &ToolCall| {
                let call = serde_json::json!({ "name": call.name, "arguments": call.arguments });
                format!("<|tool_call|>{call}<|/tool_call|>")
            };
            let content = content.clone() + &calls.iter().map(call).collect::<String>();
            minijinja::context! { role => "assistant", content }
        }
        ToolMessage::Result { content, .. } => {
            minijinja::context! { role => "tool_response", content => content.as_str() }
        }
    };
    let has_system =
        matches!(messages.first(), Some(ToolMessage::Text(ChatMessage { role: Role::System, .. })));
    let added =
        (!has_system && !tools.is_empty()).then(|| system("You are a helpful assistant with some tools."));
    added.into_iter().chain(messages.iter().map(describe)).collect()
}

/// Converts JSON to a value of templates.
fn value_of(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(truth) => Value::from(*truth),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64()),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => items.iter().map(value_of).collect(),
        serde_json::Value::Object(fields) => value_of_object(fields),
    }
}

fn value_of_object(fields: &serde_json::Map<String, serde_json::Value>) -> Value {
    Value::from_pairs(fields.iter().map(|(name, value)| (name.as_str(), value_of(value))))
}

/// Returns the ID of a call. Templates of Mistral refuse all but nine letters and digits.
fn call_id(number: usize) -> String {
    format!("{number:09}")
}

/// Returns the name of a role in templates.
pub(super) fn role_name(role: Role) -> &'static str {
    match role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
    }
}
