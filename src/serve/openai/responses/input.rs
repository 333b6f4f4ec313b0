//! Input of `/v1/responses`: the items of a conversation, and the tools.

use hunch_core::chat::Role;
use hunch_model::text::ToolCall;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::super::super::body::{Fields, TextContent, read_object};
use super::super::super::errors::Failure;
use super::super::super::tools::{History, ToolChoice, Tools};
use super::super::tools::{choice_of, read_call, tool};

/// Types of content with text.
const TEXTS: [&str; 3] = ["input_text", "output_text", "text"];

/// Remedy for an item or a tool that needs OpenAI's servers.
const FUNCTIONS: &str = "Use tools of the type function, which your program runs.";

#[derive(Deserialize)]
struct Input {
    input: Value,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    content: TextContent,
}

#[derive(Deserialize)]
struct Call {
    call_id: String,
    name: String,
    /// JSON in a string.
    arguments: String,
}

#[derive(Deserialize)]
struct CallOutput {
    call_id: String,
    output: TextContent,
}

/// Reads the input into the history.
///
/// # Errors
/// If it is empty, or an item is invalid or not supported.
pub(super) fn read(fields: &mut Fields, history: &mut History) -> Result<(), Failure> {
    let items = match fields.take::<Input>(&["input"])?.input {
        Value::String(text) => {
            history.text(Role::User, text);
            return Ok(());
        }
        Value::Array(items) => items,
        _ => {
            let message = "`input` is not a text or an array of items. Send one of both.";
            return Err(Failure::of_param("input", message));
        }
    };
    if items.is_empty() {
        return Err(Failure::of_param("input", "`input` is empty. Send at least one item."));
    }
    let mut reader = ItemReader { history, answer: None };
    for (i, item) in items.into_iter().enumerate() {
        let path = format!("input[{i}]");
        let Value::Object(item) = item else {
            let message = format!("`{path}` is not an object. Send one.");
            return Err(Failure::of_param(&path, message));
        };
        reader.item(item, &path)?;
    }
    reader.end_answer();
    Ok(())
}

/// An answer of the conversation: its texts and calls, which are items of their own here.
#[derive(Default)]
struct PastAnswer {
    text: String,
    calls: Vec<(String, ToolCall)>,
}

/// Reader of items.
struct ItemReader<'a> {
    history: &'a mut History,
    /// Answer that further items may belong to.
    answer: Option<PastAnswer>,
}

impl ItemReader<'_> {
    /// Adds the answer so far to the history.
    fn end_answer(&mut self) {
        match self.answer.take() {
            None => {}
            Some(PastAnswer { text, calls }) if calls.is_empty() => self.history.text(Role::Assistant, text),
            Some(PastAnswer { text, calls }) => self.history.calls(text, calls),
        }
    }

    /// Reads an item at a path of the body.
    fn item(&mut self, item: Map<String, Value>, path: &str) -> Result<(), Failure> {
        let refuse = |message: String| Err(Failure::of_param(&format!("{path}.type"), message));
        let kind = item.get("type").filter(|kind| !kind.is_null()).cloned();
        let kind = kind.unwrap_or_else(|| "message".into());
        match kind.as_str() {
            Some("message") => self.message(read_object(item, path)?, path),
            Some("function_call") => {
                let Call { call_id, name, arguments } = read_object(item, path)?;
                let call = read_call(name, &arguments, &format!("{path}.arguments"))?;
                self.answer.get_or_insert_default().calls.push((call_id, call));
                Ok(())
            }
            Some("function_call_output") => {
                let CallOutput { call_id, output } = read_object(item, path)?;
                self.end_answer();
                let output = output.into_text_of(&TEXTS, &format!("{path}.output"))?;
                self.history.result(&call_id, output, &format!("{path}.call_id"))
            }
            // Chat templates leave out earlier thoughts.
            Some("reasoning") => Ok(()),
            Some("item_reference") => {
                refuse(format!("`{path}` refers to a stored item. Nothing is stored. Send the item itself."))
            }
            _ => refuse(format!("`{path}` has the type {kind}, which is not supported. {FUNCTIONS}")),
        }
    }

    fn message(&mut self, message: Message, path: &str) -> Result<(), Failure> {
        let Message { role, content } = message;
        let text = content.into_text_of(&TEXTS, &format!("{path}.content"))?;
        let role = match role.as_str() {
            "system" | "developer" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            other => {
                let message = format!(
                    "The role \"{other}\" is not supported. Use system, developer, user or assistant."
                );
                return Err(Failure::of_param(&format!("{path}.role"), message));
            }
        };
        match &mut self.answer {
            // As in chats, an answer has one text.
            Some(answer) if role == Role::Assistant => {
                // A message that continues after a call is one text.
                if answer.calls.is_empty() && !answer.text.is_empty() && !text.is_empty() {
                    answer.text += "\n\n";
                }
                answer.text += &text;
            }
            _ => {
                self.end_answer();
                match role {
                    Role::Assistant => self.answer = Some(PastAnswer { text, calls: Vec::new() }),
                    role => self.history.text(role, text),
                }
            }
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct ToolFields {
    #[serde(default)]
    tools: Vec<ToolEntry>,
    tool_choice: Option<Choice>,
    parallel_tool_calls: Option<bool>,
}

/// A tool. `strict` is not read: a call that is required follows its schema, and a free one does not.
#[derive(Deserialize)]
struct ToolEntry {
    #[serde(rename = "type")]
    kind: String,
    name: Option<String>,
    description: Option<String>,
    parameters: Option<Value>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected none, auto, required, or an object with the name of a function")]
enum Choice {
    Mode(String),
    Tool {
        #[serde(rename = "type")]
        kind: String,
        name: Option<String>,
    },
}

/// Reads the tools of a request.
///
/// # Errors
/// If a field is invalid, or a tool is not a function.
pub(super) fn read_tools(fields: &mut Fields) -> Result<Tools, Failure> {
    let ToolFields { tools, tool_choice, parallel_tool_calls } =
        fields.take(&["tools", "tool_choice", "parallel_tool_calls"])?;
    let tools = tools.into_iter().enumerate().map(|(i, entry)| {
        let ToolEntry { kind, name, description, parameters } = entry;
        match (kind.as_str(), name) {
            ("function", Some(name)) => Ok(tool(name, description, parameters)),
            ("function", None) => {
                Err(Failure::of_param("tools", format!("`tools[{i}]` has no `name`. Add it.")))
            }
            (kind, _) => {
                let message =
                    format!("`tools[{i}]` has the type \"{kind}\", which is not supported. {FUNCTIONS}");
                Err(Failure::of_param("tools", message))
            }
        }
    });
    let tools = tools.collect::<Result<Vec<_>, _>>()?;
    let choice = match tool_choice {
        None => ToolChoice::Auto,
        Some(Choice::Mode(mode)) => choice_of(&mode)?,
        Some(Choice::Tool { kind, name }) => match (kind.as_str(), name) {
            ("function", Some(name)) => ToolChoice::Named(name),
            ("function", None) => {
                let message = "`tool_choice` has no `name`. Add that of a function.";
                return Err(Failure::of_param("tool_choice", message));
            }
            (kind, _) => {
                let message = format!(
                    "`tool_choice` has the type \"{kind}\", which is not supported. \
                     Choose none, auto, required or a function."
                );
                return Err(Failure::of_param("tool_choice", message));
            }
        },
    };
    Tools::new(tools, choice, parallel_tool_calls.unwrap_or(true))
}
