//! Tools of a request, whatever the protocol: checks, the history of calls, and the calls in an answer.

use std::collections::BTreeSet;

use hunch_core::chat::{ChatMessage, Role};
use hunch_core::token::TokenId;
use hunch_model::text::{
    AnswerFormat, RequiredCalls, Tool, ToolCall, ToolCallParser, ToolChat, ToolMessage, ToolPart,
};
use serde_json::{Map, Value};

use super::AnsweringServer;
use super::answer::{AnswerInput, Calling};
use super::errors::Failure;
use crate::generate::Prompt;

/// Most tools of a request. Anthropic's protocol has no limit, and OpenAI's allows fewer.
const MAX_TOOLS: usize = 1024;
/// Most characters of a tool's name, as Anthropic's. OpenAI's protocol allows fewer.
const MAX_NAME: usize = 128;
/// Deepest nesting of schemas and arguments.
const MAX_DEPTH: usize = 64;

/// Use of the tools that the model has to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ToolChoice {
    /// Answer in text.
    None,
    /// Choose between text and calls.
    Auto,
    /// Call at least one tool.
    Required,
    /// Call this tool.
    Named(String),
}

/// Tools of a request.
pub(super) struct Tools {
    tools: Vec<Tool>,
    choice: ToolChoice,
    /// `true` if an answer may have several calls.
    parallel: bool,
}

impl Tools {
    /// Checks the tools of a request, with the names of their parameters for errors.
    ///
    /// # Errors
    /// If a name is invalid or occurs twice, a schema is no object, or the choice names no tool.
    pub(super) fn new(tools: Vec<Tool>, choice: ToolChoice, parallel: bool) -> Result<Self, Failure> {
        let refuse = |message: String| Err(Failure::of_param("tools", message));
        if tools.len() > MAX_TOOLS {
            return refuse(format!("{} tools are too many. Send at most {MAX_TOOLS}.", tools.len()));
        }
        let mut names = BTreeSet::new();
        for Tool { name, parameters, .. } in &tools {
            check_name(name, "tools")?;
            if !names.insert(name) {
                return refuse(format!("Two tools have the name \"{name}\". Rename one."));
            }
            if !parameters.is_object() || depth(parameters) > MAX_DEPTH {
                return refuse(format!(
                    "The parameters of the tool \"{name}\" are not a JSON schema with at most {MAX_DEPTH} levels. \
                     Send an object."
                ));
            }
            if parameters.get("type").is_some_and(|kind| !allows_object(kind)) {
                return refuse(format!(
                    "The parameters of the tool \"{name}\" are not of the type object. Put the value into an object."
                ));
            }
        }
        let refuse = |message: &str| Err(Failure::of_param("tool_choice", message));
        match &choice {
            ToolChoice::Required if tools.is_empty() => {
                refuse("`tool_choice` needs `tools`. Send at least one.")
            }
            ToolChoice::Named(name) if !names.contains(name) => refuse(&format!(
                "`tool_choice` names the tool \"{name}\", which is not among `tools`. Add it."
            )),
            _ => Ok(Self { tools, choice, parallel }),
        }
    }

    /// Returns the tools that the model may call.
    fn offered(&self) -> &[Tool] {
        if self.choice == ToolChoice::None { &[] } else { &self.tools }
    }

    /// Returns how the answer is read, or `None` if it has no calls. `format` is the format of an answer in text.
    ///
    /// # Errors
    /// If the chat template of the model has no tools.
    pub(super) fn calling(
        self,
        server: &AnsweringServer,
        format: Option<&AnswerFormat>,
    ) -> Result<Option<Calling>, Failure> {
        if self.offered().is_empty() {
            return Ok(None);
        }
        let markers =
            server.model.encoder.tools().map_err(|error| Failure::of_param("tools", error.to_string()))?;
        let named = |tool: &Tool| !matches!(&self.choice, ToolChoice::Named(name) if *name != tool.name);
        let tools: Vec<Tool> = self.tools.iter().filter(|tool| named(tool)).cloned().collect();
        let parallel = self.parallel && !markers.form.is_single();
        let many = parallel && !matches!(self.choice, ToolChoice::Named(_));
        let max_calls = if parallel { usize::MAX } else { 1 };
        let parser = ToolCallParser::new(markers.form, &tools, max_calls);
        let otherwise = match (&self.choice, format) {
            (ToolChoice::Auto, Some(format)) => format.schema(),
            _ => None,
        };
        let is_free = self.choice == ToolChoice::Auto && otherwise.is_none();
        let required = RequiredCalls { form: markers.form, tools, many, otherwise };
        let format = (!is_free).then_some(AnswerFormat::Calls(required));
        Ok(Some(Calling { parser, format, shown: markers.tokens.clone() }))
    }

    /// Returns the prompt of a conversation, followed by the tokens that its last answer starts with.
    pub(super) fn question(&self, history: History, begun: Vec<TokenId>) -> AnswerInput {
        let History { messages, .. } = history;
        let offered = self.offered();
        let is_text = |message: &ToolMessage| matches!(message, ToolMessage::Text(_));
        if !offered.is_empty() || !messages.iter().all(is_text) {
            return AnswerInput::Tools(ToolChat { messages, tools: offered.to_vec() }, begun);
        }
        let messages = messages.into_iter().filter_map(|message| match message {
            ToolMessage::Text(message) => Some(message),
            ToolMessage::Calls { .. } | ToolMessage::Result { .. } => None,
        });
        let messages = messages.collect();
        AnswerInput::Plain(if begun.is_empty() {
            Prompt::Chat(messages)
        } else {
            Prompt::Continued(messages, begun)
        })
    }
}

/// Messages of a request, with calls and their results.
#[derive(Default)]
pub(super) struct History {
    messages: Vec<ToolMessage>,
    /// IDs of the calls, as the client wrote them.
    ids: Vec<String>,
}

impl History {
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn text(&mut self, role: Role, content: String) {
        self.messages.push(ToolMessage::Text(ChatMessage { role, content }));
    }

    /// Adds an answer with calls and their IDs.
    pub(super) fn calls(&mut self, content: String, calls: Vec<(String, ToolCall)>) {
        let (ids, calls): (Vec<String>, Vec<ToolCall>) = calls.into_iter().unzip();
        self.ids.extend(ids);
        self.messages.push(ToolMessage::Calls { content, calls });
    }

    /// Adds the result of a call. `param` is the name of the ID for errors.
    ///
    /// # Errors
    /// If no call before has the ID.
    pub(super) fn result(&mut self, id: &str, content: String, param: &str) -> Result<(), Failure> {
        let call = self.ids.iter().rposition(|known| known == id).ok_or_else(|| {
            let message = format!(
                "No call before this message has the ID \"{id}\". Send the answer with the call before its result."
            );
            Failure::of_param(param, message)
        })?;
        self.messages.push(ToolMessage::Result { call, content });
        Ok(())
    }

    /// Returns the text of a last message of the assistant, and removes the message.
    pub(super) fn take_begun(&mut self) -> Option<String> {
        let is_begun = |last: &mut ToolMessage| {
            matches!(last, ToolMessage::Text(ChatMessage { role: Role::Assistant, .. }))
        };
        self.messages.pop_if(is_begun).map(|message| message.content().to_owned())
    }
}

/// Checks the name of a tool. It may stand in a prompt, so it must not contain control tokens.
fn check_name(name: &str, param: &str) -> Result<(), Failure> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_valid) {
        let message =
            format!("The name of a tool is \"{name}\". Use 1 to {MAX_NAME} letters, digits, `_` and `-`.");
        return Err(Failure::of_param(param, message));
    }
    Ok(())
}

/// Returns a call of an earlier answer.
///
/// # Errors
/// If the name is invalid, or the arguments are nested too deeply.
pub(super) fn past_call(
    name: String,
    arguments: Map<String, Value>,
    param: &str,
) -> Result<ToolCall, Failure> {
    check_name(&name, param)?;
    if arguments.values().map(depth).max().unwrap_or(0) > MAX_DEPTH {
        let message = format!("`{param}` has more than {MAX_DEPTH} levels. Shorten the conversation.");
        return Err(Failure::of_param(param, message));
    }
    Ok(ToolCall { name, arguments })
}

/// Returns whether the `type` of a schema allows objects.
fn allows_object(kind: &Value) -> bool {
    kind == "object" || kind.as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "object"))
}

/// Returns the number of nested levels.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// A part of a whole answer.
pub(super) enum AnswerPiece {
    Text(String),
    Call {
        name: String,
        /// A JSON object.
        arguments: String,
    },
}

/// Returns the pieces of a whole answer. A call that is broken is text.
pub(super) fn pieces(mut parser: ToolCallParser, text: &str) -> Vec<AnswerPiece> {
    let mut parts = parser.push(text);
    parts.extend(parser.finish());
    let (mut pieces, mut call) = (Vec::new(), None);
    for part in parts {
        match (part, &mut call) {
            (ToolPart::Text(text), _) => pieces.push(AnswerPiece::Text(text)),
            (ToolPart::Begin(name), _) => call = Some((name, String::new())),
            (ToolPart::Arguments(text), Some((_, arguments))) => arguments.push_str(&text),
            (ToolPart::End { broken: Some(raw) }, _) => {
                call = None;
                pieces.push(AnswerPiece::Text(raw));
            }
            (ToolPart::End { broken: None }, _) => {
                pieces.extend(call.take().map(|(name, arguments)| AnswerPiece::Call { name, arguments }));
            }
            (ToolPart::Arguments(_), None) => {}
        }
    }
    pieces
}
