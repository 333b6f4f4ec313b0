//! Tools in the protocol of Anthropic: the fields of a request, and blocks of content.

use hunch_core::chat::Role;
use hunch_model::text::Tool;
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
}

#[derive(Deserialize)]
struct ToolEntry {
    /// Absent or `custom`. Others run on the servers of Anthropic.
    #[serde(rename = "type")]
    kind: Option<String>,
    name: String,
    description: Option<String>,
    input_schema: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(rename = "type")]
    kind: String,
    name: Option<String>,
    disable_parallel_tool_use: Option<bool>,
}

/// Reads the tools of a request.
///
/// # Errors
/// If a field is invalid.
pub(super) fn read(fields: &mut Fields) -> Result<Tools, Failure> {
    let ToolFields { tools, tool_choice } = fields.take(&["tools", "tool_choice"])?;
    let tools = tools.into_iter().enumerate().map(|(i, entry)| {
        let ToolEntry { kind, name, description, input_schema } = entry;
        if let Some(kind) = kind.filter(|kind| kind != "custom") {
            let message =
                format!("`tools[{i}]` has the type \"{kind}\", which is not supported. Use custom.");
            return Err(Failure::of_param("tools", message));
        }
        let parameters = input_schema.ok_or_else(|| {
            Failure::of_param("tools", format!("`tools[{i}]` has no `input_schema`. Add it."))
        })?;
        Ok(Tool { name, description, parameters })
    });
    let tools = tools.collect::<Result<Vec<_>, _>>()?;
    let parallel = tool_choice.as_ref().is_none_or(|choice| choice.disable_parallel_tool_use != Some(true));
    let choice = match tool_choice {
        None => ToolChoice::Auto,
        Some(Choice { kind, name, .. }) => match (kind.as_str(), name) {
            ("auto", _) => ToolChoice::Auto,
            ("none", _) => ToolChoice::None,
            ("any", _) => ToolChoice::Required,
            ("tool", Some(name)) => ToolChoice::Named(name),
            ("tool", None) => {
                return Err(Failure::of_param(
                    "tool_choice",
                    "`tool_choice` has no `name`. Add that of a tool.",
                ));
            }
            (other, _) => {
                let message =
                    format!("The type of `tool_choice` is \"{other}\". Choose auto, any, tool or none.");
                return Err(Failure::of_param("tool_choice", message));
            }
        },
    };
    Tools::new(tools, choice, parallel)
}

/// A message of a request.
#[derive(Deserialize)]
pub(super) struct Message {
    role: String,
    content: MessageContent,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or an array of blocks")]
enum MessageContent {
    Text(String),
    Blocks(Vec<ContentBlock>),
}

/// A block of content: text, a call or its result.
#[derive(Deserialize)]
struct ContentBlock {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    id: Option<String>,
    name: Option<String>,
    input: Option<Map<String, Value>>,
    tool_use_id: Option<String>,
    content: Option<TextContent>,
    is_error: Option<bool>,
}

/// Adds message number `i` to the history.
///
/// # Errors
/// If the message is invalid.
pub(super) fn add_message(history: &mut History, i: usize, message: Message) -> Result<(), Failure> {
    let role = match message.role.as_str() {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        // Some clients send instructions within a conversation.
        "system" => Role::System,
        other => {
            let message = format!("The role \"{other}\" is not supported. Use user, assistant or system.");
            return Err(Failure::of_param(&format!("messages[{i}].role"), message));
        }
    };
    let blocks = match message.content {
        MessageContent::Text(text) => {
            history.text(role, text);
            return Ok(());
        }
        MessageContent::Blocks(blocks) => blocks,
    };
    let param = format!("messages[{i}].content");
    let (mut text, mut calls, mut has_results) = (String::new(), Vec::new(), false);
    for block in blocks {
        match (block.kind.as_str(), role) {
            ("text", _) => text.push_str(&required(block.text, "text", "text", &param)?),
            // Chat templates leave out earlier thoughts.
            ("thinking" | "redacted_thinking", Role::Assistant) => {}
            ("tool_use", Role::Assistant) => {
                let id = required(block.id, "id", "tool_use", &param)?;
                let name = required(block.name, "name", "tool_use", &param)?;
                calls.push((id, past_call(name, block.input.unwrap_or_default(), &param)?));
            }
            ("tool_result", Role::User) => {
                if !text.is_empty() {
                    history.text(role, std::mem::take(&mut text));
                }
                let id = required(block.tool_use_id, "tool_use_id", "tool_result", &param)?;
                let result = block.content.map(|content| content.into_text(&param)).transpose()?;
                let result = result.unwrap_or_default();
                // Chat templates have no sign for an error.
                let result = if block.is_error == Some(true) { format!("Error: {result}") } else { result };
                history.result(&id, result, &param)?;
                has_results = true;
            }
            (kind, _) => {
                let message = format!(
                    "`{param}` has a block of type \"{kind}\". Use text, tool_use in answers, and tool_result after them."
                );
                return Err(Failure::of_param(&param, message));
            }
        }
    }
    if !calls.is_empty() {
        history.calls(text, calls);
    } else if !text.is_empty() || !has_results {
        history.text(role, text);
    }
    Ok(())
}

fn required(field: Option<String>, name: &str, kind: &str, param: &str) -> Result<String, Failure> {
    field.ok_or_else(|| {
        Failure::of_param(param, format!("A block of type {kind} in `{param}` has no `{name}`."))
    })
}

/// Returns the content of a whole answer, with its thoughts.
pub(super) fn content(server: &Server, thought: String, pieces: Vec<AnswerPiece>) -> Value {
    let thought =
        (!thought.is_empty()).then(|| json!({ "type": "thinking", "thinking": thought, "signature": "" }));
    let block = |piece| match piece {
        AnswerPiece::Text(text) => json!({ "type": "text", "text": text }),
        AnswerPiece::Call { name, arguments } => {
            let input = serde_json::from_str::<Value>(&arguments).unwrap_or_else(|_| json!({}));
            json!({ "type": "tool_use", "id": server.response_id("toolu"), "name": name, "input": input })
        }
    };
    thought.into_iter().chain(pieces.into_iter().map(block)).collect()
}

/// Returns the block of a call that begins.
pub(super) fn begun_call(server: &Server, name: &str) -> Value {
    json!({ "type": "tool_use", "id": server.response_id("toolu"), "name": name, "input": {} })
}
