//! Tools: what a model may call, conversations with calls, and the form in which a model writes a call.
//!
//! The form follows from the chat template. Reading calls is the job of `tool_calls`, rendering that of `template`.

use std::borrow::Cow;

use hunch_core::chat::ChatMessage;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// Name, of letters, digits, `_` and `-`.
    pub name: String,
    /// Description for the model.
    pub description: Option<String>,
    /// JSON schema of the arguments, an object.
    pub parameters: Value,
}

impl Tool {
    /// Returns the tool as chat templates expect it.
    pub(super) fn for_template(&self) -> Value {
        let mut function = json!({ "name": self.name });
        if let Some(description) = &self.description {
            function["description"] = json!(description);
        }
        function["parameters"] = self.parameters.clone();
        json!({ "type": "function", "function": function })
    }
}

/// A call of a tool, in an earlier answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Name of the tool.
    pub name: String,
    /// Arguments.
    pub arguments: Map<String, Value>,
}

/// A message of a conversation with tools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolMessage {
    /// A message of text.
    Text(ChatMessage),
    /// An answer with calls, at least one.
    Calls {
        /// Text before the calls.
        content: String,
        /// The calls.
        calls: Vec<ToolCall>,
    },
    /// The result of a call.
    Result {
        /// Number of the call in the conversation, from 0.
        call: usize,
        /// The result.
        content: String,
    },
}

/// A conversation with tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolChat {
    /// Messages, oldest first.
    pub messages: Vec<ToolMessage>,
    /// Tools that the model may call now.
    pub tools: Vec<Tool>,
}

impl ToolMessage {
    /// Returns the text of the message, without its calls.
    pub fn content(&self) -> &str {
        match self {
            Self::Text(message) => &message.content,
            Self::Calls { content, .. } | Self::Result { content, .. } => content,
        }
    }
}

/// Returns the text of an answer for readers, without the signs by which calls are found.
pub fn without_signs(text: &str) -> Cow<'_, str> {
    if text.contains(CALL_SIGN) { text.replace(CALL_SIGN, "").into() } else { text.into() }
}

/// Calls `change` with every string of a value, names of fields included, and returns the changed value.
pub(super) fn map_strings(value: &Value, change: &impl Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(change(text)),
        Value::Array(items) => items.iter().map(|item| map_strings(item, change)).collect(),
        Value::Object(fields) => Value::Object(map_fields(fields, change)),
        other => other.clone(),
    }
}

/// As [`map_strings`], of the fields of an object.
pub(super) fn map_fields(
    fields: &Map<String, Value>,
    change: &impl Fn(&str) -> String,
) -> Map<String, Value> {
    fields.iter().map(|(name, value)| (change(name), map_strings(value, change))).collect()
}

/// Form in which a model writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolForm {
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen, SmolLM3, Granite 4.
    Hermes,
    /// `<|tool_call|>[{"name": ..., "arguments": {...}}]`: Granite 3.
    Granite,
    /// `{"name": ..., "parameters": {...}}` as the whole answer: Llama 3 and 4.
    Llama,
    /// `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`: Mistral, until the third tokeniser.
    Mistral,
    /// `[TOOL_CALLS]name[ARGS]{...}`: Mistral, later tokenisers.
    MistralArgs,
    /// `<|tool_call|>{"name": ..., "arguments": {...}}<|/tool_call|>`: Phi-4-mini.
    Phi,
    /// `<tool_call>`, then `<function=NAME>`, `<parameter=KEY>`, a value and `</parameter>` on lines of their own, then
    /// `</function></tool_call>`: Qwen3-Coder, Qwen3.5.
    QwenCoder,
    /// `<tool_call>NAME`, then `<arg_key>KEY</arg_key>` and `<arg_value>VALUE</arg_value>` on lines of their own, then
    /// `</tool_call>`: GLM-4.5 and later.
    Glm,
    /// A message to `functions.NAME` in the harmony format: gpt-oss. In the text of an answer it is the marker
    /// [`HARMONY_CALL`], the name, `<|message|>` and an object.
    Harmony,
}

impl ToolForm {
    /// Returns the form that a chat template shows, or `None` if it shows none of these.
    pub fn of_template(source: &str) -> Option<Self> {
        let shows = |(_, markers): &&(Self, &[&str])| markers.iter().all(|marker| source.contains(marker));
        let (form, _) = FORMS.iter().find(shows)?;
        // Other forms with functions as tags have the markers of Hermes too.
        (*form != Self::Hermes || !source.contains("<function=")).then_some(*form)
    }

    /// Returns the marker before calls.
    pub(super) fn opening(self) -> Option<&'static str> {
        match self {
            Self::Hermes | Self::QwenCoder | Self::Glm => Some("<tool_call>"),
            Self::Granite | Self::Phi => Some("<|tool_call|>"),
            Self::Harmony => Some(HARMONY_CALL),
            Self::Llama => None,
            Self::Mistral | Self::MistralArgs => Some("[TOOL_CALLS]"),
        }
    }

    /// Returns the marker after a call.
    pub(super) fn closing(self) -> Option<&'static str> {
        match self {
            Self::Hermes | Self::QwenCoder => Some("</tool_call>"),
            Self::Phi => Some("<|/tool_call|>"),
            // The marker is part of a call of GLM.
            Self::Glm | Self::Granite | Self::Llama | Self::Mistral | Self::MistralArgs | Self::Harmony => {
                None
            }
        }
    }

    /// Returns `true` if an answer has one call at most, because the template of the model renders no more.
    pub fn is_single(self) -> bool {
        matches!(self, Self::Llama | Self::Harmony)
    }

    /// Returns all markers. They may be control tokens, which have no text of their own in an answer.
    pub fn markers(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &["<tool_call>", "</tool_call>"],
            Self::QwenCoder => &["<tool_call>", "</tool_call>", "</function>", "</parameter>"],
            Self::Glm => {
                &["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]
            }
            Self::Granite => &["<|tool_call|>"],
            Self::Phi => &["<|tool_call|>", "<|/tool_call|>"],
            Self::Llama => &[],
            // Shows calls of tools in the text. The other control tokens stay hidden.
            Self::Harmony => &["<|message|>"],
            Self::Mistral => &["[TOOL_CALLS]"],
            Self::MistralArgs => &["[TOOL_CALLS]", ARGUMENTS, CALL_ID],
        }
    }
}

/// Forms with the texts that their chat templates contain, all of them. The first form that fits is that of a template.
const FORMS: [(ToolForm, &[&str]); 11] = [
    (ToolForm::MistralArgs, &["[TOOL_CALLS]", ARGUMENTS]),
    (ToolForm::Mistral, &["[TOOL_CALLS]"]),
    (ToolForm::QwenCoder, &["<tool_call>", "<function=", "<parameter="]),
    (ToolForm::Glm, &["<tool_call>", "<arg_key>"]),
    (ToolForm::Hermes, &["<tool_call>"]),
    (ToolForm::Phi, &["<|/tool_call|>"]),
    // The template of Phi-4-mini shows where the tools are, and no call.
    (ToolForm::Phi, &["<|tool|>", "<|/tool|>"]),
    (ToolForm::Granite, &["<|tool_call|>"]),
    (ToolForm::Harmony, &["<|channel|>", "functions."]),
    (ToolForm::Llama, &["<|start_header_id|>", "\"parameters\""]),
    (ToolForm::Llama, &["<|header_start|>", "\"parameters\""]),
];

/// Sign of a marker that was a control token, where the text of the marker alone could be a quotation. Unicode has no
/// character here, and never will.
pub(super) const CALL_SIGN: char = '\u{fdd0}';
/// Marker of a call in the text of an answer in the harmony format: [`CALL_SIGN`] and the text of the control token.
pub(super) const HARMONY_CALL: &str = "\u{fdd0}<|call|>";
/// Marker between the name of a tool and its arguments.
pub(super) const ARGUMENTS: &str = "[ARGS]";
/// Marker between the name of a tool and an identifier that the model chose.
pub(super) const CALL_ID: &str = "[CALL_ID]";

/// Returns the name of a value's type in schemas.
pub(super) fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
