//! Tools: what a model may call, conversations with calls, and the form in which a model writes a call.
//!
//! The form follows from the chat template. Reading calls is the job of `tool_calls`, rendering that of `template`.

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
    /// `{"name": ..., "parameters": {...}}` as the whole answer: Llama 3.
    Llama,
    /// `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`: Mistral, until the third tokeniser.
    Mistral,
    /// `[TOOL_CALLS]name[ARGS]{...}`: Mistral, later tokenisers.
    MistralArgs,
}

impl ToolForm {
    /// Returns the form that a chat template shows, or `None` if it shows none of these.
    pub fn of_template(source: &str) -> Option<Self> {
        let has = |text: &str| source.contains(text);
        // Qwen3-Coder and GLM write arguments as tags of their own between the same markers.
        let has_tags = has("<function=") || has("<arg_key>");
        if has("[TOOL_CALLS]") {
            Some(if has("[ARGS]") { Self::MistralArgs } else { Self::Mistral })
        } else if has("<tool_call>") && !has_tags {
            Some(Self::Hermes)
        } else if has("<|tool_call|>") && !has_tags {
            Some(Self::Granite)
        } else if has("<|start_header_id|>") && has("\"parameters\"") {
            Some(Self::Llama)
        } else {
            None
        }
    }

    /// Returns the marker before calls.
    pub(super) fn opening(self) -> Option<&'static str> {
        match self {
            Self::Hermes => Some("<tool_call>"),
            Self::Granite => Some("<|tool_call|>"),
            Self::Llama => None,
            Self::Mistral | Self::MistralArgs => Some("[TOOL_CALLS]"),
        }
    }

    /// Returns the marker after a call.
    pub(super) fn closing(self) -> Option<&'static str> {
        (self == Self::Hermes).then_some("</tool_call>")
    }

    /// Returns all markers. They may be control tokens, which have no text of their own in an answer.
    pub fn markers(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &["<tool_call>", "</tool_call>"],
            Self::Granite => &["<|tool_call|>"],
            Self::Llama => &[],
            Self::Mistral => &["[TOOL_CALLS]"],
            Self::MistralArgs => &["[TOOL_CALLS]", ARGUMENTS, CALL_ID],
        }
    }
}

/// Marker between the name of a tool and its arguments.
pub(super) const ARGUMENTS: &str = "[ARGS]";
/// Marker between the name of a tool and an identifier that the model chose.
pub(super) const CALL_ID: &str = "[CALL_ID]";

/// Calls that an answer has to consist of.
#[derive(Clone, Debug, PartialEq)]
pub struct RequiredCalls {
    /// Form of the calls.
    pub form: ToolForm,
    /// Tools that may be called.
    pub tools: Vec<Tool>,
    /// `true` to allow more than one call.
    pub many: bool,
    /// Schema of an answer without calls. `None` if there has to be a call.
    pub otherwise: Option<Value>,
}

impl RequiredCalls {
    /// Returns a grammar in llguidance's dialect of Lark. `marker` writes a marker as an expression, and `schema` the
    /// JSON of a schema.
    pub(super) fn grammar(
        &self,
        marker: impl Fn(&str) -> String,
        schema: impl Fn(&Value) -> Value,
    ) -> String {
        let literal = |text: &str| Value::from(text).to_string();
        let open = self.form.opening().map(&marker).unwrap_or_default();
        let call = match self.form {
            ToolForm::Hermes => format!("{open} \"\\n\" body \"\\n\" {}", marker("</tool_call>")),
            ToolForm::MistralArgs => format!("{open} body"),
            ToolForm::Granite | ToolForm::Mistral | ToolForm::Llama => "body".to_owned(),
        };
        let many = self.many;
        let calls = match self.form {
            ToolForm::Hermes if many => "call (\"\\n\" call)*".to_owned(),
            ToolForm::MistralArgs if many => "call+".to_owned(),
            ToolForm::Granite | ToolForm::Mistral => {
                let further = if many { "(\", \" call)*" } else { "" };
                format!("{open} \"[\" call {further} \"]\"")
            }
            _ => "call".to_owned(),
        };
        let otherwise = if self.otherwise.is_some() { " | otherwise" } else { "" };
        let bodies: Vec<String> = (0..self.tools.len()).map(|i| format!("body_{i}")).collect();
        let mut lines = vec![
            format!("start: calls{otherwise}"),
            format!("calls: {calls}"),
            format!("call: {call}"),
            format!("body: {}", bodies.join(" | ")),
        ];
        if let Some(other) = &self.otherwise {
            lines.push(format!("otherwise: %json {}", schema(other)));
        }
        for (i, tool) in self.tools.iter().enumerate() {
            let key = if self.form == ToolForm::Llama { "parameters" } else { "arguments" };
            let body = if self.form == ToolForm::MistralArgs {
                format!("{} {} arguments_{i}", literal(&tool.name), marker(ARGUMENTS))
            } else {
                let head = format!("{{\"name\": \"{}\", \"{key}\": ", tool.name);
                format!("{} arguments_{i} \"}}\"", literal(&head))
            };
            lines.push(format!("body_{i}: {body}"));
            lines.push(format!("arguments_{i}: %json {}", schema(&tool.parameters)));
        }
        lines.join("\n")
    }
}
