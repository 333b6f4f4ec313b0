//! Tools in the protocol of OpenAI: the fields of a request, and calls in answers of chats.

use hunch_core::chat::Role;
use hunch_model::text::{Tool, ToolCall, ToolCallParser, ToolPart};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::Server;
use super::super::body::{Fields, TextContent};
use super::super::errors::Failure;
use super::super::tools::{AnswerPiece, History, ToolChoice, Tools, past_call};

#[derive(Deserialize)]
struct ToolFields {
    #[serde(default)]
    tools: Vec<ToolEntry>,
    tool_choice: Option<Choice>,
    parallel_tool_calls: Option<bool>,
}

#[derive(Deserialize)]
struct ToolEntry {
    #[serde(rename = "type")]
    kind: String,
    function: Option<Function>,
}

/// A function. `strict` is not read: a call that is required follows its schema, and a free one does not.
#[derive(Deserialize)]
struct Function {
    name: String,
    description: Option<String>,
    parameters: Option<Value>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected none, auto, required, or an object with a function")]
enum Choice {
    Mode(String),
    Named { function: NamedFunction },
}

#[derive(Deserialize)]
struct NamedFunction {
    name: String,
}

/// Reads the tools of a request.
///
/// # Errors
/// If a field is invalid.
pub(super) fn read(fields: &mut Fields) -> Result<Tools, Failure> {
    let ToolFields { tools, tool_choice, parallel_tool_calls } =
        fields.take(&["tools", "tool_choice", "parallel_tool_calls"])?;
    let tools = tools.into_iter().enumerate().map(|(i, entry)| match (entry.kind.as_str(), entry.function) {
        ("function", Some(Function { name, description, parameters })) => {
            Ok(tool(name, description, parameters))
        }
        ("function", None) => {
            Err(Failure::of_param("tools", format!("`tools[{i}]` has no `function`. Add it.")))
        }
        (kind, _) => {
            let message =
                format!("`tools[{i}]` has the type \"{kind}\", which is not supported. Use function.");
            Err(Failure::of_param("tools", message))
        }
    });
    let tools = tools.collect::<Result<Vec<_>, _>>()?;
    let choice = match tool_choice {
        None => ToolChoice::Auto,
        Some(Choice::Named { function }) => ToolChoice::Named(function.name),
        Some(Choice::Mode(mode)) => choice_of(&mode)?,
    };
    Tools::new(tools, choice, parallel_tool_calls.unwrap_or(true))
}

/// Returns a function as a tool. Absent parameters mean that it takes none.
pub(super) fn tool(name: String, description: Option<String>, parameters: Option<Value>) -> Tool {
    let none = || json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let parameters = parameters.filter(|given| !given.is_null()).unwrap_or_else(none);
    Tool { name, description, parameters }
}

/// Reads a choice that names no function.
///
/// # Errors
/// If it is unknown.
pub(super) fn choice_of(mode: &str) -> Result<ToolChoice, Failure> {
    match mode {
        "none" => Ok(ToolChoice::None),
        "auto" => Ok(ToolChoice::Auto),
        "required" => Ok(ToolChoice::Required),
        other => {
            let message = format!("`tool_choice` is \"{other}\". Choose none, auto, required or a function.");
            Err(Failure::of_param("tool_choice", message))
        }
    }
}

/// A message of a request.
#[derive(Deserialize)]
pub(super) struct Message {
    role: String,
    content: Option<TextContent>,
    #[serde(default)]
    tool_calls: Option<Vec<CallEntry>>,
    tool_call_id: Option<String>,
}

#[derive(Deserialize)]
struct CallEntry {
    id: String,
    function: CalledFunction,
}

#[derive(Deserialize)]
struct CalledFunction {
    name: String,
    /// JSON in a string.
    arguments: String,
}

/// Adds message number `i` to the history.
///
/// # Errors
/// If the message is invalid.
pub(super) fn add_message(history: &mut History, i: usize, message: Message) -> Result<(), Failure> {
    let param = |field: &str| format!("messages[{i}].{field}");
    let Message { role, content, tool_calls, tool_call_id } = message;
    let calls = tool_calls.unwrap_or_default();
    if !calls.is_empty() && role != "assistant" {
        let message = format!("Message {i} has calls, but its role is \"{role}\". Use assistant.");
        return Err(Failure::of_param(&param("tool_calls"), message));
    }
    let content = content.map(|content| content.into_text(&param("content"))).transpose()?;
    let required = || {
        content.clone().ok_or_else(|| {
            Failure::of_param(&param("content"), format!("Message {i} has no content. Send a text."))
        })
    };
    match role.as_str() {
        "system" | "developer" => history.text(Role::System, required()?),
        "user" => history.text(Role::User, required()?),
        "assistant" if calls.is_empty() => history.text(Role::Assistant, required()?),
        "assistant" => {
            let calls = calls.into_iter().map(|CallEntry { id, function }| {
                Ok((id, read_call(function.name, &function.arguments, &param("tool_calls"))?))
            });
            history.calls(content.unwrap_or_default(), calls.collect::<Result<_, Failure>>()?);
        }
        "tool" => {
            let id = tool_call_id.ok_or_else(|| {
                let message = format!("Message {i} has no `tool_call_id`. Send the ID of the call.");
                Failure::of_param(&param("tool_call_id"), message)
            })?;
            history.result(&id, required()?, &param("tool_call_id"))?;
        }
        other => {
            let message = format!(
                "The role \"{other}\" is not supported. Use system, developer, user, assistant or tool."
            );
            return Err(Failure::of_param(&param("role"), message));
        }
    }
    Ok(())
}

/// Reads a call of an earlier answer, whose arguments are JSON in a string.
///
/// # Errors
/// If the name is invalid, or the arguments are not an object.
pub(super) fn read_call(name: String, arguments: &str, param: &str) -> Result<ToolCall, Failure> {
    let text = if arguments.trim().is_empty() { "{}" } else { arguments };
    let arguments = serde_json::from_str::<Map<String, Value>>(text).map_err(|error| {
        let message =
            format!("The arguments of a call of \"{name}\" are not a JSON object ({error}). Correct them.");
        Failure::of_param(param, message)
    })?;
    past_call(name, arguments, param)
}

/// Returns the message of a whole answer with its thoughts.
pub(super) fn message(server: &Server, thought: &str, pieces: Vec<AnswerPiece>) -> Value {
    let (mut text, mut calls) = (String::new(), Vec::new());
    for piece in pieces {
        match piece {
            AnswerPiece::Text(part) => text.push_str(&part),
            AnswerPiece::Call { name, arguments } => calls.push(json!({
                "id": server.response_id("call"),
                "type": "function",
                "function": { "name": name, "arguments": arguments },
            })),
        }
    }
    let content = if text.is_empty() && !calls.is_empty() { Value::Null } else { json!(text) };
    let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
    if !thought.is_empty() {
        message["reasoning_content"] = json!(thought);
    }
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    message
}

/// Returns the deltas of parts of a streamed answer. `parser` has found them.
pub(super) fn deltas(server: &Server, parser: &ToolCallParser, parts: Vec<ToolPart>) -> Vec<Value> {
    let begun = parts.iter().filter(|part| matches!(part, ToolPart::Begin(_))).count();
    // Calls so far, without those that begin here.
    let mut calls = parser.calls() - begun;
    let delta = |part| match part {
        ToolPart::Text(text) => Some(json!({ "content": text })),
        ToolPart::Begin(name) => {
            calls += 1;
            let call = json!({
                "index": calls - 1,
                "id": server.response_id("call"),
                "type": "function",
                "function": { "name": name, "arguments": "" },
            });
            Some(json!({ "tool_calls": [call] }))
        }
        ToolPart::Arguments(text) => {
            let call = json!({ "index": calls.saturating_sub(1), "function": { "arguments": text } });
            Some(json!({ "tool_calls": [call] }))
        }
        ToolPart::End { .. } => None,
    };
    parts.into_iter().filter_map(delta).collect()
}
